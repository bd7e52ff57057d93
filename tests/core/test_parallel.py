"""Agents over devices: leaves that belong to environments, and equal results on one and two devices for every mapping."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxrl.agent import bind
from jaxrl.algorithms import setting_names
from jaxrl.metrics import scalars, to_floats
from jaxrl.optimize.gradients import pmean
from jaxrl.parallel import (
    check_replicas,
    data_parallel,
    env_axes,
    join_state,
    make_mesh,
    partition_specs,
    shard_seeds,
    split_state,
    vmap_seeds,
)
from jaxrl.settings.validation import Positive
from jaxrl.types import Agent, Algorithm, Policy
from tests.helpers import probes
from tests.helpers.agents import (
    LEARN_FROM_ROWS,
    PLAYING,
    RECURRENT,
    algorithms,
    assert_bit_equal,
    assert_close,
    run_steps,
    small,
    small_dqn,
    small_ppo,
    tiny,
)
from tests.helpers.datasets import random_dataset

KEY = partial(jax.random.key, 0)
NUM_ENVS, ROWS = 4, 3


class Visits(NamedTuple):
    by_env: Any
    """f32[2, num_envs]: valid rows, and rewards, of each environment."""
    rows: Any
    """f32[]"""

    @property
    def env_axes(self) -> dict[str, int]:
        return {"by_env": 1}


class Hyperparams(NamedTuple):
    learning_rate: Positive = 0.5


class State(NamedTuple):
    params: Any
    opt_state: Any
    hyperparams: Hyperparams
    statistics: Any
    key: Any
    version: Any


def counting_agent(axis_name: str | None = None, num_counted: int = NUM_ENVS) -> Agent:
    """Return an agent of an algorithm without a builder, hence without a spec, whose state has counts per environment at some
    depth."""
    env = probes.constant_reward()

    def init(key: Any, hyperparams: Hyperparams) -> State:
        visits = {"deep": [Visits(jnp.zeros((2, num_counted)), jnp.zeros(()))]}
        return State(jnp.zeros(()), (), hyperparams, visits, key, jnp.zeros((), jnp.int32))

    def act(policy: Policy, carry: Any, inputs: Any, env_id: Any, key: Any, *, explore: bool) -> Any:
        return carry, (env_id % 2).astype(jnp.int32), {}

    def update(learner: State, rollout: Any) -> Any:
        [(by_env, rows)] = learner.statistics["deep"]
        new = jnp.stack([rollout.valid.sum(0) * (1.0 + rollout.env_id), rollout.reward.sum(0)])
        rows += NUM_ENVS * pmean(rollout.valid.mean(dtype=jnp.float32), axis_name)
        params = learner.params + learner.hyperparams.learning_rate * pmean(rollout.reward.mean(), axis_name)
        learner = learner._replace(statistics={"deep": [Visits(by_env + new, rows)]}, params=params, version=learner.version + 1)
        return learner, scalars({"losses/loss": params})

    algorithm = Algorithm(init, lambda learner: Policy(learner.params, (), (), learner.version), act, update, lambda batch: ())
    return bind(algorithm, env, num_envs=NUM_ENVS, rollout_length=ROWS, hyperparams=Hyperparams(), axis_name=axis_name)


@pytest.mark.slow
def test_an_algorithm_of_ones_own_is_shared_out_over_devices() -> None:
    solo, agent = counting_agent(), counting_agent("d")
    state = solo.init(KEY())
    axes = env_axes(agent, state)
    assert axes.learner.statistics == {"deep": [Visits(1, -1)]}
    assert axes.learner.params == axes.iteration == -1 and axes.actor.done == axes.actor.input.is_first == 0
    assert_bit_equal(join_state(agent, split_state(agent, state, 2)), state)

    shared, step = data_parallel(agent, 2), jax.jit(solo.step)
    both = shared.init(KEY())
    assert len(both.learner.statistics["deep"][0].by_env.sharding.device_set) == 2
    shared_step = jax.jit(shared.step)
    for _ in range(2):
        state, both = step(state)[0], shared_step(both)[0]
    assert_close(both, state)
    assert len(np.unique(both.learner.statistics["deep"][0].by_env[0])) == NUM_ENVS


def test_axes_that_do_not_run_over_environments_are_named() -> None:
    agent = counting_agent("d", num_counted=NUM_ENVS + 1)
    message = r"state\.learner\.statistics\['deep'\]\[0\]\.by_env has shape \(2, 5\), .* axis 1 runs over the 4 environments"
    with pytest.raises(ValueError, match=message):
        env_axes(agent, jax.eval_shape(agent.init, KEY()))


def test_no_axis_and_no_spec_cannot_be_shared_out() -> None:
    with pytest.raises(ValueError, match="this agent has no spec to rebuild it from: bind it with axis_name='d'"):
        data_parallel(counting_agent(), 2)
    with pytest.raises(ValueError, match="this agent has no axis_name: build it"):
        split_state(counting_agent(), counting_agent().init(KEY()), 2)


def test_a_replay_says_which_of_its_axes_are_environments() -> None:
    agent = small_dqn(probes.constant_reward())
    state = jax.eval_shape(agent.init, KEY())
    axes = env_axes(agent, state).learner
    assert jax.tree.leaves(axes.replay.records) == [1] and axes.replay.valid == 1
    assert axes.replay.position == axes.replay.size == -1 and set(jax.tree.leaves(axes.params)) == {-1}


# ------------------------------------------------------------------------------------------------------------- several devices


def one_gradient(algorithm: str, **settings: Any) -> Agent:
    """Return an agent with one gradient per iteration, independent of draws and shuffles: the mean over devices equals the
    whole."""
    setting = tiny(algorithm).one_gradient
    assert setting is not None
    return small(algorithm, setting[0], **setting[1], **settings)


def gradient_norm(metrics: Any) -> float:
    value = to_floats({"norm": metrics["losses/grad_norm"]})["norm"]
    assert value is not None and value > 0
    return value


@algorithms(("ppo",), [name for name in PLAYING if name not in ("crossq", "mpc")])  # which have tests of their own
@pytest.mark.parametrize(
    "mapped", ["shard_map", *(pytest.param(name, marks=pytest.mark.slow) for name in ("shard_map unchecked", "pmap", "vmap"))]
)
def test_two_devices_have_the_gradient_of_one(algorithm: str, mapped: str) -> None:
    alone, agent = one_gradient(algorithm), one_gradient(algorithm, axis_name="d")
    expected_state, expected = run_steps(alone, alone.init(KEY()), 1)
    state = agent.init(KEY())
    if mapped.startswith("shard_map"):
        mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
        specs = partition_specs(agent, state)
        out_specs = (specs, PartitionSpec())
        checked = "unchecked" not in mapped and agent.algorithm.check_vma
        step = jax.shard_map(agent.step, mesh=mesh, in_specs=(specs,), out_specs=out_specs, check_vma=checked)
        after, metrics = jax.jit(step)(state)
    else:
        transform = jax.pmap if mapped == "pmap" else jax.vmap
        step = transform(agent.step, axis_name="d")
        after, metrics = (step if mapped == "pmap" else jax.jit(step))(split_state(agent, state, 2))
        after = join_state(agent, jax.tree.map(jnp.asarray, after))
    # Not clipped, since Adam and clipping would hide a gradient that is twice too large.
    assert gradient_norm(metrics) == pytest.approx(gradient_norm(expected), rel=1e-5)
    assert_close(after.learner.params, expected_state.learner.params)
    assert_close(after.actor, expected_state.actor)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "settings"), [("mpo", {}), ("vmpo", {"num_epochs": 1, "num_minibatches": 1})])
def test_two_devices_have_the_gradient_of_the_duals_of_one(algorithm: str, settings: dict[str, Any]) -> None:
    """Of the temperature and the first multiplier, in Adam's mean, which a gradient that is twice too large would double."""
    agent, found = small(algorithm, "CartPole-v1", **settings), []
    for each in (agent, data_parallel(agent, 2)):
        state, _ = jax.jit(each.step)(each.init(KEY()))
        mean = state.learner.opt_state[1][0].mu
        found.append([float(mean.temperature), float(mean.multipliers[0].ravel()[0])])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.slow
