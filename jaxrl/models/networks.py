"""Built-in networks: flax modules called with a ``StepInput``."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.distributions import Categorical, MultiCategorical
from jaxrl.evolution.noise import LowRankKernel
from jaxrl.models.cores import CORES, Core
from jaxrl.models.heads import ActionHead, ActorCriticOutput, PolicyHead, masked
from jaxrl.models.initialisers import compute_type, dense
from jaxrl.models.torso import Network, Torso
from jaxrl.types import Array, PyTree, StepInput


class ActorCritic(nn.Module):
    """Policy and value, with separate torsos or a shared one."""

    network: Network
    action_space: spaces.Space
    squash: bool
    shared: bool
    critic: Network
    """The network of the value's torso, if it is not shared."""
    num_values: int | None = None
    initial_std: float = 1.0

    @nn.compact
    def __call__(self, inputs: StepInput) -> ActorCriticOutput:
        torsos = {"torso": self.network} if self.shared else {"actor": self.network, "critic": self.critic}
        features = [Torso(network, self.action_space, name=name)(inputs) for name, network in torsos.items()]
        policy = PolicyHead(self.action_space, self.squash, self.initial_std, name="policy")(features[0], inputs.obs)
        return ActorCriticOutput(policy, of_values(dense(self.num_values or 1, 1.0, "value")(features[-1]), self.num_values))


def of_values(x: Array, num_values: int | None) -> Array:
    """Return the outputs of a value head, f32[..., num_values], or f32[...] without that number."""
    return x if num_values else x[..., 0]


class GreedyPolicy(nn.Module):
    """Torso → action head."""

    network: Network
    action_space: spaces.Space
    squash: bool

    @nn.compact
    def __call__(self, inputs: StepInput) -> Categorical | MultiCategorical | Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs)
        return ActionHead(self.action_space, self.squash, name="head")(x, inputs.obs)


class QNetwork(nn.Module):
    """Torso → one Q-value per action."""

    network: Network
    action_space: spaces.Discrete

    @nn.compact
    def __call__(self, inputs: StepInput) -> Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs)
        return masked(dense(int(self.action_space.n), 1.0, "q")(x), inputs.obs)


class RecurrentCore(nn.Module):
    """Torso → core with memory."""

    network: Network
    action_space: spaces.Space

    def setup(self) -> None:
        core, dtype = self.kind, self.network.dtype
        self.encoder = Torso(self.network, self.action_space)
        self.core_input = dense(core.gates * self.network.core_size, 1.0, dtype=dtype)
        if core.layers is not None:
            self.core_layers = core.layers(self.network)
        else:
            self.core_recurrent = dense(core.gates * self.network.core_size, 1.0, use_bias=False, dtype=dtype)

    @property
    def kind(self) -> Core:
        return CORES[self.network.core]  # type: ignore[index]

    def encode(self, inputs: StepInput) -> Array | list[Array]:
        """Compute the inputs of the core's gates, f32[..., core_size] each, or of a parallel core, f32[..., core_size]. Needs no
        carry, so it runs for all rows at once.

        The gates are separate arrays, because XLA on a CPU does not vectorise a loop's arithmetic that reads parts of its row: a
        forward pass of a GRU takes up to four times as long.
        """
        x = self.core_input(self.encoder(inputs)).astype(jnp.float32)
        return x if self.kind.step is None else jnp.split(x, self.kind.gates, axis=-1)

    def core(self, carry: PyTree, x: Any, is_first: Array) -> tuple[PyTree, Array]:
        """Advance the core by one step, or by all of them if it is parallel, and return (carry, features).

        The carry is reset where an episode starts.
        """
        if self.kind.step is None:
            return self.core_layers(carry, x, is_first)
        carry = jax.tree.map(lambda x: jnp.where(is_first[..., None], 0.0, x), carry)
        carry = self.kind.step(carry, x, lambda x: self.core_recurrent(x).astype(jnp.float32))
        return carry, jax.tree.leaves(carry)[0]

    @property
    def has_rows(self) -> bool:
        """True if ``core_rows`` can be called."""
        return self.kind.rows is not None

    def core_rows(self, carry: PyTree, x: Any, is_first: Array) -> tuple[PyTree, Array]:
        """Advance the core by all rows, [T, B], and return (carry, features)."""
        kernel = self.core_recurrent.variables["params"]["kernel"]
        kernel = kernel.whole() if isinstance(kernel, LowRankKernel) else kernel
        carries = self.kind.rows(carry, x, is_first, kernel.astype(compute_type(self.network.dtype)))  # type: ignore[misc]
        return carries[-1], carries


class RecurrentActorCritic(RecurrentCore):
    """Torso → core → policy and value, shared up to the heads."""

    squash: bool
    num_values: int | None = None
    initial_std: float = 1.0

    def setup(self) -> None:
        super().setup()
        self.policy_head = PolicyHead(self.action_space, self.squash, self.initial_std)
        self.value_head = dense(self.num_values or 1, 1.0)

    def heads(self, hidden: Array, obs: PyTree) -> ActorCriticOutput:
        return ActorCriticOutput(self.policy_head(hidden, obs), of_values(self.value_head(hidden), self.num_values))


class RecurrentGreedyPolicy(RecurrentCore):
    """Torso → core → action head."""

    squash: bool

    def setup(self) -> None:
        super().setup()
        self.head = ActionHead(self.action_space, self.squash)

    def heads(self, hidden: Array, obs: PyTree) -> Categorical | MultiCategorical | Array:
        return self.head(hidden, obs)


class SeparateActorCritic(nn.Module):
    """Torso → core → policy, and a separate torso → core → value. The carry is a pair."""

    network: Network
    action_space: spaces.Space
    squash: bool
    critic_network: Network
    num_values: int | None = None
    initial_std: float = 1.0

    def setup(self) -> None:
        self.actor, self.critic = (RecurrentCore(each, self.action_space) for each in (self.network, self.critic_network))
        self.policy_head = PolicyHead(self.action_space, self.squash, self.initial_std)
        self.value_head = dense(self.num_values or 1, 1.0)

    def encode(self, inputs: StepInput) -> tuple[Any, Any]:
        return self.actor.encode(inputs), self.critic.encode(inputs)

    def core(self, carry: PyTree, x: tuple[Any, Any], is_first: Array) -> tuple[PyTree, tuple[Array, Array]]:
        actor, critic = self.actor.core(carry[0], x[0], is_first), self.critic.core(carry[1], x[1], is_first)
        return (actor[0], critic[0]), (actor[1], critic[1])

    @property
    def has_rows(self) -> bool:
        return all(CORES[str(each.core)].rows is not None for each in (self.network, self.critic_network))

    def core_rows(self, carry: PyTree, x: tuple[Any, Any], is_first: Array) -> tuple[PyTree, tuple[Array, Array]]:
        actor, critic = self.actor.core_rows(carry[0], x[0], is_first), self.critic.core_rows(carry[1], x[1], is_first)
        return (actor[0], critic[0]), (actor[1], critic[1])

    def heads(self, hidden: tuple[Array, Array], obs: PyTree) -> ActorCriticOutput:
        return ActorCriticOutput(self.policy_head(hidden[0], obs), of_values(self.value_head(hidden[1]), self.num_values))


class RecurrentQNetwork(RecurrentCore):
    """Torso → core → one Q-value per action."""

    def setup(self) -> None:
        super().setup()
        self.q: Any = dense(int(self.action_space.n), 1.0)  # type: ignore[attr-defined]

    def heads(self, hidden: Array, obs: PyTree) -> Array:
        return masked(self.q(hidden), obs)
