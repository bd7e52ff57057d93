"""Output whose reader closes, with real pipes: a run continues without display, and its exit code does not change."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from jaxrl.runtime.console.streams import Screen
from tests.helpers.command_line import ENV, SMALL, start

GONE = "jaxrl: stdout cannot be written to ({}): continuing without a display\n"
RUN = ("-m", "jaxrl", "train", "ppo", "--env", ENV, "--total-steps", "80", "--eval-every", "0", *SMALL, "--no-tensorboard")


def rows(folder: Path) -> int:
    return len(list(csv.DictReader((folder / "progress.csv").read_text().splitlines())))


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["", "1"])
def test_a_run_outlives_the_reader_of_its_pipe(colour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``| head -1``, and the same with the panel of a terminal, which a separate thread redraws."""
    monkeypatch.setenv("FORCE_COLOR", colour)
    monkeypatch.setenv("TERM", "xterm-256color")
    process = start(*RUN, "--out", str(tmp_path / "run"))
    assert process.stdout and process.stderr
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(120), said) == (0, GONE.format("Broken pipe"))
    assert rows(tmp_path / "run") == 10 and (tmp_path / "run" / "checkpoints" / "10").is_dir()


@pytest.mark.slow
def test_nothing_is_left_to_fail_where_stderr_is_gone_too(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = start(*RUN, "--out", str(tmp_path / "run"), stdout=write, stderr=write)
    os.close(write)
    assert process.wait(120) == 0 and rows(tmp_path / "run") == 10


@pytest.mark.slow
def test_a_full_disk_under_stdout_is_not_the_end_of_a_run(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = start(*RUN, "--out", str(tmp_path / "run"), stdout=full)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, GONE.format("No space left on device")) and rows(tmp_path / "run") == 10


def test_a_stream_that_lacks_characters_or_was_closed_ends_nothing(tmp_path: Path) -> None:
    with open(tmp_path / "ascii", "w", encoding="ascii") as stream:
        shown = Screen(stream)
        print("return 1 ± 2", file=shown, flush=True)
        assert not shown.is_gone
    assert (tmp_path / "ascii").read_text() == "return 1 ? 2\n"
    lost: list[str] = []
    closed = Screen(stream, lost.append)
    print("more", file=closed, flush=True)
    assert closed.is_gone and len(lost) == 1 and "closed file" in lost[0]


def test_what_only_shows_something_fails_where_it_cannot() -> None:
    with open("/dev/full", "w") as full:
        process = start("-m", "jaxrl", "--version", stdout=full)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (2, "jaxrl: [Errno 28] No space left on device\n")
