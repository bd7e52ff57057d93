"""Environments that return NaN are found after a seed has diverged: in every kind of run, by number, without false positives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.runtime.checkpoint.manifest import steps
from jaxrl.runtime.cli import main as cli
from jaxrl.runtime.run import RunDiverged, run
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.runtime.trainers.non_finite import Suspects, of_rollout
from jaxrl.types import Env, Rollout, StepInput, TimeStep
from tests.helpers import probes
from tests.helpers.agents import small_dqn, small_ppo
from tests.helpers.hosted import hosted


def broken(what: str = "obs", late: int = 5, share: float = 0.5, *, continuous: bool = False) -> Env:
    """In this share of environments, drawn at their reset, the observation or the reward of step ``late`` is NaN."""

    def reset(key: jax.Array, params: Any) -> Any:
        return {"draw": jax.random.uniform(key), "time": jnp.zeros((), jnp.int32)}, jnp.zeros(1)

    def step(key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        state = state | {"time": state["time"] + 1}
        bad = jnp.where((state["draw"] < share) & (state["time"] == late), jnp.nan, 0.0)
        no = jnp.zeros((), bool)
        obs, reward = (bad[None], jnp.float32(1)) if what == "obs" else (jnp.zeros(1), bad)
        return state, TimeStep(obs, reward, no, no)

    action = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(2)
    return Env(reset, step, spaces.Box(-1.0, 1.0, (1,), np.float32), action, name=f"broken:{what}")


def late_obs() -> Env:
    return broken("obs", late=10)


def late_reward() -> Env:
    return broken("reward", late=10)


@pytest.mark.slow
@pytest.mark.parametrize(("what", "num_devices"), [("obs", 1), ("reward", 2)])
def test_environments_in_jax(what: str, num_devices: int) -> None:
    """In the second iteration of a chunk of three, which is repeated from the frozen state."""
    agent = small_ppo(
        f"tests.runtime.trainers.test_non_finite:late_{what}"
    )  # an id, since devices that share environments build the agent again
    driver = FusedDriver(agent, [3, 4], jax.devices()[:num_devices], num_devices)
    states, _, alive = driver.iterate(driver.init(), 3)
    found = driver.suspects(states, ~np.asarray(alive))
    bad = np.asarray(states.actor.env_state["draw"]) < 0.5
    assert not np.asarray(alive).any() and bad.any() and not bad.all()
    np.testing.assert_array_equal(found.obs if what == "obs" else found.reward, bad)
    assert not np.any(found.reward if what == "obs" else found.obs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fused", "host"])
def test_rows_that_were_stored_long_ago(kind: str) -> None:
    """For an algorithm with replay: the bad row comes in the warm-up, and is drawn later."""
    env = broken("reward", late=2)
    agent = small_dqn(env if kind == "fused" else hosted(env))
    driver: Any = FusedDriver(agent, [3], jax.devices()[:1]) if kind == "fused" else HostDriver(agent, [3])
    states, _, alive = driver.iterate(driver.init(), 4)
    found = driver.suspects(states, ~np.asarray(alive))
    actor = states.actor if kind == "fused" else None
    bad = np.asarray(actor.env_state["draw"]) < 0.5 if actor else np.asarray(found.reward)
    assert not np.asarray(alive).any() and bad.any() and not np.any(found.obs)
    np.testing.assert_array_equal(found.reward, bad)
    getattr(driver, "close", lambda: None)()


@pytest.mark.slow
def test_environments_on_the_host() -> None:
    driver = HostDriver(small_ppo(hosted(broken("obs"))), [3, 4])
    states = driver.init()
    draws = [np.asarray(driver.learner.sampler.groups[0].envs._envs._pools[i].actor.env_state["draw"]) for i in range(2)]  # type: ignore[union-attr]
    states, _, alive = driver.iterate(states, 3)
    found = driver.suspects(states, ~alive)
    np.testing.assert_array_equal(found.obs, np.stack(draws) < 0.5)
    assert not alive.any() and not found.reward.any()
    driver.close()


def test_what_an_action_led_to_is_not_the_fault_of_the_environment() -> None:
    """Environment 0 returns NaN by itself, 1 after a NaN action, 2 never. 3 returns a NaN reward after such an action."""
    obs, action, reward = np.zeros((3, 4, 1), np.float32), np.zeros((2, 4, 1), np.float32), np.zeros((2, 4), np.float32)
    obs[1, 0], obs[2, 0] = np.inf, np.nan
    action[0, 1] = obs[1, 1] = action[0, 3] = reward[0, 3] = np.nan
    before = np.concatenate([np.zeros((1, 4, 1), np.float32), action])
    no: Any = np.zeros((2, 4), bool)
    inputs: Any = StepInput(obs, before, np.zeros((3, 4)), np.zeros((3, 4), bool))
    rollout = Rollout(inputs, action, reward, no, no, {}, ~no, (), np.arange(4), np.zeros(4, int))  # type: ignore[arg-type]
    found = of_rollout(rollout)
    assert found.obs.tolist() == [True, False, False, False] and not found.reward.any()
    found = Suspects(*np.zeros((2, 2, 8), bool))  # a worker's part, of the second seed
    found.record(jax.tree.map(lambda x: np.stack([x, x]), rollout._replace(env_id=np.arange(4, 8))), np.array([False, True]))  # type: ignore[arg-type]
    assert np.flatnonzero(found.obs).tolist() == [8 + 4]


def test_in_words() -> None:
    few, many = np.arange(4) == 3, np.ones(12, bool)
    assert Suspects(few, ~many[:4]).in_words() == "environment 3 gave observations that are NaN or infinite"
    assert Suspects(~many, many).in_words() == "environments 0, 1, 2, 3, 4, 5, 6, 7, … gave rewards that are NaN or infinite"
    assert Suspects(~many, ~many).in_words() is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fused", "host"])
def test_a_run_names_the_environment_saves_and_raises(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = broken("reward", late=20, share=2.0)
    agent = small_ppo(env if kind == "fused" else hosted(env))
    with pytest.raises(RunDiverged, match=r"^stopped, since all seeds diverged, at step 96 of 320 .* results in") as caught:
        run(agent, 320, out=tmp_path, chunk_iterations=1, eval_every=0, tensorboard=False)
    out = capsys.readouterr().out
    assert "seed 0: environments 0, 1, 2, 3 gave rewards that are NaN or infinite by step 96, and so are its losses or" in out
    assert "learning_rate" not in out and out.count("NaN") == 1
    assert caught.value.history["diverged"].tolist() == [[False], [False], [True]]
    assert int(caught.value.states.iteration[0]) == 2  # from before that
    assert steps(tmp_path / "checkpoints") == [3] and len((tmp_path / "records.jsonl").read_text().splitlines()) == 3
    with pytest.raises(RunDiverged, match="all seeds diverged, at step 96 of 320"):  # the result does not change
        run(agent, 320, out=tmp_path, chunk_iterations=1, eval_every=0, tensorboard=False, quiet=True)


@pytest.mark.slow
def test_an_observation_without_an_action_ends_the_run_with_its_name_and_saves(tmp_path: Path) -> None:
    """A continuous policy has no action there, and the row cannot be made."""
    agent = small_ppo(hosted(broken("obs", late=20, share=2.0, continuous=True)))
    with pytest.raises(EnvironmentFailed, match=r"broken:obs: the observation of environment 0, 1, 2, 3 is NaN or infinite"):
        run(agent, 320, out=tmp_path, chunk_iterations=1, eval_every=0, tensorboard=False, quiet=True)
    assert steps(tmp_path / "checkpoints") == [2]


@pytest.mark.slow
def test_seeds_that_diverge_in_the_last_chunk_are_not_done() -> None:
    with pytest.raises(RunDiverged, match="all seeds diverged, at step 128 of 128"):
        run(small_ppo(broken("reward", late=20, share=2.0)), 128, chunk_iterations=4, eval_every=0, quiet=True)


@pytest.mark.slow
def test_the_command_line_says_so_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--env tests.helpers.probes:action_choice --num-envs 4 --rollout-length 8 --num-minibatches 1 --learning-rate 1e38"
    code = cli.main(["train", "ppo", *flags.split(), "--total-steps", "320", "--eval-every", "0", "--out", str(tmp_path / "a")])
    said = capsys.readouterr()
    assert code == 2 and said.err.startswith("jaxrl: stopped, since all seeds diverged, at step") and said.err.count("\n") == 1
    assert "a smaller learning_rate may help" in said.out


@pytest.mark.slow
def test_a_seed_that_breaks_by_itself_blames_no_environment() -> None:
    driver = FusedDriver(small_ppo(probes.action_choice()), [0], jax.devices()[:1])
    states, _, alive = driver.iterate(driver.init({"learning_rate": 1e38}), 8)
    found = driver.suspects(states, ~np.asarray(alive))
    assert not np.asarray(alive).any() and not np.any(found.obs) and not np.any(found.reward)
