"""Rendering of brax systems by MuJoCo, with the OpenGL of a display, or with EGL if there is no display."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

HEIGHT, WIDTH = 360, 480

ADVICE = (
    "MuJoCo needs OpenGL: a display, or EGL (on Debian and Ubuntu, apt-get install libegl1). Alternatively, set MUJOCO_GL=osmesa "
    "in the environment before Python starts"
)


def figure(label: str, system: Any) -> Callable[[Any], np.ndarray]:
    """Return a function that draws a pipeline state, u8[height, width, 3]. The first call opens a renderer for all others."""
    opened: list[tuple[Any, Any]] = []

    def draw(state: Any) -> np.ndarray:
        import mujoco

        try:
            if not opened:
                opened.append((_renderer(mujoco, system.mj_model), mujoco.MjData(system.mj_model)))
            renderer, data = opened[0]
            data.qpos, data.qvel = np.asarray(state.q), np.asarray(state.qd)
            mujoco.mj_forward(system.mj_model, data)
            renderer.update_scene(data, camera=_camera(system.mj_model))
            return np.array(renderer.render())
        except Exception as error:
            raise RuntimeError(f"{label} cannot be drawn here: {' '.join(str(error).split())}. {ADVICE}") from error

    return draw


def _renderer(mujoco: Any, model: Any) -> Any:
    # MuJoCo chose its OpenGL on import: GLFW by default. A failed attempt would break later ones, so check for a display first.
    context: Any = importlib.import_module("mujoco.rendering.classic.gl_context")
    if getattr(context.GLContext, "__module__", None) == "mujoco.glfw" and not _has_display():
        context.GLContext = importlib.import_module("mujoco.egl").GLContext
    return mujoco.Renderer(model, HEIGHT, WIDTH)


def _has_display() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GLFW warns if there is no display
        return bool(importlib.import_module("glfw").init())


def _camera(model: Any) -> Any:
    """Return the camera that tracks the walker, or the default (-1) if there is none."""
    return next((i for i in range(model.ncam) if model.camera(i).name == "track"), -1)
