"""Evolution strategies: noise of members, shaping of fitness, gradients.

``maximize`` evolves the parameters of any function. ``init``, ``ask``, ``tell``, ``export`` and ``status`` are the loop of a
product, whose members other programs test.
"""

from __future__ import annotations

from typing import Any

from jaxrl.settings.doors import open_door


def __getattr__(name: str) -> Any:
    """Return functions that have side effects, and are therefore defined in ``jaxrl.runtime``."""
    return open_door(__name__, name)
