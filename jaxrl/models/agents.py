"""Parameters of several agents that are not shared by all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.rollout.autoreset import expand_mask
from jaxrl.settings.loadable import component
from jaxrl.spaces.trees import AGENT_KEY
from jaxrl.types import Array, Key, Model, PyTree, StepInput


@component("model", home="jaxrl.models")
def per_agent(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    network: Callable[[spaces.Space, spaces.Space], Model],
    groups: Sequence[int] | None = None,
) -> Model:
    """Build a network with separate parameters for each group of agents, leaves [G, ...].

    All groups compute all rows, and each row takes the outputs of its agent's group. So rows may come in any order, and each
    costs G times as much as with shared parameters. Observations are a Dict with an ``agent_id``, which the wrapper of that name
    adds.

    Args:
      network: function of both spaces that returns the model of a group, such as ``actor_critic``.
      groups: the group of each agent, from 0; default: each agent is a group. With (0, 0, 1) the first two share parameters.

    Raises:
      ValueError: observations have no ``agent_id``, or there are not as many groups as agents.
      TypeError: the network learns statistics.
    """
    of_agent = _checked(observation_space, groups)
    model, number = network(observation_space, action_space), max(of_agent) + 1
    if model.train is not None:
        raise TypeError("per_agent takes a network of parameters alone, and this one learns statistics: leave batch_renorm out")

    def select(group: Array, found: PyTree) -> PyTree:
        """Return the rows of each agent's group, given those of all groups, [G, ...]."""

        def of_leaf(x: Array) -> Array:
            chosen = x[0]
            for i in range(1, number):
                chosen = jnp.where(expand_mask(group == i, x[i]), x[i], chosen)
            return chosen

        return jax.tree.map(of_leaf, found)

    def init(key: Key, inputs: StepInput) -> PyTree:
        return jax.vmap(model.init, in_axes=(0, None))(jax.random.split(key, number), inputs)

    def of_all(function: Any) -> Any:
        def called(params: PyTree, carry: PyTree, inputs: StepInput, key: Key | None = None) -> tuple[PyTree, Any]:
            run = lambda params: function(params, carry, inputs, key=key)  # noqa: E731
            carries, outputs = jax.vmap(run)(params)
            group = jnp.array(of_agent)[inputs.obs[AGENT_KEY]]
            return select(group if group.ndim == 1 else group[-1], carries), select(group, outputs)

        return called

    return Model(init, of_all(model.apply), of_all(model.unroll), model.initial_carry)


def _checked(space: spaces.Space, groups: Sequence[int] | None) -> tuple[int, ...]:
    """Return the group of each agent."""
    agents = space.spaces.get(AGENT_KEY) if isinstance(space, spaces.Dict) else None
    if not isinstance(agents, spaces.Discrete):
        raise ValueError(
            f"per_agent needs observations that are a Dict with {AGENT_KEY!r}, and observation_space is {space}: wrap the "
            "environment, as in 'jaxrl:Spread|agent_id'"
        )
    number = int(agents.n)
    chosen = tuple(range(number)) if groups is None else tuple(groups)
    if len(chosen) != number:
        raise ValueError(f"groups={chosen} has {len(chosen)} entries, and there are {number} agents: give the group of each")
    if {*chosen} != {*range(max(chosen) + 1)}:
        raise ValueError(f"groups={chosen} must be numbers from 0 without gaps, such as {tuple(i % 2 for i in range(number))}")
    return chosen
