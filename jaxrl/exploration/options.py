"""Options of exploration: ε by environment, noisy layers, and noise on actions."""

from __future__ import annotations

from jaxrl.settings.options import Option, hyperparameter, option
from jaxrl.settings.validation import Count, NonNegative, Positive, PositiveUnit


@option("spread")
class Spread(Option):
    """Explore at another rate in each environment (Horgan et al. 2018): environment i of N with ε to the power of
    1 + exponent · i / (N − 1)."""

    exponent: NonNegative = 7.0
    """The exponent of the last environment, minus 1; 7 in the paper."""


@option("noisy")
class Noisy(Option):
    """Explore by noisy layers in the head (Fortunato et al. 2018), which get a random key in training, but not in evaluation."""

    sigma: Positive = 0.5
    """σ₀ of the noisy layers of the built-in network."""


@option("gaussian")
class Gaussian(Option):
    """Add Gaussian noise to actions, with the standard deviation ``exploration_noise``."""

    hold: Count = 1
    """Rows of an episode that share one draw of noise, including the random actions of the warm-up; 1: one draw per row."""


@option("ou")
class OU(Option):
    """Add an Ornstein–Uhlenbeck process to the actions of each episode (Lillicrap et al. 2016). ``exploration_noise`` is the
    standard deviation of the noise added to the process at each row."""

    theta: PositiveUnit = hyperparameter("ou_theta", 0.15)
    """Fraction by which the process decays at each row; 1: independent noise."""
