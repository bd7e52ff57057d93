"""Shared parts of algorithms with a deterministic policy (DDPG, TD3): acting with noise, and the losses. The target is a function
that the algorithm defines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.critics import delayed_updates
from jaxrl.algorithms.common.critics.delayed_updates import Losses, init
from jaxrl.algorithms.common.critics.distributional import Atoms
from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup, Ensemble, action_values
from jaxrl.algorithms.common.critics.updates import CriticBatch
from jaxrl.algorithms.common.gumbel_softmax import GumbelSoftmax
from jaxrl.algorithms.common.off_policy import OffPolicyConfig, prepare_off_policy, sample_discrete
from jaxrl.algorithms.common.off_policy_networks import check_actions_of, check_policy
from jaxrl.algorithms.common.teams.joint_actions import check_joint_actions, next_others
from jaxrl.builder.sequence_config import RecurrentConfig
from jaxrl.distributions import Categorical
from jaxrl.exploration.action_noise import normal_each, uniform_of
from jaxrl.exploration.options import OU, Gaussian
from jaxrl.models import deterministic_policy
from jaxrl.optimize.learner import TargetLearner
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.outputs import outputs_of
from jaxrl.rollout.running_statistics import normalize_inputs
from jaxrl.settings.validation import added, refuse_schedules, refuse_unused
from jaxrl.types import Agent, Algorithm, Array, EnvLike, Key, Metrics, Policy, PyTree, StepInput


@dataclass(frozen=True)
class DeterministicConfig(OffPolicyConfig, RecurrentConfig):
    """Structural settings of an algorithm that explores by adding noise to its actions."""

    critics: Ensemble | Atoms = Ensemble()  # type: ignore[assignment] # wider than the family's
    """The critics, and how targets use them."""
    noise: Gaussian | OU = Gaussian()
    """Noise on actions, for exploration."""
    normalize_observations: bool = added(True)
    """With ``data``: normalise observations by their mean and standard deviation in the data."""
    joint_actions: bool = added(False)
    """With several agents: critics take the actions of all agents (Lowe et al. 2017). Give them the state as well, by
    ``critic={"privileged": True}``. ``batch_size`` then counts rows of environments, each with those of all agents."""

    @property
    def draws_environments(self) -> bool:
        return self.joint_actions

    @property
    def reads_next_action(self) -> bool:
        return self.joint_actions  # and with it, whether there is one

    def critic_actions(self, space: spaces.Space, num_agents: int) -> spaces.Space:
        discrete = isinstance(space, spaces.Discrete)
        size = int(space.n) if discrete else math.prod(space.shape or ())  # type: ignore[attr-defined]
        number = num_agents if self.joint_actions else 1
        if not discrete and number == 1:
            return space
        return spaces.Box(-1.0, 1.0, (number * size,), np.float32)

    @property
    def only_with_data(self) -> tuple[str, ...]:
        return (*super().only_with_data, "normalize_observations")

    @property
    def hold_noise(self) -> int:
        """Rows of an episode that share one draw of noise."""
        return self.noise.hold if isinstance(self.noise, Gaussian) else 1


class NoiseExploration(NamedTuple):
    """Exploration state of a policy with action noise."""

    at_random: Array
    """bool[]: draw actions uniformly between the bounds. True until the first update, and so during the warm-up."""
    scale: Array
    """f32[]: standard deviation of the noise, for actions in [−1, 1]."""
    theta: Array
    """f32[]: fraction by which an Ornstein–Uhlenbeck process decays at each row."""


# ---------------------------------------------------------------------------------------------------------------------- acting


def policy(setup: ActorCriticSetup[Any], learner: TargetLearner) -> Policy:
    hp = setup.current(learner)
    exploration = NoiseExploration(setup.acts_at_random(learner), hp.exploration_noise, hp.ou_theta)
    return Policy(ActorCriticPair(learner.params.actor, ()), learner.statistics, exploration, learner.version)


def act(
    setup: ActorCriticSetup[Any], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Return actions with noise, clipped to the bounds.

    With ``OU``, which excludes memory, the carry is the state of an Ornstein–Uhlenbeck process, f32[B, d], which starts at 0 in
    each episode: x ← x − θ·x + σ·ε (Lillicrap et al. 2016, with a step of 1). Discrete actions are drawn from the policy's
    distribution.
    """
    memory, inputs = carry if setup.config.has_memory else (), normalize_inputs(policy.statistics, inputs)
    memory, action = setup.model.apply(policy.params.actor, memory, inputs)
    carry = memory if setup.config.has_memory else carry
    at_random, scale, theta = policy.exploration
    if isinstance(action, Categorical):
        chosen = sample_discrete(action, fold_each(key, env_id), at_random) if explore else action.mode()
        return carry, setup.to_environment(chosen), {}
    if not explore:
        return carry, setup.to_environment(action), {}
    drawn = normal_each(fold_each(key, env_id), action.shape[-1])
    noise = scale * drawn
    if isinstance(setup.config.noise, OU):
        noise += (1.0 - theta) * jnp.where(inputs.is_first[:, None], 0.0, carry)
        carry = noise
    return carry, setup.to_environment(jnp.where(at_random, uniform_of(drawn), action + noise)), {}


