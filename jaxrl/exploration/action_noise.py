"""Noise on continuous actions, held for several steps where asked."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.types import Algorithm, Array, Key, Policy, PyTree, StepInput
from jaxrl.xla.fast_random import unrolled


def uniform_of(noise: Array) -> Array:
    """Numbers uniform in [−1, 1] of standard normal ones, by their distribution function."""
    return jax.lax.erf(noise * math.sqrt(0.5))


def normal_each(keys: Key, size: int) -> Array:
    """f32[B, size]: standard normal noise, drawn for row b with ``keys[b]``."""
    return jax.vmap(lambda key: jax.random.normal(key, (size,)))(unrolled(keys))


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
