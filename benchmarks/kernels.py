"""Kernels and arithmetic of the cases' programs, and the machine's matmul rate. Standard library only."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cases import Case
from benchmarks.markdown import table
from benchmarks.protocol import Worker, clean_environment


@contextmanager
def worker(**environment: str) -> Iterator[Worker]:
    """Start a process with an empty compilation cache. From a filled one JAX could take programs with other scope names."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.kernels_worker"]
        with Worker(command, clean_environment(Path(folder)) | environment) as started:
            yield started


def count(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Count the kernels of cases on a CPU, without timing: name -> fields of ``hlo.Counts``. Takes seconds per case."""
    with worker(JAX_PLATFORMS="cpu") as asked:
        return {case.name: asked.ask("kernels", **case._asdict()) for case in cases}


def count_flops(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Count the floating-point operations of matrix products: name -> ``matmul_flops`` of a timed section, and
    ``update_matmul_flops`` of the updates of an iteration."""
    with worker() as asked:
        return {case.name: asked.ask("flops", **case._asdict()) for case in cases}


def count_work(preset: str) -> dict[str, float]:
    """Count the work of an iteration of a preset, for one seed on one device: ``rows``, ``kernels``, ``bytes`` and ``flops``."""
    with worker(JAX_PLATFORMS="cpu") as asked:
        return asked.ask("work", preset=preset)


def time_products(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Time the matrix products in the updates of an iteration by themselves on a CPU: name -> ``update_product_seconds``.

    Only if each seed uses one device.
    """
    with worker() as asked:
        return {case.name: asked.ask("products", **case._asdict()) for case in cases}


def machine_rates() -> dict[str, float]:
    """Measure ``matmul_flops_per_second`` of f32 products and, on a CPU, ``kernel_seconds`` of an empty kernel."""
    with worker() as asked:
        return asked.ask("rates")


def kernel_table(counts: Mapping[str, Mapping[str, float]]) -> str:
    """Return counts, by title, as a Markdown table."""
    rows = [[title, *kernel_cells(numbers)] for title, numbers in counts.items()]
    return table(["kernels per", *KERNEL_COLUMNS], rows)


KERNEL_COLUMNS = ("row", "update", "iteration")


def kernel_cells(counts: Mapping[str, float]) -> list[str]:
    return [f"{round(counts[name], 1):,g}" if counts[name] < 1000 else f"{counts[name]:,.0f}" for name in KERNEL_COLUMNS]
