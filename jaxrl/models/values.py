"""Q-networks with distributional outputs, dueling streams and noisy layers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.config import ValueNetworkConfig
from jaxrl.models.configured import configured_by
from jaxrl.models.heads import masked
from jaxrl.models.initialisers import ACTIVATIONS, Dense, compute_type, dense, orthogonal
from jaxrl.models.matmul import dense_layer
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.settings.loadable import component
from jaxrl.types import Array, Model, StepInput
from jaxrl.xla import fast_random

NUM_COSINES = 64
"""Number of cosines in the embedding of a fraction (Dabney et al. 2018b, section 3.1)."""


@component("value")
class QuantileOutput(NamedTuple):
    """Quantiles of the return at some fractions."""

    values: Array
    """f32[..., n, K], for each action."""
    fractions: Array
    """f32[..., K] in (0, 1)."""


class NoisyDense(Dense):
    """Layer with weights μ + σ·ε and factorised Gaussian noise ε (Fortunato et al. 2018, eq. 9–11).

    ε is drawn once per call for all rows, from the rng stream "noise". Without that stream ε is 0.
    """

    sigma: float = 0.5
    """Initial σ, times the square root of the number of input features."""

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
        # Only the draw has no loop: XLA takes several times as long to compile chains of such keys.
        noise = fast_random.normal(self.make_rng("noise"), (features + self.features,))
        noise = (jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))).astype(x.dtype)
        # The product with σ ⊙ (ε_in ε_outᵀ) without that matrix: under vmap over keys, all rows still share their weights.
        return y + dense_layer(x * noise[:features], kernel_sigma, bias_sigma) * noise[features:]


class ValueNetwork(nn.Module):
    """Torso → one hidden layer, or one in each of two streams → outputs per action."""

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
        """Apply the last hidden layer, if there is one, and the output layer."""
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
        """Draw f32[..., K] uniformly from (0, 1) with a key; without one, return the midpoints of K equal intervals."""
        if self.has_rng("fractions"):
            return fast_random.uniform(self.make_rng("fractions"), shape)
        return jnp.broadcast_to((jnp.arange(shape[-1]) + 0.5) / shape[-1], shape)

    def embedded(self, fractions: Array, features: int) -> Array:
        """Compute ReLU(Σᵢ cos(π·i·τ)·wᵢ + b), f32[..., K, features] (Dabney et al. 2018b, eq. 4)."""
        cosines = jnp.cos(jnp.pi * jnp.arange(NUM_COSINES) * fractions[..., None])
        return jax.nn.relu(dense(features, name="fraction", dtype=self.network.dtype)(cosines))


@component("model", home="jaxrl.models")
@configured_by(ValueNetworkConfig)
def value_network(observation_space: spaces.Space, action_space: spaces.Space, config: ValueNetworkConfig) -> Model:
    """Build the Q-network of ``make_dqn`` with a value head.

    Outputs are one value per action of a Discrete space, or parameters of a distribution of the return. The last hidden layer
    belongs to the head.

    Args:
      action_space: Discrete.
    """
    if not isinstance(action_space, spaces.Discrete):
        raise TypeError(f"action_space is {action_space}: a Q-network needs a Discrete space")
    network = make_network(observation_space, config)
    heads = config.dueling, config.noise, config.num_outputs, config.num_fractions
    return from_linen(ValueNetwork(network, action_space, *heads), rngs=("noise", "fractions"))
