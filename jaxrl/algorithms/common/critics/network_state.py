"""States and gradient steps of a policy and its critics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup
from jaxrl.optimize.descent import Descent
from jaxrl.rollout.outputs import with_statistics
from jaxrl.types import Array, PyTree


def networks(setup: ActorCriticSetup[Any], params: ActorCriticPair, hyperparams: Any) -> ActorCriticPair:
    """Return the steps of the policy's optimiser, at ``actor_learning_rate``, and of the critics', a ``Descent`` each."""
    rates = (hyperparams._replace(learning_rate=hyperparams.actor_learning_rate), hyperparams)
    return ActorCriticPair(*(setup.descent(hp, part, single_steps=True) for hp, part in zip(rates, params, strict=True)))


STATISTICS = "statistics"
"""Key in the metrics of a loss for the statistics that its network has learnt. They are not logged."""


class NetworkState(NamedTuple):
    """State of a network, or of an ensemble, in a loop over updates."""

    params: PyTree
    statistics: PyTree
    """() if the network learns none."""
    opt_state: PyTree

    @property
    def variables(self) -> PyTree:
        """The first argument of the model's ``apply``."""
        return with_statistics(self.params, self.statistics)


def network_states(learner: Any, opt_states: ActorCriticPair) -> ActorCriticPair:
    """Return the states of the learner's policy and critics."""
    statistics = learner.statistics or ActorCriticPair((), ())
    return ActorCriticPair(*map(NetworkState, learner.params, statistics, opt_states))


def network_variables(holder: Any) -> ActorCriticPair:
    """Return the first arguments of ``apply`` of the policy and the critics of a learner, or of a ``Policy``."""
    return ActorCriticPair(*map(with_statistics, holder.params, holder.statistics)) if holder.statistics else holder.params


def train_step(
    descent: Descent, loss: Callable[[PyTree], tuple[Array, dict[str, Any]]], network: NetworkState
) -> tuple[NetworkState, dict[str, Array]]:
    """Take one gradient step with a network's parameters, and keep the statistics that it has learnt.

    Args:
      loss: variables -> (loss, scalars to log with ``STATISTICS``, if the network learns any).
    """
    of_params = lambda params: loss(with_statistics(params, network.statistics))  # noqa: E731
    params, opt_state, metrics = descent.single_step(of_params, network.params, network.opt_state)
    return NetworkState(params, metrics.pop(STATISTICS, ()), opt_state), metrics
