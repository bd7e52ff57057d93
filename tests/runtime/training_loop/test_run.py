"""``jaxrl.run``: seeds over devices, chunks, evaluation, files, progress."""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.runtime import run as run_module
from jaxrl.runtime.checkpoint.manifest import steps
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.logs.records import FIRST_COLUMNS, OF_EVALUATIONS
from jaxrl.runtime.plots import draw as plots
from jaxrl.runtime.run import run
from jaxrl.runtime.system import devices
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.runtime.training_loop.plan import make_plan
from jaxrl.runtime.training_loop.run_config import RunConfig
from jaxrl.training import evaluation_key
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, assert_close, run_steps, small_dqn, small_ppo
from tests.helpers.fakes import faked
from tests.helpers.hosted import hosted

pytestmark = pytest.mark.expensive(75)

SEEDS = [3, 0, 7, 4]


class Finished(NamedTuple):
    """A run of 5 iterations of four seeds, in chunks of 2, 2 and 1."""

    states: Any
    history: dict[str, np.ndarray]
    folder: Path
    driver: FusedDriver
    output: str


@pytest.fixture(scope="module")
def finished(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "new" / "run"
    drivers = []

    def open_driver(agent: Agent, seeds: list[int], **options: Any) -> Any:
        opened = original(agent, seeds, **options)
        drivers.append(opened[0])
        return opened

    original = run_module.open_driver
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "open_driver", open_driver)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            states, history = run(agent, 150, seeds=SEEDS, out=folder, chunk_iterations=2, eval_every=4, eval_episodes=3)
    return Finished(states, history, folder, drivers[0], output.getvalue())


def test_programs_are_traced_while_the_garbage_collector_rests(agent: Agent) -> None:
    """Afterwards it is restored, however tracing ends."""
    driver, seen = FusedDriver(agent, [0], jax.devices()[:1]), []

    def function(fail: bool) -> bool:
        seen.append(gc.isenabled())
        return 1 / (not fail) > 0

    assert gc.isenabled()
    driver._lower(lambda: function(False))
    with pytest.raises(ZeroDivisionError):
        driver._lower(lambda: function(True))
    assert seen == [False, False] and gc.isenabled()
    gc.disable()
    try:
        driver._lower(lambda: function(False))
        assert not gc.isenabled()  # the user's choice
    finally:
        gc.enable()


# ----------------------------------------------------------------------------------------------------------- seeds and devices


@pytest.mark.slow
def test_seeds_over_two_devices_equal_seeds_alone(agent: Agent, finished: Finished) -> None:
    on_host = jax.device_get(finished.states)
    for row, seed in enumerate(SEEDS):
        alone, _ = run_steps(agent, agent.init(jax.random.key(seed), {"total_steps": 160}), 5)
        assert_close(jax.tree.map(lambda x, row=row: x[row], on_host), alone)


def test_results_are_on_one_device(finished: Finished) -> None:
    """Training was on two."""
    assert len(finished.driver._mesh.devices.ravel()) == 2
    assert all(len(x.sharding.device_set) == 1 for x in jax.tree.leaves(finished.states))


def test_devices_never_communicate(finished: Finished) -> None:
    program = finished.driver.programs["iterate"].as_text()
    assert "while" in program
    for collective in ("all-reduce", "all-gather", "collective-permute", "all-to-all"):
        assert collective not in program


def test_chunks_do_not_change_the_result(finished: Finished) -> None:
    states, *_ = finished.driver.iterate(finished.driver.init({"total_steps": 160}), 5)
    assert_bit_equal(states, finished.states)


@pytest.mark.slow
def test_one_trace_serves_every_chunk_length() -> None:
    traces = 0
    base = small_ppo(probes.action_choice())

    def counted(state: Any) -> Any:
        nonlocal traces
        traces += 1
        return base.step(state)

    _, history = run(base._replace(step=counted), 32 * 7, seeds=2, chunk_iterations=3, quiet=True, eval_every=2, eval_episodes=2)
    assert np.diff(history["iteration"]).tolist() == [2, 1, 1, 2, 1]
    assert traces <= 2  # the shape of the metrics, and the loop


