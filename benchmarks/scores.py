"""Scores: train all seeds in one jit, evaluate greedily at the end, store the results. The same command resumes after a break."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxrl
from benchmarks import machine, pictures
from benchmarks.asked_returns import asked_returns, rank_correlation
from benchmarks.experiment import Experiment
from benchmarks.first_values import first_values, overestimation
from benchmarks.recipes import FOLDER, check_datasets, path_of
from benchmarks.thin import thin_history, write_thin
from jaxrl.builder.old_specs import converted
from jaxrl.builder.spec import algorithm_name
from jaxrl.replay.dataset import Dataset
from jaxrl.runtime.console.progress import duration
from jaxrl.runtime.logs.provenance import commit, installed_versions
from jaxrl.runtime.logs.records import EVALUATION_RETURN, TRAINING_RETURN
from jaxrl.runtime.logs.run_folder import plain
from jaxrl.runtime.system.devices import request_cpu_devices
from jaxrl.training import num_iterations
from jaxrl.types import Agent

CAME_LATER = (
    "at_most",
    "last_episodes",
    "run",
    "data",
    "most_above",
    "against",
    "draw_points",
    "further_opponents",
    "least_correlation",
)
"""Fields of experiments that older results lack."""
CURVE_EVALUATIONS = 5
"""Evaluations that give the curve of an agent that learns from a dataset, and so has no episodes of training."""


def run_experiment(
    experiment: Experiment, out: Path, work: Path, *, datasets: Path = FOLDER, force: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Run an experiment to its end, or read the existing result of an equal one.

    Args:
      out: Folder for ``NAME.json``.
      work: Folder that holds the run in ``NAME/`` until the end.
      datasets: Folder of the datasets.
      force: Run it even if its result, or a partial run, exists.
      quiet: Print nothing.

    Returns:
      The contents of ``NAME.json``.

    Raises:
      FileExistsError: ``work`` holds a run of the same name with other settings.
      FileNotFoundError: ``datasets`` does not hold the dataset of the experiment.
    """
    path, folder = out / f"{experiment.name}.json", work / experiment.name
    if force:
        shutil.rmtree(folder, ignore_errors=True)
    elif (done := finished(path, experiment, datasets)) is not None:
        if not quiet:
            print(f"{experiment.name}: result exists in {path} (--force runs it again)")
        return done
    result = train_and_evaluate(experiment, folder, quiet, datasets)
    out.mkdir(parents=True, exist_ok=True)
    write_thin(path, result)
    shutil.rmtree(folder, ignore_errors=True)
    if not quiet:
        verdict = "passed" if result["passed"] else "NOT passed"
        _, score = pictures.headings(result)
        took = duration(result["train_seconds"])
        print(f"{experiment.name}: {score}; required: {experiment.asked}, {verdict}; trained in {took}; run folder deleted")
    return result


def describe(experiment: Experiment) -> dict[str, Any]:
    """Return the experiment as read back from JSON, so that equal experiments compare equal."""
    defaults = Experiment._field_defaults
    fields = {name: x for name, x in experiment._asdict().items() if name not in CAME_LATER or x != defaults[name]}
    return json.loads(json.dumps({name: "any" if x == math.inf else x for name, x in fields.items()}))


def finished(path: Path, experiment: Experiment, datasets: Path = FOLDER) -> dict[str, Any] | None:
    """Return the result of the same experiment, on the same dataset, if it exists, else None."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    found, asked = result.get("experiment", {}), describe(experiment)
    if found == asked:
        return result if is_of_this_data(experiment, result, datasets) else None
    if experiment.data:
        return None
    rewritten = {**found, "settings": asked["settings"]} == asked and is_agent_of(experiment, result["spec"])
    return result if rewritten else None


def is_agent_of(experiment: Experiment, spec: dict[str, Any]) -> bool:
    """Return True if a result's spec is that of the experiment's agent. Results of jaxrl 0.2 have flat settings."""
    return json.loads(json.dumps(plain(build_agent(experiment).spec))) == converted(spec)


def is_of_this_data(experiment: Experiment, result: dict[str, Any], datasets: Path) -> bool:
    """Return False if the folder holds another dataset of this name than the result's."""
    try:
        record = json.loads(path_of(datasets, experiment.data).with_suffix(".json").read_text(encoding="utf-8"))
    except OSError:
        return True
    return record["digest"] == result["spec"]["parts"]["data"]["dataset"]["digest"]


def check_data(experiments: Iterable[Experiment], out: Path, datasets: Path, *, force: bool = False) -> None:
    """Raise FileNotFoundError unless there are the datasets of all experiments that ``run_experiment`` would run."""

    def is_run(each: Experiment) -> bool:
        return force or finished(out / f"{each.name}.json", each, datasets) is None

    check_datasets({each.data for each in experiments if each.data and is_run(each)}, datasets)


def data_of(experiment: Experiment, datasets: Path) -> Dataset | None:
    """Return the dataset of an experiment. Its path is recorded without the folder, which may be anywhere."""
    if not experiment.data:
        return None
    data = jaxrl.load_dataset(path_of(datasets, experiment.data))
    return dataclasses.replace(data, info=dataclasses.replace(data.info, path=path_of(FOLDER, experiment.data).as_posix()))


def build_agent(experiment: Experiment, data: Dataset | None = None) -> Agent:
    request_cpu_devices()  # building an environment may start JAX's backend
    source = {} if data is None else {"data": data}
    return getattr(jaxrl, experiment.builder)(experiment.env, **source, **experiment.settings)


