"""How brax's systems look, drawn by MuJoCo: by a display's OpenGL, or by EGL where there is none."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

HEIGHT, WIDTH = 360, 480

ADVICE = (
    "MuJoCo needs OpenGL: a display, or EGL (on Debian and Ubuntu, apt-get install libegl1). MUJOCO_GL=osmesa in the environment "
    "before Python starts is a third way"
)


def figure(label: str, system: Any) -> Callable[[Any], np.ndarray]:
    """A function of a pipeline state, u8[height, width, 3]. The first picture opens a renderer, which the others share."""
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
    # MuJoCo chose how to draw when it was imported: by GLFW, unless it was told. A failed attempt would break the next one.
    context: Any = importlib.import_module("mujoco.rendering.classic.gl_context")
    if getattr(context.GLContext, "__module__", None) == "mujoco.glfw" and not _has_display():
        context.GLContext = importlib.import_module("mujoco.egl").GLContext
    return mujoco.Renderer(model, HEIGHT, WIDTH)


def _has_display() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GLFW's, that there is none
        return bool(importlib.import_module("glfw").init())


def _camera(model: Any) -> Any:
    """The one that follows what walks, where there is one."""
    return next((i for i in range(model.ncam) if model.camera(i).name == "track"), -1)
