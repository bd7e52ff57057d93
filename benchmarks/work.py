"""Where jaxrl's time goes: kernels, arithmetic, rollouts and updates. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.cases import Case
from benchmarks.kernels import KERNEL_COLUMNS, kernel_cells
from benchmarks.markdown import table
from benchmarks.numbers import Program, paired, short, with_range


def work_table(cases: Sequence[Mapping[str, Any]], matmul_rate: float) -> str:
    """What jaxrl's programs consist of, and how near their matrix products come to the machine's rate."""
    counted = all("kernels" in case["programs"]["jaxrl"] for case in cases)
    rows = []
    for case in cases:
        ours = case["programs"]["jaxrl"]
        speeds = matmul_rates(ours)
        row = [case["title"], *(kernel_cells(ours["kernels"]) if counted else [])]
        rows.append([*row, with_range(speeds, short), f"{median(speeds) / matmul_rate:.1%}"])
    header = ["jaxrl", *(f"kernels/{name}" for name in KERNEL_COLUMNS if counted), "matmul flop/s", "of the machine's"]
    legend = (
        "*kernels*: that the compiled program starts per device. *matmul flop/s*: those of the matrix products of training, over "
        f"all of its time (least–greatest). At products of large f32 matrices this machine does {short(matmul_rate)}flop/s."
    )
    return table(header, rows) + "\n\n" + legend


def share_table(cases: Sequence[Mapping[str, Any]], matmul_rate: float, kernel_seconds: float | None) -> str:
    """How jaxrl's time divides into rollouts and updates, and that of the updates into products and the rest.

    Args:
      matmul_rate: floating-point operations per second of the machine.
      kernel_seconds: what starting a kernel takes; None where it was not measured, on a GPU.
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
    """Of each timed section of jaxrl: floating-point operations per second of its matrix products."""
    return [ours["matmul_flops"] / section["seconds"] for section in ours["sections"]]


def as_case(measured: Mapping[str, Any]) -> Case:
    """The case of a result, which holds what was measured besides; older ones lack fields that cases have now."""
    return Case(**{name: measured[name] for name in Case._fields if name in measured})


def rollout_shares(case: Case, programs: Mapping[str, Program]) -> list[float]:
    """Of each round: what rollouts, and all else that is no update, take of the time of training."""
    whole, part = (seconds_per_iteration(case, programs[side]) for side in ("jaxrl", "updates"))
    return [1 - share for share in paired(part, whole)]


def update_rates(case: Case, programs: Mapping[str, Program]) -> list[float]:
    """Of each round: floating-point operations per second of the matrix products of updates."""
    flops = programs["jaxrl"]["update_matmul_flops"]
    return [flops / seconds for seconds in seconds_per_iteration(case, programs["updates"])]


def _legend(kernel_seconds: float | None) -> str:
    text = (
        "*rollouts*: their share of the time of training, with all that is no update; updates are timed alone, on one rollout "
        "that stays. *products*: the share of the machine's matmul rate that updates reach, and so the share of their time that "
        "their matrix products would need at this rate."
    )
    if kernel_seconds is None:
        return text
    return text + (
        " *as they are*: what these very products take on one device while the others rest, each in a loop by itself, compiled "
        "as jaxrl's programs are; where each seed keeps to one device. *starts*: what it takes to start the kernels of updates, "
        f"{1e9 * kernel_seconds:.0f} ns each for those that have nothing to do. *rest*: elementwise functions and copies."
    )


def seconds_per_iteration(case: Case, program: Program) -> list[float]:
    """Of each timed section, for all seeds together."""
    rows = program["total_steps"] - case.settings.get("learning_starts", 0)
    iterations = rows // case.steps_per_iteration * case.runs_per_section
    return [section["seconds"] / iterations for section in program["sections"]]
