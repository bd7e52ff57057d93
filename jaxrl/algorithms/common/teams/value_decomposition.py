"""Values of a team made of its agents' values, for algorithms whose rows are those of lanes (``jaxrl.rollout.agents``)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common.teams.mixers import SUM, Mixer, monotonic_mixer
from jaxrl.builder.networks import is_recurrent
from jaxrl.builder.prepare import PreparedAgent
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.optimize.minibatches import check_minibatches
from jaxrl.rollout.agents import together
from jaxrl.settings.options import Option, option
from jaxrl.settings.validation import Count, CountOrZero
from jaxrl.spaces.entries import PRIVILEGED_KEY, check_privileged
from jaxrl.types import Array, Key, Model, PyTree, StepInput


@option("vdn")
class VDN(Option):
    """Learn the team's value as the sum of its agents' values (Sunehag et al. 2018, eq. 3), from the mean of their rewards."""

    def mixer(self, observation_space: spaces.Space, num_agents: int) -> Mixer:
        return SUM


@option("qmix")
class QMIX(Option):
    """Learn the team's value as a monotonic function of its agents' values, with weights that depend on the ``privileged_state``
    of the observations (Rashid et al. 2018, section 4), from the mean of their rewards."""

    embedding_size: Count = 32
    """Hidden units of the mixing network."""
    hypernetwork_size: CountOrZero = 64
    """Hidden units of the networks that compute its weights; 0: they are linear, as in the paper of 2018."""

    def mixer(self, observation_space: spaces.Space, num_agents: int) -> Mixer:
        check_privileged(observation_space, f"decomposition={self}")
        state_space: Any = observation_space[PRIVILEGED_KEY]  # type: ignore[index]
        return monotonic_mixer(state_space, num_agents, self.embedding_size, self.hypernetwork_size)


class MixedParams(NamedTuple):
    """Parameters of a network and of the mixer of its values."""

    agents: PyTree
    mixer: PyTree


class TeamRows(NamedTuple):
    """Rows of environments, [T, N], with the flags that ``jaxrl.returns`` takes."""

    reward: Array
    """f32: mean over all agents; those that are over get 0."""
    terminated: Array
    """The last agents ended, and none of them by a truncation."""
    truncated: Array
    """An agent ended by a truncation, so a return ends with the value reached, of this agent and of those that continue."""
    valid: Array
    """An agent acted."""


def team_rows(rollout: Any, num_agents: int) -> TeamRows:
    """Return the rows of environments, given those of their lanes: a ``Rollout`` or ``Sequences``."""
    reward, terminated, truncated, valid = (
        together(x, num_agents) for x in (rollout.reward, rollout.terminated, rollout.truncated, rollout.valid)
    )
    acted = valid.any(-1)
    over, cut = acted & ~(valid & ~terminated & ~truncated).any(-1), (valid & truncated).any(-1)
    return TeamRows(reward.mean(-1), over & ~cut, cut, acted)


class TeamValue(NamedTuple):
    """The value of a team as a function of its agents' values."""

    num_agents: int
    mixer: Mixer

    def chosen(self, params: PyTree, values: Array, alive: Array, obs: PyTree) -> Array:
        """Return the team's values f32[..., N] of values of lanes, f32[..., B], without those of agents that are over.

        Args:
          params: those of the network.
          alive: bool[..., B].
          obs: [..., B, ...]. The state is that of the first agent that is alive.
        """
        counts, state = together(alive, self.num_agents), ()
        if self.mixer.sees_state:
            state = of_first(counts, obs[PRIVILEGED_KEY])
        mixing = params.mixer if isinstance(params, MixedParams) else ()
        return self.mixer.apply(mixing, jnp.where(counts, together(values, self.num_agents), 0.0), state)

    def reached(self, params: PyTree, rows: Any, values: Array) -> Array:
        """Return the team's values after rows, f32[T, N], without agents that terminated or were over before.

        Args:
          rows: [T, B], a ``Rollout`` or ``Sequences``.
          values: those of the lanes after the rows, f32[T, B].
        """
        goes_on = rows.valid & ~rows.terminated
        beyond = self.chosen(params, values, goes_on, jax.tree.map(lambda x: x[1:], rows.inputs.obs))
        return jnp.where(together(goes_on, self.num_agents).any(-1), beyond, 0.0)


def of_first(alive: Array, lanes: PyTree) -> Any:
    """Return the leaves [..., B, ...] of lanes for the first agent of each environment that is alive, [..., N, ...].

    Args:
      alive: bool[..., N, A].
    """
    first, lead = jnp.argmax(alive, -1), alive.ndim - 1

    def of_leaf(x: Array) -> Array:
        x = x.reshape(*alive.shape, *x.shape[lead:])
        return jnp.take_along_axis(x, first.reshape(*first.shape, *[1] * (x.ndim - lead)), lead).squeeze(lead)

    return jax.tree.map(of_leaf, lanes)


def team_value(setup: AlgorithmSetup[Any]) -> TeamValue | None:
    """Return the value of the setup's teams; None without a decomposition."""
    if (chosen := setup.config.decomposition) is None:
        return None
    return TeamValue(setup.num_agents, chosen.mixer(setup.observation_space, setup.num_agents))


def check_team_minibatches(setup: AlgorithmSetup[Any]) -> None:
    """Raise ValueError unless ``num_minibatches`` divides the rows of teams, or with memory their sequences."""
    if setup.config.decomposition is not None:
        check_minibatches(setup.config, setup.steps_per_iteration, recurrent=is_recurrent(setup.model))


def decomposed(prepared: PreparedAgent[Any]) -> PreparedAgent[Any]:
    """Return the agent with the parameters of the decomposition's mixer added to those of its network, as ``MixedParams``.

    Raises:
      ValueError: a decomposition is set for one agent, or it needs a state, and observations have none.
    """
    setup, chosen = prepared.setup, prepared.setup.config.decomposition
    if chosen is None:
        return prepared
    if not setup.num_agents:
        raise ValueError(f"decomposition={chosen} is for environments of several agents, and this one has one: leave it out")
    value = team_value(setup)
    assert value is not None
    if not value.mixer.sees_state:
        return prepared
    return dataclasses.replace(prepared, setup=dataclasses.replace(setup, model=with_mixer(setup.model, value.mixer)))


def with_mixer(model: Model, mixer: Mixer) -> Model:
    """Return the model with parameters ``MixedParams``. Its outputs use those of the agents."""

    def init(key: Key, inputs: StepInput) -> MixedParams:
        state = jax.tree.map(lambda x: x[0], inputs.obs[PRIVILEGED_KEY])
        return MixedParams(model.init(key, inputs), mixer.init(jax.random.fold_in(key, 1), state))

    def of_agents(function: Any) -> Any:
        return lambda params, carry, inputs, key=None: function(params.agents, carry, inputs, key=key)

    return model._replace(init=init, apply=of_agents(model.apply), unroll=of_agents(model.unroll))