# ---------------------------------------------------------------------------------------------------------------------- update


def policy_actions(setup: ActorCriticSetup[Any], actor: PyTree, inputs: StepInput, key: Key) -> tuple[Array, Array | float]:
    """Return the policy's actions as critics take them, f32[N, d], and the penalty of its outputs, f32[N] or 0."""
    output = outputs_of(setup.model, actor, inputs, of_policy=True)
    if not isinstance(output, Categorical):
        return output, 0.0
    relaxation: GumbelSoftmax = setup.config.relaxation
    return relaxation.sample(output, key), relaxation.penalty(output)


def critic_loss(
    setup: ActorCriticSetup[Any], critic: PyTree, target: Array, update: CriticBatch
) -> tuple[Array, dict[str, Array]]:
    """Sum over critics of ½·(Q(s, a) − y)² (Lillicrap et al. 2016, eq. 4), or with ``Atoms`` of the cross-entropy."""
    outputs = action_values(setup, critic, update.batch.inputs, update.batch.action, jax.random.fold_in(update.key, 1))
    return setup.config.critics.loss(outputs, target, update.batch, setup.axis_name)


def actor_loss(
    setup: ActorCriticSetup[Any], actor: PyTree, critic: PyTree, update: CriticBatch, hp: Any = None
) -> tuple[Array, dict[str, Array]]:
    """−E[Q(s, π(s))] with the first critic. Its gradient is the deterministic policy gradient (Silver et al. 2014, eq. 9;
    Lillicrap et al. 2016, eq. 6; Fujimoto et al. 2018, algorithm 1). With ``joint_actions`` those of other agents are the drawn
    ones (Lowe et al. 2017, eq. 6). With ``cloning``, the loss of that option."""
    batch, first = update.batch, jax.tree.map(lambda x: x[:1], critic)
    action, penalty = policy_actions(setup, actor, batch.inputs, jax.random.fold_in(update.key, 3))
    outputs = action_values(setup, first, batch.inputs, action, jax.random.fold_in(update.key, 2), others=batch.action)
    value = setup.config.critics.values(outputs)[0]
    mean, cloning = setup.valid_mean(batch.valid), getattr(setup.config, "cloning", None)
    if cloning is None:
        loss = -mean(value - penalty)
        return loss, {"losses/actor_loss": loss}
    loss, distance = cloning.loss(hp, value, action - batch.action, mean, setup.axis_name)
    return loss, {"losses/actor_loss": loss, "losses/cloning_loss": distance}


TargetFn = Callable[[ActorCriticSetup[Any], Any, ActorCriticPair, CriticBatch], Array]
"""(setup, hyperparams, target parameters, batch) -> y f32[N]."""


