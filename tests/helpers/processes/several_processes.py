"""One of several processes that train one agent together.

``python -m tests.helpers.processes.several_processes PORT PROCESSES NUMBER ALGORITHM``
prints the parameters after three iterations as hexadecimal numbers.
"""

from __future__ import annotations

import sys

import jax
import numpy as np


def main(port: str, num_processes: int, number: int, algorithm: str) -> None:
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
    from tests.helpers.agents import small

    agent = data_parallel(small(algorithm, "CartPole-v1"), make_mesh({"data": 2}))
    state, step = agent.init(jax.random.key(0)), jax.jit(agent.step)
    for _ in range(3):
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
    print(" ".join(x.tobytes().hex() for x in mine))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
