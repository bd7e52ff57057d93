"""One of several processes that train one agent together.

``python -m tests.helpers.processes.several_processes PORT PROCESSES NUMBER AGENT``, with a key of ``AGENTS``, prints a
digest of the parameters after three iterations that learn.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable

import jax
import numpy as np

from jaxrl.types import Agent
from tests.helpers.agents import small
from tests.helpers.teams import PURE, joint

AGENTS: dict[str, Callable[[], Agent]] = {
    **{name: lambda name=name: small(name, "CartPole-v1") for name in ("ppo", "dqn", "es")},  # type: ignore[misc]
    "ppo with a team": lambda: small("ppo", PURE),
    "qmix": lambda: joint("qmix"),
}


def main(port: str, num_processes: int, number: int, name: str) -> None:
    devices = 2 // num_processes
    jax.config.update("jax_num_cpu_devices", devices)
    if num_processes > 1:
        address = f"127.0.0.1:{port}"
        jax.distributed.initialize(
            address,
            num_processes,
            number,
            coordinator_bind_address=address,
            initialization_timeout=60,
            heartbeat_timeout_seconds=20,
        )
    from jaxrl.parallel import check_replicas, data_parallel, make_mesh
    from jaxrl.runtime.distributed.group import current

    agent = data_parallel(AGENTS[name](), make_mesh({"data": 2}))
    state, step = agent.init(jax.random.key(0)), jax.jit(agent.step)
    for _ in range(agent.algorithm.warmup_iterations + 3):
        state, _ = step(state)
    check_replicas(state, current().gather)
    uneven = jax.make_array_from_single_device_arrays(
        (2,),
        jax.NamedSharding(make_mesh({"data": 2}), jax.P()),
        [jax.device_put(np.full(2, 1.0 + device.id), device) for device in jax.local_devices()],
    )
    try:
        check_replicas({"w": uneven}, current().gather)
    except RuntimeError as error:
        assert "states['w'] is not the same on all devices" in str(error)
    else:
        raise AssertionError("different copies were not detected")
    mine = [np.asarray(leaf.addressable_shards[0].data) for leaf in jax.tree.leaves(state.learner.params)]
    print(hashlib.sha256(b"".join(x.tobytes() for x in mine)).hexdigest())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
