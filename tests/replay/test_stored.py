"""Buffers as files: they are restored exactly, also into other buffers, and damaged files are refused."""

from __future__ import annotations

import io
import os
import traceback
import tracemalloc
import zipfile
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.replay.options import Prioritized
from jaxrl.replay.stored import as_rollout, stored_rows
from jaxrl.replay.transitions import ReplayRow, replay_rows, transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.rollout.collect import collect
from jaxrl.settings.validation import merge_hyperparams
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, small, small_dqn, small_ppo

KEY = jax.random.key(0)
SIZES = {"buffer_size": 4 * 31}
"""A ring that adds of two rows do not fill evenly, and that wraps."""


def fresh(agent: Agent) -> Any:
    return agent.algorithm.init(KEY, merge_hyperparams(agent.hyperparams, None))


def filled(agent: Agent, iterations: int = 40) -> tuple[Any, list[Any]]:
    """Return a learner, and the rows that a deque would hold, oldest first."""
    state = jax.jit(agent.init, compiler_options=COMPILE_FAST)(KEY)
    learner, rows = fresh(agent), deque[Any](maxlen=31)

    @jax.jit
    def step(actor: Any, key: Any, learner: Any) -> Any:
        policy = agent.algorithm.policy(learner)
        ids = np.arange(agent.num_envs, dtype=np.int32)
        actor, rollout, _ = collect(agent.algorithm, agent.env, policy, actor, agent.env.params, ids, key, agent.rollout_length)
        return actor, rollout, agent.algorithm.observe(learner, rollout)  # type: ignore[misc]

    actor = state.actor
    for i in range(iterations):
        actor, rollout, learner = step(actor, jax.random.fold_in(KEY, i), learner)
        stored = jax.device_get(replay_rows(rollout))
        rows.extend(jax.tree.map(lambda x, t=t: x[t], stored) for t in range(agent.rollout_length))
    return learner, list(rows)


def sealed(rows: Any) -> Any:
    """Return the rows with the newest one marked as having no successor."""
    valid = rows.valid.copy()
    valid[-1] = False
    return rows._replace(valid=valid)


