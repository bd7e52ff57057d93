"""Noise for continuous actions, optionally held for several steps."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.types import Algorithm, Array, Key, Policy, PyTree, StepInput
from jaxrl.xla import fast_random


def uniform_of(noise: Array) -> Array:
    """Map standard normal noise to uniform noise in [−1, 1] by its distribution function."""
    return jax.lax.erf(noise * math.sqrt(0.5))


def standard_normal(key: Key, shape: tuple[int, ...]) -> Array:
    """Draw standard normal noise, f32[*shape]."""
    return fast_random.normal(key, shape)


def uniform(key: Key, shape: tuple[int, ...]) -> Array:
    """Draw uniform noise in [−1, 1), f32[*shape]."""
    return fast_random.uniform(key, shape, minval=-1.0)


def normal_each(keys: Key, size: int) -> Array:
    """Draw standard normal noise, f32[B, size], for row b with ``keys[b]``."""
    return jax.vmap(lambda key: standard_normal(key, (size,)))(keys)


class HeldNoise(NamedTuple):
    """Carry of an algorithm with held noise, [B]."""

    model: PyTree
    """Carry of the model."""
    key: Array
    """Data of the key of each environment's current noise, u32[B, words]."""
    age: Array
    """Number of rows acted with that key, i32[B]."""


def hold_noise(algorithm: Algorithm, action_space: spaces.Space, num_rows: int) -> Algorithm:
    """Hold an algorithm's exploration noise for ``num_rows`` rows of an environment, and redraw it where an episode starts.

    The key of the draw is held. A Gaussian action is then mean + deviation · noise, with the mean and deviation of each row and
    the same noise. Each single action still has the policy's distribution, so the ``log_prob`` that a learner recomputes is
    unchanged; only the draws of neighbouring rows are no longer independent. Raffin et al. 2022 and Hollenstein et al. 2024 learn
    from correlated noise in the same way. Greedy actions are unchanged.

    Raises:
      ValueError: the action space is not a Box. Discrete actions drawn with the same key need not be similar.
    """
    if num_rows == 1:
        return algorithm
    if not isinstance(action_space, spaces.Box):
        raise ValueError(f"hold_noise={num_rows} needs a Box action space, but the action space is {action_space}: leave it out")

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
        """Pass ``function`` rollouts with the model's carry."""
        return function and (lambda state, rollout: function(state, rollout._replace(carry=rollout.carry.model)))

    taking = {name: learning(getattr(algorithm, name)) for name in ("update", "observe", "gradients")}
    return algorithm._replace(act=act, initial_carry=initial_carry, **taking)
