"""Checkpoints: bit-exact round trips."""

import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxrl
from jaxrl.runtime.checkpoint.manifest import latest_step, steps
from jaxrl.runtime.checkpoint.restore import read_info, restore
from jaxrl.runtime.checkpoint.store import PendingSave, save
from tests.helpers.checkpoints import HOST, assert_bit_equal, odd, tiny
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(20)


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
