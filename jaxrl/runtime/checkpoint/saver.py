"""Checkpointing during a run: saves in the background, limited to a small share of the run's time."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jaxrl.runtime.checkpoint import manifest
from jaxrl.runtime.checkpoint.convert_states import without_buffers
from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointWarning, latest_step
from jaxrl.runtime.checkpoint.ownership import check_unfinished
from jaxrl.runtime.checkpoint.restore import read_info
from jaxrl.runtime.checkpoint.store import PendingSave
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.records import Record
from jaxrl.runtime.logs.run_folder import BEST, CHECKPOINTS, CONFIG, RECORDS, RunFolder, plain, set_aside
from jaxrl.runtime.system.disk import move_damaged
from jaxrl.runtime.system.warn import warn
from jaxrl.types import PyTree

SHARE = 0.03
"""Maximum share of wall time spent on saving."""


class Saver:
    """Writer of ``checkpoints/`` and ``best/`` of a run. In a group, the first process decides when all of them save."""

    def __init__(
        self,
        folder: RunFolder,
        *,
        spec: Mapping[str, Any],
        request: Mapping[str, Any],
        every: float,
        keep: int,
        leave_out: Sequence[str] = (),
        note: Callable[[str], None],
    ) -> None:
        """``every``: seconds between checkpoints; 0: only at the end. ``leave_out``: fields of the learner that they omit."""
        self._folder, self._checkpoints, self._best = folder, folder.path / CHECKPOINTS, folder.path / BEST
        self.saved: int | None = None
        """Last step that was saved or restored."""
        self._best_is_lost = self._best_is_unknown = False
        self._resumed_at = math.inf
        self._save = functools.partial(PendingSave, spec=spec, run=folder.id, request=plain(request), check=folder.check_there)
        current().of_first(functools.partial(check_unfinished, self._checkpoints, self._best))
        self._keep, self._leave_out, self._note = keep, leave_out, note
        self._every = self._least = every or math.inf
        self._last = time.perf_counter()
        self._group = current()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jaxrl-checkpoint")
        self._pending: Future[float] | None = None
        self._better: tuple[PyTree, int] | None = None

    def set_best(self, policies: PyTree, step: int) -> None:
        """Keep the best policies so far; they are written together with the next checkpoint."""
        self._better = (policies, step)

    def is_due(self) -> bool:
        """Return whether it is time for a checkpoint and the previous one is finished."""
        done = self._pending is None or self._pending.done()
        if not all(self._group.gather(done)):
            return False
        self._collect()
        return self._group.gather(time.perf_counter() - self._last >= self._every)[0]

    def begin(self, states: PyTree, step: int) -> None:
        """Start a checkpoint in the background, once ``is_due``."""
        begin = time.perf_counter()
        self._write_best()
        under_way = self._start(self._checkpoints, self.slimmed(states), step, self._keep)
        blocked = time.perf_counter() - begin

        def finish() -> float:
            start = time.perf_counter()
            under_way.finish()
            return blocked + time.perf_counter() - start

        self._pending = self._thread.submit(finish)
        self.saved = step
        self._last = time.perf_counter()

    def finish(self, states: PyTree, step: int) -> None:
        """Save the last checkpoint; everything is on disk when this returns."""
        self._collect()
        self._write_best()
        if self.saved != step:
            self._save_now(self._checkpoints, self.slimmed(states), step, self._keep)

    def _start(self, folder: Path, states: PyTree, step: int, keep: int) -> PendingSave:
        # A link in the run folder may lead to a folder that does not belong to the run.
        return self._save(folder, states, step, keep=keep, owned=not folder.is_symlink())

    def _save_now(self, folder: Path, states: PyTree, step: int, keep: int) -> None:
        pending = self._start(folder, states, step, keep)
        self._group.together(lambda: str(pending.finish()))

    def slimmed(self, states: PyTree) -> PyTree:
        """Return the states as stored in a checkpoint: complete, or without the replay buffer."""
        return without_buffers(states, self._leave_out) if self._leave_out else states

    def close(self) -> None:
        """Wait for the save in progress."""
        self._thread.shutdown()

    def clear_away(self) -> None:
        """Delete what saves left behind if the run folder was deleted or moved during the run; call after ``close``."""
        top, run = self._folder.path, self._folder.id
        if (top / CONFIG).exists():  # another run uses that path now
            return
        for folder in (self._checkpoints, self._best):
            for step, path in manifest.step_folders(folder):
                with contextlib.suppress(manifest.Damage):
                    if run and manifest.read_whole(path, step, run):
                        shutil.rmtree(path, ignore_errors=True)
            for empty in (folder / manifest.UNFINISHED, folder, top):
                with contextlib.suppress(OSError):
                    empty.rmdir()

    def _collect(self) -> None:
        """Wait for the save in progress. If saving takes more than ``SHARE`` of the time, save less often and report it."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        seconds = self._group.together(pending.result)[0]
        if seconds > SHARE * self._every:
            self._every = seconds / SHARE
            self._note(
                f"checkpoints every {self._every:.0f} s instead of {self._least:.0f} s: one takes {seconds:.1f} s, and saving "
                f"is limited to {SHARE:.0%} of the time"
            )

    def _write_best(self) -> None:
        if self._better is None:
            return
        (policies, step), self._better = self._better, None
        if self._group.of_first(lambda: self._make_room_for_best(step)):
            self._save_now(self._best, policies, step, keep=1)

    def _make_room_for_best(self, step: int) -> bool:
        """Return whether to write the policies of this step. Policies that must not be replaced are set aside first."""
        last = latest_step(self._best)
        in_the_way = self._best_is_lost or self._best_is_unknown
        is_ahead = last is not None and self._resumed_at < step <= last and not self._best.is_symlink()
        if last is not None and step <= last and not in_the_way and not is_ahead:
            return False
        self._folder.check_there()
        if is_ahead and not in_the_way:
            for found, path in manifest.step_folders(self._best):
                if found >= step:
                    shutil.rmtree(path)
        if self._best_is_unknown:
            aside = set_aside(self._best)
            warn(f"{RECORDS} lacks the evaluation of the policies in {BEST}/: they were moved to {aside.name}/")
        elif os.path.lexists(self._best) and (self._best_is_lost or not self._best.is_dir()):
            move_damaged(self._best)
        self._best_is_lost = self._best_is_unknown = False
        return True

    def begin_again(self) -> None:
        """Replace best policies that a run wrote before it was killed without a checkpoint: training repeats their evaluation."""
        self._resumed_at = -1

    def compare_best(self, records: Sequence[Record], step: int) -> None:
        """Protect the best policies from deletion if the records up to a checkpoint, from which the run is resumed, lack their
        evaluation. Those of a later step are replaced: training repeats it, on the host with other episodes."""
        self._resumed_at = step
        best = latest_step(self._best)
        self._best_is_unknown = best is not None and best <= step and best not in {record["iteration"] for record in records}

    def has_best(self) -> bool:
        """Return whether the best policies can be restored; if not, warn, and let the next ones replace them."""

        def find() -> bool:
            try:
                with warnings.catch_warnings(action="ignore", category=CheckpointWarning):
                    read_info(self._best, run=self._folder.id)
            except (CheckpointError, FileNotFoundError) as error:
                self._best_is_lost = True
                text = f"the best policies are lost: {str(error).rstrip('.')}. Those of the next evaluation will replace them"
                warn(text, CheckpointWarning)
            return not self._best_is_lost

        return self._group.of_first(find)
