"""From what a model says to what an environment takes: bounds and exploration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.masks import some_allowed
from jaxrl.spaces import bounds
from jaxrl.threefry import unrolled
from jaxrl.types import Algorithm, Array, Key, Policy, PyTree, StepInput


def to_environment(action_space: spaces.Space, action: Array) -> Array:
    """An action in model units as the environment takes it: a bounded Box maps [−1, 1], clipped, onto its bounds.

    A Box without bounds on both sides is taken as it is, clipped to the bounds that it has. Actions of a Box and of a
    MultiDiscrete space come flat, [..., d], and get the shape of the space; discrete ones are the same in both units.
    """
    if isinstance(action_space, spaces.Discrete):
        return action
    assert isinstance(action_space, spaces.Box | spaces.MultiDiscrete)
    action = action.reshape(action.shape[:-1] + action_space.shape)
    if isinstance(action_space, spaces.MultiDiscrete):
        return action
    low, high = bounds(action_space)
    return within(action, low, high) if action_space.is_bounded() else jnp.clip(action, low, high)


def from_environment(action_space: spaces.Box, action: Array) -> Array:
    """The inverse of ``to_environment`` for a bounded Box: f32[..., d] in [−1, 1], flat. A component without width is 0."""
    low, high = (bound.ravel() for bound in bounds(action_space))
    flat = action.reshape((*action.shape[: action.ndim - len(action_space.shape)], low.size))
    centre, half = 0.5 * low + 0.5 * high, 0.5 * high - 0.5 * low  # each by itself: the width may be larger than any float32
    return jnp.clip((flat - centre) / np.where(half > 0, half, 1.0), -1.0, 1.0)


def uniform_of(noise: Array) -> Array:
    """Numbers uniform in [−1, 1] of standard normal ones, by their distribution function."""
    return jax.lax.erf(noise * math.sqrt(0.5))


def normal_each(keys: Key, size: int) -> Array:
    """f32[B, size]: standard normal noise, drawn for row b with ``keys[b]``."""
    return jax.vmap(lambda key: jax.random.normal(key, (size,)))(unrolled(keys))


def within(unit: Array, low: Array | np.ndarray, high: Array | np.ndarray) -> Array:
    """[−1, 1], clipped, onto [low, high], all ends included."""
    share = 0.5 * (jnp.clip(unit, -1.0, 1.0) + 1.0)
    return jnp.clip(low * (1.0 - share) + high * share, low, high)  # after the mapping as well, which rounds


def falling_epsilon(hyperparams: Any, rows: Array) -> Array:
    """f32[]: from ``epsilon_start`` to ``epsilon_end``, linearly, over the first ``exploration_steps`` rows."""
    share = jnp.clip(rows / hyperparams.exploration_steps, 0.0, 1.0)
    return hyperparams.epsilon_start + (hyperparams.epsilon_end - hyperparams.epsilon_start) * share


def spread_epsilon(epsilon: Array, exponent: float, env_id: Array, num_envs: int) -> Array:
    """``epsilon`` to the power of 1 + ``exponent``·i / (num_envs − 1) for environment i, f32[B] (Horgan et al. 2018, section
    4.1); as it is, f32[], with an exponent of 0."""
    if not exponent:
        return epsilon
    return jnp.power(epsilon, 1.0 + exponent * env_id / (num_envs - 1))


def epsilon_greedy(q_values: Array, mask: Array | None, epsilon: Array, keys: Key) -> Array:
    """Greedy actions, but with probability ``epsilon``, f32[] or f32[B], uniform over the allowed ones; ``keys[b]`` decides
    for row b."""
    logits = jnp.zeros_like(q_values) if mask is None else jnp.where(some_allowed(mask.astype(bool)), 0.0, -jnp.inf)

    def choose(greedy: Array, logits: Array, epsilon: Array, key: Key) -> Array:
        explore_key, action_key = jax.random.split(key)
        uniform = jax.random.categorical(action_key, logits)
        return jnp.where(jax.random.uniform(explore_key) < epsilon, uniform, greedy).astype(jnp.int32)

    rates = 0 if jnp.ndim(epsilon) else None
    return jax.vmap(choose, (0, 0, rates, 0))(jnp.argmax(q_values, -1), logits, epsilon, unrolled(keys))


# ---------------------------------------------------------------------------------------------------- noise over several rows


class HeldNoise(NamedTuple):
    """The carry of an algorithm whose noise is held, [B]."""

    model: PyTree
    """The model's own."""
    key: Array
    """u32[B, words]: of the key that the environment's present noise is drawn with."""
    age: Array
    """i32[B]: rows that were acted with it."""


def model_carry(carry: PyTree) -> PyTree:
    """What a model has of an algorithm's carry."""
    return carry.model if isinstance(carry, HeldNoise) else carry


def hold_noise(algorithm: Algorithm, action_space: spaces.Space, num_rows: int) -> Algorithm:
    """An algorithm that draws its noise for ``num_rows`` rows of an environment at once, and anew where an episode starts.

    What is held is the key of the draw: a Gaussian's action is mean + deviation · noise, with the mean and the deviation of each
    row and the same noise. Each action by itself is then distributed as the policy says, so that its ``log_prob``, which a
    learner computes again, stays what it was; only draws of neighbouring rows are no longer independent of each other (Raffin et
    al. 2022 and Hollenstein et al. 2024 learn from correlated noise in the same way). Greedy acting is as without it.

    Raises:
      ValueError: actions that are no real numbers, for which the same draw says nothing of nearness.
    """
    if num_rows == 1:
        return algorithm
    if not isinstance(action_space, spaces.Box):
        raise ValueError(f"hold_noise={num_rows} is for the noise of a Box action space, and not of {action_space}: leave it out")

    def initial_carry(batch_size: int) -> HeldNoise:
        words = jax.random.key_data(jax.random.key(0))
        return HeldNoise(
            algorithm.initial_carry(batch_size),
            jnp.zeros((batch_size, *words.shape), words.dtype),
            jnp.zeros(batch_size, jnp.int32),
        )

    def act(
        policy: Policy, carry: HeldNoise, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
    ) -> tuple[HeldNoise, Array, PyTree]:
        if not explore:
            after, action, extras = algorithm.act(policy, carry.model, inputs, env_id, key, explore=False)
            return carry._replace(model=after), action, extras
        anew = inputs.is_first | (carry.age >= num_rows)
        words = jnp.where(anew[:, None], jax.random.key_data(key), carry.key)
        keys = jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))
        after, action, extras = algorithm.act(policy, carry.model, inputs, env_id, keys, explore=True)
        return HeldNoise(after, words, jnp.where(anew, 0, carry.age) + 1), action, extras

    def learning(function: Any) -> Any:
        """One that takes a rollout, of which it is to see the model's carry."""
        return function and (lambda state, rollout: function(state, rollout._replace(carry=rollout.carry.model)))

    taking = {name: learning(getattr(algorithm, name)) for name in ("update", "observe", "gradients")}
    return algorithm._replace(act=act, initial_carry=initial_carry, **taking)
