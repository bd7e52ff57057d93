"""``check_env``: validate an environment, run it, and report all problems at once, each with a fix."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.check_host import NUM_ENVS, Say, host_problems
from jaxrl.envs.checks.space_problems import abstract_action, choice_problems, mask_problems
from jaxrl.envs.checks.validate import EnvError, abstract_key, bits, explain, find_problems, outside, picture_problem, same
from jaxrl.settings.validation import check_count
from jaxrl.spaces.action_masks import MASK_KEY, allowed
from jaxrl.spaces.goals import ACHIEVED, DESIRED
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, Env, HostEnv, Key, PyTree, TimeStep
from jaxrl.xla.private_jax import known_options

COMPILE_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""XLA options for the CPU. The program runs only twice, so compilation dominates the time; these options save a third of it."""


def check_env(env: Env | HostEnv, *, key: Key | None = None, steps: int = 50, say: Say = lambda text: None) -> None:
    """Check an environment as ``jaxrl.check_env`` does, without output: ``say`` is called with a description of each stage."""
    steps = check_count("steps", steps)
    say("tracing reset and step")
    problems = find_problems(env) or mask_problems(env)
    if isinstance(env, HostEnv):
        problems = problems or host_problems(env, steps, say)
    else:
        problems += _hidden_state_problems(env)
        say("batching reset and step")
        problems = problems or _batching_problems(env)
        say(f"compiling and running {steps} steps")
        problems = problems or _run_problems(env, jax.random.key(0) if key is None else key, steps)
    if problems:
        raise EnvError(env.name, problems)


def _hidden_state_problems(env: Env) -> list[str]:
    """Trace ``reset`` and ``step`` twice. A pure function gives the same program both times."""
    try:
        env_state, _ = jax.eval_shape(lambda *a: env.reset(*a), abstract_key(), env.params)
        action = abstract_action(env.action_space, env.num_agents)
        calls = {"reset": (env.reset, env.params), "step": (env.step, env_state, action, env.params)}
        is_pure = {name: _program(function, *args) == _program(function, *args) for name, (function, *args) in calls.items()}
    except Exception:
        return []  # find_problems reports functions that cannot be traced
    return [
        f"{name} gives a different program each time it is traced: it reads something that changes (np.random, random, time, "
        "self, a global). Draw from the key with jax.random, and keep all other state in env_state"
        for name, pure in is_pure.items()
        if not pure
    ]


def _program(function: Any, *args: Any) -> tuple[Any, ...]:
    """Return a traced function as text and constants. Its own jit is unwrapped, as jit caches the first trace."""
    plain = inspect.unwrap(function)
    jaxpr, out = jax.make_jaxpr(lambda *a: plain(*a), return_shape=True)(abstract_key(), *args)
    constants = [np.asarray(bits(constant)).tobytes() for constant in jaxpr.consts]
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr.jaxpr)), constants, str(out)


def _batching_problems(env: Env) -> list[str]:
    """Check vmap over keys, states and actions, and over parameters."""
    batch = jax.ShapeDtypeStruct((NUM_ENVS,), abstract_key().dtype)
    for params_axis, axes in ((None, "keys, states and actions"), (0, "parameters")):
        params = env.params if params_axis is None else _batched(env.params)
        try:
            env_state, _ = jax.eval_shape(jax.vmap(env.reset, in_axes=(0, params_axis)), batch, params)
            action = jax.eval_shape(lambda: _batched(random_actions(env, jax.random.key(0))))
            jax.eval_shape(jax.vmap(env.step, in_axes=(0, 0, 0, params_axis)), batch, env_state, action, params)
        except Exception as error:
            return [f"vmap over {axes} fails: {explain('the batched function', error)}"]
    return []


def _batched(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (NUM_ENVS, *jnp.shape(x))), tree)


