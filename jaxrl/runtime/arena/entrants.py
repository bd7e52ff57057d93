"""Who plays in an arena: trained policies, random play, and play that looks one move ahead."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.rollout.collect import fold_each
from jaxrl.runtime.arena.names import LOOK_AHEAD, RANDOM, UNTRAINED
from jaxrl.runtime.evaluation.load_policy import load_policy
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.trees import space_text
from jaxrl.types import Agent, AgentState, Array, Env, Key, Policy, PyTree, StepInput


class Entrant(NamedTuple):
    """A player of an arena. It sees all positions of its games, those of its opponent's moves too."""

    name: str
    act: Callable[[Policy, PyTree, StepInput, PyTree, Array, Key], tuple[PyTree, Array]]
    """(policy, carry, inputs, env_state, game, key) -> (carry, action), [B]. ``game`` numbers the games, i32[B]."""
    policy: Policy | tuple[()] = ()
    initial_carry: Callable[[int], PyTree] = lambda batch_size: ()


def random_action(env: Env, inputs: StepInput, game: Array, key: Key) -> Array:
    """Return allowed actions that are equally likely, i32[B]."""
    number = int(env.action_space.n)  # type: ignore[attr-defined]
    draw = jax.vmap(lambda key: jax.random.permutation(key, number))(fold_each(key, game))
    mask = inputs.obs[MASK_KEY].astype(bool) if MASK_KEY in inputs.obs else jnp.ones_like(draw, bool)
    mask |= ~mask.any(-1, keepdims=True)
    return jnp.argmax(jnp.where(mask, draw, -1), -1).astype(jnp.int32)


def random_entrant(env: Env) -> Entrant:
    def act(policy: Any, carry: PyTree, inputs: StepInput, env_state: PyTree, game: Array, key: Key) -> tuple[PyTree, Array]:
        return carry, random_action(env, inputs, game, key)

    return Entrant(RANDOM, act)


def look_ahead_entrant(env: Env, plies: int) -> Entrant:
    """Return a player that takes a move that wins at once, or else any; with two plies none that lets the other win at once."""
    number = int(env.action_space.n)  # type: ignore[attr-defined]

    def outcomes(env_state: PyTree, key: Key) -> Any:
        return jax.vmap(lambda action: env.step(key, env_state, action, env.params))(jnp.arange(number))

    def value(env_state: PyTree, mask: Array, key: Key) -> Array:
        """Return the value of each action one move on, f32[n]."""
        after, reached = outcomes(env_state, key)
        if plies == 1:
            return jnp.where(mask, reached.reward, -jnp.inf)
        replies = jax.vmap(lambda state: outcomes(state, key)[1].reward)(after)
        threat = jnp.where(reached.obs[MASK_KEY].astype(bool), replies, -jnp.inf).max(-1)
        return jnp.where(mask, jnp.where(reached.terminated, reached.reward, -jnp.maximum(threat, 0.0)), -jnp.inf)

    def act(policy: Any, carry: PyTree, inputs: StepInput, env_state: PyTree, game: Array, key: Key) -> tuple[PyTree, Array]:
        mask = inputs.obs[MASK_KEY].astype(bool)
        values = jax.vmap(value)(env_state, mask, fold_each(key, game))
        best = {**inputs.obs, MASK_KEY: values >= values.max(-1, keepdims=True)}
        return carry, random_action(env, inputs._replace(obs=best), game, key)

    return Entrant(f"{plies} plies", act)


def policy_entrant(name: str, algorithm: Any, policy: Policy, *, explore: bool = False) -> Entrant:
    """Return a player that acts as an algorithm's policy does, greedily unless ``explore``."""

    def act(policy: Policy, carry: PyTree, inputs: StepInput, env_state: PyTree, game: Array, key: Key) -> tuple[PyTree, Array]:
        carry, action, _ = algorithm.act(policy, carry, inputs, game, key, explore=explore)
        return carry, action

    return Entrant(name, act, policy, algorithm.initial_carry)


def entrant_of(env: Env, name: str, player: Any) -> Entrant:
    """Return the entrant that a player's description stands for.

    Args:
      player: a name in ``UNTRAINED``, the folder of a run, a policy of ``load_policy``, or a pair of an agent and its state.

    Raises:
      TypeError, ValueError: it is none of these, or it was trained on other spaces.
      FileNotFoundError: there is no such run.
    """
    if isinstance(player, str) and player == RANDOM:
        return random_entrant(env)._replace(name=name)
    if isinstance(player, str) and player in LOOK_AHEAD:
        return look_ahead_entrant(env, LOOK_AHEAD[player])._replace(name=name)
    if isinstance(player, str | os.PathLike):
        player = load_policy(player)
    if isinstance(player, LoadedPolicy):
        spaces = (player.observation_space, player.action_space)
        entrant = policy_entrant(name, player.algorithm, player.policy, explore=player.explore)
    elif isinstance(player, tuple) and len(player) == 2 and isinstance(player[0], Agent) and isinstance(player[1], AgentState):
        agent, state = player
        spaces = (agent.env.observation_space, agent.env.action_space)
        entrant = policy_entrant(name, agent.algorithm, agent.algorithm.policy(state.learner))
    else:
        raise TypeError(
            f"player {name!r} is {player!r}: use {', '.join(map(repr, UNTRAINED))}, the folder of a run, a policy of "
            "jaxrl.load_policy, or a pair of an agent and a state of one seed"
        )
    for kind, trained, here in zip(("observation", "action"), spaces, (env.observation_space, env.action_space), strict=True):
        texts = [space_text(space, bounds=False) for space in (trained, here)]
        if texts[0] != texts[1]:
            raise ValueError(f"player {name!r} was trained with {kind}s {texts[0]}, and those of {env.name} are {texts[1]}")
    return entrant
