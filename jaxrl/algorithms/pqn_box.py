"""PQN for Box actions: a deterministic policy climbs the values of a critic (Lillicrap et al. 2016) that learns from λ-returns of
rollouts (Gallici et al. 2024), without replay or target networks. ``make_pqn`` builds it.

Reads top to bottom: acting, targets, loss, update, builder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair
from jaxrl.algorithms.common.off_policy_networks import check_actions_of, resolve_critic, seen_by_critic
from jaxrl.algorithms.common.q_learning import epsilon, policy
from jaxrl.builder.networks import is_own
from jaxrl.builder.prepare import PreparedAgent
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.exploration.action_noise import normal_each
from jaxrl.exploration.epsilon_greedy import spread_epsilon
from jaxrl.models import action_value, deterministic_policy
from jaxrl.optimize.gradients import valid_means
from jaxrl.optimize.learner import Learner
from jaxrl.optimize.minibatches import explained_variance, minibatches, over_epochs
from jaxrl.returns import discounts, lambda_returns
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import example_input, zero_invalid
from jaxrl.types import Agent, Array, Key, Metrics, Model, Policy, PyTree, Rollout, StepInput


@dataclass(frozen=True, kw_only=True)
class PQNBoxSetup(AlgorithmSetup[Any]):
    """Setup of PQN for Box actions; ``model`` is the policy."""

    critic: Model

    def value(self, params: PyTree, inputs: StepInput, action: Array) -> Array:
        """Return Q(s, a) f32[N] of actions f32[N, d] in [−1, 1]."""
        return self.critic.apply(params, (), inputs._replace(obs=(inputs.obs, action)))[1]

    def action(self, params: PyTree, inputs: StepInput) -> Array:
        """Return the policy's actions, f32[N, d] in [−1, 1]."""
        return self.model.apply(params, (), inputs)[1]


class PQNBoxRows(NamedTuple):
    """Training rows, [N]."""

    inputs: StepInput
    action: Array
    """In [−1, 1]."""
    target: Array
    """The λ-return."""
    valid: Array
    carry: PyTree = ()


def init(setup: PQNBoxSetup, key: Key, hyperparams: Any) -> Learner:
    actor_key, critic_key, learner_key = jax.random.split(key, 3)
    inputs = example_input(setup.observation_space, setup.action_space)
    seen = example_input(seen_by_critic(setup.observation_space, setup.action_space), setup.action_space)
    params = ActorCriticPair(setup.model.init(actor_key, inputs), setup.critic.init(critic_key, seen))
    opt_state = ActorCriticPair(*(setup.descent(hyperparams, part).init(part) for part in params))
    return Learner(params, opt_state, hyperparams, (), learner_key, jnp.zeros((), jnp.int32))


def act(
    setup: PQNBoxSetup, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Return the policy's action; with ``explore`` plus Gaussian noise with the standard deviation ε."""
    action = setup.action(policy.params.actor, inputs)
    if explore:
        spread = setup.config.exploration
        scale = spread_epsilon(policy.exploration, spread.exponent if spread else 0.0, env_id, setup.config.num_envs)
        noise = normal_each(fold_each(key, env_id), action.shape[-1])
        action = jnp.clip(action + jnp.reshape(scale, (-1, 1)) * noise, -1.0, 1.0)
    return carry, setup.to_environment(action), {"raw_action": action}


def targets(setup: PQNBoxSetup, params: ActorCriticPair, rollout: Rollout, hp: Any) -> tuple[PQNBoxRows, Array]:
    """Compute λ-returns G_t = r_t + γ·(λ·G_{t+1} + (1 − λ)·Q(s_{t+1}, π(s_{t+1}))).

    Returns:
      The rollout's rows with their returns, and the errors G_t − Q(s_t, a_t) of these.
    """
    flat = lambda tree: jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), tree)  # noqa: E731
    following = flat(jax.tree.map(lambda x: x[1:], rollout.inputs))
    reached = setup.value(params.critic, following, setup.action(params.actor, following)).reshape(rollout.valid.shape)
    returns = lambda_returns(rollout.reward, *discounts(rollout, hp.gamma, hp.q_lambda), reached, rollout.valid)
    valid, inputs = rollout.valid.reshape(-1), flat(jax.tree.map(lambda x: x[:-1], rollout.inputs))
    rows = zero_invalid((inputs, flat(rollout.extras["raw_action"]), flat(returns)), valid)
    inputs, action, target = rows
    return PQNBoxRows(inputs, action, target, valid), target - setup.value(params.critic, inputs, action)


