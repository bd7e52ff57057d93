"""``jaxrl.run``: train an agent over seeds, with progress, logs, a learning curve and a checkpoint.

The loop knows nothing of environments: a driver advances all seeds by a number of iterations and evaluates them. Everything that
reads a clock or a file happens between two chunks, and nothing that is computed depends on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxrl.runtime import logs
from jaxrl.runtime.devices import enable_compilation_cache, seed_devices
from jaxrl.runtime.interrupt import Interrupt
from jaxrl.runtime.logs import EVALUATION_LENGTH, EVALUATION_RETURN, History, Record, RunFiles
from jaxrl.runtime.plan import Plan, check_hyperparams, check_seeds, make_plan
from jaxrl.runtime.progress import Header, Progress, View, duration, make_progress, spread
from jaxrl.types import Agent, HostEnv, Metrics, PyTree


class Driver(Protocol):
    """How one kind of environment trains many seeds."""

    def init(self, hyperparams: Mapping[str, Any] | None = None) -> PyTree:
        """The states of all seeds, warmed up."""
        ...

    def advance(self, states: PyTree, iterations: int) -> tuple[PyTree, Metrics]:
        """``iterations`` steps of every seed: ``(states, metrics [num_seeds])``; uses the old states up."""
        ...

    def evaluate(self, states: PyTree, iteration: int, num_episodes: int) -> tuple[Any, Any]:
        """Greedy episodes of every seed: returns and lengths, [num_seeds, num_episodes]."""
        ...

    # A driver that knows what compilation took has `compile_seconds`; one that holds something to release has `close()`.


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a run between two chunks, and everything was written; ``states`` and ``history`` are those of its end."""

    def __init__(self, message: str, states: PyTree, history: dict[str, np.ndarray]) -> None:
        super().__init__(message)
        self.states, self.history = states, history


