"""Markdown tables, made from results alone. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.cases import GROUPS
from benchmarks.claims import TITLES, claim_rows, claim_table
from benchmarks.markdown import table
from benchmarks.numbers import Program, paired, peak, rates, return_difference, short, standard_error, with_error, with_range
from benchmarks.pictures import read_scores
from benchmarks.score_report import score_report
from benchmarks.summary import read_speed
from benchmarks.work import share_table, work_table

NAMES = {
    "jaxrl": "jaxrl",
    "vmapped": "jaxrl, seeds vmapped",
    "rejax": "Rejax",
    "plain": "plain JAX",
    "sbx": "SBX",
    "random": "random policy",
}
"""Names of the sides that are whole programs; the other sides are parts of a program."""
OTHERS = (
    "race",
    "reproductions",
    "overhead",
    "replay",
    "sampling",
    "learners",
    "actors",
    "evolution",
    "staleness",
    "remote",
    "memory",
    "roofline",
    "scaling",
    "offline",
    "teams",
    "datasets",
    "fine_tuning",
    "distillation",
    "reincarnation",
    "constraint",
    "privileged",
    "connect_four",
    "self_play",
    "search",
)
"""Measurements with a module each, which has a function ``NAME_report``."""


# ----------------------------------------------------------------------------------------------------------------------- speed


def speed_report(result: Mapping[str, Any]) -> str:
    """Return the tables of one ``speed-GROUP-PROCESSOR.json``."""
    cases = result["cases"]
    parts = [
        f"## Speed: {GROUPS[result['group']]}",
        about(result, {side: program for case in cases for side, program in case["programs"].items()}),
        speed_table(cases),
    ]
    for side in TITLES:
        if compared := [case for case in cases if side in case["programs"]]:
            parts.append(ratio_table(compared, side))
    if any("plain" in case["programs"] for case in cases):
        parts.append(PLAIN)
    if any("sbx" in case["programs"] for case in cases):
        parts.append(SBX)
    if left_out := [TITLES[side] for side in result.get("without", ()) if any(side in _asked(case) for case in cases)]:
        parts.append(f"Not measured (`--without-peer`): {', '.join(left_out)}.")
    if "matmul_flops_per_second" in result:
        parts.append(work_table(cases, result["matmul_flops_per_second"]))
    if all("updates" in case["programs"] for case in cases):
        parts.append(share_table(cases, result["matmul_flops_per_second"], result.get("kernel_seconds")))
    if result["hardware"].get("gpu") is None:
        parts.append("No GPU was available, so kernel launches were not counted.")
    if result["scale"] == 1 and (rows := claim_rows(result)):
        parts.append(claim_table(rows))
    elif result["scale"] != 1:
        parts.append(
            f"Runs were shortened to {result['scale']:g} of their length. This shows that everything works, and says nothing "
            "about speed."
        )
    return "\n\n".join(parts)


PLAIN = (
    "*plain JAX* is PPO in one file, `benchmarks/plain_peer.py`, with the structure of PureJaxRL's, which is not a package. As "
    "there, all seeds are in one `vmap`."
)
SBX = (
    "SBX steps gymnasium's environment in Python, one step at a time. jaxrl uses gymnax's environment of the same name, compiled "
    "into its training program. The comparison is between whole trainings, not between updates alone. SBX compiles for each new "
    "model, so neither its warm-up nor its first updates are in the timed sections."
)


def _asked(case: Mapping[str, Any]) -> list[str]:
    """Return the peers that a case is compared with."""
    return [*([] if case.get("no_peer") else ["rejax"]), *case.get("beside", ())]


def about(result: Mapping[str, Any], programs: Mapping[str, Program]) -> str:
    hardware = result["hardware"]
    lines = [
        f"`{result['command']}`, {result['date']}",
        f"{hardware['gpu'] or hardware['cpu']}, {hardware['cores']} cores, load before: {result['load']}",
    ]
    for side in ("jaxrl", "rejax", "plain", "sbx"):
        if program := programs.get(side):
            lines.append(f"{program['name']}: " + ", ".join(f"{name} {text}" for name, text in program["versions"].items()))
    return "\n".join(f"* {line}" for line in lines)


COMPILATIONS = ("compile_seconds", "cached_compile_seconds")


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
                *(f"{median(program[name]):.2f}" if name in program else "–" for name in COMPILATIONS),
                f"{peak(program) / 2**20:,.0f}",
                f"{program['parameters']:,}" if program["parameters"] else "–",
                short(program["total_steps"]),
                with_error(mean(returns), standard_error(returns)),
            ]
            rows.append(row + ([f"{program['launches_per_iteration']:,.0f}"] if launches else []))
    legend = (
        "Medians (minimum–maximum). *steps*: per seed. *return*: greedy, after training, mean ± standard error over seeds and "
        "rounds. *random policy*: the same rollouts without a network and without learning."
    )
    return table(header + ["kernels/iteration"] * launches, rows) + "\n\n" + legend


def ratio_table(cases: Sequence[Mapping[str, Any]], side: str = "rejax") -> str:
    """Return a table that compares jaxrl with another side: medians of paired ratios."""
    rows = []
    for case in cases:
        ours, theirs = case["programs"]["jaxrl"], case["programs"][side]
        difference, error = return_difference(case["programs"], side)
        rows.append(
            [
                case["title"],
                with_range(paired(rates(ours), rates(theirs))),
                *(with_range(paired(ours[name], theirs[name])) if name in theirs else "–" for name in COMPILATIONS),
                f"{peak(ours) / peak(theirs):.2f}",
                with_error(difference, error, "+")
                if ours["total_steps"] == theirs["total_steps"]
                else "different number of steps",
            ]
        )
    header = [f"jaxrl / {TITLES[side]}", "speed", "compile seconds", "cached", "peak memory", "return, difference"]
    return table(header, rows) + "\n\nMedians of the ratios of paired measurements (minimum–maximum)."


# ----------------------------------------------------------------------------------------------------------------------- tables


def render(folder: Path, *, with_scores: bool = True) -> str:
    """Render every result in a folder as Markdown.

    Raises:
      FileNotFoundError: The folder has no results.
    """
    parts = [speed_report(result) for result in read_speed(folder)]
    if with_scores and (scores := read_scores(folder / "scores")):
        parts.append(score_report(scores))
    for name in OTHERS:
        if (path := folder / f"{name}.json").exists():
            report = getattr(import_module(f"benchmarks.{name}"), f"{name}_report")  # they import jax
            parts.append(report(json.loads(path.read_text(encoding="utf-8"))))
    if not parts:
        raise FileNotFoundError(
            f"no results in {folder}: run 'python -m benchmarks speed' or 'python -m benchmarks scores' first"
        )
    return "\n\n".join(parts) + "\n"
