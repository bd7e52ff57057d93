"""Environments of jumanji, of one or several agents, as pure ``Env``s with Dict observations and jaxrl's action masks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.validate import abstract_key
from jaxrl.envs.ids import check_name, check_options, defaults_of
from jaxrl.settings.packages import import_package
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import AGENT_KEY
from jaxrl.spaces.trees import cast_like
from jaxrl.types import Array, Env, Key, PyTree, ResetFn, StepFn, TimeStep

MOST_JOINT = 2**16
"""Most joint actions that are flattened into one Discrete action."""

MOST_KINDS = 256
"""Most values of an observed category. An observation with more values, such as a step count, is a number."""

TEAMS = {"Cleaner", "Connector", "LevelBasedForaging", "MMST", "MultiCVRP", "RobotWarehouse", "SearchAndRescue"}
"""Classes whose actions have an axis of agents. Others with such an axis, as JobShop, are one agent with several choices."""

JOINT = {"Cleaner", "MMST", "RobotWarehouse"}
"""Those of them that can also be one agent, which acts for all: they have one reward, and discrete actions."""

OWN = (MASK_KEY, "agents_view", "searcher_views")
"""Parts of an observation that have an axis of agents. All agents see the other parts, whole."""


def list_names() -> list[str]:
    return sorted(import_package("jumanji", "the backend jumanji", extra="jumanji").registered_environments())


def make(name: str, options: dict[str, Any]) -> Env:
    """Make an environment of jumanji (Bonnet et al. 2024), without jumanji's wrappers.

    Args:
      options: arguments of the environment's class that are plain data (``time_limit`` in most). All are static. ``joint=True``
        makes one agent of the agents of Cleaner, MMST and RobotWarehouse, with a MultiDiscrete action.

    Returns:
      An Env whose observation is a Dict if jumanji's is a record. A MultiDiscrete action with one mask over all combinations
      becomes a single Discrete choice of a combination. A discount of 0 terminates; most environments also have it at their
      ``time_limit``. Any other end truncates.

      Several agents (``Env.num_agents``) share parts of the observation that have no axis of agents. Where they share all but the
      mask, ``agent_id`` is added, as the wrapper of that name does. A reward for all is given to each.

    Raises:
      ValueError: the environment or an option does not exist, or agents have separate rewards and no axis in the action.
    """
    check_name("jumanji", name, list_names())
    registration = importlib.import_module("jumanji.registration")
    kind = registration.load(registration._REGISTRY[name].entry_point)
    arguments = defaults_of(kind)
    plain = {option: default for option, default in arguments.items() if isinstance(default, bool | int | float | str)}
    if arguments.get("time_limit", 0) is None:  # a limit that follows from the size
        plain["time_limit"] = 1
    check_options(f"jumanji:{name}", options, plain | ({"joint": False} if kind.__name__ in JOINT else {}))
    own = {option: value for option, value in options.items() if option != "joint"}
    task = importlib.import_module("jumanji").make(name, **own)
    separate = tuple(task.reward_spec.shape)
    if (separate or kind.__name__ in TEAMS) and not options.get("joint"):
        if separate and separate != tuple(task.action_spec.shape[:1]):
            raise ValueError(
                f"jumanji:{name} has rewards {list(separate)} and actions {list(task.action_spec.shape)}: unequal axes"
            )
        return _team(task, int(task.action_spec.shape[0]))
    return _env(task)


def _team(task: Any, num_agents: int) -> Env:
    """Return an environment whose observations and actions have an axis of agents."""
    whole = _space(task.observation_spec, MOST_KINDS)
    assert isinstance(whole, spaces.Dict)
    parts = {name: _of_one(part) if name in OWN else part for name, part in whole.items()}
    if shared := not {*parts} & {*OWN} - {MASK_KEY}:
        parts[AGENT_KEY] = spaces.Discrete(num_agents)
    if MASK_KEY in parts:
        parts[MASK_KEY] = spaces.MultiBinary(int(np.prod(parts[MASK_KEY].shape)))  # type: ignore[arg-type]

    def observe(observation: Any) -> PyTree:
        obs = _values(observation, whole)
        each = {
            name: x if name in OWN else jax.tree.map(lambda x: jnp.broadcast_to(x, (num_agents, *x.shape)), x)
            for name, x in obs.items()
        }
        if MASK_KEY in each:
            each[MASK_KEY] = each[MASK_KEY].astype(jnp.int8)
        return each | ({AGENT_KEY: jnp.arange(num_agents, dtype=jnp.int32)} if shared else {})

    reset, step = _functions(task, observe, lambda action: action.astype(task.action_spec.dtype))

    def step_each(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        state, reached = step(key, env_state, action, params)
        return state, reached._replace(reward=jnp.broadcast_to(reached.reward, num_agents))

    return Env(reset, step_each, spaces.Dict(parts), _choice(task, parts.get(MASK_KEY)), num_agents=num_agents)


def _of_one(space: Any) -> spaces.Space:
    """Return the space of one agent, given that of all."""
    is_box = isinstance(space, spaces.Box)
    return spaces.Box(space.low[0], space.high[0], dtype=space.low.dtype.type) if is_box else type(space)(space.shape[1:])


def _choice(task: Any, mask: Any) -> spaces.Space:
    """Return the action space of one agent. The mask has the number of actions; the bounds of MultiCVRP have one too many."""
    space: Any = _space(task.action_spec)
    if np.dtype(task.action_spec.dtype).kind == "f":
        return _of_one(space)
    most = space.nvec if isinstance(space, spaces.MultiDiscrete) else space.high.astype(int) + 1
    return spaces.Discrete(int(np.max(most)) if mask is None else mask.shape[0])


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

    def chosen(action: Array) -> Array:
        return action if choices is None else jnp.stack(jnp.unravel_index(action, choices))

    return Env(*_functions(task, observe, chosen), observation_space, action_space)


def _functions(task: Any, observe: Callable[[Any], PyTree], chosen: Callable[[Array], Array]) -> tuple[ResetFn, StepFn]:
    """Return ``reset`` and ``step``, with conversions of observations and of actions."""
    like = jax.eval_shape(task.reset, abstract_key())[0]

    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state, reached = task.reset(key)
        return cast_like(state, like), observe(reached.observation)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        state, reached = task.step(env_state, chosen(action))
        terminated = reached.discount == 0
        truncated = reached.last() & ~terminated
        reward = jnp.asarray(reached.reward, jnp.float32)
        return cast_like(state, like), TimeStep(observe(reached.observation), reward, terminated, truncated)

    return reset, step


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
