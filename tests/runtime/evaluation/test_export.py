"""Trained policies for programs without jaxrl: the exported policy acts as the loaded one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from jax import export

from jaxrl.builder.stand_in import stand_in
from jaxrl.models import from_linen
from jaxrl.runtime.evaluation.export import flat_arrays
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.spaces.trees import zeros
from jaxrl.types import Agent, Model, Policy
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_ACTOR_CRITIC, cartpole, small, small_ppo
from tests.helpers.paths import ROOT

EXAMPLES = ROOT / "examples"
MASKED = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(3)})


def loaded(agent: Agent, **given: Any) -> LoadedPolicy:
    """Build a loaded policy with other numbers than initial ones, also in the statistics, as after training."""
    policy = agent.algorithm.policy(agent.init(jax.random.key(0)).learner)
    rng = np.random.default_rng(0)

    def learnt(x: Any) -> Any:
        moved = np.asarray(x) * rng.uniform(0.5, 2, x.shape) + rng.uniform(0.1, 0.5, x.shape)
        return jnp.asarray(moved, x.dtype) if x.dtype == jnp.float32 else x

    policy = policy._replace(params=jax.tree.map(learnt, policy.params), statistics=jax.tree.map(learnt, policy.statistics))
    return LoadedPolicy(agent, policy, seed=0, step=1, **given)


def exported(policy: LoadedPolicy, folder: Path, **given: Any) -> export.Exported:
    policy.export(folder / "policy.jax", **given)
    return export.deserialize(bytearray((folder / "policy.jax").read_bytes()))


def observations(space: spaces.Space, *lead: int) -> Any:
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: rng.uniform(-2, 2, (*lead, *x.shape)).astype(x.dtype), jax.eval_shape(lambda: zeros(space)))


# ------------------------------------------------------------------------------------------------------------------- functions


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: small_ppo("CartPole-v1", model=SMALL_ACTOR_CRITIC, normalize_observations=True), id="normalised"),
        pytest.param(lambda: cartpole("dqn"), id="dqn"),
        pytest.param(lambda: small("sac", "Pendulum-v1"), id="scaled"),
    ],
)
def test_a_policy_without_memory_is_a_function_of_observations(make: Any, tmp_path: Path) -> None:
    policy = loaded(make())
    function = exported(policy, tmp_path)
    assert set(function.platforms) == {"cpu", "cuda", "tpu"}
    for size in (1, 5):  # one program for all sizes
        obs = observations(policy.observation_space, size)
        np.testing.assert_allclose(function.call(obs), policy(obs), rtol=1e-6)


def test_masks_are_in_the_function(tmp_path: Path) -> None:
    policy = loaded(small_ppo(stand_in("masked", MASKED, spaces.Discrete(3))))
    call = exported(policy, tmp_path).call
    for allowed in range(3):
        obs = {"x": np.ones((4, 2), np.float32), "action_mask": np.eye(3, dtype=np.int8)[[allowed] * 4]}
        assert np.asarray(call(obs)).tolist() == [allowed] * 4


@pytest.mark.slow
def test_a_policy_with_memory_carries_it_and_forgets_it_where_an_episode_begins(tmp_path: Path) -> None:
    policy = loaded(small_ppo(probes.memory(), model=RECURRENT))
    function = exported(policy, tmp_path)
    (like, *_), _ = jax.tree.unflatten(function.in_tree, function.in_avals)
    memory: Any = tuple(np.full((3, *x.shape[1:]), 7, x.dtype) for x in like)  # which is not used
    obs, rewards = observations(policy.observation_space, 5, 3), np.linspace(-1, 1, 5, dtype=np.float32)
    for t in range(5):
        if t == 3:
            policy.reset()
        expected = policy(obs[t], prev_reward=rewards[t])
        memory, action = function.call(memory, obs[t], np.full(3, rewards[t]), np.full(3, t in (0, 3)))
        np.testing.assert_array_equal(action, expected)
        assert policy._memory is not None
        np.testing.assert_allclose(memory[0], policy._memory.carry, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(memory[-1], expected)


@pytest.mark.slow
def test_a_network_without_memory_may_look_at_the_action_before(tmp_path: Path) -> None:
    """Then the previous action is its memory, although the model has no carry."""

    def model(observation_space: Any, action_space: Any) -> Model:
        import flax.linen as nn

        class Net(nn.Module):
            @nn.compact
            def __call__(self, inputs: Any) -> Any:
                return 1.0 - 2 * jax.nn.one_hot(inputs.prev_action, 2) + 0.1 * nn.Dense(2)(0 * inputs.obs)

        return from_linen(Net())

    policy = loaded(small("dqn", "CartPole-v1", model=model))
    call = exported(policy, tmp_path).call
    memory, obs = (np.ones(1, np.int32),), np.zeros((1, 4), np.float32)
    actions = []
    for t in range(4):  # always the opposite of the previous one
        memory, action = call(memory, obs, np.zeros(1, np.float32), np.array([t == 0]))
        actions.append(int(action[0]))
    assert actions == [int(policy(obs[0])) for _ in range(4)] and actions[:2] == actions[2:] != actions[1:3]


@pytest.mark.slow
def test_a_policy_that_explores_takes_a_key(tmp_path: Path) -> None:
    policy = loaded(cartpole("ppo"), explore=True, key=jax.random.key(9))
    call = exported(policy, tmp_path).call
    obs, seen = np.zeros((64, 4), np.float32), []
    for key in map(jax.random.key, (1, 2)):
        seen.append(call(obs, jax.random.key_data(key)))
        np.testing.assert_array_equal(seen[-1], policy(obs, key=key))
    assert (seen[0] != seen[1]).any()
    greedy = exported(policy, tmp_path, explore=False, batch_size=2, platforms=("cpu",))
    np.testing.assert_array_equal(greedy.call(obs[:2]), policy(obs[:2], explore=False))
    assert greedy.platforms == ("cpu",) and greedy.in_avals[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("file", "platforms", "error", "said"),
    [
        ("a.jax", "cpu", ValueError, r"platforms='cpu' must be a sequence of cpu, cuda, tpu, rocm, such as \('cpu',\)"),
        ("a.jax", ("gpu",), ValueError, r"such as \('cpu',\): a GPU is cuda or rocm"),
        ("a.jax", ("CPU",), ValueError, r"platforms=\('CPU',\) must be"),
        ("a.jax", (), ValueError, r"platforms=\(\) must be"),
        ("absent/a.jax", ("cpu",), OSError, r"path='.*absent/a.jax' cannot be written to: it, or its folder, does not exist"),
    ],
)
def test_what_cannot_be_exported(file: str, platforms: Any, error: type[Exception], said: str, tmp_path: Path) -> None:
    policy: Any = LoadedPolicy(cartpole("ppo"), None, seed=0, step=1)  # type: ignore[arg-type]
    with pytest.raises(error, match=said):
        policy.export(os.fspath(tmp_path / file), platforms=platforms)
    assert not [*tmp_path.iterdir()]


# ---------------------------------------------------------------------------------------------------------------------- arrays


@pytest.mark.slow
def test_arrays_have_the_names_of_layers() -> None:
    policy = loaded(small_ppo("CartPole-v1", model=SMALL_ACTOR_CRITIC, normalize_observations=True))
    arrays = policy.arrays()
    assert {"policy/logits/kernel", "value/bias", "statistics/observations/mean"} <= set(arrays)
    assert len(arrays) == len(jax.tree.leaves((policy.policy.params, policy.policy.statistics)))
    assert all(type(x) is np.ndarray and x.flags.c_contiguous for x in arrays.values())
    np.testing.assert_array_equal(arrays["value/bias"], policy.policy.params["params"]["value"]["bias"])


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"params": {"a": 1}}, {"a"}),
        ({"params": {"a": 1}, "a": 2}, {"params/a", "a"}),  # these would have the same name
        ([1, {"w": 2}], {"0", "1/w"}),
        (1, {"params"}),
    ],
)
def test_no_two_arrays_have_one_name(params: Any, names: set[str]) -> None:
    params = jax.tree.map(jnp.float32, params)
    assert set(flat_arrays(Policy(params, (), (), jnp.int32(0)))) == names


# ------------------------------------------------------------------------------------------------------------- without jaxrl


@pytest.mark.slow
def test_a_script_without_jaxrl_acts_as_the_policy_does(tmp_path: Path) -> None:
    """The script of the page on exporting: with JAX alone, and with NumPy alone."""
    policy = loaded(small_ppo("CartPole-v1", normalize_observations=True))
    policy.export(tmp_path / "policy.jax")
    np.savez(tmp_path / "policy.npz", **policy.arrays())
    obs = observations(policy.observation_space, 16)
    np.save(tmp_path / "observations.npy", obs)
    for how, forbidden in (("jax", ["jaxrl", "flax", "optax"]), ("numpy", ["jaxrl", "jax", "flax"])):
        code = (
            f"import runpy, sys; sys.modules.update(dict.fromkeys({forbidden!r})); "
            f"sys.argv = ['serve', {how!r}]; runpy.run_path({str(EXAMPLES / 'serve_policy.py')!r}, run_name='__main__')"
        )
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        actions = [int(number) for number in re.findall(r"\d+", done.stdout)]
        assert actions == policy(obs).tolist() and len(set(actions)) == 2, how
