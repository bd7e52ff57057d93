"""Parameters that act: on the deterministic clock those of a fixed age, on the asynchronous one the newest, of a bounded age."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.samplers.diagnostics import LAG, MOST_LAG, RESTARTS, TIMED
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.runtime.trainers.host import HostDriver
from tests.helpers.agents import assert_bit_equal, assert_close, small, small_ppo
from tests.helpers.gymnasium_envs import Told
from tests.helpers.processes.actor_pools import keys, nothing_left, opened, pids, policies
from tests.helpers.processes.children import soon

ENV = "gymnasium:CartPole-v1"
SEEDS = [3, 5]


class Lent:
    """A pool that several drivers use, one after the other. It records which parameters acted."""

    def __init__(self, pool: ActorPool) -> None:
        self.pool, self.watch, self.versions = pool, pool.watch, list[Any]()

    def begin(self, policy: Any, key: Any) -> Any:
        wait = self.pool.begin(policy, key)

        def waited() -> Any:
            collected = wait()
            self.versions.append(collected[0].version.tolist())
            return collected

        return waited

    def close(self) -> None:
        """Do nothing: the pool is still needed."""


@pytest.fixture(scope="module")
def deterministic() -> Iterator[ActorPool]:
    with opened(small_ppo(ENV), SEEDS) as (pool, notes):
        yield pool
        assert not notes


@pytest.fixture(scope="module")
def newest() -> Iterator[ActorPool]:
    with opened(small("impala", ENV), SEEDS, clock="async") as (pool, notes):
        yield pool
        assert not notes


def driven(agent: Any, pool: ActorPool, lag: int, *calls: int) -> Any:
    """Return the parameters that acted in a driver's iterations, and the metrics of all."""
    lent = Lent(pool)
    driver = HostDriver(agent, SEEDS, lambda agent, seeds: lent, lag=lag)  # type: ignore[arg-type, return-value]
    states, metrics = driver.init(), []
    for iterations in calls:
        states, new, _ = driver.iterate(states, iterations)
        metrics.append(new)
    assert states.iteration.tolist() == [sum(calls)] * 2
    driver.close()
    return lent.versions, metrics


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1, 2])
def test_parameters_are_as_old_as_the_lag(lag: int, deterministic: ActorPool) -> None:
    """For all divisions into calls of ``iterate``."""
    versions, metrics = driven(small_ppo(ENV), deterministic, lag, 1, 3, 2)
    assert versions == [[[max(0, n - lag)] * 4] * 2 for n in range(6)]
    ages = [n - max(0, n - lag) for n in range(6)]
    for part, these in zip(metrics, (ages[:1], ages[1:4], ages[4:]), strict=True):
        np.testing.assert_array_equal(part[LAG].sum / part[LAG].count, [np.mean(these)] * 2)
        np.testing.assert_array_equal(part[MOST_LAG].value, [max(these)] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2])
def test_the_age_of_parameters_is_bounded_on_the_asynchronous_clock(lag: int, newest: ActorPool) -> None:
    versions, metrics = driven(small("impala", ENV), newest, lag, 30)
    ages = np.array([np.full((2, 4), n) - acted for n, acted in enumerate(versions)])
    assert (ages >= 0).all() and (ages <= lag).all()
    np.testing.assert_allclose(metrics[0][LAG].sum / metrics[0][LAG].count, ages.mean((0, 2)), rtol=1e-6)
    np.testing.assert_array_equal(metrics[0][MOST_LAG].value, ages.max((0, 2)))
    assert ages.max() > 0


@pytest.mark.slow
def test_a_worker_takes_the_newest_parameters(tmp_path: Path) -> None:
    """The newest when its rollout begins, not those of the request."""
    mark = tmp_path / "go"
    agent = small("impala", f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={mark}")
    policy = policies(agent, SEEDS)
    with opened(agent, SEEDS, 1, clock="async") as (pool, _):
        order = Path(f"{mark}.{pids(pool)[0]}")
        Told.tell(mark, pids(pool)[0], "wait")
        waiting = [pool.begin(policy(n), keys(SEEDS, n)) for n in (1, 2, 3)]
        assert soon(lambda: not order.exists())
        pool.publish(policy(7))
        mark.touch()
        first, second, third = (wait()[0].version for wait in waiting)
        assert np.isin(first, (1, 2, 3)).all() and (second == 7).all() and (third == 7).all()


@pytest.mark.slow
def test_two_runs_are_equal() -> None:
    """To the bit on the deterministic clock, with rollouts collected ahead, and up to rounding to those of one process."""

    def states(sampler: Any) -> Any:
        with nothing_left():
            driver = HostDriver(small_ppo(ENV), SEEDS, sampler, lag=2)
            states, metrics, _ = driver.iterate(driver.init(), 5)
            driver.close()
        return jax.device_get(states._replace(key=())), {name: x for name, x in metrics.items() if name not in TIMED}

    pool = partial(ActorPool, num_workers=2)
    one, other = states(pool), states(pool)
    assert_bit_equal(one, other)
    assert (one[1].pop(RESTARTS).value == 0).all()
    assert_close(one, states(HostSampler), 1e-4)
