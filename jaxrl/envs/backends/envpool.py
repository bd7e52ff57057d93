"""C++ environments of envpool as ``HostEnv``s: validated actions, 32-bit types, clean reset rows, independent seeds."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tree
from gymnasium import spaces

from jaxrl.envs.host import LEARNING, MOST_ACTIONS, TOLD, cast, check_actions, env_seeds, narrow, quiet
from jaxrl.envs.ids import check_known, check_name, check_option, smallest
from jaxrl.envs.rendering.gymnax import REAL_TIME
from jaxrl.settings.packages import import_package
from jaxrl.settings.validation import check_count
from jaxrl.types import Array, CompiledEnvs, HostEnv, HostEnvs, HostStep, PyTree

OURS = {"num_envs", "batch_size", "seed", "env_seed", "max_num_players", "gym_reset_return_info", "base_path"}
"""Settings of envpool that ``open`` and this module determine."""

RENDERING = {"from_pixels", "render_mode", "render_width", "render_height", "render_camera_id"}
"""Options of envpool that its list of an environment's options lacks."""

DRAWN = {"atari": 15, "box2d": 50, "classic_control": 20, "highway": 15, "jumanji": 10, "minigrid": 10, "mujoco": 25, "pgx": 2}
"""Families that can render, and their frames per second: real time, or a comfortable speed."""


def list_names() -> list[str]:
    return list(_import_envpool("the backend envpool").list_all_envs())


def _import_envpool(needed_by: str) -> Any:
    _load_egl()
    return import_package("envpool", needed_by)


@functools.cache
def _load_egl() -> bool:
    """Load EGL for MuJoCo. Return whether it can render.

    Must run before envpool is imported: envpool looks for EGL only then, and without EGL the first picture kills the process.
    """
    if "envpool" in sys.modules:
        return False
    try:
        ctypes.CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def family(name: str) -> str:
    """Return the envpool module of an environment: atari, mujoco.gym, ..."""
    from envpool.registration import registry

    return str(registry.specs[name][0]).removeprefix("envpool.")


def make(name: str, options: dict[str, Any]) -> HostEnv:
    """Make an envpool environment. Nothing starts before ``open(num_envs, seed, first_id=0, batch_size=num_envs)``.

    Args:
      options: options of envpool (``max_episode_steps``, ``frame_skip``, ``num_threads``, ``from_pixels``, ...). Atari's
        ``reward_clip`` and ``episodic_life`` apply to training only: ``open_eval`` gives raw rewards and whole games.

    Returns:
      A HostEnv whose spaces, observations and info (``TOLD``) have 32-bit types. ``max_episode_steps`` is envpool's own limit.
      The i-th environment opened is seeded by a hash of (seed, first_id + i), so streams do not depend on ``num_envs`` and do not
      overlap between seeds (envpool's ``seed=`` gives environment i the stream seed + i). With a smaller ``batch_size``, which
      must divide ``num_envs``, ``recv`` returns the ``batch_size`` rows that finish first; ``step`` cannot be used then. With
      ``copies``, all ``num_envs`` environments are opened that many times, in one batch.
    """
    label = f"envpool:{name}"
    envpool = _import_envpool(label)
    check_name("envpool", name, envpool.list_all_envs())
    spec = _make_spec(envpool, name, options)
    if spec.config.max_num_players > 1:
        raise ValueError(f"{label} has {spec.config.max_num_players} players; jaxrl supports one")
    actions = {key: array for key, array in spec.action_array_spec.items() if key not in ("env_id", "players.env_id")}
    if len(actions) != 1:
        raise ValueError(f"{label} takes several actions at once ({', '.join(actions)}), which jaxrl does not support")
    (action_spec,) = actions.values()
    observation_space, action_space = _observation_space(spec.state_array_spec), _space(action_spec, action=True)
    limit, kind = int(spec.config.max_episode_steps), family(name).partition(".")[0]
    info_dtypes = {name: narrow(array.dtype) for name in TOLD if (array := spec.state_array_spec.get(f"info:{name}"))}

    def open(
        num_envs: int,
        seed: int,
        first_id: int = 0,
        *,
        batch_size: int | None = None,
        copies: int = 1,
        options: Mapping[str, Any] = options,
    ) -> HostEnvs:
        seeds = env_seeds(seed, check_count("num_envs", num_envs), first_id) * copies
        num_envs = len(seeds)
        batch_size = num_envs if batch_size is None else check_count("batch_size", batch_size)
        if num_envs % batch_size:
            raise ValueError(f"{label}: batch_size={batch_size} must divide num_envs={num_envs}")
        sizes = {"num_envs": num_envs, "batch_size": batch_size}
        with quiet():
            try:
                pool = envpool.make_gymnasium(name, env_seed=seeds, **sizes, **options)
            except RuntimeError as error:
                raise RuntimeError(f"envpool cannot start {label}: {error}") from error
        return _Running(label, pool, num_envs, batch_size, observation_space, info_dtypes, action_space, action_spec.dtype)

    can_render = kind in DRAWN and (kind != "mujoco" or _load_egl())
    eval_options = {option: value for option, value in options.items() if option not in LEARNING}
    return HostEnv(
        open,
        observation_space,
        action_space,
        dict(options),
        label,
        max_episode_steps=limit if 0 < limit < 2**31 - 1 else None,
        open_eval=partial(open, options=eval_options) if eval_options != options else None,
        open_render=partial(open, options={**eval_options, "render_mode": "rgb_array"}) if can_render else None,
        render_fps=REAL_TIME.get(name, DRAWN.get(kind, 30)),
    )


