"""Rendering of gymnax's classic control with Pillow. gymnax's own pictures need pygame and do not show actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxrl.envs.rendering.canvas import BODY, FAINT, FORCE, GOAL, GROUND, JOINT, LIMB, Canvas
from jaxrl.types import PyTree

WIDEST = 12.0
"""Largest part of the track shown on either side, in metres."""


def cart_pole(state: PyTree, action: Any, params: PyTree) -> np.ndarray:
    """Draw CartPole. The angle is 0 upright, and positive to the right."""
    x, theta = float(state.x), float(state.theta)
    limit, pole = min(float(params.x_threshold), WIDEST), 2 * float(params.length)  # gymnax's length is half of the pole
    canvas = Canvas(-limit - 0.6, limit + 0.6, -0.75, pole + 0.65)
    canvas.line([(-limit - 0.6, 0), (limit + 0.6, 0)], 0.02, GROUND)
    for end in (-limit, limit):
        canvas.line([(end, -0.12), (end, 0.12)], 0.03, FORCE)
    canvas.polygon([(x - 0.28, -0.15), (x + 0.28, -0.15), (x + 0.28, 0.15), (x - 0.28, 0.15)], BODY)
    canvas.line([(x, 0.12), (x + pole * math.sin(theta), 0.12 + pole * math.cos(theta))], 0.09, LIMB)
    canvas.disc(x, 0.12, 0.035, JOINT)
    if action is not None:
        canvas.arrow([(x, -0.4), (x + 0.3 * (1 if action == 1 else -1), -0.4)], 0.06, FORCE)
    return canvas.picture()


def pendulum(state: PyTree, action: Any, params: PyTree) -> np.ndarray:
    """Draw Pendulum. The angle is 0 upright, and positive counterclockwise."""
    theta, length = float(state.theta), float(params.l)
    side = 1.3 * length
    canvas = Canvas(-1.6 * side, 1.6 * side, -side, side)
    canvas.line([(0, 1.14 * length), (0, 1.24 * length)], 0.02 * length, GOAL)
    canvas.line([(0, 0), (-length * math.sin(theta), length * math.cos(theta))], 0.16 * length, LIMB)
    if action is not None:
        torque = np.clip(float(np.ravel(action)[0]) / float(params.max_torque), -1, 1)
        canvas.turn(0, 0, 0.4 * length, 2.5 * torque, FORCE)
    canvas.disc(0, 0, 0.05 * length, JOINT)
    return canvas.picture()


def acrobot(state: PyTree, action: Any, params: PyTree) -> np.ndarray:
    """Draw Acrobot. The first angle is 0 when hanging down, the second is 0 when straight."""
    upper, lower = float(params.link_length_1), float(params.link_length_2)
    first = float(state.joint_angle1)
    both = first + float(state.joint_angle2)
    elbow = (upper * math.sin(first), -upper * math.cos(first))
    hand = (elbow[0] + lower * math.sin(both), elbow[1] - lower * math.cos(both))
    side = 1.1 * (upper + lower)
    canvas = Canvas(-1.3 * side, 1.3 * side, -side, side)
    canvas.line([(-1.3 * side, 1.0), (1.3 * side, 1.0)], 0.02, GOAL)
    canvas.line([(0, 0), elbow], 0.14, LIMB)
    canvas.line([elbow, hand], 0.14, BODY)
    for joint in ((0.0, 0.0), elbow):
        canvas.disc(*joint, 0.05, JOINT)
    if action is not None:
        canvas.turn(*elbow, 0.3, 2.0 * (int(action) - 1), FORCE)
    return canvas.picture()


def mountain_car(state: PyTree, action: Any, params: PyTree) -> np.ndarray:
    """Draw MountainCar. The push is the action − 1 if it is Discrete, otherwise the action itself."""

    def height(x: Any) -> Any:
        return 0.45 * np.sin(3 * x) + 0.55

    x, goal = float(state.position), float(params.goal_position)
    left, right = float(params.min_position), float(params.max_position)
    canvas = Canvas(left, right, -0.02, 1.25)
    hill = np.linspace(left, right, 121)
    canvas.polygon([(left, -0.1), *zip(hill, height(hill), strict=True), (right, -0.1)], FAINT)
    canvas.line(zip(hill, height(hill), strict=True), 0.008, GROUND)
    top = height(goal) + 0.18
    canvas.line([(goal, height(goal)), (goal, top)], 0.008, GROUND)
    canvas.polygon([(goal, top), (goal - 0.09, top - 0.035), (goal, top - 0.07)], GOAL)

    slope = math.atan(1.35 * math.cos(3 * x))
    along, up = np.array([math.cos(slope), math.sin(slope)]), np.array([-math.sin(slope), math.cos(slope)])
    at = np.array([x, height(x)])
    corners = ((-0.07, 0.02), (0.07, 0.02), (0.07, 0.055), (0.035, 0.06), (0.02, 0.085), (-0.045, 0.085), (-0.07, 0.06))
    canvas.polygon([tuple(at + a * along + b * up) for a, b in corners], BODY)
    for wheel in (-0.04, 0.04):
        x, y = at + wheel * along + 0.022 * up
        canvas.disc(x, y, 0.022, JOINT)
    if action is not None:
        push = int(action) - 1 if np.ndim(action) == 0 else float(np.clip(action[0], -1, 1))
        begin = at + 0.13 * up
        canvas.arrow([tuple(begin), tuple(begin + 0.1 * push * along)], 0.015, FORCE)
    return canvas.picture()


FIGURES = {
    "CartPole-v1": cart_pole,
    "Pendulum-v1": pendulum,
    "Acrobot-v1": acrobot,
    "MountainCar-v0": mountain_car,
    "MountainCarContinuous-v0": mountain_car,
}
"""Render functions (``jaxrl.types.RenderFn``) for gymnax's states, by environment."""

REAL_TIME = {"CartPole-v1": 50, "Pendulum-v1": 20, "Acrobot-v1": 15, "MountainCar-v0": 30, "MountainCarContinuous-v0": 30}
"""Frames per second in real time, by the names that gymnax and envpool share."""
