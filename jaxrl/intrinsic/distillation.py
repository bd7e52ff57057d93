"""Random network distillation (Burda et al. 2018, arXiv:1810.12894): what a network cannot foretell yet is new.

Reads top to bottom: settings, state, builder, bonus, learning.
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
from jaxrl.models.encoders import hidden_layers
from jaxrl.models.initialisers import dense
from jaxrl.models.settings import make_network
from jaxrl.models.torso import Network, Torso
from jaxrl.models.wrap import from_linen
from jaxrl.optimize import clipped_adam, packing
from jaxrl.optimize.gradients import descend, valid_mean
from jaxrl.optimize.minibatches import explained_variance, minibatches
from jaxrl.returns import endless_gae
from jaxrl.rollout.collect import fold_each
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
from jaxrl.settings.validation import Count, LearningRate, NonNegative, Positive, PositiveUnit, Unit, checked, setting_types
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, Key, Model, PyTree, Rollout, StepInput


@dataclasses.dataclass(frozen=True)
class RNDConfig:
    """Settings of ``rnd``. Those that the paper names have its values but for the learning rate, which suits small networks."""

    coef: NonNegative = 0.5
    """Weight of the intrinsic advantages, where those of the environment's rewards have 1; the paper weighs 1 against 2."""
    gamma: Unit = 0.99
    """Discount of the intrinsic return."""
    gae_lambda: Unit = 0.95
    """λ of its advantages."""
    learning_rate: LearningRate = 3e-4
    max_grad_norm: Positive = 0.5
    """Clip the gradient to this global norm."""
    num_epochs: Count = 4
    """Passes over each rollout."""
    num_minibatches: Count = 4
    """Parts of each pass, one gradient step each; must divide num_envs * rollout_length."""
    proportion: PositiveUnit = 1.0
    """Share of the rows that the predictor learns from. With many environments it would learn what is new too soon: the paper
    takes 32 / num_envs."""
    embedding_size: Count = 64
    """What the target maps an observation to."""


class RNDState(NamedTuple):
    """What is learnt, the target that never is, and running statistics."""

    params: dict[str, PyTree]
    """Of the ``predictor``, and of the ``value`` of the intrinsic return."""
    target: PyTree
    opt_state: PyTree
    observations: RunningMoments
    rewards: RewardStatistics


class RND(NamedTuple):
    """What the functions know before anything is traced."""

    spaces: tuple[spaces.Space, spaces.Space]
    predictor: Model
    target: Model
    value: Model
    config: RNDConfig

    @property
    def optimiser(self) -> Any:
        return clipped_adam(self.config)


class DistillationRows(NamedTuple):
    """What is learnt from, [N, ...]."""

    inputs: StepInput
    reached: StepInput
    embedding: Array
    """f32[N, embedding_size]: what the target makes of what was reached."""
    goal: Array
    """The λ-return of the intrinsic reward."""
    valid: Array
    distilled: Array
    """The valid rows that the predictor learns from."""


class Embedding(nn.Module):
    """A torso, hidden layers on top, and a linear one."""

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


def rnd(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    encoder: str = "auto",
    hidden_sizes: Sequence[int] | None = None,
    **settings: Any,
) -> Intrinsic:
    """Random network distillation: the reward is the error of a network that learns to copy a random one.

    A target network f is drawn once and fixed; a predictor f̂ learns its outputs on what the agent sees. The reward of a row is
    the error where the row led, r = mean_k (f̂_k(o) − f_k(o))² of the observation o it reached, normalised by its running mean and
    deviation and clipped to ±5; over the running deviation of the discounted sum of r (section 2.4). Its return goes on where
    episodes end (section 2.3), and has a value of its own; the advantages are A = A_E + coef · A_I.

    Args:
      observation_space: the environment's.
      action_space: the environment's.
      encoder: of the target's network, as for ``jaxrl.models.actor_critic``.
      hidden_sizes: of the target's network; the predictor has two layers more.
      settings: fields of ``RNDConfig``.

    Returns:
      An ``Intrinsic``. For a builder: ``intrinsic=rnd``, or ``intrinsic=functools.partial(rnd, coef=1.0)``.

    Raises:
      TypeError: an unknown setting, or a space that cannot be encoded.
      ValueError: a setting out of its range.
    """
    types = setting_types(RNDConfig)
    for name in settings:
        if name not in types:
            raise TypeError(f"rnd() got an unknown keyword {name!r}.{nearest(name, types)} Allowed: {sorted(types)}.")
    config = RNDConfig(**{name: checked(name, value, types[name]) for name, value in settings.items()})
    network = make_network(
        observation_space,
        "relu",
        encoder=encoder,
        hidden_sizes=hidden_sizes,
        activation=None,
        image_layout="auto",
        channel_multiplier=1,
        convolution="auto",
        embedding_size=None,
        core=None,
        core_size=1,
        use_previous=False,
        layer_norm=False,
        dtype="float32",
    )
    extra_layers = 2 * network.hidden_sizes[-1:]
    predictor, target = (
        from_linen(Embedding(network, action_space, extra, config.embedding_size, 1.0)) for extra in (extra_layers, ())
    )
    value = from_linen(Embedding(network, action_space, (), 1, 0.01))  # rewards are small, so it begins near 0
    networks = RND((observation_space, action_space), predictor, target, value, config)
    return Intrinsic(partial(init, networks), partial(observe, networks), partial(learn, networks))


