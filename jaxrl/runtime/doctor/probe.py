"""Probes of ``jaxrl doctor``, run in separate processes because they may hang or crash. They print one JSON object per line."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def imports(modules: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Import modules one after the other: ``{"module": …, "error": text or None}``, with causes ``missing`` and ``origin``."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            name = error.name if isinstance(error, ModuleNotFoundError) else None
            missing = name if name and "." not in name else None  # the package that is not installed, if the error names it
            yield {"module": module, "error": text, "missing": missing, "origin": _origin(error)}
        else:
            yield {"module": module, "error": None}


def _origin(error: BaseException) -> str | None:
    """Return the top-level package in which an error was raised."""
    origin, frames = None, error.__traceback__
    while frames is not None:
        package = str(frames.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("importlib", "jaxrl", "__main__", ""):
            origin = package
        frames = frames.tb_next
    return origin


def devices(_: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the folder of compiled programs, and the devices that a run would use."""
    import jax

    from jaxrl.runtime.system.devices import cache_folder, request_cpu_devices, usable_cores
    from jaxrl.xla.private_jax import setting

    cache = setting("jax_compilation_cache_dir") or cache_folder()
    yield {"cache": cache and str(cache), "cores": usable_cores()}
    request_cpu_devices()
    found = jax.local_devices()
    yield {"platform": found[0].platform, "kind": found[0].device_kind, "devices": len(found)}


def smoke(folder: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Run one iteration of PPO on CartPole, compiled as in a run, over two devices if available: ``{"devices": number}``.

    With a folder, save the state there and restore it: ``{"difference": the first leaf that differs, or None}``.
    """
    import jax
    import numpy as np

    from jaxrl.registry import ALGORITHMS
    from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices
    from jaxrl.runtime.trainers.device_layout import open_fused

    enable_compilation_cache()
    request_cpu_devices()
    ppo = ALGORITHMS["ppo"].load().make("CartPole-v1", num_envs=2, rollout_length=8, num_epochs=1, num_minibatches=1)
    driver, layout = open_fused(ppo, [0], min(2, jax.local_device_count()))
    states, _, alive = driver.iterate(driver.init(), 1)
    if not np.asarray(alive).all():
        raise RuntimeError("parameters are not finite after one iteration")
    yield {"devices": layout.devices_per_seed}
    if folder:
        yield {"difference": _restored_difference(Path(folder[0]) / "checkpoint", states, driver.shapes(), ppo.spec)}


def _restored_difference(path: Path, states: Any, target: Any, spec: Any) -> str | None:
    """Return the first leaf that differs after saving and restoring, or None."""
    import jax
    import numpy as np

    from jaxrl.runtime.checkpoint.restore import restore
    from jaxrl.runtime.checkpoint.store import save

    save(path, states, step=1, spec=spec)
    restored, _ = restore(path, target)

    def equal(a: Any, b: Any) -> bool:
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        return np.asarray(a).tobytes() == np.asarray(b).tobytes()

    leaves, others = jax.tree_util.tree_leaves_with_path(states), jax.tree.leaves(restored)
    differing = (jax.tree_util.keystr(path) for (path, a), b in zip(leaves, others, strict=True) if not equal(a, b))
    return next(differing, None)


PROBES = {"imports": imports, "devices": devices, "smoke": smoke}


def main(probe: str, *args: str) -> None:
    """Run a probe. Output of libraries is redirected to stderr."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for result in PROBES[probe](args):
        print(json.dumps(result), file=results, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
