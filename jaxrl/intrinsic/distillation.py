"""Random network distillation (Burda et al. 2018, arXiv:1810.12894): prediction error as a measure of novelty.

Reads top to bottom: settings, state, builder, novelty, learning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.intrinsic.part import Intrinsic
from jaxrl.metrics import stack, unstack
from jaxrl.models.config import NetworkConfig
from jaxrl.models.encoders import hidden_layers
from jaxrl.models.initialisers import dense
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.optimize import clipped_adam
from jaxrl.optimize.descent import Descent, Progress, descent
from jaxrl.optimize.gradients import valid_mean
from jaxrl.optimize.minibatches import explained_variance, minibatches
from jaxrl.returns import endless_gae
from jaxrl.rollout.env_batches import fold_each
from jaxrl.rollout.inputs import example_input
from jaxrl.rollout.running_statistics import (
    EPSILON,
    RewardStatistics,
    RunningMoments,
    init_moments,
    normalize,
    real_valued,
    update_moments,
    update_reward_statistics,
)
from jaxrl.settings.aliases import nearest
from jaxrl.settings.hyperparams import LearningRate
from jaxrl.settings.loadable import component
from jaxrl.settings.validation import Count, NonNegative, Positive, PositiveUnit, Unit, checked, setting_types
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, Key, Model, PyTree, Rollout, StepInput


@dataclasses.dataclass(frozen=True)
class RNDConfig:
    """Settings of ``rnd``. Defaults are the paper's values where it gives them, except the learning rate, which suits small
    networks."""

    coef: NonNegative = 0.5
    """Weight of the intrinsic advantages, relative to 1 for the environment's; the paper uses 1 and 2."""
    gamma: Unit = 0.99
    """Discount of the intrinsic return."""
    gae_lambda: Unit = 0.95
    """λ of the intrinsic advantages."""
    learning_rate: LearningRate = 3e-4
    max_grad_norm: Positive = 0.5
    """Clip the gradient to this global norm."""
    num_epochs: Count = 4
    """Passes over each rollout."""
    num_minibatches: Count = 4
    """Minibatches per pass, one gradient step each; must divide num_envs * rollout_length."""
    proportion: PositiveUnit = 1.0
    """Fraction of the rows that train the predictor. With many environments and all rows it would learn too fast; the paper uses
    32 / num_envs."""
    embedding_size: Count = 64
    """Number of outputs of the target network."""


class RNDState(NamedTuple):
    """Parameters, the fixed target network, and running statistics."""

    params: dict[str, PyTree]
    """Parameters of the ``predictor`` and of the ``value`` of the intrinsic return."""
    target: PyTree
    opt_state: PyTree
    observations: RunningMoments
    rewards: RewardStatistics


class RND(NamedTuple):
    """Static setup of the functions."""

    spaces: tuple[spaces.Space, spaces.Space]
    predictor: Model
    target: Model
    value: Model
    config: RNDConfig

    def descent(self, params: PyTree, axis_name: str | None = None) -> Descent:
        return descent(clipped_adam, self.config, params, axis_name)


class DistillationRows(NamedTuple):
    """Training rows, [N, ...]."""

    inputs: StepInput
    reached: StepInput
    embedding: Array
    """f32[N, embedding_size]: outputs of the target network for the observations reached."""
    goal: Array
    """The λ-return of the intrinsic reward."""
    valid: Array
    distilled: Array
    """bool[N]: valid rows that train the predictor."""


class Embedding(nn.Module):
    """A torso, further hidden layers and a linear output layer."""

    network: Network
    action_space: spaces.Space
    hidden_sizes: tuple[int, ...]
    size: int
    gain: float

    @nn.compact
    def __call__(self, inputs: StepInput) -> Array:
        x = Torso(self.network, self.action_space, name="torso")(inputs)
        x = hidden_layers(x, self.hidden_sizes, self.network.activation, self.network.layer_norm, self.network.dtype)
        return dense(self.size, self.gain, "out")(x)


