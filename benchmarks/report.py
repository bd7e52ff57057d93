"""Tables in Markdown, from results alone. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from benchmarks.kernels import KERNEL_COLUMNS, kernel_cells
from benchmarks.markdown import table
from jaxrl.algorithms import ALGORITHMS

NAMES = {"jaxrl": "jaxrl", "rejax": "Rejax", "random": "random policy"}
Program = Mapping[str, Any]
Cases = Mapping[str, Mapping[str, Program]]
"""case name -> side -> what was measured"""


# ---------------------------------------------------------------------------------------------------------------------- numbers


class Spread(NamedTuple):
    middle: float
    low: float
    high: float


def spread(values: Iterable[float]) -> Spread:
    """Median, least and greatest."""
    listed = list(values)
    return Spread(median(listed), min(listed), max(listed))


def rates(program: Program) -> list[float]:
    """Environment steps per second of each timed section."""
    return [section["env_steps"] / section["seconds"] for section in program["sections"]]


def paired(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Ratios of what was measured in the same round."""
    return [a / b for a, b in zip(above, below, strict=False)]


def peak(program: Program) -> float:
    return max(section["peak_bytes"] for section in program["sections"])


def standard_error(values: Sequence[float]) -> float:
    """Of the mean; NaN where a single value gives none."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def return_difference(programs: Mapping[str, Program]) -> tuple[float, float]:
    """jaxrl's mean return minus Rejax's, and its standard error."""
    ours, theirs = (programs[side]["returns"] for side in ("jaxrl", "rejax"))
    return mean(ours) - mean(theirs), math.hypot(standard_error(ours), standard_error(theirs))


def short(x: float) -> str:
    """652k, 9.02k, 1.3M: three figures."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{float(f'{x / size:.3g}'):g}{unit}"
    return f"{x:.3g}"


def with_range(values: Iterable[float], show: Callable[[float], str] = "{:.2f}".format) -> str:
    middle, low, high = spread(values)
    return f"{show(middle)} ({show(low)}–{show(high)})"


def with_error(value: float, error: float, sign: str = "") -> str:
    return f"{value:{sign}.1f}" + ("" if math.isnan(error) else f" ± {error:.1f}")


# ----------------------------------------------------------------------------------------------------------------------- speed


class Claim(NamedTuple):
    """What jaxrl should reach: a ratio, at least or at most."""

    text: str
    algorithm: str
    ratios: Callable[[Cases], list[float]]
    limit: float
    at_least: bool = True

    def met(self, cases: Cases) -> bool:
        value = median(self.ratios(cases))
        return value >= self.limit if self.at_least else value <= self.limit


def _faster(text: str, case: str, limit: float) -> Claim:
    return Claim(f"{text}: speed, × Rejax", case[:3], lambda c: paired(rates(c[case]["jaxrl"]), rates(c[case]["rejax"])), limit)


def _compiles(text: str, case: str) -> tuple[Claim, Claim]:
    def cold(cases: Cases) -> list[float]:
        return paired(*(cases[case][side]["compile_seconds"] for side in ("jaxrl", "rejax")))

    def cached(cases: Cases) -> list[float]:
        return paired(*(cases[case]["jaxrl"][name] for name in ("cached_compile_seconds", "compile_seconds")))

    return (
        Claim(f"{text}: trace and compile, × Rejax", case[:3], cold, 1.25, at_least=False),
        Claim(f"{text}: trace and compile from the cache, × cold", case[:3], cached, 1 / 3, at_least=False),
    )


CLAIMS = (
    _faster("PPO, 1 seed", "ppo-1-seed", 1.1),
    _faster("PPO, 8 seeds", "ppo-8-seeds", 2.0),
    *_compiles("PPO, 1 seed", "ppo-1-seed"),
    *_compiles("PPO, 8 seeds", "ppo-8-seeds"),
    _faster("DQN, buffer 10k", "dqn-10k", 1.5),
    _faster("DQN, buffer 100k", "dqn-100k", 5.0),
    Claim(
        "DQN, time per step with buffer 1M, × with 10k",
        "dqn",
        lambda c: paired(rates(c["dqn-10k"]["jaxrl"]), rates(c["dqn-1m"]["jaxrl"])),
        1.1,
        at_least=False,
    ),
    *_compiles("DQN, buffer 10k", "dqn-10k"),
)

