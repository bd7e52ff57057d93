"""``check_env``: validate an environment, then run it, and report all problems at once, each with its fix."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.config import check_count
from jaxrl.envs.validate import EnvError, abstract, abstract_key, explain, find_problems, mismatches
from jaxrl.types import Array, Env, HostEnv, HostEnvs, HostStep, Key, PyTree, TimeStep

NUM_ENVS = 2
TOLERANCE = 1e-5
"""Relative: rounding may carry an observation past its bound."""

COMPILE_FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""For XLA on the CPU. The program runs twice, so compiling it is the cost: a third less this way."""


def check_env(env: Env | HostEnv, *, key: Key | None = None, steps: int = 50) -> None:
    """Run an environment of your own through everything that jaxrl relies on; seconds, most of them compiling.

    After ``validate_env``: a pure ``Env`` is traced twice (hidden state, NumPy's randomness), batched by ``vmap`` over keys and
    parameters, and stepped with random actions under jit; a ``HostEnv`` is opened twice with two environments. Observations must
    be finite and inside their space, rewards finite, and equal keys or seeds must give equal results.

    Args:
      key: a typed key for actions and environments; by default ``jax.random.key(0)``. Host environments get the seed 0.
      steps: how many steps each environment takes.

    Raises:
      EnvError: all problems found. Those of shape come first, alone, as nothing can run before they are solved.
    """
    check_count("steps", steps)
    problems = find_problems(env)
    if isinstance(env, HostEnv):
        problems = problems or _host_problems(env, steps)
    else:
        problems += _hidden_state_problems(env)
        problems = problems or _batching_problems(env)
        problems = problems or _run_problems(env, jax.random.key(0) if key is None else key, steps)
    if problems:
        raise EnvError(env.name, problems)


# ----------------------------------------------------------------------------------------------------------------- pure: traces


def _hidden_state_problems(env: Env) -> list[str]:
    """Trace ``reset`` and ``step`` twice. A pure function gives the same program."""
    try:
        env_state, _ = jax.eval_shape(lambda *a: env.reset(*a), abstract_key(), env.params)
        action = abstract(env.action_space)
        calls = {"reset": (env.reset, env.params), "step": (env.step, env_state, action, env.params)}
        same = {name: _program(function, *args) == _program(function, *args) for name, (function, *args) in calls.items()}
    except Exception:
        return []  # cannot be traced: find_problems says why
    return [
        f"{name} becomes another program each time it is traced: it reads something that changes (np.random, random, time, self, "
        "a global). Draw from the key with jax.random, and keep what lasts in env_state"
        for name, pure in same.items()
        if not pure
    ]


def _program(function: Any, *args: Any) -> tuple[Any, ...]:
    """A traced function as text and constants. Without its own jit, which would remember the first trace."""
    plain = inspect.unwrap(function)
    jaxpr, out = jax.make_jaxpr(lambda *a: plain(*a), return_shape=True)(abstract_key(), *args)
    constants = [np.asarray(_bits(constant)).tobytes() for constant in jaxpr.consts]
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr.jaxpr)), constants, str(out)


def _bits(x: Any) -> Any:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _batching_problems(env: Env) -> list[str]:
    """vmap over keys, states and actions, and over parameters."""
    batch = jax.ShapeDtypeStruct((NUM_ENVS,), abstract_key().dtype)
    for params_axis, what in ((None, "keys, states and actions"), (0, "parameters")):
        params = env.params if params_axis is None else _batched(env.params)
        try:
            env_state, _ = jax.eval_shape(jax.vmap(env.reset, in_axes=(0, params_axis)), batch, params)
            action = jax.eval_shape(lambda: _batched(random_action(env.action_space, jax.random.key(0))))
            jax.eval_shape(jax.vmap(env.step, in_axes=(0, 0, 0, params_axis)), batch, env_state, action, params)
        except Exception as error:
            return [f"vmap over {what} fails: {explain('the batched function', error)}"]
    return []