def test_gradient_norm_test_would_notice() -> None:
    """Without the cast, the gradient under shard_map's default checks is twice the true one."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    x = jnp.arange(1.0, 5.0)

    def naive(p: Any, x: Any) -> Any:
        return jax.lax.pmean(jax.grad(lambda p: (p * x).mean())(p), "d")

    wrong = jax.shard_map(naive, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("d")), out_specs=PartitionSpec())(1.0, x)
    assert float(wrong) == pytest.approx(2 * 2.5)


@algorithms(("ppo",), LEARN_FROM_ROWS)
def test_data_parallel_is_an_agent(algorithm: str) -> None:
    """Over two devices the environments have the same trajectories as on one. Algorithms that draw no rows learn the same."""
    normalising = [name for name in setting_names(algorithm)[0] if name.startswith("normalize_")]
    agent = small(algorithm, "CartPole-v1", **dict.fromkeys(normalising, True))
    shared = data_parallel(agent, 2)
    state = shared.init(KEY())
    assert_bit_equal(state, agent.init(KEY()))
    assert len(state.actor.done.sharding.device_set) == 2
    step, iterations = jax.jit(shared.step), 1 if agent.algorithm.learn else 4
    for _ in range(iterations):
        state, metrics = step(state)
    solo, alone = run_steps(agent, agent.init(KEY()), iterations)
    assert float(metrics["charts/valid_rows"].count) == agent.steps_per_iteration
    assert_close(state.actor, solo.actor)
    check_replicas(state)
    if not agent.algorithm.learn:
        assert_close(state, solo)
        logs = [{name: x for name, x in to_floats(m).items() if x is not None} for m in (metrics, alone)]
        assert logs[0] == pytest.approx(logs[1], rel=1e-3, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_minibatches": 16}, r"num_minibatches=16 must divide num_envs \* rollout_length=24$"),
        ({"model": RECURRENT}, r"num_minibatches=2 must divide num_envs=3 \(a recurrent model"),
    ],
)
def test_minibatches_have_to_fit_one_devices_share(settings: dict[str, Any], message: str) -> None:
    agent = small_ppo("CartPole-v1", num_envs=6, rollout_length=8, axis_name="d", **settings)
    with pytest.raises(ValueError, match=f"^each of 2 devices would have num_envs=3, but {message}"):
        data_parallel(agent, 2)
    half = small_ppo("CartPole-v1", num_envs=3, rollout_length=8, **{**settings, "num_minibatches": 1})
    shares = jax.eval_shape(lambda: jax.tree.map(lambda x: jnp.stack([x, x]), half.init(KEY())))
    with pytest.raises(ValueError, match=r"must divide the \d+ items on each device"):  # for a step that the user maps
        jax.eval_shape(jax.vmap(agent.step, axis_name="d"), shares)


# ----------------------------------------------------------------------------------------------------------------------- seeds


@pytest.mark.slow
def test_seeds_side_by_side_over_devices_and_shared_out_are_those_alone() -> None:
    """On one device, on two, and on two that share each seed's environments. Hyperparameters may differ per seed."""
    agent, keys = small_ppo("tests.helpers.probes:two_choices", num_minibatches=1), jax.random.split(KEY(), 2)
    rates = jnp.array([1e-3, 1e-2])
    ways = {
        "vmapped": vmap_seeds(agent, 2),
        "sharded": shard_seeds(agent, make_mesh({"seeds": 2})),
        "shared": data_parallel(agent, make_mesh({"seeds": 1, "data": 2})),
    }
    states = {name: way.init(keys, {"learning_rate": rates}) for name, way in ways.items()}
    for name, way in ways.items():
        step = jax.jit(way.step)
        for _ in range(3):
            states[name], _ = step(states[name])
    alone = [run_steps(agent, agent.init(key, {"learning_rate": rate}), 3)[0] for key, rate in zip(keys, rates, strict=True)]
    for name in ways:
        check_replicas(states[name])
        for i, one in enumerate(alone):
            assert_close(jax.tree.map(lambda x, i=i: x[i], jax.device_get(states[name])), one)
    spread = {shard.device for shard in states["sharded"].iteration.addressable_shards}
    assert len(spread) == 2


