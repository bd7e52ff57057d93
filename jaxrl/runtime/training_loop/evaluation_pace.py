"""Number and length of evaluations on environments with slow steps.

They depend on counts of rows, never on time, so a resumed run evaluates at the same iterations as an uninterrupted one, and its
logs are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.envs.checks.space_problems import abstract
from jaxrl.envs.checks.validate import abstract_key
from jaxrl.runtime.logs.records import EVALUATION_EPISODES, EVALUATION_LONGEST, Record
from jaxrl.types import Env, HostEnv
from jaxrl.xla.private_jax import NotInThisJax, jaxprs_in_params

SHARE = 0.25
"""Rows that evaluations may step per row of training, if steps are slow."""
EPISODES = 16
"""Maximum episodes of an evaluation, if steps are slow. The last evaluation of a run has all episodes."""
SLOW = 50_000
"""Minimum numbers computed by a step in JAX that counts as slow, since stepping may then take longer than learning. CartPole's
computes 100, MinAtar's up to 15,000, and those of brax and Craftax 70,000 to 2,000,000."""


def is_slow(env: Env | HostEnv) -> bool:
    """Return True if stepping may take longer than learning: on the host, or if a step computes at least ``SLOW`` numbers."""
    return isinstance(env, HostEnv) or numbers_per_step(env) >= SLOW


def numbers_per_step(env: Env) -> int:
    """Return how many numbers a step of one environment computes, including intermediate ones. The step is traced, not run."""
    env_state, _ = jax.eval_shape(env.reset, abstract_key(), env.params)
    action = abstract(env.action_space, env.num_agents)
    program = jax.make_jaxpr(env.step)(abstract_key(), env_state, action, env.params).jaxpr
    try:
        return _numbers(program)
    except NotInThisJax:  # treat it as fast
        return 0


def _numbers(program: Any) -> int:
    total = 0
    for equation in program.eqns:
        inner = [_numbers(part) for part in jaxprs_in_params(equation.params)]
        if inner:
            numbers = max(inner) if equation.primitive.name == "cond" else sum(inner)
            total += numbers * equation.params.get("length", 1)  # length of a scan
        else:
            total += sum(math.prod(getattr(x.aval, "shape", ())) for x in equation.outvars)
    return total


def episodes_within(share: float, at_most: int, rows: int, records: Sequence[Record], begin: int = 0) -> int:
    """Return the number of episodes of the evaluation that is due; 0 if evaluations would exceed their share of rows.

    The episodes are assumed to be as long as those of the previous evaluation.

    Args:
      share: rows that evaluations may step per row of training.
      at_most: the run's ``eval_episodes``.
      rows: rows per seed so far.
      records: records of the run so far.
      begin: rows before training. The evaluation there is always made, and does not count.
    """
    episodes = min(at_most, EPISODES)
    evaluated = [r for r in records if np.any(r.get(EVALUATION_EPISODES, 0)) and np.isfinite(r[EVALUATION_LONGEST]).any()]
    longest = [float(np.nanmean(record[EVALUATION_LONGEST])) for record in evaluated]  # without seeds that diverged
    if not longest:
        return episodes
    each = [float(np.mean(record[EVALUATION_EPISODES])) * length for record, length in zip(evaluated, longest, strict=True)]
    spent = sum(took for record, took in zip(evaluated, each, strict=True) if record["rows"] > begin)
    return episodes if spent + episodes * longest[-1] <= share * rows else 0