@component("intrinsic", home="jaxrl.intrinsic")
def rnd(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    encoder: str = "auto",
    hidden_sizes: Sequence[int] | None = None,
    **settings: Any,
) -> Intrinsic:
    """Random network distillation: the reward is the error of a network that learns to copy a random network.

    A target network f has fixed random parameters. A predictor f̂ learns its outputs on the agent's observations. The reward of a
    row is the error on the observation o that the row reached, r = mean_k (f̂_k(o) − f_k(o))², divided by the running standard
    deviation of the discounted sum of r (section 2.4). Observations are normalised with their running mean and standard deviation
    and clipped to ±5. The intrinsic return continues over episode ends (section 2.3) and has a separate value network. The
    advantages are A = A_E + coef · A_I.

    Args:
      observation_space: of the environment.
      action_space: of the environment.
      encoder: encoder of the target network, as for ``jaxrl.models.actor_critic``.
      hidden_sizes: hidden layers of the target network; the predictor has two more.
      settings: fields of ``RNDConfig``.

    Returns:
      An ``Intrinsic``. Pass ``intrinsic=rnd`` to a builder, or with settings ``intrinsic=functools.partial(rnd, coef=1.0)``.

    Raises:
      TypeError: unknown setting, or a space that cannot be encoded.
      ValueError: setting out of range.
    """
    types = setting_types(RNDConfig)
    for name in settings:
        if name not in types:
            raise TypeError(f"rnd() got an unknown keyword {name!r}.{nearest(name, types)} Allowed: {sorted(types)}.")
    config = RNDConfig(**{name: checked(name, value, types[name]) for name, value in settings.items()})
    network = make_network(observation_space, NetworkConfig(encoder=encoder, hidden_sizes=hidden_sizes))
    extra_layers = 2 * network.hidden_sizes[-1:]
    predictor, target = (
        from_linen(Embedding(network, action_space, extra, config.embedding_size, 1.0)) for extra in (extra_layers, ())
    )
    value = from_linen(Embedding(network, action_space, (), 1, 0.01))  # the initial value is near 0 because rewards are small
    networks = RND((observation_space, action_space), predictor, target, value, config)
    return Intrinsic(partial(init, networks), partial(observe, networks), partial(learn, networks))


def init(rnd: RND, key: Key, num_envs: int) -> RNDState:
    example, keys = example_input(*rnd.spaces), jax.random.split(key, 3)
    params = {"predictor": rnd.predictor.init(keys[0], example), "value": rnd.value.init(keys[1], example)}
    observations = init_moments(real_valued(rnd.spaces[0], zeros(rnd.spaces[0])))
    rewards = RewardStatistics(jnp.zeros(num_envs, jnp.float32), init_moments(jnp.zeros(())))
    opt_state = rnd.descent(params).init(params)
    return RNDState(params, rnd.target.init(keys[2], example), opt_state, observations, rewards)


def seen(state: RNDState, inputs: StepInput) -> StepInput:
    """Normalise the networks' inputs and clip them to ±5. NaN, which a diverged simulation gives, becomes 0."""

    def clean(x: Array) -> Array:
        return jnp.where(jnp.isnan(x), 0, x) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return inputs._replace(obs=jax.tree.map(clean, normalize(state.observations, inputs.obs, clip=5.0)))


def embeddings(rnd: RND, state: RNDState, reached: StepInput) -> tuple[Array, Array]:
    """Return the outputs of predictor and target for the observations reached, f32[T, B, embedding_size] each."""
    return rnd.predictor.apply(state.params["predictor"], (), reached)[1], rnd.target.apply(state.target, (), reached)[1]


def novelty(predicted: Array, embedding: Array) -> Array:
    """Return the mean squared error over the embedding, f32[...]."""
    return ((predicted - embedding) ** 2).mean(-1)


def refreshed(rnd: RND, state: RNDState, rollout: Rollout, bonus: Array, axis_name: str | None) -> RNDState:
    """Update the statistics with a rollout's valid rows.

    Args:
      bonus: novelty of the rows, f32[T, B].
    """
    discount = jnp.where(rollout.valid, rnd.config.gamma, 1.0)  # the sum continues over reset rows
    rewards = update_reward_statistics(
        state.rewards, jnp.where(rollout.valid, bonus, 0.0), discount, rollout.valid, rollout.env_id, axis_name
    )
    return _observed(state, rollout, axis_name)._replace(rewards=rewards)


