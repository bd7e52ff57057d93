"""``python -m benchmarks``: the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import comparison, pictures, speed_picture
from benchmarks.arguments import RESULTS, make_parser
from benchmarks.cases import CASES, GROUPS
from benchmarks.experiments import EXPERIMENTS
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
        commands = {
            "speed": run_speed,
            "kernels": show_kernels,
            "scores": run_scores,
            "reproduce": run_reproduce,
            "datasets": run_datasets,
            "offline": run_offline,
            "teams": run_teams,
            "self-play": run_self_play,
            "fine-tuning": run_fine_tuning,
            "connect-four": run_connect_four,
            "search": run_search,
            "landscape": run_landscape,
            "distillation": run_distillation,
            "reincarnation": run_reincarnation,
            "constraint": run_constraint,
            "privileged": run_privileged,
            "overhead": run_overhead,
            "replay": run_replay,
            "memory": run_memory,
            "sampling": run_sampling,
            "learners": run_learners,
            "actors": run_actors,
            "accelerator": run_accelerator,
            "roofline": run_roofline,
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
            "privileged": "; the same command resumes from the last checkpoint",
            "constraint": "; the same command resumes from the last checkpoint",
            "reincarnation": "; the same command resumes from the last checkpoint",
            "distillation": "; the same command resumes from the last checkpoint",
            "connect-four": "; the same command resumes from the last checkpoint",
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
    from benchmarks.scores import check_data, run_experiment

    out, data, force = options.out / "scores", options.datasets, options.force
    experiments = [EXPERIMENTS[name] for name in options.names or EXPERIMENTS]
    check_data(experiments, out, data, force=force)
    results = [run_experiment(each, out, options.work, datasets=data, force=force) for each in experiments]
    print(score_report(results))
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


def run_self_play(options: argparse.Namespace) -> int:
    from benchmarks import self_play

    result = self_play.measure(options.repeats, options.scale, options.out, options.pgx)
    print(self_play.self_play_report(result))
    write_table(options.out)
    return int(self_play.missed(result))


def run_fine_tuning(options: argparse.Namespace) -> int:
    from benchmarks import fine_tuning

    result = fine_tuning.measure(options.out, options.work, options.datasets)
    print(fine_tuning.fine_tuning_report(result))
    write_table(options.out)
    return int(fine_tuning.missed(result))


def run_connect_four(options: argparse.Namespace) -> int:
    from benchmarks import connect_four

    result = connect_four.measure(options.out, options.work)
    print(connect_four.connect_four_report(result))
    write_table(options.out)
    return int(connect_four.missed(result))


def run_search(options: argparse.Namespace) -> int:
    from benchmarks import search

    result = search.measure(options.repeats, options.scale, options.out, with_peers=options.with_peers)
    print(search.search_report(result))
    write_table(options.out)
    return int(search.missed(result))


def run_landscape(options: argparse.Namespace) -> int:
    from benchmarks import landscape

    result = landscape.measure(options.out, options.searches)
    print(landscape.landscape_report(result))
    write_table(options.out)
    return int(landscape.missed(result))


def run_distillation(options: argparse.Namespace) -> int:
    from benchmarks import distillation

    chosen = {name: distillation.CASES[name] for name in options.only or distillation.CASES}
    result = distillation.measure(options.out, options.work, chosen)
    print(distillation.distillation_report(result))
    write_table(options.out)
    return int(distillation.missed(result))


def run_reincarnation(options: argparse.Namespace) -> int:
    from benchmarks import reincarnation

    chosen = {name: reincarnation.CASES[name] for name in options.only or reincarnation.CASES}
    result = reincarnation.measure(options.out, options.work, chosen)
    print(reincarnation.reincarnation_report(result))
    write_table(options.out)
    return int(reincarnation.missed(result))


def run_constraint(options: argparse.Namespace) -> int:
    from benchmarks import constraint

    result = constraint.measure(options.out, options.work)
    print(constraint.constraint_report(result))
    write_table(options.out)
    return int(constraint.missed(result))


def run_privileged(options: argparse.Namespace) -> int:
    from benchmarks import privileged

    result = privileged.measure(options.out, options.work)
    print(privileged.privileged_report(result))
    write_table(options.out)
    return int(privileged.missed(result))


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


def run_roofline(options: argparse.Namespace) -> int:
    from benchmarks import roofline

    print(roofline.roofline_report(roofline.measure(options.names, options.out)))
    write_table(options.out)
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
