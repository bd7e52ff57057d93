"""Files of datasets: round trips bit for bit, other libraries' layouts, ends, damaged and foreign files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.replay.transitions import ReplayRow
from jaxrl.runtime.datasets import files
from jaxrl.runtime.datasets.describe import description, hints, in_lines
from jaxrl.runtime.datasets.layouts import Spaces, cast_to_spaces, from_d4rl, rows_of
from tests.helpers.agents import small
from tests.helpers.datasets import random_dataset

h5py, minari = pytest.importorskip("h5py"), pytest.importorskip("minari")
NESTED = Spaces(
    spaces.Dict({"image": spaces.Box(0, 255, (4, 4, 1), np.uint8), "speed": spaces.Box(-1.0, 1.0, (2,), np.float32)}),
    spaces.Box(-2.0, 2.0, (1,), np.float32),
    "nested",
)


def same(one: Dataset, other: Dataset) -> bool:
    leaves: Any = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return one.info.as_plain()["dataset"] | {"path": 0} == other.info.as_plain()["dataset"] | {"path": 0} and all(
        np.array_equal(x, y) for x, y in leaves
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path


@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1", "nested"])
def test_round_trips_are_bit_for_bit(env: str, home: Path) -> None:
    """npz → Dataset → Minari → Dataset → npz, with true last observations."""
    first = random_dataset(NESTED if env == "nested" else env, rows=60, length=15)  # type: ignore[arg-type]
    jaxrl.save_dataset(home / "a" / "one.npz", first)
    again = jaxrl.load_dataset(home / "a" / "one.npz")
    assert same(first, again) and again.info.path == str(home / "a" / "one.npz")
    jaxrl.save_dataset("minari:test/data-v0", again)
    with pytest.raises(FileExistsError, match=r"minari:test/data-v0 exists: name another version, or delete it"):
        files.check_target("minari:test/data-v0")
    from_minari = jaxrl.load_dataset("minari:test/data-v0")
    assert same(first, from_minari) and from_minari.info.path == "minari:test/data-v0"
    jaxrl.save_dataset(home / "two.npz", from_minari)
    assert (home / "two.npz").read_bytes() == (home / "a" / "one.npz").read_bytes()


def test_minari_s_own_reader_sees_the_episodes(home: Path) -> None:
    data = random_dataset("Pendulum-v1", rows=60, length=15)
    jaxrl.save_dataset("minari:test/own-v0", data)
    episodes = list(minari.load_dataset("test/own-v0").iterate_episodes())
    assert len(episodes) == data.info.episodes == 4
    assert [len(e.observations) for e in episodes] == [15] * 4 and [len(e.rewards) for e in episodes] == [14] * 4
    assert [bool(e.terminations[-1]) for e in episodes] == [True, False] * 2
    assert [bool(e.truncations[-1]) for e in episodes] == [False, True] * 2


def arrays(terminals: list[int], timeouts: list[int], with_next: bool) -> dict[str, np.ndarray]:
    number = len(terminals)
    found = {
        "observations": np.arange(number, dtype=np.float64)[:, None],
        "actions": np.zeros((number, 1), np.float32),
        "rewards": np.arange(number, dtype=np.float32),
        "terminals": np.asarray(terminals, bool),
        "timeouts": np.asarray(timeouts, bool),
    }
    if with_next:
        ends = found["terminals"] | found["timeouts"]
        ends[-1] = True
        found["next_observations"] = found["observations"] + np.where(ends, 0.5, 1.0)[:, None]
    return found


def test_d4rl_with_next_observations_loses_nothing() -> None:
    rows = from_d4rl(arrays([0, 1, 0, 0, 1, 0], [0, 0, 0, 1, 1, 0], with_next=True))
    assert rows.valid.tolist() == [1, 1, 0, 1, 1, 0, 1, 0, 1, 0]
    assert rows.obs[:, 0].tolist() == [0, 1, 1.5, 2, 3, 3.5, 4, 4.5, 5, 5.5]
    assert rows.terminated.tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 0, 0]  # where both flags are set it terminated


def test_d4rl_transitions_in_any_order_stay_apart() -> None:
    """A step is the end of a piece that was cut off where the following row is not the one that it reached."""
    in_order = arrays([0] * 5 + [1], [0] * 6, with_next=True)
    shuffled = {name: x[[0, 1, 4, 5, 2, 3]] for name, x in in_order.items()}
    rows = from_d4rl({name: x for name, x in shuffled.items() if name != "timeouts"})
    assert rows.obs[:, 0].tolist() == [0, 1, 2, 4, 5, 5.5, 2, 3, 4] and rows.valid.tolist() == [1, 1, 0] * 3
    assert np.flatnonzero(rows.terminated).tolist() == [4]
    rounded = {**in_order, "next_observations": in_order["next_observations"] * (1 + 1e-7)}
    assert len(from_d4rl(rounded).valid) == 7


def test_d4rl_without_them_drops_the_last_step_of_what_was_cut_off() -> None:
    """Its observation is the last one; a termination needs none; one-step episodes that were cut off vanish."""
    rows = from_d4rl(arrays([0, 1, 0, 0, 0, 1, 0], [0, 0, 0, 1, 1, 0, 0], with_next=False))
    data = make_dataset(
        rows._replace(obs=rows.obs.astype(np.float32)),
        Spaces(spaces.Box(-9.0, 9.0, (1,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32), "d4rl"),
    )
    found: ReplayRow = jax.device_get(data.rows())
    assert found.obs[found.valid, 0].tolist() == [0, 1, 2, 5] and data.info.episodes == 3
    assert found.obs[:, 0].tolist() == [0, 1, 1, 2, 3, 5, 5] and found.terminated.tolist() == [0, 1, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_files_in_d4rl_s_layout(kind: str, tmp_path: Path) -> None:
    values, path = arrays([0, 1, 0], [0, 0, 1], with_next=True), tmp_path / f"d4rl.{kind}"
    if kind == "npz":
        np.savez(path, **values)
    else:
        with h5py.File(path, "w") as file:
            for name, x in values.items():
                file[name] = x
    data = jaxrl.load_dataset(path)
    assert data.info.rows == 3 and data.info.episodes == 2 and data.info.action_space == spaces.Box(-1, 1, (1,), np.float32)
    with pytest.raises(ValueError, match=r"observations|obs"):
        jaxrl.load_dataset(path, "CartPole-v1")


def test_files_of_replay_buffers(tmp_path: Path) -> None:
    """A file of ``save_replay``, and a folder of two: each environment's rows follow each other, and files do not."""
    agent = small("td3", "Pendulum-v1")
    for seed in range(2):
        state = agent.init(jax.random.key(seed))
        jaxrl.save_replay(tmp_path / "folder" / f"{seed}.npz", state)
    with pytest.raises(ValueError, match=r"holds no spaces: give the environment, load_dataset\('0.npz', env=…\)"):
        jaxrl.load_dataset(tmp_path / "folder" / "0.npz")
    one = jaxrl.load_dataset(tmp_path / "folder" / "0.npz", env="Pendulum-v1")
    both = jaxrl.load_dataset(tmp_path / "folder", env="Pendulum-v1")
    with np.load(tmp_path / "folder" / "0.npz") as file:
        valid = file["valid"]
        np.testing.assert_array_equal(one.rows().obs[: len(valid)], file["obs"][:, 0])
        assert one.info.rows == valid.sum() - valid[-1].sum()  # what the newest rows reached is unknown
    other = jaxrl.load_dataset(tmp_path / "folder" / "1.npz", env="Pendulum-v1")
    assert both.info.rows == one.info.rows + other.info.rows and both.info.episodes == one.info.episodes + other.info.episodes
    assert both.info.path == str(tmp_path / "folder")


