"""Distillation: students of DAgger learn from trained policies with a tenth of the steps. Their scores beside the teachers'."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from benchmarks.markdown import Requirement, misses, origin, requirement_table, table
from benchmarks.record import write_result
from benchmarks.scores import bootstrap_interval
from benchmarks.speed import say
from jaxrl.algorithms.presets import PRESETS, interval_text
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.runtime.system.devices import enable_compilation_cache, request_cpu_devices
from jaxrl.types import Agent, AgentState, Policy

SHARE = 0.1
"""Largest share of the teacher's steps."""
MOST_LOSS = 0.02
"""Largest share of the teacher's return by which a student may be worse."""
EPISODES = 1024
"""Greedy episodes of the teacher, and of each student."""
NUM_SEEDS = 5


class Case(NamedTuple):
    """A teacher, by its preset, and a student."""

    teacher: str
    what: str
    """Difference between both."""
    student: dict[str, Any]
    env: str | None = None
    """The student's environment; default: the teacher's."""
    total_steps: int | None = None
    """The student's rows; default: the share of the teacher's."""


def whole_state(obs: Mapping[str, jax.Array]) -> jax.Array:
    """Return the observation of CartPole, given its positions and, as the privileged state, its velocities."""
    seen, hidden = obs["observation"], obs["privileged_state"]
    return jnp.stack([seen[0], hidden[0], seen[1], hidden[1]])


CASES = {
    "cartpole": Case("ppo-cartpole", "a network of 2×16", {"model": {"hidden_sizes": (16, 16)}}),
    "cartpole-hidden": Case(
        "ppo-cartpole",
        "no velocities, and a GRU",
        {"model": {"core": "gru", "hidden_sizes": (64,)}, "batch_size": 32, "teacher_obs": whole_state},
        "CartPole-v1|privileged_state(1,3)",
    ),
    "pendulum": Case(
        "sac-pendulum",
        "a network of 2×32",
        {
            "model": {"hidden_sizes": (32, 32)},
            "num_envs": 4,
            "rollout_length": 16,
            "learning_starts": 256,
            "replay_ratio": 512.0,
            "anneal": False,
        },
    ),
    "breakout": Case(
        "pqn-minatar-breakout", "no convolution", {"model": {"encoder": "flat", "hidden_sizes": (256,)}, "num_envs": 32}
    ),
}


def measure(
    out: Path, work: Path, only: Sequence[str] = (), cases: Mapping[str, Case] = CASES, *, quiet: bool = False
) -> dict[str, Any]:
    """Train all teachers and students, and write ``out/distillation.json``. Interrupted runs resume from ``work``."""
    request_cpu_devices()
    enable_compilation_cache()
    found = {name: measure_case(name, case, work, quiet=quiet) for name, case in cases.items() if name in (only or cases)}
    result = write_result(out, "distillation", episodes=EPISODES, cases=found)
    shutil.rmtree(work, ignore_errors=True)
    return result


def measure_case(name: str, case: Case, work: Path, *, quiet: bool) -> dict[str, Any]:
    preset = PRESETS[case.teacher]
    how: dict[str, Any] = {"tensorboard": False, "quiet": quiet}
    teacher, shown = trained_teacher(case.teacher, preset.total_steps, work / case.teacher, EPISODES, how)
    env, rows = case.env or preset.env, case.total_steps or round(SHARE * preset.total_steps)
    student = jaxrl.make_dagger(env, teacher=teacher, **case.student)
    learnt, taken = returns_of(student, rows, NUM_SEEDS, work / name, EPISODES, how)
    say(f"{name}: teacher {shown:.1f}, students {np.mean(learnt):.1f}")
    return {"teacher": shown, "students": learnt, "rows": taken, "of": preset.total_steps}


def trained_teacher(preset: str, steps: int, folder: Path, episodes: int, how: Mapping[str, Any]) -> tuple[LoadedPolicy, float]:
    """Train the agent of a preset for this many steps; return its last policy, and the mean return of this policy."""
    about = PRESETS[preset]
    agent = getattr(jaxrl, f"make_{about.algorithm}")(about.env, **about.settings)
    jaxrl.run(agent, steps, out=folder, **how)
    policy = jaxrl.load_policy(folder, which="last")
    return policy, float(mean_return(agent, policy.policy, episodes))


def returns_of(
    agent: Agent, steps: int, num_seeds: int, folder: Path, episodes: int, how: Mapping[str, Any]
) -> tuple[list[float], int]:
    """Train all seeds of an agent; return their mean returns, and the rows of each."""
    states, history = jaxrl.run(agent, steps, seeds=num_seeds, out=folder, **how)
    each = (jax.tree.map(lambda x, i=i: x[i], states) for i in range(num_seeds))
    return [float(mean_return(agent, state, episodes)) for state in each], int(history["rows"][-1])


def mean_return(agent: Agent, policy: Policy | AgentState, episodes: int) -> jax.Array:
    """Return the mean return of greedy episodes, which begin alike for all policies."""
    return jaxrl.evaluate(agent, policy, jax.random.key(0), num_episodes=episodes).episodic_return.mean()


# --------------------------------------------------------------------------------------------------------------------- figures


def loss(case: Mapping[str, Any]) -> float:
    """Return by how much the students are worse than their teacher, as a share of its return's size."""
    return float((case["teacher"] - np.mean(case["students"])) / abs(case["teacher"]))


def requirements(result: Mapping[str, Any]) -> list[Requirement]:
    """Return what is required."""
    return [
        (f"{name}: below the teacher", f"≤ {MOST_LOSS:.0%}", f"{loss(case):.1%}", loss(case) <= MOST_LOSS)
        for name, case in result["cases"].items()
    ]


missed = misses(requirements)


# ---------------------------------------------------------------------------------------------------------------------- report


def distillation_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows = []
    for name, case in result["cases"].items():
        about, students = CASES[name], np.array(case["students"])
        score = interval_text(float(students.mean()), *bootstrap_interval(students))
        share = f"{case['rows']:,} of {case['of']:,}"
        rows.append([f"`{about.teacher}`", about.what, share, f"{case['teacher']:.1f}", score, f"{loss(case):.1%}"])
    lines = [
        "## Distillation",
        origin(result),
        table(["teacher", "the student has", "steps", "teacher's return", "students' return", "below"], rows),
        f"DAgger, {NUM_SEEDS} seeds with one teacher each case. Mean return of {result['episodes']:,} greedy episodes of the "
        "teacher, and of each student at the end of its training, with a 95 % bootstrap interval over seeds.",
        requirement_table(requirements(result)),
    ]
    return "\n\n".join(lines)
