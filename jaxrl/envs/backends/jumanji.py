"""Single-agent environments of jumanji as pure ``Env``s, with Dict observations and jaxrl's action masks."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.ids import EnvId, check_known, check_name, check_option, format_id, import_package, parse_id
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

MOST_JOINT = 2**16
"""Most joint actions that are flattened into one Discrete action."""

MOST_KINDS = 256
"""Most values of an observed category. An observation with more values, such as a step count, is a number."""


def list_names() -> list[str]:
    return sorted(import_package("jumanji", "the backend jumanji", extra="jumanji").registered_environments())


def family(name: str) -> str:
    return "all"


def make(name: str, options: dict[str, Any]) -> Env:
    """Make an environment of jumanji (Bonnet et al. 2024), without jumanji's wrappers.

    Args:
      options: arguments of the environment's class that are plain data (``time_limit`` in most). All are static.

    Returns:
      An Env whose observation is a Dict if jumanji's is a record. A MultiDiscrete action with one mask over all combinations
      becomes a single Discrete choice of a combination. A discount of 0 terminates; most environments also have it at their
      ``time_limit``. Any other end truncates.

    Raises:
      ValueError: the environment has several agents with separate rewards.
    """
    label = f"jumanji:{name}"
    check_name("jumanji", name, list_names())
    registration = importlib.import_module("jumanji.registration")
    spec = registration._REGISTRY[name]
    parameters = inspect.signature(registration.load(spec.entry_point)).parameters.values()
    plain = [each for each in parameters if isinstance(each.default, bool | int | float | str) or each.name == "time_limit"]
    defaults = {each.name: each.default for each in plain}
    check_known(label, options, defaults)
    for option, value in options.items():
        counts = option == "time_limit"  # its default may be None: a limit that follows from the size
        check_option(label, option, value, defaults[option] or 1 if counts else defaults[option], at_least=1 if counts else None)
    return _task(format_id(EnvId("jumanji", name, options)))


@functools.cache
def _task(canonical_id: str) -> Env:
    """Construct an environment and close over it. Cached, so that equal ids share functions and compiled programs."""
    _, name, options, _ = parse_id(canonical_id)
    task: Any = importlib.import_module("jumanji").make(name, **options)
    if task.reward_spec.shape:
        raise ValueError(
            f"jumanji:{name} has a reward of shape {task.reward_spec.shape}, for several agents; jaxrl supports one agent"
        )
    observation_space, action_space, choices = _space(task.observation_spec, MOST_KINDS), _space(task.action_spec), None
    mask = observation_space.spaces.get(MASK_KEY) if isinstance(observation_space, spaces.Dict) else None
    if mask is not None and isinstance(action_space, spaces.MultiDiscrete):
        choices = tuple(action_space.nvec.tolist())
        if mask.shape == choices and np.prod(choices) <= MOST_JOINT:
            action_space = spaces.Discrete(int(np.prod(choices)))
        else:
            choices = None
    if mask is not None and isinstance(observation_space, spaces.Dict):
        observation_space = spaces.Dict({**observation_space.spaces, MASK_KEY: spaces.MultiBinary(int(np.prod(mask.shape)))})  # type: ignore[arg-type]

    def observe(observation: Any) -> PyTree:
        obs = _values(observation, observation_space)
        return {**obs, MASK_KEY: obs[MASK_KEY].ravel()} if mask is not None else obs

    like = jax.eval_shape(task.reset, jax.eval_shape(lambda: jax.random.key(0)))[0]

    def settled(state: PyTree) -> PyTree:
        return jax.tree.map(lambda x, leaf: x if x.dtype == leaf.dtype else jnp.asarray(x, leaf.dtype), state, like)

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state, reached = task.reset(key)
        return settled(state), observe(reached.observation)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        if choices is not None:
            action = jnp.stack(jnp.unravel_index(action, choices))
        state, reached = task.step(env_state, action)
        terminated = reached.discount == 0
        truncated = reached.last() & ~terminated
        reward = jnp.asarray(reached.reward, jnp.float32)
        return settled(state), TimeStep(observe(reached.observation), reward, terminated, truncated)

    return Env(reset, step, observation_space, action_space, name=canonical_id)


def _space(spec: Any, most_kinds: float = np.inf) -> spaces.Space:
    """Convert a jumanji spec to a Gymnasium space."""
    kind = {each.__name__ for each in type(spec).__mro__}
    if "DiscreteArray" in kind and spec.num_values <= most_kinds:
        return spaces.Discrete(int(spec.num_values))
    if "MultiDiscreteArray" in kind:
        return spaces.MultiDiscrete(np.asarray(spec.num_values))
    if "Array" not in kind:
        return spaces.Dict(
            {name: _space(part, most_kinds) for name, part in vars(spec).items() if hasattr(part, "generate_value")}
        )
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(spec.shape)
    limits = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-np.inf, np.inf)
    low, high = (np.asarray(getattr(spec, name, limit)) for name, limit in zip(("minimum", "maximum"), limits, strict=True))
    low, high = (np.broadcast_to(bound, spec.shape).astype(dtype) for bound in (low, high))
    return spaces.Box(low, high, dtype=dtype.type)


def _values(value: Any, space: spaces.Space) -> PyTree:
    """Convert a record to a dict with the dtypes of ``space``."""
    if isinstance(space, spaces.Dict):
        return {name: _values(getattr(value, name), part) for name, part in space.items()}
    return jnp.asarray(value, jax.dtypes.canonicalize_dtype(space.dtype))
