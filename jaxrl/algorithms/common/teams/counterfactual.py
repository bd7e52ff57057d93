"""Counterfactual advantages (COMA, Foerster et al. 2018): a critic of joint actions, and an advantage of each agent's action over
those that its policy would take in its place. Lanes are those of ``jaxrl.rollout.agents``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.on_policy import policy_gradient_loss
from jaxrl.builder.keywords import split_keywords
from jaxrl.builder.networks import check_actor_critic
from jaxrl.builder.prepare import PreparedAgent, prepare
from jaxrl.distributions import Categorical, sample_each, select_actions
from jaxrl.envs import resolve_env
from jaxrl.intrinsic.part import with_intrinsic
from jaxrl.models import actor_critic
from jaxrl.returns import discounts, lambda_returns
from jaxrl.rollout.agents import joint_actions, together
from jaxrl.rollout.env_batches import fold_each
from jaxrl.spaces.entries import PRIVILEGED_KEY, as_entries, entries_of
from jaxrl.types import Array, EnvLike, Model, PyTree, Rollout, StepInput


class JointCritic(NamedTuple):
    """A network whose critic sees the actions of the other agents, as a part of the privileged state."""

    num_agents: int
    num_actions: int
    network: Model

    def outputs(self, params: PyTree, carry: PyTree, inputs: StepInput, action: Array, seen: Array) -> Any:
        """Return the outputs [T, B], with Q-values given the actions of the other agents.

        Args:
          action: those of lanes, i32[T, B].
          seen: which of them critics of other lanes see, bool[T, B].
        """
        one_hot = jax.nn.one_hot(action, self.num_actions) * seen[..., None]
        others = joint_actions(jnp.zeros_like(one_hot), one_hot, self.num_agents)
        return self.network.unroll(params, carry, inputs._replace(obs=with_others(inputs.obs, others)))[1]


def with_others(obs: PyTree, others: Array) -> dict[str, PyTree]:
    """Return the observation with the actions of other agents in its privileged state."""
    entries = as_entries(obs)
    state = (entries[PRIVILEGED_KEY], others) if PRIVILEGED_KEY in entries else others
    return {**entries, PRIVILEGED_KEY: state}


def seen_space(space: spaces.Space, size: int) -> spaces.Dict:
    """Return the space of such observations, with ``size`` numbers for the actions."""
    entries, actions = entries_of(space), spaces.Box(0.0, 1.0, (size,), np.float32)
    state = spaces.Tuple((entries[PRIVILEGED_KEY], actions)) if PRIVILEGED_KEY in entries else actions
    return spaces.Dict({**entries, PRIVILEGED_KEY: state})


def network(observation_space: spaces.Space, action_space: Any, **arguments: Any) -> Model:
    """Build an actor-critic whose critic sees the privileged state, and has a value for each action."""
    if given := [name for name in ("critic", "num_values", "shared") if name in arguments]:
        raise ValueError(f"model: {', '.join(given)} cannot be set with counterfactual=True, whose critic sees joint actions")
    return actor_critic(
        observation_space, action_space, **{**arguments, "critic": "privileged", "num_values": int(action_space.n)}
    )


def without_others(model: Model, size: int) -> Model:
    """Return the model for observations without the actions of others. Its values use zeros for them; its policy does not depend
    on them."""

    def filled(inputs: StepInput) -> StepInput:
        return inputs._replace(obs=with_others(inputs.obs, jnp.zeros((*inputs.is_first.shape, size))))

    def of_filled(function: Any) -> Any:
        return lambda params, carry, inputs, key=None: function(params, carry, filled(inputs), key=key)

    init = lambda key, inputs: model.init(key, filled(inputs))  # noqa: E731
    return model._replace(init=init, apply=of_filled(model.apply), unroll=of_filled(model.unroll))


def taken_actions(rollout: Rollout, policy: Categorical, num_agents: int) -> tuple[Array, Array]:
    """Return the actions of lanes at all inputs, i32[T + 1, B], and which of them others see, bool[T + 1, B].

    These are the actions of agents that act. Where none of a team does, after its last row, they are draws of the agents that did
    not terminate, and so are those after the rollout.
    """
    acts = jnp.concatenate([rollout.valid, jnp.zeros_like(rollout.valid[:1])])
    before = jnp.concatenate([jnp.zeros_like(acts[:1]), rollout.valid & ~rollout.terminated])
    none_acts = ~together(acts, num_agents).any(-1).repeat(num_agents, -1)
    drawn = draws(rollout, policy)
    action = jnp.concatenate([rollout.action, drawn[-1:]])
    return jnp.where(none_acts, drawn, action), acts | (before & none_acts)


def draws(rollout: Rollout, policy: Categorical) -> Array:
    """Return actions drawn at all inputs, i32[T + 1, B]. They depend on the version of the policy, the lane and the row."""
    keys = fold_each(jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(rollout.version), rollout.env_id)
    rows = jax.vmap(lambda key: jax.random.split(key, len(policy.logits)), out_axes=1)(keys)
    return jax.vmap(lambda logits, keys: sample_each(Categorical(logits), keys))(policy.logits, rows)


def counterfactual_loss(
    critic: JointCritic, model: Model, config: Any, hp: Any, params: PyTree, rollout: Rollout, axis_name: str | None
) -> tuple[Array, dict[str, Array]]:
    """−E[log π(u | o)·A] + vf_coef·½ E[(G − Q(s, u))²] − ent_coef·E[H], with A = Q(s, u) − Σ_a π(a | o)·Q(s, (a, u⁻)), where u⁻
    are the actions of the others (Foerster et al. 2018, eq. 4). The λ-returns G bootstrap from the Q-values of the actions taken
    next, without a target network. A and G are constants of the gradient."""
    policy: Any = model.unroll(params, rollout.carry, rollout.inputs)[1].policy
    action, seen = taken_actions(rollout, policy, critic.num_agents)
    output = critic.outputs(params, rollout.carry, rollout.inputs, action, seen)
    chosen = select_actions(output.value, action)
    values, taken, probabilities = jax.lax.stop_gradient((output.value, chosen, jax.nn.softmax(output.policy.logits)))
    returns = lambda_returns(rollout.reward, *discounts(rollout, hp.gamma, hp.gae_lambda), taken[1:], rollout.valid)
    advantage = with_intrinsic(rollout, (taken - (probabilities * values).sum(-1))[:-1])
    return policy_gradient_loss(output._replace(value=chosen), rollout, advantage, returns, rollout.valid, hp, axis_name)


def prepare_counterfactual(
    builder: Any, env: EnvLike, config: type, hyperparams: type, keywords: Mapping[str, Any]
) -> tuple[PreparedAgent[Any], Any]:
    """Call ``prepare`` for Discrete actions of several agents; return the prepared agent and its loss.

    Raises:
      ValueError: the environment has one agent.
    """
    settings, parts = split_keywords(builder, keywords)
    bound = resolve_env(env)
    if not bound.num_agents:
        raise ValueError(f"counterfactual=True is for environments of several agents, and {bound.name} has one: leave it out")
    if not isinstance(bound.action_space, spaces.Discrete):
        raise ValueError(f"counterfactual=True needs Discrete actions, and {bound.name} has {bound.action_space}: leave it out")
    number = int(bound.action_space.n)
    size = bound.num_agents * number
    kinds, extended = (spaces.Discrete,), partial(seen_space, size=size)
    prepared: PreparedAgent[Any] = prepare(
        builder, env, config, hyperparams, settings, kinds, actor_critic, parts, memory=True, seen_space=extended
    )
    check_actor_critic(parts["model"], prepared.output, bound.action_space, num_values=number)
    critic = JointCritic(bound.num_agents, number, prepared.setup.model)
    setup = dataclasses.replace(prepared.setup, model=without_others(prepared.setup.model, size))
    return dataclasses.replace(prepared, setup=setup), partial(counterfactual_loss, critic)
