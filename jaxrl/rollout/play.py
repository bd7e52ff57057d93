"""Whole episodes on pure environments: each environment plays one episode, and no rows are stored.

``evaluate`` plays episodes of one policy, evolution those of all members of a population.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.metrics import masked_max, masked_mean, masked_min
from jaxrl.rollout.agents import lanes_of, spent_on_reset
from jaxrl.rollout.autoreset import StepOutcome, no_episode
from jaxrl.rollout.collect import TEAM_RETURN, act_in, advance, init_actor
from jaxrl.rollout.running_statistics import EpisodeMoments, RunningMoments, no_rows
from jaxrl.spaces.trees import zeros
from jaxrl.types import ActorState, AgentState, Algorithm, Array, Env, Episodes, Key, Mean, Metrics, Policy, PyTree
from jaxrl.xla.collectives import varying
from jaxrl.xla.fast_random import fold_in, split
from jaxrl.xla.platforms import may_run_on_cpu
from jaxrl.xla.seed_axis import any_seed, more_than

COMPACTION = 4
"""Once at most one in this number of members still plays, the others are left out of the batch."""
FEWEST = 16
"""Smallest batch of members: leaving out more of them costs more than it saves."""

CPU_CHUNK, CHUNK = 2**20, 2**28
"""Numbers of the members that play at the same time, and of their episodes: on a CPU those that stay in its cache from row to
row, elsewhere those that fit in memory. 64 members with two layers of 256 units (17 MB) take 2.9 times as long for a row as
four chunks of them on two cores of an AMD EPYC with 32 MiB of third-level cache."""
OBSERVATIONS = 4
"""Observations of an episode that are in memory at once: before and after a row, and their moments."""


class Evaluation(NamedTuple):
    """Results of one episode per environment, [num_episodes]: raw, undiscounted rewards."""

    episodic_return: Array
    """f32; with several agents, the mean over them"""
    episodic_length: Array
    """i32; with several agents, the longest"""
    finished: Array
    """bool: False for an episode stopped at the step limit; its return up to there counts."""

    def after(self, row: StepOutcome, num_agents: int = 0) -> Evaluation:
        """Return the results of each environment's first episode after one more row, for NumPy or JAX arrays."""
        where = self.finished.__array_namespace__().where
        episode, over = row.of_environments(num_agents)
        return Evaluation(
            where(self.finished, self.episodic_return, episode.episodic_return),
            where(self.finished, self.episodic_length, episode.episodic_length),
            self.finished | over,
        )


class Progress(NamedTuple):
    """Episodes in progress, [E]. Those of several agents are lanes in ``actor``."""

    actor: ActorState
    result: Evaluation
    moments: EpisodeMoments | tuple[()]
    """Moments of the observations of each episode, or of each lane's; () without statistics of observations."""


def start_episodes(
    algorithm: Algorithm, env: Env, key: Key, env_id: Array, env_params: PyTree, observed: RunningMoments | tuple[()] = ()
) -> Progress:
    """Start one episode in each environment, [E]."""
    lane, number = lanes_of(env_id, env.num_agents), env_id.shape[0]
    actor = init_actor(algorithm, env, key, lane, env_params)
    nothing = Evaluation(*no_episode(number, jnp), jnp.zeros(number, bool))
    return Progress(actor, nothing, no_rows(observed, lane.shape[0]) if observed else ())


def play_row(
    algorithm: Algorithm,
    env: Env,
    policy: Policy,
    progress: Progress,
    env_id: Array,
    key: Key,
    env_params: PyTree,
    *,
    explore: bool = False,
) -> Progress:
    """Play one more row of all episodes. An environment whose episode has finished idles."""
    actor, result, moments = progress
    act_key, step_key, reset_key = split(key, 3)
    agents, lane = env.num_agents, lanes_of(env_id, env.num_agents)
    if isinstance(moments, EpisodeMoments):
        moments = moments.plus(actor.input.obs, ~(result.finished.repeat(max(1, agents)) | actor.done))
    carry, action, _ = act_in(algorithm, env, policy, actor, env_params, lane, act_key, explore=explore)
    actor, outcome = advance(env, actor, carry, action, env_params, lane, step_key, reset_key)
    waiting = actor.done & ~spent_on_reset(actor.done, agents)  # for other agents of the same environment
    return Progress(actor._replace(done=waiting), result.after(outcome, agents), moments)


def play_population(algorithm: Algorithm, env: Env, state: AgentState, member: Array, episodes: int, horizon: int) -> Episodes:
    """Play the next generation of a population, one chunk of members after another.

    Args:
      member: numbers of the members, i32[M]: all, or those of this device.
      episodes: E, episodes of each member.
      horizon: number of rows at which episodes are stopped.
    """
    policy, key = algorithm.policy(state.learner), fold_in(state.key, state.iteration)
    goes_on = jnp.array(True) if algorithm.remaining_rows is None else algorithm.remaining_rows(state.learner) > 0
    limit = jnp.where(goes_on, horizon, 0)
    observed = getattr(policy.statistics, "observations", ())

    def play(member: Array) -> Episodes:
        played = play_members(algorithm, env, policy, key, member, episodes, state.env_params, limit, observed)
        # A seed that has stopped is stepped for as long as others play.
        return played._replace(episodic_length=jnp.where(goes_on, played.episodic_length, 0))

    observation = sum(x.size for x in jax.tree.leaves(zeros(env.observation_space)))
    numbers = numbers_of_member(algorithm, policy) + OBSERVATIONS * episodes * max(1, env.num_agents) * observation
    size = chunk_size(len(member), numbers, CPU_CHUNK if may_run_on_cpu() else CHUNK)
    if size == len(member):
        return play(member)
    played = jax.lax.map(play, member.reshape(-1, size))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), played)


