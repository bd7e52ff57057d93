"""``jaxrl collect`` and ``jaxrl data``: whose rows they are, what they say, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.rollout.collect import init_actor
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.datasets.collect import behaving, collect_dataset, share_at_random
from jaxrl.runtime.run import run
from jaxrl.types import Policy
from tests.helpers.agents import small
from tests.helpers.probes import two_choices


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of TD3, whose greedy actions are a function of the observation."""
    made = tmp_path_factory.mktemp("runs") / "td3"
    agent = small("td3", "Pendulum-v1", model={"hidden_sizes": (8,)})
    run(agent, 10 * agent.steps_per_iteration, seeds=[4, 2], out=made, eval_episodes=4, quiet=True, tensorboard=False)
    return made


def rows(data: Any) -> Any:
    return jax.device_get(data.rows())


def test_rows_are_those_of_the_policy(folder: Path) -> None:
    """Greedy actions are the policy's, observations follow from them, and the last one of each lane is kept."""
    data = collect_dataset(folder, 500, num_envs=2, collect_seed=3)
    policy, found = jaxrl.load_policy(folder), rows(data)
    assert data.info.rows >= 500
    np.testing.assert_allclose(found.action[found.valid], policy(found.obs[found.valid]), rtol=1e-5, atol=1e-5)
    env = jaxrl.make_env("Pendulum-v1")
    assert data.info.observation_space == env.observation_space and data.info.action_space == env.action_space
    lengths = np.diff(np.append(np.asarray(data.starts), len(found.valid))) - 1
    assert lengths.max() == 200 and not found.terminated.any() and data.info.episodes == len(lengths)
    cos, sin = found.obs[:, 0], found.obs[:, 1]
    np.testing.assert_allclose(cos**2 + sin**2, 1, rtol=1e-4)  # true observations, last ones too
    again = collect_dataset(folder, 500, num_envs=2, collect_seed=3)
    assert again.info == data.info and collect_dataset(folder, 500, num_envs=2, collect_seed=4).info != data.info


def test_random_actions_and_mixtures(folder: Path) -> None:
    at_random = rows(collect_dataset(folder, 1000, num_envs=2, policy="random"))
    action = at_random.action[at_random.valid]
    assert abs(action.mean()) < 0.15 and action.min() < -1.9 and action.max() > 1.9 and abs(action.std() - 2 / np.sqrt(3)) < 0.1
    mixed = collect_dataset(folder, 1000, num_envs=2, policy="mix:0.5")
    found, policy = rows(mixed), jaxrl.load_policy(folder)
    close = np.isclose(found.action[found.valid], policy(found.obs[found.valid]), atol=1e-4)[:, 0]
    assert 0.49 < close.mean() < 0.53 and not close[:400].all() and close[-400:].all()
    explored = rows(collect_dataset(folder, 500, num_envs=2, explore=True))
    close = np.isclose(explored.action[explored.valid], policy(explored.obs[explored.valid]), atol=1e-4)
    assert close.mean() < 0.2


def test_random_actions_are_allowed_ones() -> None:
    """In ``two_choices`` the last action is allowed only if the observation is positive. Allowed ones are equally likely."""
    agent = small("ppo", two_choices())
    params = jax.jit(agent.init, compiler_options=COMPILE_FAST)(jax.random.key(0)).learner.params
    ids, policy = jnp.arange(600), Policy(params, (), (), jnp.int32(0))
    inputs = init_actor(agent.algorithm, agent.env, jax.random.key(0), ids, ()).input
    act = behaving(agent, explore=False, at_random=600).act
    _, action, _ = jax.jit(act, compiler_options=COMPILE_FAST)(policy, (), inputs, ids, jax.random.key(1))
    highest = np.where(np.asarray(inputs.obs["sign"])[:, 0] > 0, 2, 1)
    for last in (1, 2):
        counts = np.bincount(np.asarray(action)[highest == last, 1], minlength=3)
        assert counts[last + 1 :].sum() == 0 and np.abs(counts[: last + 1] / counts.sum() - 1 / (last + 1)).max() < 0.1


