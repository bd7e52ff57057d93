"""``jaxrl eval RUN …``: evaluate the policies of runs, and report returns as a table and as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxrl.runtime.cli.flags import Count, PlayOptions, read_flags, shown_as

if TYPE_CHECKING:
    import numpy as np

    from jaxrl.runtime.evaluation.evaluate_runs import RunScore

COLUMNS = ("run", "algorithm", "environment", "seeds", "return", "IQM [95 %]", "worst seed", "best seed", "length")

HELP = """\
Evaluate the policies of runs, and print their returns: mean ± standard deviation over seeds, the interquartile mean over seeds
with its 95 % bootstrap interval (with fewer than 4 seeds it is the mean), the worst and the best seed, and the mean length.

A return is the sum of the raw rewards of an entire episode. Every policy plays the same number of episodes, each in a separate
environment, so that short episodes are not favoured. Episodes depend only on the seed and --eval-seed: the same command prints
the same numbers, all runs play the same episodes, and no policy was selected by them.

With --data no environment is played: the discounted value of each policy is estimated from the rows of a dataset by fitted Q
evaluation, with its standard error over four critics.

try:
  jaxrl eval runs/cartpole                                   the best policies of all seeds
  jaxrl eval runs --json scores.json                         every run below a folder
  jaxrl eval runs/a runs/b --which last --explore            the last policies, acting as in training
  jaxrl eval runs/cartpole --env "CartPole-v1?length=0.8"    in a different environment than in training
  jaxrl eval runs/iql --data mixed.npz                       estimated values, from a dataset alone

Ctrl-C stops and reports the runs that are done. Runs found below a folder that cannot be played are skipped and reported; the
exit code is then 1.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions(PlayOptions):
    """Options of ``jaxrl eval``."""

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN …]", help_behavior_hint="")]
    """Folders of runs, or folders that contain runs."""
    episodes: Count = 128
    """Episodes per seed."""
    seed: Annotated[tuple[int, ...], tyro.conf.UseAppendAction, shown_as("S", "all")] = ()
    """Only this seed of each run; can be repeated."""
    max_steps: Annotated[Count | None, shown_as("INT", "the environment's limit")] = None
    """Steps after which an episode is cut; its return so far counts."""
    data: Annotated[str | None, shown_as("FILE", "none")] = None
    """Estimate values from this dataset instead of playing: a file, a folder, or minari:ID."""
    gamma: Annotated[float | None, shown_as("FLOAT", "the run's, with --data")] = None
    """Discount per step of values that are estimated."""
    updates: Annotated[Count | None, shown_as("INT", "20,000, with --data")] = None
    """Gradient steps of an estimate."""
    json: Annotated[str | None, shown_as("FILE")] = None
    """Write returns and lengths of all episodes, settings and versions to this file; '-' is the standard output."""

    def check(self) -> None:
        from jaxrl.runtime.system.disk import check_writable

        if not self.runs:
            raise ValueError("name at least one folder of a run: jaxrl eval RUN")
        super().check()
        self.check_effect()
        if self.json not in (None, "-"):
            check_writable(self.json, "json")

    def check_effect(self) -> None:
        """Raise ValueError for an option that has no effect with, or without, a dataset."""
        of_playing, of_data = ("episodes", "max_steps", "env", "eval_seed"), ("gamma", "updates")
        for name in of_data if self.data is None else of_playing:
            if getattr(self, name) != getattr(EvalOptions, name):
                why = "without --data" if self.data is None else "with --data: no episode is played"
                raise ValueError(f"--{name.replace('_', '-')} has no effect {why}: leave it out")

    def settings(self) -> dict[str, Any]:
        """Return the options that have an effect, for the JSON file."""
        without = ("data", "gamma", "updates") if self.data is None else ("episodes", "max_steps", "env", "eval_seed")
        return {name: x for name, x in dataclasses.asdict(self).items() if name not in ("runs", "json", "trust", *without)}


