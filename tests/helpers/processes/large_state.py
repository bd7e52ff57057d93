"""Memory needed to save and to restore a state.

``python -m tests.helpers.processes.large_state FOLDER [ROWS]`` prints it as JSON. It is a separate process, so that its memory
contains nothing else. Without ROWS the state is an array. With ROWS it is SAC's state with that number of rows in replay, and the
agent learns before and after.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl import make_sac
from jaxrl.replay.row_layout import Records
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.types import PyTree
from tests.helpers.agents import to_numpy

PAGE = 4096


def resident() -> int:
    """Return this process's resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def growth(function: Callable[[], Any]) -> tuple[Any, int]:
    """Return a function's result, and the largest increase of this process's memory during the call, in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory would hide new allocations
    before, done, seen = resident(), threading.Event(), []

    def watch() -> None:
        while not done.wait(0.001):
            seen.append(resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = jax.block_until_ready(function())
    done.set()
    watcher.join()
    return result, max([*seen, resident()]) - before


def noise(x: jax.Array) -> jax.Array:
    """Return random bits in place of zeros, which would take no space in memory or on disk."""
    return jax.random.bits(jax.random.key(1), x.shape, x.dtype)


def full(tree: PyTree) -> PyTree:
    """Fill the rows of replay buffers with random bits."""
    is_records = lambda x: isinstance(x, Records)  # noqa: E731
    fill = jax.jit(lambda x: Records(noise(x.words), x.large, x.layout) if is_records(x) else x, donate_argnums=0)
    return jax.tree.map(lambda x: fill(x) if is_records(x) else x, tree, is_leaf=is_records)


def main(folder: str, rows: str = "0") -> None:
    save(f"{folder}/first", {"x": jnp.zeros(1)}, 0)  # the first save starts orbax and its threads
    restore(f"{folder}/first", {"x": jnp.zeros(1)})
    if int(rows):
        agent = make_sac("Pendulum-v1", model={"hidden_sizes": (8,)}, buffer_size=int(rows), batch_size=32, replay_ratio=8)
        step = jax.jit(agent.step, donate_argnums=0)
        init, go_on = agent.init, lambda state: step(step(state)[0])[0]
        begin = lambda key: go_on(full(jax.jit(init)(key)))  # noqa: E731
    else:
        init = begin = lambda key: {"x": jax.random.bits(key, (64, 2**18))}
        go_on = lambda state: state  # noqa: E731
    key = jax.random.key(0)
    state = jax.block_until_ready(begin(key))
    size = sum(x.nbytes for x in jax.tree.leaves(to_numpy(state)))
    _, saving = growth(partial(save, f"{folder}/state", state, 1))
    ours = [x.copy() for x in jax.tree.leaves(to_numpy(go_on(state)))]
    del state
    restored, tries = None, []
    for _ in range(3):  # on a busy machine memory is sometimes released late
        restored = None
        restored, grown = growth(lambda: restore(f"{folder}/state", jax.eval_shape(init, key))[0])
        tries.append(grown)
    restoring = min(tries)
    theirs = jax.tree.leaves(to_numpy(go_on(restored)))
    equal = all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))
    print(json.dumps({"size": size, "save": saving / size, "restore": restoring / size, "equal": equal}))


if __name__ == "__main__":
    main(*sys.argv[1:])
