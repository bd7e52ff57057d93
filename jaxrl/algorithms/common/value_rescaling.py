"""Rescaled values: returns on a scale that grows like their square root (Pohlen et al. 2018; Kapturowski et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp

from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import PositiveUnit
from jaxrl.types import Array


@option("sqrt")
class Rescale(Option):
    """Learn values on a scale that grows like the square root of the return (Pohlen et al. 2018)."""

    eps: PositiveUnit = 1e-3
    """ε of the scale: its smallest slope."""


def scale(rescale: Rescale | None) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return the functions from returns to the network's scale, and back."""
    if rescale is None:
        return (lambda x: x), (lambda x: x)
    return partial(rescaled, eps=rescale.eps), partial(unscaled, eps=rescale.eps)


def rescaled(x: Array, eps: float) -> Array:
    """h(x) = sign(x)·(√(|x| + 1) − 1) + ε·x (Kapturowski et al. 2019, section 2.3; Pohlen et al. 2018, proposition A.2)."""
    return x / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + eps * x


def unscaled(y: Array, eps: float) -> Array:
    """h⁻¹(y) = sign(y)·(u² − 1), u = (√(1 + 4ε·(|y| + 1 + ε)) − 1) / 2ε, the inverse of ``rescaled``.

    Both functions avoid differences of nearly equal numbers, which would lose most digits in float32.
    """
    u_minus_1 = 2.0 * jnp.abs(y) / (jnp.sqrt(1.0 + 4.0 * eps * (jnp.abs(y) + 1.0 + eps)) + 1.0 + 2.0 * eps)
    return jnp.sign(y) * u_minus_1 * (u_minus_1 + 2.0)
