"""Rollouts by worker processes equal those of the loop in this process. They come through shared memory, on either clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

from jaxrl.runtime.actors import rollout_memory
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.runtime.actors.trainer import make_log_folder
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.types import Agent
from tests.helpers.agents import RECURRENT, assert_bit_equal, assert_close, assert_new_noise, only_noise, small_ppo
from tests.helpers.gymnasium_envs import Truncation
from tests.helpers.processes.actor_pools import kept, keys, nothing_left, opened, policies

ENV = "gymnasium:CartPole-v1"
SEEDS = [3, 5]


class Twins(NamedTuple):
    """A pool, and a sampler in this process that gives the same rollouts."""

    agent: Agent
    pool: ActorPool
    alone: HostSampler
    policy: Any
    notes: list[str]

    def collect(self, n: int) -> Any:
        """Collect the n-th rollout of both, with the n-th parameters, and the metrics of episodes."""
        given = self.policy(n), keys(SEEDS, n)
        return self.pool.collect(*given), self.alone.collect(*given)


def twins(agent: Agent, num_workers: int, **options: Any) -> Iterator[Twins]:
    with opened(agent, SEEDS, num_workers, **options) as (pool, notes):
        alone = HostSampler(agent, SEEDS)
        yield Twins(agent, pool, alone, policies(agent, SEEDS), notes)
        alone.close()
        assert not notes and pool.restarts == [0] * num_workers


@pytest.fixture(scope="module")
def uneven() -> Iterator[Twins]:
    """Four environments of each of two seeds over three workers."""
    yield from twins(small_ppo(ENV), 3)


@pytest.fixture(scope="module")
def recurrent() -> Iterator[Twins]:
    yield from twins(small_ppo(ENV, model=RECURRENT), 2)


@pytest.mark.parametrize("name", ["uneven", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_rollouts_are_those_of_one_process(name: str, request: pytest.FixtureRequest) -> None:
    """For each seed, over ends of episodes, with the carry of recurrent models and the metrics of episodes."""
    pair: Twins = request.getfixturevalue(name)
    ended = 0
    for n in range(5):
        (ours, metrics), (theirs, their_metrics) = pair.collect(n)
        assert_close(ours, theirs)
        assert_close(metrics, their_metrics)
        assert ours.env_id.tolist() == [[0, 1, 2, 3]] * 2 and ours.version.tolist() == [[n] * 4] * 2
        ended += int((ours.terminated | ours.truncated).sum())
    assert ended > 4
    carries = [np.asarray(x) for x in jax.tree.leaves(ours.carry)]
    assert len(carries) == (name == "recurrent") and all(x.any() for x in carries)


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["deterministic", "async"])
def test_noise_is_new_in_each_worker_row_and_rollout(clock: str) -> None:
    agent = small_ppo("gymnasium:Pendulum-v1", model=only_noise)
    with opened(agent, SEEDS, clock=clock) as (pool, _):
        policy = policies(agent, SEEDS)
        assert_new_noise([kept(pool.collect(policy(n), keys(SEEDS, n))[0]) for n in range(3)])


def test_shares_are_as_even_as_they_can_be(uneven: Twins) -> None:
    jobs = [member.job for member in uneven.pool.members]
    assert [(job.first_id, job.num_envs) for job in jobs] == [(0, 2), (2, 1), (3, 1)]
    assert all(job.seeds == SEEDS and job.spec == uneven.agent.spec for job in jobs)


def test_several_rollouts_can_be_under_way(uneven: Twins) -> None:
    """They arrive in the order of the requests, each with its parameters, in any order of waiting."""
    waiting = [uneven.pool.begin(uneven.policy(n), keys(SEEDS, n)) for n in (10, 11, 12)]
    late, first, second = (waiting[n]()[0] for n in (2, 0, 1))
    for n, ours in zip((10, 11, 12), (first, second, late), strict=True):
        assert_close(ours, uneven.alone.collect(uneven.policy(n), keys(SEEDS, n))[0])


def memory(pool: ActorPool) -> list[Any]:
    return [jax.tree.leaves(each.inputs.obs)[0] for each in pool.dispatcher.rollouts.views]


def test_nothing_is_copied_and_memory_serves_again(uneven: Twins) -> None:
    """Two blocks suffice if rollouts are released. A rollout that is kept does not change, and other blocks are used."""
    pool = uneven.pool
    before = len(memory(pool))
    for n in range(20, 26):
        (rollout, _), _ = uneven.collect(n)
        assert any(np.shares_memory(rollout.inputs.obs, each) for each in memory(pool))
    assert len(memory(pool)) <= max(before, 2)
    part = rollout.inputs.obs[0, 0]
    del rollout
    held = [uneven.collect(n)[0][0] for n in (26, 27, 28)]
    copies = kept([held, part])
    for n in range(29, 35):
        uneven.collect(n)
    assert_bit_equal([held, part], copies)
    most = len(memory(pool))
    del held, part
    for n in range(35, 41):
        uneven.collect(n)
    assert len(memory(pool)) == most <= before + 5


def test_parameters_lie_in_few_blocks(uneven: Twins) -> None:
    assert len(uneven.pool.dispatcher.policies.memory) <= 4
    assert not sum(uneven.pool.dispatcher.policies.users)


@pytest.mark.slow
def test_an_environment_that_only_this_process_knows_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered with gymnasium only in this process, as in a script, with a class that no other process can import."""

    class Mine(Truncation): ...

    name = "jaxrl-tests/Mine-v0"
    monkeypatch.setitem(gymnasium.registry, name, EnvSpec(name, Mine))
    agent = small_ppo(f"gymnasium:{name}?every=3")
    with opened(agent, [0], 1) as (pool, _):
        rollout, _ = pool.collect(policies(agent, [0])(0), keys([0], 0))
        assert rollout.truncated[0, 2].all() and not rollout.truncated[0, :2].any()


