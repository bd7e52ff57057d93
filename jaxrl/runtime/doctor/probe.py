"""Training in a separate process, as it may hang or crash. The process prints one JSON object per line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl.interpreter import python_command

SECONDS = 300.0
"""Time limit of the process."""


class Answer(NamedTuple):
    """Results of the process."""

    facts: dict[str, Any]
    """All results up to its end, merged."""
    end: str | None
    """Reason of an abnormal end, else None."""


def ask(*args: str, module: str = "jaxrl.runtime.doctor.probe", timeout: float = SECONDS) -> Answer:
    """Run a module in a process with the same module search path, for at most ``timeout`` seconds.

    Processes that it has started, and that have not left its session, end with it.
    """
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | os.environ  # a run may be using most of the GPU's memory
    command, pipe = python_command(module, *args), subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment, start_new_session=True) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            return Answer(_read(error.stdout), f"timed out after {timeout:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    code = process.returncode
    said = [" ".join(line.split())[:200] for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return Answer(_read(stdout), (said[-1] if said and code > 0 else how) if code else None)


def _read(output: bytes | None) -> dict[str, Any]:
    lines = (output or b"").decode(errors="replace").splitlines(keepends=True)
    return {key: value for line in lines if line.endswith("\n") for key, value in json.loads(line).items()}


# ------------------------------------------------------------------------------------------------------------- in the process


def probe(*, restores: bool) -> Iterator[dict[str, Any]]:
    """Yield the folder of compiled programs, the devices that a run would use, the number of devices that one iteration of PPO
    used (two if available), and, if it ``restores``, the first leaf of the state that differs after saving and restoring."""
    import jax
    import numpy as np

    from jaxrl.registry import ALGORITHMS
    from jaxrl.runtime.system.cores import usable_cores
    from jaxrl.runtime.system.devices import cache_folder, enable_compilation_cache, request_cpu_devices
    from jaxrl.runtime.trainers.device_layout import open_fused
    from jaxrl.xla.private_jax import setting

    cache = setting("jax_compilation_cache_dir") or cache_folder()
    yield {"cache": cache and str(cache), "cores": usable_cores()}
    enable_compilation_cache()
    request_cpu_devices()
    found = jax.local_devices()
    yield {"platform": found[0].platform, "kind": found[0].device_kind, "devices": len(found)}
    ppo = ALGORITHMS["ppo"].load().make("CartPole-v1", num_envs=2, rollout_length=8, num_epochs=1, num_minibatches=1)
    driver, layout = open_fused(ppo, [0], min(2, len(found)))
    states, _, alive = driver.iterate(driver.init(), 1)
    if not np.asarray(alive).all():
        raise RuntimeError("parameters are not finite after one iteration")
    yield {"used": layout.devices_per_seed}
    if restores:
        with tempfile.TemporaryDirectory(prefix="jaxrl-doctor-", ignore_cleanup_errors=True) as folder:
            yield {"difference": _restored_difference(Path(folder) / "checkpoint", states, driver.shapes(), ppo.spec)}


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


def main(restore: str) -> None:
    """Print the results. Output of libraries is redirected to stderr."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for result in probe(restores=bool(restore)):
        print(json.dumps(result), file=results, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
