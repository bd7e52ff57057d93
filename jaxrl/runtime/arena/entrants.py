"""Players of an arena: trained policies, random play, and play that looks one move ahead."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.algorithms.common.planning.tree_search import PUCT, Node, search
from jaxrl.distributions import Categorical
from jaxrl.models.heads import masked
from jaxrl.rollout.collect import simulator_of
from jaxrl.rollout.env_batches import fold_each
from jaxrl.runtime.arena.names import LOOK_AHEAD, MCTS, RANDOM, UNTRAINED
from jaxrl.runtime.evaluation.load_policy import load_policy
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.spaces.action_masks import MASK_KEY
from jaxrl.spaces.entries import player_sign, turn_sign
from jaxrl.spaces.trees import space_text
from jaxrl.types import Agent, AgentState, Algorithm, Array, Env, Key, Policy, PyTree, StepInput


class Entrant(NamedTuple):
    """A player of an arena. It sees all positions of its games, those of its opponent's moves too."""

    act: Callable[[Policy, PyTree, StepInput, PyTree, Array, Key], tuple[PyTree, Array]]
    """(policy, carry, inputs, env_state, game, key) -> (carry, action), [B]. ``game`` numbers the games, i32[B]."""
    policy: Policy | tuple[()] = ()
    initial_carry: Callable[[int], PyTree] = lambda batch_size: ()


def random_action(env: Env, inputs: StepInput, game: Array, key: Key) -> Array:
    """Return allowed actions that are equally likely, i32[B]."""
    return jax.vmap(partial(random_one, env))(inputs.obs, fold_each(key, game))


def random_one(env: Env, obs: PyTree, key: Key) -> Array:
    """Return an allowed action, i32[], each equally likely."""
    return Categorical(equal_logits(env, obs)).sample(key)


def equal_logits(env: Env, obs: PyTree) -> Array:
    """Return logits, f32[n], with which all allowed actions are equally likely."""
    return masked(jnp.zeros(int(env.action_space.n)), obs)  # type: ignore[attr-defined]


def random_entrant(env: Env) -> Entrant:
    def act(policy: Any, carry: PyTree, inputs: StepInput, env_state: PyTree, game: Array, key: Key) -> tuple[PyTree, Array]:
        return carry, random_action(env, inputs, game, key)

    return Entrant(act)


def look_ahead_entrant(env: Env, plies: int) -> Entrant:
    """Return a player that takes a move that wins at once, or else any. With two plies it takes none that lets the other win at
    once, and prefers one after which it moves again and wins."""
    number = int(env.action_space.n)  # type: ignore[attr-defined]

    def outcomes(env_state: PyTree, key: Key) -> Any:
        return jax.vmap(lambda action: env.step(key, env_state, action, env.params))(jnp.arange(number))

    def value(env_state: PyTree, obs: PyTree, key: Key) -> Array:
        """Return the value of each action one move on, f32[n]."""
        mask = obs[MASK_KEY].astype(bool)
        after, reached = outcomes(env_state, key)
        if plies == 1:
            return jnp.where(mask, reached.reward, -jnp.inf)
        replies = jax.vmap(lambda state: outcomes(state, key)[1].reward)(after)
        win = jnp.maximum(jnp.where(reached.obs[MASK_KEY].astype(bool), replies, -jnp.inf).max(-1), 0.0)
        later = turn_sign(obs, reached.obs) * win
        return jnp.where(mask, jnp.where(reached.terminated, reached.reward, later), -jnp.inf)

    def act(policy: Any, carry: PyTree, inputs: StepInput, env_state: PyTree, game: Array, key: Key) -> tuple[PyTree, Array]:
        values = jax.vmap(value)(env_state, inputs.obs, fold_each(key, game))
        best = {**inputs.obs, MASK_KEY: values >= values.max(-1, keepdims=True)}
        return carry, random_action(env, inputs._replace(obs=best), game, key)

    return Entrant(act)


