"""The built-in networks, flax modules over a ``StepInput``."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.models.cores import gru
from jaxrl.models.encoders import MLP, encode_space
from jaxrl.models.heads import ActorCriticOutput, PolicyHead, masked
from jaxrl.models.initialisers import dense
from jaxrl.types import Array, PyTree, StepInput


class ActorCritic(nn.Module):
    """Two separate MLPs, for policy and value."""

    observation_space: spaces.Space
    action_space: spaces.Space
    hidden_sizes: tuple[int, ...]
    activation: str
    squash: bool = False

    @nn.compact
    def __call__(self, inputs: StepInput) -> ActorCriticOutput:
        x = encode_space(self.observation_space, inputs.obs)
        policy = PolicyHead(self.action_space, self.squash, name="policy")(
            MLP(self.hidden_sizes, self.activation, name="actor")(x), inputs.obs
        )
        value = dense(1, 1.0, "value")(MLP(self.hidden_sizes, self.activation, name="critic")(x))
        return ActorCriticOutput(policy, value[..., 0])


class QNetwork(nn.Module):
    """An MLP to one Q-value per action."""

    observation_space: spaces.Space
    num_actions: int
    hidden_sizes: tuple[int, ...]
    activation: str

    @nn.compact
    def __call__(self, inputs: StepInput) -> Array:
        x = MLP(self.hidden_sizes, self.activation, name="torso")(encode_space(self.observation_space, inputs.obs))
        return masked(dense(self.num_actions, 1.0, "q")(x), inputs.obs)


class RecurrentActorCritic(nn.Module):
    """Encoder → GRU → policy and value, shared up to the heads; sees the previous action and reward as well (rlpyt)."""

    observation_space: spaces.Space
    action_space: spaces.Space
    hidden_sizes: tuple[int, ...]
    activation: str
    core_size: int
    squash: bool = False

    def setup(self) -> None:
        self.encoder = MLP(self.hidden_sizes, self.activation)
        self.core_input = dense(3 * self.core_size, 1.0)
        self.core_recurrent = dense(3 * self.core_size, 1.0, use_bias=False)
        self.policy_head = PolicyHead(self.action_space, self.squash)
        self.value_head = dense(1, 1.0)

    def encode(self, inputs: StepInput) -> Array:
        """The part that needs no carry, for all rows at once: the three gates' inputs, [..., 3·core_size]."""
        parts = [
            encode_space(self.observation_space, inputs.obs),
            encode_space(self.action_space, inputs.prev_action) * ~inputs.is_first[..., None],
            inputs.prev_reward[..., None],
        ]
        return self.core_input(self.encoder(jnp.concatenate(parts, axis=-1)))

    def core(self, carry: Array, gates: Array, is_first: Array) -> Array:
        """One step, from zero where an episode starts."""
        return gru(jnp.where(is_first[..., None], 0.0, carry), gates, self.core_recurrent)

    def heads(self, hidden: Array, obs: PyTree) -> ActorCriticOutput:
        return ActorCriticOutput(self.policy_head(hidden, obs), self.value_head(hidden)[..., 0])

    def __call__(self, carry: Array, inputs: StepInput) -> tuple[Array, ActorCriticOutput]:
        carry = self.core(carry, self.encode(inputs), inputs.is_first)
        return carry, self.heads(carry, inputs.obs)
