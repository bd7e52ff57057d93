"""Messages of processes that train together: what they gather, and failures of one that end all."""

from __future__ import annotations

import json
import signal
import threading
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxrl.runtime.distributed.group import ProcessFailed, ProcessGroup
from jaxrl.runtime.training_loop.session import Session
from jaxrl.runtime.training_loop.signals import Interrupt
from tests.helpers.roll_calls import outcomes


class Store:
    """A store shared by threads, in place of the one that JAX's processes share."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.changed = threading.Condition()

    def key_value_set(self, key: str, value: str) -> None:
        with self.changed:
            assert key not in self.texts
            self.texts[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.texts, timeout_in_ms / 1000):
                raise jax.errors.JaxRuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.texts[key]

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        with self.changed:
            return [(name, text) for name, text in self.texts.items() if name.startswith(key)]

    def key_value_delete(self, key: str) -> None:
        with self.changed:
            self.texts = {name: text for name, text in self.texts.items() if not name.startswith(key)}


def groups(number: int) -> list[ProcessGroup]:
    store, made = Store(), []
    for process_id in range(number):
        group = ProcessGroup()
        group._store, group.process_id, group.num_processes = store, process_id, number
        made.append(group)
    return made


def test_all_hear_what_each_says() -> None:
    made = groups(3)

    def talk(group: ProcessGroup) -> list[Any]:
        return [group.gather([group.process_id, turn, None, 0.1]) for turn in range(20)]

    heard = outcomes([lambda group=group: talk(group) for group in made])  # type: ignore[misc]
    assert heard == [[[[i, turn, None, 0.1] for i in range(3)] for turn in range(20)]] * 3
    left = made[0]._store.texts
    assert {key.split("/")[1] for key in left} == {"20"} and json.loads(left["jaxrl/20/all"]) == heard[0][-1]


def test_what_fails_in_one_fails_in_all() -> None:
    def make(group: ProcessGroup) -> int:
        if group.process_id == 1:
            raise OSError("the disk\nis full")
        return group.process_id

    first, second, third = outcomes([lambda group=group: group.together(lambda: make(group)) for group in groups(3)])  # type: ignore[misc]
    assert isinstance(second, OSError)
    for error in (first, third):
        assert isinstance(error, ProcessFailed) and str(error) == "process 1: the disk is full"


def test_the_first_decides() -> None:
    asked: list[int] = []
    made = groups(2)
    given = outcomes([lambda group=group: group.of_first(lambda: asked.append(group.process_id) or "so") for group in made])  # type: ignore[misc,func-returns-value]
    assert given == ["so", "so"] and asked == [0]
    for turn in (1, 2):
        for group in made:
            group._turn += turn
        assert outcomes([lambda group=group: group.part() for group in made]) == [None, None]  # type: ignore[misc]


def test_who_ends_before_its_time_says_why() -> None:
    """Processes that wait for it get the reason: the first one directly, and others through the first."""
    first, second, third = groups(3)
    errors = outcomes([lambda: first.gather(0), lambda: second.fail("no\nroom"), lambda: third.gather(0)])
    assert errors[1] is None
    for error in (errors[0], errors[2]):
        assert isinstance(error, ProcessFailed) and str(error) == "process 1 has ended: no room"


def test_who_has_only_heard_of_a_failure_is_not_its_cause() -> None:
    first, second, third = groups(3)
    second.fail("no room")
    third.fail("")
    with pytest.raises(ProcessFailed, match="process 1 has ended: no room"):
        first.gather(0)
    first.fail("")  # does not wait, since all have reported
    assert len(first._failures()) == 3


def test_a_signal_that_comes_while_others_are_waited_for_is_not_lost() -> None:
    interrupt = Interrupt()

    def gather(mine: int) -> list[int]:
        interrupt.requested = signal.SIGTERM
        return [mine, 0]

    session: Any = SimpleNamespace(group=SimpleNamespace(gather=gather), interrupt=interrupt, stopped_by=0)
    assert [Session.asked_to_stop(session), Session.asked_to_stop(session)] == [False, True]
    assert session.stopped_by == interrupt.requested == signal.SIGTERM


def test_who_says_nothing_is_named() -> None:
    first, _ = groups(2)
    with pytest.raises(TimeoutError, match="timed out waiting for process 1"):
        first.gather(0, timeout=0.0)


def test_one_process_waits_for_nobody() -> None:
    alone = ProcessGroup()
    assert alone.gather({"a": (1,)}) == [{"a": (1,)}]
    with pytest.raises(ZeroDivisionError):
        alone.together(lambda: 1 / 0)
    alone.part()
