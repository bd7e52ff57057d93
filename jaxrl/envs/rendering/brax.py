"""Rendering of brax systems by MuJoCo, with the OpenGL of a display, or with EGL if there is no display."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxrl.envs.host import one_line

HEIGHT, WIDTH = 360, 480

ADVICE = (
    "MuJoCo needs OpenGL: a display, or EGL (on Debian and Ubuntu, apt-get install libegl1). Alternatively, set MUJOCO_GL=osmesa "
    "in the environment before Python starts"
)


def figure(label: str, system: Any) -> Callable[[Any], np.ndarray]:
    """Return a function that draws a pipeline state, u8[height, width, 3]. The first call opens a renderer for all others."""
    opened: list[tuple[Any, Any, int]] = []

    def draw(state: Any) -> np.ndarray:
        import mujoco

        try:
            model = system.mj_model
            if not opened:  # with the camera that tracks the walker, or the default
                camera = next((i for i in range(model.ncam) if model.camera(i).name == "track"), -1)
                opened.append((_renderer(mujoco, model), mujoco.MjData(model), camera))
            renderer, data, camera = opened[0]
            data.qpos, data.qvel = np.asarray(state.q), np.asarray(state.qd)
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera=camera)
            return np.array(renderer.render())
        except Exception as error:
            raise RuntimeError(f"{label} cannot be drawn here: {one_line(error)}. {ADVICE}") from error

    return draw


def _renderer(mujoco: Any, model: Any) -> Any:
    # MuJoCo chose its OpenGL on import: GLFW by default. A failed attempt would break later ones, so check for a display first.
    context: Any = importlib.import_module("mujoco.rendering.classic.gl_context")
    with warnings.catch_warnings(action="ignore"):  # GLFW warns if there is no display
        if getattr(context.GLContext, "__module__", None) == "mujoco.glfw" and not importlib.import_module("glfw").init():
            context.GLContext = importlib.import_module("mujoco.egl").GLContext
    return mujoco.Renderer(model, HEIGHT, WIDTH)
