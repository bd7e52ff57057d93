"""Q-networks with distributional outputs, dueling streams and noisy layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
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
from jaxrl.types import Array, Key, Model, StepInput
from jaxrl.xla import fast_random
from jaxrl.xla.copies import stored

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
    """Layer with weights μ + σ·ε and factorised Gaussian noise ε (Fortunato et al. 2018, eq. 9–11), the same for all rows."""

    sigma: float = 0.5
    """Initial σ, times the square root of the number of input features."""

    @nn.compact
    def __call__(self, inputs: Array, noise: Array | None = None) -> Array:
        """Apply the layer.

        Args:
          noise: f(ε) of each input and each output, f32[inputs + outputs]; see ``factors``. None: ε is 0.
        """
        features = inputs.shape[-1]
        kernel = self.weights("kernel", self.kernel_init, (features, self.features))
        bias = self.weights("bias", self.bias_init, (self.features,))
        start = nn.initializers.constant(self.sigma / math.sqrt(features))
        kernel_sigma = self.weights("kernel_sigma", start, (features, self.features))
        bias_sigma = self.weights("bias_sigma", start, (self.features,))
        weights = (inputs, kernel, bias, kernel_sigma, bias_sigma)
        x, kernel, bias, kernel_sigma, bias_sigma = nn.dtypes.promote_dtype(*weights, dtype=self.dtype)
        y = dense_layer(x, kernel, bias)
        if noise is None:
            return y
        noise = noise.astype(x.dtype)
        # The product with σ ⊙ (ε_in ε_outᵀ) without that matrix: under vmap over keys, all rows still share their weights.
        return y + dense_layer(x * noise[:features], kernel_sigma, bias_sigma) * noise[features:]


def factors(key: Key, size: int) -> Array:
    """Draw f(ε) = sgn(ε)·√|ε| for normal ε, f32[size] (Fortunato et al. 2018, eq. 10)."""
    noise = fast_random.normal(key, (size,))
    return stored(jnp.sign(noise) * jnp.sqrt(jnp.abs(noise)))  # and not computed again for each row


class ValueNetwork(nn.Module):
    """Torso → one hidden layer, or one in each of two streams → outputs per action. Residual blocks are all in the torso."""

    network: Network
    action_space: spaces.Discrete
    dueling: bool
    noise: float
    num_outputs: int | None
    num_fractions: int | None

    @nn.compact
    def __call__(self, inputs: StepInput) -> Array | QuantileOutput:
        sizes = self.network.hidden_sizes
        before = self.network._replace(hidden_sizes=sizes[: len(sizes) - len(self.last_sizes)])
        x = Torso(before, self.action_space, name="torso")(inputs)
        if self.num_fractions:
            fractions = self.fractions((*x.shape[:-1], self.num_fractions))
            x = x[..., None, :] * self.embedded(fractions, x.shape[-1])
        n, size = int(self.action_space.n), self.num_outputs or 1
        noise = self.noise_of_layers(x.shape[-1], {"q": n * size} | ({"value": size} if self.dueling else {}))
        values = self.stream(x, n * size, "q", noise)
        values = values.reshape((*values.shape[:-1], n, size))
        if self.dueling:
            values = values - values.mean(-2, keepdims=True) + self.stream(x, size, "value", noise)[..., None, :]
        if self.num_fractions:
            return QuantileOutput(values[..., 0].swapaxes(-1, -2), fractions)
        return values if self.num_outputs else masked(values[..., 0], inputs.obs)

    @property
    def last_sizes(self) -> tuple[int, ...]:
        """Size of the hidden layer of each stream, if it has one."""
        return () if self.network.residual else tuple(self.network.hidden_sizes[-1:])

    def noise_of_layers(self, inputs: int, outputs: Mapping[str, int]) -> dict[str, Array]:
        """Draw the noise of all layers, by their names; none without a key. On a CPU a draw takes as long as a layer, so all
        noise is one draw.

        Args:
          inputs: features of the input of each stream.
          outputs: stream -> features of its output.
        """
        if not (self.noise and self.has_rng("noise")):
            return {}
        sizes: dict[str, int] = {}
        for name, features in outputs.items():
            hidden = self.last_sizes
            sizes |= {f"{name}_hidden": inputs + size for size in hidden}
            sizes[name] = (hidden or (inputs,))[0] + features
        noise = factors(self.make_rng("noise"), sum(sizes.values()))
        return dict(zip(sizes, jnp.split(noise, np.cumsum([*sizes.values()])[:-1]), strict=True))

    def stream(self, x: Array, features: int, name: str, noise: Mapping[str, Array]) -> Array:
        """Apply the last hidden layer, if there is one, and the output layer."""
        network = self.network
        for size in self.last_sizes:
            x = self.layer(x, size, math.sqrt(2), f"{name}_hidden", noise, network.dtype)
            if network.layer_norm:
                x = nn.LayerNorm(dtype=compute_type(network.dtype), name=f"{name}_norm")(x)
            x = ACTIVATIONS[network.activation](x)
        return self.layer(x, features, 1.0, name, noise)

    def layer(self, x: Array, features: int, gain: float, name: str, noise: Mapping[str, Array], dtype: str = "float32") -> Array:
        if not self.noise:
            return dense(features, gain, name, dtype=dtype)(x)
        arguments: Any = {"dtype": compute_type(dtype), "kernel_init": orthogonal(gain), "name": name, "sigma": self.noise}
        return NoisyDense(features, **arguments)(x, noise.get(name))

    def fractions(self, shape: tuple[int, ...]) -> Array:
        """Draw f32[..., K] uniformly from (0, 1) with a key; without one, return the midpoints of K equal intervals."""
        if self.has_rng("fractions"):
            return stored(fast_random.uniform(self.make_rng("fractions"), shape))  # and not drawn again for each cosine
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
