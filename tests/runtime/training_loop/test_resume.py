"""Interrupted and resumed runs: bits, logs, checkpoints, locks, and runs that must not be resumed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.algorithms.dqn import transitions
from jaxrl.replay.uniform import uniform_replay
from jaxrl.runtime.checkpoint import saver as saving
from jaxrl.runtime.checkpoint.manifest import CheckpointWarning, steps
from jaxrl.runtime.checkpoint.restore import read_info
from jaxrl.runtime.checkpoint.store import PendingSave
from jaxrl.runtime.logs.run_folder import RunFolder
from jaxrl.runtime.run import RunInterrupted, resume
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.runtime.training_loop.on_chunk import Chunk
from jaxrl.xla.cache_blocking import cached_bytes
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, cartpole, ppo_first, small_dqn, small_ppo
from tests.helpers.hosted import hosted
from tests.helpers.processes.chaos import progress
from tests.helpers.short_runs import Killed, assert_same_history, at, kill, rows_of, train
from tests.helpers.written_runs import make_older

pytestmark = pytest.mark.expensive(150)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any, dict[str, np.ndarray]]]:
    """An undisturbed run of each algorithm, made once."""
    made: dict[str, Any] = {}

    def get(algorithm: str) -> Any:
        if algorithm not in made:
            folder = tmp_path_factory.mktemp(algorithm) / "whole"
            made[algorithm] = (folder, *train(cartpole(algorithm), folder, rows_of(algorithm)))
        return made[algorithm]

    return get


# ------------------------------------------------------------------------------------------------------------------- bit by bit


@ppo_first
def test_a_killed_run_ends_as_if_it_had_never_stopped(algorithm: str, tmp_path: Path, whole: Any) -> None:
    folder, states, history = whole(algorithm)
    agent, out = cartpole(algorithm), tmp_path / "run"
    offset = agent.algorithm.warmup_iterations
    for iteration in (4, 10):
        with pytest.raises(Killed):
            train(agent, out, rows_of(algorithm), on_chunk=at(offset + iteration, kill))
    resumed_states, resumed_history = train(agent, out, rows_of(algorithm))
    assert_bit_equal(resumed_states, states)
    assert_same_history(resumed_history, history)
    assert progress(out) == progress(folder)
    np.testing.assert_array_equal(history["env_steps"][0], states.warmup_rows)
    assert (np.diff(resumed_history["seconds"]) > 0).all()


@pytest.mark.slow
def test_without_a_checkpoint_a_killed_run_begins_again(tmp_path: Path, whole: Any) -> None:
    folder, states, _ = whole("ppo")
    with pytest.raises(Killed):
        train(cartpole("ppo"), tmp_path, on_chunk=at(4, kill), checkpoint_every=0)
    assert len(progress(tmp_path)) == 4 and not (tmp_path / "checkpoints").exists()
    again, _ = train(cartpole("ppo"), tmp_path)
    assert_bit_equal(again, states)
    assert progress(tmp_path) == progress(folder)


@pytest.mark.slow
def test_without_a_checkpoint_it_begins_from_the_same_run_again(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, learnt, _ = whole("ppo")
    ask: dict[str, Any] = {"init_which": "last", "checkpoint_every": 0}
    tuned, _ = train(cartpole("ppo"), tmp_path / "tuned", 32 * 6, init_from=folder, **ask)
    monkeypatch.chdir(folder.parent)
    with pytest.raises(Killed):
        train(cartpole("ppo"), tmp_path / "run", 32 * 6, init_from=folder.name, on_chunk=at(4, kill), **ask)
    monkeypatch.chdir(tmp_path)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["init_from"] == {"folder": str(folder), "which": "last"} and not (tmp_path / "run" / "checkpoints").exists()
    again, _ = resume("run", quiet=True)
    assert_bit_equal(again, tuned)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["init_from"] == config["init_from"]

    shutil.rmtree(tmp_path / "run" / "checkpoints")
    for folder_of_it, error, message in (
        (
            str(tmp_path / "gone"),
            FileNotFoundError,
            "was started from init_from='.*gone', which no longer exists: restore it, or call jaxrl.run",
        ),
        (None, ValueError, "was started from states that only its script has: call jaxrl.run as before, with init_from=…"),
        (3, ValueError, r"config.json in 'run' is invalid: its 'init_from' is \{'folder': 3"),
    ):
        config["init_from"]["folder"] = folder_of_it
        (tmp_path / "run" / "config.json").write_text(json.dumps(config))
        with pytest.raises(error, match=message):
            resume("run", quiet=True)
    with pytest.raises(Killed):
        train(cartpole("ppo"), tmp_path / "run", 32 * 6, init_from=learnt, on_chunk=at(4, kill), **ask)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["init_from"]["folder"] is None


@pytest.mark.slow
def test_resume_takes_everything_from_the_folder(tmp_path: Path, whole: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, states, _ = whole("ppo")
    with pytest.raises(Killed):
        train(cartpole("ppo"), tmp_path, on_chunk=at(8, kill))
    resumed, _ = resume(tmp_path)
    assert_bit_equal(resumed, states)
    assert progress(tmp_path) == progress(folder)
    out = capsys.readouterr().out
    assert "resumed at step " in out and "done at step 384 of 384" in out


@pytest.mark.slow
def test_a_folder_of_an_older_version_goes_on(whole: Any, tmp_path: Path) -> None:
    """Its config lacks ``eval_explore``: evaluations were greedy."""
    folder, states, _ = whole("ppo")
    with pytest.raises(Killed):
        train(cartpole("ppo"), tmp_path, on_chunk=at(8, kill))
    for step in (tmp_path / "checkpoints").glob("[0-9]*"):
        make_older(step)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["run"]["eval_explore"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    resumed, _ = resume(tmp_path, quiet=True)
    assert_bit_equal(resumed, states)
    assert progress(tmp_path) == progress(folder)
    assert json.loads((tmp_path / "config.json").read_text())["run"]["eval_explore"] is False


def test_a_finished_run_is_only_read(whole: Any, tmp_path: Path) -> None:
    folder, states, history = whole("ppo")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    records = copy / "records.jsonl"
    records.write_text(records.read_text().replace('"rows": ', '"total_steps": '))  # the name in version 0.1.0
    again, history_again = train(cartpole("ppo"), copy)
    assert_bit_equal(again, states)
    assert_same_history(history_again, history)
    assert progress(copy) == progress(folder)


@pytest.mark.slow
def test_a_run_is_made_longer(tmp_path: Path, whole: Any) -> None:
    folder, states, _ = whole("ppo")
    train(cartpole("ppo"), tmp_path, 32 * 8)
    longer, _ = train(cartpole("ppo"), tmp_path, 32 * 12)
    assert_bit_equal(longer, states)
    assert progress(tmp_path) == progress(folder)
    with pytest.raises(FileExistsError, match=r"holds another run: run.total_steps is 384 there and 256 here"):
        train(cartpole("ppo"), tmp_path, 32 * 8)


@pytest.mark.slow
def test_a_resumed_run_keeps_the_size_of_the_parts_it_was_cut_into(tmp_path: Path) -> None:
    """On another processor too, and when it is resumed a second time."""

    def sizes(iterations: int) -> set[int]:
        found: list[int] = []
        train(cartpole("ppo"), tmp_path, 32 * iterations, on_chunk=lambda _: found.append(cached_bytes()))
        return {*found}

    assert sizes(2) == {cached_bytes()}
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hardware"]["cached_bytes"] == cached_bytes()
    config["hardware"]["cached_bytes"] = other = cached_bytes() + 4096
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert sizes(4) == sizes(6) == {other}
    assert cached_bytes() == other - 4096


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fused", "host"])
def test_an_annealed_run_is_made_longer(kind: str, tmp_path: Path) -> None:
    """Its learning rate follows the length of the run, not of the agent. A kill in between makes no difference."""
    env = probes.truncation(5)
    settings: dict[str, Any] = {"anneal": True, "num_epochs": 1, "num_minibatches": 1, "normalize_observations": True}
    agent = small_ppo(hosted(env) if kind == "host" else env, **settings, total_steps=64)
    one = {"chunk_iterations": 1, "eval_every": 0}
    _, history = train(agent, tmp_path, 32 * 4, **one)
    np.testing.assert_allclose(history["charts/learning_rate"][:, 0], 1e-3 * (1 - np.arange(1, 4) / 4), rtol=1e-5)
    with pytest.raises(Killed):
        train(agent, tmp_path, 32 * 8, on_chunk=at(5, kill), checkpoint_every=0, **one)
    other = small_ppo(hosted(env) if kind == "host" else env, **settings, total_steps=1000)  # neither is the run's length
    states, history = train(other, tmp_path, 32 * 8, **one)
    longer = 1e-3 * (1 - np.arange(1, 8) / np.array([4, 4, 4, 8, 8, 8, 8]))
    np.testing.assert_allclose(history["charts/learning_rate"][:, 1], longer, rtol=1e-5)
    assert np.all(np.asarray(states.learner.hyperparams.total_steps) == 32 * 8)
    assert json.loads((tmp_path / "config.json").read_text())["run"]["total_steps"] == 32 * 8
    _, history = train(agent, None, 32 * 4, hyperparams={"total_steps": 320}, **one)
    np.testing.assert_allclose(history["charts/learning_rate"][:, 0], 1e-3 * (1 - np.arange(1, 4) / 10), rtol=1e-5)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, states, _ = whole("ppo")
    monkeypatch.setattr(saving, "SHARE", 1e9)

    def wait_for_the_background(chunk: Chunk) -> None:
        time.sleep(0.3)
        at(10, kill)(chunk)

    with pytest.raises(Killed):
        train(cartpole("ppo"), tmp_path, on_chunk=wait_for_the_background)
    saved = steps(tmp_path / "checkpoints")
    assert len(saved) >= 2
    manifest = tmp_path / "checkpoints" / str(saved[-1]) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with pytest.warns(CheckpointWarning, match=f"step {saved[-1]} .* is not intact"):
        resumed, _ = train(cartpole("ppo"), tmp_path)
    assert_bit_equal(resumed, states)


@pytest.mark.slow
def test_saving_that_takes_too_long_is_done_less_often_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(saving, "SHARE", 1e-6)  # so that any save exceeds its share
    train(cartpole("ppo"), tmp_path, checkpoint_every=0.01, quiet=False)
    said = r"checkpoints every (\d+) s instead of 0 s: one takes [\d.]+ s, and saving is limited to 0%"
    stretched = re.findall(said, capsys.readouterr().out)
    assert len(stretched) == 1 and int(stretched[0]) > 1000
    assert len(steps(tmp_path / "checkpoints")) == 2  # the one that took too long, and the last


@pytest.mark.slow
def test_the_last_checkpoints_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "SHARE", 1e9)
    seen = set()

    def wait_for_the_background(chunk: Chunk) -> None:
        time.sleep(0.2)
        seen.update(steps(tmp_path / "checkpoints"))

    train(cartpole("ppo"), tmp_path, keep_checkpoints=2, on_chunk=wait_for_the_background)
    kept = steps(tmp_path / "checkpoints")
    assert len(seen | set(kept)) > 2 and kept == sorted(seen | set(kept))[-2:]


@pytest.mark.slow
def test_environments_on_the_host_begin_new_episodes(tmp_path: Path) -> None:
    agent = small_ppo(hosted(probes.truncation(5)))
    with pytest.raises(Killed):
        train(agent, tmp_path, on_chunk=at(8, kill))
    resumed, history = train(agent, tmp_path)
    assert history["iteration"].tolist() == [0, 2, 4, 6, 8, 10, 12] and resumed.iteration.tolist() == [12, 12]
    assert np.nanmax(history["charts/episodic_return"]) == 5


def test_environments_that_are_opened_anew_have_other_seeds_and_the_learner_goes_on() -> None:
    """With the same seeds an episode would be played twice. The learner is restored as saved."""
    env, opened = hosted(probes.truncation(5)), list[int]()

    def open_envs(num_envs: int, seed: int) -> Any:
        opened.append(seed)
        return env.open(num_envs, seed)

    driver = HostDriver(small_ppo(env._replace(open=open_envs)), [0, 1])
    saved = jax.tree.map(jax.numpy.copy, driver.init())
    states = [driver.adopt(jax.tree.map(jax.numpy.copy, saved), iteration) for iteration in (8, 8, 9)]
    driver.close()
    for one in states:
        assert_bit_equal(one, saved)
    start, eighth, again, ninth = (opened[i : i + 2] for i in range(0, 8, 2))
    assert start == [0, 1] and eighth == again and len({*start, *eighth, *ninth}) == 6


@pytest.mark.slow
def test_without_its_replay_a_run_fills_a_new_one_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = cartpole("dqn")
    settings: dict[str, Any] = {"save_replay": False, "quiet": False}
    with pytest.raises(Killed):
        train(agent, tmp_path, rows_of("dqn"), on_chunk=at(8 + agent.algorithm.warmup_iterations, kill), **settings)
    resumed, _ = train(agent, tmp_path, rows_of("dqn"), **settings)
    assert "the replay buffer was not saved" in capsys.readouterr().out
    fresh = jax.eval_shape(agent.init, jax.random.key(0))
    assert jax.tree.structure(resumed) == jax.tree.structure(fresh)
    held = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert held


@pytest.mark.slow
def test_a_run_of_before_whose_states_are_a_list_goes_on(tmp_path: Path) -> None:
    """Runs on the host once saved one state per seed."""
    agent = small_dqn(hosted(probes.truncation(5)))
    settings: dict[str, Any] = {"eval_every": 0, "checkpoint_every": 0}
    states, _ = train(agent, tmp_path / "now", 80, **settings)
    shutil.copytree(tmp_path / "now", tmp_path / "before")
    folder = tmp_path / "before" / "checkpoints"
    found = read_info(folder)
    shutil.rmtree(folder)
    one_by_one = [jax.tree.map(lambda x, i=i: x[i], states) for i in range(2)]
    about = {"spec": found.spec, "run": found.run, "request": found.request}
    PendingSave(folder, one_by_one, found.step, **about).finish()
    assert read_info(folder).structure[0].path.startswith("[0]")
    longer = [train(agent, tmp_path / name, 96, **settings)[0] for name in ("now", "before")]
    assert_bit_equal(*longer)
    assert longer[0].iteration.tolist() == [12, 12]


def follow(obs: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return True where ``after`` is the observation of ``probes.endless`` after ``obs``."""
    return (after - obs == np.array([0, 1 / 1024], np.float32)).all(-1)


