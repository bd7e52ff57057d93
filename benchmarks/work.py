"""Breakdown of jaxrl's time into kernels, arithmetic, rollouts and updates. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.cases import Case
from benchmarks.kernels import KERNEL_COLUMNS, kernel_cells
from benchmarks.markdown import table
from benchmarks.numbers import Program, paired, short, with_range


def work_table(cases: Sequence[Mapping[str, Any]], matmul_rate: float) -> str:
    """Return the table of kernels in jaxrl's programs and of their matrix products' share of the machine's rate."""
    counted = all("kernels" in case["programs"]["jaxrl"] for case in cases)
    rows = []
    for case in cases:
        ours = case["programs"]["jaxrl"]
        speeds = matmul_rates(ours)
        row = [case["title"], *(kernel_cells(ours["kernels"]) if counted else [])]
        rows.append([*row, with_range(speeds, short), f"{median(speeds) / matmul_rate:.1%}"])
    header = ["jaxrl", *(f"kernels/{name}" for name in KERNEL_COLUMNS if counted), "matmul flop/s", "of the machine's"]
    legend = (
        "*kernels*: started by the compiled program, per device. *matmul flop/s*: operations of training's matrix products over "
        "its whole time (minimum–maximum). In products of large f32 matrices this machine reaches "
        f"{short(matmul_rate)}flop/s."
    )
    return table(header, rows) + "\n\n" + legend


def share_table(cases: Sequence[Mapping[str, Any]], matmul_rate: float, kernel_seconds: float | None) -> str:
    """Return the table that divides jaxrl's time into rollouts and updates, and the updates' time into products and the rest.

    Args:
      matmul_rate: Floating-point operations per second of the machine.
      kernel_seconds: Seconds to start a kernel. None if not measured (on a GPU).
    """
    counted = kernel_seconds is not None and all("kernels" in case["programs"]["jaxrl"] for case in cases)
    rows = []
    for measured in cases:
        case, programs = as_case(measured), measured["programs"]
        whole, part = (median(seconds_per_iteration(case, programs[side])) for side in ("jaxrl", "updates"))
        length, reached = case.settings.get("rollout_length", 1), update_rates(case, programs)
        products = median(reached) / matmul_rate
        row = [
            case.title,
            with_range(rollout_shares(case, programs), "{:.0%}".format),
            short(1e6 * (whole - part) / length),
            short(1e6 * part / case.updates_per_iteration),
            with_range(reached, short),
            f"{products:.0%}",
        ]
        if counted:
            kernels = programs["jaxrl"]["kernels"]
            starts = (kernels["iteration"] - kernels["row"] * length) * (kernel_seconds or 0.0) / part
            alone = programs["jaxrl"].get("update_product_seconds")
            row += ["–", f"{starts:.0%}", "–"] if alone is None else _parts(alone / part, starts)
        rows.append(row)
    header = ["jaxrl", "rollouts", "µs/row", "µs/update", "matmul flop/s of updates", "products"]
    return (
        table(header + ["as they are", "starts", "rest"] * counted, rows) + "\n\n" + _legend(kernel_seconds if counted else None)
    )


def _parts(products: float, starts: float) -> list[str]:
    return [f"{share:.0%}" for share in (products, starts, 1 - products - starts)]


def matmul_rates(ours: Program) -> list[float]:
    """Return the floating-point operations per second in jaxrl's matrix products, for each timed section."""
    return [ours["matmul_flops"] / section["seconds"] for section in ours["sections"]]


def as_case(measured: Mapping[str, Any]) -> Case:
    """Return the case of a result, which also holds measurements. Older results lack newer fields of ``Case``."""
    return Case(**{name: measured[name] for name in Case._fields if name in measured})


def rollout_shares(case: Case, programs: Mapping[str, Program]) -> list[float]:
    """Return, for each round, the share of training time spent outside updates, that is in rollouts."""
    whole, part = (seconds_per_iteration(case, programs[side]) for side in ("jaxrl", "updates"))
    return [1 - share for share in paired(part, whole)]


def update_rates(case: Case, programs: Mapping[str, Program]) -> list[float]:
    """Return, for each round, the floating-point operations per second in the updates' matrix products."""
    flops = programs["jaxrl"]["update_matmul_flops"]
    return [flops / seconds for seconds in seconds_per_iteration(case, programs["updates"])]


def _legend(kernel_seconds: float | None) -> str:
    text = (
        "*rollouts*: the share of training time outside updates. Updates are timed alone, always on the same rollout. "
        "*products*: the share of the machine's matmul rate that updates reach, which is also the share of their time that their "
        "matrix products would need at that rate."
    )
    if kernel_seconds is None:
        return text
    return text + (
        " *as they are*: the time of the same products at their sizes, each alone in a loop on one device with the others idle, "
        "compiled as jaxrl's programs are; only where a seed uses one device. *starts*: the time to start the kernels of "
        f"updates, {1e9 * kernel_seconds:.0f} ns for each empty kernel. *rest*: elementwise functions and copies."
    )


def seconds_per_iteration(case: Case, program: Program) -> list[float]:
    """Return the seconds per iteration of all seeds, for each timed section."""
    rows = program["total_steps"] - case.settings.get("learning_starts", 0)
    iterations = rows // case.steps_per_iteration * case.runs_per_section
    return [section["seconds"] / iterations for section in program["sections"]]