def _run_problems(env: Env, key: Key, steps: int) -> list[str]:
    """Run episodes with random allowed actions, twice with the same key."""
    obs_space, action_space, agents = env.observation_space, env.action_space, env.num_agents

    def masks(obs: PyTree) -> PyTree:
        return {MASK_KEY: obs[MASK_KEY]} if isinstance(obs, dict) and MASK_KEY in obs else {}

    def row(params: PyTree, carry: tuple[PyTree, PyTree, Array], key: Key) -> tuple[Any, tuple[PyTree, TimeStep, Array]]:
        # Reset at the start of a row, so that the program contains `reset` once: its compilation is half of the total time.
        env_state, mask, over = carry
        done = over.all()
        reset_key, action_key, step_key = jax.random.split(key, 3)
        first_state, obs = env.reset(reset_key, params)
        env_state, mask = jax.tree.map(lambda new, old: jnp.where(done, new, old), (first_state, masks(obs)), (env_state, mask))
        action = allowed(random_actions(env, action_key), mask, action_space)
        env_state, time_step = env.step(step_key, env_state, action, params)
        gone = (over & ~done) | time_step.terminated
        return (env_state, masks(time_step.obs), gone | time_step.truncated), (obs, time_step, gone)

    def episodes(key: Key, params: PyTree) -> tuple[PyTree, tuple[PyTree, TimeStep, Array]]:
        def blank(like: Any) -> Array:
            is_key = jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
            return jnp.broadcast_to(key, like.shape) if is_key else jnp.zeros(like.shape, like.dtype)

        empty = jax.tree.map(blank, jax.eval_shape(env.reset, key, params)[0])
        start = (empty, masks(zeros(obs_space, (agents,) * (agents > 0))), jnp.ones((agents,) * (agents > 0), bool))
        (env_state, _, _), rows = jax.lax.scan(functools.partial(row, params), start, jax.random.split(key, steps))
        return env_state, rows

    run = jax.jit(jax.vmap(episodes), compiler_options=known_options(COMPILE_FAST) if jax.default_backend() == "cpu" else None)
    try:
        keys, params = jax.random.split(key, NUM_ENVS), _batched(env.params)
        first, second = (jax.block_until_ready(run(keys, params)) for _ in range(2))
    except Exception as error:
        return [explain("a run of reset and step under jit and vmap", error)]
    env_states, (obs, time_step, gone) = first
    problems = outside("the obs after reset", obs_space, obs)
    problems += outside("the obs after a step", obs_space, time_step.obs)
    problems += choice_problems("after reset", obs, action_space)
    problems += choice_problems("after a step", time_step.obs, action_space, gone)
    if not np.isfinite(time_step.reward).all():
        problems.append("reward is NaN or infinite after some step: guard divisions, logarithms and roots")
    if not same(first, second):
        problems.append("the same key gave different results: all randomness must come from the key, through jax.random")
    problems += _goal_problems(env, time_step)
    return problems or _render_problems(env, jax.tree.map(lambda x: x[0], env_states))


def _goal_problems(env: Env, reached: TimeStep) -> list[str]:
    """Check that ``compute_reward`` agrees with ``step``, as hindsight replay assumes, on time steps [num_envs, steps]."""
    if env.compute_reward is None:
        return []
    goals, function = (reached.obs[ACHIEVED], reached.obs[DESIRED]), env.compute_reward
    for _ in range(2 + (env.num_agents > 0)):
        function = jax.vmap(function)
    computed = function(*goals)
    for name, from_goals, from_step in zip(("reward", "terminated"), computed, (reached.reward, reached.terminated), strict=True):
        wrong = np.argwhere(~np.isclose(from_goals, from_step, rtol=1e-4, atol=1e-5))
        if wrong.size:
            both = [np.asarray(x)[tuple(wrong[0])] for x in (from_step, from_goals)]
            return [
                f"step gave the {name} {both[0]:g}, but compute_reward gave {both[1]:g} for the goals in the observation of that "
                "step: they must agree, so rewards and terminations must depend on the goals alone"
            ]
    return []


def _render_problems(env: Env, env_state: PyTree) -> list[str]:
    if env.render is None:
        return []
    action = np.asarray(random_actions(env, jax.random.key(0)))
    try:
        pictures = [env.render(env_state, last_action, env.params) for last_action in (None, action)]
    except Exception as error:
        return [explain("render", error)]
    problems = [problem for problem in map(picture_problem, pictures) if problem]
    if not problems and len(sizes := {np.shape(picture) for picture in pictures}) > 1:
        problems = [f"render gave pictures of different shapes, {sorted(sizes)}: all must have the same shape"]
    return problems[:1]


def random_actions(env: Env, key: Key) -> Array:
    """Draw an action, or one for each of several agents, [A, ...]."""
    if not env.num_agents:
        return random_action(env.action_space, key)
    return jax.vmap(lambda key: random_action(env.action_space, key))(jax.random.split(key, env.num_agents))


def random_action(space: spaces.Space, key: Key) -> Array:
    """Draw an action uniformly, or from a clipped normal distribution if a Box is unbounded."""
    if isinstance(space, spaces.Discrete):
        return jax.random.randint(key, (), 0, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return jax.random.randint(key, space.shape, 0, jnp.asarray(space.nvec))
    assert isinstance(space, spaces.Box)
    if space.is_bounded():
        return jax.random.uniform(key, space.shape, jnp.float32, space.low, space.high)
    return jnp.clip(jax.random.normal(key, space.shape, jnp.float32), space.low, space.high)