def learn(target: TargetFn, setup: ActorCriticSetup[Any], learner: TargetLearner) -> tuple[TargetLearner, Metrics]:
    hp = setup.current(learner)
    losses = Losses(
        target=lambda actor, targets, update: target(setup, hp, targets, update),
        critic=partial(critic_loss, setup),
        actor=lambda actor, critic, targets, update: actor_loss(setup, actor, critic, update, hp),
    )
    return delayed_updates.learn(setup, learner, hp, losses)


def target_value(
    setup: ActorCriticSetup[Any], targets: ActorCriticPair, action: Array, update: CriticBatch, penalty: Array | float = 0.0
) -> Array:
    """y = r + γ·(1 − terminated)·(Q⁻(s′, action) − penalty), f32[N], where Q⁻ is the minimum over the ``chosen`` target critics;
    with ``Atoms`` the distribution of that return, f32[N, num_atoms].

    Args:
      penalty: f32[N], or 0.
    """
    batch = update.batch
    others = next_others(batch, action, setup.joint_agents) if setup.joint_agents else None
    outputs = action_values(setup, targets.critic, batch.next_inputs, action, jax.random.fold_in(update.key, 0), others)
    return setup.config.critics.target(batch, outputs, update.chosen, penalty)


# -------------------------------------------------------------------------------------------------------------------- builders


def make_algorithm(target: TargetFn, setup: ActorCriticSetup[Any]) -> Algorithm:
    """Return the ``Algorithm`` with these targets, bound to spaces but not to an environment."""
    transferable_fields = ("params", "target_params", "statistics")
    algorithm = setup.algorithm(
        init=init, policy=policy, act=act, learn=partial(learn, target), transferable_fields=transferable_fields
    )
    if isinstance(setup.config.noise, Gaussian):
        return algorithm
    assert isinstance(setup.action_space, spaces.Box)
    size = math.prod(setup.action_space.shape)
    return algorithm._replace(initial_carry=lambda batch_size: jnp.zeros((batch_size, size)))


def build(
    builder: Callable[..., Agent],
    env: EnvLike,
    config: type[DeterministicConfig],
    hyperparams: type,
    keywords: Mapping[str, Any],
    target: TargetFn,
    kinds: tuple[type[spaces.Space], ...] = (spaces.Box,),
) -> Agent:
    """Build the agent for a builder's arguments. Parameters and errors are those of ``prepare_off_policy``.

    Args:
      target: computes the critics' targets.
    """
    network: Any = {"network": deterministic_policy, "memory": True}
    prepared, setup = prepare_off_policy(builder, env, config, hyperparams, keywords, kinds, **network)
    settings, space = setup.config, setup.action_space
    if settings.has_memory and isinstance(settings.critics, Atoms):
        raise ValueError("critics=Atoms() needs networks without memory: leave it out, or the core")
    if settings.has_memory and isinstance(settings.noise, OU):
        raise ValueError("noise=OU() has a carry, and so has the model: use Gaussian(hold=…), or a model without a core")
    if isinstance(space, spaces.Box):
        check_actions_of(keywords.get("model"), prepared.output, space)
        if (relaxation := getattr(settings, "relaxation", None)) not in (None, GumbelSoftmax()):
            raise ValueError(f"relaxation={relaxation} has no effect with {space}: leave it out")
    else:
        if settings.has_memory:
            raise ValueError(f"{builder.__name__} needs networks without memory with {space}: leave the core out")
        check_policy(keywords.get("model"), prepared.output, space)
        noise = ("exploration_noise", "ou_theta")
        refuse_unused(prepared.hyperparams, hyperparams(), noise, f"with {space}")
        refuse_schedules(setup.schedules, noise, f"with {space}")
        if settings.noise != type(settings)().noise:
            raise ValueError(f"noise={settings.noise} has no effect with {space}, whose actions are drawn: leave it out")
    if settings.joint_actions:
        check_joint_actions(setup, keywords.get("replay"))
    return prepared.bind(make_algorithm(target, setup))
