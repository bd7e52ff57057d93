"""Outcome of a run: the state in which it ended, and its history or the error that ended it."""

from __future__ import annotations

import signal

import numpy as np

from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.records import as_arrays
from jaxrl.runtime.training_loop.reporting import gap_in_words
from jaxrl.runtime.training_loop.session import Session
from jaxrl.runtime.training_loop.signals import Interrupted, end_in_a_line
from jaxrl.types import Agent, PyTree


class RunInterrupted(Interrupted):
    """A signal ended the run between two chunks, after everything was written. ``states`` and ``history`` are those at the end.

    ``states`` is None if the signal arrived while the first program was being compiled, since the run does not wait for the
    compiler.
    """

    def __init__(
        self, message: str, states: PyTree, history: dict[str, np.ndarray], number: int = signal.SIGINT, *, shown: bool = False
    ) -> None:
        super().__init__(message, number, shown=shown)
        self.states, self.history = states, history


class RunDiverged(RuntimeError):
    """All seeds of a run diverged. Everything was written; ``states`` (from before the divergence) and ``history`` are those at
    the end."""

    def __init__(self, message: str, states: PyTree, history: dict[str, np.ndarray]) -> None:
        super().__init__(message)
        self.states, self.history = states, history


def end_of(session: Session, summary: str) -> tuple[str, str]:
    """Return the state in which a run ends, one of ``logs.live_status.ENDS``, and the reason."""
    reason, failure = summary.partition("; ")[0], session.failure
    if session.ended is None:
        by = f", by {signal.Signals(session.stopped_by).name}" if session.stopped_by else ""
        return "stopped", f"{reason.removeprefix('stopped ')}{by}"
    if session.ended != "done" and failure is not None:
        return "failed", f"{reason}: {failure}"
    is_lost = session.diverged.any() if session.plan.config.on_nan == "stop" else session.diverged.all()
    return "diverged" if is_lost else "finished", reason


def history_of(agent: Agent, session: Session, states: PyTree, summary: str, *, shown: bool) -> dict[str, np.ndarray]:
    """Return the history of a run that has ended and been reported, or raise the error that ended it."""
    history = as_arrays(session.history)
    own_eval = getattr(agent.env, "open_eval", None) is not None  # evaluates on another variant, so returns do not compare
    if not own_eval and (gap := gap_in_words(history, session.plan.evaluation.eval_explore)):
        session.progress.note(gap)
    if session.failure is not None:
        raise session.failure
    if session.stopped_by:
        current().part()
        end_in_a_line()
        raise RunInterrupted(summary, states, history, session.stopped_by, shown=shown)
    current().gather(None)  # the first process may have written until now
    if session.diverged.all():
        raise RunDiverged(summary, states, history)
    return history
