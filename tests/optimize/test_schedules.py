"""A schedule that returns learning rates instead of factors raises a warning in every use of the agent."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import optax
import pytest

import jaxrl
from jaxrl.optimize.schedules import LEAST, ScheduleWarning, doubtful
from jaxrl.runtime.run import run
from tests.helpers import probes
from tests.helpers.agents import small_ppo
from tests.helpers.fakes import faked

VALUES = {"learning_rate": optax.linear_schedule(3e-4, 0, 100)}
SAID = r"schedules\['learning_rate'\] is at most 0.0003, as a factor on learning_rate=0.001, so the product is at most 3e-07"


def agent(schedules: Any) -> jaxrl.Agent:
    return small_ppo(probes.action_choice(), learning_rate=1e-3, schedules=schedules)


@pytest.mark.parametrize("way", ["init", "make_train", "run"])
def test_a_learning_rate_for_a_factor_is_told_of(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, at the user's line. Building the agent does not warn, since it starts no backend."""
    faked(monkeypatch, {})
    squared = agent(VALUES)
    with pytest.warns(ScheduleWarning, match=SAID) as caught:
        if way == "init":
            squared.init(jax.random.key(0))
        elif way == "make_train":
            train = jaxrl.make_train(squared, 3200)
        else:
            run(squared, 3200, seeds=2, quiet=True)
    assert len(caught) == 1 and caught[0].filename == __file__
    if way == "make_train":
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            jax.eval_shape(train, jax.random.key(0))


@pytest.mark.parametrize(
    ("schedule", "iterations", "told"),
    [
        (optax.linear_schedule(1.0, 0.0, 100), 100, False),
        (optax.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100), 100, False),
        (optax.warmup_cosine_decay_schedule(0.0, 3e-4, 10, 100), 100, True),
        (optax.linear_schedule(0.0, 1.0, 10**6), None, False),
        (optax.linear_schedule(0.0, 1.0, 10**6), 1000, True),  # the run does not get that far
        (lambda i: 0.9 * LEAST, None, True),
        (lambda i: 1.2 * LEAST, None, False),
    ],
)
def test_what_looks_like_a_value(schedule: Any, iterations: int | None, told: bool) -> None:
    hyperparams = agent(None).hyperparams
    assert bool([*doubtful({"ent_coef": schedule}, hyperparams, iterations)]) == told


def test_factors_that_leave_the_range() -> None:
    hyperparams = agent(None).hyperparams
    (said,) = doubtful({"gamma": lambda i: 1.0 + i / 1000}, hyperparams, 100)
    assert said.startswith("schedules['gamma'], as a factor on gamma=0.99, leaves its range during the run: gamma=")
    assert [*doubtful({"learning_rate": lambda i: 1.0 - i / 50}, hyperparams, 100)]
    assert not [*doubtful({"learning_rate": lambda i: 1.0 - i / 50}, hyperparams)]  # the length of the run is unknown


def test_factors_are_told_of_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    faked(monkeypatch, {})
    good = agent({"learning_rate": optax.linear_schedule(1.0, 0.0, 100)})
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScheduleWarning)
        good.init(jax.random.key(0))
        jaxrl.make_train(good, 3200)
        run(good, 3200, seeds=2, quiet=True)
