"""Speed of training on Pong, compared with an equivalent plain loop and with an upper bound for the number of cores.

The bound is Amdahl's. Its parts are measured separately in the same rounds: stepping the environments, acting, and learning, each
in wall-clock and in CPU seconds. Parts may overlap, so an iteration takes at least the longest part, and at least the CPU seconds
over the number of cores. Learning overlaps with the other parts if the algorithm accepts rollouts of an older policy. Otherwise
it is added to the bound of the other two.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl
from benchmarks import machine
from benchmarks.markdown import table
from benchmarks.record import write_result
from jaxrl.algorithms.presets import PPO_ATARI
from jaxrl.rollout.autoreset import first_input
from jaxrl.runtime.samplers.by_name import SAMPLERS
from jaxrl.runtime.samplers.sampler import stack
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.types import Agent, HostEnv, Rollout, StepInput

ENV = "envpool:Pong-v5"
PARTS = ("stepping", "acting", "learning")
ASKED_OF_BOUND = 0.85
SAMPLED = ("alternating", "xla")
"""Samplers that overlap parts or avoid Python. "sync" is left out, since it does the same as the plain loop."""


class Case(NamedTuple):
    name: str
    builder: str
    settings: dict[str, Any]
    iterations: int
    """Iterations per timed section."""
    asked: float | None = None
    """Required speedup over the plain loop."""


CASES = (
    Case("IMPALA, 32 × 20", "make_impala", {"num_envs": 32, "rollout_length": 20}, 2, 1.2),
    Case("A2C, 32 × 16", "make_a2c", {"num_envs": 32, "rollout_length": 16}, 2, 1.2),
    Case("PPO, 8 × 128", "make_ppo", PPO_ATARI, 1),
)

Side = Callable[[int], Any]
"""Runs a number of iterations, or one part of them."""


# ------------------------------------------------------------------------------------------------------------------------ sides


def opened(agent: Agent) -> Any:
    """Open envpool's environments as its documentation shows."""
    import envpool

    assert isinstance(agent.env, HostEnv)
    name = agent.env.name.removeprefix("envpool:")
    return envpool.make_gymnasium(name, num_envs=agent.num_envs, seed=0, **agent.env.options)


@contextlib.contextmanager
def plain(agent: Agent) -> Iterator[Side]:
    """Yield the plain loop: act, step all environments, append, stack, update. The algorithm's functions are jitted."""
    algorithm, env_id, pool = agent.algorithm, jnp.arange(agent.num_envs, dtype=jnp.int32), opened(agent)
    update = jax.jit(algorithm.update)
    act = jax.jit(
        lambda policy, step_input, key, t: algorithm.act(policy, (), step_input, env_id, jax.random.fold_in(key, t), explore=True)
    )
    learner, key = agent.init(jax.random.key(0)).learner, jax.random.key(1)
    step_input = first_input(pool.reset()[0], agent.env.action_space, agent.num_envs)
    done = np.zeros(agent.num_envs, bool)

    def iteration(number: int) -> None:
        nonlocal learner, step_input, done
        policy, key_now = algorithm.policy(learner), jax.random.fold_in(key, number)
        inputs, rows = [step_input], []
        for t in range(agent.rollout_length):
            _, action, extras = act(policy, step_input, key_now, t)
            action, extras = jax.device_get((action, extras))
            obs, reward, terminated, truncated, _ = pool.step(action)
            valid = ~done  # envpool spends a row on the reset
            done = (terminated | truncated) & valid
            step_input = StepInput(obs, np.where(valid, action, 0), np.where(valid, reward, 0).astype(np.float32), ~valid)  # type: ignore[arg-type]
            inputs.append(step_input)
            rows.append((action, step_input.prev_reward, terminated & valid, truncated & valid & ~terminated, extras, valid))
        action, reward, terminated, truncated, extras, valid = stack(rows)
        acted: Any = np.broadcast_to(np.asarray(policy.version), env_id.shape)
        rollout = Rollout(stack(inputs), action, reward, terminated, truncated, extras, valid, (), env_id, acted)
        learner, _ = update(learner, rollout)

    numbers = itertools.count()

    def side(iterations: int) -> None:
        for _ in range(iterations):
            iteration(next(numbers))
        jax.block_until_ready(learner)

    yield side


@contextlib.contextmanager
def trained(agent: Agent, sampler: str, overlap: bool) -> Iterator[Side]:
    """Yield the loop of ``jaxrl.run``.

    It waits for a rollout that is being collected ahead, so that a section has as many rollouts as updates.
    """
    driver = HostDriver(agent, [0], SAMPLERS[sampler], lag=int(overlap))
    with contextlib.closing(driver):
        states = driver.init()

        def side(iterations: int) -> None:
            nonlocal states
            states, _, _ = driver.iterate(states, iterations)
            jax.block_until_ready(states)
            for waiting in driver.pending:
                waiting()

        yield side


@contextlib.contextmanager
def parts(agent: Agent) -> Iterator[dict[str, Side]]:
    """Yield the parts of an iteration: stepping with pre-drawn actions, and acting and learning on one fixed rollout."""
    algorithm, num_rows, env_id = agent.algorithm, agent.rollout_length, jnp.arange(agent.num_envs, dtype=jnp.int32)
    pool, learner = opened(agent), agent.init(jax.random.key(0)).learner
    pool.reset()
    count = int(agent.env.action_space.n)  # type: ignore[attr-defined]
    actions = np.random.default_rng(0).integers(0, count, (num_rows, agent.num_envs)).astype(np.int32)
    act, policy = jax.jit(partial(algorithm.act, explore=True)), algorithm.policy(learner)
    update, key = jax.jit(algorithm.update), jax.random.key(0)
    with contextlib.closing(SAMPLERS["sync"](agent, [0])) as sampler:
        collected = sampler.collect(jax.tree.map(lambda x: x[None], policy), jax.random.split(key, 1))[0]
    rollout = jax.tree.map(lambda x: jnp.asarray(x)[0], collected)
    step_input = jax.tree.map(lambda x: np.asarray(x[0]), rollout.inputs)

    def step(iterations: int) -> None:
        for t in range(iterations * num_rows):
            pool.step(actions[t % num_rows])

    def acting(iterations: int) -> None:
        for _ in range(iterations * num_rows):
            np.asarray(act(policy, (), step_input, env_id, key)[1])

    def learning(iterations: int) -> None:
        for _ in range(iterations):
            jax.block_until_ready(update(learner, rollout))

    yield {"stepping": step, "acting": acting, "learning": learning}