def _observed(state: RNDState, rollout: Rollout, axis_name: str | None) -> RNDState:
    obs = jax.tree.map(lambda x: x[:-1], rollout.inputs.obs)
    return state._replace(observations=update_moments(state.observations, obs, rollout.valid, axis_name))


def observe(rnd: RND, state: RNDState, rollout: Rollout, axis_name: str | None) -> RNDState:
    """Update the statistics without learning. Observations come first, so that novelty in the warm-up is on the same scale as at
    the first update."""
    reached = seen(_observed(state, rollout, axis_name), jax.tree.map(lambda x: x[1:], rollout.inputs))
    return refreshed(rnd, state, rollout, novelty(*embeddings(rnd, state, reached)), axis_name)


def learn(
    rnd: RND, state: RNDState, rollout: Rollout, key: Key, axis_name: str | None
) -> tuple[Array, RNDState, dict[str, Array]]:
    config, valid = rnd.config, rollout.valid
    inputs = seen(state, rollout.inputs)
    before, reached = (jax.tree.map(lambda x, part=part: x[part], inputs) for part in (slice(-1), slice(1, None)))
    predicted, embedding = embeddings(rnd, state, reached)
    bonus = novelty(predicted, embedding)
    reward = jnp.where(valid, bonus * jax.lax.rsqrt(state.rewards.moments.variance + EPSILON), 0.0)
    values = rnd.value.apply(state.params["value"], (), inputs)[1][..., 0]
    advantage = endless_gae(reward, values, valid, config.gamma, config.gae_lambda)
    goal = advantage + values[:-1]

    order_key, share_key = jax.random.split(key)
    distilled = valid
    if config.proportion < 1:
        draw = lambda key: jax.random.bernoulli(key, config.proportion, valid.shape[:1])  # noqa: E731
        distilled &= jax.vmap(draw, out_axes=1)(fold_each(share_key, rollout.env_id))
    rows = DistillationRows(before, reached, embedding, goal, valid, distilled)
    state, metrics = _descended(rnd, state, rows, order_key, axis_name)
    metrics["losses/intrinsic_explained_variance"] = explained_variance(goal, advantage, valid, axis_name)
    metrics["charts/intrinsic_reward"] = valid_mean(valid, axis_name)(reward)
    return config.coef * advantage, refreshed(rnd, state, rollout, bonus, axis_name), metrics


def rnd_loss(rnd: RND, params: PyTree, rows: DistillationRows, axis_name: str | None) -> tuple[Array, dict[str, Array]]:
    """Sum of mean_k (f̂_k − f_k)² (Burda et al. 2018, section 2.2) and half the value's squared error, as means over rows."""
    predicted = rnd.predictor.apply(params["predictor"], (), rows.reached)[1]
    distillation = valid_mean(rows.distilled, axis_name)(novelty(predicted, rows.embedding))
    value_error = 0.5 * (rnd.value.apply(params["value"], (), rows.inputs)[1][..., 0] - rows.goal) ** 2
    value_loss = valid_mean(rows.valid, axis_name)(value_error)
    logged = {"losses/rnd_loss": distillation, "losses/intrinsic_value_loss": value_loss}
    return distillation + value_loss, jax.lax.stop_gradient(logged)


def _descended(
    rnd: RND, state: RNDState, rows: DistillationRows, key: Key, axis_name: str | None
) -> tuple[RNDState, dict[str, Array]]:
    """Train on epochs of minibatches of rows [T, B]. Return the state with new parameters, and the metrics, stacked."""
    config, descent, num_envs = rnd.config, rnd.descent(state.params, axis_name), rows.valid.shape[1]
    rows = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)
    order = minibatches(key, rows.valid.shape[0], num_envs, config.num_epochs, config.num_minibatches, axis_name)

    def minibatch(progress: Progress, chosen: Array) -> Any:
        part = jax.tree.map(lambda x: x[chosen], rows)
        progress, metrics = descent.step(lambda params: rnd_loss(rnd, params, part, axis_name), progress)
        del metrics["losses/grad_norm"]  # the algorithm logs this key
        return progress, stack(metrics)

    start = descent.start(state.params, state.opt_state)
    progress, logged = jax.lax.scan(minibatch, start, order.reshape((-1, order.shape[-1])))
    return state._replace(**descent.finish(progress)), unstack(logged)
