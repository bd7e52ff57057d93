"""Arguments of ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from benchmarks.cases import GROUPS
from benchmarks.experiments import EXPERIMENTS
from benchmarks.offline_cases import BUILDERS
from benchmarks.peer import PEERS
from benchmarks.race_cases import RACES
from benchmarks.recipes import FOLDER, RECIPES
from benchmarks.roofline import FIT
from benchmarks.team_cases import TITLES as TEAM_ALGORITHMS

RESULTS = Path("benchmarks/results")
WORK = Path("runs/scores")
REPRODUCED = Path("runs/reproduced")
FINE_TUNING = Path("runs/fine-tuning")
DISTILLATION = Path("runs/distillation")
STUDENTS = ("cartpole", "cartpole-hidden", "pendulum", "breakout")
PRIVILEGED = Path("runs/privileged")
CONSTRAINT = Path("runs/constraint")
REINCARNATION = Path("runs/reincarnation")
TAUGHT = ("cartpole", "acrobot")
CONNECT_FOUR = Path("runs/connect-four")

CLONE: dict[str, Any] = {"dest": "clone", "type": Path, "metavar": "FOLDER"}


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


def reproducible(text: str) -> str:
    name = experiment(text)
    if EXPERIMENTS[name].data:
        raise argparse.ArgumentTypeError(f"{name} learns from a dataset; reproduce trains only agents that collect their rows")
    return name


def dataset(text: str) -> str:
    return one_of(text, RECIPES, "dataset")


def preset(text: str) -> str:
    return one_of(text, FIT, "preset with environments in JAX that learns from gradients")


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
    scores.add_argument(
        "--seed", type=int, help="train only this seed, for instance on another core; the last one joins the results of all"
    )
    scores.add_argument("--work", type=Path, default=WORK, help=f"folder for checkpoints (default: {WORK})")
    scores.add_argument("--datasets", type=Path, default=FOLDER, help=f"folder of the datasets (default: {FOLDER})")

    reproduce = commands.add_parser("reproduce", help="train scores again on other seeds, and compare; rewrites docs/results.md")
    reproduce.add_argument("names", nargs="*", type=reproducible, metavar="NAME", help="default: some random ones of minutes")
    reproduce.add_argument("--count", type=positive, default=3, help="number of scores to draw at random (default: 3)")
    reproduce.add_argument("--first-seed", type=positive, default=1000, help="first of the seeds (default: 1000)")
    reproduce.add_argument("--scores", type=Path, default=RESULTS, help=f"results to compare with (default: {RESULTS})")
    reproduce.add_argument("--work", type=Path, default=REPRODUCED, help=f"folder of the runs (default: {REPRODUCED})")

    datasets = commands.add_parser("datasets", help="make the datasets of offline learning by runs of jaxrl; resumable")
    datasets.add_argument("names", nargs="*", type=dataset, metavar="NAME", help=f"default: all of {', '.join(RECIPES)}")
    datasets.add_argument("--out", type=Path, default=FOLDER, help=f"folder of the datasets (default: {FOLDER})")
    datasets.add_argument("--results", type=Path, default=RESULTS, help=f"folder of the record (default: {RESULTS})")

    offline = commands.add_parser("offline", help="updates per second from a dataset, compared with JAX-CORL")
    offline.add_argument("--jax-corl", **CLONE, help="clone of JAX-CORL; without it only jaxrl is measured")
    offline.add_argument("--only", nargs="+", choices=[*BUILDERS], default=[], help="algorithms; default: all")
    offline.add_argument("--repeats", type=positive, default=5, help="rounds in which all take turns (default: 5)")
    offline.add_argument("--scale", type=fraction, default=1.0, help="shorten all sections, to check that everything works")

    teams = commands.add_parser("teams", help="steps per second with several agents, compared with JaxMARL's scripts")
    teams.add_argument("--jaxmarl", **CLONE, help="clone of JaxMARL; without it only jaxrl is measured")
    teams.add_argument("--only", nargs="+", choices=[*TEAM_ALGORITHMS], default=[], help="algorithms; default: all")
    teams.add_argument("--repeats", type=positive, default=5, help="rounds in which both take turns (default: 5)")
    teams.add_argument("--scale", type=fraction, default=1.0, help="shorten all sections, to check that everything works")

    self_play = commands.add_parser("self-play", help="moves per second of AlphaZero's self-play, compared with pgx's example")
    self_play.add_argument("--pgx", **CLONE, help="clone of pgx; without it only jaxrl is measured")
    self_play.add_argument("--repeats", type=positive, default=5, help="rounds in which all take turns (default: 5)")
    self_play.add_argument("--scale", type=fraction, default=1.0, help="shorten all sections, to check that everything works")

    fine_tuning = commands.add_parser("fine-tuning", help="TD3+BC from a dataset, and then online: gain and dip; resumable")
    fine_tuning.add_argument("--work", type=Path, default=FINE_TUNING, help=f"folder for the runs (default: {FINE_TUNING})")
    fine_tuning.add_argument("--datasets", type=Path, default=FOLDER, help=f"folder of the datasets (default: {FOLDER})")

    connect_four = commands.add_parser("connect-four", help="AlphaZero's moves in solved positions, and its games; resumable")
    connect_four.add_argument("--work", type=Path, default=CONNECT_FOUR, help=f"folder for the run (default: {CONNECT_FOUR})")

    search = commands.add_parser("search", help="hyperparameter search and populations: trials per hour, rungs, advice")
    search.add_argument("--repeats", type=positive, default=3, help="rounds in which both sides take turns (default: 3)")
    search.add_argument("--scale", type=fraction, default=1.0, help="shorten all runs, to check that everything works")
    search.add_argument(
        "--with-peers", action="store_true", help="measure RL Zoo and Ray Tune too, which must be installed first"
    )

    landscape = commands.add_parser("landscape", help="env steps that searches need, on tables of returns that are computed once")
    landscape.add_argument("--searches", type=positive, default=20, help="searches of each method (default: 20)")

    distillation = commands.add_parser("distillation", help="students of DAgger beside their teachers; resumable")
    distillation.add_argument("--work", type=Path, default=DISTILLATION, help=f"folder for the runs (default: {DISTILLATION})")
    distillation.add_argument("--only", nargs="+", choices=STUDENTS, default=[], help="cases; default: all")

    reincarnation = commands.add_parser("reincarnation", help="students of QDagger beside their teachers and DQN; resumable")
    reincarnation.add_argument("--work", type=Path, default=REINCARNATION, help=f"folder for the runs (default: {REINCARNATION})")
    reincarnation.add_argument("--only", nargs="+", choices=TAUGHT, default=[], help="cases; default: all")

    constraint = commands.add_parser("constraint", help="cost and return of PPO with a limit on the cost; resumable")
    constraint.add_argument("--work", type=Path, default=CONSTRAINT, help=f"folder for the runs (default: {CONSTRAINT})")

    privileged = commands.add_parser("privileged", help="steps of PPO with and without a critic that sees more; resumable")
    privileged.add_argument("--work", type=Path, default=PRIVILEGED, help=f"folder for the runs (default: {PRIVILEGED})")

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

    race = commands.add_parser("race", help="seconds to a score with compilation, compared with three libraries")
    race.add_argument("--repeats", type=positive, default=3, help="rounds in which all take turns (default: 3)")
    race.add_argument("--only", nargs="+", choices=[each.name for each in RACES], default=[], help="races; default: all")
    peers = ("rejax", "sbx", "sb3")
    race.add_argument("--without-peer", nargs="*", choices=peers, metavar="PEER", help="skip these; without a name: skip all")

    roofline = commands.add_parser("roofline", help="bounds of the presets' speed on accelerators, on paper; minutes")
    roofline.add_argument("names", nargs="*", type=preset, metavar="PRESET", help="default: all with environments in JAX")

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
        reproduce,
        overhead,
        replay,
        sampling,
        learners,
        actors,
        accelerator,
        race,
        roofline,
        evolution,
        staleness,
        remote,
        memory,
        scaling,
        offline,
        teams,
        self_play,
        fine_tuning,
        connect_four,
        search,
        landscape,
        distillation,
        reincarnation,
        constraint,
        privileged,
        table,
    ):
        command.add_argument("--out", type=Path, default=RESULTS, help=f"folder of the results (default: {RESULTS})")
    return parser
