"""Validation of environments against the contract of ``jaxrl.types`` by shapes and types. Nothing is compiled or run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.space_problems import (
    ACTIONS,
    OBSERVATIONS,
    abstract,
    abstract_action,
    nested_name_problems,
    player_problems,
    space_problems,
)
from jaxrl.envs.host import SLACK, bounds_of, parts_of
from jaxrl.spaces.goals import ACHIEVED, DESIRED, GOAL_KEYS
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Env, HostEnv, PyTree, TimeStep

CONTROL_FLOW = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


class EnvError(ValueError):
    """Error: an environment breaks the contract. ``problems`` lists each violation with a fix."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        listed = "".join(f"\n  {number}. {problem}" for number, problem in enumerate(problems, 1))
        super().__init__(f"the environment {name!r} does not keep jaxrl's contract (jaxrl.types):{listed}")


def validate_env(env: Env | HostEnv) -> None:
    """Check spaces, parameters, and the outputs of ``reset`` and ``step`` by abstract evaluation, in milliseconds.

    Raises:
      EnvError: lists all problems found, each with a fix.
    """
    if problems := find_problems(env):
        raise EnvError(env.name, problems)


def find_problems(env: Env | HostEnv) -> list[str]:
    """Return the problems that ``validate_env`` raises."""
    if not isinstance(env, Env | HostEnv):
        raise TypeError(
            f"expected a jaxrl.types.Env or HostEnv, not {type(env).__name__}; jaxrl.make_env(id) makes one from an id"
        )
    problems = space_problems("observation_space", env.observation_space, OBSERVATIONS)
    problems += space_problems("action_space", env.action_space, ACTIONS)
    problems += nested_name_problems(env.observation_space)
    limit = env.max_episode_steps
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        problems.append(f"max_episode_steps={limit!r} must be an integer >= 1, or None for no limit")
    agents = env.num_agents
    if isinstance(agents, bool) or not isinstance(agents, int) or agents < 0:
        return [*problems, f"num_agents={agents!r} must be an integer >= 1, or 0 for an environment of one agent"]
    problems += player_problems(env)
    if isinstance(env, Env):
        problems += _params_problems(env.params) or _function_problems(env)
    if env.compute_reward is not None:
        problems += _goal_problems(env)
    return problems


def _goal_problems(env: Env | HostEnv) -> list[str]:
    """Check a goal environment; see ``jaxrl.spaces.goals``."""
    space = env.observation_space
    entries = space.spaces if isinstance(space, spaces.Dict) else {}
    if missing := [name for name in GOAL_KEYS if name not in entries]:
        return [
            f"observation_space is {space}, but a goal environment (one with compute_reward) needs a Dict that also has "
            f"{', '.join(map(repr, missing))}: use spaces.Dict with the entries {', '.join(GOAL_KEYS)}"
        ]
    achieved, desired = (abstract(entries[name]) for name in (ACHIEVED, DESIRED))
    if achieved is None or desired is None:
        return []  # reported by space_problems
    if wrong := mismatches(f"observation_space[{ACHIEVED!r}]", achieved, desired, f"observation_space[{DESIRED!r}]"):
        return [f"{wrong[0]}, since hindsight replay uses achieved goals as desired ones"]
    try:
        out = jax.eval_shape(env.compute_reward, achieved, desired)  # type: ignore[arg-type]
    except Exception as error:
        return [explain("compute_reward", error)]
    if not isinstance(out, tuple) or len(out) != 2:
        return [f"compute_reward returned {show_shapes(out)}; it must return (reward f32[], terminated bool[])"]
    return [
        f"compute_reward returned {show_shapes(value)} as {name}; it must be one {dtype}, as in step"
        for name, dtype, value in zip(("reward", "terminated"), ("float32", "bool"), out, strict=True)
        if (getattr(value, "shape", None), str(getattr(value, "dtype", None))) != ((), dtype)
    ]