def main(args: Sequence[str]) -> int:
    """Evaluate runs; return 0 if all runs that were found could be evaluated, 1 if some were skipped."""
    options = read_flags(EvalOptions, args or ["--help"], prog="jaxrl eval", description=HELP)
    options.check()
    runs = find_runs(options.runs)
    from jaxrl.envs.host import EnvironmentFailed
    from jaxrl.runtime.cli.user_code import import_env_module, import_trusted
    from jaxrl.runtime.console.progress import spinner
    from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices, request_devices_for

    if options.data is None:
        request_devices_for([options.env] if options.env else [str(spec_of(run).get("env")) for run in runs])
    else:
        request_cpu_devices()
    import_env_module(options.env)
    enable_compilation_cache()
    evaluate, report_all = evaluation(options)
    results: list[Any] = []
    skipped: dict[str, str] = {}
    try:
        with spinner("jaxrl eval") as say:
            for run, named in runs.items():
                try:
                    import_trusted(spec_of(run), options.trust)
                    results.append(evaluate(run, begin=announce, say=say))
                except (ValueError, TypeError, OSError, ImportError, EnvironmentFailed) as error:
                    if named:
                        raise
                    skipped[run] = " ".join(str(error).split())
    finally:  # report finished runs also after an error or Ctrl-C
        if results:
            report_all(results)
    for run, reason in skipped.items():
        print(f"skipped {run}: {reason}", file=sys.stderr)
    if not results:
        raise ValueError(f"none of the {len(runs)} runs that were found can be evaluated")
    return 1 if skipped else 0


def evaluation(options: EvalOptions) -> tuple[Callable[..., Any], Callable[[Any], None]]:
    """Return the evaluation of a run, by playing or from a dataset, and the function that reports a list of results."""
    seeds = list(dict.fromkeys(options.seed)) or None
    chosen: dict[str, Any] = {"which": options.which, "seeds": seeds, "trust": options.trust}
    if options.data is None:
        from jaxrl.runtime.evaluation.evaluate_runs import EvaluationSettings, evaluate_run

        settings = EvaluationSettings(options.episodes, options.explore, options.eval_seed, options.max_steps)
        return partial(evaluate_run, settings=settings, env_id=options.env, **chosen), partial(report, options=options)
    from jaxrl.runtime.cli.estimates import report_values
    from jaxrl.runtime.datasets.files import load_dataset
    from jaxrl.runtime.evaluation.estimate_runs import estimate_run

    given: dict[str, Any] = {} if options.updates is None else {"updates": options.updates}
    estimate = partial(estimate_run, data=load_dataset(options.data), gamma=options.gamma, explore=options.explore, **given)
    return partial(estimate, **chosen), partial(report_values, settings=options.settings(), file=options.json)


