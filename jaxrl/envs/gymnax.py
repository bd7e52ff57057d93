"""gymnax environments as pure ``Env``s: true last observations, time limits apart from termination, stable types."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.backend import EnvId, check_known, check_name, check_option, format_id, import_package, parse_id, smallest
from jaxrl.types import Array, Env, Key, PyTree, ResetFn, StepFn, TimeStep

DOWNLOADS = "MNISTBandit-bsuite"
"""Fetches its data when constructed, so it is left out."""

LOOSE_BOUNDS = {"MemoryChain-bsuite", "UmbrellaChain-bsuite", "MetaMaze-misc", "GaussianBandit-misc"}
"""Their observations leave the bounds that gymnax declares; here their boxes are unbounded."""

NOT_PLAIN = {"action_mapping_key"}
"""Constructor arguments that no id can hold (DeepSea: a key)."""


class Game(NamedTuple):
    """One gymnax environment with its constructor arguments, whatever its parameters."""

    env: Any
    params: PyTree
    reset: ResetFn
    step: StepFn
    obs: PyTree
    """ShapeDtypeStructs of one observation."""


def list_names() -> list[str]:
    gymnax = import_package("gymnax", "the backend gymnax", "gymnax")
    return [name for name in gymnax.registered_envs if name != DOWNLOADS]


def make(name: str, options: dict[str, Any]) -> Env:
    """A gymnax environment.

    Args:
      options: constructor arguments (``size`` of DeepSea: they set shapes, so they are fixed) and fields of gymnax's EnvParams
        (``gravity`` of CartPole: they become ``env.params``, which is data).

    Returns:
      An Env with f32[] rewards. Its time limit is ``params.max_steps_in_episode``, data like the rest, so ``max_episode_steps``
      is None. Parameters are NumPy arrays of 32 bits. Environments that differ in parameters only share ``reset`` and ``step``.
    """
    label = f"gymnax:{name}"
    if name == DOWNLOADS:
        raise ValueError(f"{label} is not supported: gymnax downloads MNIST when it is constructed, and jaxrl never downloads")
    import_package("gymnax", label, "gymnax")
    check_name("gymnax", name, list_names())
    constructor, fields = _split_options(label, _game(format_id(EnvId("gymnax", name, {}))), options)
    game = _game(format_id(EnvId("gymnax", name, constructor)))
    params = _override(label, game.params, fields)
    observation_space = _convert(game.env.observation_space(params), game.obs, unbounded=name in LOOSE_BOUNDS)
    action_space = _convert(game.env.action_space(params), None)
    return Env(game.reset, game.step, observation_space, action_space, params, label)


@functools.cache
def _game(canonical_id: str) -> Game:
    """Construct, and close over, one gymnax environment; cached so that equal ids share functions and compiled programs."""
    _, name, constructor = parse_id(canonical_id)
    gymnax = import_package("gymnax", canonical_id, "gymnax")
    try:
        env, params = gymnax.make(name, **constructor)
        params = jax.tree.map(_fixed, params)
        key = jax.eval_shape(lambda: jax.random.key(0))
        obs, state = jax.eval_shape(env.reset_env, key, params)
    except (AssertionError, ArithmeticError, IndexError, TypeError, ValueError) as error:
        if not constructor:
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"gymnax cannot construct {canonical_id}: {reason}") from error
    obs = _promoted(env.observation_space(params), obs)

    # gymnax mixes weak and strong types, and its spaces do not always say what it emits; types are settled here, once.
    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        first_obs, env_state = env.reset_env(key, params)
        return _cast(env_state, state), _cast(first_obs, obs)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        # Not env.step, which resets by itself. Time limits are in is_truncated only: terminated holds natural ends.
        reached, env_state, reward, terminated, _ = env.step_env(key, env_state, action, params)
        truncated = env.is_truncated(env_state, params)
        time_step = TimeStep(
            _cast(reached, obs), jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, bool), jnp.asarray(truncated, bool), {}
        )
        return _cast(env_state, state), time_step

    return Game(env, params, reset, step, obs)


def _cast(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda x, leaf: jnp.asarray(x, leaf.dtype), tree, like)


# --------------------------------------------------------------------------------------------------------- options, parameters


def _split_options(label: str, game: Game, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options as constructor arguments and fields of the parameters, each of its default's type."""
    arguments = {
        name: parameter.default
        for name, parameter in inspect.signature(type(game.env)).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name not in NOT_PLAIN
    }
    fields = {field.name for field in dataclasses.fields(game.params)}
    check_known(label, options, fields | arguments.keys())
    constructor = {name: value for name, value in options.items() if name in arguments}
    for name, value in constructor.items():
        check_option(label, name, value, arguments[name], at_least=smallest(arguments[name]))
    return constructor, {name: value for name, value in options.items() if name not in arguments}


def _fixed(value: Any) -> np.ndarray:
    """A read-only array of 32 bits: strongly typed, and shared safely by everybody who asks for the same id."""
    array = np.array(value)
    array = array.astype({"i": np.int32, "u": np.int32, "f": np.float32}.get(array.dtype.kind, array.dtype))
    array.setflags(write=False)
    return array


def _override(label: str, params: Any, options: dict[str, Any]) -> Any:
    """``params`` with some fields replaced, each in the type and shape of the default."""
    new = {}
    for name, value in options.items():
        default = getattr(params, name)
        if default.ndim == 0:
            check_option(label, name, value, default[()], at_least=1 if name == "max_steps_in_episode" else None)
        elif np.shape(value) != default.shape or np.asarray(value).dtype.kind not in "if":
            raise ValueError(f"{label}: option {name}={value!r} must be {default.shape[0]} numbers, as in {default.tolist()}")
        new[name] = _fixed(np.asarray(value, default.dtype))
    return params.replace(**new)


# ---------------------------------------------------------------------------------------------------------------------- spaces


def _promoted(space: Any, obs: PyTree) -> PyTree:
    """Types of observations: what the space declares and what is emitted, joined without loss (Catch and FourRooms differ)."""
    if hasattr(space, "spaces"):
        return obs
    return jax.ShapeDtypeStruct(obs.shape, obs.dtype if not hasattr(space, "low") else jnp.promote_types(obs.dtype, space.dtype))


def _convert(space: Any, obs: PyTree, *, unbounded: bool = False) -> spaces.Space:
    """A gymnax space as gymnasium's. Boxes have the types of ``obs`` where given; bounds at the end of a type are infinite."""
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "Dict":
        return spaces.Dict({name: _convert(part, obs and obs[name], unbounded=unbounded) for name, part in space.spaces.items()})
    if kind == "Tuple":
        return spaces.Tuple([_convert(part, obs and obs[i], unbounded=unbounded) for i, part in enumerate(space.spaces)])
    if kind != "Box":
        raise TypeError(f"gymnax's space {space} is not supported: jaxrl converts Discrete, Box, Dict and Tuple")
    dtype = np.dtype(space.dtype if obs is None else obs.dtype)
    low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
    if dtype.kind == "f":
        low, high = low.astype(dtype), high.astype(dtype)
        largest = np.finfo(dtype).max
        low = np.where(unbounded | (low <= -largest), -np.inf, low).astype(dtype)
        high = np.where(unbounded | (high >= largest), np.inf, high).astype(dtype)
    return spaces.Box(low, high, tuple(space.shape), dtype.type)