def test_host_environments(tmp_path: Path) -> None:
    agent = small("dqn", "envpool:CartPole-v1")
    run(agent, 20 * agent.steps_per_iteration, out=tmp_path / "run", eval_every=0, quiet=True, tensorboard=False)
    data = collect_dataset(tmp_path / "run", 300, policy="random", num_envs=3)
    found = rows(data)
    assert data.info.rows >= 300 and data.info.episodes > 10
    ends = np.append(np.asarray(data.starts)[1:], len(found.valid)) - 2
    assert found.terminated[ends].sum() >= data.info.episodes - 3  # all but those in progress at the end
    assert np.abs(found.obs[ends + 1][found.terminated[ends]]).max() > 0.2  # the pole has fallen


def test_rows_of_host_environments_are_raw(tmp_path: Path) -> None:
    """Also where training has rewards of −1, 0 and 1."""
    agent = small("td3", "gymnasium:Pendulum-v1?reward_clip=True", model={"hidden_sizes": (8,)})
    run(agent, 10 * agent.steps_per_iteration, out=tmp_path / "run", eval_every=0, quiet=True, tensorboard=False)
    found = rows(collect_dataset(tmp_path / "run", 100, policy="random", num_envs=2))
    assert found.reward[found.valid].min() < -1


@pytest.mark.slow
def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "new" / "data.npz")
    assert main(["collect", str(folder), "--rows", "600", "--policy", "mix:0.5", "--envs", "2", "--out", file]) == 0
    said = capsys.readouterr().out
    data = jaxrl.load_dataset(file)
    assert said.startswith(f"{file}: {data.info.rows:,} rows of {data.info.episodes:,} episodes, returns from ")
    assert main(["data", file]) == 0
    said = capsys.readouterr().out
    for part in (
        f"rows          {data.info.rows:,}",
        "0 terminated",
        "actions       Box(-2.0, 2.0, (1,), float32)",
        data.info.digest,
        "█",
    ):
        assert part in said, part
    assert main(["data", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == data.info.rows and sum(count for *_, count in found["histogram"]) == found["episodes"]
    assert found["lengths"]["max"] == 200 and found["rows_per_second"] > 0 and found["sha256"] == data.info.digest
    out = str(tmp_path / "offline")
    flags = ["--data", file, "--updates", "4", "--batch-size", "16", "--model", "hidden_sizes=8,", "--total-steps", "12"]
    assert main(["train", "td3", "--env", "Pendulum-v1", *flags, "--out", out, "--eval-episodes", "2"]) == 0
    assert "updates/s" in capsys.readouterr().out
    assert main(["train", "--resume", out, "--total-steps", "20"]) == 0
    assert "step 20/20" in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["worst", "mix", "mix:0", "mix:1", "mix:x", "mix:nan", "random:1"])
def test_policies_that_are_unknown(policy: str) -> None:
    with pytest.raises(ValueError, match=r"must be best, last, random, or mix:0.5"):
        share_at_random(policy)


def test_what_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"policy='mix:0.1' needs more environments than num_envs=2"):
        collect_dataset(folder, 10, policy="mix:0.1", num_envs=2)
    for flags, said in (
        (["--rows", "0", "--out", "x.npz"], "rows=0 must be an integer >= 1"),
        (["--rows", "10", "--out", "x.csv"], "x.csv must end in .npz"),
        (["--rows", "10", "--out", "x.npz", "--env", "CartPole-v1"], "does not fit these policies"),
        (["--rows", "10"], "--out"),
        (["--rows", "10", "--out", "x.npz", "--collect-seed", "4294967296"], "collect_seed=4294967296 must be between 0 and"),
        (["--rows", "10", "--out", f"{__file__}/x.npz"], "cannot be written to"),
        (["--rows", "10", "--out", "/proc/new/x.npz"], "cannot be written to"),
    ):
        assert main(["collect", str(folder), *flags]) == 2
        assert said in capsys.readouterr().err
    assert main(["data", str(tmp_path / "none.npz")]) == 2
    assert "No such file" in capsys.readouterr().err
