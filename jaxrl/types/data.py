"""Rows of experience: what policies see, and what learners learn from."""

from __future__ import annotations

from typing import NamedTuple

from jaxrl.types.arrays import Array, PyTree


class StepInput(NamedTuple):
    """Input of a policy, the same for every model. Unbatched, [B] or [T, B]."""

    obs: PyTree
    prev_action: Array
    """The action that the environment executed on the previous row; zeros on the first row of an episode."""
    prev_reward: Array
    """f32, raw; 0 on the first row of an episode."""
    is_first: Array
    """bool: the first row of an episode, where a recurrent model restarts from its initial carry."""


class Rollout(NamedTuple):
    """Input of a learner: time-major, T rows of B environments."""

    inputs: StepInput
    """[T + 1, B]. ``inputs[t + 1].obs`` is always the observation that row t reached, so V(next of t) = V(inputs[t + 1])."""
    action: Array
    """[T, B, ...], as executed by the environment."""
    reward: Array
    """f32[T, B], raw."""
    terminated: Array
    """bool[T, B]"""
    truncated: Array
    """bool[T, B]"""
    extras: PyTree
    """[T, B, ...]: values that ``Algorithm.act`` recorded for the update (log_prob, value, ...)."""
    valid: Array
    """bool[T, B]. False on the reset row after an end and on padding: such rows are left out of losses and statistics."""
    carry: PyTree
    """[B, ...]: the recurrent state before row 0, as used when acting; () when memoryless."""
    env_id: Array
    """i32[B]: ids of the environments."""
    version: Array
    """i32[B]: ``Policy.version`` of the parameters that acted."""
    info: dict[str, Array] = {}
    """[T, B, ...]: ``info`` of the environments, for every row; undefined where ``valid`` is False."""


class Episodes(NamedTuple):
    """Input of a learner whose algorithm has ``members``: whole episodes of a population, B in all, and no rows.

    Each member played the same number of episodes. They are ordered by member, and those of a member by episode.
    """

    episodic_return: Array
    """f32[B]: sum of raw rewards; with several agents, the mean over them."""
    episodic_length: Array
    """i32[B]: number of rows; with several agents, the most."""
    finished: Array
    """bool[B]: False for an episode stopped at a limit; its return up to there counts."""
    member: Array
    """i32[B]: numbers of the members, over all devices."""
    version: Array
    """i32[B]: ``Policy.version`` of the population that they belong to."""
    moments: PyTree = ()
    """[B · A, ...]: moments of the observations of each lane, to update ``Policy.statistics``; () without statistics."""
    info: dict[str, Array] = {}
    """[B, ...]: further numbers of the episodes."""