def search_entrant(env: Env, simulations: int) -> Entrant:
    """Return a player that searches without a network: priors are equal, and a position is worth the outcome of one random game
    from it (Kocsis & Szepesvári 2006; Coulom 2006)."""

    def node(state: PyTree, obs: PyTree, over: Array, key: Key) -> Node:
        return Node(equal_logits(env, obs), random_outcome(env, state, obs, over, key))

    def expand(key: Key, position: PyTree, action: Array) -> Any:
        step_key, key = jax.random.split(key)
        state, sign = position
        state, reached = env.step(step_key, state, action, env.params)
        after = jnp.float32(player_sign(reached.obs))
        discount = jnp.where(reached.terminated, 0.0, sign * after)
        return (state, after), reached.reward, discount, node(state, reached.obs, reached.terminated, key)

    def best(state: PyTree, obs: PyTree, key: Key) -> Array:
        root_key, key = jax.random.split(key)
        root, position = node(state, obs, jnp.zeros((), bool), root_key), (state, jnp.float32(player_sign(obs)))
        return search(PUCT(), expand, root, position, obs, key, simulations, explore=False).action

    def act(policy: Any, carry: PyTree, inputs: StepInput, env_state: PyTree, game: Array, key: Key) -> tuple[PyTree, Array]:
        return carry, jax.vmap(best)(env_state, inputs.obs, fold_each(key, game))

    return Entrant(act)


def random_outcome(env: Env, state: PyTree, obs: PyTree, over: Array, key: Key) -> Array:
    """Return what the player to move gains in one game of random moves, f32[]; 0 if the game is over."""

    def goes_on(at: Any) -> Array:
        return ~at[2]

    def move(at: Any) -> Any:
        state, obs, _, gain, time = at
        choose_key, step_key = jax.random.split(jax.random.fold_in(key, time))
        action = random_one(env, obs, choose_key)
        after, reached = env.step(step_key, state, action, env.params)
        return (
            after,
            reached.obs,
            reached.terminated | reached.truncated,
            gain + mover * player_sign(obs) * reached.reward,
            time + 1,
        )

    mover = jnp.float32(player_sign(obs))
    return jax.lax.while_loop(goes_on, move, (state, obs, over, jnp.float32(0), jnp.int32(0)))[3]


def policy_entrant(env: Env, algorithm: Algorithm, policy: Policy, *, explore: bool, search: bool = True) -> Entrant:
    """Return a player that acts as an algorithm's policy does, greedily unless ``explore``. One that plans searches the game,
    unless ``search`` is False."""

    def act(policy: Policy, carry: PyTree, inputs: StepInput, env_state: PyTree, game: Array, key: Key) -> tuple[PyTree, Array]:
        planning: Any = {"simulator": simulator_of(env, env_state, env.params)} if algorithm.plans and search else {}
        carry, action, _ = algorithm.act(policy, carry, inputs, game, key, explore=explore, **planning)
        return carry, action

    return Entrant(act, policy, algorithm.initial_carry)


def simulations_of(player: str) -> int:
    """Return the number in ``mcts:100``."""
    number = player.removeprefix(MCTS)
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"player {player!r} must end with its number of simulations, as in '{MCTS}100'")
    return int(number)


def load_player(env: Env, run: str | os.PathLike[str], *, network_alone: bool = False, **keywords: Any) -> LoadedPolicy:
    """Load the policy of a run, which searches the game if its algorithm plans, unless ``network_alone``.

    It is the last one, because returns of self-play do not tell which policy is best.

    Args:
      keywords: as for ``load_policy``.
    """
    policy = load_policy(run, **{"which": "last", **keywords})
    policy.search = env if policy.algorithm.plans and not network_alone else None
    return policy


def entrant_of(env: Env, name: str, player: Any) -> Entrant:
    """Return the entrant that a player's description stands for.

    Args:
      player: a name in ``UNTRAINED``, the folder of a run, a policy of ``load_policy``, or a pair of an agent and its state.

    Raises:
      TypeError, ValueError: the description is unknown, or the policy was trained on other spaces.
      FileNotFoundError: the run does not exist.
    """
    if isinstance(player, str) and player == RANDOM:
        return random_entrant(env)
    if isinstance(player, str) and player in LOOK_AHEAD:
        return look_ahead_entrant(env, LOOK_AHEAD[player])
    if isinstance(player, str) and player.startswith(MCTS):
        return search_entrant(env, simulations_of(player))
    if isinstance(player, str | os.PathLike):
        player = load_player(env, player)
    if isinstance(player, LoadedPolicy):
        spaces = (player.observation_space, player.action_space)
        searches = player.search is not None
        entrant = policy_entrant(env, player.algorithm, player.policy, explore=player.explore, search=searches)
    elif isinstance(player, tuple) and len(player) == 2 and isinstance(player[0], Agent) and isinstance(player[1], AgentState):
        agent, state = player
        spaces = (agent.env.observation_space, agent.env.action_space)
        entrant = policy_entrant(env, agent.algorithm, agent.algorithm.policy(state.learner), explore=False)
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
