"""What a run leaves in its folder, and what a later one takes up from there: logs, checkpoints, the best policies, the curve."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.config import check_count
from jaxrl.runtime.checkpoint import latest_step, restore
from jaxrl.runtime.folder import CHECKPOINTS, CURVE, PROGRESS, TENSORBOARD, RunFolder
from jaxrl.runtime.logs import Record
from jaxrl.runtime.saving import Saver
from jaxrl.runtime.sinks import Csv, JsonLines, Sink, Spare, TensorBoard, WeightsAndBiases, import_wandb, read_records, sparing
from jaxrl.spaces import describe_space
from jaxrl.spec import modules_outside, unimportable_parts
from jaxrl.types import Agent, PyTree


class Output(NamedTuple):
    """How a run's results are kept; nothing of it changes a result."""

    checkpoint_every: float = 60.0
    keep_checkpoints: int = 3
    tensorboard: bool = True
    wandb: str | None = None


def check_output(output: Output) -> Output:
    """Refuse what cannot be done."""
    every = output.checkpoint_every
    if isinstance(every, bool) or not isinstance(every, int | float) or not 0 <= every < math.inf:
        raise ValueError(f"checkpoint_every={every!r} must be a number of seconds >= 0; 0 saves at the end only")
    output = output._replace(keep_checkpoints=check_count("keep_checkpoints", output.keep_checkpoints))
    if output.wandb is not None:
        import_wandb()
    return output


class RunFiles:
    """The files of one run.

    Nothing is written before the first record, so that a run that cannot start leaves its folder as it was.
    """

    def __init__(
        self,
        folder: RunFolder,
        agent: Agent,
        asked: Mapping[str, Any],
        output: Output,
        devices: Sequence[jax.Device],
        note: Callable[[str], None],
    ) -> None:
        self._folder, self._agent, self._asked, self._output, self._devices = folder, agent, asked, output, devices
        self._sinks: list[Sink] | None = None
        self._records: list[Record] = []
        self._saver = Saver(
            folder.path,
            agent.spec,
            run=folder.id,
            every=output.checkpoint_every,
            keep=output.keep_checkpoints,
            save_replay=asked["save_replay"],
            note=note,
            check=folder.check_there,
        )

    @property
    def can_resume(self) -> bool:
        """Whether there is a checkpoint."""
        return latest_step(self._folder.path / CHECKPOINTS) is not None

    def resume(self, target: PyTree) -> tuple[PyTree, int, list[Record]]:
        """``(states, step, records up to it)`` of the last whole checkpoint.

        Args:
          target: what the states look like. A replay buffer that was not saved is ``()`` in those that come back.
        """
        states, info = restore(self._folder.path / CHECKPOINTS, self._saver.slimmed(target), run=self._folder.id)
        self._saver.saved = info.step
        self._records = read_records(self._folder.path, info.step)
        return states, info.step, self._records

    @property
    def shown_folder(self) -> Path:
        return self._folder.shown

    @property
    def resume_command(self) -> str:
        """What goes on with this run in another process."""
        if parts := unimportable_parts(self._agent.spec):
            given = ", ".join(f"{name}=…" for name in parts)
            return f"jaxrl.resume({os.fspath(self._folder.shown)!r}, {given})"
        trusted = dict.fromkeys(module.partition(".")[0] for module in modules_outside(self._agent.spec))
        return " ".join([f"jaxrl train --resume {self._folder.shown}", *(f"--trust {name}" for name in trusted)])

    def log(self, record: Record) -> None:
        with self._writing():
            if self._sinks is None:
                self._sinks = self._open_sinks()
            for sink in self._sinks:
                sink.log(record)

    def save_if_due(self, states: PyTree, step: int) -> None:
        """Begin a checkpoint in the background when it is time for one. ``step`` counts iterations."""
        if self._saver.is_due():
            self._flush()  # a checkpoint never knows more than the logs
            self._saver.begin(states, step)

    def has_best(self) -> bool:
        """Whether the best policies so far are there; a warning says why not."""
        return self._saver.has_best()

    def improve(self, policies: PyTree, step: int) -> None:
        """These are the best policies so far."""
        self._saver.improve(policies, step)

    def finish(self, states: PyTree, step: int, history: Mapping[str, np.ndarray], *, title: str, subtitle: str) -> None:
        """The last checkpoint and the learning curve."""
        from jaxrl.runtime.plots import learning_curve

        self._flush()
        self._saver.finish(states, step)
        self._folder.check_there()
        with sparing(CURVE):
            learning_curve(history, self._folder.path / CURVE, title=title, subtitle=subtitle)

    def close(self) -> None:
        with self._explaining(), contextlib.ExitStack() as resources:
            resources.callback(self._clear_away)
            for part in (self._saver, *(self._sinks or ())):
                resources.callback(part.close)

    def _clear_away(self) -> None:
        if not self._folder.is_there:
            self._saver.clear_away()

    def _flush(self) -> None:
        with self._writing():
            for sink in self._sinks or ():
                sink.flush()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Before anything is written, see that the folder is there."""
        with self._explaining():
            self._folder.check_there()
            yield

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Say of what the system refuses (a full disk, say) where that was, and how to go on."""
        try:
            yield
        except OSError as error:
            if error.strerror is None:  # it has been explained
                raise
            raise OSError(
                f"out={os.fspath(self._folder.shown)!r} cannot be written to: {error.strerror}. Mend that, and the same call "
                "resumes the run at its last checkpoint"
            ) from error

    def _open_sinks(self) -> list[Sink]:
        folder, seeds, records = self._folder.path, self._asked["seeds"], self._records
        self._folder.write_config(
            self._devices,
            agent=self._agent.spec,
            spaces=_describe_spaces(self._agent),
            run=self._asked,
            output=self._output._asdict(),
        )
        sinks: list[Sink] = [JsonLines(folder, records), Spare(PROGRESS, lambda: Csv(folder, seeds, records))]
        if self._output.tensorboard:
            sinks.append(Spare(TENSORBOARD, lambda: TensorBoard(folder, seeds, records)))
        if self._output.wandb is not None:
            sinks.append(WeightsAndBiases(folder, self._output.wandb, self._folder.config or {}, seeds))
        return sinks


def _describe_spaces(agent: Agent) -> dict[str, Any] | None:
    """What a policy needs of the environment; None for spaces of the user's own kind."""
    try:
        return {"observation": describe_space(agent.env.observation_space), "action": describe_space(agent.env.action_space)}
    except TypeError:
        return None
