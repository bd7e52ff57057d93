"""Checkpoints: bit-exact round trips, recovery from kills and damage, and errors that name the cause."""

import json
import logging
import multiprocessing
import os
import random
import resource
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxrl
from jaxrl.runtime.checkpoint import manifest, store
from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointWarning, latest_step, steps
from jaxrl.runtime.checkpoint.restore import read_arrays, read_info, restore
from jaxrl.runtime.checkpoint.store import PendingSave, save
from jaxrl.runtime.logs import provenance
from jaxrl.runtime.system import disk
from tests.helpers.paths import ROOT
from tests.helpers.processes.children import soon
from tests.helpers.written_runs import make_older

pytestmark = pytest.mark.expensive(50)


class Learner(NamedTuple):
    params: Any
    opt_state: Any
    statistics: Any
    key: Any


NANS = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000], np.uint32).view(np.float32)
"""Quiet and signalling NaNs with payloads, and -0.0."""


def tiny(value: float = 0.0, units: int = 3) -> Learner:
    params = {"Dense_0": {"kernel": jnp.full((2, units), value, jnp.float32), "bias": jnp.zeros(units)}}
    return Learner(params, optax.adam(1e-3).init(params), (), jax.random.key(int(value)))


def odd() -> dict[str, Any]:
    return {
        "learner": tiny(),
        "nan": jnp.asarray(NANS),
        "minus_zeros": jnp.full((3,), -0.0),
        "minus_zero": jnp.asarray(-0.0),
        "half": jnp.array([1, -0.0, jnp.nan], jnp.float16),
        "bfloat": jnp.array([1, -0.0, jnp.inf], jnp.bfloat16),
        "int": jnp.array([-(2**31), 2**31 - 1], jnp.int32),
        "byte": jnp.arange(256, dtype=jnp.uint8),
        "bool": jnp.array([[True], [False]]),
        "complex": jnp.array([1 - 0.0j]),
        "keys": jax.random.split(jax.random.key(1), (2, 3)),
        "no_keys": jax.random.split(jax.random.key(1), 3)[:0],
        "rbg": jax.random.key(7, impl="rbg"),
        "no_rows": jnp.zeros((0, 4), jnp.int16),
        "nothing": (None, (), {}),
    }


HOST = {
    "array": np.arange(6.0).reshape(2, 3).T,  # f64 and not contiguous
    "no_rows": np.zeros((3, 0), np.int64),
    "i64": np.array(2**62),
    "flag": np.array(True),
}


