"""Gradients computed by workers, averaged or applied one by one, and by devices, averaged over all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.actors.scheme import resolve_scheme
from jaxrl.runtime.actors.trainer import open_actors
from jaxrl.runtime.samplers.diagnostics import LAG, RESTARTS, STALENESS
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.types import Agent
from tests.helpers.agents import assert_close, small, small_ppo
from tests.helpers.gymnasium_envs import Told
from tests.helpers.hosted import hosted
from tests.helpers.probes import truncation
from tests.helpers.processes.actor_pools import nothing_left, pids

ENV = "gymnasium:CartPole-v1"
MARK = Path(tempfile.gettempdir()) / f"jaxrl-test-{os.getpid()}"
CHOICE = f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={MARK}"
"""Environment with a reward equal to the action, 0 or 1."""
SEEDS = [3, 5]
NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}


def driven(
    agent: Agent, scheme: Any, *calls: int, seeds: Sequence[int] = SEEDS, num_workers: int = 2, kill_at: int | None = None
) -> Any:
    """Return states and the metrics of each call. Worker 1 dies in row ``kill_at`` of its environments."""
    if scheme is not None:
        scheme = resolve_scheme(agent, scheme, num_workers)
    notes: list[str] = []
    with nothing_left():
        driver = HostDriver(agent, seeds) if scheme is None else open_actors(agent, seeds, scheme, None, notes.append)
        states, metrics = driver.init(), []
        if kill_at is not None:
            pool: Any = driver.learner.sampler  # type: ignore[union-attr]
            Told.tell(MARK, pids(pool)[1], "kill", kill_at)
        for iterations in calls:
            states, new, alive = driver.iterate(states, iterations)
            assert alive.all() and driver.done == iterations
            metrics.append(new)
        driver.close()
    assert len(notes) == (kill_at is not None)
    return states, metrics


def learnt(states: Any) -> Any:
    return jax.device_get((states.learner.params, states.learner.statistics, states.learner.version, states.iteration))


LEARNT_BY_MEAN = {"clock": "deterministic", "gradients": "workers"}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [NORMALIZED, {}], ids=["normalized", "plain"])
def test_the_mean_of_the_workers_is_the_learners_gradient(settings: dict[str, Any]) -> None:
    """After three iterations, over ends of episodes, so that shares have different numbers of valid rows."""
    agent = small("a2c", ENV, rollout_length=16, **settings)
    (central, (theirs,)), (ours, (metrics,)) = (driven(agent, scheme, 3) for scheme in (None, LEARNT_BY_MEAN))
    assert_close(learnt(ours), learnt(central))
    for name in ("charts/valid_rows", "charts/episodic_length", LAG, "losses/entropy", "losses/value_loss"):
        assert_close(metrics[name], theirs[name], 0.01)  # a mean over shares, which differ in valid rows
    assert metrics["losses/grad_norm"].count.tolist() == theirs["losses/grad_norm"].count.tolist() == [3] * 2
    assert (metrics[STALENESS].sum == 0).all() and (metrics[RESTARTS].value == 0).all()


@pytest.mark.slow
def test_devices_learn_what_one_does() -> None:
    """By averaging the gradients of shares of the environments: with one minibatch, equal to PPO on one device."""
    agent = small_ppo(ENV, num_minibatches=1, normalize_observations=True)
    (central, (theirs,)), (ours, (metrics,)) = (driven(agent, scheme, 3) for scheme in (None, "ddppo"))
    assert_close(learnt(ours), learnt(central))
    assert len(ours.learner.params and jax.tree.leaves(ours.learner.params)[0].sharding.device_set) == 2
    for name in (LAG, "charts/valid_rows", "losses/grad_norm", "losses/entropy", "losses/value_loss"):
        assert_close(metrics[name], theirs[name], 1e-4)


@pytest.mark.slow
def test_gradients_count_one_by_one() -> None:
    """In the order of arrival (A3C). An iteration has as many gradients as there are workers.

    It learns. Some gradients use older parameters than those they are applied to. Learning rates follow the shares, and end with
    the iterations. A worker that is killed is replaced, and none of its gradients counts twice.
    """
    agent = small("a2c", CHOICE, learning_rate=0.03, anneal=True, total_steps=4 * 8 * 60, **NORMALIZED)
    states, (early, late) = driven(agent, "a3c", 10, 50, kill_at=101)
    assert states.iteration.tolist() == [61] * 2, "one of them is the warm-up"
    assert states.learner.version.tolist() == [120] * 2
    reward = [part["charts/episodic_return"].sum / part["charts/episodic_return"].count for part in (early, late)]
    assert (reward[0] < reward[1]).all() and (reward[1] > 4).all()
    stale = [part[STALENESS].sum / part[STALENESS].count for part in (early, late)]
    assert all((x > 0).all() and (x < 4).all() for x in stale)
    for part, rate in ((early, 110 / 120), (late, 50 / 120)):
        np.testing.assert_allclose(part["charts/learning_rate"].sum / part["charts/learning_rate"].count, 0.03 * rate, rtol=0.1)


@pytest.mark.slow
def test_workers_get_the_parameters_of_each_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the parameters of the request."""
    versions, publish = list[Any](), ActorPool.publish

    def noted(pool: ActorPool, policy: Any) -> None:
        versions.append(np.asarray(policy.version).tolist())
        publish(pool, policy)

    monkeypatch.setattr(ActorPool, "publish", noted)
    driven(small("a2c", CHOICE), "a3c", 2)
    assert versions == [[n, n] for n in (1, 2, 3, 4)]


@pytest.mark.slow
def test_a_part_that_has_no_name_is_used_as_it_is() -> None:
    """An environment that a worker cannot import is sent as an object."""
    agent = small("a2c", hosted(truncation(5)))
    states, _ = driven(agent, "a3c", 2, seeds=[0])
    assert states.learner.version.tolist() == [4]
