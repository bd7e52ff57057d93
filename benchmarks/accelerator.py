"""Speed on an accelerator, at sizes for which a CPU is too small: many environments, many seeds, and bfloat16.

All programs compile at the same time, and are then timed in turn. Each is jaxrl's, as ``jaxrl.run`` runs it.
"""

from __future__ import annotations

import concurrent.futures
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.cases import ACCELERATOR, Case, scaled
from benchmarks.markdown import table
from benchmarks.numbers import peak, rates, short
from benchmarks.protocol import Worker
from benchmarks.record import write_result
from benchmarks.speed import OURS, find_gpu, say, start

SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""The programs share the accelerator's memory."""


def measure(repeats: int, scale: float, out: Path) -> dict[str, Any]:
    """Measure all cases, and write ``out/accelerator.json``. On a machine without an accelerator the CPU is measured."""
    cases = [scaled(case, scale) for case in ACCELERATOR]
    load = machine.load()
    about = {"gpu": find_gpu(), "load": load, "scale": scale}
    for measured in measure_cases(cases, repeats):
        result = write_result(out, "accelerator", **about, cases=measured)
    return result


def measure_cases(cases: Sequence[Case], repeats: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the cases with the sections of their programs, and again with the kernels per iteration and the returns."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = [stack.enter_context(start(case, OURS, Path(folder), SHARED)) for case in cases]
        with concurrent.futures.ThreadPoolExecutor(len(workers)) as threads:
            about = list(threads.map(lambda worker: worker.ask("compile"), workers))
        for case, worker in zip(cases, workers, strict=True):
            worker.ask("train", first_seed=0, keep=False)
            say(f"{case.title}: warm")
        sections: list[list[dict[str, Any]]] = [[] for _ in cases]
        for number in range(1, repeats + 1):
            for case, worker, timed in zip(cases, workers, sections, strict=True):
                timed.append(worker.ask("train", first_seed=1000 * number, keep=number == repeats))
                say(f"{case.title}: {timed[-1]['env_steps'] / timed[-1]['seconds']:,.0f} env steps/s")
        programs = [{**facts, "sections": timed} for facts, timed in zip(about, sections, strict=True)]
        yield described(cases, programs)
        for case, worker, program in zip(cases, workers, programs, strict=True):
            program |= kernels(case, worker) | worker.ask("evaluate")
        yield described(cases, programs)


def described(cases: Sequence[Case], programs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [case._asdict() | {"program": program} for case, program in zip(cases, programs, strict=True)]


def kernels(case: Case, worker: Worker) -> dict[str, float]:
    """Return the kernels of a whole training per iteration; none on a CPU."""
    launches = worker.ask("launches")["launches"]
    iterations = case.total_steps / case.steps_per_iteration
    return {"launches_per_iteration": launches / iterations} if launches else {}


def accelerator_report(result: dict[str, Any]) -> str:
    """Return the result as a Markdown table."""
    rows = []
    for case in result["cases"]:
        program = case["program"]
        launches = program.get("launches_per_iteration")
        mean = sum(program["returns"]) / len(program["returns"])
        counted = "–" if launches is None else f"{launches:,.0f}"
        rows.append([case["title"], short(median(rates(program))), counted, f"{peak(program) / 2**20:,.0f} MiB", f"{mean:.0f}"])
    return table(["jaxrl", "env steps/s", "kernels/iteration", "peak memory", "return"], rows)
