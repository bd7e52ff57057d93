"""Schedules: the hyperparameters of a member's ancestors, and agents that train with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.builder.spec import build
from jaxrl.pbt.builder import check_member, spec_of
from jaxrl.pbt.population import best_member
from jaxrl.settings.validation import check_count, check_hyperparam
from jaxrl.types import Agent, AgentState, Metrics


class Schedule(NamedTuple):
    """Hyperparameters of the ancestors of a member."""

    every: int
    """Iterations of a generation."""
    values: dict[str, list[float]]
    """Hyperparameter -> value in each generation; the last one holds from then on."""


def schedule_of(population: Agent, state: AgentState, member: int | None = None) -> Schedule:
    """Return the hyperparameters that led to a member, by default the one with the best score.

    Args:
      population: from ``make``.
      state: of one population.

    Raises:
      ValueError: there were more generations than the lineage has room for.
    """
    settings = population.spec.get("settings", {})
    if "space" not in settings:
        raise ValueError("schedule_of needs a population from jaxrl.pbt.make of an agent with a spec")
    lineage, generation = jax.tree.map(np.asarray, state.learner.lineage), int(state.learner.generation)
    if generation >= len(lineage.parent):
        raise ValueError(
            f"the lineage has room for {len(lineage.parent)} generations, and there were {generation}: make the population with "
            f"generations={generation + 1}"
        )
    at = int(best_member(state.learner)) if member is None else member
    rows = []
    for row in range(generation, -1, -1):
        rows.append(lineage.values[row, at])
        at = lineage.parent[row, at]
    values = np.asarray(rows[::-1])
    return Schedule(settings["ready"], {name: values[:, i].tolist() for i, name in enumerate(settings["space"])})


def replay(agent: Agent, schedule: Schedule) -> Agent:
    """Return ``agent`` with the hyperparameters of a schedule, for training from scratch on any seeds.

    With the warm-up of the population's members, an iteration has the hyperparameters that the ancestor had in it.

    Raises:
      TypeError, ValueError: a hyperparameter is unknown or not allowed.
    """
    check_member(agent)
    schedule = Schedule(check_count("every", schedule.every), {name: [*map(float, x)] for name, x in schedule.values.items()})
    for name, values in schedule.values.items():
        for value in values:
            check_hyperparam(agent.hyperparams, name, value)
    table = {name: jnp.asarray(values, jnp.float32) for name, values in schedule.values.items()}
    # A population's generations end at multiples of ``every``, counted with the warm-up, in which none ends.
    first = agent.algorithm.warmup_iterations // schedule.every

    def step(state: AgentState) -> tuple[AgentState, Metrics]:
        generation = state.iteration // schedule.every - first
        now = {name: x[jnp.minimum(generation, len(x) - 1)] for name, x in table.items()}
        learner = state.learner._replace(hyperparams=state.learner.hyperparams._replace(**now))
        return agent.step(state._replace(learner=learner))

    settings = {"agent": json.dumps(agent.spec), "every": schedule.every, "values": schedule.values}
    return agent._replace(step=step, spec=spec_of("jaxrl.pbt.schedule:make_replay", agent, settings) if agent.spec else {})


def make_replay(*, env: Any, agent: str, every: int, values: Mapping[str, Any], **changed: Any) -> Agent:
    """Rebuild the agent of ``replay`` from its spec; ``agent`` is the spec of the agent, as JSON, and ``changed`` are settings of
    it to change."""
    return replay(build(json.loads(agent), env=env, **changed), Schedule(every, dict(values)))