@pytest.mark.slow
def test_environments_on_the_host_share_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = small_dqn(hosted(probes.truncation(5)))
    states, history = run(agent, 80, seeds=2, out=tmp_path, chunk_iterations=1, eval_every=2, eval_episodes=3)
    assert states.iteration.tolist() == [10, 10] and history["charts/episodic_length"].shape == (3, 2)
    assert history["iteration"].tolist() == [8, 9, 10] and history["rows"].tolist() == [64, 72, 80]
    np.testing.assert_array_equal(history["evaluation/episodic_return"], [[5.0] * 2, [np.nan] * 2, [5.0] * 2])
    assert history["env_steps"][0].tolist() == [4 * 14] * 2  # of 16 rows in each environment two are resets
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "status.json",
        "progress.csv",
        "records.jsonl",
        "learning_curve.png",
        "tensorboard",
        "checkpoints",
        "best",
    }
    assert "DQN · hosted:tests.helpers.probes:truncation · 2 seeds\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("num_seeds", "num_devices", "used"), [(8, 2, 2), (1, 2, 1), (3, 2, 1), (9, 8, 3), (4, 64, 4), (7, 7, 7), (5, 1, 1)]
)
def test_shard_count(num_seeds: int, num_devices: int, used: int) -> None:
    assert devices.shard_count(num_seeds, num_devices) == used


