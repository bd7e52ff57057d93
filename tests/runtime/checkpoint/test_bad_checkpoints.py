"""Checkpoints that do not fit, and invalid arguments: errors that name the cause."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.runtime.checkpoint import manifest
from jaxrl.runtime.checkpoint.manifest import CheckpointError, CheckpointWarning, latest_step, steps
from jaxrl.runtime.checkpoint.restore import read_arrays, read_info, restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.runtime.logs import provenance
from jaxrl.runtime.system import disk
from tests.helpers.checkpoints import HOST, Learner, assert_bit_equal, assert_falls_back, odd, rewrite, tiny
from tests.helpers.written_runs import make_older

pytestmark = pytest.mark.expensive(20)


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


def test_another_format_is_refused(two: Path) -> None:
    rewrite(two / "2", format=9, versions={"jaxrl": "7.1.0"})
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
    rewrite(two / "2", files={name: entry for name, entry in listed.items() if name != manifest.ARRAYS})
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