def test_values_that_the_spaces_cannot_hold_are_refused() -> None:
    space = spaces.Box(0, 255, (2, 3, 1), np.uint8)
    env = Spaces(space, spaces.Discrete(2), "images")
    good = {
        **arrays([0, 1], [0, 0], with_next=False),
        "observations": np.full((2, 2, 3, 1), 7.0),
        "actions": np.array([[0], [1]]),
    }
    rows = cast_to_spaces(from_d4rl(good), env)
    assert rows.obs.dtype == np.uint8 and rows.action.dtype == np.int32 and rows.action.shape == (3,)
    for name, values, message in (
        ("actions", np.array([0.0, 0.9]), "action of row 1 holds 0.9, and must hold int32"),
        ("actions", np.array([2**32, 1]), "action of row 0 holds 4294967296, and must hold int32"),
        ("observations", np.full((2, 2, 3, 1), 0.5), "obs of row 0 holds 0.5, and must hold uint8"),
        ("observations", np.full((2, 2, 3, 1), 300), "obs of row 0 holds 300, and must hold uint8"),
    ):
        with pytest.raises(ValueError, match=message):
            cast_to_spaces(from_d4rl({**good, name: values}), env)
    channels_first = from_d4rl({**good, "observations": np.zeros((2, 3, 2, 1), np.uint8)})
    with pytest.raises(ValueError, match=r"obs is uint8\[3, 2, 1\]|must be"):
        make_dataset(cast_to_spaces(channels_first, env), env)  # type: ignore[arg-type]


