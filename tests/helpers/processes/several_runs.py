"""One of several processes that call ``jaxrl.run`` together: ``python -m tests.helpers.processes.several_runs CALLS RESULT``.

CALLS is JSON: for each call the algorithm, the environment, settings of the small agent, and arguments of ``run``. The arguments
under "odd" replace them in process 1. The leaves of states are saved as RESULT-CALL-PROCESS.npz. If a call raises, ERROR and the
message are printed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np

import jaxrl
import jaxrl.parallel
from jaxrl.runtime.distributed.group import current
from tests.helpers.agents import small


def plain_leaves(states: Any) -> list[np.ndarray]:
    """Return all leaves of states as whole arrays, with keys as their data."""

    def data(x: Any) -> Any:
        return jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return [np.asarray(x) for x in jax.tree.leaves(current().fetch(jax.tree.map(data, states)))]


def call(algorithm: str, env: str, settings: dict[str, Any] | None = None, **run: Any) -> tuple[Any, Any]:
    """Call ``run`` once."""
    return jaxrl.run(small(algorithm, env, **settings or {}), tensorboard=False, **run)


def main(calls: list[dict[str, Any]], result: str) -> None:
    jaxrl.parallel.initialize(timeout=60, heartbeat=20)
    number = current().process_id
    for i, each in enumerate(calls):
        odd = each.pop("odd", {})
        try:
            states, _ = call(**each | (odd if number == 1 else {}))
        except ValueError as error:
            print("ERROR", error, flush=True)
        else:
            np.savez(f"{result}-{i}-{number}", *plain_leaves(states))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2])
