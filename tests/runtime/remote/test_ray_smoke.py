"""A smoke test of Ray, as far as ``make test`` goes: objects, shared values, errors, and a pool of actors in one cluster.

The other tests of Ray are marked ``ray``.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from jaxrl import remote
from jaxrl.runtime.samplers.sampler import HostSampler
from tests.helpers.agents import assert_bit_equal, small_ppo
from tests.helpers.processes.actor_pools import kept, keys, opened, policies, ray_workers
from tests.helpers.processes.children import soon
from tests.helpers.processes.remote_objects import Counter

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.expensive(20),
]


def test_ray_runs_objects_and_actors() -> None:
    agent, seeds = small_ppo("gymnasium:CartPole-v1", num_envs=2), [3]
    with remote.open("ray", cpus=2) as cluster:
        counter = cluster.start(Counter, 4)
        assert [future.result(60) for future in [counter.call("add"), counter.call("add", 2)]] == [5, 7]
        total = cluster.start(np.arange, 5).call("dot", cluster.put(np.ones(5)))
        assert total.result(60) == 10
        with pytest.raises(remote.RemoteError, match="Counter has no method 'ad'"):
            counter.call("ad").result(60)
        counter.close()
        with opened(agent, seeds, 1, engine="ray") as (pool, _):
            given = policies(agent, seeds)(0), keys(seeds, 0)
            rollout = kept(pool.collect(*given)[0])
    alone = HostSampler(agent, seeds)
    assert_bit_equal(rollout, kept(alone.collect(*given)[0]))
    alone.close()
    assert soon(lambda: not ray_workers())