@pytest.mark.parametrize("setting", ["ent_coef", "surrogate"])
def test_a_run_of_another_version_is_not_resumed_with_todays_defaults(setting: str, tmp_path: Path) -> None:
    """Killed before its first checkpoint, so that only its config.json is left."""
    train(cartpole("ppo"), tmp_path, 32 * 2)
    shutil.rmtree(tmp_path / "checkpoints")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["agent"]["settings"][setting]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"the run's agent lacks {setting}: another version of jaxrl wrote it"):
        resume(tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("where", "save_replay"), [*(pytest.param("host", x, marks=pytest.mark.slow) for x in (True, False)), ("pure", False)]
)
def test_no_transition_leads_from_one_episode_into_another(where: str, save_replay: bool, tmp_path: Path) -> None:
    """If replay and environments are not both restored, the newest stored row has no successor."""
    env = probes.endless()
    agent = small_dqn(hosted(env) if where == "host" else env)
    settings: dict[str, Any] = {"save_replay": save_replay, "eval_every": 0}
    with pytest.raises(Killed):
        train(agent, tmp_path, rows_of("dqn"), on_chunk=at(8 + agent.algorithm.warmup_iterations, kill), **settings)
    states, _ = train(agent, tmp_path, rows_of("dqn"), **settings)
    replay = uniform_replay(60, 4, 2, before=1)
    first = jax.tree.map(lambda x: x[0], states)
    stored, length = first.learner.replay, int(first.learner.replay.size)
    assert length < 60
    obs, valid = np.asarray(stored.records.unpack().obs[:length]), np.asarray(stored.valid[:length])
    follows = follow(obs[:-1], obs[1:])
    np.testing.assert_array_equal((~follows).sum(0), 1)  # one seam in each environment
    np.testing.assert_array_equal(valid[:-1], follows)
    drawn = jax.device_get(transitions(replay, stored, replay.draw(stored, jax.random.key(0), 2000), 0.99))
    assert drawn.valid.mean() > 0.9
    assert follow(drawn.inputs.obs, drawn.next_inputs.obs)[drawn.valid].all()


