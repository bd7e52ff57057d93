"""Options of DQN for bootstrapping: from the best next action, or softly (Munchausen)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.q_heads import QHead, select_outputs
from jaxrl.distributions import select_actions
from jaxrl.replay.transitions import Transitions, bootstrapped
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Positive, PositiveUnit
from jaxrl.types import Array

Forward = Callable[[Any, Any], Any]
"""(inputs, key) -> outputs of a network."""


class OnlineAndTarget(NamedTuple):
    """The online and the target network, as functions of inputs."""

    online: Forward
    target: Forward


@option("greedy")
class Greedy(Option):
    """Bootstrap from the best next action of the target network (Mnih et al. 2015)."""

    def look_ahead(self, head: QHead, networks: OnlineAndTarget, batch: Transitions, keys: Any) -> tuple[Transitions, Array]:
        """Return the batch, with rewards as the targets need them, and the per-action returns to bootstrap from."""
        outputs = networks.target(batch.next_inputs, keys[0])
        best = jnp.argmax(head.values(self.chooser(networks, batch, outputs, keys[1]), batch.next_inputs.obs), -1)
        return batch, select_outputs(head.per_action_return(outputs), best)

    def chooser(self, networks: OnlineAndTarget, batch: Transitions, outputs: Any, key: Any) -> Any:
        """Return the outputs that select the next action."""
        return outputs


@option("double")
class Double(Greedy):
    """Bootstrap from the target network's value of the online network's best next action (van Hasselt et al. 2016, eq. 4)."""

    def chooser(self, networks: OnlineAndTarget, batch: Transitions, outputs: Any, key: Any) -> Any:
        return networks.online(batch.next_inputs, key)


@option("munchausen")
class Munchausen(Option):
    """Bootstrap softly from all next actions, and add the scaled log-policy to rewards (Vieillard et al. 2020, eq. 1).

    The policy is π = softmax(Q⁻/τ) of the target network. The rewards are r + γ·(1 − terminated)·τ·H(π(· | s′)) +
    α·max(τ·log π(a | s), −clip). The mixture of return distributions is shifted by the mean of −τ·log π; the distributions of
    actions are not shifted separately. With n-step returns, the log-policy is that of the first action only.
    """

    weight: PositiveUnit = 0.9
    """α, the weight of the scaled log-policy."""
    temperature: Positive = 0.03
    """τ of the policy."""
    clip: Positive = 1.0
    """Clip the scaled log-policy to at least −clip."""

    def look_ahead(self, head: QHead, networks: OnlineAndTarget, batch: Transitions, keys: Any) -> tuple[Transitions, Array]:
        """Return ``batch`` with these rewards, and the target network's returns of all next actions, averaged over the policy."""
        outputs = networks.target(batch.next_inputs, keys[0])
        log_next = jax.nn.log_softmax(head.values(outputs, batch.next_inputs.obs) / self.temperature)
        policy = jnp.exp(log_next)
        beyond = jnp.einsum("na,na...->n...", policy, head.per_action_return(outputs))
        entropy = bootstrapped(batch, -self.temperature * (policy * log_next).sum(-1))

        q_values = head.values(networks.target(batch.inputs, keys[1]), batch.inputs.obs)
        chosen = self.temperature * select_actions(jax.nn.log_softmax(q_values / self.temperature), batch.action)
        bonus = self.weight * jnp.clip(chosen, -self.clip, 0.0)
        return batch._replace(reward=jax.lax.stop_gradient(entropy + bonus)), beyond
