"""Fine-tuning: TD3+BC learns from a dataset and continues in the environment. Scores before and at the end, and the dip between.

Each seed learns offline once, and continues from there in two ways: with a share of each batch from the data, and without.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jaxrl
from benchmarks.markdown import Requirement, misses, origin, requirement_table, table
from benchmarks.offline_scores import TASKS, TD3BC
from benchmarks.recipes import check_datasets, path_of
from benchmarks.record import write_result
from benchmarks.scores import bootstrap_interval
from benchmarks.speed import say
from jaxrl.algorithms.presets import interval_text
from jaxrl.runtime.logs.dip import dip
from jaxrl.runtime.logs.records import EVALUATION_RETURN
from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices
from jaxrl.training import num_iterations

BUILDER = "make_td3"
ONLINE: dict[str, Any] = {"cloning": {"name": "td3_bc", "alpha": 60.0}, "replay_ratio": 512}
"""Online, the policy needs to stay less near to the data (Beeson and Montana 2022), and a row has two updates of 256 rows."""
MIXED, ALONE = 0.5, 0.0
"""Shares of a batch that are from the data. The requirements are on the first."""
LEAST_GAIN, MOST_DIP = 0.1, 0.1
"""Required gain of the final score over the offline one, and allowed dip below it: shares of the offline score."""
EVALUATIONS = 20
"""Evaluations of a run that continues, after the one before its first row."""


class Case(NamedTuple):
    """Dataset and lengths of a measurement."""

    data: str = "halfcheetah-replay"
    """Name of a dataset of ``benchmarks.recipes``."""
    updates: int = 50_000
    rows: int = 20_000
    num_seeds: int = 3
    num_envs: int = 4
    rollout_length: int = 16
    episodes: int = 128


def measure(out: Path, work: Path, datasets: Path, case: Case = Case(), *, quiet: bool = False) -> dict[str, Any]:  # noqa: B008
    """Learn offline, continue in both ways, and write ``out/fine_tuning.json``. Interrupted runs resume from ``work``."""
    check_datasets([case.data], datasets)
    request_cpu_devices()
    enable_compilation_cache()
    task, data = TASKS[case.data.partition("-")[0]], jaxrl.load_dataset(path_of(datasets, case.data))
    build, settings = getattr(jaxrl, BUILDER), TD3BC | task.settings
    how: dict[str, Any] = {"seeds": case.num_seeds, "eval_episodes": case.episodes, "tensorboard": False, "quiet": quiet}
    offline = build(task.env, data=data, **settings)
    at_end = num_iterations(offline, case.updates)
    _, history = jaxrl.run(offline, case.updates, out=work / "offline", eval_every=at_end, **how)
    before = history[EVALUATION_RETURN][-1]
    say(f"offline: {before.mean():.0f}")
    online = ONLINE | {"num_envs": case.num_envs, "rollout_length": case.rollout_length}
    ways = dict[str, Any]()
    for ratio in (MIXED, ALONE):
        way, agent = f"{ratio:g}", build(task.env, data=data, online=True, mixing_ratio=ratio, **(settings | online))
        _, history = jaxrl.run(
            agent,
            case.rows,
            out=work / f"online-{way}",
            init_from=work / "offline",
            init_which="last",
            eval_every=max(1, num_iterations(agent, case.rows) // EVALUATIONS),
            **how,
        )
        ways[way] = curve(history)
        say(f"online, {way} of each batch from the data: {np.mean(ways[way]['returns'][-1]):.0f}")
    about = {"case": case._asdict(), "digest": data.info.digest, "settings": settings, "online_settings": online}
    result = write_result(out, "fine_tuning", **about, offline=before.tolist(), online=ways)
    shutil.rmtree(work, ignore_errors=True)
    return result


def curve(history: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the rows at which a run was evaluated, and the returns [evaluations, seeds]."""
    known = ~np.isnan(history[EVALUATION_RETURN]).all(1)
    return {"rows": history["rows"][known].tolist(), "returns": history[EVALUATION_RETURN][known].tolist()}


# --------------------------------------------------------------------------------------------------------------------- figures


def changes(result: Mapping[str, Any], way: str) -> tuple[float, float]:
    """Return the gain at the end and the dip at the beginning, as shares of the offline score's size."""
    found = result["online"][way]
    history = {EVALUATION_RETURN: np.array(found["returns"]), "rows": np.array(found["rows"])}
    seen = dip(history, result["case"]["rows"])
    assert seen is not None, "a run that continues has an evaluation before its first row and in its first tenth"
    before, lowest = seen
    return (np.mean(found["returns"][-1]) - before) / abs(before), (before - lowest) / abs(before)


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    gain, down = changes(result, f"{MIXED:g}")
    return [
        ("gain at the end", f"≥ {LEAST_GAIN:.0%}", f"{gain:.1%}", gain >= LEAST_GAIN),
        ("dip in the first tenth", f"≤ {MOST_DIP:.0%}", f"{down:.1%}", down <= MOST_DIP),
    ]


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def fine_tuning_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    case, rows = Case(**result["case"]), []
    for way, found in result["online"].items():
        returns = np.array(found["returns"])
        gain, down = changes(result, way)
        rows.append([way, *(_with_interval(each) for each in (returns[0], returns[-1])), f"{gain:+.1%}", f"{down:.1%}"])
    lines = [
        "## Fine-tuning",
        origin(result),
        table(["share from the data", "offline", "after the online rows", "gain", "dip"], rows),
        f"TD3+BC on `{case.data}`: {case.updates:,} updates from the dataset, then {case.rows:,} rows in the environment, "
        f"{case.num_seeds} seeds. Mean greedy return of {case.episodes} episodes per seed, with a 95 % bootstrap interval over "
        "seeds. *dip*: how far the lowest evaluation in the first tenth of the rows is below the score before them.",
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)


def _with_interval(returns: np.ndarray) -> str:
    return interval_text(float(returns.mean()), *bootstrap_interval(returns))