def _params_problems(params: PyTree) -> list[str]:
    problems = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        if not is_key and (
            not isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array)
            or np.result_type(leaf).kind not in "biufV"  # V: JAX's small types, such as bfloat16
        ):
            problems.append(
                f"params{jax.tree_util.keystr(path)} is {leaf!r}, a {type(leaf).__name__}: parameters are data, so use numbers "
                "and arrays in a NamedTuple, a dict or a flax.struct.dataclass; put values that set shapes into a closure"
            )
    return problems


def _function_problems(env: Env) -> list[str]:
    problems: list[str] = []
    out = _trace("reset", env.reset, problems, env.params)
    if out is None:
        return problems
    if not isinstance(out, tuple) or len(out) != 2:
        return [f"reset returned {show_shapes(out)}; it must return (env_state, obs)"]
    env_state, obs = out

    agents = env.num_agents
    expected, source = abstract(env.observation_space, agents), of_agents("observation_space", agents)
    if expected is not None:
        wrong = mismatches("the obs that reset returns", obs, expected, source)
        if wrong and not mismatches("", env_state, expected, ""):
            wrong = ["reset returned (obs, env_state); the order is (env_state, obs)"]
            env_state, obs = obs, env_state
        problems += wrong

    action = abstract_action(env.action_space, agents)
    if action is None:
        return problems
    out = _trace("step", env.step, problems, env_state, action, env.params)
    if out is None:
        return problems
    if not isinstance(out, tuple) or len(out) != 2 or not isinstance(out[1], TimeStep):
        wanted = "(env_state, jaxrl.types.TimeStep(obs, reward, ...))"
        return [*problems, f"step returned {show_shapes(out)}; it must return {wanted}"]
    next_state, time_step = out
    problems += mismatches("the env_state that step returns", next_state, env_state, "the env_state that reset returns")
    problems += mismatches("the obs that step returns", time_step.obs, obs, "the obs that reset returns")
    return problems + _time_step_problems(time_step, agents)


def of_agents(space_name: str, num_agents: int) -> str:
    return f"{space_name} of {num_agents} agents" if num_agents else space_name


def _time_step_problems(time_step: TimeStep, num_agents: int) -> list[str]:
    problems, each = [], (num_agents,)
    dtypes = {"reward": (jnp.float32, "jnp.float32"), "terminated": (jnp.bool_, "bool"), "truncated": (jnp.bool_, "bool")}
    for name, (dtype, type_name) in dtypes.items():
        value = getattr(time_step, name)
        if not hasattr(value, "shape"):
            problems.append(f"{name} is {show_shapes(value)}; it must be one number")
            continue
        if not num_agents and value.shape != ():
            problems.append(f"{name} has shape {value.shape}; it must be a scalar: take {name}.squeeze(), or reduce it")
        if num_agents and value.shape != each and (name == "reward" or value.shape != ()):
            scalar = "" if name == "reward" else ", or (), for all agents"
            problems.append(f"{name} has shape {value.shape}; with num_agents={num_agents} it must have {each}{scalar}")
        if value.dtype != dtype:
            problems.append(f"{name} has dtype {value.dtype}; it must be {np.dtype(dtype)}: jnp.asarray({name}, {type_name})")
    info = time_step.info
    if not isinstance(info, dict) or not all(isinstance(name, str) for name in info):
        wanted = "a dict from names to arrays, {} if there is no information"
        return [*problems, f"info is {show_shapes(info)}; it must be {wanted}"]
    for name, value in info.items():
        if not (hasattr(value, "dtype") and (jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool)):
            wanted = "one array of numbers: give each array its own name, without nesting"
            problems.append(f"info[{name!r}] is {show_shapes(value)}; it must be {wanted}")
        elif num_agents and jnp.shape(value)[:1] != each:
            wanted = f"a first axis of {num_agents}"
            problems.append(f"info[{name!r}] is {show_shapes(value)}; with num_agents={num_agents} it must have {wanted}")
    return problems


