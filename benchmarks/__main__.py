"""``python -m benchmarks``: the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path

from benchmarks import comparison, pictures, speed_picture
from benchmarks.arguments import RESULTS, make_parser
from benchmarks.cases import CASES, GROUPS
from benchmarks.experiment import Experiment
from benchmarks.experiments import EXPERIMENTS
from benchmarks.mujoco_report import mujoco_table
from benchmarks.peer import PEERS, PeerError
from benchmarks.protocol import WorkerError
from benchmarks.report import render
from benchmarks.score_report import score_report, score_table
from benchmarks.summary import README_CASES, algorithm_table, fill, newest, peer_table, read_speed


def main(args: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit status: 0 success, 1 a requirement was not met, 2 a failure to measure, 130 interrupted."""
    parser = make_parser()
    options = parser.parse_args(args)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        return COMMANDS.get(options.command, run_measurement)(options)
    except (OSError, PeerError, WorkerError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint, resumable = "", {"work", "datasets"} & {options.command, *vars(options)}
        if resumable:
            hint = "; the same command resumes from the last checkpoint"
        elif options.command == "speed":
            hint = "; finished groups are kept, and --only measures the others"
        print(f"interrupted{hint}", file=sys.stderr)
        return 130


def run_speed(options: argparse.Namespace) -> int:
    from benchmarks import speed
    from benchmarks.claims import missed_claims
    from benchmarks.report import speed_report

    without = () if options.without_peer is None else options.without_peer or tuple(PEERS)
    results = speed.run(options.only, options.repeats, options.compile_repeats, options.out, options.scale, without)
    print("\n\n".join(speed_report(result) for result in results))
    write_table(options.out)
    return int(any(missed_claims(result) for result in results))


def show_kernels(options: argparse.Namespace) -> int:
    from benchmarks.kernels import count, kernel_table

    cases = [case for case in CASES if case.group in (options.only or GROUPS)]
    counts = count(cases)
    print(kernel_table({case.title: counts[case.name] for case in cases}))
    return 0


def run_scores(options: argparse.Namespace) -> int:
    from benchmarks.scores import check_data, run_experiment

    out, data, force = options.out / "scores", options.datasets, options.force
    experiments = [EXPERIMENTS[name] for name in options.names or EXPERIMENTS]
    if options.seed is not None:
        return run_seeds(experiments, options)
    check_data(experiments, out, data, force=force)
    results = [run_experiment(each, out, options.work, datasets=data, force=force) for each in experiments]
    print(score_report(results))
    write_table(options.out)
    return int(not all(result["passed"] for result in results))


def run_seeds(experiments: Sequence[Experiment], options: argparse.Namespace) -> int:
    """Train one seed of each experiment. Tables are written again once a score has all seeds."""
    from benchmarks.seed_parts import check_seed, run_seed

    try:
        for each in experiments:
            check_seed(each, options.seed)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    out = options.out / "scores"
    found = [run_seed(each, options.seed, out, options.work, force=options.force) for each in experiments]
    if results := [result for result in found if result is not None]:
        write_table(options.out)
    return int(not all(result["passed"] for result in results))


def run_reproduce(options: argparse.Namespace) -> int:
    from benchmarks import reproductions

    scores = options.scores / "scores"
    names = options.names or reproductions.drawn(scores, options.count)
    result = reproductions.measure(names, scores, options.out, options.work, options.first_seed)
    print(reproductions.reproductions_report(result))
    write_table(options.out)
    return int(reproductions.missed(result))


def run_datasets(options: argparse.Namespace) -> int:
    from benchmarks import datasets

    print(datasets.datasets_report(datasets.make(options.names, options.out, options.results)))
    write_table(options.results)
    return 0


def run_replay(options: argparse.Namespace) -> int:
    try:
        import flashbax  # noqa: F401
    except ImportError:
        print('flashbax is missing: pip install "jaxrl[peers]"', file=sys.stderr)
        return 2
    from benchmarks import replay

    result = replay.measure(options.repeats, options.scale, options.out)
    print(replay.replay_report(result))
    write_table(options.out)
    return int(min(replay.ratios(result)) < 1)


def run_remote(options: argparse.Namespace) -> int:
    from benchmarks import remote

    result = remote.measure(options.repeats, options.scale, options.out, remote.has_ray() and not options.without_ray)
    print(remote.remote_report(result))
    write_table(options.out)
    return int(remote.missed(result))


def run_measurement(options: argparse.Namespace) -> int:
    """Run the command of a module with the functions ``measure``, which takes the command's options, and ``NAME_report``.

    Where something is required, the module also has ``missed``.
    """
    name = options.command.replace("-", "_")
    module = import_module(f"benchmarks.{name}")
    chosen = {key: value for key, value in vars(options).items() if key in signature(module.measure).parameters}
    result = module.measure(**chosen)
    print(getattr(module, f"{name}_report")(result))
    write_table(options.out)
    return int(hasattr(module, "missed") and bool(module.missed(result)))


def show(options: argparse.Namespace) -> int:
    print(render(options.out), end="")
    write_table(options.out)
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "speed": run_speed,
    "kernels": show_kernels,
    "scores": run_scores,
    "reproduce": run_reproduce,
    "datasets": run_datasets,
    "replay": run_replay,
    "remote": run_remote,
    "table": show,
}
"""Commands with separate functions; ``run_measurement`` runs the others."""


def documents(out: Path) -> dict[Path, dict[str, str]]:
    """Return the tables of each file that contains tables, made from the results in a folder."""
    scores, speed = pictures.read_scores(out / "scores"), read_speed(out)
    return {
        Path("README.md"): {"algorithms": algorithm_table(scores), "speed": peer_table(newest(speed), README_CASES)},
        Path("docs/results.md"): {
            "scores": score_table(scores),
            "mujoco": mujoco_table(scores),
            "speed": peer_table(speed),
            "measurements": render(out, with_scores=False).rstrip(),
        },
    }


def write_table(out: Path) -> None:
    """Write the tables and draw the figures of the repository. For other results, write ``TABLES.md`` next to them instead."""
    pictures.draw_missing(out / "scores", out / "curves")
    if out != RESULTS:
        (out / "TABLES.md").write_text("# Results\n\n" + render(out), encoding="utf-8")
        return
    if (path := out / "staleness.json").exists():
        from benchmarks import staleness

        staleness.draw_missing(json.loads(path.read_text(encoding="utf-8")), Path("docs/images/staleness.png"))
    for path, tables in documents(out).items():
        path.write_text(fill(path.read_text(encoding="utf-8"), tables), encoding="utf-8")
    compared = comparison.read_compared(out / "scores")
    if not comparison.is_of(comparison.FIGURE, compared):  # not always, since another matplotlib draws it slightly differently
        comparison.draw(compared, comparison.FIGURE)
    if not speed_picture.is_of(speed_picture.FIGURE, bars := speed_picture.bars(read_speed(out))):
        speed_picture.draw(bars, speed_picture.FIGURE)


if __name__ == "__main__":
    sys.exit(main())