@pytest.mark.slow
def test_what_is_closed_says_so() -> None:
    """A rollout requested before does not return old contents of its memory."""
    agent = small_ppo(ENV)
    policy = policies(agent, [0])(0)
    with opened(agent, [0], 1) as (pool, _):
        waiting = pool.begin(policy, keys([0], 0))
        pool.close()
        for ask in (waiting, lambda: pool.collect(policy, keys([0], 1))):
            with pytest.raises(RuntimeError, match=r"^this actor pool is closed$"):
                ask()
        pool.close()


@pytest.mark.slow
def test_who_forgets_a_pool_leaves_no_process() -> None:
    agent = small_ppo(ENV)
    with nothing_left():
        pool = ActorPool(agent, [0], num_workers=1, note=print)
        del pool


def test_more_memory_than_there_is_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the system grants memory that it does not have."""
    monkeypatch.setattr(rollout_memory, "available_on_host", lambda: 4096)
    rollouts = rollout_memory.Blocks("rollout")
    rollouts.take()
    with pytest.raises(
        ValueError, match=r"^a rollout to share with workers takes 7\.8 KiB, and 4\.0 KiB of memory are available: use"
    ):
        rollouts.shape([jax.ShapeDtypeStruct((1000,), np.float64)])
    monkeypatch.setattr(rollout_memory, "available_on_host", lambda: None)
    unknown = rollout_memory.Blocks("policy")
    unknown.shape([jax.ShapeDtypeStruct((1000,), np.float32)])
    assert unknown.take() == 0 and unknown.views[0][0].shape == (1000,)
    unknown.close()


def test_a_link_in_the_place_of_a_folder_for_logs_makes_way(tmp_path: Path) -> None:
    """A run folder from another user may contain one that points anywhere."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "kept").touch()
    for inside in ((), ("process-1",)):
        (tmp_path / "run" / "workers").parent.mkdir(exist_ok=True)
        link = (tmp_path / "run" / "workers").joinpath(*inside)
        link.symlink_to(tmp_path / "home")
        assert make_log_folder(tmp_path / "run" / "workers", *inside) == link
        assert link.is_dir() and not link.is_symlink() and (tmp_path / "home" / "kept").exists()
    assert make_log_folder(tmp_path / "run" / "workers", "process-2").is_dir()