def abstract_key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def _trace(name: str, function: Callable[..., Any], problems: list[str], *args: Any) -> Any:
    """Evaluate ``function(key, *args)`` abstractly. Append a problem on failure; None unless a legacy key helps."""
    try:
        return jax.eval_shape(lambda *a: function(*a), abstract_key(), *args)
    except Exception as error:
        problems.append(explain(name, error))
    try:
        out = jax.eval_shape(lambda *a: function(*a), jax.ShapeDtypeStruct((2,), jnp.uint32), *args)
    except Exception:
        return None
    problems[-1] = (
        f"{name} takes only a legacy uint32[2] key; jaxrl passes typed keys (jax.random.key): use the key in jax.random.* "
        "only, without indexing it or reading its shape"
    )
    return out


def explain(name: str, error: Exception) -> str:
    """Explain an exception inside ``reset`` or ``step``, with a fix."""
    lines = str(error).strip().splitlines() or [""]
    reason = lines[-1 if "Traceback" in lines[0] else 0]  # the error of a callback is on the last line
    if isinstance(error, CONTROL_FLOW):
        return (
            f"{name} uses a traced value in Python control flow, as a Python number or in NumPy; under jit it has no value "
            f"yet: use jnp.where, jax.lax.cond, jax.lax.fori_loop and jnp instead of if, while, int() and np ({reason})"
        )
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return (
            f"{name} keeps values from one call to the next (self.x = ..., a global, a list outside); it must be a pure "
            "function: keep all state in env_state"
        )
    return f"{name} raised {type(error).__name__}: {reason}"


def mismatches(subject: str, got: PyTree, want: PyTree, source: str, *, numpy: str = "jnp") -> list[str]:
    """Return differences in structure, shape and dtype, one sentence each, with advice for the array library ``numpy``."""
    if jax.tree.structure(got) != jax.tree.structure(want):
        return [f"{subject}: structure {show_shapes(got)} differs from {source}'s, {show_shapes(want)}"]
    problems = []
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            fix = f"cast it with {numpy}.asarray(x, dtype), or change the space" if x.shape == y.shape else "they must agree"
            problems.append(
                f"{subject}{jax.tree_util.keystr(path)} is {show_shapes(x)}, but {source} has {show_shapes(y)}: {fix}"
            )
    return problems


def picture_problem(picture: Any) -> str | None:
    """Return the problem of a picture from ``render``, or None."""
    is_valid = getattr(picture, "dtype", None) == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3 and picture.size
    return None if is_valid else f"render gave {show_shapes(picture)}; a picture is an array uint8[height, width, 3]"


def outside(subject: str, space: spaces.Space, value: PyTree) -> list[str]:
    """Return the problems of values [..., *space.shape] that are outside ``space``."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [problem for name, part in parts_of(space) for problem in outside(f"{subject}[{name!r}]", part, value[name])]
    value, (low, high) = np.asarray(value), bounds_of(space)
    if value.dtype.kind == "f" and np.isnan(value).any():
        return [f"{subject} is NaN: guard divisions, logarithms and roots"]
    slack = SLACK * np.maximum(1.0, np.abs(value, dtype=np.float64)) if value.dtype.kind == "f" else 0
    wrong = (value < low - slack) | (value > high + slack)
    if not wrong.any():
        return []
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    element = index[value.ndim - len(space.shape or ()) :]
    limits = f"[{np.broadcast_to(low, value.shape)[index]}, {np.broadcast_to(high, value.shape)[index]}]"
    where = f" at element {list(element)}" if element else ""
    return [
        f"{subject} is {value[index]}{where}, outside observation_space's {limits}: widen the space (infinite bounds are fine)"
    ]


def same(a: PyTree, b: PyTree) -> bool:
    """Return whether two trees of the same structure hold equal values. NaN equals NaN."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(bits(x), bits(y), equal_nan=True) for x, y in pairs)


def bits(x: Any) -> Any:
    """Return the data of a typed key, or any other value unchanged."""
    return jax.random.key_data(x) if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