def _batched(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (NUM_ENVS, *jnp.shape(x))), tree)


# -------------------------------------------------------------------------------------------------------------------- pure: run


def _run_problems(env: Env, key: Key, steps: int) -> list[str]:
    """Step with random actions, twice with the same key."""

    def row(params: PyTree, carry: tuple[PyTree, Array], key: Key) -> tuple[tuple[PyTree, Array], tuple[PyTree, TimeStep]]:
        # Resets at the start of a row, so that the program holds `reset` once: half of the time goes into compiling it.
        env_state, done = carry
        reset_key, action_key, step_key = jax.random.split(key, 3)
        fresh, obs = env.reset(reset_key, params)
        env_state = jax.tree.map(lambda new, old: jnp.where(done, new, old), fresh, env_state)
        env_state, time_step = env.step(step_key, env_state, random_action(env.action_space, action_key), params)
        return (env_state, time_step.terminated | time_step.truncated), (obs, time_step)

    def episodes(key: Key, params: PyTree) -> tuple[PyTree, TimeStep]:
        blank = jax.tree.map(lambda x: _blank(x, key), jax.eval_shape(env.reset, key, params)[0])
        return jax.lax.scan(functools.partial(row, params), (blank, jnp.asarray(True)), jax.random.split(key, steps))[1]

    run = jax.jit(jax.vmap(episodes), compiler_options=COMPILE_FAST if jax.default_backend() == "cpu" else None)
    try:
        keys, params = jax.random.split(key, NUM_ENVS), _batched(env.params)
        first, again = (jax.tree.map(lambda x: np.asarray(_bits(x)), run(keys, params)) for _ in range(2))
    except Exception as error:
        return [explain("a run of reset and step under jit and vmap", error)]
    obs, time_step = first
    problems = outside("the obs after reset", env.observation_space, obs)
    problems += outside("the obs after a step", env.observation_space, time_step.obs)
    if not np.isfinite(time_step.reward).all():
        problems.append("reward is NaN or infinite after some step: guard divisions, logarithms and roots")
    if not _same(first, again):
        problems.append("the same key gave different results: all randomness must come from the key, through jax.random")
    return problems


def _blank(like: Any, key: Key) -> Array:
    is_key = jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
    return jnp.broadcast_to(key, like.shape) if is_key else jnp.zeros(like.shape, like.dtype)


