"""Single-agent environments of jumanji as pure ``Env``s, with Dict observations and jaxrl's action masks."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.validate import abstract_key
from jaxrl.envs.ids import check_name, check_options, defaults_of
from jaxrl.settings.packages import import_package
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.trees import cast_like
from jaxrl.types import Array, Env, Key, PyTree, TimeStep

MOST_JOINT = 2**16
"""Most joint actions that are flattened into one Discrete action."""

MOST_KINDS = 256
"""Most values of an observed category. An observation with more values, such as a step count, is a number."""


def list_names() -> list[str]:
    return sorted(import_package("jumanji", "the backend jumanji", extra="jumanji").registered_environments())


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
    check_name("jumanji", name, list_names())
    registration = importlib.import_module("jumanji.registration")
    arguments = defaults_of(registration.load(registration._REGISTRY[name].entry_point))
    plain = {option: default for option, default in arguments.items() if isinstance(default, bool | int | float | str)}
    if arguments.get("time_limit", 0) is None:  # a limit that follows from the size
        plain["time_limit"] = 1
    check_options(f"jumanji:{name}", options, plain)
    task = importlib.import_module("jumanji").make(name, **options)
    if task.reward_spec.shape:
        raise ValueError(
            f"jumanji:{name} has a reward of shape {task.reward_spec.shape}, for several agents; jaxrl supports one agent"
        )
    return _env(task)


def _env(task: Any) -> Env:
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

    like = jax.eval_shape(task.reset, abstract_key())[0]

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state, reached = task.reset(key)
        return cast_like(state, like), observe(reached.observation)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        if choices is not None:
            action = jnp.stack(jnp.unravel_index(action, choices))
        state, reached = task.step(env_state, action)
        terminated = reached.discount == 0
        truncated = reached.last() & ~terminated
        reward = jnp.asarray(reached.reward, jnp.float32)
        return cast_like(state, like), TimeStep(observe(reached.observation), reward, terminated, truncated)

    return Env(reset, step, observation_space, action_space)


def _space(spec: Any, most_kinds: float = np.inf) -> spaces.Space:
    """Convert a jumanji spec to a Gymnasium space."""
    kind = {each.__name__ for each in type(spec).__mro__}
    if "DiscreteArray" in kind and spec.num_values <= most_kinds:
        return spaces.Discrete(int(spec.num_values))
    if "MultiDiscreteArray" in kind:
        return spaces.MultiDiscrete(np.asarray(spec.num_values))
    if "Array" not in kind:
        parts = {name: part for name, part in vars(spec).items() if hasattr(part, "generate_value")}
        return spaces.Dict({name: _space(part, most_kinds) for name, part in parts.items()})
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
