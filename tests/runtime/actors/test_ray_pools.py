"""Actor pools on Ray: the same states as pools of this machine, on one node or several; lost nodes; logs; places for workers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl import remote
from jaxrl.envs.subprocess.child import WorkerFailed
from jaxrl.runtime.actors.pool import ActorPool
from jaxrl.types import Agent
from tests.helpers.agents import assert_bit_equal, small, small_ppo
from tests.helpers.gymnasium_envs import Told
from tests.helpers.processes.actor_pools import kept, keys, opened, parent_of, pids, policies, ray_workers
from tests.helpers.processes.children import runs, soon
from tests.helpers.processes.ray_nodes import Nodes, joined_nodes
from tests.helpers.teams import HOSTED, HOSTED_CENTRAL, joint

pytestmark = [pytest.mark.ray, pytest.mark.expensive(300)]

ENV = "gymnasium:CartPole-v1"
SEEDS = [3, 5]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A head, and three nodes of one CPU each, which this process joins while the module's tests run."""
    with joined_nodes([0, 1, 1, 1]) as started, remote.open("ray"):
        yield started


RULES: dict[str, Callable[[], Agent]] = {
    name: lambda name=name: small(name, ENV, num_envs=6)  # type: ignore[misc]
    for name in ("ppo", "dqn", "impala")
} | {"ppo with a team": lambda: small_ppo(HOSTED, num_envs=6), "qmix": lambda: joint("qmix", HOSTED_CENTRAL, num_envs=6)}


def trained(agent: Agent, iterations: int = 6, **scheme: Any) -> Any:
    total_steps = (agent.algorithm.warmup_iterations + iterations) * agent.steps_per_iteration
    return jaxrl.run(agent, total_steps, seeds=2, scheme=scheme or None, eval_episodes=1, quiet=True)[0]


@pytest.mark.parametrize("name", RULES)
def test_the_final_state_is_the_same_over_no_pool_a_local_pool_and_ray(name: str) -> None:
    """On Ray in a cluster that the run starts and ends."""
    agent = RULES[name]()
    alone = trained(agent)
    assert_bit_equal(trained(agent, num_workers=2), alone)
    assert_bit_equal(trained(agent, num_workers=2, engine="ray"), alone)
    assert soon(lambda: not ray_workers())


@pytest.mark.parametrize("name", RULES)
def test_the_final_state_is_the_same_over_three_nodes(name: str, nodes: Nodes) -> None:
    agent = RULES[name]()
    assert_bit_equal(trained(agent, num_workers=3, engine="ray", placement="spread"), trained(agent))


def test_workers_compute_gradients_on_ray(nodes: Nodes) -> None:
    """On the deterministic clock with the state of a local pool; asynchronously, each part as it arrives."""
    agent = small("a2c", ENV, num_envs=6)
    local, there = (trained(agent, num_workers=2, gradients="workers", engine=engine) for engine in ("local", "ray"))
    assert_bit_equal(there, local)
    state = trained(agent, num_workers=2, gradients="workers", clock="async", lag=1, engine="ray")
    assert state.iteration.tolist() == [6, 6] and all(np.isfinite(x).all() for x in jax.tree.leaves(state.learner.params))


