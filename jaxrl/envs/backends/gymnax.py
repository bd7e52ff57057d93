"""Environments of gymnax as pure ``Env``s: true last observations, truncation apart from termination, stable types."""

from __future__ import annotations

import dataclasses
import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.checks.validate import CONTROL_FLOW, abstract_key
from jaxrl.envs.ids import EnvId, check_known, check_name, check_option, check_options, defaults_of, format_id, parse_id
from jaxrl.envs.rendering.gymnax import FIGURES, REAL_TIME
from jaxrl.settings.packages import import_package
from jaxrl.spaces.trees import cast_like
from jaxrl.types import Array, Env, Key, PyTree, RenderFn, ResetFn, StepFn, TimeStep
from jaxrl.xla.constants import Table, constants

DOWNLOADS = "MNISTBandit-bsuite"
"""Environment that downloads data when constructed, so it is left out."""

LOOSE_BOUNDS = {"MemoryChain-bsuite", "UmbrellaChain-bsuite", "MetaMaze-misc", "GaussianBandit-misc"}
"""Environments whose observations exceed the bounds that gymnax declares. Their boxes are unbounded here."""

HORIZONS = {"DiscountingChain-bsuite", "BernoulliBandit-misc", "GaussianBandit-misc"}
"""Environments whose number of steps is part of the task, and whose observations include the time. As in bsuite, the limit
terminates episodes and does not truncate them."""

NOT_PLAIN = {"action_mapping_key"}
"""Constructor arguments that an id cannot hold (DeepSea: a key)."""


ARRAY_AT_IMPORT = "gymnax.environments.misc.frozen_lake"
"""The only module of gymnax that creates an array on import."""


class Game(NamedTuple):
    """gymnax environment with its constructor arguments, independent of its parameters."""

    kind: type
    construct: Callable[[], Any]
    """Constructs the environment. Its arrays belong to the trace in which it was constructed."""
    params: PyTree
    reset: ResetFn
    step: StepFn
    obs: jax.ShapeDtypeStruct
    """Shape and dtype of one observation."""
    render: RenderFn | None


def list_names() -> list[str]:
    gymnax = _import_gymnax("the backend gymnax")
    return [name for name in gymnax.registered_envs if name != DOWNLOADS]


def family(name: str) -> str:
    ending = name.rpartition("-")[2]
    return "classic" if ending[:1] == "v" and ending[1:].isdigit() else ending


def make(name: str, options: dict[str, Any]) -> Env:
    """Make a gymnax environment.

    Args:
      options: constructor arguments (such as ``size`` of DeepSea; they determine shapes, so they are static) and fields of
        gymnax's EnvParams (such as ``gravity`` of CartPole; they become ``env.params``, which are data).

    Returns:
      An Env with f32[] rewards. Its time limit is ``params.max_steps_in_episode``, which is data like all parameters, so
      ``max_episode_steps`` is None. The limit truncates; in ``HORIZONS`` it terminates. Parameters are 32-bit NumPy arrays.
      Environments that differ only in parameters share ``reset`` and ``step``.
      No JAX backend is started, except for FourRooms and MetaMaze, whose constructors read values of JAX arrays.
    """
    label = f"gymnax:{name}"
    if name == DOWNLOADS:
        raise ValueError(f"{label} is not supported: gymnax downloads MNIST when it is constructed, and jaxrl never downloads")
    _import_gymnax(label)
    check_name("gymnax", name, list_names())
    game = _game(format_id(EnvId("gymnax", name, {})))
    arguments = {argument: default for argument, default in defaults_of(game.kind).items() if argument not in NOT_PLAIN}
    check_known(label, options, {field.name for field in dataclasses.fields(game.params)} | arguments.keys())
    constructor = {option: value for option, value in options.items() if option in arguments}
    check_options(label, constructor, arguments)
    game = _game(format_id(EnvId("gymnax", name, constructor)))
    params = _override(label, game.params, {name: value for name, value in options.items() if name not in arguments})
    observation_space = _convert(_declared(game.construct, "observation", params), game.obs.dtype, name in LOOSE_BOUNDS)
    action_space = _convert(_declared(game.construct, "action", params))
    fps = REAL_TIME.get(name, 10)
    return Env(game.reset, game.step, observation_space, action_space, params, label, render=game.render, render_fps=fps)


def _import_gymnax(needed_by: str) -> ModuleType:
    """Import gymnax. The array that it creates on import becomes a NumPy array, as a JAX array would start a backend."""
    if imported := sys.modules.get("gymnax"):
        return imported
    sys.meta_path.insert(0, finder := _Finder())
    try:
        return import_package("gymnax", needed_by)
    finally:
        sys.meta_path.remove(finder)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == ARRAY_AT_IMPORT else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _execute_traced(module, execute)  # type: ignore[method-assign]
        return spec