def test_a_replay_that_cannot_be_told_of_the_seam_is_refused_before_the_run(tmp_path: Path) -> None:
    agent = cartpole("dqn")
    agent = agent._replace(algorithm=agent.algorithm._replace(mark_discontinuity=None))
    with pytest.raises(TypeError, match="because save_replay is False: leave save_replay=False out, give the Algorithm"):
        train(agent, tmp_path, rows_of("dqn"), save_replay=False)
    agent = agent._replace(env=hosted(probes.endless()))
    with pytest.raises(TypeError, match=r"because hosted:tests\.helpers\.probes:endless runs on the host"):
        train(agent, tmp_path, rows_of("dqn"))
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_saves_and_names_the_command_that_resumes(number: int, tmp_path: Path, whole: Any) -> None:
    _, states, _ = whole("ppo")
    before = signal.getsignal(number)
    with pytest.raises(RunInterrupted, match=r"stopped at step 128 of 384 .*resume with: jaxrl train --resume ") as caught:
        train(cartpole("ppo"), tmp_path, on_chunk=at(4, lambda: os.kill(os.getpid(), number)), checkpoint_every=0)
    assert caught.value.signal == number and signal.getsignal(number) is before
    assert steps(tmp_path / "checkpoints") == [4]
    resumed, _ = train(cartpole("ppo"), tmp_path)
    assert_bit_equal(resumed, states)