def assert_bit_equal(got: Any, wanted: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        name = jax.tree_util.keystr(path)
        assert type(a) is type(b), name
        if isinstance(b, jax.Array):
            assert (a.committed, a.sharding) == (b.committed, b.sharding), name
        if isinstance(b, jax.Array) and jax.dtypes.issubdtype(b.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(a) == jax.random.key_impl(b), name
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes()), name


def files_of(step: Path) -> list[Path]:
    return sorted(path for path in step.rglob("*") if path.is_file())


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with steps 1 and 2, whose kernels consist of 1 and 2."""
    for step in (1, 2):
        save(tmp_path / "two", tiny(step), step)
    return tmp_path / "two"


def assert_falls_back(folder: Path, *named: str) -> None:
    """Assert that step 1 is used, after one warning that contains all of ``named``."""
    with pytest.warns(CheckpointWarning) as said:
        state, info = restore(folder, tiny())
    assert info.step == 1
    assert_bit_equal(state, tiny(1))
    assert len(said) == 1 and said[0].filename == __file__
    for name in ("step 2", "Using step 1", *named):
        assert name in str(said[0].message)


# ------------------------------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("abstract", [False, True], ids=["concrete", "abstract"])
def test_round_trip_is_bit_equal(tmp_path: Path, abstract: bool) -> None:
    state = {"device": odd()} if abstract else {"device": odd(), "host": HOST}
    spec = {"builder": "make_ppo", "hidden": (64, 64), "gamma": 0.99}
    path = save(tmp_path / "new" / "folder", state, 12, spec=spec)
    got, info = restore(path.parent, jax.eval_shape(lambda: state) if abstract else state)
    assert_bit_equal(got, state)
    assert abstract or all(array.flags.writeable for array in got["host"].values())
    assert path == tmp_path / "new" / "folder" / "12"
    assert (info.step, info.spec) == (12, {"builder": "make_ppo", "hidden": [64, 64], "gamma": 0.99})
    assert info.versions["jaxrl"] == jaxrl.__version__ and info.versions["jax"] == jax.__version__
    assert read_info(path.parent) == info


@pytest.mark.parametrize(
    "state", [(), {"a": ()}, jnp.arange(3), jax.random.key(3), np.array(-(2**63)), {"only": jnp.zeros((0,))}], ids=str
)
def test_smallest_states(tmp_path: Path, state: Any) -> None:
    save(tmp_path, state, 0)
    assert_bit_equal(restore(tmp_path, state)[0], state)


def test_sharded_state_comes_back_on_the_targets_sharding(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    split, whole = NamedSharding(mesh, PartitionSpec("d")), NamedSharding(mesh, PartitionSpec())
    plain = {"x": jnp.arange(8.0), "keys": jax.random.split(jax.random.key(0), 4), "none": jnp.zeros((0, 2)), "n": jnp.ones(())}
    places = {"x": split, "keys": split, "none": whole, "n": whole}
    sharded = jax.device_put(plain, places)
    save(tmp_path / "sharded", sharded, 0)
    save(tmp_path / "plain", plain, 0)
    shapes = jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), plain, places)
    for folder in (tmp_path / "sharded", tmp_path / "plain"):
        assert_bit_equal(restore(folder, sharded)[0], sharded)
        assert_bit_equal(restore(folder, shapes)[0], sharded)
        assert_bit_equal(restore(folder, plain)[0], plain)
        assert_bit_equal(restore(folder, jax.eval_shape(lambda: plain))[0], plain)
    other = jax.device_put(plain, jax.devices()[1])
    assert_bit_equal(restore(tmp_path / "sharded", other)[0], other)


def test_a_donated_state_is_a_target(tmp_path: Path) -> None:
    state = jax.jit(tiny)()
    save(tmp_path, state, 0)
    jax.tree.map(lambda x: x.delete(), state)  # donation does this if the backend can reuse the buffer
    assert state.params["Dense_0"]["kernel"].is_deleted()
    assert_bit_equal(restore(tmp_path, state)[0], tiny())


def test_a_pending_save_holds_the_state_as_it_was(tmp_path: Path) -> None:
    state = {"jax": jnp.arange(200_000.0), "host": np.zeros(200_000)}
    pending = PendingSave(tmp_path, state, 3)
    state["host"][:] = 1
    after = jax.jit(lambda x: x + 1, donate_argnums=0)(state["jax"])
    assert latest_step(tmp_path) is None
    assert pending.finish() == tmp_path / "3"
    got, _ = restore(tmp_path, {**state, "jax": after})
    assert (got["host"] == 0).all() and (got["jax"] == jnp.arange(200_000.0)).all()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 2_000_000], ids=["array", "sac"])
def test_a_large_state_takes_one_more_copy(rows: int, tmp_path: Path) -> None:
    """While it is saved, and while it is restored.

    SAC resumes bit for bit with a replay of two million rows, an array that malloc maps separately. Another 2**25 bytes are
    allowed, which a small state needs too.
    """
    command = [sys.executable, "-m", "tests.helpers.processes.large_state", str(tmp_path), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    spare = 2**25 / found["size"]
    assert found["equal"] and found["size"] >= (24 * rows or 2**26)
    assert found["save"] < 1.2 + spare and found["restore"] < 2.2 + spare, found


def test_folder_is_relative_or_below_home_and_has_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert save("unfinished", tiny(), 0) == tmp_path / "unfinished" / "0"
    assert restore("~/unfinished", tiny())[1].step == 0


def test_threads_save_one_after_the_other(tmp_path: Path) -> None:
    """In another process, because orbax hangs or fails if several threads save at once."""
    code = (
        "import sys, numpy as np, jaxrl\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "states = [{'x': np.full(9, i, np.float32)} for i in range(4)]\n"
        "def run(i):\n    for step in range(4):\n        jaxrl.save(f'{sys.argv[1]}/{i}', states[i], step, keep=1)\n"
        "list(ThreadPoolExecutor(4).map(run, range(4)))\n"
        "print([float(jaxrl.restore(f'{sys.argv[1]}/{i}', states[i])[0]['x'][0]) for i in range(4)])\n"
    )
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert child.stdout.strip() == "[0.0, 1.0, 2.0, 3.0]", child.stderr[-2000:]
    assert [steps(tmp_path / str(i)) for i in range(4)] == [[3]] * 4


def test_keeps_the_last_steps(tmp_path: Path) -> None:
    for step in (0, 3, 10, 11):
        save(tmp_path, tiny(step), step, keep=2)
    assert steps(tmp_path) == [10, 11] and latest_step(tmp_path) == 11
    assert sorted(os.listdir(tmp_path)) == ["10", "11"]
    assert_bit_equal(restore(tmp_path, tiny(), step=10)[0], tiny(10))
    save(tmp_path, tiny(12), 12, keep=1)
    assert os.listdir(tmp_path) == ["12"]


def test_says_nothing_when_all_is_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "absl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path, tiny(), 0)
        restore(tmp_path, tiny())
        with pytest.raises(ValueError):
            restore(tmp_path, tiny(units=4))
    assert capfd.readouterr() == ("", "") and caplog.records == []
    logging.getLogger("absl").warning("from another library")
    assert [record.message for record in caplog.records] == ["from another library"]


# ---------------------------------------------------------------------------------------------------------------------- damage


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
    """Like SIGKILL: jaxrl does not catch it, so there is no cleanup."""


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


# ----------------------------------------------------------------------------------------------------------- invalid arguments


class Renamed(NamedTuple):
    params: Any
    opt_state: Any
    target_params: Any
    key: Any


def _with_kernel(kernel: Any) -> Learner:
    state = tiny()
    return state._replace(params={"Dense_0": {**state.params["Dense_0"], "kernel": kernel}})


KERNEL = r"state\.params\['Dense_0'\]\['kernel'\]"
MISMATCHES: dict[str, tuple[Any, str]] = {
    "shape": (_with_kernel(jnp.zeros((2, 4))), rf"at {KERNEL} it has float32\[2,3\], but the agent expects float32\[2,4\]"),
    "dtype": (
        _with_kernel(jnp.zeros((2, 3), jnp.bfloat16)),
        rf"at {KERNEL} it has float32\[2,3\], but the agent expects bfloat16\[2,3\]",
    ),
    "width": (tiny(units=4), r"at state\.params\['Dense_0'\]\['bias'\] it has float32\[3\], but the agent expects float32\[4\]"),
    "host dtype": (_with_kernel(np.zeros((2, 3))), rf"at {KERNEL} it has float32\[2,3\], but the agent expects float64\[2,3\]"),
    "missing": (Learner({}, (), (), jax.random.key(0)), r"at state\.params\['Dense_0'\]\['bias'\] it has float32\[3\], where"),
    "added": (tiny()._replace(statistics=jnp.zeros(2)), r"nothing at state\.statistics, where the agent expects float32\[2\]"),
    "added last": ((*tiny()[:3], {"k": jax.random.key(0)}), r"nothing at state\[0\]\['Dense_0'\]\['bias'\]"),
    "key": (
        tiny()._replace(key=jnp.zeros(2, jnp.uint32)),
        r"at state\.key it has key<fry>\[\], but the agent expects uint32\[2\]",
    ),
    "generator": (tiny()._replace(key=jax.random.key(0, impl="rbg")), r"state\.key it has key<fry>\[\], .* expects key<rbg>\[\]"),
    "nothing": ((), r"at state\.params\['Dense_0'\]\['bias'\] it has float32\[3\], where the agent expects nothing"),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_a_mismatch_names_the_first_path(tmp_path_factory: pytest.TempPathFactory, case: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "mismatches"
    if not steps(folder):
        save(folder, tiny(), 5)
    target, message = MISMATCHES[case]
    for wanted in (target,) if case == "host dtype" else (target, jax.eval_shape(lambda: target)):
        with pytest.raises(ValueError, match=rf"step 5 in .* does not fit the agent: .*{message}.*read_info"):
            restore(folder, wanted)


def test_an_axis_of_seeds_that_differs_is_said(tmp_path: Path) -> None:
    """A run's states have it, and the target of a single state does not. With checkpoints of scripts it may be reversed."""
    several = jax.vmap(lambda i: tiny())
    save(tmp_path / "eight", several(jnp.arange(8)), 5)
    save(tmp_path / "one", tiny(), 5)
    keys = r"jax\.random\.split\(jax\.random\.key\(0\), 8\)"
    for folder, target, message in (
        (
            "eight",
            tiny(),
            rf"the states of 8 seeds along a first axis, which the target lacks: .*jax\.vmap\(agent\.init\), {keys}",
        ),
        ("eight", several(jnp.arange(2)), rf"the states of 8 seeds, but the target has 2: .*{keys}"),
        (
            "one",
            several(jnp.arange(8)),
            r"a single state, but the target has a first axis of 8 seeds: .*\(agent\.init, jax\.random\.key",
        ),
    ):
        for wanted in (target, jax.eval_shape(lambda target=target: target)):
            with pytest.raises(ValueError, match=rf"^step 5 in .* holds {message}"):
                restore(tmp_path / folder, wanted)
    with pytest.raises(ValueError, match=r"does not fit the agent: at state\.params"):  # if more than the axis differs
        restore(tmp_path / "eight", tiny(units=4))


def test_the_folder_of_a_run_is_that_of_its_checkpoints(tmp_path: Path) -> None:
    save(tmp_path / "run" / "checkpoints", tiny(3), 7)
    (tmp_path / "run" / "best").mkdir()
    state, info = restore(tmp_path / "run", tiny())
    assert_bit_equal(state, tiny(3))
    assert info == read_info(tmp_path / "run") == read_arrays(tmp_path / "run")[1] and info.step == 7
    save(tmp_path / "run", tiny(4), 1)  # a script's checkpoint, in the folder that the script names
    assert restore(tmp_path / "run", tiny())[1].step == 1


def test_a_different_order_is_a_mismatch(tmp_path: Path) -> None:
    class Swapped(NamedTuple):
        opt_state: Any
        params: Any

    class Straight(NamedTuple):
        params: Any
        opt_state: Any

    save(tmp_path, Straight(jnp.zeros(2), jnp.ones(2)), 0)
    with pytest.raises(ValueError, match=r"it has state\.params where the agent expects state\.opt_state"):
        restore(tmp_path, Swapped(jnp.zeros(2), jnp.ones(2)))


def test_64_bit_host_data_needs_a_64_bit_place(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        state = {"x": jnp.arange(3.0)}
        assert state["x"].dtype == jnp.float64
        save(tmp_path, state, 0)
        assert_bit_equal(restore(tmp_path, state)[0], state)
    with pytest.raises(ValueError, match=r"state\['x'\] is float64\[3\].*jax_enable_x64"):
        restore(tmp_path, state)


def _rewrite(step: Path, **changes: Any) -> None:
    file = step / "manifest.json"
    file.write_bytes(manifest.render({**json.loads(file.read_text()), **changes}))


def test_another_format_is_refused(two: Path) -> None:
    _rewrite(two / "2", format=9, versions={"jaxrl": "7.1.0"})
    with pytest.raises(
        CheckpointError, match=r"has format 9, written by jaxrl 7\.1\.0; this jaxrl .* reads formats 1 and 2 only"
    ):
        restore(two, tiny())
    with pytest.raises(CheckpointError, match="has format 9"):
        save(two, tiny(), 2)
    assert restore(two, tiny(), step=1)[1].step == 1


def test_a_checkpoint_of_format_1_is_read(tmp_path: Path) -> None:
    """It records the kind of each leaf. Numbers are restored as arrays."""
    state = {"jax": odd(), "host": HOST}
    save(tmp_path, {**state, "number": np.array(2.5)}, 3)
    kinds = ["jax"] * len(jax.tree.leaves(state["jax"])) + ["numpy"] * len(HOST) + ["python"]
    make_older(tmp_path / "3", kinds)
    assert_bit_equal(restore(tmp_path, {**state, "number": np.zeros(())})[0], {**state, "number": np.array(2.5)})
    assert read_arrays(tmp_path)[0]["['number']"] == 2.5
    with pytest.raises(ValueError, match=r"at state\['number'\] it has float64\[\], but the agent expects float32\[\]"):
        restore(tmp_path, {**state, "number": jnp.zeros(())})


def test_a_number_in_a_target_is_no_array(two: Path) -> None:
    with pytest.raises(TypeError, match=r"state\.statistics is a float \(2\.5\).*jnp\.asarray"):
        restore(two, tiny()._replace(statistics=2.5))


def test_another_version_of_jaxrl_warns(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "__version__", "99.0")
    with pytest.warns(
        CheckpointWarning, match=rf"saved by jaxrl {manifest.read_whole(two / '2', 2).versions['jaxrl']}, .* 99\.0"
    ):
        state, _ = restore(two, tiny())
    assert_bit_equal(state, tiny(2))


def test_steps_go_up(two: Path) -> None:
    for step in (0, 1, 2):
        with pytest.raises(CheckpointError, match=rf"step={step} cannot be saved in .*, which holds step 2: steps must increase"):
            save(two, tiny(9), step)
    assert steps(two) == [1, 2]
    assert_bit_equal(restore(two, tiny())[0], tiny(2))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"step": -1}, ValueError, "step=-1 must be an integer >= 0"),
        ({"step": 1.5}, ValueError, "step=1.5 must be an integer"),
        ({"keep": 0}, ValueError, "keep=0 must be an integer >= 1"),
        ({"spec": {"model": jnp.tanh}}, TypeError, "spec must be plain JSON data.* not JSON serializable"),
        (
            {"state": {"net": {"name": "mlp"}}},
            TypeError,
            r"state\['net'\]\['name'\] is a str \('mlp'\): a checkpoint holds arrays",
        ),
        ({"state": [jnp.zeros(1), jnp.tanh]}, TypeError, r"state\[1\] is a \w+"),
        ({"state": {"names": np.array(["a"])}}, TypeError, r"state\['names'\] is an array of <U1"),
        ({"state": {"n": 3}}, TypeError, r"state\['n'\] is an int \(3\): .* only: jnp.asarray makes an array of a number"),
        ({"state": {"flag": np.bool_(True)}}, TypeError, r"state\['flag'\] is a bool.*: jnp.asarray makes an array of a number"),
        ({"state": jax.eval_shape(tiny)}, TypeError, r"state\.params.* is a jax\.ShapeDtypeStruct"),
    ],
)
def test_bad_arguments(tmp_path: Path, settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        save(**{"folder": tmp_path / "new", "state": tiny(), "step": 0, **settings})
    assert not (tmp_path / "new").exists()


def test_a_donated_state_is_refused(tmp_path: Path) -> None:
    state = {"x": jnp.arange(3)}
    jax.jit(lambda s: s, donate_argnums=0)(state)
    with pytest.raises(ValueError, match=r"state\['x'\] was donated"):
        save(tmp_path, state, 0)


def test_saving_inside_jit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"state\['x'\] is traced: .* outside jit"):
        jax.jit(lambda x: save(tmp_path, {"x": x}, 0) and x)(jnp.zeros(2))


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match=r"cannot save checkpoints in folder='.*file': it is a file"):
        save(tmp_path / "file", tiny(), 0)
    with pytest.raises(OSError, match=r"cannot save checkpoints in folder='/proc/jaxrl': .*can be written to"):
        save("/proc/jaxrl", tiny(), 0)  # not even root can make folders there