def run(
    agent: Agent,
    total_steps: int,
    *,
    seeds: int | Sequence[int] = 1,
    out: str | os.PathLike[str] | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 128,
    chunk_iterations: int | None = None,
    exact_steps: bool = False,
    quiet: bool = False,
    hyperparams: Mapping[str, Any] | NamedTuple | None = None,
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """Train over seeds, and show and keep what comes out of it.

    On a pure environment all seeds run in one program, sharded over devices: on a CPU one per core, if JAX has not been used in
    this process before. JAX's persistent compilation cache is switched on, in ``$JAXRL_CACHE_DIR`` or ``~/.cache/jaxrl/xla``,
    unless you have configured it; ``JAXRL_CACHE_DIR=""`` leaves it off.

    Args:
      agent: what a builder made; its environment may be pure or on the host.
      total_steps: rows per seed, the warm-up included, rounded up to whole iterations.
      seeds: how many (0 … n−1), or the seeds themselves. Seed s has the stream of ``jax.random.key(s)``, alone or with others.
      out: a new or empty folder for ``config.json``, ``progress.csv``, ``learning_curve.png`` and ``checkpoints/``.
      eval_every: iterations between evaluations; default: about 20 evaluations per run. The end is evaluated too; 0: none at all.
      eval_episodes: greedy episodes per evaluation and seed. Their keys come from (seed, iteration), apart from training's.
      chunk_iterations: iterations between two looks at the clock and the logs; default: about 50 chunks per run. The length of
        chunks changes no result.
      exact_steps: refuse a total that is no whole number of iterations.
      quiet: show nothing.
      hyperparams: the ones to change, one value for all seeds or [num_seeds] each.

    Returns:
      ``(states, history)``. States have the leading axis [num_seeds] (for a host environment: a list). History maps
      ``iteration, total_steps, seconds, sps`` to [num_chunks] and ``env_steps`` (valid rows so far) and each metric's log key
      to [num_chunks, num_seeds], NaN where nothing was counted: no episode ended, or no evaluation was due. ``seconds`` count
      from the start; ``sps`` are env steps per second of training, over all seeds, without compilation and evaluation.

    Raises:
      TypeError, ValueError: an argument that is not allowed; the message says what is.
      FileExistsError: ``out`` is not empty.
      OSError: ``out`` cannot be written to.
      RunInterrupted: Ctrl-C. The chunk under way was finished and everything written; a second Ctrl-C does not wait.
    """
    if agent.axis_name is not None:
        raise ValueError(f"axis_name={agent.axis_name!r}: run shards seeds by itself; build the agent without axis_name")
    seeds = check_seeds(seeds)
    plan = make_plan(agent, total_steps, eval_every, eval_episodes, chunk_iterations, exact_steps=exact_steps)
    values = check_hyperparams(agent, hyperparams, len(seeds))
    folder = None if out is None else logs.new_folder(out)

    enable_compilation_cache()
    driver, devices, advice = open_driver(agent, seeds)
    title = f"{agent_name(agent)} · {agent.env.name} · {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    if len(devices) > 1:
        title += f" on {len(devices)} devices"
    progress = make_progress(Header(title, plan.total_steps), quiet=quiet)
    asked = {**plan.describe(total_steps), "seeds": seeds, "hyperparams": values}
    files = None if folder is None else RunFiles(folder, agent.spec, asked, devices)
    session = _Session(driver, seeds, plan, files, progress, title)
    try:
        if plan.total_steps != total_steps:
            rows = f"{agent.num_envs} × {agent.rollout_length}"
            progress.note(f"total_steps={total_steps} rounded up to {plan.total_steps}: whole iterations of {rows} rows")
        if advice:
            progress.note(advice)
        with session.interrupt:
            states = session.train(values)
            summary = session.finish(states)
    finally:
        progress.close()
        session.close()
    if not quiet:
        print(summary, flush=True)
    if session.interrupt.requested:
        raise RunInterrupted(summary, states, session.history.arrays())
    return states, session.history.arrays()


def open_driver(agent: Agent, seeds: list[int]) -> tuple[Driver, list[jax.Device], str | None]:
    """The driver for the agent's kind of environment, its devices, and advice about them."""
    if isinstance(agent.env, HostEnv):
        from jaxrl.runtime.host import HostDriver

        return HostDriver(agent, seeds), jax.local_devices()[:1], None
    from jaxrl.runtime.fused import FusedDriver

    devices, advice = seed_devices(len(seeds))
    return FusedDriver(agent, seeds, devices), devices, advice


def agent_name(agent: Agent) -> str:
    """PPO for what ``make_ppo`` made."""
    builder = agent.spec.get("builder")
    path = builder.get("import", "") if isinstance(builder, Mapping) else ""
    return path.rpartition("make_")[2].upper() or "agent"


# ------------------------------------------------------------------------------------------------------------------------ loop


class _Session:
    """One run under way: what the loop carries besides the states."""

    def __init__(
        self, driver: Driver, seeds: list[int], plan: Plan, files: RunFiles | None, progress: Progress, title: str
    ) -> None:
        self.driver, self.seeds, self.plan, self.files, self.progress, self.title = driver, seeds, plan, files, progress, title
        self.history = History()
        self.start = time.perf_counter()
        self.interrupt = Interrupt()
        self.told_of_interrupt = False
        self.iteration = 0
        self.env_steps = np.full(len(seeds), plan.steps_at(0))
        self.diverged = np.zeros(len(seeds), bool)

    def train(self, hyperparams: Mapping[str, Any] | None) -> PyTree:
        states = self.driver.init(hyperparams)
        begin, compiled = time.perf_counter(), self.compile_seconds
        for stop in self.plan.stops():
            if self.interrupt.requested:
                break
            states, record = self.chunk(states, stop)
            elapsed = time.perf_counter() - begin - (self.compile_seconds - compiled)
            eta = elapsed / stop * (self.plan.iterations - stop)
            self.progress.update(View(record, eta, self.compile_seconds))
        return states

    def chunk(self, states: PyTree, stop: int) -> tuple[PyTree, Record]:
        """Advance to iteration ``stop``, evaluate if it is due, and log."""
        begin, compiled = time.perf_counter(), self.compile_seconds
        states, metrics = self.driver.advance(states, stop - self.iteration)
        metrics = self.fetch(metrics)
        seconds = time.perf_counter() - begin - (self.compile_seconds - compiled)
        rows = (stop - self.iteration) * self.plan.rows_per_iteration
        valid = logs.env_steps(metrics, rows)
        self.iteration, self.env_steps = stop, self.env_steps + valid
        self.report_diverged(metrics)

        evaluated = {key: np.full(len(self.seeds), np.nan) for key in (EVALUATION_RETURN, EVALUATION_LENGTH)}
        if self.plan.evaluates(stop):
            played = self.fetch(self.driver.evaluate(states, self.plan.warmup_iterations + stop, self.plan.eval_episodes))
            evaluated = {key: np.asarray(x, np.float64).mean(axis=1) for key, x in zip(evaluated, played, strict=True)}
        record: Record = {
            "iteration": self.plan.warmup_iterations + stop,
            "total_steps": self.plan.steps_at(stop),
            "env_steps": self.env_steps,
            "seconds": time.perf_counter() - self.start,
            "sps": valid.sum() / seconds,
            **evaluated,
            **logs.close_per_seed(metrics),
        }
        self.history.append(record)
        if self.files:
            self.files.log(record)
        return states, record

    def fetch(self, tree: Any) -> Any:
        """Results on the host. Waits in Python, so that Ctrl-C is answered while the device computes."""
        waiting = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
        while not all(leaf.is_ready() for leaf in waiting):  # type: ignore[attr-defined]
            if self.interrupt.requested and not self.told_of_interrupt:
                self.told_of_interrupt = True
                self.progress.note("stopping after this chunk; Ctrl-C again to stop at once")
            time.sleep(0.002)
        return jax.device_get(tree)

    def report_diverged(self, metrics: Metrics) -> None:
        now = logs.diverged_seeds(metrics)
        if (new := now & ~self.diverged).any():
            which = ", ".join(str(seed) for seed, is_new in zip(self.seeds, new, strict=True) if is_new)
            steps = self.plan.steps_at(self.iteration)
            self.progress.note(f"seed {which}: losses are NaN or infinite by step {steps:,}; a smaller learning_rate may help")
        self.diverged |= now

    def finish(self, states: PyTree) -> str:
        """Write what the end leaves, and say how it went."""
        history, steps = self.history.arrays(), self.plan.steps_at(self.iteration)
        took = duration(time.perf_counter() - self.start)
        if self.files and history:
            subtitle = f"{steps:,} steps per seed in {took}"
            self.files.finish(states, self.plan.warmup_iterations + self.iteration, history, title=self.title, subtitle=subtitle)
        ended = "stopped" if self.iteration < self.plan.iterations else "done"
        compilation = f" (compilation {duration(self.compile_seconds)})" if self.compile_seconds else ""
        parts = [f"{ended} at step {steps:,} of {self.plan.total_steps:,} after {took}{compilation}"]
        evaluated = history.get(EVALUATION_RETURN, np.empty(0))
        if known := [row for row in evaluated if not np.isnan(row).all()]:
            parts.append(f"evaluation return {spread({EVALUATION_RETURN: known[-1]}, EVALUATION_RETURN)}")
        if self.files and history:
            parts.append(f"results in {self.files.shown_folder}")
        return "; ".join(parts)

    @property
    def compile_seconds(self) -> float:
        return getattr(self.driver, "compile_seconds", 0.0)

    def close(self) -> None:
        if self.files:
            self.files.close()
        if close := getattr(self.driver, "close", None):
            close()
