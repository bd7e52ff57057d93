"""Files in the folder of a run: logs, checkpoints, the best policies and the learning curve, written and read again."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxrl.builder.spec import packages_outside, unimportable_parts
from jaxrl.runtime.checkpoint.convert_states import listed, stacked
from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointInfo, latest_step
from jaxrl.runtime.checkpoint.restore import read_agreed_info, read_state
from jaxrl.runtime.checkpoint.saver import Saver
from jaxrl.runtime.checkpoint.transfer import describe_source, recorded_source
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.files import BestEffort, Csv, JsonLines, Sink, best_effort, read_records
from jaxrl.runtime.logs.live_status import LiveStatus, end_by
from jaxrl.runtime.logs.records import Record
from jaxrl.runtime.logs.run_folder import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    CURVE,
    PROGRESS,
    RECORDS,
    TENSORBOARD,
    RunFolder,
    first_difference,
    plain,
    resume_command,
    set_aside,
    what_counts,
)
from jaxrl.runtime.logs.trackers import TensorBoard, WeightsAndBiases
from jaxrl.runtime.plots.curves import facts_of
from jaxrl.runtime.system.disk import read_regular
from jaxrl.runtime.system.warn import warn
from jaxrl.runtime.training_loop.plan import TrainingPlan, with_length_of
from jaxrl.spaces.trees import describe_space
from jaxrl.types import Agent, PyTree


@dataclass(eq=False)
class RunFiles:
    """Files of one run.

    Only ``config.json`` and ``status.json`` are written before the first record, so that a run can be resumed that is killed
    while its programs are compiled. A run that cannot start deletes these files, and leaves the folder unchanged.
    """

    folder: RunFolder
    agent: Agent
    plan: TrainingPlan
    devices: Sequence[jax.Device]
    note: Callable[[str], None]
    devices_per_seed: int = 1
    """Number of devices that share the environments of each seed."""
    status: LiveStatus | None = None

    def __post_init__(self) -> None:
        self._sinks: list[Sink] = []
        self._records: list[Record] = []
        self._origin = (self.folder.config or {}).get("init_from")
        self._is_announced = False
        self._request = self.plan.request()
        checkpoints = self.plan.config.checkpoints
        self.saver = Saver(
            self.folder,
            spec=self.agent.spec,
            request=self._request,
            every=checkpoints.checkpoint_every,
            keep=checkpoints.keep_checkpoints,
            leave_out=() if checkpoints.save_replay else self.agent.algorithm.buffers,
            note=self.note,
        )

    @property
    def can_resume(self) -> bool:
        """True if the folder has a checkpoint."""
        return current().of_first(lambda: latest_step(self.folder.path / CHECKPOINTS) is not None)

    @property
    def _hardware(self) -> Mapping[str, Any]:
        """Hardware on which the run in the folder was started or last resumed; empty in a new folder."""
        hardware = (self.folder.config or {}).get("hardware")
        return hardware if isinstance(hardware, dict) else {}

    @property
    def cached_bytes(self) -> int | None:
        """Size for which the run's programs were cut before; None for a new run, or one of an older version."""
        size = self._hardware.get("cached_bytes")
        return size if isinstance(size, int) and size >= 0 else None

    @property
    def moved(self) -> str:
        """Note for a resumed run whose seeds use another number of devices than before; else empty."""
        before = self._hardware.get("devices_per_seed", 1)
        if before == self.devices_per_seed:
            return ""
        devices = f"{self.devices_per_seed} device{'s' * (self.devices_per_seed > 1)}"
        effect = (
            "batches are drawn differently from here" if self.agent.algorithm.learn else "results are as before up to rounding"
        )
        return f", with a seed's environments on {devices} where they were on {before}: {effect}"

    def compare_source(self, init_from: Any, which: str) -> None:
        """Note that a run which is resumed began from something else, for then ``init_from`` has no effect."""
        given = describe_source(init_from, which)
        if given not in (None, self._origin):
            origin = self._origin if isinstance(self._origin, Mapping) else {}
            began = f"{origin.get('folder') or 'states'} ({origin.get('which')})" if origin else "new parameters"
            self.note(f"init_from has no effect, since the run is resumed: it began from {began}")

    def begin(self, init_from: Any, which: str) -> tuple[Any, str]:
        """Return and record the source of a run without a checkpoint: the argument, or the source from before it was killed."""
        if init_from is None:
            init_from, which = recorded_source(self._origin, os.fspath(self.folder.shown))
        self._origin = describe_source(init_from, which)
        self.saver.begin_again()
        return init_from, which

    def announce(self) -> None:
        """Write ``config.json`` of a new run, and begin ``status.json``."""
        if current().is_first and self.folder.config is None:
            with self._explaining():
                self._write_config()
            self._is_announced = True
        if self.status:
            self.status.begin()

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Record an exception that ends the run, and withdraw a run that has logged nothing. An exit callback."""
        if kind is None:
            return
        if self.status:
            self.status.end(*end_by(error))
        if issubclass(kind, Exception):
            self.withdraw()

    @property
    def are_kept(self) -> bool:
        """False for a new run that has logged nothing: its folder is withdrawn if it fails, though not if it is interrupted."""
        return not self._is_announced or bool(self._sinks)

    def forget_last_record(self) -> None:
        """Leave the last record of a resumed run out of the logs, which then get another of the same iteration."""
        self._records.pop()

    def withdraw(self) -> None:
        """Delete ``config.json`` and ``status.json`` again, if this run announced itself and logged nothing."""
        if not self.are_kept:
            if self.status:
                self.status.delete()
            self.folder.delete_config()

    def resume(self, target: PyTree) -> tuple[PyTree, int, list[Record]]:
        """Return ``(states, step, records up to it)`` of the last complete checkpoint.

        Args:
          target: shapes and dtypes of the states. In the result, a replay buffer that was not saved is ``()``.
        """
        folder = self.folder.path / CHECKPOINTS
        found = read_agreed_info(folder, run=self.folder.id)
        if found.step >= 2**31:
            raise CheckpointError(f"{folder / str(found.step)} is not a checkpoint of a run: its step exceeds 32 bits")
        self._check_saved(found)
        records = read_records(self.folder.path, found.step)
        if problem := why_incomplete(records, found.step, self.plan):
            raise ValueError(
                f"{self.folder.shown / RECORDS} {problem}. Put the whole file back from a copy, or move it away: the run then "
                f"resumes with records that begin at its checkpoint, and keeps the contents of {PROGRESS} and {BEST}/"
            )
        target = self.saver.slimmed(target)
        if found.structure and found.structure[0].path.startswith("[0]"):
            states = stacked(read_state(folder, found, listed(target)))
        else:
            states = read_state(folder, found, target)
        self.saver.saved, self._records = found.step, records
        self.saver.compare_best(records, found.step)
        if self.status:
            self.status.begin()
        return states, found.step, records

    def _check_saved(self, found: CheckpointInfo) -> None:
        """Check that the checkpoint was saved with the current settings, which may have been edited in ``config.json`` since."""
        saved, here = what_counts(found.spec or {}, plain(self.agent.spec))
        there = found.request or {}  # older versions saved fewer settings, or none
        requested = with_length_of(self._request, there) if there else {}
        requested = {key: requested.get(key) for key in there}
        if difference := first_difference({"agent": saved, "run": there}, {"agent": here, "run": requested}):
            raise ValueError(
                f"out={os.fspath(self.folder.shown)!r}: its checkpoint {found.step} was saved with other settings than {CONFIG} "
                f"has now: {difference} here. Restore {CONFIG}, or start a new run from this one's parameters with init_from=…"
            )

    @property
    def resume_command(self) -> str:
        """Command or call that resumes this run in another process."""
        if parts := unimportable_parts(self.agent.spec):
            keywords = ", ".join(f"{name}=…" for name in parts)
            return f"jaxrl.resume({os.fspath(self.folder.shown)!r}, {keywords})"
        return resume_command(os.fspath(self.folder.shown), packages_outside(self.agent.spec))

    def log(self, record: Record) -> None:
        if not current().is_first:
            return
        with self._explaining():
            self.folder.check_there()
            self._sinks = self._sinks or self._open_sinks()
            for sink in self._sinks:
                sink.log(record)

    def save_if_due(self, states: PyTree, step: int) -> None:
        """Start a checkpoint in the background if one is due. ``step`` counts iterations."""
        if self.saver.is_due():
            self._flush()  # the logs must reach as far as any checkpoint
            self.saver.begin(states, step)

    def finish(self, states: PyTree, step: int, history: Mapping[str, np.ndarray], *, title: str, subtitle: str) -> None:
        """Write the last checkpoint and the learning curve."""
        from jaxrl.runtime.plots.draw import UPDATES_NAME, X_NAME, learning_curve

        self._flush()
        self.saver.finish(states, step)
        if not current().is_first:
            return
        self.folder.check_there()
        with best_effort(CURVE):
            x_name = UPDATES_NAME if self.agent.is_offline else X_NAME
            learning_curve(history, self.folder.path / CURVE, title=title, subtitle=subtitle, x_name=x_name)

    def close(self) -> None:
        with self._explaining(), contextlib.ExitStack() as resources:
            resources.callback(self._clear_away)
            resources.callback(self.saver.close)
            for sink in self._sinks:
                resources.callback(sink.close)

    def _clear_away(self) -> None:
        if not self.folder.is_there:
            self.saver.clear_away()

    def _flush(self) -> None:
        with self._explaining():
            self.folder.check_there()
            for sink in self._sinks:
                sink.flush()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Add the folder, and how to resume, to errors of the system such as a full disk."""
        try:
            yield
        except OSError as error:
            if error.strerror is None:  # already explained
                raise
            raise OSError(
                f"out={os.fspath(self.folder.shown)!r} cannot be written to: {error.strerror}. Fix this and repeat the call to "
                "resume the run from its last checkpoint"
            ) from error

    def _open_sinks(self) -> list[Sink]:
        config, folder, records = self.plan.config, self.folder.path, self._records
        seeds, logging = config.members.seeds, config.logging
        if not self._is_announced:
            self._write_config()
        if self.saver.saved is not None:
            keep_earlier_rows(folder / PROGRESS, records)
        sinks: list[Sink] = [JsonLines(folder, records), BestEffort(PROGRESS, lambda: Csv(folder, seeds, records))]
        if logging.tensorboard:
            settings = [settings_of(self.folder.config or {}, column) for column in range(len(seeds))]
            sinks.append(BestEffort(TENSORBOARD, lambda: TensorBoard(folder, seeds, records, settings)))
        if logging.wandb is not None:
            sinks.append(WeightsAndBiases(folder, logging.wandb, self.folder.config or {}, seeds))
        return sinks

    def _write_config(self) -> None:
        agents = self.agent.env.num_agents
        more: dict[str, Any] = {"num_agents": agents} if agents else {}
        self.folder.write_config(
            self.devices,
            self.devices_per_seed,
            agent=self.agent.spec,
            spaces=_describe_spaces(self.agent),
            run=self._request,
            output=self.plan.config.as_plain(compared=False),
            **({"init_from": self._origin} if self._origin else {}),
            **more,
        )


