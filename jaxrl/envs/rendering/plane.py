"""Pictures of a point that is pushed to a goal in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxrl.envs.rendering.canvas import BODY, FAINT, FORCE, GOAL, GROUND, JOINT, Canvas
from jaxrl.types import Array


def picture_of_point(position: Array, goal: Array, goal_radius: float, action: Any, *, hazard: float = 0.0) -> np.ndarray:
    """Draw the point, its goal and its last action in [−1, 1]², and a hazard of this radius around the middle.

    Args:
      action: f32[2], or None.
    """
    canvas = Canvas(-1.1, 1.1, -1.1, 1.1)
    canvas.line([(-1.03, -1.03), (1.03, -1.03), (1.03, 1.03), (-1.03, 1.03), (-1.03, -1.03)], 0.02, GROUND)
    if hazard:
        canvas.disc(0.0, 0.0, hazard, FAINT)
    (x, y), (goal_x, goal_y) = position.tolist(), goal.tolist()
    canvas.disc(goal_x, goal_y, goal_radius, GOAL)
    canvas.disc(x, y, 0.03, BODY)
    canvas.disc(x, y, 0.01, JOINT)
    if action is not None:
        right, up = (0.2 * np.clip(np.asarray(action, float), -1, 1)).tolist()
        canvas.arrow([(x, y), (x + right, y + up)], 0.02, FORCE)
    return canvas.picture()
