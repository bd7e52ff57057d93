"""Cache of compiled programs for the next call with the same agent. It is small, since programs take memory and mappings."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax

from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.system.compiling import CompiledCall
from jaxrl.training import evaluate_pure
from jaxrl.types import Agent, Key, PyTree

KEPT = 8
"""Programs kept of each kind; the least recently used one is evicted, and its memory is freed."""


class SameAgent:
    """Cache key: equal for agents with the identical algorithm and environment objects, which need not be hashable."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def __hash__(self) -> int:
        return hash((id(self.agent.algorithm), id(self.agent.env)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SameAgent):
            return NotImplemented
        return self.agent.algorithm is other.agent.algorithm and self.agent.env is other.agent.env


@lru_cache(KEPT)
def evaluation_program(same: SameAgent, num_episodes: int, explore: bool, max_steps: int | None) -> Callable[..., Evaluation]:
    """Return ``evaluate_pure`` as a jitted function of (policy or state, key, env_params)."""

    @jax.jit
    def evaluate(policy: Any, key: Key, env_params: PyTree) -> Evaluation:
        options: dict[str, Any] = {"explore": explore, "env_params": env_params, "max_steps": max_steps}
        return evaluate_pure(same.agent, policy, key, num_episodes, **options)

    return evaluate


@lru_cache(KEPT)
def acting_program(same: SameAgent, explore: bool) -> Callable[..., Any]:
    """Return ``Algorithm.act``, jitted."""
    return CompiledCall(jax.jit(partial(same.agent.algorithm.act, explore=explore)))