def critic_loss(setup: PQNBoxSetup, critic: PyTree, batch: PQNBoxRows) -> tuple[Array, dict[str, Array]]:
    """Mean of ½·(G − Q(s, a))² over the valid rows of all devices; G is a constant."""
    value = setup.value(critic, batch.inputs, batch.action)
    loss = 0.5 * (value - batch.target) ** 2
    return valid_means(loss, {"losses/td_loss": loss, "losses/q_values": value}, batch.valid, setup.axis_name)


def actor_loss(setup: PQNBoxSetup, actor: PyTree, critic: PyTree, batch: PQNBoxRows) -> tuple[Array, dict[str, Array]]:
    """Mean of −Q(s, π(s)) over the valid rows of all devices (Lillicrap et al. 2016, eq. 6)."""
    loss = -setup.value(critic, batch.inputs, setup.action(actor, batch.inputs))
    return valid_means(loss, {"losses/actor_loss": loss}, batch.valid, setup.axis_name)


def update(setup: PQNBoxSetup, learner: Learner, rollout: Rollout) -> tuple[Learner, Metrics]:
    """Take one gradient step of the critic, then one of the policy, for each minibatch. Each is clipped by itself."""
    config, hp = setup.config, setup.current(learner)
    descents = ActorCriticPair(*(setup.descent(hp, params) for params in learner.params))
    batch, error = targets(setup, learner.params, rollout, hp)
    sizes = (len(batch.valid), rollout.env_id.size, config.num_epochs, config.num_minibatches)
    order = minibatches(setup.update_key(learner), *sizes, setup.axis_name)

    def minibatch(progress: ActorCriticPair, part: PQNBoxRows) -> tuple[ActorCriticPair, dict[str, Array]]:
        critic, metrics = descents.critic.step(lambda params: critic_loss(setup, params, part), progress.critic)
        found = descents.critic.params(critic)
        actor, logged = descents.actor.step(lambda params: actor_loss(setup, params, found, part), progress.actor)
        logged["losses/actor_grad_norm"] = logged.pop("losses/grad_norm")
        return ActorCriticPair(actor, critic), metrics | logged

    start = (each.start(*both) for each, *both in zip(descents, learner.params, learner.opt_state, strict=True))
    progress, metrics = over_epochs(minibatch, ActorCriticPair(*start), batch, order)
    learnt = [each.finish(part) for each, part in zip(descents, progress, strict=True)]
    fields = {name: ActorCriticPair(*(part[name] for part in learnt)) for name in learnt[0]}
    explained = explained_variance(batch.target, error, batch.valid, setup.axis_name)
    metrics |= {"charts/epsilon": epsilon(setup, learner), "losses/explained_variance": explained}
    return setup.updated(learner, hp, metrics, **fields)


def bind_box(prepared: PreparedAgent[Any], model: Any) -> Agent:
    """Return the agent of an environment with Box actions.

    Args:
      model: the builder's argument; its arguments are those of the critic as well.

    Raises:
      ValueError: a Box without bounds on all sides.
    """
    env, space = prepared.env, prepared.env.action_space
    if not (isinstance(space, spaces.Box) and space.is_bounded() and np.issubdtype(space.dtype, np.floating)):
        raise ValueError(
            f"{env.name} has {space}, but PQN needs Discrete actions or a Box of real numbers with bounds on all sides: give the "
            "environment bounds, or use make_ppo"
        )
    if (asked := prepared.setup.config.decomposition) is not None:
        raise ValueError(f"decomposition={asked} is for Discrete actions, and {env.name} has {space}: leave it out")
    check_actions_of(model, prepared.output, space)
    # A spec names the network with its arguments.
    own = isinstance(model, partial) and is_own(model, deterministic_policy)
    arguments = model.keywords if own else model if isinstance(model, Mapping) else {}
    critic = resolve_critic(None, partial(action_value, **{"layer_norm": True, **arguments}), env)
    setup = PQNBoxSetup(**vars(prepared.setup), critic=critic)
    return prepared.bind(setup.algorithm(init=init, policy=policy, act=act, update=update))