def test_advice_about_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 4)
    used, advice, _ = devices.seed_devices(8)
    assert len(used) == 2 and advice is not None and "8 seeds share 2 CPU devices" in advice
    assert 'put this line first: import jax; jax.config.update("jax_num_cpu_devices", 4)' in advice
    monkeypatch.setattr(devices, "usable_cores", lambda: 2)
    assert devices.seed_devices(8)[1] is None
    assert devices.seed_devices(1)[1] is None
    assert devices.seed_devices(3)[1] == "3 seeds divide over 1 of 2 devices only: a multiple of 2 would use 2"


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert devices.cache_folder() is None
    monkeypatch.setenv(devices.CACHE_VARIABLE, str(tmp_path))
    folder = devices.cache_folder()
    assert folder is not None and folder.parent == tmp_path and folder == devices.cache_folder()
    monkeypatch.delenv(devices.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert devices.cache_folder() == tmp_path / "jaxrl" / "xla" / folder.name
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert devices.cache_folder() == Path.home() / ".cache" / "jaxrl" / "xla" / folder.name


# ---------------------------------------------------------------------------------------------------------- plan and evaluation


def test_plan_stops_at_chunks_evaluations_and_the_end(agent: Agent) -> None:
    def stops(total_steps: int, **settings: Any) -> tuple[list[int], list[int]]:
        plan = make_plan(agent, RunConfig.of({"total_steps": total_steps, "eval_episodes": 1, **settings}))
        return list(plan.stops()), [stop for stop in plan.stops() if plan.episodes(stop, [])]

    assert stops(32 * 10, chunk_iterations=4, eval_every=3) == ([3, 4, 6, 8, 9, 10], [3, 6, 9, 10])
    assert stops(32 * 3, eval_every=0) == ([1, 2, 3], [])
    assert stops(1) == ([1], [1])
    ends, evaluated = stops(32 * 1001)
    assert 45 <= len(ends) <= 51 and 15 <= len(evaluated) <= 21 and ends[-1] == evaluated[-1] == 1001


def test_evaluation_depends_on_seed_and_iteration_alone(agent: Agent, finished: Finished) -> None:
    states, history = finished.states, finished.history
    returns = history["evaluation/episodic_return"]
    assert np.isnan(returns[1]).all() and not np.isnan(returns[[0, 2, 3]]).any()
    untrained = agent.init(jax.random.key(SEEDS[2]))
    before = jaxrl.evaluate(agent, untrained, evaluation_key(SEEDS[2], 0), 3)
    np.testing.assert_allclose(returns[0, 2], np.mean(before.episodic_return))
    state = jax.tree.map(lambda x: x[2], jax.device_get(states))
    result = jaxrl.evaluate(agent, state, evaluation_key(SEEDS[2], 5), 3)
    np.testing.assert_allclose(returns[-1, 2], np.mean(result.episodic_return))
    np.testing.assert_allclose(history["evaluation/episodic_length"][-1, 2], np.mean(result.episodic_length))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pure", "host"])
def test_evaluations_explore_where_the_run_says_so(kind: str, tmp_path: Path) -> None:
    """Greedy returns of a policy on this probe are all −1 or all 1.

    Exploring returns are in between, and determine the best policies.
    """
    env = probes.action_choice()
    agent = small_ppo(env if kind == "pure" else hosted(env))
    ask = {"seeds": [5], "out": tmp_path, "eval_every": 1, "eval_episodes": 64, "tensorboard": False, "quiet": True}
    states, history = run(agent, 64, eval_explore=True, **ask)
    state = jax.tree.map(lambda x: x[0], jax.device_get(states))
    played = jaxrl.evaluate(agent, state, evaluation_key(5, 2), 64, explore=True)
    returns = history["evaluation/episodic_return"][:, 0]
    np.testing.assert_allclose(returns[-1], np.mean(played.episodic_return), atol=1e-6)
    assert (np.abs(returns) < 1).all()
    assert steps(tmp_path / "best") == [history["iteration"][np.argmax(returns)]]

    assert json.loads((tmp_path / "config.json").read_text())["run"]["eval_explore"] is True
    with pytest.raises(FileExistsError, match=r"holds another run: run.eval_explore is true there and false here"):
        run(agent, 64, **ask)


def test_eval_explore_is_a_switch(agent: Agent) -> None:
    with pytest.raises(TypeError, match=r"eval_explore='yes' must be True \(evaluations act as in training\) or False"):
        run(agent, 64, eval_explore="yes", quiet=True)


def test_evaluation_keys_are_none_of_training() -> None:
    data = jax.random.key_data
    evaluation = {tuple(data(evaluation_key(seed, iteration)).tolist()) for seed in (0, 1) for iteration in range(50)}
    training = {tuple(data(key).tolist()) for seed in (0, 1) for key in jax.random.split(jax.random.key(seed), 50)}
    assert len(evaluation) == 100 and not evaluation & training


def test_evaluate_refuses_env_params_on_the_host() -> None:
    agent = small_ppo(hosted(probes.truncation()))
    with pytest.raises(ValueError, match="env_params are for pure environments"):
        jaxrl.evaluate(agent, agent.init(jax.random.key(0)), jax.random.key(0), 2, env_params=())


# ------------------------------------------------------------------------------------------------------------------------ files


def test_history_and_progress_csv_agree(finished: Finished) -> None:
    history, folder = finished.history, finished.folder
    assert history["iteration"].tolist() == [0, 2, 4, 5] and history["rows"].tolist() == [0, 64, 128, 160]
    assert history["env_steps"].shape == (4, 4) and (history["env_steps"] <= history["rows"][:, None]).all()
    valid = history["charts/valid_rows"][1:] * np.array([[64], [64], [32]])
    np.testing.assert_allclose(np.diff(history["env_steps"], axis=0), valid, rtol=1e-5)
    training = [key for key in history if key.startswith(("charts/", "losses/"))]
    of_the_run = {*history, "seed"} - {*training}
    assert of_the_run == {*FIRST_COLUMNS, *OF_EVALUATIONS}  # as in docs/log-keys.md
    assert training and all(np.isnan(history[key][0]).all() for key in [*training, "sps"])

    text = (folder / "progress.csv").read_text()
    assert "nan" not in text.lower() and "inf" not in text.lower()
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 4 * 4
    assert list(rows[0])[:7] == ["seed", "iteration", "rows", "env_steps", "seconds", "sps", "diverged"]
    assert [int(row["seed"]) for row in rows[:4]] == SEEDS
    for index, row in enumerate(rows):
        chunk, seed = divmod(index, 4)
        for key, values in history.items():
            value = values[chunk] if values.ndim == 1 else values[chunk, seed]
            assert row[key] == "" if np.isnan(value) else float(row[key]) == pytest.approx(float(value))
    assert [row["evaluation/episodic_return"] == "" for row in rows] == [False] * 4 + [True] * 4 + [False] * 8


def test_config_rebuilds_the_agent(agent: Agent, finished: Finished) -> None:
    config = json.loads((finished.folder / "config.json").read_text())
    assert config["run"]["total_steps"] == 160
    assert config["run"]["seeds"] == SEEDS and config["run"]["iterations"] == 5
    assert config["versions"]["jax"] == jax.__version__ and len(config["hardware"]["devices"]) == 2
    assert jaxrl.build(config["agent"]).spec == agent.spec


def test_checkpoint_holds_the_final_states(finished: Finished) -> None:
    states, folder = finished.states, finished.folder
    restored, info = restore(folder / "checkpoints", states)
    assert info.step == 5
    assert_bit_equal(restored, states)


def test_learning_curve_is_a_picture(finished: Finished, tmp_path: Path) -> None:
    from matplotlib.image import imread

    picture = imread(finished.folder / "learning_curve.png")
    assert picture.shape[0] > 400 and picture.shape[1] > 600 and picture[..., :3].std() > 0.01
    nothing = {"env_steps": np.zeros((2, 3)), "charts/episodic_return": np.full((2, 3), np.nan)}
    plots.learning_curve(nothing, tmp_path / "none.png", title="nothing")
    assert not (tmp_path / "none.png").exists()


# --------------------------------------------------------------------------------------------------------------------- progress


def test_lines_of_progress(finished: Finished) -> None:
    title, rounded, compiling, untrained, first, second, third, end = finished.output.splitlines()
    assert title == "PPO · gymnax:CartPole-v1 · 4 seeds on 2 devices"
    assert rounded == "total_steps=150 rounded up to 160: whole iterations of 4 × 8 rows" and compiling == "compiling …"
    assert re.fullmatch(r"step   0/160  evaluation \S+ ± \S+  compiled in .*", untrained)
    assert first.startswith("step  64/160  return 1") and "compiled in" not in first and "evaluation" not in first
    assert second.startswith("step 128/160  return ") and "  evaluation " in second and "env steps/s  ETA " in second
    assert third.startswith("step 160/160  return ") and "compiled" not in third
    assert end.startswith("done at step 160 of 160 after") and "; evaluation return " in end
    assert end.endswith(f"results in {finished.folder}")


def test_quiet_is_quiet(agent: Agent, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    faked(monkeypatch, {})
    run(agent, 100, seeds=2, quiet=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_seeds_have_hyperparams_of_their_own_and_a_diverged_one_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    agent = small_ppo(probes.action_choice())
    rates = np.array([1e-3, 2e-3, 1e38], np.float32)
    _, history = run(agent, 32 * 4, seeds=[5, 6, 7], hyperparams={"learning_rate": rates, "gamma": 0.9}, eval_every=0)
    np.testing.assert_array_equal(history["charts/learning_rate"][:, :2], [rates[:2]] * 4)
    out = capsys.readouterr().out
    assert out.count("seed 7: losses or parameters are NaN or infinite by step") == 1 and out.count("NaN") == 1
    assert "3 seeds divide over 1 of 2 devices only" in out
    loss = history["losses/value_loss"]
    assert np.isfinite(loss[:, :2]).all() and np.isnan(loss[-1, 2])


@pytest.mark.slow
def test_per_seed_hyperparams_on_the_host() -> None:
    agent = small_ppo(hosted(probes.truncation()))
    states, _ = run(agent, 32, seeds=2, hyperparams={"gamma": [0.9, 0.8]}, quiet=True, eval_every=0)
    np.testing.assert_array_equal(states.learner.hyperparams.gamma, np.float32([0.9, 0.8]))