def train_and_evaluate(
    experiment: Experiment, folder: Path, quiet: bool, datasets: Path = FOLDER, first_seed: int = 0
) -> dict[str, Any]:
    """Train, evaluate, and return the contents of the result file."""
    request_cpu_devices()  # reading a dataset starts JAX's backend
    agent = build_agent(experiment, data_of(experiment, datasets))
    iterations = num_iterations(agent, experiment.total_steps)
    seeds = list(range(first_seed, first_seed + experiment.num_seeds))
    states, history = jaxrl.run(
        agent,
        experiment.total_steps,
        seeds=seeds,
        out=folder,
        eval_every=max(1, iterations // CURVE_EVALUATIONS) if experiment.data else iterations,  # at the end
        eval_episodes=experiment.episodes,
        tensorboard=False,
        quiet=quiet,
        **experiment.run,
    )
    scores, details = history[EVALUATION_RETURN][-1], dict[str, Any]()
    if experiment.last_episodes:
        trained = training_returns(history, experiment.last_episodes)
        details = {"greedy": scores.tolist(), "episodes": min(trained.episodes)}
        scores = trained.mean
    further = dict[str, Any]()
    if experiment.against:
        details["self_play"] = scores.tolist()
        scores = shares_of_points(agent, states, experiment, experiment.against, experiment.draw_points)
    if experiment.further_opponents:
        further["opponents"] = {
            name: shares_of_points(agent, states, experiment, name).tolist() for name in experiment.further_opponents
        }
    if experiment.most_above is not None:
        details["values"] = first_values(agent, states, experiment.episodes)
        further["above"] = overestimation(details["values"])
    if experiment.least_correlation is not None:
        details["asked_returns"] = asked_returns(agent, states, experiment.episodes)
        further["correlation"] = rank_correlation(details["asked_returns"])
    return {
        "name": experiment.name,
        "agent": algorithm_name(agent.spec),
        "experiment": describe(experiment),
        "asked": experiment.asked,
        "passed": experiment.passes(scores.tolist(), **further),
        "mean": float(scores.mean()),
        "interval": bootstrap_interval(scores),
        "scores": scores.tolist(),
        **details,
        **further,
        "seeds": seeds,
        "total_steps": int(history["rows"][-1]),
        "train_seconds": train_seconds(history),
        "command": f"python -m benchmarks scores {experiment.name}",  # also if others ran before, or from other folders
        "date": machine.timestamp(),
        "commit": commit(),
        "versions": {"python": platform.python_version()} | installed_versions(),
        "hardware": machine.hardware() | {"devices": [f"{device.platform}:{device.id}" for device in jax.local_devices()]},
        "spec": plain(agent.spec),
        "history": thin_history(history),
    }


def shares_of_points(agent: Agent, states: Any, experiment: Experiment, opponent: str, draw_points: float = 0.5) -> np.ndarray:
    """Return the share of the points that the policy of each seed gets against an opponent, f64[num_seeds]."""
    shares = []
    for seed in range(experiment.num_seeds):
        state = jax.tree.map(lambda x, seed=seed: x[seed], states)
        players = {"policy": (agent, state), opponent: opponent}
        found = jaxrl.arena(agent.env, players, games=experiment.episodes, seed=seed, opening_moves=0)
        shares.append((found.wins[0, 1] + draw_points * found.draws[0, 1]) / experiment.episodes)
    return np.array(shares)


class Trained(NamedTuple):
    """Training returns at the end of a run."""

    mean: np.ndarray
    """Mean of each seed."""
    episodes: list[int]
    """Number of episodes in each seed's mean."""


def training_returns(history: dict[str, np.ndarray], num_episodes: int) -> Trained:
    """Return the means over all episodes of the last chunks that together hold ``num_episodes``.

    Each end of an episode is followed by a reset row, which is not a step. So the reset rows of a chunk count its episodes. An
    episode that ends with the chunk has its reset row in the next one.
    """
    resets = np.diff(history["rows"][:, None] - history["env_steps"], axis=0, prepend=0)
    means, counts = [], []
    for returns, ended in zip(history[TRAINING_RETURN].T, resets.T, strict=True):
        ended = np.where(np.isnan(returns), 0, np.maximum(ended, 1))
        enough = np.flatnonzero(ended[::-1].cumsum() >= num_episodes)
        last = slice(-1 - enough[0] if enough.size else 0, None)
        means.append(np.average(np.nan_to_num(returns[last]), weights=ended[last]) if ended[last].any() else np.nan)
        counts.append(int(ended[last].sum()))
    return Trained(np.array(means), counts)


def train_seconds(history: dict[str, np.ndarray]) -> float:
    """Return the seconds of training in all sessions, without compilation and evaluation.

    The first record has no rate, since nothing was trained yet.
    """
    return float(np.nansum(np.diff(history["env_steps"].sum(axis=1), prepend=0) / history["sps"]))


def bootstrap_interval(scores: np.ndarray) -> list[float]:
    """Return the 95 % bootstrap interval of the mean over seeds."""
    from scipy.stats import bootstrap

    if len(scores) < 2 or np.ptp(scores) == 0:  # scipy needs two values, and warns if all are equal
        return [float(scores.min()), float(scores.max())]
    interval = bootstrap((scores,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    return [float(interval.low), float(interval.high)]
