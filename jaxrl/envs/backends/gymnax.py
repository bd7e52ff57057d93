"""gymnax environments as pure ``Env``s: true last observations, time limits apart from termination, stable types."""

from __future__ import annotations

import dataclasses
import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.backends.constants import Table, constants
from jaxrl.envs.checks.validate import CONTROL_FLOW
from jaxrl.envs.ids import EnvId, check_known, check_name, check_option, format_id, import_package, parse_id, smallest
from jaxrl.envs.rendering.gymnax import FIGURES, REAL_TIME
from jaxrl.types import Array, Env, Key, PyTree, RenderFn, ResetFn, StepFn, TimeStep

DOWNLOADS = "MNISTBandit-bsuite"
"""Fetches its data when constructed, so it is left out."""

LOOSE_BOUNDS = {"MemoryChain-bsuite", "UmbrellaChain-bsuite", "MetaMaze-misc", "GaussianBandit-misc"}
"""Their observations leave the bounds that gymnax declares; here their boxes are unbounded."""

HORIZONS = {"DiscountingChain-bsuite", "BernoulliBandit-misc", "GaussianBandit-misc"}
"""Their number of steps belongs to the task, and they show the time: as in bsuite, it terminates them, and cuts nothing."""

NOT_PLAIN = {"action_mapping_key"}
"""Constructor arguments that no id can hold (DeepSea: a key)."""


ARRAY_AT_IMPORT = "gymnax.environments.misc.frozen_lake"
"""The one module of gymnax that makes an array when it is imported."""


class Game(NamedTuple):
    """One gymnax environment with its constructor arguments, whatever its parameters."""

    kind: type
    construct: Callable[[], Any]
    """Gives the environment. Arrays that it holds belong to the trace in which it was constructed."""
    params: PyTree
    reset: ResetFn
    step: StepFn
    obs: jax.ShapeDtypeStruct
    """Of one observation."""
    render: RenderFn | None


def list_names() -> list[str]:
    gymnax = _import_gymnax("the backend gymnax")
    return [name for name in gymnax.registered_envs if name != DOWNLOADS]


def family(name: str) -> str:
    ending = name.rpartition("-")[2]
    return "classic" if ending[:1] == "v" and ending[1:].isdigit() else ending


def make(name: str, options: dict[str, Any]) -> Env:
    """A gymnax environment.

    Args:
      options: constructor arguments (``size`` of DeepSea: they set shapes, so they are fixed) and fields of gymnax's EnvParams
        (``gravity`` of CartPole: they become ``env.params``, which is data).

    Returns:
      An Env with f32[] rewards. Its time limit is ``params.max_steps_in_episode``, data like the rest, so ``max_episode_steps``
      is None; it truncates, and terminates in ``HORIZONS``. Parameters are NumPy arrays of 32 bits. Environments that differ in
      parameters only share ``reset`` and ``step``.
      No backend is started, but for FourRooms and MetaMaze, whose constructors look at values of JAX arrays.
    """
    label = f"gymnax:{name}"
    if name == DOWNLOADS:
        raise ValueError(f"{label} is not supported: gymnax downloads MNIST when it is constructed, and jaxrl never downloads")
    _import_gymnax(label)
    check_name("gymnax", name, list_names())
    constructor, fields = _split_options(label, _game(format_id(EnvId("gymnax", name, {}))), options)
    game = _game(format_id(EnvId("gymnax", name, constructor)))
    params = _override(label, game.params, fields)
    observation_space = _convert(_declared(game.construct, "observation", params), game.obs.dtype, name in LOOSE_BOUNDS)
    action_space = _convert(_declared(game.construct, "action", params))
    fps = REAL_TIME.get(name, 10)
    return Env(game.reset, game.step, observation_space, action_space, params, label, render=game.render, render_fps=fps)


