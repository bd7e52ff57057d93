"""Rewards of an agent's own making, for where the environment's are rare: a builder's ``intrinsic`` keyword."""

from __future__ import annotations

from jaxrl.intrinsic.distillation import RNDConfig, rnd
from jaxrl.intrinsic.part import Intrinsic, IntrinsicFn

__all__ = ["Intrinsic", "IntrinsicFn", "RNDConfig", "rnd"]

rnd.__module__ = __name__  # the name in specs, which outlives the files of this room