@pytest.mark.parametrize("settings", [{}, pytest.param({"replay": Prioritized()}, marks=pytest.mark.slow)])
@pytest.mark.parametrize("iterations", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_rows_are_stored_and_come_back(settings: dict[str, Any], iterations: int, tmp_path: Path) -> None:
    agent = small_dqn(probes.truncation(), **SIZES, **settings)
    learner, rows = filled(agent, iterations)
    expected = jax.tree.map(lambda *x: np.stack(x), *rows)
    assert_bit_equal(stored_rows(learner.replay), expected)

    jaxrl.save_replay(tmp_path / "new" / "rows.npz", learner)
    with np.load(tmp_path / "new" / "rows.npz") as file:
        np.testing.assert_array_equal(file["reward"], expected.reward)
    for other in (agent, small_dqn(probes.truncation(), n_step=2, rollout_length=4, buffer_size=240, replay=Prioritized())):
        before = fresh(other)
        back = jaxrl.load_replay(tmp_path / "new" / "rows.npz", other, before)
        whole = len(rows) // other.rollout_length * other.rollout_length
        assert_bit_equal(stored_rows(back.replay), sealed(jax.tree.map(lambda x, whole=whole: x[len(rows) - whole :], expected)))
        assert_bit_equal(back._replace(replay=()), before._replace(replay=()))
        if iterations == 40:
            _, metrics = jax.jit(other.algorithm.learn, compiler_options=COMPILE_FAST)(back)
            assert float(metrics["losses/td_loss"].sum) > 0


def test_states_of_agents_are_taken_too(tmp_path: Path) -> None:
    agent = small_dqn(probes.truncation(), **SIZES)
    state = jax.jit(agent.init, compiler_options=COMPILE_FAST)(KEY)
    jaxrl.save_replay(tmp_path / "rows.npz", state)
    back = jaxrl.load_replay(tmp_path / "rows.npz", agent, state._replace(learner=fresh(agent)))
    assert_bit_equal(stored_rows(back.learner.replay).obs[-30:], stored_rows(state.learner.replay).obs[-30:])


@pytest.mark.slow
def test_sequences_of_a_file_begin_as_episodes_do(tmp_path: Path) -> None:
    """For an algorithm that stores a carry with them, which the file lacks."""
    learner, rows = filled(small_dqn(probes.truncation(), **SIZES), 40)
    jaxrl.save_replay(tmp_path / "rows.npz", learner)
    other = small("r2d2", probes.truncation())
    acted = jax.jit(other.init, compiler_options=COMPILE_FAST)(KEY).learner  # 8 rollouts; the first began this way too
    replay = jaxrl.load_replay(tmp_path / "rows.npz", other, acted).replay
    assert_bit_equal(
        jax.tree.map(lambda x: x[-30:], stored_rows(replay)), sealed(jax.tree.map(lambda *x: np.stack(x[-30:]), *rows))
    )
    carry = np.asarray(replay.starts.ring.records.unpack().carry)
    assert carry[1:8].any((1, 2)).all() and not carry[8:23].any()


def walked(first: int, iterations: int) -> tuple[Agent, Any]:
    """Return an agent, and a learner whose buffer holds an episode without an end that counts from ``first``."""
    agent = small_dqn(probes.endless(), buffer_size=4 * 60)
    learner, length = fresh(agent), agent.rollout_length
    for start in range(first, first + iterations * length, length):
        number = np.broadcast_to(np.arange(start, start + length)[:, None], (length, 4))
        obs = np.stack([number, number], -1).astype(np.float32)
        flag = np.zeros_like(number, bool)
        rows = ReplayRow(obs, np.zeros_like(number, np.int32), np.ones_like(number, np.float32), flag, ~flag)
        learner = agent.algorithm.observe(learner, as_rollout(rows))  # type: ignore[misc]
    return agent, learner


@pytest.mark.slow
def test_no_transition_leads_into_the_rows_of_a_file_or_out_of_them(tmp_path: Path) -> None:
    """A file is loaded into a buffer with rows, which then gets other rows."""
    agent, theirs = walked(100, 5)
    jaxrl.save_replay(tmp_path / "rows.npz", theirs)
    _, ours = walked(200, 5)
    both = jaxrl.load_replay(tmp_path / "rows.npz", agent, ours)
    assert stored_rows(ours.replay).valid.all(), "the state that was given stays as it was"
    _, more = walked(300, 5)
    for start in range(0, 10, 2):
        rows = jax.tree.map(lambda x, start=start: x[start : start + 2], stored_rows(more.replay))
        both = agent.algorithm.observe(both, as_rollout(rows))  # type: ignore[misc]
    stored = stored_rows(both.replay)
    obs = stored.obs[..., 0]
    np.testing.assert_array_equal(obs[[0, 9, 10, 19, 20, 29], 0], [200, 209, 100, 109, 300, 309])
    np.testing.assert_array_equal(stored.valid[:-1], obs[1:] == obs[:-1] + 1)
    replay = uniform_replay(60, 4, 2, before=1, after=1)
    drawn = transitions(replay, both.replay, replay.draw(both.replay, KEY, 2000), 0.99)
    valid = np.asarray(drawn.valid)
    assert valid.mean() > 0.9
    np.testing.assert_array_equal((drawn.next_inputs.obs - drawn.inputs.obs)[valid], 1)


def test_an_algorithm_that_cannot_seal_is_refused(tmp_path: Path) -> None:
    agent, learner = walked(0, 5)
    jaxrl.save_replay(tmp_path / "rows.npz", learner)
    agent = agent._replace(algorithm=agent.algorithm._replace(mark_discontinuity=None))
    with pytest.raises(TypeError, match=r"needs observe and mark_discontinuity to load rows from a file"):
        jaxrl.load_replay(tmp_path / "rows.npz", agent, learner)


@pytest.mark.slow
def test_a_seal_of_hindsight_is_stored() -> None:
    """Numbered rows have two flags each, and a seal marks the outer one."""
    agent = small_dqn("jaxrl:BitFlip?n=3", hindsight="future", **SIZES)
    learner, _ = filled(agent, 3)
    before, after = (stored_rows(x.replay) for x in (learner, agent.algorithm.mark_discontinuity(learner)))  # type: ignore[misc]
    assert before.valid[-1].any() and not after.valid[-1].any()
    assert_bit_equal(after, sealed(before))


@pytest.mark.slow
def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    agent = small_dqn(probes.truncation(), **SIZES)
    learner, _ = filled(agent, 3)
    jaxrl.save_replay(path, learner)
    others = [
        (
            small_dqn(probes.truncation(), num_envs=2, **SIZES),
            r"holds rows of 4 environments: build the agent with num_envs=4, not 2",
        ),
        (
            small_dqn(probes.truncation(), rollout_length=8, **SIZES),
            r"holds 6 rows per environment: build .* a rollout_length",
        ),
        (small_dqn("CartPole-v1"), r"obs is float32\[6, 4, 1\], but for .*CartPole-v1 it must be float32\[6, 4, 4\]"),
    ]
    for other, message in others:
        with pytest.raises(ValueError, match=message):
            jaxrl.load_replay(path, other, fresh(other))
    (tmp_path / "text.npz").write_text("no zip")
    with pytest.raises(ValueError, match=r"text\.npz is damaged, or is not valid numeric \.npz data \(BadZipFile\)"):
        jaxrl.load_replay(tmp_path / "text.npz", agent, learner)
    np.savez(tmp_path / "part.npz", obs=np.zeros(3))
    with pytest.raises(ValueError, match=r"part\.npz has no action, reward, terminated, valid, which .* needs. It holds obs"):
        jaxrl.load_replay(tmp_path / "part.npz", agent, learner)
    ppo = small_ppo(probes.truncation())
    with pytest.raises(
        TypeError, match=r"state must come from an algorithm with replay, such as make_dqn or make_sac, but it is Learner"
    ):
        jaxrl.save_replay(path, fresh(ppo))
    two = jax.tree.map(lambda x: np.stack([x, x]), learner.replay)
    with pytest.raises(ValueError, match=r"state holds buffers of \(2,\) seeds: pass one"):
        jaxrl.save_replay(path, learner._replace(replay=two))
    with pytest.raises(TypeError, match="state must be that of a replay with a ring"):
        stored_rows(())


# -------------------------------------------------------------------------------------------------------- files of other owners


@cache
def honest() -> tuple[Agent, Any, dict[str, np.ndarray]]:
    """Return an agent, its state, and the arrays of a valid file: 12 rows of 4 environments."""
    agent = small_dqn(probes.truncation(), **SIZES)
    learner, _ = filled(agent, 6)
    rows = stored_rows(learner.replay)
    return agent, fresh(agent), {name: np.asarray(x) for name, x in rows._asdict().items() if name != "extras"}


def load(path: Path) -> Any:
    agent, state, _ = honest()
    return jaxrl.load_replay(path, agent, state)


def npy(x: np.ndarray, claimed: tuple[int, ...] | None = None) -> bytes:
    """Return an array in NumPy's format, with the claimed shape in its header."""
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(x.dtype), "fortran_order": False, "shape": claimed or x.shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + x.tobytes()


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def members(**changed: bytes) -> dict[str, bytes]:
    return {f"{name}.npy": changed.get(name) or npy(x) for name, x in honest()[2].items()}


def test_arrays_that_nobody_asked_for_are_not_read(tmp_path: Path) -> None:
    """One of them is damaged, which reading would notice."""
    path = archive(tmp_path / "rows.npz", members() | {"more.npy": npy(np.zeros(1000))})
    data = path.read_bytes()
    at = data.index(npy(np.zeros(1000))) + 500
    path.write_bytes(data[:at] + b"!" + data[at + 1 :])
    with np.load(path) as file, pytest.raises(zipfile.BadZipFile):
        file["more"]
    assert int(load(path).replay.size) == 12


def test_a_file_takes_no_more_memory_than_the_buffer(tmp_path: Path) -> None:
    """If the file has many times more rows than fit, the newest are kept, and the others are never all in memory."""
    arrays = {name: np.concatenate([np.repeat(x[:1], 200_000, 0), x]) for name, x in honest()[2].items()}
    np.savez_compressed(tmp_path / "rows.npz", **arrays)  # type: ignore[arg-type]
    size = sum(x.nbytes for x in arrays.values())
    del arrays
    load(archive(tmp_path / "few.npz", members()))  # compiles, which must not count
    tracemalloc.start()
    try:
        loaded = load(tmp_path / "rows.npz")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 10_000_000 and peak < 5_000_000
    newest = sealed(ReplayRow(**honest()[2]))
    assert_bit_equal(jax.tree.map(lambda x: x[-12:], stored_rows(loaded.replay)), newest)


LIES = {
    "4 TB": (npy(np.zeros(4, np.float32), (2**38, 4)), r"claims to be float32\[274877906944, 4\] but has 16 bytes"),
    "negative": (npy(np.zeros(0, np.float32), (-1, 0)), r"claims to be float32\[-1, 0\] but has 0 bytes"),
    "long header": (b"\x93NUMPY\x02\x00" + (2**31).to_bytes(4, "little") + b" " * 1000, r"is damaged, or .* \(ValueError\)$"),
    "nested header": (b"\x93NUMPY\x01\x00" + (5000).to_bytes(2, "little") + b"(" * 5000, r"is damaged, or is not"),
    "no array": (b"reward", r"is damaged, or .* \(KeyError\)$"),
    "pickle": (npy(np.zeros(48, np.float32)).replace(b"'<f4'", b"'|O' "), r"holds Python objects, which could run code"),
    "too few": (npy(np.zeros((12, 4), np.float32))[:-8], r"claims to be float32\[12, 4\] but has 184 bytes"),
    "Fortran": (npy(np.zeros((12, 4), np.float32)).replace(b"False", b"True "), r"is in Fortran order: convert it with"),
}
"""Replacements of the rewards."""


@pytest.mark.parametrize("lie", LIES)
def test_what_a_header_claims_is_not_believed(lie: str, tmp_path: Path) -> None:
    """The message is jaxrl's. NumPy's would suggest to allow pickles, which run code."""
    data, message = LIES[lie]
    with pytest.raises(ValueError, match=rf"rows\.npz: reward {message}") as caught:
        load(archive(tmp_path / "rows.npz", members(reward=data)))
    assert "allow_pickle" not in "".join(traceback.format_exception(caught.value))


def test_a_damaged_file_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    """A flipped bit anywhere, or a truncated file: an error of jaxrl, or no relevant data was hit."""
    whole = archive(tmp_path / "whole.npz", members(), zipfile.ZIP_DEFLATED).read_bytes()
    rng, path, refused = np.random.default_rng(0), tmp_path / "rows.npz", 0
    for i in range(150):
        at = int(rng.integers(len(whole)))
        path.write_bytes(whole[:at] + (bytes([whole[at] ^ 1 << i % 8]) + whole[at + 1 :] if i % 3 else b""))
        try:
            load(path)
        except ValueError as error:
            assert "rows.npz" in str(error) and "allow_pickle" not in str(error)
            refused += 1
    assert refused > 100


def test_names_of_a_stranger_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = archive(tmp_path / "rows.npz", {"\x1b[2Jobs.npy": npy(np.zeros(3))} | {f"{i:0200}.npy": b"" for i in range(9)})
    with pytest.raises(ValueError, match="has no action, obs, reward, terminated, valid") as caught:
        load(path)
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 1000


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rows.npz")
    for path in (tmp_path / "rows.npz", Path("/dev/zero")):
        with pytest.raises(OSError, match="it is not a regular file"):
            load(path)


def with_one(name: str, value: Any, row: int = 7, lane: int = 2, **also: Any) -> dict[str, np.ndarray]:
    arrays = {key: x.copy() for key, x in honest()[2].items()}
    arrays["valid"][:], arrays["terminated"][:] = True, False
    for key, x in {name: value, **also}.items():
        arrays[key][row, lane] = x
    return arrays


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("action", 2, r"an action outside Discrete\(2\)"),
        ("action", -1, r"an action outside Discrete\(2\)"),
        ("obs", np.nan, "obs that is not finite"),
        ("reward", np.inf, "a reward that is not finite"),
    ],
)
def test_rows_that_no_environment_gave_are_refused(name: str, value: Any, what: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, **with_one(name, value))  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=rf"rows\.npz: row 7 of environment 2 has {what}, which .*truncation cannot have produced"
    ):
        load(path)
    # Unused values may be anything: after a termination, or in a reset row.
    arrays = with_one(name, value, valid=False)
    arrays["terminated"][6, 2] = True
    np.savez(path, **arrays)  # type: ignore[arg-type]
    load(path)
    if name == "obs":  # the observation after a truncated row is used, also where a rollout ends between the two
        for row in (7, 8):
            np.savez(path, **with_one(name, value, row, valid=False))  # type: ignore[arg-type]
            with pytest.raises(ValueError, match=f"row {row} of environment 2 has obs that is not finite"):
                load(path)


@pytest.mark.slow
def test_actions_of_a_box_are_within_its_bounds(tmp_path: Path) -> None:
    agent = small("sac", probes.target_action())  # a Box from 0 to 4
    state = jax.jit(agent.init, compiler_options=COMPILE_FAST)(KEY)
    rows = stored_rows(state.learner.replay)
    for name, change in (("in.npz", 0.0), ("out.npz", 4.1), ("nan.npz", np.nan)):
        action, row = rows.action.copy(), int(np.argmax(rows.valid[:, 0]))
        action[row, 0] += change
        np.savez(tmp_path / name, **rows._replace(action=action)._asdict())
    jaxrl.load_replay(tmp_path / "in.npz", agent, state)
    for name in ("out.npz", "nan.npz"):
        with pytest.raises(ValueError, match=rf"{name}: row {row} of environment 0 has an action outside Box"):
            jaxrl.load_replay(tmp_path / name, agent, state)
