"""Q-networks that say more than a value, or say it in another way: distributions of the return, two streams, noisy layers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.heads import masked
from jaxrl.models.initialisers import ACTIVATIONS, Dense, compute_type, dense, orthogonal
from jaxrl.models.matmul import dense_layer
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.settings.validation import Range, check_count, check_number, check_switches
from jaxrl.types import Array, Model, StepInput
from jaxrl.xla.fast_random import unrolled

NUM_COSINES = 64
"""Functions of a fraction that its embedding is made of (Dabney et al. 2018b, section 3.1)."""


class QuantileOutput(NamedTuple):
    """The return's quantiles at some fractions."""

    values: Array
    """f32[..., n, K] of each action"""
    fractions: Array
    """f32[..., K] in (0, 1)"""


class NoisyDense(Dense):
    """A layer whose weights are μ + σ·ε with factorised Gaussian noise ε (Fortunato et al. 2018, eq. 9–11), drawn once for all
    rows of a call where there is a key for the stream "noise", and 0 where there is none."""

    sigma: float = 0.5
    """σ at the start, times the square root of the number of features."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        features = inputs.shape[-1]
        kernel = self.weights("kernel", self.kernel_init, (features, self.features))
        bias = self.weights("bias", self.bias_init, (self.features,))
        start = nn.initializers.constant(self.sigma / math.sqrt(features))
        kernel_sigma = self.weights("kernel_sigma", start, (features, self.features))
        bias_sigma = self.weights("bias_sigma", start, (self.features,))
        weights = (inputs, kernel, bias, kernel_sigma, bias_sigma)
        x, kernel, bias, kernel_sigma, bias_sigma = nn.dtypes.promote_dtype(*weights, dtype=self.dtype)
        y = dense_layer(x, kernel, bias)
        if not self.has_rng("noise"):
            return y
        # Unrolled for the draw alone: XLA compiles chains of unrolled keys, one made of the other, several times as long.
        noise = jax.random.normal(unrolled(self.make_rng("noise")), (features + self.features,))
        noise = (jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))).astype(x.dtype)
        # σ ⊙ (ε_in ε_outᵀ) as a product, without the matrix: under vmap over keys the weights stay those of all rows.
        return y + dense_layer(x * noise[:features], kernel_sigma, bias_sigma) * noise[features:]


class ValueNetwork(nn.Module):
    """A torso, and one hidden layer behind it, or one for each of two streams, to what is said of each action."""

    network: Network
    action_space: spaces.Discrete
    dueling: bool
    noise: float
    num_outputs: int | None
    num_fractions: int | None

    @nn.compact
    def __call__(self, inputs: StepInput) -> Array | QuantileOutput:
        before = self.network._replace(hidden_sizes=self.network.hidden_sizes[:-1])
        x = Torso(before, self.action_space, name="torso")(inputs)
        if self.num_fractions:
            fractions = self.fractions((*x.shape[:-1], self.num_fractions))
            x = x[..., None, :] * self.embedded(fractions, x.shape[-1])
        n, size = int(self.action_space.n), self.num_outputs or 1
        values = self.stream(x, n * size, "q")
        values = values.reshape((*values.shape[:-1], n, size))
        if self.dueling:
            values = values - values.mean(-2, keepdims=True) + self.stream(x, size, "value")[..., None, :]
        if self.num_fractions:
            return QuantileOutput(values[..., 0].swapaxes(-1, -2), fractions)
        return values if self.num_outputs else masked(values[..., 0], inputs.obs)

    def stream(self, x: Array, features: int, name: str) -> Array:
        """The last hidden layer, if there is one, and the layer behind it."""
        network = self.network
        for size in network.hidden_sizes[-1:]:
            x = self.layer(size, math.sqrt(2), f"{name}_hidden", network.dtype)(x)
            if network.layer_norm:
                x = nn.LayerNorm(dtype=compute_type(network.dtype), name=f"{name}_norm")(x)
            x = ACTIVATIONS[network.activation](x)
        return self.layer(features, 1.0, name)(x)

    def layer(self, features: int, gain: float, name: str, dtype: str = "float32") -> Any:
        if not self.noise:
            return dense(features, gain, name, dtype=dtype)
        return NoisyDense(features, dtype=compute_type(dtype), kernel_init=orthogonal(gain), name=name, sigma=self.noise)

    def fractions(self, shape: tuple[int, ...]) -> Array:
        """f32[..., K] uniform in (0, 1) with a key; without one the midpoints of K equal parts."""
        if self.has_rng("fractions"):
            return jax.random.uniform(unrolled(self.make_rng("fractions")), shape)
        return jnp.broadcast_to((jnp.arange(shape[-1]) + 0.5) / shape[-1], shape)

    def embedded(self, fractions: Array, features: int) -> Array:
        """ReLU(Σᵢ cos(π·i·τ)·wᵢ + b), f32[..., K, features] (Dabney et al. 2018b, eq. 4)."""
        cosines = jnp.cos(jnp.pi * jnp.arange(NUM_COSINES) * fractions[..., None])
        return jax.nn.relu(dense(features, name="fraction", dtype=self.network.dtype)(cosines))


def value_network(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    dueling: bool = False,
    noise: float = 0.0,
    num_outputs: int | None = None,
    num_fractions: int | None = None,
    **arguments: Any,
) -> Model:
    """What ``make_dqn`` makes of ``q_network`` for its heads: values of the actions of a Discrete space, or numbers that a
    distribution of the return is made of. The last of the hidden layers is the head's own.

    Args:
      dueling: a stream for the value of the state and one for advantages, each with a hidden layer of its own; an action's is
        value + advantage − mean advantage (Wang et al. 2016, eq. 9).
      noise: where it is not 0, the head's layers are noisy, with this σ₀ (Fortunato et al. 2018). They are so with a key only.
      num_outputs: outputs are so many numbers of each action, f32[..., n, num_outputs], which no mask is applied to.
      num_fractions: outputs are a ``QuantileOutput`` at so many fractions, drawn with a key, even without one (Dabney et al.
        2018b); not with ``num_outputs``.
      arguments: of ``q_network``, without a core.

    Raises:
      ValueError, TypeError: as ``q_network``; and a core, or both kinds of numbers.
    """
    check_switches(dueling=dueling)
    check_number("noise", noise, Range(0))
    counts = {"num_outputs": num_outputs, "num_fractions": num_fractions}
    given = {name: check_count(name, count) for name, count in counts.items() if count is not None}
    if len(given) == 2:
        raise ValueError(f"num_outputs={num_outputs} and num_fractions={num_fractions} exclude each other: leave one out")
    if arguments.get("core") is not None:
        raise ValueError(f"core={arguments['core']!r}: a value_network has none; q_network has, for plain Q-values")
    if not isinstance(action_space, spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: a Q-network needs a Discrete space")
    network = make_network(observation_space, "relu", **arguments)
    return from_linen(
        ValueNetwork(network, action_space, dueling, float(noise), given.get("num_outputs"), given.get("num_fractions")),
        rngs=("noise", "fractions"),
    )