@dataclass(eq=False)
class _Running:
    """Open environments: see ``jaxrl.types.HostEnvs``."""

    _label: str
    _pool: Any
    _num_envs: int
    _batch_size: int
    _observation_space: spaces.Space
    _info_dtypes: Mapping[str, np.dtype]
    _action_space: spaces.Space
    _action_dtype: Any
    _sent: int = 0
    """Number of rows sent but not yet received."""
    _done: np.ndarray | None = None

    def reset(self) -> PyTree:
        pool, parts = self._running(), []
        with quiet():  # envpool builds its own spaces at the first observation
            pool.async_reset()
            for _ in range(self._num_envs // self._batch_size):
                obs, info = pool.recv(reset=True)
                parts.append((cast(obs, self._observation_space), info["env_id"]))
        self._done, self._sent = np.zeros(self._num_envs, bool), 0
        order = np.argsort(np.concatenate([env_id for _, env_id in parts]))
        return tree.map_structure(lambda *x: np.concatenate(x)[order], *(obs for obs, _ in parts))

    def step(self, action: Any) -> HostStep:
        self.send(action)
        return self.recv()[1]

    def send(self, action: Any, env_id: np.ndarray | None = None) -> None:
        """Start a step of all environments, or of those in ``env_id``."""
        pool = self._running()
        if self._done is None:
            raise RuntimeError(f"{self._label}: call reset() before the first step()")
        num_envs = self._num_envs if env_id is None else len(env_id)
        checked = check_actions(self._label, self._action_space, action, num_envs)  # envpool does not check actions
        pool.send(np.ascontiguousarray(checked, dtype=self._action_dtype), env_id)
        self._sent += num_envs

    def recv(self) -> tuple[np.ndarray, HostStep]:
        """Return the rows of all environments in order, or the first ``batch_size`` rows to finish if ``open`` was given one."""
        if self._sent < self._batch_size:  # envpool would wait forever
            raise RuntimeError(
                f"{self._label}: recv() returns {self._batch_size} rows, but only {self._sent} were sent: call send() first"
            )
        obs, reward, terminated, truncated, info = self._running().recv()
        self._sent -= self._batch_size
        env_id = np.asarray(info["env_id"], np.int32)
        assert self._done is not None
        # On reset rows, dm_control and MetaWorld give the reward of the new state, which no action earned.
        reward = np.where(self._done[env_id], np.float32(0), reward.astype(np.float32, copy=False))
        self._done[env_id] = terminated | truncated
        kept_info = {name: np.asarray(info[name], dtype) for name, dtype in self._info_dtypes.items()}
        return env_id, HostStep(cast(obs, self._observation_space), reward, terminated, truncated, kept_info)

    def reset_where(self, mask: np.ndarray) -> PyTree:
        """Begin new episodes in some environments: highway, gfootball and toy_text do not enforce the limit they declare."""
        assert self._done is not None
        env_id = np.flatnonzero(mask)
        first_obs, _ = self._running().reset(env_id)
        self._done = self._done & ~mask

        def spread(x: np.ndarray) -> np.ndarray:
            rows = np.zeros((self._num_envs, *x.shape[1:]), x.dtype)
            rows[env_id] = x
            return rows

        return tree.map_structure(spread, cast(first_obs, self._observation_space))

    def compiled(self) -> CompiledEnvs:
        """Return the environments as operations of a compiled CPU program, with the same types.

        envpool's C++ code reads and writes some 64-bit numbers. JAX would truncate the declared types to 32 bits by default, and
        envpool would write past the ends of arrays. So types are declared with 64 bits enabled.
        """
        import jax
        import jax.numpy as jnp

        with jax.enable_x64(True):
            handle, recv_, send_, _ = self._running().xla()

        def send(handle: Array, action: Array) -> Array:
            with jax.enable_x64(True):
                new_handle: Array = send_(handle, action.astype(self._action_dtype))
            return new_handle

        def recv(handle: Array) -> tuple[Array, HostStep]:
            with jax.enable_x64(True):
                handle, (obs, reward, terminated, truncated, info) = recv_(handle)
                obs, reward = cast(obs, self._observation_space), reward.astype(jnp.float32)
                kept_info = {name: info[name].astype(dtype) for name, dtype in self._info_dtypes.items()}
            return handle, HostStep(obs, reward, terminated, truncated, kept_info)

        return CompiledEnvs(jnp.asarray(handle), send, recv)

    def render(self) -> np.ndarray:
        """Return pictures of all environments, or raise OSError if this machine cannot render them."""
        try:
            return np.asarray(self._running().render(np.arange(self._num_envs)))
        except (OSError, RuntimeError) as error:
            raise OSError(f"envpool cannot render {self._label} here: {error}") from error

    def close(self) -> None:
        self._pool = None

    def _running(self) -> Any:
        if self._pool is None:
            raise RuntimeError(f"{self._label}: these environments are closed; open() gives new ones")
        return self._pool


def _make_spec(envpool: Any, name: str, options: Mapping[str, Any]) -> Any:
    """Return envpool's spec under ``options``, after a check of their names and types."""
    label, defaults = f"envpool:{name}", {}
    with suppress(RuntimeError):  # some environments require options (VizdoomCustom needs its scenario)
        defaults = envpool.make_spec(name).config._asdict()
    for option in options:
        if option in OURS:
            raise ValueError(f"{label}: {option} is not an option: jaxrl sets it. Pass num_envs and seed to open(num_envs, seed)")
    if defaults:
        check_known(label, options, (defaults.keys() - OURS) | RENDERING)
    for option, value in options.items():
        check_option(label, option, value, defaults.get(option), at_least=smallest(defaults.get(option)))
    try:
        return envpool.make_spec(name, **options)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"envpool refuses {label} with the options {dict(options)}: {reason}") from error