RETURNS = (
    ("PPO, 1 seed", "ppo-1-seed"),
    ("PPO, 8 seeds", "ppo-8-seeds"),
    ("DQN, buffer 10k", "dqn-10k"),
    ("DQN, buffer 100k", "dqn-100k"),
)
"""Where the returns are compared as well: speed counts at an equal or better one only."""


def speed_report(result: Mapping[str, Any]) -> str:
    """The tables of one ``speed-ALGORITHM.json``."""
    cases = result["cases"]
    parts = [
        f"## Speed: {ALGORITHMS[result['algorithm']].title} on CartPole",
        about(result, cases[0]["programs"]),
        speed_table(cases),
    ]
    if "rejax" in cases[0]["programs"]:
        parts.append(ratio_table(cases))
    if "matmul_flops_per_second" in result:
        parts.append(work_table(cases, result["matmul_flops_per_second"]))
    if result["hardware"].get("gpu") is None:
        parts.append("No GPU was at hand, so no kernel launches were counted.")
    if result["scale"] == 1:
        parts.append(claim_table(claim_rows(result)))
    else:
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
    for program in programs.values():
        if program is not programs.get("random"):
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
        for side, program in case["programs"].items():
            returns = program["returns"]
            row = [
                case["title"] if side == "jaxrl" else "",
                NAMES[side],
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


def work_table(cases: Sequence[Mapping[str, Any]], matmul_rate: float) -> str:
    """What jaxrl's programs consist of, and how near their matrix products come to the machine's rate."""
    counted = all("kernels" in case["programs"]["jaxrl"] for case in cases)
    rows = []
    for case in cases:
        ours = case["programs"]["jaxrl"]
        speeds = [ours["matmul_flops"] / section["seconds"] for section in ours["sections"]]
        row = [case["title"], *(kernel_cells(ours["kernels"]) if counted else [])]
        rows.append([*row, with_range(speeds, short), f"{median(speeds) / matmul_rate:.1%}"])
    header = ["jaxrl", *(f"kernels/{name}" for name in KERNEL_COLUMNS if counted), "matmul flop/s", "of the machine's"]
    legend = (
        "*kernels*: that the compiled program starts per device. *matmul flop/s*: those of the matrix products of training, over "
        f"all of its time (least–greatest). At products of large f32 matrices this machine does {short(matmul_rate)}flop/s."
    )
    return table(header, rows) + "\n\n" + legend


def claim_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """What is asked of jaxrl; claims about the peer are left out where it was not measured."""
    algorithm, cases = result["algorithm"], {case["name"]: case["programs"] for case in result["cases"]}
    rows = []
    for claim in CLAIMS:
        if claim.algorithm == algorithm:
            try:
                ratios = claim.ratios(cases)
            except KeyError:
                continue
            asked = f"{'≥' if claim.at_least else '≤'} {claim.limit:.2f}"
            rows.append([claim.text, asked, with_range(ratios), "yes" if claim.met(cases) else "NO"])
    for text, name in RETURNS:
        if name.startswith(algorithm) and "rejax" in cases[name]:
            difference, error = return_difference(cases[name])
            met = "–" if math.isnan(error) else "yes" if difference >= -2 * error else "NO"
            rows.append([f"{text}: return − Rejax's", "≥ −2 s.e.", with_error(difference, error, "+"), met])
    return rows


def claim_table(rows: Sequence[Sequence[str]]) -> str:
    return table(["asked of jaxrl", "limit", "measured", "met"], rows)


def missed_claims(result: Mapping[str, Any]) -> bool:
    """Whether something that is asked was not reached; shortened runs say nothing about it."""
    return result["scale"] == 1 and any(row[-1] == "NO" for row in claim_rows(result))


# ---------------------------------------------------------------------------------------------------------------------- scores


def score_report(results: Sequence[Mapping[str, Any]]) -> str:
    """One table of ``scores/*.json``."""
    rows = []
    for result in results:
        low, high = result["interval"]
        rows.append(
            [
                result["name"],
                f"{result['total_steps']:,}",
                f"{len(result['seeds'])}",
                f"{result['mean']:.1f} [{low:.1f}, {high:.1f}]",
                f"{min(result['scores']):.1f}",
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
    read = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("speed-*.json"), reverse=True)]
    parts = [speed_report(result) for result in read]
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
