"""Speed of evolution strategies over whole trainings: episodes per second on CartPole, compared with evosax's own loop, and rows
per second on an environment of brax, compared with brax's.

Each side trains from the beginning with the same members, episodes, network and optimiser, in turn: jaxrl as ``jaxrl.run`` does
it, on one CPU device per core, evosax as its notebooks do it, on JAX's one default device, which may use all cores. A generation
of jaxrl ends with its last episode, and leaves out members that have finished; the others always play all rows of the limit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.markdown import table
from benchmarks.peer import EVOSAX
from benchmarks.protocol import Worker, clean_environment
from benchmarks.record import write_result

CASE: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_actions": 2,
    "members": 128,
    "episodes": 4,
    "hidden_sizes": [64, 64],
    "sigma": 0.05,
    "learning_rate": 0.03,
    "generations": 20,
}
SIZES = ((64, 64), (256, 256))
SIDES = ("jaxrl", "jaxrl, low rank", "evosax")
ASKED = 2.0
"""Required ratio of episodes per second to evosax's."""
BRAX_CASE: dict[str, Any] = {
    "env": "brax:inverted_pendulum",
    "limit": 1000,
    "members": 128,
    "episodes": 1,
    "hidden_sizes": [64, 64],
    "sigma": 0.1,
    "learning_rate": 0.03,
    "generations": 20,
}
BRAX_SIDES = ("jaxrl", "brax")
ASKED_OF_BRAX = 1.2
"""Required ratio of rows per second to brax's, without rows after the end of an episode."""


def measure(repeats: int, scale: float, out: Path) -> dict[str, Any]:
    """Measure all sides in turn, and write ``out/evolution.json``.

    Args:
      scale: share of the generations, to check that everything works.
    """
    EVOSAX.install()
    load = machine.load_with_warning()
    generations = max(2, round(CASE["generations"] * scale))
    cases = [{**CASE, "hidden_sizes": list(sizes), "generations": generations} for sizes in SIZES]
    measured = [measure_case(case, repeats) for case in cases]
    brax = measure_case({**BRAX_CASE, "generations": generations}, repeats, BRAX_SIDES)
    return write_result(out, "evolution", cases=measured, brax=brax, load=load, scale=scale)


def measure_case(case: dict[str, Any], repeats: int, sides: Sequence[str] = SIDES) -> dict[str, Any]:
    """Return the seconds of the trainings of a case, by side."""
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        environment = clean_environment(Path(cache))
        workers = {side: stack.enter_context(Worker(command_of(side, case), environment)) for side in sides}
        about = {side: worker.ask("about") for side, worker in workers.items()}
        for worker in workers.values():
            worker.ask("train", seed=0)  # compiles
        trained: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
        for seed in range(1, repeats + 1):
            for side, worker in workers.items():
                trained[side].append(worker.ask("train", seed=seed))
    return {"case": case, "about": about, "trained": trained}


def command_of(side: str, case: dict[str, Any]) -> list[str]:
    if side == "evosax":
        return [str(EVOSAX.python), "-m", "benchmarks.evosax_peer", json.dumps(case)]
    if side == "brax":
        return [sys.executable, "-m", "benchmarks.brax_peer", json.dumps(case)]
    return [sys.executable, "-m", "benchmarks.evolution_side", json.dumps(case), "low_rank" if "low" in side else "normal"]


def figures(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the figures of a case by side: episodes per second over a training, in its first and in its last generation, and the
    mean return of the last; medians over trainings."""
    case = result["case"]
    number = case["members"] * case["episodes"]

    def of_side(trained: list[dict[str, Any]]) -> dict[str, float]:
        return {
            "training": median(case["generations"] * number / sum(each["seconds"]) for each in trained),
            "first": median(number / each["seconds"][0] for each in trained),
            "last": median(number / each["seconds"][-1] for each in trained),
            "return": median(each["returns"][-1] for each in trained),
        }

    return {side: of_side(trained) for side, trained in result["trained"].items()}


def row_rates(result: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return rows per second and the mean return of the last generation by side, without the first generation, in which brax
    compiles; medians over trainings."""
    return {
        side: (
            median(sum(each["rows"][1:]) / sum(each["seconds"][1:]) for each in trained),
            median(each["returns"][-1] for each in trained),
        )
        for side, trained in result["trained"].items()
    }


def evolution_report(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    rows, asked = [], []
    for case in result["cases"]:
        found = figures(case)
        sizes = "×".join(map(str, case["case"]["hidden_sizes"]))
        for side in SIDES:
            each, peer = found[side], found["evosax"]
            ratio = each["training"] / peer["training"]
            speeds = [f"{each[name]:,.0f}" for name in ("training", "first", "last")]
            rows.append([f"{sizes}, {side}", *speeds, f"{ratio:.2f}", f"{each['return']:.0f}"])
            if side == "jaxrl":
                met = "yes" if ratio >= ASKED else "NO"
                asked.append([f"episodes/s of evosax's, {sizes}", f"≥ {ASKED:g}×", f"{ratio:.2f}×", met])
    rates = row_rates(result["brax"])
    ratio = rates["jaxrl"][0] / rates["brax"][0]
    met = "yes" if ratio >= ASKED_OF_BRAX else "NO"
    asked.append([f"rows/s of brax's, {result['brax']['case']['env']}", f"≥ {ASKED_OF_BRAX:g}×", f"{ratio:.2f}×", met])
    headings = ["network", "episodes/s", "first generation", "last generation", "of evosax", "return"]
    versions = result["cases"][0]["about"]["evosax"]["versions"] | result["brax"]["about"]["brax"]["versions"]
    hardware = result["hardware"]
    case = result["cases"][0]["case"]
    machine_line = f"{hardware['cpu']}, {hardware['cores']} cores, load before: {result['load']}"
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        "## Evolution strategies on CartPole",
        f"* `{result['command']}`, {result['date']}\n* {machine_line}\n* {packages}",
        table(headings, rows),
        f"Medians of whole trainings of {case['generations']} generations of {case['members']} members with {case['episodes']} "
        "episodes each. *jaxrl*: normal noise, members divided among a CPU device per core. *evosax*: OpenAI-ES with gymnax, as "
        "its notebooks run it, on JAX's default device, which uses all cores.",
        table(
            [f"on {result['brax']['case']['env']}", "rows/s", "return"],
            [[side, f"{rate:,.0f}", f"{score:.0f}"] for side, (rate, score) in rates.items()],
        ),
        f"*brax*: its own evolution strategies, with {result['brax']['case']['members']} members of one episode and the same "
        "network. Rows are those within episodes, and the first generation is left out.",
        table(["requirement", "asked", "measured", "met"], asked),
    ]
    return "\n\n".join(lines)


def missed(result: dict[str, Any]) -> bool:
    """Return whether the ratio to evosax misses ``ASKED`` for a network, or that to brax misses ``ASKED_OF_BRAX``."""
    found, rates = [figures(case) for case in result["cases"]], row_rates(result["brax"])
    slower = any(each["jaxrl"]["training"] < ASKED * each["evosax"]["training"] for each in found)
    return slower or rates["jaxrl"][0] < ASKED_OF_BRAX * rates["brax"][0]
