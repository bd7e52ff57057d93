"""Canvas for pictures of environments, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

WIDTH, SMOOTH = 480, 3
"""Width of a picture in pixels, and the antialiasing factor: each pixel is the mean of SMOOTH² drawn pixels."""

PAPER, GROUND, FAINT = "#ffffff", "#57606a", "#d8dee4"
BODY, LIMB, JOINT, FORCE, GOAL = "#1f6feb", "#bf8040", "#24292f", "#cf222e", "#1a7f37"


class Canvas:
    """Canvas in the environment's units, with y pointing up."""

    def __init__(self, left: float, right: float, bottom: float, top: float) -> None:
        from PIL import Image, ImageDraw

        self._left, self._top, self._scale = left, top, WIDTH * SMOOTH / (right - left)
        height = round(WIDTH * (top - bottom) / (right - left))
        self._image = Image.new("RGB", (WIDTH * SMOOTH, height * SMOOTH), PAPER)
        self._pen = ImageDraw.Draw(self._image)

    def picture(self) -> np.ndarray:
        return np.asarray(self._image.reduce(SMOOTH))

    def line(self, points: Iterable[tuple[float, float]], thickness: float, colour: str) -> None:
        """Draw a line through the points, with round ends and corners."""
        points = list(points)
        width = max(1, round(thickness * self._scale))
        self._pen.line([self._at(*point) for point in points], fill=colour, width=width, joint="curve")
        for end in (points[0], points[-1]):
            self.disc(*end, thickness / 2, colour)

    def polygon(self, points: Iterable[tuple[float, float]], colour: str) -> None:
        self._pen.polygon([self._at(*point) for point in points], fill=colour)

    def disc(self, x: float, y: float, radius: float, colour: str) -> None:
        (x, y), radius = self._at(x, y), radius * self._scale
        self._pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)

    def arrow(self, points: Iterable[tuple[float, float]], thickness: float, colour: str) -> None:
        """Draw a line that ends in an arrowhead, or nothing if the line is shorter than ``thickness``."""
        path = np.array(list(points), float)
        length = np.linalg.norm(np.diff(path, axis=0), axis=1).sum()
        along = path[-1] - path[-2]
        if length < thickness or not along.any():
            return
        along *= 2 * thickness / np.linalg.norm(along)
        across = np.array([-along[1], along[0]])
        self.line([(x, y) for x, y in path], thickness, colour)
        self.polygon([tuple(path[-1] + part) for part in (1.5 * along, across, -across)], colour)

    def turn(self, x: float, y: float, radius: float, angle: float, colour: str) -> None:
        """Draw a curved arrow around (x, y) that starts on the right and spans ``angle``: counterclockwise if positive."""
        steps = np.linspace(0, angle, 12)
        self.arrow(zip(x + radius * np.cos(steps), y + radius * np.sin(steps), strict=True), radius / 9, colour)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (x - self._left) * self._scale, (self._top - y) * self._scale