# ------------------------------------------------------------------------------------------------------------------ measurement


def measure(repeats: int, scale: float, out: Path, cases: Sequence[Case] = CASES, env: str = ENV) -> dict[str, Any]:
    """Measure the seconds per iteration, with the sides of a case in turn. Write ``learners.json``."""
    measured = [measure_case(case, repeats, scale, env) for case in cases]
    return write_result(out, "learners", "envpool", load=machine.load(), env=env, cases=measured)


def measure_case(case: Case, repeats: int, scale: float, env: str) -> dict[str, Any]:
    agent: Agent = getattr(jaxrl, case.builder)(env, **case.settings)
    lags = agent.algorithm.tolerates_lag
    iterations = max(1, round(scale * case.iterations))
    with contextlib.ExitStack() as stack:
        sides = dict(stack.enter_context(parts(agent)))
        sides["plain"] = stack.enter_context(plain(agent))
        for sampler in SAMPLED:
            for overlap in (False, True) if lags else (False,):
                name = f"{sampler}, overlap" if overlap else sampler
                sides[name] = stack.enter_context(trained(agent, sampler, overlap))
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        processor: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(repeats + 1):
            for name, side in sides.items():
                wall, cpu = time.perf_counter(), time.process_time()
                side(iterations)
                if turn:  # the first compiles
                    seconds[name].append((time.perf_counter() - wall) / iterations)
                    processor[name].append((time.process_time() - cpu) / iterations)
    return {
        "name": case.name,
        "asked": case.asked,
        "steps": agent.steps_per_iteration,
        "lags": lags,
        "seconds": seconds,
        "processor_seconds": processor,
    }


# ----------------------------------------------------------------------------------------------------------------------- report


def bounds(case: Mapping[str, Any], cores: int) -> list[float]:
    """Return the lower bound on an iteration's seconds on ``cores`` cores, for each round. See the module's docstring."""

    def least(names: Sequence[str], turn: int) -> float:
        by_clock = max(case["seconds"][name][turn] for name in names)
        return max(by_clock, sum(case["processor_seconds"][name][turn] for name in names) / cores)

    rounds = range(len(case["seconds"]["plain"]))
    if case["lags"]:
        return [least(PARTS, turn) for turn in rounds]
    return [least(PARTS[:2], turn) + case["seconds"]["learning"][turn] for turn in rounds]


class Reached(NamedTuple):
    """The fastest of jaxrl's sides: medians over rounds."""

    way: str
    faster: float
    """Speedup over the plain loop."""
    of_bound: float


def reached(case: Mapping[str, Any], cores: int) -> Reached:
    ways = [name for name in case["seconds"] if name not in (*PARTS, "plain")]
    way = min(ways, key=lambda name: median(case["seconds"][name]))
    ours = case["seconds"][way]
    faster = median(plain / mine for plain, mine in zip(case["seconds"]["plain"], ours, strict=True))
    return Reached(way, faster, median(bound / mine for bound, mine in zip(bounds(case, cores), ours, strict=True)))


def met(case: Mapping[str, Any], cores: int) -> bool:
    result = reached(case, cores)
    return result.of_bound >= ASKED_OF_BOUND and (case["asked"] is None or result.faster >= case["asked"])


def missed(result: Mapping[str, Any]) -> bool:
    """Return True if a case does not meet its requirements."""
    return not all(met(case, result["hardware"]["cores"]) for case in result["cases"])


def learners_report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    rows, cores = [], result["hardware"]["cores"]
    for case in result["cases"]:
        best, seconds = reached(case, cores), {name: median(each) for name, each in case["seconds"].items()}
        rows.append(
            [
                case["name"],
                *(f"{1e3 * seconds[part]:.0f}" for part in PARTS),
                f"{1e3 * median(bounds(case, cores)):.0f}",
                f"{1e3 * seconds['plain']:.0f}",
                f"{1e3 * seconds[best.way]:.0f} ({best.way})",
                f"{best.faster:.2f}" + ("" if case["asked"] is None else f" (≥ {case['asked']:g})"),
                f"{best.of_bound:.0%} (≥ {ASKED_OF_BOUND:.0%})",
                "yes" if met(case, cores) else "NO",
            ]
        )
    header = ["ms per iteration", *PARTS, "bound", "plain loop", "jaxrl", "speedup (required)", "of the bound (required)", "met"]
    lines = [
        f"## Learners on {result['env']}, Nature's network",
        f"* `{result['command']}`, {result['date']}\n* {result['hardware']['cpu']}, {cores} cores, "
        f"jax {result['versions']['jax']}, envpool {result['versions']['envpool']}",
        table(header, rows),
        "Medians over rounds in which all sides take turns. The bound: overlapping parts take as long as the longest of them, "
        "and at least their CPU time over the number of cores. A2C learns only from rows of its current policy, so its learning "
        "does not overlap with them.",
    ]
    return "\n\n".join(lines)