def _execute_traced(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    def arrays() -> dict[str, Any]:
        execute(module)
        return {name: value for name, value in vars(module).items() if isinstance(value, jax.Array)}

    vars(module).update({name: value.view(Table) for name, value in constants(arrays).items()})


@functools.cache
def _game(canonical_id: str) -> Game:
    """Construct a gymnax environment and close over it. Cached, so that equal ids share functions and compiled programs."""
    _, name, constructor, _ = parse_id(canonical_id)
    gymnax = _import_gymnax(canonical_id)

    def construct() -> Any:
        return gymnax.make(name, **constructor)[0]

    try:
        try:
            kind, params = constants(lambda: (type(construct()), construct().default_params))
        except CONTROL_FLOW:  # the constructor needs array values, so a backend
            constructed = construct()
            kind, params, construct = type(constructed), constructed.default_params, lambda: constructed
        params = jax.tree.map(_fixed, params)
        obs, state = jax.eval_shape(lambda key, params: construct().reset_env(key, params), abstract_key(), params)
    except (AssertionError, ArithmeticError, IndexError, TypeError, ValueError) as error:
        if not constructor:
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"gymnax cannot construct {canonical_id}: {reason}") from error
    # A Box may declare another dtype than is emitted (Catch, FourRooms): use one that holds both without loss.
    declared = _declared(construct, "observation", params)
    obs = jax.ShapeDtypeStruct(obs.shape, jnp.promote_types(obs.dtype, declared.dtype) if declared.kind == "Box" else obs.dtype)

    # gymnax mixes weak and strong types, and its spaces may declare other dtypes than it emits: fix all types here. Acrobot and
    # others index their parameters by traced values, so these must be JAX arrays.
    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        first_obs, env_state = construct().reset_env(key, jax.tree.map(jnp.asarray, params))
        return cast_like(env_state, state), cast_like(first_obs, obs)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        env, params = construct(), jax.tree.map(jnp.asarray, params)
        # env.step would autoreset. Time limits are in is_truncated only, so terminated holds natural ends.
        reached, env_state, reward, terminated, _ = env.step_env(key, env_state, action, params)
        terminated, at_limit = jnp.asarray(terminated, bool), jnp.asarray(env.is_truncated(env_state, params), bool)
        if name in HORIZONS:
            terminated, at_limit = terminated | at_limit, jnp.zeros_like(at_limit)
        reward = jnp.asarray(reward, jnp.float32)
        return cast_like(env_state, state), TimeStep(cast_like(reached, obs), reward, terminated, at_limit, {})

    render: RenderFn | None = FIGURES.get(name)
    if hasattr(kind, "render") and len(obs.shape) == 1:  # boards are clearer in jaxrl's colours
        render = _plot(construct)
    return Game(kind, construct, params, reset, step, obs, render)


def _plot(construct: Callable[[], Any]) -> RenderFn:
    """Return a render function that converts gymnax's matplotlib figure to pixels."""

    def render(env_state: PyTree, action: Any, params: PyTree) -> np.ndarray:
        import matplotlib.pyplot as plt
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        with plt.ioff():
            figure, _ = construct().render(env_state, params)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        plt.close(figure)
        return np.asarray(canvas.buffer_rgba())[..., :3]

    return render


def _fixed(value: Any) -> np.ndarray:
    """Return a read-only, strongly typed 32-bit array. All users of the same id can share it safely."""
    array = np.array(value)
    array = array.astype({"i": np.int32, "u": np.int32, "f": np.float32}.get(array.dtype.kind, array.dtype))
    array.setflags(write=False)
    return array


def _override(label: str, params: Any, options: dict[str, Any]) -> Any:
    """Replace some fields of ``params``, each with the dtype and shape of its default."""
    fields = {}
    for name, value in options.items():
        default = getattr(params, name)
        if default.ndim == 0:
            check_option(label, name, value, default[()], at_least=1 if name == "max_steps_in_episode" else None)
        elif np.shape(value) != default.shape or np.asarray(value).dtype.kind not in "if":
            raise ValueError(f"{label}: option {name}={value!r} must be {default.shape[0]} numbers, as in {default.tolist()}")
        fields[name] = _fixed(np.asarray(value, default.dtype))
    return params.replace(**fields)


def _declared(construct: Callable[[], Any], of: str, params: PyTree) -> SimpleNamespace:
    """Return the space that gymnax declares: its ``kind`` and attributes, with JAX arrays converted to NumPy."""

    def declared() -> dict[str, Any]:
        space = getattr(construct(), f"{of}_space")(params)
        return {"kind": type(space).__name__, **vars(space)}

    return SimpleNamespace(**constants(declared))


def _convert(space: SimpleNamespace, dtype: Any = None, unbounded: bool = False) -> spaces.Space:
    """Convert a gymnax space to a Gymnasium space. Bounds of a Box at the limits of a float type become infinite."""
    if space.kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if space.kind != "Box":
        raise TypeError(f"gymnax's space {space} is not supported: jaxrl converts Discrete and Box only")
    dtype = np.dtype(space.dtype if dtype is None else dtype)
    low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
    if dtype.kind == "f":
        low, high = low.astype(dtype), high.astype(dtype)
        largest = np.finfo(dtype).max
        low = np.where(unbounded | (low <= -largest), -np.inf, low).astype(dtype)
        high = np.where(unbounded | (high >= largest), np.inf, high).astype(dtype)
    return spaces.Box(low, high, tuple(space.shape), dtype.type)
