"""Kernels and arithmetic of the cases' programs, and the machine's rate at matrix products. Standard library only."""

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
    """A process with a compilation cache that starts empty: JAX would take programs from it whose scopes have other names."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.kernels_worker"]
        with Worker(command, clean_environment(Path(folder)) | environment) as started:
            yield started


def count(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """By name, the kernels of a case on a CPU, as in ``hlo.Counts``: seconds each, and nothing is timed."""
    with worker(JAX_PLATFORMS="cpu") as asked:
        return {case.name: asked.ask("kernels", **case._asdict()) for case in cases}


def count_flops(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """By name, the floating-point operations of a case's matrix products: ``matmul_flops`` in a timed section, and
    ``update_matmul_flops`` in the updates of an iteration."""
    with worker() as asked:
        return {case.name: asked.ask("flops", **case._asdict()) for case in cases}


def time_products(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """By name, ``update_product_seconds``: what the matrix products in the updates of an iteration take by themselves on a CPU,
    if each seed keeps to one device."""
    with worker() as asked:
        return {case.name: asked.ask("products", **case._asdict()) for case in cases}


def machine_rates() -> dict[str, float]:
    """``matmul_flops_per_second`` of products of f32 matrices, and on a CPU ``kernel_seconds`` of one that does nothing."""
    with worker() as asked:
        return asked.ask("rates")


def kernel_table(counts: Mapping[str, Mapping[str, float]]) -> str:
    """Title -> counts, as Markdown."""
    rows = [[title, *kernel_cells(numbers)] for title, numbers in counts.items()]
    return table(["kernels per", *KERNEL_COLUMNS], rows)


KERNEL_COLUMNS = ("row", "update", "iteration")


def kernel_cells(counts: Mapping[str, float]) -> list[str]:
    return [f"{round(counts[name], 1):,g}" if counts[name] < 1000 else f"{counts[name]:,.0f}" for name in KERNEL_COLUMNS]
