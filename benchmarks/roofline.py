"""Speed that an accelerator allows, on paper: a roofline model (Williams et al. 2009) of the training programs of presets.

The kernels, bytes and operations of an iteration are counted in the compiled program. The most of three times is a lower bound of
an iteration: starting its kernels one by one, moving its bytes through the device's memory, and its operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kernels import count_work
from benchmarks.markdown import table
from benchmarks.numbers import short
from benchmarks.record import write_result
from benchmarks.speed import say
from jaxrl.algorithms.presets import PRESETS, Preset


class Device(NamedTuple):
    """Published rates of a device."""

    name: str
    flops_per_second: float
    """Dense matrix products in the precision that XLA takes for f32 by default."""
    bytes_per_second: float
    """Of its memory."""
    start_seconds: float
    """To start a kernel; 0 for a device that runs whole programs."""


DEVICES = (Device("H100", 495e12, 3.35e12, 1.5e-6), Device("TPU v5e", 197e12, 819e9, 0.0))
"""NVIDIA H100 SXM: TF32 without sparsity. TPU v5e: bfloat16. A start takes as long as in a measured training that consists of
starts, PPO with 256 seeds on an H200 (docs/howto/gpu.md)."""
SEEDS = (1, 256)


def has_program(preset: Preset) -> bool:
    """Return False for environments on the host, datasets and evolution, whose episodes have no known length."""
    return not (preset.env.startswith("envpool:") or preset.dataset or preset.algorithm == "es")


FIT = tuple(name for name, preset in PRESETS.items() if has_program(preset))
"""Names of the presets whose training is one program with rollouts."""


def measure(names: Iterable[str], out: Path) -> dict[str, Any]:
    """Count the work of presets, by default of ``FIT``, and write ``out/roofline.json``."""
    counted: dict[str, dict[str, float]] = {}
    for name in [*names] or FIT:
        counted[name] = count_work(name)
        say(f"{name}: {short(counted[name]['kernels'])} kernels per iteration")
    return write_result(out, "roofline", presets=counted)


def limits(work: Mapping[str, float], device: Device, seeds: int) -> dict[str, float]:
    """Return the seconds of an iteration of ``seeds`` seeds in one program, by what would take them alone."""
    return {
        "starts": work["kernels"] * device.start_seconds,
        "bytes": seeds * work["bytes"] / device.bytes_per_second,
        "operations": seeds * work["flops"] / device.flops_per_second,
    }


def bound(work: Mapping[str, float], device: Device, seeds: int) -> str:
    """Return the largest number of env steps per second, and what limits it."""
    seconds = limits(work, device, seeds)
    longest = max(seconds, key=seconds.__getitem__)
    return f"{short(seeds * work['rows'] / seconds[longest])} ({longest})"


def roofline_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    bounds = [(device, seeds) for device in DEVICES for seeds in SEEDS]
    rows = []
    for name, work in result["presets"].items():
        row = [name, short(work["rows"]), short(work["kernels"]), *(short(work[x] / work["rows"]) for x in ("flops", "bytes"))]
        rows.append([*row, *(bound(work, *each) for each in bounds)])
    titles = [f"{device.name}, {seeds} seed{'s' * (seeds > 1)}" for device, seeds in bounds]
    header = ["preset", "rows/iteration", "kernels/iteration", "operations/row", "bytes/row", *titles]
    rates = "; ".join(
        f"{device.name}: {short(device.flops_per_second)} operations/s, {short(device.bytes_per_second)} bytes/s"
        + f", {1e6 * device.start_seconds:g} µs to start a kernel" * (device.start_seconds > 0)
        for device in DEVICES
    )
    lines = [
        "## Roofline: what an accelerator allows, on paper",
        f"* `{result['command']}`, {result['date']}\n* programs compiled for a CPU, jax {result['versions']['jax']}; nothing was "
        "run",
        table(header, rows),
        f"Upper bounds of env steps/s, with what limits them. {rates}. *operations*: of matrix products and convolutions. "
        "*bytes*: that kernels read and write, as if nothing stayed in a cache, so small programs can be faster than their bytes "
        "allow. Compilers for accelerators form other, mostly fewer kernels. Loops whose length depends on data count as one "
        "trip.",
    ]
    return "\n\n".join(lines)
