"""How the mean of an evolution strategy and its members act."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax.flatten_util import ravel_pytree

from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.distributions import Categorical, MultiCategorical
from jaxrl.evolution.evosax_adapter import Evosax
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.types import Array, Key, Policy, PyTree, StepInput


class Population(NamedTuple):
    """Exploration state of a policy: what makes its members."""

    key_data: Array
    """u32[2]: data of the generation's key. Policies are copied as NumPy arrays, which cannot hold keys."""
    sigma: Array
    """f32[]"""

    @property
    def key(self) -> Key:
        return jax.random.wrap_key_data(self.key_data)


def members(setup: AlgorithmSetup[Any], policy: Policy, member: Array) -> Policy:
    """Return the policy of a member, θ + σ·ε_m; with ``Evosax``, row m of its population."""
    if isinstance(setup.config.strategy, Evosax):
        _, unravel = ravel_pytree(policy.params)
        return policy._replace(params=unravel(policy.exploration[member]), exploration=())
    key, sigma = policy.exploration.key, policy.exploration.sigma
    return policy._replace(params=setup.config.noise.member(key, member, policy.params, sigma), exploration=())


def act(
    setup: AlgorithmSetup[Any], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, tuple[()]]:
    """Return the best actions of a policy; with ``explore``, those of member ``env_id`` in each environment."""
    if explore:

        def act_alone(member: Array, carry: PyTree, row: StepInput) -> Any:
            carry, row = jax.tree.map(lambda x: x[None], (carry, row))
            return jax.tree.map(lambda x: x[0], best_action(setup, members(setup, policy, member), carry, row))

        carry, action = jax.vmap(act_alone)(env_id // max(1, setup.num_agents) % setup.config.members, carry, inputs)
    else:
        carry, action = best_action(setup, policy, carry, inputs)
    return carry, action, ()


def best_action(setup: AlgorithmSetup[Any], policy: Policy, carry: PyTree, inputs: StepInput) -> tuple[PyTree, Array]:
    carry, output = setup.model.apply(policy.params, carry, normalize_inputs(policy.statistics, inputs))
    action = output.mode() if isinstance(output, Categorical | MultiCategorical) else output
    return carry, setup.to_environment(action)