# ------------------------------------------------------------------------------------------------------------------------- logs


@pytest.mark.slow
def test_lines_beyond_the_checkpoint_and_half_lines_are_cut(tmp_path: Path, whole: Any) -> None:
    folder, _, _ = whole("ppo")
    with pytest.raises(RunInterrupted):
        train(cartpole("ppo"), tmp_path, on_chunk=at(4, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    records = tmp_path / "records.jsonl"
    beyond = json.loads(records.read_text().splitlines()[-1]) | {"iteration": 6}
    records.write_text(records.read_text() + json.dumps(beyond) + '\n{"iteration": 8, "tot')
    train(cartpole("ppo"), tmp_path)
    assert progress(tmp_path) == progress(folder)


# ----------------------------------------------------------------------------------------------------------- invalid arguments


def test_another_run_in_the_folder_is_left_alone(tmp_path: Path, whole: Any) -> None:
    folder, _, _ = whole("ppo")
    agent = cartpole("ppo")
    other = small_ppo("CartPole-v1", learning_rate=0.5)
    with pytest.raises(FileExistsError, match=r"holds another run: agent.settings.learning_rate is 0.001 there and 0.5 here"):
        train(other, folder)
    with pytest.raises(FileExistsError, match=r"run.seeds is \[3, 5\] there and \[0, 1\] here.*init_from"):
        train(agent, folder, seeds=2)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"is not empty and holds no run"):
        train(agent, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    first = RunFolder(tmp_path)
    with pytest.raises(FileExistsError, match="is in use by another process"):
        train(cartpole("ppo"), tmp_path)
    first.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checkpoint_every": -1}, "checkpoint_every=-1 must be a number of seconds >= 0"),
        ({"keep_checkpoints": 0}, "keep_checkpoints=0 must be an integer >= 1"),
        ({"on_nan": "ignore"}, r"on_nan='ignore' is unknown: choose one of \('drop', 'stop'\)"),
        ({"stop_at": float("nan")}, "stop_at=nan is not allowed: it must be a finite number"),
        ({"stop_at": 3.0, "eval_every": 0}, "stop_at=3.0 needs evaluations"),
        ({"wandb": "project"}, r'pip install "jaxrl\[wandb\]"'),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, ImportError), match=message):
        train(cartpole("ppo"), tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: it has no config.json"):
        resume(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"is not a run folder: there is no such folder"):
        jaxrl.load_policy(tmp_path / "none")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json cannot be read"):
        resume(tmp_path)


# ------------------------------------------------------------------------------------------------- stopping and other processes


def test_stop_at_ends_a_run_that_is_good_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, history = train(cartpole("ppo"), tmp_path, stop_at=1.0, quiet=False)
    assert history["iteration"].tolist() == [0, 2, 4]  # untrained policies that reach it do not stop the run
    assert "stopped, since the evaluation return reached 1, at step 128 of 384" in capsys.readouterr().out
    _, again = train(cartpole("ppo"), tmp_path, stop_at=1.0)
    assert again["iteration"].tolist() == [0, 2, 4]


@pytest.mark.slow
def test_arrays_that_on_chunk_puts_into_states_on_the_host_are_saved(tmp_path: Path) -> None:
    def slow(chunk: Chunk) -> Any:
        learner = chunk.states.learner
        new = learner.hyperparams._replace(learning_rate=np.full(2, 2.0**-12, np.float32))
        return chunk.states._replace(learner=learner._replace(hyperparams=new))

    agent = small_ppo(hosted(probes.truncation(5)))
    train(agent, tmp_path, 32 * 2, on_chunk=slow, eval_every=0)
    states, _ = train(agent, tmp_path, 32 * 4, eval_every=0)
    assert states.learner.hyperparams.learning_rate.tolist() == [2.0**-12] * 2


def test_on_chunk_may_change_the_states() -> None:
    def halve(chunk: Chunk) -> Any:
        learner = chunk.states.learner
        rates = learner.hyperparams.learning_rate / 2
        return chunk.states._replace(learner=learner._replace(hyperparams=learner.hyperparams._replace(learning_rate=rates)))

    _, history = train(cartpole("ppo"), None, on_chunk=halve)
    np.testing.assert_allclose(history["charts/learning_rate"][1:, 0], 1e-3 / 2.0 ** np.arange(6), rtol=1e-6)
