"""Several probe environments as one, so that one compiled program can learn them all, side by side under vmap."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import Env


def probe_set(*probes: Env) -> Env:
    """All of ``probes`` stepped together; ``params``, the number of one of them, says which one is seen."""

    def seen(which: Any, *trees: Any) -> Any:
        return jax.tree.map(lambda *x: jnp.stack(x)[which], *trees)

    def reset(key: Any, which: Any) -> Any:
        states, observations = zip(*(probe.reset(key, probe.params) for probe in probes), strict=True)
        return states, seen(which, *observations)

    def step(key: Any, states: Any, action: Any, which: Any) -> Any:
        results = [probe.step(key, state, action, probe.params) for probe, state in zip(probes, states, strict=True)]
        states, reached = zip(*results, strict=True)
        return states, seen(which, *reached)

    return probes[0]._replace(reset=reset, step=step, params=np.int32(0), name="probes")