def test_choices_outside_the_observation_space_are_refused() -> None:
    env = Spaces(spaces.Dict({"room": spaces.Discrete(5), "doors": spaces.MultiDiscrete([2, 3])}), spaces.Discrete(2), "rooms")
    obs = {"room": np.array([0, 4, 1], np.int32), "doors": np.array([[0, 0], [1, 2], [1, 1]], np.int32)}
    flat = np.zeros(3, np.float32)
    rows = ReplayRow(obs, flat.astype(np.int32), flat, flat > 0, np.array([True, True, False]))
    make_dataset(rows, env)  # type: ignore[arg-type]
    for name, value in (("room", 5), ("room", -1), ("doors", [0, 3])):
        wrong = {**obs, name: obs[name].copy()}
        wrong[name][2] = value  # the observation that the last row reached
        with pytest.raises(ValueError, match=rf"row 2 of environment 0 has obs\['{name}'\] outside (Multi)?Discrete"):
            make_dataset(rows._replace(obs=wrong), env)  # type: ignore[arg-type]


def test_files_of_a_folder_must_agree(tmp_path: Path) -> None:
    """The spaces of D4RL's files are those that all of them need."""
    few, more = arrays([0, 1], [0, 0], True), arrays([0, 1], [0, 0], True)
    for number, (values, actions) in enumerate([(few, [0, 1]), (more, [2, 0])]):
        np.savez(tmp_path / f"{number}.npz", **{**values, "actions": np.array(actions)})
    data = jaxrl.load_dataset(tmp_path)
    assert data.info.action_space == spaces.Discrete(3) and data.info.rows == 4
    np.savez(tmp_path / "2.npz", **{**few, "observations": np.zeros((2, 3)), "next_observations": np.zeros((2, 3))})
    with pytest.raises(ValueError, match=r"2.npz has rows .*\[3\].*, and .*0.npz .*\[1\].*: they must agree"):
        jaxrl.load_dataset(tmp_path)
    (tmp_path / "held").mkdir()
    for env in ("Pendulum-v1", "MountainCarContinuous-v0"):
        jaxrl.save_dataset(tmp_path / "held" / f"{env}.npz", random_dataset(env))
    with pytest.raises(ValueError, match=r"has rows .*they must agree|hold different spaces: give the environment"):
        jaxrl.load_dataset(tmp_path / "held")


def test_rows_are_spread_around_their_ends() -> None:
    rows = rows_of(np.arange(4.0), np.arange(4), np.ones(4), [0, 1, 0, 0], [0, 1, 0, 1], np.array([10.0, 20.0]))
    assert rows.obs.tolist() == [0, 1, 10, 2, 3, 20] and rows.valid.tolist() == [1, 1, 0, 1, 1, 0]
    assert rows.reward.tolist() == [1, 1, 0, 1, 1, 0] and rows.terminated.tolist() == [0, 1, 0, 0, 0, 0]


