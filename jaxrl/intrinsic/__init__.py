"""Intrinsic rewards, for environments with rare rewards: a builder's ``intrinsic`` keyword."""

from __future__ import annotations

from jaxrl.intrinsic.distillation import RNDConfig, rnd
from jaxrl.intrinsic.part import Intrinsic, IntrinsicFn

__all__ = ["Intrinsic", "IntrinsicFn", "RNDConfig", "rnd"]