def _import_gymnax(needed_by: str) -> ModuleType:
    """The package. Its array at import becomes NumPy's, since JAX's would start a backend."""
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
    """Construct, and close over, one gymnax environment; cached so that equal ids share functions and compiled programs."""
    _, name, constructor, _ = parse_id(canonical_id)
    gymnax = _import_gymnax(canonical_id)

    def construct() -> Any:
        return gymnax.make(name, **constructor)[0]

    try:
        try:
            kind, params = constants(lambda: (type(construct()), construct().default_params))
        except CONTROL_FLOW:  # its constructor needs values, so a backend
            constructed = construct()
            kind, params, construct = type(constructed), constructed.default_params, lambda: constructed
        params = jax.tree.map(_fixed, params)
        key = jax.eval_shape(lambda: jax.random.key(0))
        obs, state = jax.eval_shape(lambda key, params: construct().reset_env(key, params), key, params)
    except (AssertionError, ArithmeticError, IndexError, TypeError, ValueError) as error:
        if not constructor:
            raise
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"gymnax cannot construct {canonical_id}: {reason}") from error
    # What the space of a Box declares and what is emitted, joined without loss (Catch and FourRooms differ).
    declared = _declared(construct, "observation", params)
    obs = jax.ShapeDtypeStruct(obs.shape, jnp.promote_types(obs.dtype, declared.dtype) if declared.kind == "Box" else obs.dtype)

    # gymnax mixes weak and strong types, and its spaces do not always say what it emits; types are settled here, once.
    def reset(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        first_obs, env_state = construct().reset_env(key, _arrays(params))
        return _cast(env_state, state), _cast(first_obs, obs)

    def step(key: Key, env_state: PyTree, action: Array, params: PyTree) -> tuple[PyTree, TimeStep]:
        env, params = construct(), _arrays(params)
        # Not env.step, which resets by itself. Time limits are in is_truncated only: terminated holds natural ends.
        reached, env_state, reward, terminated, _ = env.step_env(key, env_state, action, params)
        terminated, at_limit = jnp.asarray(terminated, bool), jnp.asarray(env.is_truncated(env_state, params), bool)
        if name in HORIZONS:
            terminated, at_limit = terminated | at_limit, jnp.zeros_like(at_limit)
        return _cast(env_state, state), TimeStep(_cast(reached, obs), jnp.asarray(reward, jnp.float32), terminated, at_limit, {})

    render: RenderFn | None = FIGURES.get(name)
    if hasattr(kind, "render") and len(obs.shape) == 1:  # boards are clearer in jaxrl's own colours
        render = _plot(construct)
    return Game(kind, construct, params, reset, step, obs, render)


def _plot(construct: Callable[[], Any]) -> RenderFn:
    """gymnax's own drawing, a figure of matplotlib's, as pixels."""

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


def _arrays(params: PyTree) -> PyTree:
    """Parameters as JAX's arrays: Acrobot and others index their tables by what is traced, and NumPy's cannot be."""
    return jax.tree.map(jnp.asarray, params)


def _cast(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda x, leaf: jnp.asarray(x, leaf.dtype), tree, like)


# --------------------------------------------------------------------------------------------------------- options, parameters


def _split_options(label: str, game: Game, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options as constructor arguments and fields of the parameters, each of its default's type."""
    arguments = {
        name: parameter.default
        for name, parameter in inspect.signature(game.kind).parameters.items()
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


def _declared(construct: Callable[[], Any], what: str, params: PyTree) -> SimpleNamespace:
    """gymnax's own space: its ``kind`` and attributes, with NumPy's arrays for JAX's."""

    def declared() -> dict[str, Any]:
        space = getattr(construct(), f"{what}_space")(params)
        return {"kind": type(space).__name__, **vars(space)}

    return SimpleNamespace(**constants(declared))


def _convert(space: SimpleNamespace, dtype: Any = None, unbounded: bool = False) -> spaces.Space:
    """A gymnax space as gymnasium's. A Box has the type ``dtype`` where given; bounds at the end of a type are infinite."""
    if space.kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if space.kind != "Box":
        raise TypeError(f"gymnax's space {space} is not supported: jaxrl converts Discrete and Box, which is all that it has")
    dtype = np.dtype(space.dtype if dtype is None else dtype)
    low, high = (np.broadcast_to(np.asarray(bound), space.shape) for bound in (space.low, space.high))
    if dtype.kind == "f":
        low, high = low.astype(dtype), high.astype(dtype)
        largest = np.finfo(dtype).max
        low = np.where(unbounded | (low <= -largest), -np.inf, low).astype(dtype)
        high = np.where(unbounded | (high >= largest), np.inf, high).astype(dtype)
    return spaces.Box(low, high, tuple(space.shape), dtype.type)
