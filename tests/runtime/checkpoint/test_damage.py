"""Checkpoints that are damaged, and saves that are killed: the last whole step is used."""

import multiprocessing
import os
import random
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxrl.runtime.checkpoint import manifest, store
from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointWarning, latest_step, steps
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from tests.helpers.checkpoints import assert_bit_equal, assert_falls_back, files_of, tiny
from tests.helpers.processes.children import soon

pytestmark = pytest.mark.expensive(20)


def test_a_flipped_byte_in_any_file_is_noticed(two: Path) -> None:
    files = files_of(two / "2")
    assert len(files) > 8 and two / "2" / "manifest.json" in files
    for file in files:
        whole = file.read_bytes()
        for position in {0, len(whole) // 2, len(whole) - 1}:
            file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            assert_falls_back(two, file.relative_to(two / "2").as_posix(), "was altered")
        file.write_bytes(whole)
    assert restore(two, tiny())[1].step == 2


def test_the_manifest_counts_from_end_to_end(two: Path) -> None:
    file = two / "2" / "manifest.json"
    whole = file.read_bytes()
    for position in range(0, len(whole), 7):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x20]) + whole[position + 1 :])
        with pytest.raises(manifest.Damage, match=r"manifest\.json was altered"):
            manifest.read_whole(two / "2", 2)


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_truncated_file_is_noticed(two: Path, share: float) -> None:
    for file in files_of(two / "2"):
        whole = file.read_bytes()
        file.write_bytes(whole[: int(len(whole) * share)])
        assert_falls_back(two, file.relative_to(two / "2").as_posix())
        file.write_bytes(whole)


def test_a_missing_file_is_noticed(two: Path) -> None:
    for file in files_of(two / "2"):
        file.rename(two / "away")
        assert_falls_back(two, f"the file {file.relative_to(two / '2').as_posix()} is missing")
        (two / "away").rename(file)


@pytest.mark.parametrize("left", ["2", "2.orbax-checkpoint-tmp", "unfinished/2", "unfinished/save-1/2.orbax-checkpoint-tmp"])
def test_an_incomplete_step_is_passed_over(two: Path, left: str) -> None:
    (two / "2" / "manifest.json").unlink()
    (two / left).parent.mkdir(exist_ok=True, parents=True)
    (two / "2").rename(two / left)
    assert_falls_back(two, left)
    shutil.rmtree(two / left)
    (two / left).mkdir()
    assert_falls_back(two, left)


def test_a_step_under_another_number_is_noticed(two: Path) -> None:
    (two / "2").rename(two / "5")
    with pytest.warns(CheckpointWarning, match=r"step 5 .* manifest\.json belongs to step 2"):
        assert restore(two, tiny())[1].step == 1


def test_no_whole_step_is_one_error(two: Path) -> None:
    (two / "1" / "manifest.json").unlink()
    (two / "2" / "default" / "_METADATA").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no intact checkpoint: step 2 .*_METADATA has 0 bytes.*; step 1 .*manifest.json"):
        restore(two, tiny())
    with pytest.raises(CheckpointError, match=r"step 1 .*leave step out"):
        restore(two, tiny(), step=1)


def test_goes_back_as_far_as_needed(two: Path) -> None:
    save(two, tiny(3), 3)
    for step in ("2", "3"):
        (two / step / "manifest.json").unlink()
    with pytest.warns(CheckpointWarning) as said:
        assert_bit_equal(restore(two, tiny())[0], tiny(1))
    assert [str(warning.message)[:7] for warning in said] == ["step 3 ", "step 2 "]


def test_a_run_goes_on_past_a_damaged_step(two: Path) -> None:
    (two / "2" / "default" / "_METADATA").write_bytes(b"")
    with pytest.warns(CheckpointWarning, match=r"step 2 .*_METADATA.*set aside as 2\.damaged") as said:
        save(two, tiny(2), 2)
    assert said[0].filename == __file__
    assert sorted(os.listdir(two)) == ["1", "2", "2.damaged"]
    assert_bit_equal(restore(two, tiny())[0], tiny(2))


# ----------------------------------------------------------------------------------------------------------------------- kills


class Killed(BaseException):
    """Exception that stands for SIGKILL: jaxrl does not catch it, and cleans nothing up."""


@pytest.mark.parametrize(
    ("module", "function", "calls", "survives"),
    [
        (manifest, "write", 0, 2),
        (manifest, "render", 1, 2),  # the first call writes the owner of the unfinished save
        (os, "replace", 1, 2),
        (manifest, "sync_folder", 0, 2),
        (store, "own_steps", 0, 3),
    ],
)
def test_a_kill_between_the_stages_of_a_save(
    two: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, calls: int, survives: int
) -> None:
    """After this number of calls of a function."""
    original, left = getattr(module, function), [None] * calls

    def kill(*args: Any, **settings: Any) -> Any:
        if not left:
            raise Killed
        left.pop()
        return original(*args, **settings)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, function, kill)
        save(two, tiny(3), 3, keep=2)
    if survives == 2:
        with pytest.warns(CheckpointWarning, match="step 3 .*cut short.* Using step 2"):
            state, _ = restore(two, tiny())
    else:
        state, _ = restore(two, tiny())
    assert_bit_equal(state, tiny(survives))
    save(two, tiny(4), 4, keep=2)
    assert sorted(os.listdir(two)) == [str(survives), "4"]


def _state_of(step: int) -> dict[str, Any]:
    return {"key": jax.random.key(step), "step": jnp.asarray(step), "x": jnp.full((100_000,), step, jnp.int32)}


def _save_without_end(folder: str) -> None:
    """Do what a run does: resume from the checkpoint, if there is one, and save."""
    step = 0
    if steps(folder):
        state, _ = restore(folder, _state_of(0))
        step = int(state["step"])
    while True:
        step += 1
        save(folder, _state_of(step), step, spec={"step": step}, keep=2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxrl.runtime.checkpoint.manifest.CheckpointWarning")
def test_sigkill_at_any_moment_leaves_a_whole_step(tmp_path: Path) -> None:
    draw, last = random.Random(0), 0
    for _ in range(3):
        process = multiprocessing.get_context("spawn").Process(target=_save_without_end, args=(str(tmp_path),))
        process.start()
        saved = lambda step=last + 3: (latest_step(tmp_path) or 0) >= step  # noqa: E731
        assert soon(lambda saved=saved, process=process: saved() or not process.is_alive(), 120) and process.is_alive()
        time.sleep(draw.random() * 0.2)
        process.kill()
        process.join()
        state, info = restore(tmp_path, _state_of(0))
        assert info.step >= last + 3 and info.spec == {"step": info.step}
        assert_bit_equal(state, _state_of(info.step))
        last = info.step


def _save_with_small_files(folder: str, said: Any) -> None:
    sys.dont_write_bytecode = True  # Python would import what the limit cuts off
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))  # writing fails as on a full disk
    try:
        save(folder, {"x": jax.random.normal(jax.random.key(0), (100_000,))}, 3)
    except CheckpointError as error:
        said.put(str(error))


def test_a_failed_write_is_one_error_and_harms_nothing(two: Path) -> None:
    context = multiprocessing.get_context("spawn")
    said = context.Queue()
    process = context.Process(target=_save_with_small_files, args=(str(two), said))
    process.start()
    message = said.get(timeout=120)
    process.join()
    assert message.startswith(f"saving step 3 in {two} failed: ") and "File too large" in message and "\n" not in message
    assert sorted(os.listdir(two)) == ["1", "2"]
    assert_bit_equal(restore(two, tiny())[0], tiny(2))