@pytest.mark.parametrize("name", ["a[b]", "a]", "a*b", "a?", "a\\b", "a\udce9"])
def test_paths_that_orbax_misreads_are_refused(name: str, tmp_path: Path) -> None:
    """Orbax uses ``[ ] * ? \\`` as patterns: it finds none of its files, or those of other folders too."""
    with pytest.raises(ValueError, match=r"orbax-checkpoint misreads .* in a path, .*Rename that folder, or name one") as caught:
        save(tmp_path / name / "new", tiny(), 0)
    assert repr(str(tmp_path / name / "new")) in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a[b]", "a\\b"])
def test_a_step_without_its_arrays_is_never_sealed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "UNSAVABLE", "")
    with pytest.raises(CheckpointError, match=r"saving step 3 in .* failed: orbax-checkpoint wrote no default/manifest.ocdbt"):
        save(tmp_path / name, tiny(), 3)
    assert steps(tmp_path / name) == []


def test_a_step_that_was_sealed_without_its_arrays_is_passed_over(two: Path) -> None:
    listed = json.loads((two / "2" / "manifest.json").read_bytes())["files"]
    (two / "2" / manifest.ARRAYS).unlink()
    _rewrite(two / "2", files={name: entry for name, entry in listed.items() if name != manifest.ARRAYS})
    assert_falls_back(two, "was saved without the file default/manifest.ocdbt")


def test_folders_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, message in {"file": "is a file", "absent": "does not exist", "empty": "holds no step"}.items():
        assert steps(tmp_path / name) == [] and latest_step(tmp_path / name) is None
        for read in (lambda folder: restore(folder, tiny()), read_info):
            with pytest.raises(FileNotFoundError, match=f"no checkpoint to restore: folder='.*{name}' {message}"):
                read(tmp_path / name)


def test_a_step_that_is_not_there(two: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of step=7 in .*, which holds the steps \[1, 2\]"):
        restore(two, tiny(), step=7)
