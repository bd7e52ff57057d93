"""Warnings that name the line of the user's script, from any depth within jaxrl."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path

NOT_THE_USERS = (f"{Path(__file__).parents[2]}{os.sep}", contextlib.contextmanager.__code__.co_filename)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost caller outside of jaxrl. For warning filters, the warning belongs to this module."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(NOT_THE_USERS):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, __name__, registry)
