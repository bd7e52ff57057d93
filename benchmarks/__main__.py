"""``python -m benchmarks``: the command line."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from benchmarks import comparison, pictures, speed_picture
from benchmarks.cases import CASES, GROUPS
from benchmarks.experiments import EXPERIMENTS
from benchmarks.offline_cases import BUILDERS
from benchmarks.peer import PEERS, PeerError
from benchmarks.protocol import WorkerError
from benchmarks.recipes import FOLDER, RECIPES
from benchmarks.report import render, score_table
from benchmarks.summary import README_CASES, algorithm_table, fill, newest, peer_table, read_speed
from benchmarks.team_cases import TITLES as TEAM_ALGORITHMS

RESULTS = Path("benchmarks/results")
WORK = Path("runs/scores")
FINE_TUNING = Path("runs/fine-tuning")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def fraction(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} must be above 0 and at most 1")
    return number


def experiment(text: str) -> str:
    return one_of(text, EXPERIMENTS, "experiment")


def dataset(text: str) -> str:
    return one_of(text, RECIPES, "dataset")


def one_of(text: str, known: Collection[str], what: str) -> str:
    if text not in known:
        near = difflib.get_close_matches(text, known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise argparse.ArgumentTypeError(f"unknown {what} {text!r}.{hint} Known: {', '.join(known)}")
    return text


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure jaxrl. See benchmarks/README.md.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    speed = commands.add_parser("speed", help="env steps/s, compile seconds and memory, compared with Rejax, SBX and a raw bound")
    speed.add_argument("--only", nargs="+", choices=GROUPS, default=[], help="groups of cases; default: all")
    speed.add_argument("--repeats", type=positive, default=5, help="rounds of timed sections (default: 5)")
    speed.add_argument("--compile-repeats", type=positive, default=3, help="cold and cached compilations (default: 3)")
    speed.add_argument("--scale", type=fraction, default=1.0, help="shorten all runs, to check that everything works")
    speed.add_argument(
        "--without-peer",
        nargs="*",
        choices=PEERS,
        metavar="PEER",
        help=f"skip these peers, of {', '.join(PEERS)}, which must be installed first; without a name: skip all",
    )

    kernels = commands.add_parser("kernels", help="count kernels of the compiled programs, without timing; seconds per case")
    kernels.add_argument("--only", nargs="+", choices=GROUPS, default=[], help="groups of cases; default: all")

    scores = commands.add_parser("scores", help="returns at the end of training, with intervals and curves; resumable")
    scores.add_argument("names", nargs="*", type=experiment, metavar="NAME", help=f"default: all of {', '.join(EXPERIMENTS)}")
    scores.add_argument("--force", action="store_true", help="run finished and partial experiments again from the beginning")
    scores.add_argument("--work", type=Path, default=WORK, help=f"folder for checkpoints (default: {WORK})")
    scores.add_argument("--datasets", type=Path, default=FOLDER, help=f"folder of the datasets (default: {FOLDER})")

    datasets = commands.add_parser("datasets", help="make the datasets of offline learning by runs of jaxrl; resumable")
    datasets.add_argument("names", nargs="*", type=dataset, metavar="NAME", help=f"default: all of {', '.join(RECIPES)}")
    datasets.add_argument("--out", type=Path, default=FOLDER, help=f"folder of the datasets (default: {FOLDER})")
    datasets.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default: {RESULTS})")

    offline = commands.add_parser("offline", help="updates per second from a dataset, compared with JAX-CORL")
    offline.add_argument("--jax-corl", type=Path, metavar="FOLDER", help="clone of JAX-CORL; without it only jaxrl is measured")
    offline.add_argument("--only", nargs="+", choices=[*BUILDERS], default=[], help="algorithms; default: all")
    offline.add_argument("--repeats", type=positive, default=5, help="rounds in which all take turns (default: 5)")
    offline.add_argument("--scale", type=fraction, default=1.0, help="shorten all sections, to check that everything works")

    teams = commands.add_parser("teams", help="steps per second with several agents, compared with JaxMARL's scripts")
    teams.add_argument("--jaxmarl", type=Path, metavar="FOLDER", help="clone of JaxMARL; without it only jaxrl is measured")
    teams.add_argument("--only", nargs="+", choices=[*TEAM_ALGORITHMS], default=[], help="algorithms; default: all")
    teams.add_argument("--repeats", type=positive, default=5, help="rounds in which both take turns (default: 5)")
    teams.add_argument("--scale", type=fraction, default=1.0, help="shorten all sections, to check that everything works")

    fine_tuning = commands.add_parser("fine-tuning", help="IQL from a dataset, and then online: gain and dip; resumable")
    fine_tuning.add_argument("--work", type=Path, default=FINE_TUNING, help=f"folder for the runs (default: {FINE_TUNING})")
    fine_tuning.add_argument("--datasets", type=Path, default=FOLDER, help=f"folder of the datasets (default: {FOLDER})")

    overhead = commands.add_parser("overhead", help="cost of checkpoints and logs in a run, and of a loaded policy's call")
    overhead.add_argument("--pairs", type=positive, default=40, help="pairs of chunks with and without (default: 40)")
    overhead.add_argument("--chunk-seconds", type=fraction, default=1.0, help="length of a chunk, up to 1 (default: 1)")

    replay = commands.add_parser("replay", help="adding to replay and drawing from it, compared with flashbax")
    replay.add_argument("--repeats", type=positive, default=5, help="rounds in which both take turns (default: 5)")
    replay.add_argument("--scale", type=fraction, default=1.0, help="shorten all runs, to check that everything works")

    sampling = commands.add_parser("sampling", help="rollouts of envpool with a random policy, compared with raw steps")
    sampling.add_argument("--repeats", type=positive, default=5, help="rounds in which all take turns (default: 5)")
    sampling.add_argument("--scale", type=fraction, default=1.0, help="shorten all runs, to check that everything works")

    learners = commands.add_parser("learners", help="training on Pong, compared with a plain loop and an upper bound")
    learners.add_argument("--repeats", type=positive, default=5, help="rounds in which all take turns (default: 5)")
    learners.add_argument(
        "--scale", type=fraction, default=1.0, help="fewer iterations per section, to check that everything works"
    )

    actors = commands.add_parser(
        "actors", help="worker processes, compared with raw steps, a queue, and slow environments in one process"
    )
    actors.add_argument("--repeats", type=positive, default=5, help="rounds in which all take turns (default: 5)")
    actors.add_argument("--scale", type=fraction, default=1.0, help="shorten all runs, to check that everything works")

    accelerator = commands.add_parser("accelerator", help="thousands of environments, hundreds of seeds and bfloat16, on a GPU")
    accelerator.add_argument("--repeats", type=positive, default=3, help="rounds in which all take turns (default: 3)")
    accelerator.add_argument("--scale", type=fraction, default=1.0, help="shorten all runs, to check that everything works")

    evolution = commands.add_parser("evolution", help="evolution strategies, compared with evosax and brax")
    evolution.add_argument("--repeats", type=positive, default=5, help="trainings, in which all take turns (default: 5)")
    evolution.add_argument("--scale", type=fraction, default=1.0, help="fewer generations, to check that everything works")

    staleness = commands.add_parser("staleness", help="corrections of evolution for members of older versions; minutes")
    staleness.add_argument("--seeds", type=positive, default=16, help="seeds of each correction (default: 16)")
    staleness.add_argument("--versions", type=positive, default=120, help="versions of each seed (default: 120)")

    remote = commands.add_parser("remote", help="calls of remote objects, compared with multiprocessing.Pool and with Ray")
    remote.add_argument("--repeats", type=positive, default=5, help="rounds in which all take turns (default: 5)")
    remote.add_argument("--scale", type=fraction, default=1.0, help="fewer calls, to check that everything works")
    remote.add_argument("--without-ray", action="store_true", help="leave out Ray")

    memory = commands.add_parser("memory", help="memory of many seeds of DQN with large buffers, compared with their rows")
    memory.add_argument("--scale", type=fraction, default=1.0, help="smaller buffers, to check that everything works")

    scaling = commands.add_parser("scaling", help="seeds, and one seed's environments, over devices and processes; all-reduces")
    scaling.add_argument("--repeats", type=positive, default=5, help="rounds in which all take turns (default: 5)")
    scaling.add_argument("--scale", type=fraction, default=1.0, help="shorten all runs, to check that everything works")

    table = commands.add_parser("table", help="print the tables from the results, and write them and the figures")
    for command in (
        speed,
        scores,
        overhead,
        replay,
        sampling,
        learners,
        actors,
        accelerator,
        evolution,
        staleness,
        remote,
        memory,
        scaling,
        offline,
        teams,
        fine_tuning,
        table,
    ):
        command.add_argument("--out", type=Path, default=RESULTS, help=f"folder of the results (default: {RESULTS})")
    return parser


def main(args: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit status: 0 success, 1 a requirement was not met, 2 a failure to measure, 130 interrupted."""
    parser = make_parser()
    options = parser.parse_args(args)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        commands = {
            "speed": run_speed,
            "kernels": show_kernels,
            "scores": run_scores,
            "datasets": run_datasets,
            "offline": run_offline,
            "teams": run_teams,
            "fine-tuning": run_fine_tuning,
            "overhead": run_overhead,
            "replay": run_replay,
            "memory": run_memory,
            "sampling": run_sampling,
            "learners": run_learners,
            "actors": run_actors,
            "accelerator": run_accelerator,
            "evolution": run_evolution,
            "staleness": run_staleness,
            "remote": run_remote,
            "scaling": run_scaling,
            "table": show,
        }
        return commands[options.command](options)
    except (OSError, PeerError, WorkerError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hints = {
            "scores": "; the same command resumes from the last checkpoint",
            "datasets": "; the same command resumes from the last checkpoint",
            "fine-tuning": "; the same command resumes from the last checkpoint",
            "speed": "; finished groups are kept, and --only measures the others",
        }
        print(f"interrupted{hints.get(options.command, '')}", file=sys.stderr)
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
    from benchmarks.report import score_report
    from benchmarks.scores import check_data, run_experiment

    out, data, force = options.out / "scores", options.datasets, options.force
    experiments = [EXPERIMENTS[name] for name in options.names or EXPERIMENTS]
    check_data(experiments, out, data, force=force)
    results = [run_experiment(each, out, options.work, datasets=data, force=force) for each in experiments]
    print(score_report(results))
    write_table(options.out)
    return int(not all(result["passed"] for result in results))


def run_datasets(options: argparse.Namespace) -> int:
    from benchmarks import datasets

    print(datasets.datasets_report(datasets.make(options.names, options.out, options.results)))
    write_table(options.results)
    return 0


def run_offline(options: argparse.Namespace) -> int:
    from benchmarks import offline

    result = offline.measure(options.repeats, options.scale, options.out, options.jax_corl, options.only)
    print(offline.offline_report(result))
    write_table(options.out)
    return int(offline.missed(result))


def run_teams(options: argparse.Namespace) -> int:
    from benchmarks import teams

    result = teams.measure(options.repeats, options.scale, options.out, options.jaxmarl, options.only)
    print(teams.teams_report(result))
    write_table(options.out)
    return int(teams.missed(result))


def run_fine_tuning(options: argparse.Namespace) -> int:
    from benchmarks import fine_tuning

    result = fine_tuning.measure(options.out, options.work, options.datasets)
    print(fine_tuning.fine_tuning_report(result))
    write_table(options.out)
    return int(fine_tuning.missed(result))


def run_overhead(options: argparse.Namespace) -> int:
    from benchmarks import overhead

    result = overhead.measure(options.pairs, options.chunk_seconds, options.out)
    print(overhead.overhead_report(result))
    write_table(options.out)
    return int(overhead.missed(result))


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


def run_accelerator(options: argparse.Namespace) -> int:
    from benchmarks import accelerator

    print(accelerator.accelerator_report(accelerator.run(options.repeats, options.scale, options.out)))
    return 0


def run_evolution(options: argparse.Namespace) -> int:
    from benchmarks import evolution

    result = evolution.run(options.repeats, options.scale, options.out)
    print(evolution.evolution_report(result))
    return int(evolution.missed(result))


def run_staleness(options: argparse.Namespace) -> int:
    from benchmarks import staleness

    result = staleness.run(options.seeds, options.versions, options.out)
    print(staleness.staleness_report(result))
    return int(staleness.missed(result))


def run_remote(options: argparse.Namespace) -> int:
    from benchmarks import remote

    result = remote.measure(options.repeats, options.scale, options.out, remote.has_ray() and not options.without_ray)
    print(remote.remote_report(result))
    write_table(options.out)
    return int(remote.missed(result))


def run_sampling(options: argparse.Namespace) -> int:
    from benchmarks import sampling

    result = sampling.measure(options.repeats, options.scale, options.out)
    print(sampling.sampling_report(result))
    write_table(options.out)
    return int(sampling.missed(result))


def run_learners(options: argparse.Namespace) -> int:
    from benchmarks import learners

    result = learners.measure(options.repeats, options.scale, options.out)
    print(learners.learners_report(result))
    write_table(options.out)
    return int(learners.missed(result))


def run_actors(options: argparse.Namespace) -> int:
    from benchmarks import actors

    result = actors.measure(options.repeats, options.scale, options.out)
    print(actors.actors_report(result))
    write_table(options.out)
    return int(actors.missed(result))


def run_memory(options: argparse.Namespace) -> int:
    from benchmarks import memory

    result = memory.measure(options.scale, options.out)
    print(memory.memory_report(result))
    write_table(options.out)
    return int(bool(memory.missed(result)))


def run_scaling(options: argparse.Namespace) -> int:
    from benchmarks import scaling

    result = scaling.measure(options.repeats, options.scale, options.out)
    print(scaling.scaling_report(result))
    write_table(options.out)
    return int(scaling.missed(result))


def show(options: argparse.Namespace) -> int:
    print(render(options.out), end="")
    write_table(options.out)
    return 0


def documents(out: Path) -> dict[Path, dict[str, str]]:
    """Return the tables of each file that contains tables, made from the results in a folder."""
    scores, speed = pictures.read_scores(out / "scores"), read_speed(out)
    return {
        Path("README.md"): {"algorithms": algorithm_table(scores), "speed": peer_table(newest(speed), README_CASES)},
        Path("docs/results.md"): {
            "scores": score_table(scores),
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
