"""Cut rollouts of stragglers short once enough workers have finished: DD-PPO (Wijmans et al. 2020, section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import numpy as np

from jaxrl.runtime.samplers.rollout_buffer import RolloutBuffer
from jaxrl.runtime.samplers.sampler import ACTED, CAME, INPUTS, HostSampler
from jaxrl.types import Agent, Key, Mean, Metrics, Policy, PyTree

CUT_ROWS = "charts/cut_rows"
"""Log key: share of a rollout's rows that are padding, if workers may be cut short."""

LEAST = 0.25
"""Share of its rows that every worker collects, as in the authors' code (habitat-baselines, SHORT_ROLLOUT_THRESHOLD)."""


def enough(sync_fraction: float, num_workers: int) -> int:
    """Return how many workers must finish a rollout before the others are cut short: at least that fraction of them."""
    return max(1, math.ceil(sync_fraction * num_workers - 1e-9))  # 0.55 · 20 is a little more than 11


def cut_rows(rows: Sequence[int], num_envs: Sequence[int], num_seeds: int, rollout_length: int) -> Metrics:
    """Return ``CUT_ROWS`` of a rollout, [num_seeds], from the rows collected and the number of environments of each worker."""
    cut = sum((rollout_length - collected) * envs for collected, envs in zip(rows, num_envs, strict=True))
    share = Mean(np.full(num_seeds, cut, np.float32), np.full(num_seeds, rollout_length * sum(num_envs), np.int32))  # type: ignore[arg-type]
    return {CUT_ROWS: share}


class CutSampler(HostSampler):
    """A sampler of one group whose rollouts may end early.

    The rest of a rollout is padding: invalid rows with zero reward that end no episode; their inputs repeat the ones after the
    last real row. That row therefore bootstraps from the value of these inputs, as at a truncation, and no padding enters a loss
    or a statistic. Environments, episodes and recurrent carries continue unchanged in the next rollout.
    """

    def __init__(self, agent: Agent, seeds: Sequence[int], first_id: int, num_envs: int, is_due: Callable[[], bool]) -> None:
        """``is_due``, whether the rollout may end early, is called after each row once it has the minimum length."""
        super().__init__(agent, seeds, first_id, num_envs)
        self.is_due, self.least = is_due, math.ceil(LEAST * self.num_rows)
        self.collected = self.num_rows
        """Rows of the last rollout that are not padding."""

    def fill(
        self, buffer: RolloutBuffer, policy: Policy, key: Key, first: int = 0, on_row: Callable[[], object] = lambda: None
    ) -> PyTree:
        (group,), keys, first_carry, end = self.groups, self.row_keys(key), self._carry(), first
        buffer.write(INPUTS, group.row(first), group.next_input, more_rows=1)
        while end < self.num_rows and not (end - first >= self.least and self.is_due()):
            group.begin(self.act, buffer, end, policy, keys)
            group.finish(buffer, end)
            end += 1
            on_row()
        self.collected = end
        group.next_input = jax.tree.map(np.array, buffer.read(INPUTS, group.row(end)))
        for t in range(end, self.num_rows):
            buffer.write(INPUTS, group.row(t + 1), group.next_input)
            for name in (ACTED, CAME):
                buffer.blank(name, group.row(t))
        return first_carry