def init(rnd: RND, key: Key, num_envs: int) -> RNDState:
    example, keys = example_input(*rnd.spaces), jax.random.split(key, 3)
    params = {"predictor": rnd.predictor.init(keys[0], example), "value": rnd.value.init(keys[1], example)}
    observations = init_moments(real_valued(rnd.spaces[0], zeros(rnd.spaces[0])))
    rewards = RewardStatistics(jnp.zeros(num_envs, jnp.float32), init_moments(jnp.zeros(())))
    opt_state = rnd.optimiser.init(packing(clipped_adam, params).pack(params))
    return RNDState(params, rnd.target.init(keys[2], example), opt_state, observations, rewards)


def seen(state: RNDState, inputs: StepInput) -> StepInput:
    """What the networks see: normalised, clipped to ±5, and 0 where it is no number: what a simulation that blew up reached."""

    def clean(x: Array) -> Array:
        return jnp.where(jnp.isnan(x), 0, x) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return inputs._replace(obs=jax.tree.map(clean, normalize(state.observations, inputs.obs, clip=5.0)))


def embeddings(rnd: RND, state: RNDState, reached: StepInput) -> tuple[Array, Array]:
    """What the predictor and the target make of what rows reached, f32[T, B, embedding_size] each."""
    return (
        rnd.predictor.apply(state.params["predictor"], (), reached)[1],
        rnd.target.apply(state.target, (), reached)[1],
    )


def novelty(predicted: Array, embedding: Array) -> Array:
    """f32[...]: the mean square of the error, over the embedding."""
    return ((predicted - embedding) ** 2).mean(-1)


def refreshed(rnd: RND, state: RNDState, rollout: Rollout, bonus: Array, axis_name: str | None) -> RNDState:
    """The statistics with a rollout's valid rows, of which ``bonus`` f32[T, B] is the novelty."""
    discount = jnp.where(rollout.valid, rnd.config.gamma, 1.0)  # the sum goes on over the row of a reset
    rewards = update_reward_statistics(
        state.rewards, jnp.where(rollout.valid, bonus, 0.0), discount, rollout.valid, rollout.env_id, axis_name
    )
    return _observed(state, rollout, axis_name)._replace(rewards=rewards)


def _observed(state: RNDState, rollout: Rollout, axis_name: str | None) -> RNDState:
    obs = jax.tree.map(lambda x: x[:-1], rollout.inputs.obs)
    return state._replace(observations=update_moments(state.observations, obs, rollout.valid, axis_name))


def observe(rnd: RND, state: RNDState, rollout: Rollout, axis_name: str | None) -> RNDState:
    """The statistics, of observations first: the rewards of the warm-up are those that learning begins with."""
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
    """mean_k (f̂_k − f_k)² (Burda et al. 2018, section 2.2) and half the squared error of the value, as means over rows."""
    predicted = rnd.predictor.apply(params["predictor"], (), rows.reached)[1]
    distillation = valid_mean(rows.distilled, axis_name)(novelty(predicted, rows.embedding))
    value_error = 0.5 * (rnd.value.apply(params["value"], (), rows.inputs)[1][..., 0] - rows.goal) ** 2
    value_loss = valid_mean(rows.valid, axis_name)(value_error)
    logged = {"losses/rnd_loss": distillation, "losses/intrinsic_value_loss": value_loss}
    return distillation + value_loss, jax.lax.stop_gradient(logged)


def _descended(
    rnd: RND, state: RNDState, rows: DistillationRows, key: Key, axis_name: str | None
) -> tuple[RNDState, dict[str, Array]]:
    """Epochs of minibatches over rows [T, B]: the state with other parameters, and what the loss logged."""
    config, (pack, unpack), num_envs = rnd.config, packing(clipped_adam, state.params), rows.valid.shape[1]
    rows = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), rows)
    order = minibatches(key, rows.valid.shape[0], num_envs, config.num_epochs, config.num_minibatches, axis_name)

    def minibatch(carry: tuple[PyTree, PyTree], chosen: Array) -> Any:
        part = jax.tree.map(lambda x: x[chosen], rows)
        loss = lambda packed: rnd_loss(rnd, unpack(packed), part, axis_name)  # noqa: E731
        packed, opt_state, metrics = descend(loss, rnd.optimiser, *carry, axis_name)
        del metrics["losses/grad_norm"]  # the rule has one
        return (packed, opt_state), stack(metrics)

    start = (pack(state.params), state.opt_state)
    (packed, opt_state), logged = jax.lax.scan(minibatch, start, order.reshape((-1, order.shape[-1])))
    return state._replace(params=unpack(packed), opt_state=opt_state), unstack(logged)