def member_axes(algorithm: Algorithm, policy: Policy) -> Policy:
    """Return the axis of each leaf of a member's policy that runs over members; None for those that all members share.

    Shared ones are the leaves that ``Algorithm.members`` passes through: statistics, and the kernels under low-rank noise.
    ``policy`` may be shapes.
    """
    own, shared = _member_and_shared(algorithm, policy)
    return jax.tree.map(lambda x: None if id(x) in shared else 0, own)


def numbers_of_member(algorithm: Algorithm, policy: Policy) -> int:
    """Return how many numbers of a member's policy are not shared by all members."""
    own, shared = _member_and_shared(algorithm, policy)
    return sum(x.size for x in jax.tree.leaves(own) if id(x) not in shared)


def _member_and_shared(algorithm: Algorithm, policy: Policy) -> tuple[Policy, set[int]]:
    """Return a member's policy, traced, and the ids of its leaves that are those of ``policy``."""
    traced: list[Any] = []

    def note(policy: Policy, member: Array) -> Policy:
        assert algorithm.members is not None
        own = algorithm.members(policy, member)
        traced.append((own, {id(x) for x in jax.tree.leaves(policy)}))
        return own

    jax.eval_shape(note, policy, jax.ShapeDtypeStruct((), jnp.int32))
    return traced[0]


def chunk_size(members: int, numbers: int, most: int) -> int:
    """Return the largest divisor of the number of members with at most ``most`` numbers in all; at least 1."""
    return max(n for n in range(1, members + 1) if members % n == 0 and (n == 1 or n * numbers <= most))


def play_members(
    algorithm: Algorithm,
    env: Env,
    policy: Policy,
    key: Key,
    member: Array,
    episodes: int,
    env_params: PyTree,
    limit: Array,
    observed: RunningMoments | tuple[()] = (),
) -> Episodes:
    """Play the same number of episodes with each member of a population.

    Environments draw from (key, number of the episode), which is the same for all members, so their returns differ by their
    parameters alone. Members that have finished are left out of the batch once they are most of it, so a population does not
    take as long as its longest episode.

    Args:
      member: numbers of the members, i32[M].
      episodes: E, episodes of each member.
      env_params: one value for all episodes, or one for each of the E.
      limit: number of rows at which episodes are stopped, i32[].
      observed: statistics of observations, to be updated with ``Episodes.moments``.

    Returns:
      Episodes with B = M · E; with several agents, the moments of M · E · A lanes.
    """
    assert algorithm.members is not None
    population, env_id = algorithm.members, jnp.arange(episodes, dtype=jnp.int32)
    reset_key, key = split(key)

    def play_until(fewer: int, member: Array, progress: Progress, time: Array) -> tuple[Progress, Array]:
        """Play all members [M] until at most ``fewer`` of them have not finished."""

        def play(member: Array, progress: Progress) -> tuple[Progress, Array]:
            own = population(policy, member)

            def goes_on(at: tuple[Progress, Array]) -> Array:
                return more_than(jnp.int32(fewer), (~at[0].result.finished).any()) & any_seed(at[1] < limit)

            def row(at: tuple[Progress, Array]) -> tuple[Progress, Array]:
                progress, time = at
                row_key = fold_in(key, time)
                return play_row(algorithm, env, own, progress, env_id, row_key, env_params), time + 1

            return jax.lax.while_loop(goes_on, row, (progress, time))

        return jax.vmap(play, out_axes=(0, None))(member, progress)

    def finish(member: Array, progress: Progress, time: Array) -> tuple[Evaluation, PyTree]:
        fewer = len(member) // COMPACTION if len(member) >= COMPACTION * FEWEST else 0
        progress, time = play_until(fewer, member, progress, time)
        results = progress.result, progress.moments
        if not fewer:
            return results
        left = jnp.argsort(progress.result.finished.all(-1), stable=True)[:fewer]
        rest = finish(member[left], jax.tree.map(lambda x: x[left], progress), time)
        return jax.tree.map(lambda whole, part: whole.at[left].set(part), results, rest)

    start = start_episodes(algorithm, env, reset_key, env_id, env_params, observed)
    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(member), *x.shape)), start)
    start = varying(start, *jax.sharding.get_abstract_mesh().manual_axes)
    results = finish(member, start, jnp.zeros((), jnp.int32))
    (returns, lengths, finished), moments = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)
    of_each = jnp.repeat(member, episodes)
    return Episodes(returns, lengths, finished, of_each, jnp.broadcast_to(policy.version, of_each.shape), moments)


def population_metrics(episodes: Episodes, allotted: int, num_agents: int = 0) -> Metrics:
    """Compute metrics of the episodes of a population. Returns that are NaN are left out, as are episodes of no rows.

    With several agents, returns are means over them, and ``charts/team_return`` is that of their sums.

    Args:
      allotted: number of rows that the episodes may take; ``charts/valid_rows`` is the share of them that was played.
    """
    returns = episodes.episodic_return
    known = (episodes.episodic_length > 0) & ~jnp.isnan(returns)
    team = {TEAM_RETURN: masked_mean(num_agents * returns, known)} if num_agents else {}
    return {
        "charts/episodic_return": masked_mean(returns, known),
        "charts/episodic_length": masked_mean(episodes.episodic_length, known),
        "charts/episodic_return_min": masked_min(returns, known),
        "charts/episodic_return_max": masked_max(returns, known),
        "charts/valid_rows": Mean(episodes.episodic_length.sum(dtype=jnp.int32), jnp.full((), allotted, jnp.int32)),
        **team,
    }
