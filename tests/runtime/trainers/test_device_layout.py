"""Layout of seeds, and of each seed's environments, over devices: the choice, and that it affects only the speed."""

from __future__ import annotations

import json
from functools import partial, wraps
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxrl
from jaxrl.intrinsic import rnd
from jaxrl.runtime.run import run
from jaxrl.runtime.system import devices
from jaxrl.runtime.trainers import device_layout
from jaxrl.runtime.trainers.device_layout import MIN_ROWS, devices_per_seed, open_fused
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.types import Agent
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, assert_bit_equal, assert_close, cartpole, small, small_dqn, small_ppo

LARGE = {"num_envs": 512, "rollout_length": 4 * MIN_ROWS // 512}


def no_loss(params: Any, batch: Any) -> Any:
    return 0.0, {}


def own_bonus(observation_space: Any, action_space: Any) -> Any:
    return rnd(observation_space, action_space)


def replaced() -> Agent:
    """Return an agent whose step is not the builder's."""
    agent = small_ppo("CartPole-v1", **LARGE)
    return agent._replace(step=wraps(agent.step)(lambda state: agent.step(state)))


@pytest.mark.parametrize(
    ("make", "spare", "chosen"),
    [
        (partial(small_ppo, "CartPole-v1", **LARGE), 1, 1),
        (partial(small_ppo, "CartPole-v1", **LARGE), 2, 2),
        (partial(small_ppo, "CartPole-v1", **LARGE), 3, 2),
        (partial(small_ppo, "CartPole-v1", **LARGE), 64, 4),  # with more devices, each would have too few rows
        (partial(small, "a2c", "CartPole-v1", **LARGE), 2, 2),
        (partial(small_ppo, "CartPole-v1", num_envs=512, rollout_length=2 * MIN_ROWS // 512 - 1), 2, 1),
        (partial(small_ppo, "CartPole-v1", num_envs=1, rollout_length=4 * MIN_ROWS), 2, 1),
        (partial(small_ppo, "CartPole-v1", num_envs=2, rollout_length=2 * MIN_ROWS, model=RECURRENT), 2, 1),  # 2 minibatches
        (partial(small_ppo, "CartPole-v1", **LARGE, intrinsic=rnd), 2, 2),
        (partial(small_ppo, "CartPole-v1", **LARGE, intrinsic=partial(rnd, num_minibatches=4 * MIN_ROWS)), 8, 1),
        (partial(small_ppo, "CartPole-v1", **LARGE, intrinsic=own_bonus), 2, 1),
        (partial(small_ppo, "CartPole-v1", **LARGE, extra_losses=no_loss), 2, 1),
        (partial(small_ppo, probes.constant_reward(), **LARGE), 2, 1),  # no spec can name this environment
        (partial(small_dqn, "CartPole-v1", **LARGE, buffer_size=4 * MIN_ROWS), 2, 1),
        (replaced, 2, 1),
    ],
)
def test_devices_share_environments_where_that_serves(make: Any, spare: int, chosen: int) -> None:
    assert devices_per_seed(make(), spare) == chosen


def test_few_seeds_leave_devices_to_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small_ppo("CartPole-v1", **LARGE)
    for num_seeds, expected in ((1, 2), (2, 1), (3, 2)):
        driver, chosen = open_fused(agent, range(num_seeds))
        assert chosen.devices == jax.devices()[:2] and chosen.advice is None
        assert chosen.devices_per_seed == driver.devices_per_seed == expected
        assert driver.stepping.axis_name == (None if expected == 1 else "data")
    assert open_fused(cartpole("ppo"), [0])[1].devices_per_seed == 1
    monkeypatch.setattr(device_layout, "on_axis", lambda agent, name: jaxrl.build({}))  # as for components that are not trusted
    assert open_fused(agent, [0])[1] == devices.DeviceLayout(jax.devices()[:1], None)


def test_advice_to_one_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "usable_cores", lambda: 4)
    advice = open_fused(small_ppo("CartPole-v1", **LARGE), [0])[1].advice
    assert advice is not None and advice.startswith("1 seed has 2 CPU devices, because JAX was in use before this run. To use 4 ")
    assert open_fused(cartpole("ppo"), [0])[1].advice is None


@pytest.mark.slow
def test_devices_that_share_environments_do_what_one_does() -> None:
    """Sequences, and statistics per environment."""
    agent = small_ppo("CartPole-v1", model=RECURRENT, normalize_observations=True, normalize_rewards=True)
    alone, shared = FusedDriver(agent, [7], jax.devices()[:1]), FusedDriver(agent, [7], jax.devices()[:2], 2)
    expected, states = alone.init(), shared.init()
    assert_close(states, expected)  # the two programs round differently
    returns = states.learner.statistics.rewards.returns
    assert returns.shape == (1, 4) and {shard.data.shape for shard in returns.addressable_shards} == {(1, 2)}
    expected, states = alone.iterate(expected, 3)[0], shared.place(jax.device_get(shared.iterate(states, 3)[0]))
    assert_close(states, expected)
    assert_close(shared.iterate(states, 1)[0], alone.iterate(expected, 1)[0])


@pytest.mark.slow
def test_a_run_over_shared_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seeds on two devices, where one diverges.

    Resumed bit for bit; equal to one device up to rounding; and resumed on one device.
    """
    agent, rates = cartpole("ppo"), {"learning_rate": [1e-3, 1e30, 1e-3]}
    settings: dict[str, Any] = {"seeds": 3, "hyperparams": rates, "chunk_iterations": 2, "eval_every": 2, "eval_episodes": 3}
    alone, history = run(agent, 128, **settings, quiet=True)
    monkeypatch.setattr(device_layout, "MIN_ROWS", 16)
    states, logged = run(agent, 128, **settings, quiet=True)
    assert logged["diverged"][-1].tolist() == [False, True, False]
    assert_close(states, alone)
    for name in history.keys() - {"seconds", "sps", "time/evaluation"}:
        np.testing.assert_allclose(logged[name], history[name], rtol=1e-3, atol=1e-5, err_msg=name)

    settings |= {"out": tmp_path / "run", "tensorboard": False}
    run(agent, 64, **settings)
    shown = capsys.readouterr().out
    assert "3 seeds on 2 devices" in shown
    assert "2 devices share a seed's environments, 2 each, and learn the same as one device, up to rounding" in shown
    hardware = json.loads((tmp_path / "run" / "config.json").read_text())["hardware"]
    assert len(hardware["devices"]) == hardware["devices_per_seed"] == 2
    assert_bit_equal(run(agent, 128, **settings)[0], states)
    assert "resumed at step 64\n" in capsys.readouterr().out
    monkeypatch.undo()
    run(agent, 192, **settings)
    assert "resumed at step 128, with a seed's environments on 1 device where they were on 2" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["hardware"]["devices_per_seed"] == 1