def random_action(space: spaces.Space, key: Key) -> Array:
    """An action drawn uniformly, or from a normal distribution where a Box has no bounds."""
    if isinstance(space, spaces.Discrete):
        return jax.random.randint(key, (), 0, int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return jax.random.randint(key, space.shape, 0, jnp.asarray(space.nvec))
    assert isinstance(space, spaces.Box)
    if space.is_bounded():
        return jax.random.uniform(key, space.shape, space.dtype, space.low, space.high)
    return jnp.clip(jax.random.normal(key, space.shape, space.dtype), space.low, space.high)


def outside(what: str, space: spaces.Space, value: PyTree) -> list[str]:
    """Problems of values [..., *space.shape] that are not in ``space``."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        return [problem for name, part in parts for problem in outside(f"{what}[{name!r}]", part, value[name])]
    value = np.asarray(value)
    if value.dtype.kind == "f" and np.isnan(value).any():
        return [f"{what} is NaN: guard divisions, logarithms and roots"]
    low, high = bounds(space)
    slack = TOLERANCE * np.maximum(1, np.abs(value)) if value.dtype.kind == "f" else 0
    wrong = (value < low - slack) | (value > high + slack)
    if not wrong.any():
        return []
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    element = index[value.ndim - len(space.shape or ()) :]
    limits = f"[{np.broadcast_to(low, value.shape)[index]}, {np.broadcast_to(high, value.shape)[index]}]"
    where = f" at element {list(element)}" if element else ""
    return [f"{what} is {value[index]}{where}, outside observation_space's {limits}: widen the space (infinite bounds are fine)"]


def bounds(space: spaces.Space) -> tuple[Any, Any]:
    """Lowest and highest values of a space with a shape, inclusive."""
    if isinstance(space, spaces.Box):
        return space.low.astype(np.float64), space.high.astype(np.float64)
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec  # type: ignore[attr-defined]
    return space.start, space.start + count - 1  # type: ignore[attr-defined]


def _same(a: PyTree, b: PyTree) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


# ------------------------------------------------------------------------------------------------------------------------- host


def _host_problems(env: HostEnv, steps: int) -> list[str]:
    """Open two environments, twice with the same seed, and step them."""
    problems: list[str] = []
    records = []
    for _ in range(2):
        try:
            envs = env.open(NUM_ENVS, 0)
        except Exception as error:
            return [explain(f"open({NUM_ENVS}, 0)", error)]
        try:
            records.append(_host_record(env, envs, steps))
        except EnvError as error:
            return list(error.problems)
        except Exception as error:
            return [explain("reset() or step(action) of the opened environments", error)]
        finally:
            envs.close()
        try:
            envs.reset()
        except Exception:
            continue
        problems = ["after close(), reset() still works; it must raise an error that says so"]
    if not _same(*records):
        problems.append(
            "open() with the same seed gave different results: every stream must be fixed by the seed and the environment"
        )
    return problems


def _host_record(env: HostEnv, envs: HostEnvs, steps: int) -> list[Any]:
    """Reset and step, checking each row. Returns all that was seen."""
    action_space = copy.deepcopy(env.action_space)
    action_space.seed(0)
    obs = envs.reset()
    _raise_if(env, _host_obs_problems("the obs that reset returns", env.observation_space, obs))
    record: list[Any] = [jax.tree.map(np.copy, obs)]
    done = np.zeros(NUM_ENVS, bool)
    for _ in range(steps):
        before = obs
        row = envs.step(np.stack([action_space.sample() for _ in range(NUM_ENVS)]))
        _raise_if(env, _host_row_problems(env, row, done))
        if not _same(before, record[-1][0] if isinstance(record[-1], HostStep) else record[-1]):
            _raise_if(env, ["step changes arrays that it returned before: return copies"])
        obs, done = row.obs, row.terminated | row.truncated
        record.append(jax.tree.map(np.copy, row))
    return record


def _raise_if(env: HostEnv, problems: list[str]) -> None:
    if problems:
        raise EnvError(env.name, problems)


def _host_row_problems(env: HostEnv, row: Any, after_end: np.ndarray) -> list[str]:
    if not isinstance(row, HostStep):
        return [f"step returned {type(row).__name__}; it must return a jaxrl.types.HostStep"]
    problems = _host_obs_problems("the obs that step returns", env.observation_space, row.obs)
    for name, dtype in (("reward", np.float32), ("terminated", np.bool_), ("truncated", np.bool_)):
        value = getattr(row, name)
        if np.shape(value) != (NUM_ENVS,) or getattr(value, "dtype", None) != dtype:
            shape = f"{getattr(value, 'dtype', type(value).__name__)}{list(np.shape(value))}"
            problems.append(
                f"{name} is {shape}; with {NUM_ENVS} environments it must be a NumPy array {np.dtype(dtype)}[{NUM_ENVS}]"
            )
    if problems:
        return problems
    if not np.isfinite(row.reward).all():
        problems.append("reward is NaN or infinite")
    if np.any(row.reward[after_end] != 0):
        problems.append("the row after an end is spent on the reset (NEXT_STEP), so its reward must be 0")
    return problems


def _host_obs_problems(what: str, space: spaces.Space, obs: PyTree) -> list[str]:
    if not all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(obs)):
        return [f"{what} holds something else than NumPy arrays"]
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((NUM_ENVS, *x.shape), x.dtype), abstract(space))
    got = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), obs)
    return mismatches(what, got, batch, f"a batch of {NUM_ENVS} of observation_space") or outside(what, space, obs)