def _observation_space(arrays: Mapping[str, Any]) -> spaces.Space:
    """Return the space of one observation: ``obs`` alone, or a Dict of ``obs:a``, ``obs:b.c``, ... nested at the dots."""
    parts = {key.removeprefix("obs").removeprefix(":"): array for key, array in arrays.items() if key.startswith("obs")}
    if len(parts) == 1:
        return _space(next(iter(parts.values())))
    nested: dict[str, Any] = {}
    for path, array in parts.items():
        *folders, last = path.replace(":", ".").split(".")
        node = nested
        for folder in folders:
            node = node.setdefault(folder, {})
        node[last] = _space(array)
    return _dict_space(nested)


def _dict_space(nested: dict[str, Any]) -> spaces.Dict:
    return spaces.Dict({name: _dict_space(part) if isinstance(part, dict) else part for name, part in nested.items()})


def _space(spec: Any, *, action: bool = False) -> spaces.Space:
    """Convert the spec of an envpool array to a Gymnasium space with 32-bit types."""
    shape, dtype = tuple(size for size in spec.shape if size != -1), np.dtype(spec.dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(shape)
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), shape) for bound in (spec.minimum, spec.maximum))
    if dtype.kind == "f" and not spec.is_discrete:
        # Undeclared bounds are C++'s numeric_limits, whose min() is the smallest positive number.
        low = np.where((low == np.finfo(dtype).tiny) | (low <= -np.finfo(np.float32).max), -np.inf, low)
        high = np.where(high >= np.finfo(np.float32).max, np.inf, high)
        return spaces.Box(low.astype(np.float32), high.astype(np.float32), shape, np.float32)
    choices = (high - low + 1).astype(np.int64)
    if shape == () and choices < MOST_ACTIONS:
        return spaces.Discrete(int(choices), start=int(low))
    if action and np.all(choices < MOST_ACTIONS):
        return spaces.MultiDiscrete(choices, start=low.astype(np.int64))
    dtype = narrow(dtype)
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
