"""Tables in Markdown, from results alone. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.cases import GROUPS
from benchmarks.claims import claim_rows, claim_table
from benchmarks.markdown import table
from benchmarks.numbers import Program, paired, peak, rates, return_difference, short, standard_error, with_error, with_range
from benchmarks.summary import read_speed
from benchmarks.work import share_table, work_table
from jaxrl.presets import interval_text, shown

NAMES = {"jaxrl": "jaxrl", "rejax": "Rejax", "random": "random policy"}
"""Of the sides that are programs of their own; the others are parts of one."""


# ----------------------------------------------------------------------------------------------------------------------- speed


def speed_report(result: Mapping[str, Any]) -> str:
    """The tables of one ``speed-GROUP.json``."""
    cases = result["cases"]
    parts = [
        f"## Speed: {GROUPS[result['group']]}",
        about(result, {side: program for case in cases for side, program in case["programs"].items()}),
        speed_table(cases),
    ]
    if compared := [case for case in cases if "rejax" in case["programs"]]:
        parts.append(ratio_table(compared))
    if "matmul_flops_per_second" in result:
        parts.append(work_table(cases, result["matmul_flops_per_second"]))
    if all("updates" in case["programs"] for case in cases):
        parts.append(share_table(cases, result["matmul_flops_per_second"], result.get("kernel_seconds")))
    if result["hardware"].get("gpu") is None:
        parts.append("No GPU was at hand, so no kernel launches were counted.")
    if result["scale"] == 1 and (rows := claim_rows(result)):
        parts.append(claim_table(rows))
    elif result["scale"] != 1:
        parts.append(
            f"Runs were shortened to {result['scale']:g} of their length: this shows that everything works, and no speed."
        )
    return "\n\n".join(parts)


def about(result: Mapping[str, Any], programs: Mapping[str, Program]) -> str:
    hardware = result["hardware"]
    lines = [
        f"`{result['command']}`, {result['date']}",
        f"{hardware['gpu'] or hardware['cpu']}, {hardware['cores']} cores, load before: {result['load']}",
    ]
    for side in ("jaxrl", "rejax"):
        if program := programs.get(side):
            lines.append(f"{program['name']}: " + ", ".join(f"{name} {text}" for name, text in program["versions"].items()))
    return "\n".join(f"* {line}" for line in lines)


def speed_table(cases: Sequence[Mapping[str, Any]]) -> str:
    header = [
        "case",
        "program",
        "env steps/s",
        "of the bound",
        "compile, s",
        "cached, s",
        "peak, MB",
        "parameters",
        "steps",
        "return",
    ]
    launches = any("launches_per_iteration" in program for case in cases for program in case["programs"].values())
    rows = []
    for case in cases:
        bound = median(rates(case["programs"]["random"]))
        for side, name in NAMES.items():
            if (program := case["programs"].get(side)) is None:
                if side == "rejax" and case.get("no_peer"):
                    rows.append(["", name, case["no_peer"], *["–"] * (len(header) + launches - 3)])
                continue
            returns = program["returns"]
            row = [
                case["title"] if side == "jaxrl" else "",
                name,
                with_range(rates(program), short),
                f"{median(rates(program)) / bound:.1%}",
                f"{median(program['compile_seconds']):.2f}",
                f"{median(program['cached_compile_seconds']):.2f}",
                f"{peak(program) / 2**20:,.0f}",
                f"{program['parameters']:,}" if program["parameters"] else "–",
                short(program["total_steps"]),
                with_error(mean(returns), standard_error(returns)),
            ]
            rows.append(row + ([f"{program['launches_per_iteration']:,.0f}"] if launches else []))
    legend = (
        "Medians (least–greatest). *steps*: per seed. *return*: greedy, at the end, mean ± standard error over seeds and rounds. "
        "*random policy*: the same rollouts without network and learning."
    )
    return table(header + ["kernels/iteration"] * launches, rows) + "\n\n" + legend


def ratio_table(cases: Sequence[Mapping[str, Any]]) -> str:
    """jaxrl beside Rejax: medians of paired ratios."""
    rows = []
    for case in cases:
        ours, theirs = case["programs"]["jaxrl"], case["programs"]["rejax"]
        difference, error = return_difference(case["programs"])
        rows.append(
            [
                case["title"],
                with_range(paired(rates(ours), rates(theirs))),
                with_range(paired(ours["compile_seconds"], theirs["compile_seconds"])),
                with_range(paired(ours["cached_compile_seconds"], theirs["cached_compile_seconds"])),
                f"{peak(ours) / peak(theirs):.2f}",
                with_error(difference, error, "+") if ours["total_steps"] == theirs["total_steps"] else "not the same steps",
            ]
        )
    header = ["jaxrl / Rejax", "speed", "compile seconds", "cached", "peak memory", "return, difference"]
    return table(header, rows) + "\n\nMedians of the ratios of paired measurements (least–greatest)."


# ---------------------------------------------------------------------------------------------------------------------- scores


def score_report(results: Sequence[Mapping[str, Any]]) -> str:
    """One table of ``scores/*.json``."""
    rows = []
    for result in results:
        rows.append(
            [
                result["name"],
                f"{result['total_steps']:,}",
                f"{len(result['seeds'])}",
                interval_text(result["mean"], *result["interval"]),
                shown(min(result["scores"]), result["mean"]),
                result["asked"],
                "yes" if result["passed"] else "NO",
                f"{result['train_seconds']:.0f}",
            ]
        )
    header = ["experiment", "steps", "seeds", "mean [95 %]", "least", "asked", "passed", "training, s"]
    legend = "A score is the mean of 128 greedy episodes at the end of training; the interval is a bootstrap over seeds."
    return "## Scores\n\n" + table(header, rows) + "\n\n" + legend


# ----------------------------------------------------------------------------------------------------------------------- tables


def render(folder: Path) -> str:
    """Every result in a folder, as Markdown.

    Raises:
      FileNotFoundError: there is none.
    """
    parts = [speed_report(result) for result in read_speed(folder)]
    if scores := [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "scores").glob("*.json"))]:
        parts.append(score_report(scores))
    if (path := folder / "overhead.json").exists():
        from benchmarks.overhead import overhead_report

        parts.append(overhead_report(json.loads(path.read_text(encoding="utf-8"))))
    if not parts:
        raise FileNotFoundError(
            f"no results in {folder}: run 'python -m benchmarks speed' or 'python -m benchmarks scores' first"
        )
    return "\n\n".join(parts) + "\n"
