"""``jaxrl.run``: train an agent over seeds, with progress, logs, learning curve and checkpoints, and go on where a run ended.

The loop (``session.py``) knows nothing of environments: a driver trains all seeds for a number of iterations and evaluates them.
Everything that reads a clock or a file happens between two chunks, and nothing that is computed depends on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.agent import check_agent, with_total_steps
from jaxrl.builder.spec import algorithm_name, build_again, unimportable_parts
from jaxrl.optimize.schedules import ScheduleWarning, doubtful
from jaxrl.runtime.actors.scheme import Scheme, describe, resolve_scheme
from jaxrl.runtime.checkpoint.convert_states import check_seal
from jaxrl.runtime.checkpoint.transfer import check_which, describe_source
from jaxrl.runtime.console.progress import Progress, make_progress
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.records import as_arrays
from jaxrl.runtime.logs.run_folder import WORKERS, read_config
from jaxrl.runtime.samplers.by_name import check_overlap, check_sampler
from jaxrl.runtime.system.devices import enable_compilation_cache
from jaxrl.runtime.system.warn import warn
from jaxrl.runtime.trainers.device_layout import learns_alike
from jaxrl.runtime.training_loop.agreement import check_alike, open_folder
from jaxrl.runtime.training_loop.open_trainer import check_one_way, check_shared_out, devices_for, open_driver
from jaxrl.runtime.training_loop.plan import check_hyperparams, check_members, check_seeds, make_plan, with_length_of
from jaxrl.runtime.training_loop.reporting import gap_in_words
from jaxrl.runtime.training_loop.run_files import RunFiles, RunOutput, check_output
from jaxrl.runtime.training_loop.session import OnChunk, Session
from jaxrl.runtime.training_loop.signals import Interrupted, end_in_a_line, handled
from jaxrl.settings.aliases import suggest_keywords
from jaxrl.settings.validation import check_switches, whole
from jaxrl.types import Agent, PyTree

KEPT = (
    "seeds",
    "hyperparams",
    "eval_every",
    "eval_episodes",
    "eval_explore",
    "chunk_iterations",
    "stop_at",
    "on_nan",
    "save_replay",
)
"""Arguments of ``run`` that its ``config.json`` holds under ``run``, besides ``total_steps``."""

ON_HOST: dict[str, Any] = {"sampler": "sync", "overlap": False, "scheme": None}
"""Arguments for environments on the host, which it holds where they are not these, so that runs of before go on."""


class RunInterrupted(Interrupted):
    """A signal ended a run between two chunks, and everything was written; ``states`` and ``history`` are those of its end.

    ``states`` is None where it came while the first program was compiled, which is not waited for.
    """

    def __init__(
        self, message: str, states: PyTree, history: dict[str, np.ndarray], number: int = signal.SIGINT, *, told: bool = False
    ) -> None:
        super().__init__(message, number, told=told)
        self.states, self.history = states, history


class RunDiverged(RuntimeError):
    """All seeds of a run diverged, and everything was written; ``states`` (from before that) and ``history`` are of its end."""

    def __init__(self, message: str, states: PyTree, history: dict[str, np.ndarray]) -> None:
        super().__init__(message)
        self.states, self.history = states, history


@suggest_keywords
def run(
    agent: Agent,
    total_steps: int,
    *,
    seeds: int | Sequence[int] = 1,
    out: str | os.PathLike[str] | None = None,
    eval_every: int | None = None,
    eval_episodes: int = 128,
    eval_explore: bool = False,
    chunk_iterations: int | None = None,
    exact_steps: bool = False,
    hyperparams: Mapping[str, Any] | NamedTuple | None = None,
    stop_at: float | None = None,
    on_nan: str = "drop",
    on_chunk: OnChunk | None = None,
    init_from: Any = None,
    init_which: str = "best",
    sampler: str = "sync",
    overlap: bool = False,
    scheme: Scheme | str | Mapping[str, Any] | None = None,
    num_workers: int | None = None,
    devices_per_seed: int | None = None,
    checkpoint_every: float = 60.0,
    keep_checkpoints: int = 3,
    save_replay: bool = True,
    tensorboard: bool = True,
    wandb: str | None = None,
    quiet: bool = False,
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """Train over seeds; show, log and save what comes out of it; resume if ``out`` holds this run already.

    On a pure environment all seeds run in one program, sharded over devices: on a CPU one per core, if JAX has not been used in
    this process before. Where seeds are fewer than devices and iterations are large, devices share the environments of each seed,
    with rules that learn the same so, up to rounding; the run says when it does. JAX's persistent compilation cache is switched
    on, in ``$JAXRL_CACHE_DIR`` or ``~/.cache/jaxrl/xla``, unless you have configured it; ``JAXRL_CACHE_DIR=""`` leaves it off.

    A run that was killed goes on from its last checkpoint when it is called again with the same arguments, and ends bit for bit
    as if nothing had happened, its logs too (a host environment begins new episodes instead). A larger ``total_steps`` extends a
    run; what ``anneal`` schedules then follows the new length.

    Args:
      agent: what a builder made; its environment may be pure or on the host.
      total_steps: rows per seed, the warm-up included, rounded up to whole iterations; the hyperparameter of this name, which
        ``anneal`` ends at, unless ``hyperparams`` has one.
      seeds: how many (0 … n−1), or the seeds themselves. Seed s has the stream of ``jax.random.key(s)``, alone or with others.
        One may occur several times with different hyperparameters.
      out: folder of the run: ``config.json``, ``progress.csv``, ``records.jsonl``, ``tensorboard/``, ``learning_curve.png``,
        ``checkpoints/`` (whole states) and ``best/`` (the policies of the best evaluation). New, empty, or this run's own; its
        path, that of the current folder included, must have none of ``[ ] * ? \\``.
      eval_every: iterations between evaluations; 0: none at all. The end is evaluated too, and so are the policies that training
        begins with. Default: about 20 evaluations per run; on environments that are slow, which are those outside of JAX and
        those of brax's and Craftax's size, evaluations before the last have 16 episodes at most, and are left out where all of
        them would step more than a quarter of the rows that training has so far. With ``stop_at`` none is left out.
        ``time/evaluation`` in the logs is the share of the time that they took.
      eval_episodes: episodes per evaluation and seed. Their keys come from (seed, iteration), apart from training's.
      eval_explore: in evaluations, act as in training, not greedily: for stochastic policies that stand still or walk in circles
        when greedy. What is best (``best/``, ``stop_at``) is then decided so.
      chunk_iterations: iterations between two looks at the clock and the logs; default: 50 chunks per run or more. The length of
        chunks changes no state; each chunk is a row of the logs.
      exact_steps: refuse a total that is no whole number of iterations.
      hyperparams: the ones to change, one value for all seeds or [num_seeds] each.
      stop_at: end the run when the mean evaluation return over seeds reaches this; what training begins with does not count.
      on_nan: what happens when losses or parameters of a seed are NaN or infinite: "drop" freezes the seed in its state from
        before that iteration, leaves it out of all means from there on, and ends the run when none is left; "stop" ends it at
        once. Where an environment gave such numbers, its number is reported. A frozen seed to which ``on_chunk`` gives other
        parameters or hyperparameters continues, and its replay takes what comes for a new episode.
      on_chunk: called with a ``Chunk`` (iteration, rows, states, record) after each; returns None, or the states to go on
        with. It must depend on nothing but its argument, if resumed runs are to be the same.
      init_from: begin with what was learnt in this folder of a run, or by these states: parameters, target parameters and
        statistics, where name, shape and dtype agree; what was taken is said. Seed i, by its place in ``seeds``, takes those of
        that run's i-th member; where it has fewer, they serve in turn.
        A run that was killed before its first checkpoint begins from there again, as ``config.json`` says.
      init_which: of the run in that folder, the "best" policies, as ``load_policy`` and ``jaxrl eval`` take them, or its "last"
        checkpoint. Policies have no target parameters: those of the new run are then its parameters.
      sampler: of environments on the host, who steps when. "sync": all at once, then the policy acts in all. "alternating": one
        half steps while the policy acts in the other, for environments that step in the background (envpool's, Gymnasium's with
        ``num_workers``); rollouts are the same. "async": the policy acts in the half that is ready first, and its rows are put
        where they belong; two runs differ; for rules that take ``overlap``. "xla": a compiled program acts and steps row after
        row, without Python in between, for envpool's on a CPU; rollouts are those of "sync" but for rounding.
      overlap: on host environments, collect each rollout while the one before is learnt from, by the parameters before that; for
        rules with replay, and those that correct for it, as PPO and IMPALA do. ``charts/policy_lag`` says how old they were.
      scheme: on host environments, who collects, computes gradients and applies them, in which processes, and who waits for whom:
        a ``jaxrl.Scheme``, or the name of one: "a2c", "a3c", "ga3c", "impala", "apex", "r2d2", "ddppo".
      num_workers: worker processes of the scheme, or of "a2c" where none is named; they share out ``num_envs``.
      devices_per_seed: of pure environments, over how many devices to share out the environments of each seed, which replay rules
        learn from by batches that are drawn on each; default: one, or several where seeds alone leave devices idle and what is
        learnt is the same but for rounding; in a group of processes, all devices that seeds leave. It may differ when the run
        goes on.
      checkpoint_every: seconds between checkpoints, more if saving would take over 3 % of the time; 0: only at the end.
      keep_checkpoints: how many to keep.
      save_replay: False leaves the replay buffer out of checkpoints. A resumed run then fills a new one by a warm-up, and is
        **not** bit-equal to one that was never stopped.
      tensorboard: write event files.
      wandb: W&B project to log to; needs ``pip install "jaxrl[wandb]"``.
      quiet: show nothing. Where stdout goes away (a pipe without a reader, a closed terminal), the run goes on without a display.

    Returns:
      ``(states, history)``. States have the leading axis [num_seeds]. History maps ``iteration, rows, seconds, sps`` to
      [num_rows] and ``env_steps`` (valid rows so far), ``diverged`` and each metric's log key to [num_rows, num_seeds], NaN where
      nothing was counted: no episode ended, or no evaluation was due. There is a row per chunk, and before them, if there are
      evaluations, one of the policies that training begins with.
      ``seconds`` count from the start; ``sps`` are env steps per second of training, over all seeds, without compilation and
      evaluation.

    Raises:
      TypeError, ValueError: an argument that is not allowed; the message says what is.
      FileExistsError: ``out`` holds something else, or another process is running there.
      OSError: ``out`` cannot be written to, or was deleted or moved meanwhile.
      CheckpointError: saving failed, say on a full disk; earlier checkpoints are untouched.
      RunDiverged: all seeds diverged. What there is was saved, and the exception has it, too.
      RunInterrupted: Ctrl-C, SIGTERM or SIGHUP. The chunk under way was finished and everything saved; a second Ctrl-C, half
        a second later or more, does not wait. Nor does the first, or SIGTERM, while programs are compiled and nothing has been
        trained yet. A script that does not catch it ends with one line and the exit code 128 + the signal's number. Handlers of
        your own, and signals that are ignored (``nohup``), are left alone.
    """
    _check_runnable(agent, on_chunk, init_which)
    check_switches(exact_steps=exact_steps, save_replay=save_replay, tensorboard=tensorboard, quiet=quiet)
    seeds = check_seeds(seeds)
    values = check_hyperparams(agent, hyperparams, len(seeds))
    check_members(seeds, values)
    chosen = resolve_scheme(agent, scheme, num_workers)
    on_host = _on_host(agent, sampler, overlap, chosen)
    output = check_output(RunOutput(checkpoint_every, keep_checkpoints, tensorboard, wandb, devices_per_seed))
    if devices_per_seed is not None:
        check_shared_out(agent, devices_per_seed)
    if out is not None:
        check_seal(agent, save_replay=save_replay)
    looks: dict[str, Any] = {"eval_every": eval_every, "eval_episodes": eval_episodes, "eval_explore": eval_explore}
    looks |= {"chunk_iterations": chunk_iterations, "exact_steps": exact_steps, "stop_at": stop_at, "on_nan": on_nan}
    learns = {"seeds": seeds, "hyperparams": values, "save_replay": save_replay, **on_host}
    begins = {"total_steps": total_steps, "out": out is not None, "init_from": describe_source(init_from, init_which)}
    check_alike(agent, {**looks, **learns, **output._asdict(), **begins})
    with contextlib.ExitStack() as resources:
        folder = None if out is None else resources.enter_context(contextlib.closing(open_folder(out)))
        before = folder.config["run"] if folder and folder.config else None
        plan = make_plan(agent, total_steps, **looks, before=before)
        request = plan.describe() | learns
        if folder and before:
            folder.check_same(agent.spec, with_length_of(request, before))

        enable_compilation_cache()
        on_host |= {"log_folder": folder.path / WORKERS if folder and chosen else None, "devices_per_seed": devices_per_seed}
        driver, devices, advice = open_driver(agent, seeds, **on_host, note=lambda text: _tell(text, progress, quiet))
        _warn_of_schedules(agent, plan.warmup_iterations + plan.iterations)
        hidden = quiet or not current().is_first
        title, each = _title(agent, len(seeds), len(devices)), getattr(driver, "devices_per_seed", 1)
        progress = resources.enter_context(contextlib.closing(make_progress(title, plan.total_steps, quiet=hidden)))
        files = None
        if folder:
            files = RunFiles(folder, agent, request, output, devices, progress.note, each)
            resources.enter_context(contextlib.closing(files))
            resources.push(lambda kind, *_: files.withdraw() if kind and issubclass(kind, Exception) else None)
        resources.callback(getattr(driver, "close", lambda: None))
        session = Session(driver, seeds, plan, progress, files, on_chunk)
        if chosen:
            progress.note(describe(chosen, agent.num_envs // current().num_processes))
        for line in _notes(agent, total_steps, plan.total_steps, each, advice, out):
            progress.note(line)
        with handled(session.interrupt.handle):
            states, summary = session.go(with_total_steps(agent, values, plan.total_steps), init_from, init_which, title)
            session.asked_to_stop()  # also by a signal that came meanwhile
    progress.note(summary)
    return states, _history(agent, session, states, summary, told=not hidden)


def _history(agent: Agent, session: Session, states: PyTree, summary: str, *, told: bool) -> dict[str, np.ndarray]:
    """The history of a run that has ended, and been told of; or the error that it ended by."""
    history = as_arrays(session.history)
    another_form = getattr(agent.env, "open_eval", None) is not None  # is scored, so returns do not compare
    if not another_form and (gap := gap_in_words(history, session.plan.eval_explore)):
        session.progress.note(gap)
    if session.failure is not None:
        raise session.failure
    if session.stopped_by:
        current().part()
        end_in_a_line()
        raise RunInterrupted(summary, states, history, session.stopped_by, told=told)
    current().gather(None)  # the first process may have written until now
    if session.diverged.all():
        raise RunDiverged(summary, states, history)
    return history


def _warn_of_schedules(agent: Agent, iterations: int) -> None:
    """Of values in the place of factors."""
    if current().is_first:
        for said in doubtful(agent.schedules, agent.hyperparams, iterations):
            warn(said, ScheduleWarning)


def _check_runnable(agent: Agent, on_chunk: OnChunk | None, init_which: str) -> None:
    check_agent(agent)
    if on_chunk is not None and not callable(on_chunk):
        raise TypeError(f"on_chunk={on_chunk!r} must be a function of a Chunk")
    if agent.axis_name is not None:
        raise ValueError(f"axis_name={agent.axis_name!r}: run shards seeds by itself; build the agent without axis_name")
    check_which("init_which", init_which)


def _on_host(agent: Agent, sampler: str, overlap: bool, scheme: Scheme | None) -> dict[str, Any]:
    """What of ``ON_HOST`` is asked for."""
    asked: dict[str, Any] = {"sampler": check_sampler(agent, sampler), "overlap": check_overlap(agent, overlap)}
    check_one_way(scheme, **asked)
    asked["scheme"] = scheme and dataclasses.asdict(scheme)
    return {name: value for name, value in asked.items() if value != ON_HOST[name]}


def _tell(text: str, progress: Progress, quiet: bool) -> None:
    """What befell workers: the first process has a display, the others say it on stderr."""
    if current().is_first:
        progress.note(text)
    elif not quiet:
        warn(text)


def _title(agent: Agent, num_seeds: int, num_devices: int) -> str:
    """Of the panel and the learning curve."""
    title = f"{algorithm_name(agent.spec)} · {agent.env.name} · {num_seeds} seed{'s' * (num_seeds > 1)}"
    title += f" on {num_devices} devices" * (num_devices > 1)
    return title if current().is_alone else f"{title} in {current().num_processes} processes"


def _notes(
    agent: Agent, asked: int, total_steps: int, devices_per_seed: int, advice: str | None, out: str | os.PathLike[str] | None
) -> Iterator[str]:
    """What a user should know of a run before it begins."""
    if total_steps != asked:
        rows = f"{agent.num_envs} × {agent.rollout_length}"
        yield f"total_steps={whole(asked)} rounded up to {total_steps}: whole iterations of {rows} rows"
    if devices_per_seed > 1:
        share = agent.num_envs // devices_per_seed
        what = f"{devices_per_seed} devices share a seed's environments, {share} each"
        if agent.algorithm.learn:
            yield f"{what}, and draw a share of each batch from them: this is another run than one device's"
        elif learns_alike(agent) and devices_per_seed.bit_count() == 1:
            yield f"{what}, and learn what one would, up to rounding"
        else:
            yield what
    if advice:
        yield advice
    if out is not None:
        for name, what in unimportable_parts(agent.spec).items():
            yield (
                f"no other process can import {name}={what}: to resume or load this run there, give it again, as in "
                f"jaxrl.load_policy({os.fspath(out)!r}, {name}=…), or define it at the top of a module of its own"
            )


def resume(
    out: str | os.PathLike[str],
    *,
    total_steps: int | None = None,
    on_chunk: OnChunk | None = None,
    devices_per_seed: int | None = None,
    quiet: bool = False,
    trust: str | Iterable[str] = (),
    **parts: Any,
) -> tuple[PyTree, dict[str, Any]]:
    """Go on with the run in a folder, as ``run`` called again with the same arguments does; they are in its ``config.json``.

    The folder may be somebody else's: only parts of jaxrl are imported, those that this process gave to a builder, and what is in
    ``trust``.

    Args:
      total_steps: rows per seed in all, to make the run longer, also when it has ended; default: its own.
      on_chunk: the same as in the run; functions are not recorded.
      devices_per_seed: as in ``run``; default: what the run was told, if there are as many devices here.
      trust: packages or modules that the run uses, whose code may run: ``("my_package",)``.
      parts: parts of the agent that no other process can import, given again: ``model=my_function``, ``env=my_env``.

    Raises:
      FileNotFoundError: there is no run in the folder.
      ValueError: its agent has a part that cannot be imported or is not trusted, or lacks a setting, because an older version of
        jaxrl made it; the message names it.
      TypeError: a keyword is no part of the agent.
    """
    config = read_config(out)
    request, agent = config["run"], build_again(config["agent"], trust=trust, to_learn=True, **parts)
    if missing := [name for name in ("total_steps", *KEPT) if name not in request]:
        raise ValueError(f"config.json in {os.fspath(out)!r} lacks {missing[0]!r} of its run: put it back from a copy")
    settings = {name: request[name] for name in KEPT} | {name: request[name] for name in ON_HOST if name in request}
    output = {name: value for name, value in config.get("output", {}).items() if name in RunOutput._fields}
    output["devices_per_seed"] = devices_per_seed or devices_for(agent, output.get("devices_per_seed"))
    length = request["total_steps"] if total_steps is None else total_steps
    return run(agent, length, out=out, on_chunk=on_chunk, quiet=quiet, **settings, **output)