def announce(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def find_runs(folders: Sequence[str]) -> dict[str, bool]:
    """Return run folder -> True if it was named itself, False if it was found below a named folder."""
    from jaxrl.runtime.logs import read_runs

    runs: dict[str, bool] = {}
    for folder in folders:
        for path in map(os.fspath, read_runs.find_runs(folder)):
            runs[path] = runs.get(path, False) or os.path.normpath(os.path.expanduser(folder)) == path
    return runs


def spec_of(run: str) -> dict[str, Any]:
    """Return the spec of a run's agent; empty if it cannot be read, which is reported later."""
    from jaxrl.runtime.logs.run_folder import read_config

    try:
        spec: dict[str, Any] = read_config(run)["agent"]
    except (OSError, ValueError):
        return {}
    return spec


# ------------------------------------------------------------------------------------------------------------------------ output


def report(results: Sequence[RunScore], options: EvalOptions) -> None:
    """Print the table and write the JSON file if requested; print only the JSON if it goes to the standard output."""
    from jaxrl.runtime.console.tables import show_table
    from jaxrl.runtime.system.disk import absolute

    text = json.dumps(as_json(results, options), indent=1, allow_nan=False) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
        return
    if options.json:
        absolute(options.json).write_text(text, encoding="utf-8")  # it may be /dev/null or a pipe
    how = "sampled" if options.explore else "greedy"
    print(f"{options.episodes} {how} episode{'s' * (options.episodes > 1)} per seed, {options.which} policies\n")
    show_table(COLUMNS, [_row(result) for result in results])
    for result in results:
        for remark in remarks(result, options):
            print(f"{result.run}: {remark}")
    if options.json:
        print(f"\nwritten to {options.json}")


def remarks(result: RunScore, options: EvalOptions) -> Iterator[str]:
    """Yield which policies these are, and what the table does not show."""
    from jaxrl.envs.reference_returns import normalized_score
    from jaxrl.runtime.console.progress import spread

    yield result.about
    if (score := normalized_score(result.env, result.returns)) is not None:
        yield f"normalised score {spread({'score': score}, 'score')}: 0 is random actions, 100 the expert of D4RL"
    if result.warning and not options.explore:
        yield f"{result.warning}; use --explore to play as in training"
    if result.eval_explore and not options.explore:
        yield "its evaluations explored, and its best policies were chosen that way; use --explore for the same"
    if differing := [name for name, values in by_name(result.hyperparams).items() if len({*values}) > 1]:
        yield f"its seeds differ in {', '.join(differing)}, and the table pools them; --json has the values and each return"
    if result.diverged:
        yield f"without the seeds {', '.join(map(str, result.diverged))}, which diverged"
    if lost := [seed for seed, mean in zip(result.seeds, result.returns, strict=True) if mean != mean]:
        yield f"without the seeds {', '.join(map(str, lost))}, which have returns that are not finite"
    if cut := int((~result.played.finished).sum()):
        yield f"{cut} of {result.played.finished.size} episodes were cut at the step limit; their returns so far count"


def by_name(hyperparams: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    """Return hyperparameter -> its value for each seed."""
    return {name: [each[name] for each in hyperparams] for name in (hyperparams[0] if hyperparams else ())}


def _row(result: RunScore) -> list[str]:
    """Return a row of the table."""
    from jaxrl.runtime.console.progress import known, number, spread

    length, seeds = float(result.played.episodic_length.mean()), str(len(result.returns))
    returns = known({"return": result.returns}, "return")
    if not len(returns):
        return [result.run, result.algorithm, result.env, seeds, *["–"] * 4, number(length, length)]
    size = float(abs(returns).max())
    iqm, low, high = (number(x, size) for x in interquartile(returns))
    interval = f"{iqm} [{low}, {high}]" if len(returns) > 1 else "–"
    worst, best = number(returns.min(), size), number(returns.max(), size)
    mean = spread({"return": returns}, "return")
    return [result.run, result.algorithm, result.env, seeds, mean, interval, worst, best, number(length, length)]


def interquartile(returns: np.ndarray) -> tuple[float, float, float]:
    """Return the interquartile mean over seeds with finite returns and its 95 % bootstrap interval; NaN if there are none."""
    import numpy as np

    from jaxrl.runtime.plots.statistics import seed_interval

    returns = returns[~np.isnan(returns)]
    iqm, low, high = seed_interval(returns[None]) if len(returns) else np.full((3, 1), np.nan)
    return float(iqm[0]), float(low[0]), float(high[0])


def as_json(results: Sequence[RunScore], options: EvalOptions) -> dict[str, Any]:
    """Return plain data: settings, versions, and for each run its returns and lengths, [num_seeds][episodes], with a summary."""
    import numpy as np

    from jaxrl.runtime.logs.provenance import installed_versions
    from jaxrl.runtime.logs.run_folder import plain, without_nan

    runs = []
    for result in results:
        known = result.returns[np.isfinite(result.returns)]
        iqm, *interval = interquartile(known)
        runs.append(
            {
                **{name: getattr(result, name) for name in ("run", "algorithm", "env", "iteration", "seeds", "diverged")},
                "trained_with": result.versions,
                "hyperparams": by_name(result.hyperparams),
                "mean": known.mean() if len(known) else None,
                "std": known.std() if len(known) else None,
                "iqm": iqm,
                "iqm_interval": interval,
                "return_per_seed": result.returns,
                **result.played._asdict(),
            }
        )
    return {"settings": options.settings(), "versions": installed_versions(), "runs": without_nan(plain(runs))}