def disturbed(engine: str, mark: Path, disturb: Callable[[ActorPool], None]) -> tuple[list[Any], list[str]]:
    """Collect two rollouts, lose worker 1, and collect two more. Return them, and the pool's messages."""
    agent = small_ppo(f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={mark}", num_envs=3)
    policy, rollouts = policies(agent, SEEDS), []
    with opened(agent, SEEDS, 3, engine=engine, **({"placement": "spread"} if engine == "ray" else {})) as (pool, notes):
        for n in range(4):
            if n == 2:
                disturb(pool)
                assert soon(lambda: pool.restarts == [0, 1, 0], 60)
            rollouts.append(kept(pool.collect(policy(n), keys(SEEDS, n))[0]))
    return rollouts, notes


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Rollouts of a local pool that lost worker 1."""
    mark = tmp_path_factory.mktemp("told") / "order"
    return disturbed("local", mark, lambda pool: os.kill(pids(pool)[1], signal.SIGKILL))[0]


def node_of(pool: ActorPool, nodes: Nodes, worker: int) -> int:
    return nodes.raylets.index(parent_of(pids(pool)[worker]))


def assert_noticed_in(pool: ActorPool, seconds: float) -> None:
    assert soon(lambda: pool.restarts == [0, 1, 0], seconds)


def test_a_killed_worker_is_replaced_as_on_this_machine(nodes: Nodes, expected: list[Any], tmp_path: Path) -> None:
    """Noticed within a second. The same kill gives the same rollouts."""

    def kill(pool: ActorPool) -> None:
        os.kill(pids(pool)[1], signal.SIGKILL)
        assert_noticed_in(pool, 1.0)

    rollouts, notes = disturbed("ray", tmp_path / "order", kill)
    assert_bit_equal(rollouts, expected)
    assert len(notes) == 1 and "worker 1 (environment 1) was lost (" in notes[0] and "replaced (restart 1 of 10)" in notes[0]


@pytest.mark.parametrize(("number", "seconds"), [(signal.SIGKILL, 5.0), (signal.SIGSTOP, 15.0)])
def test_a_lost_node_is_a_lost_worker(
    number: signal.Signals, seconds: float, nodes: Nodes, expected: list[Any], tmp_path: Path
) -> None:
    """A machine that is gone, or whose network is: noticed in time, and its worker replaced on a machine that comes later.

    If its network comes back, the old worker ends.
    """

    def lose(pool: ActorPool) -> None:
        worker = 1
        pid, node = pids(pool)[worker], node_of(pool, nodes, worker)
        nodes.signal(node, number)
        assert_noticed_in(pool, seconds)
        nodes.signal(node, signal.SIGCONT)
        assert soon(lambda: not runs(pid))
        nodes.add()

    rollouts, _ = disturbed("ray", tmp_path / "order", lose)
    assert_bit_equal(rollouts, expected)


def test_a_worker_without_a_place_ends_the_pool(nodes: Nodes, tmp_path: Path) -> None:
    """After ``timeout`` seconds, in which a machine might have come."""
    agent = small_ppo(ENV, num_envs=3)
    policy = policies(agent, SEEDS)
    assert soon(lambda: not ray_workers())  # those of the test before, which have their places until they end
    with opened(agent, SEEDS, 3, engine="ray", placement="spread", timeout=4.0) as (pool, _):
        pool.collect(policy(0), keys(SEEDS, 0))
        (worker,) = [worker for worker in range(3) if node_of(pool, nodes, worker) == len(nodes.raylets) - 1]
        pid = pids(pool)[worker]
        nodes.signal(-1, signal.SIGKILL)
        start = time.monotonic()
        assert soon(lambda: not runs(pid))  # else it may finish its rows first
        with pytest.raises(
            WorkerFailed, match=rf"worker {worker} .* has no place \(.*asks for 1 CPU, (and there are 2|which other programs)"
        ):
            pool.collect(policy(1), keys(SEEDS, 1))
        assert 4.0 < time.monotonic() - start < 30.0
    nodes.add()


def test_more_workers_than_cpus_are_refused(nodes: Nodes) -> None:
    with pytest.raises(remote.NotEnough, match="asks for 1 CPU, and there are 3, and other objects use 3: ask for less"):
        ActorPool(small_ppo(ENV), SEEDS, num_workers=4, engine="ray")
    assert soon(lambda: not ray_workers())


def test_output_of_workers_on_other_nodes_is_in_the_folder(nodes: Nodes, tmp_path: Path) -> None:
    mark = tmp_path / "order"
    agent = small_ppo(f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={mark}", num_envs=3)
    with opened(agent, SEEDS, 3, engine="ray", placement="spread", log_folder=tmp_path) as (pool, _):
        for pid in pids(pool):
            Told.tell(mark, pid, "print")
        pool.collect(policies(agent, SEEDS)(0), keys(SEEDS, 0))
        logs = [tmp_path / f"worker-{worker}.log" for worker in range(3)]
        assert soon(lambda: all(log.exists() and "a line of a worker" in log.read_text() for log in logs), 10)


def test_late_workers_are_cut_short_on_ray(nodes: Nodes, tmp_path: Path) -> None:
    """Two of three finish; the third, which waits in its third row, is told so, and pads the rest."""
    mark = tmp_path / "order"
    agent = small_ppo(f"gymnasium:tests.helpers.gymnasium_envs:Told?mark={mark}", num_envs=3)
    with opened(agent, SEEDS, 3, engine="ray", placement="spread", sync_fraction=0.6) as (pool, _):
        policy = policies(agent, SEEDS)
        pool.collect(policy(0), keys(SEEDS, 0))
        late: Any = pool.members[2].process
        Told.tell(mark, pids(pool)[2], "wait", 0)
        wait = pool.begin(policy(1), keys(SEEDS, 1))
        assert soon(lambda: late._told == 2)
        mark.touch()
        rollout = kept(wait()[0])
    assert rollout.valid[:, -1, :2].all() and not rollout.valid[:, -1, 2].any() and rollout.valid[:, 0, 2].all()


def test_nothing_is_left() -> None:
    assert soon(lambda: not ray_workers()) and not any(map(runs, ray_workers()))