def test_agents_with_data_have_another_step() -> None:
    agent = small("bc", "CartPole-v1", data=random_dataset("CartPole-v1"))
    for share in (lambda: vmap_seeds(agent, 2), lambda: shard_seeds(agent)):
        with pytest.raises(ValueError, match=r"_seeds is for agents without data=…: use jaxrl.run, or jax.vmap\(agent.step"):
            share()


def test_one_key_is_split_for_the_seeds() -> None:
    agent = counting_agent()
    assert_bit_equal(vmap_seeds(agent, 3).init(KEY()), vmap_seeds(agent, 3).init(jax.random.split(KEY(), 3)))
    with pytest.raises(ValueError, match=r"key has shape \(2,\): give one key, or one for each of the 3 seeds"):
        vmap_seeds(agent, 3).init(jax.random.split(KEY(), 2))
    with pytest.raises(TypeError, match="key must be a typed key"):
        vmap_seeds(agent, 3).init(jnp.zeros(2, jnp.uint32))  # type: ignore[arg-type]


def test_meshes_that_do_not_fit_are_refused() -> None:
    agent = small_ppo("tests.helpers.probes:two_choices")
    with pytest.raises(ValueError, match=r"needs an axis named 'seeds'"):
        shard_seeds(agent, make_mesh({"data": 2}))
    with pytest.raises(ValueError, match=r"data_parallel needs 'data', and optionally 'seeds'"):
        data_parallel(agent, make_mesh({"seeds": 2}))
    with pytest.raises(ValueError, match=r"3 seeds must be a multiple of the 2 devices on the axis 'seeds'"):
        shard_seeds(agent, make_mesh({"seeds": 2})).init(jax.random.split(KEY(), 3))
    with pytest.raises(ValueError, match=r"mesh {'seeds': 99} needs 99 devices, and there are \d+"):
        make_mesh({"seeds": 99})


def test_copies_that_differ_are_told() -> None:
    mesh = make_mesh({"data": 2})
    sharding = jax.sharding.NamedSharding(mesh, PartitionSpec())
    parts = [jax.device_put(jnp.full(2, float(i)), device) for i, device in enumerate(mesh.devices.ravel())]
    same = jax.device_put(jnp.zeros(2), sharding)
    check_replicas({"a": same, "b": 3})
    with pytest.raises(RuntimeError, match=r"states\['w'\] is not the same on all devices that share it"):
        check_replicas({"w": jax.make_array_from_single_device_arrays((2,), sharding, parts)})