def test_what_cannot_be_read(home: Path) -> None:
    def refused(kind: type[Exception], match: str, source: Any, env: Any = None) -> None:
        with pytest.raises(kind, match=match):
            jaxrl.load_dataset(source, env)

    refused(OSError, "nothing.npz", home / "nothing.npz")
    refused(ValueError, r"minari:no/such-v0 is not on this machine .* minari download no/such-v0", "minari:no/such-v0")
    (home / "empty").mkdir()
    refused(ValueError, "is a folder without .npz files", home / "empty")
    (home / "text.npz").write_text("hello")
    refused(ValueError, "text.npz is damaged", home / "text.npz")
    np.savez(home / "objects.npz", observations=np.array([{}], dtype=object))
    refused(ValueError, "Python objects, which could run code|is missing", home / "objects.npz")
    np.savez(home / "short.npz", **{**arrays([0, 1], [0, 0], False), "rewards": np.zeros(3, np.float32)})
    refused(ValueError, r"short.npz: the arrays must have the same length", home / "short.npz")
    np.savez(home / "less.npz", observations=np.zeros((2, 1)))
    refused(ValueError, r"less.npz: .*actions, rewards, terminals is missing", home / "less.npz")
    nan = arrays([0, 1], [0, 0], with_next=True)
    nan["rewards"][0] = np.nan
    np.savez(home / "nan.npz", **nan)
    refused(ValueError, r"nan.npz: row 0 of environment 0 has a reward that is not finite", home / "nan.npz")
    data = random_dataset("Pendulum-v1", rows=40)
    jaxrl.save_dataset(home / "good.npz", data)
    with np.load(home / "good.npz") as file:
        parts = {name: file[name] for name in file.files}
    np.savez(home / "spaces.npz", **{**parts, "spaces": np.frombuffer(b'{"observation": 3}', np.uint8)})
    refused(ValueError, r"spaces.npz is damaged: its spaces cannot be read", home / "spaces.npz")
    del parts["reward"]
    np.savez(home / "lacks.npz", **parts)
    refused(ValueError, r"lacks.npz has no reward\. It holds 'action'", home / "lacks.npz")
    for path in ("data.csv", home / "data.hdf5", "minari:test", "minari:test/data"):
        with pytest.raises(ValueError, match=r"must (end in .npz, or )?be minari:NAMESPACE/NAME-v0"):
            jaxrl.save_dataset(path, data)


def test_episodes_of_minari_that_do_not_fit(home: Path) -> None:
    from jaxrl.runtime.datasets.layouts import from_episodes

    class Episode:
        def __init__(self, observations: int, steps: int) -> None:
            self.observations, self.actions = np.zeros((observations, 1)), np.zeros((steps, 1))
            self.rewards = self.terminations = self.truncations = np.zeros(steps)

    for observations, steps in ((3, 3), (1, 0)):
        with pytest.raises(ValueError, match=rf"episode 1 has {steps} steps and \[{observations}\] observations: T steps need"):
            from_episodes([Episode(3, 2), Episode(observations, steps)], np.asarray)
    with pytest.raises(ValueError, match="has no episodes"):
        from_episodes([], np.asarray)


def test_packages_that_are_missing_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    data = random_dataset("Pendulum-v1", rows=40)
    (home / "x.hdf5").write_bytes(b"")
    for package, source in (("minari", "minari:a/b-v0"), ("h5py", home / "x.hdf5")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ModuleNotFoundError, match=rf'needs the package {package}.*pip install "jaxrl\[minari\]"'):
            jaxrl.load_dataset(source)
    with pytest.raises(ModuleNotFoundError, match="needs the package minari"):
        jaxrl.save_dataset("minari:a/b-v0", data)


def test_a_file_that_does_not_fit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data.npz"
    jaxrl.save_dataset(file, random_dataset("Pendulum-v1"))
    size = file.stat().st_size
    monkeypatch.setattr(files, "available_on_host", lambda: files.COPIES * size)
    assert jaxrl.load_dataset(file).info.rows == 190
    monkeypatch.setattr(files, "available_on_host", lambda: files.COPIES * size - 1)
    monkeypatch.setattr(files, "_read", lambda *given: pytest.fail("it was read"))
    for source in (file, tmp_path):
        with pytest.raises(ValueError, match=r"needs about [\d.]+ KiB of memory while it is read, but only .* is available"):
            jaxrl.load_dataset(source, "Pendulum-v1")


@pytest.mark.parametrize(
    ("reward", "hint"),
    [
        (lambda valid, rng: np.where(np.arange(len(valid)) % 100 == 0, 1.0, 0.0), r"rewards are 0 but in \d\.\d% of the rows"),
        (lambda valid, rng: np.ones(len(valid)), "all rewards are 1: values differ by the lengths"),
        (lambda valid, rng: 1e4 * rng.normal(size=len(valid)), r"the standard deviation of rewards is [\d.e+]+: scale them"),
        (lambda valid, rng: rng.normal(size=len(valid)), None),
    ],
)
def test_hints_on_rewards(reward: Any, hint: str | None) -> None:
    rows = jax.device_get(random_dataset("Pendulum-v1", rows=400).rows())
    made = reward(rows.valid, np.random.default_rng(0)).astype(np.float32)
    data = make_dataset(rows._replace(reward=np.where(rows.valid, made, np.float32(0))), jaxrl.make_env("Pendulum-v1"))
    found = hints(data)
    assert len(found) == (hint is not None)
    if hint is not None:
        assert re.match(hint, found[0])
        assert any(line.startswith("hint          ") for line in in_lines(description(data)))