def settings_of(config: Mapping[str, Any], column: int) -> dict[str, str]:
    """Return the settings of a member of a run as text, without those left at None or empty."""
    facts = {name: text for name, text in facts_of(config, column).items() if text not in ("None", "[]")}
    return facts | {"total_steps": str(config["run"]["total_steps"])}


def why_incomplete(records: Sequence[Record], step: int, plan: TrainingPlan) -> str | None:
    """Return why the records up to a checkpoint are incomplete or another run's; None if they are complete, or there are none.

    Records may begin late: a user may have moved earlier ones away.
    """
    rows, chunk, shape = plan.rows_per_iteration, plan.chunk_iterations, (len(plan.config.members.seeds),)
    iterations = [record["iteration"] for record in records]
    for before, after in itertools.pairwise(iterations):
        if not before < after <= before + chunk:
            return f"was altered: iteration {after} follows {before}, in a run that writes a row every {chunk}"
    for record in records:
        if np.shape(record.get("env_steps", 0)) != shape or record.get("rows") != record["iteration"] * rows:
            return f"is of another run: its row of iteration {record['iteration']} has other seeds, or other steps"
    if records and iterations[-1] != step:
        return f"was cut, or is an older copy: it ends at iteration {iterations[-1]}, before the checkpoint of iteration {step}"
    return None


def keep_earlier_rows(progress: Path, records: Sequence[Record]) -> None:
    """Set ``progress.csv`` aside if its rows begin before the records: these rows could not be rewritten."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StopIteration, csv.Error):
        first = int(next(csv.DictReader(io.StringIO(read_regular(progress).decode())))["iteration"])
        if not records or first < records[0]["iteration"]:
            finding = f"begins at iteration {records[0]['iteration']}" if records else "has no row up to the checkpoint"
            aside = set_aside(progress)
            warn(f"{RECORDS} {finding}: the rows from before stay in {aside.name}")


def _describe_spaces(agent: Agent) -> dict[str, Any] | None:
    """Return the environment's spaces as JSON, for policies; None for custom kinds of spaces."""
    try:
        return {"observation": describe_space(agent.env.observation_space), "action": describe_space(agent.env.action_space)}
    except TypeError:
        return None
