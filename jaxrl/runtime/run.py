"""``jaxrl.run``: train an agent over seeds with progress display, logs, learning curve and checkpoints; resume an earlier run.

The loop (``session.py``) knows nothing about environments: a driver trains all seeds for a number of iterations and evaluates
them. All clock and file access happens between two chunks, and no computed result depends on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxrl.agent import with_total_steps
from jaxrl.agent.checks import check_agent
from jaxrl.builder.spec import build_again
from jaxrl.runtime.actors.scheme import Scheme, describe
from jaxrl.runtime.checkpoint.convert_states import check_can_mark_discontinuity
from jaxrl.runtime.checkpoint.transfer import check_which, describe_source
from jaxrl.runtime.console.progress import ENV_STEPS, UPDATES, Displays, make_progress
from jaxrl.runtime.datasets.files import load_again
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.live_status import LiveStatus
from jaxrl.runtime.logs.run_folder import WORKERS, read_config, recorded_request
from jaxrl.runtime.system.devices import enable_compilation_cache, gathered
from jaxrl.runtime.training_loop.agreement import check_alike, open_folder
from jaxrl.runtime.training_loop.on_chunk import OnChunk
from jaxrl.runtime.training_loop.open_trainer import devices_for, open_driver
from jaxrl.runtime.training_loop.outcome import RunDiverged as RunDiverged
from jaxrl.runtime.training_loop.outcome import RunInterrupted as RunInterrupted
from jaxrl.runtime.training_loop.outcome import end_of, history_of
from jaxrl.runtime.training_loop.plan import make_plan, with_length_of
from jaxrl.runtime.training_loop.reporting import first_notes, tell, title_of, warn_of_schedules
from jaxrl.runtime.training_loop.run_config import (
    Checkpoints,
    Collection,
    Evaluations,
    Logging,
    Members,
    RunConfig,
    recorded_config,
)
from jaxrl.runtime.training_loop.run_files import RunFiles
from jaxrl.runtime.training_loop.session import Session
from jaxrl.runtime.training_loop.signals import handled
from jaxrl.settings.aliases import suggest_keywords
from jaxrl.settings.validation import check_switches
from jaxrl.types import Agent, PyTree


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
    engine: str | None = None,
    placement: str | None = None,
    insecure: bool = False,
    devices_per_seed: int | None = None,
    checkpoint_every: float = 60.0,
    keep_checkpoints: int = 3,
    save_replay: bool = True,
    tensorboard: bool = True,
    wandb: str | None = None,
    quiet: bool = False,
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """Train an agent over seeds, with display, logs and checkpoints; resume if ``out`` already holds this run.

    On a pure environment all seeds run in one program, sharded over devices; on a CPU this means one device per core, if this
    process has not used JAX before. If there are fewer seeds than devices and iterations are large, devices share the
    environments of each seed. This happens only for algorithms whose result stays the same up to rounding, and the run reports
    it. JAX's persistent compilation cache is enabled in ``$JAXRL_CACHE_DIR`` or ``~/.cache/jaxrl/xla``, unless you have
    configured it; ``JAXRL_CACHE_DIR=""`` leaves it off.

    A killed run resumes from its last checkpoint when ``run`` is called again with the same arguments. Its result and logs are
    then bit-equal to those of an uninterrupted run (host environments start new episodes instead). A larger ``total_steps``
    extends a run; schedules made by ``anneal`` then follow the new length.

    Args:
      agent: agent from a builder; its environment may be pure or on the host.
      total_steps: rows per seed, including the warm-up, rounded up to whole iterations. It also sets the hyperparameter of this
        name, where ``anneal`` schedules end, unless ``hyperparams`` contains one.
      seeds: number of seeds (0 … n−1), or the seeds themselves. Seed s uses the stream of ``jax.random.key(s)``, alone or with
        others. A seed may occur several times with different hyperparameters.
      out: folder of the run: ``config.json``, ``progress.csv``, ``records.jsonl``, ``tensorboard/``, ``learning_curve.png``,
        ``checkpoints/`` (whole states) and ``best/`` (the policies of the best evaluation). It must be new, empty, or hold this
        run. Its absolute path must not contain any of ``[ ] * ? \\``.
      eval_every: iterations between evaluations; 0: none at all. The initial and the final policies are evaluated too. Default:
        about 20 evaluations per run. For slow environments (those outside of JAX, and those as large as brax's and Craftax's),
        evaluations before the last then have at most 16 episodes, and one is skipped if all evaluations together would step more
        than a quarter of the rows trained so far. With ``stop_at`` none is skipped. ``time/evaluation`` in the logs is the share
        of time spent on evaluations.
      eval_episodes: episodes per evaluation and seed. Their keys are derived from (seed, iteration), independently of
        training's.
      eval_explore: in evaluations, act as in training instead of greedily: for stochastic policies that get stuck or walk in
        circles when greedy. The best policies (``best/``) and ``stop_at`` then use these evaluations.
      chunk_iterations: iterations between two checks of the clock and updates of the logs; default: at least 50 chunks per run.
        The length of chunks does not change any state; each chunk is a row of the logs.
      exact_steps: refuse a total that is not a whole number of iterations.
      hyperparams: hyperparameters to change, one value for all seeds or [num_seeds] each.
      stop_at: end the run when the mean evaluation return over seeds reaches this; the evaluation before training does not
        count. Not for games of two players.
      on_nan: what to do when losses or parameters of a seed are NaN or infinite. "drop" freezes the seed in its state from
        before that iteration, excludes it from all means from then on, and ends the run when no seed is left; "stop" ends the
        run at once. If an environment produced such numbers, its index is reported. A frozen seed to which ``on_chunk`` gives
        other parameters or hyperparameters continues; its replay buffer treats the next rows as a new episode.
      on_chunk: called with a ``Chunk`` (iteration, rows, states, record) after each chunk; returns None, or the states to
        continue with. It must depend only on its argument, otherwise resumed runs are not reproducible.
      init_from: folder of a run, or states, to start from: parameters, target parameters and statistics are copied where name,
        shape and dtype agree, and the run reports what was copied. The seed at index i of ``seeds`` starts from member i of that
        run; if that run has fewer members, they are used cyclically. A run that was killed before its first checkpoint starts
        from this source again, as recorded in ``config.json``.
      init_which: which policies of that folder to use: "best", as ``load_policy`` and ``jaxrl eval`` do, or the "last"
        checkpoint. Policies have no target parameters; the new run then copies its parameters to them.
      sampler: for host environments, the order of stepping and acting. "sync": all environments step, then the policy acts in
        all. "alternating": one half steps while the policy acts in the other half, for environments that step in the background
        (envpool's, Gymnasium's with ``num_workers``); rollouts are the same. "async": the policy acts in the half that is ready
        first, and its rows are put in their places; two runs differ; for algorithms that accept ``overlap``. "xla": a compiled
        program acts and steps row after row, without Python in between, for envpool's environments on a CPU; rollouts are those
        of "sync" up to rounding.
      overlap: on host environments, collect each rollout while the algorithm learns from the previous one, with the parameters
        from before that update. For algorithms with replay, and those that correct for stale data, such as PPO and IMPALA.
        ``charts/policy_lag`` logs the age of the parameters.
      scheme: on host environments, which processes collect rollouts, compute gradients and apply them, and which wait for which:
        a ``jaxrl.Scheme``, or its name: "a2c", "a3c", "ga3c", "impala", "apex", "r2d2", "ddppo", "es".
      num_workers: worker processes of the scheme, or of "a2c" if no scheme is named; ``num_envs`` is divided among them.
      engine: where the workers are: "local", the default, or "ray", a cluster of Ray; replaces the scheme's.
      placement: machines of the cluster for the workers, "pack" or "spread"; replaces the scheme's.
      insecure: use a cluster that asks for no token, where anyone who reaches it can run programs.
      devices_per_seed: for pure environments, number of devices that share the environments of each seed. Replay algorithms then
        draw a part of each batch on each device. Default: one, or several where seeds alone leave devices idle and the result is
        the same up to rounding; in a group of processes, all devices that the seeds leave. It may differ when the run is
        resumed.
      checkpoint_every: seconds between checkpoints, longer if saving would take over 3 % of the time; 0: only at the end.
      keep_checkpoints: number of checkpoints to keep.
      save_replay: False leaves the replay buffer out of checkpoints. A resumed run then refills the buffer with a warm-up, and
        is **not** bit-equal to an uninterrupted one.
      tensorboard: write event files.
      wandb: W&B project to log to; needs ``pip install "jaxrl[wandb]"``.
      quiet: show nothing. If stdout disappears (a pipe without a reader, a closed terminal), the run continues without a
        display.

    Returns:
      ``(states, history)``. States have the leading axis [num_seeds]; those of several CPU devices are moved to the first, except
      for large arrays, such as replay buffers. History maps ``iteration, rows, seconds, sps`` to
      [num_rows], and ``env_steps`` (valid rows so far), ``diverged`` and each metric's log key to [num_rows, num_seeds]. Entries
      are NaN where nothing was counted: no episode ended, or no evaluation was due. There is a row per chunk and, with
      evaluations, a first row for the initial policies.
      ``seconds`` count from the start; ``sps`` is env steps per second of training over all seeds, without compilation and
      evaluation.

    Raises:
      TypeError, ValueError: an argument is not allowed; the message says which values are.
      FileExistsError: ``out`` holds something else, or another process is running there.
      OSError: ``out`` cannot be written to, or was deleted or moved during the run.
      CheckpointError: saving failed, for instance on a full disk; earlier checkpoints are untouched.
      RunDiverged: all seeds diverged. The remaining results were saved, and the exception carries them too.
      RunInterrupted: Ctrl-C, SIGTERM or SIGHUP. The current chunk was finished and everything saved. A second Ctrl-C, at least
        half a second later, does not wait for that; neither does the first one, or SIGTERM, while programs are compiled and
        nothing has been trained yet. A script that does not catch the exception ends with one line and the exit code 128 + the
        signal's number. Custom handlers, and signals that are ignored (``nohup``), are left alone.
    """
    check_which("init_which", init_which)
    if init_from is None and init_which != "best":
        raise ValueError(f"init_which={init_which!r} has no effect without init_from: leave it out, or name a run to start from")
    config = RunConfig(
        total_steps,
        Members(seeds, hyperparams),
        chunk_iterations,
        on_nan,
        Evaluations(eval_every, eval_episodes, eval_explore, stop_at),
        Collection(sampler, overlap, scheme, num_workers, engine, placement, insecure),
        Checkpoints(checkpoint_every, keep_checkpoints, save_replay),
        Logging(tensorboard, wandb),
        devices_per_seed,
    )
    return _run(agent, config, out, on_chunk, init_from, init_which, exact_steps=exact_steps, quiet=quiet)


def _run(
    agent: Agent,
    config: RunConfig,
    out: str | os.PathLike[str] | None,
    on_chunk: OnChunk | None,
    init_from: Any = None,
    init_which: str = "best",
    *,
    exact_steps: bool = False,
    quiet: bool,
) -> tuple[PyTree, dict[str, np.ndarray]]:
    """Run with the settings as one value; see ``run``."""
    _check_runnable(agent, on_chunk)
    if agent.data is not None:
        agent = agent._replace(data=load_again(agent.data))
    check_switches(exact_steps=exact_steps, quiet=quiet)
    asked_steps, config = config.total_steps, config.for_agent(agent, None if out is None else recorded_request(out))
    if out is not None:
        check_can_mark_discontinuity(agent, save_replay=config.checkpoints.save_replay)
    start = {"exact_steps": exact_steps, "out": out is not None, "init_from": describe_source(init_from, init_which)}
    check_alike(agent, config.as_plain(compared=True) | config.as_plain(compared=False) | start)
    seeds, scheme = config.members.seeds, config.collection.scheme
    with contextlib.ExitStack() as resources:
        folder = None if out is None else resources.enter_context(contextlib.closing(open_folder(out)))
        previous = folder.config["run"] if folder and folder.config else None
        plan = make_plan(agent, config, previous, exact_steps=exact_steps)
        if folder and previous:
            folder.check_same(agent.spec, with_length_of(plan.request(), previous))

        enable_compilation_cache()
        driver, devices, advice = open_driver(
            agent,
            seeds,
            collection=config.collection,
            devices_per_seed=config.devices_per_seed,
            log_folder=folder.path / WORKERS if folder and scheme else None,
            note=lambda text: tell(text, progress, quiet),
        )
        warn_of_schedules(agent, plan.warmup_iterations + plan.iterations)
        hidden = quiet or not current().is_first
        title, each = title_of(agent, len(seeds), len(devices)), getattr(driver, "devices_per_seed", 1)
        status = LiveStatus(folder.path, lambda: folder.is_there) if folder and current().is_first else None
        unit = UPDATES if agent.is_offline else ENV_STEPS
        displays = [make_progress(title, plan.total_steps, quiet=hidden, unit=unit), *([status] if status else [])]
        progress = resources.enter_context(contextlib.closing(Displays(*displays)))
        files = None
        if folder:
            files = RunFiles(folder, agent, plan, devices, progress.note, each, status)
            resources.enter_context(contextlib.closing(files))
            resources.push(files.leave)
        resources.callback(getattr(driver, "close", lambda: None))
        session = Session(driver, seeds, plan, progress, files, on_chunk)
        if scheme:
            progress.note(describe(scheme, agent.num_envs // current().num_processes))
        for line in first_notes(agent, asked_steps, plan.total_steps, each, advice, out):
            progress.note(line)
        hyperparams = with_total_steps(agent, config.members.hyperparam_arrays(), plan.total_steps)
        with handled(session.interrupt.handle):
            states, summary = session.go(hyperparams, init_from, init_which, title)
            session.asked_to_stop()  # also by a signal that came meanwhile
            if status:
                status.end(*end_of(session, summary))
            if files and session.failure is not None and not session.trained:
                files.withdraw()
    progress.note(summary)
    states = gathered(states)
    return states, history_of(agent, session, states, summary, shown=not hidden)


def _check_runnable(agent: Agent, on_chunk: OnChunk | None) -> None:
    check_agent(agent)
    if on_chunk is not None and not callable(on_chunk):
        raise TypeError(f"on_chunk={on_chunk!r} must be a function of a Chunk")
    if agent.axis_name is not None:
        raise ValueError(f"axis_name={agent.axis_name!r}: run shards seeds by itself; build the agent without axis_name")


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
    """Resume the run in a folder, as ``run`` does when called again with the arguments in its ``config.json``.

    The folder may come from an untrusted source: only parts of jaxrl, parts that this process passed to a builder, and packages
    in ``trust`` are imported.

    Args:
      total_steps: total rows per seed, to extend the run, also after it has ended; default: the run's own.
      on_chunk: the same as in the run; functions are not recorded.
      devices_per_seed: as in ``run``; default: the recorded value, if this machine has as many devices.
      trust: packages or modules that the run uses and whose code may be executed: ``("my_package",)``.
      parts: parts of the agent that another process cannot import, passed again: ``model=my_function``, ``env=my_env``.

    Raises:
      FileNotFoundError: there is no run in the folder.
      ValueError: a part of its agent cannot be imported or is not trusted, or a setting is missing because an older version of
        jaxrl wrote the folder; the message names it.
      TypeError: a keyword is not a part of the agent.
    """
    recorded = read_config(out)
    agent = build_again(recorded["agent"], trust=trust, to_learn=True, **parts)
    config = recorded_config(recorded, os.fspath(out))
    length = config.total_steps if total_steps is None else total_steps
    devices = devices_per_seed or devices_for(agent, config.devices_per_seed)
    return _run(agent, dataclasses.replace(config, total_steps=length, devices_per_seed=devices), out, on_chunk, quiet=quiet)
