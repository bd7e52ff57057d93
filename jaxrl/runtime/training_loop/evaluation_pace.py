"""How often a run evaluates on environments whose steps are slow, and by how many episodes: by counting rows, never by a clock.

So a run that was killed and resumed evaluates where it would have, and its logs are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.envs.checks.validate import abstract, abstract_key
from jaxrl.runtime.logs.records import EVALUATION_EPISODES, EVALUATION_LONGEST, Record
from jaxrl.types import Env, HostEnv

SHARE = 0.25
"""Rows that evaluations may step per row of training, where steps are slow."""
EPISODES = 16
"""At most, of an evaluation there; the last one of a run has all."""
SLOW = 50_000
"""From so many numbers on that a step in JAX computes, stepping may take the time, and not learning: CartPole's computes 100 and
MinAtar's up to 15,000, those of brax and Craftax 70,000 to 2,000,000."""


def is_slow(env: Env | HostEnv) -> bool:
    """Whether an environment's steps may take more time than learning from them: outside of JAX, or by what they compute."""
    return isinstance(env, HostEnv) or numbers_per_step(env) >= SLOW


def numbers_per_step(env: Env) -> int:
    """How many numbers one step of one environment computes, intermediate ones included; traced, not run."""
    env_state, _ = jax.eval_shape(env.reset, abstract_key(), env.params)
    return _numbers(jax.make_jaxpr(env.step)(abstract_key(), env_state, abstract(env.action_space), env.params).jaxpr)


def _numbers(program: Any) -> int:
    total = 0
    for equation in program.eqns:
        inner = [_numbers(part) for value in equation.params.values() for part in _programs(value)]
        if inner:
            one = max(inner) if equation.primitive.name == "cond" else sum(inner)
            total += one * equation.params.get("length", 1)  # of a scan
        else:
            total += sum(math.prod(getattr(x.aval, "shape", ())) for x in equation.outvars)
    return total


def _programs(value: Any) -> Iterator[Any]:
    """The programs in a parameter of an equation."""
    if hasattr(value, "eqns"):
        yield value
    elif hasattr(getattr(value, "jaxpr", None), "eqns"):
        yield value.jaxpr
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _programs(each)


def episodes_within(share: float, at_most: int, rows: int, records: Sequence[Record], begin: int = 0) -> int:
    """Episodes of the evaluation that is due after so many rows of training; 0 where it would take more than the share.

    It is taken to last as long as the one before.

    Args:
      at_most: what the run was asked for.
      rows: per seed.
      records: of the run so far.
      begin: rows before training; the evaluation there, which is always made, does not count.
    """
    episodes = min(at_most, EPISODES)
    evaluated = [record for record in records if np.any(record.get(EVALUATION_EPISODES, 0))]
    longest = [float(np.mean(record[EVALUATION_LONGEST])) for record in evaluated]
    if not longest:
        return episodes
    each = [float(np.mean(record[EVALUATION_EPISODES])) * length for record, length in zip(evaluated, longest, strict=True)]
    spent = sum(took for record, took in zip(evaluated, each, strict=True) if record["rows"] > begin)
    return episodes if spent + episodes * longest[-1] <= share * rows else 0
