"""The attention core: one step and many against each other and NumPy, which rows have an influence, and its use by algorithms."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxrl
from jaxrl.models import CORES, actor_critic, greedy_policy, q_network
from jaxrl.models.config import ActorCriticConfig, CoreConfig, GreedyPolicyConfig, QNetworkConfig
from jaxrl.models.cores.attention import Gate, attention, distance_bias
from jaxrl.rollout.inputs import example_input
from jaxrl.rollout.outputs import row_by_row
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.runtime.cli.commands.train import parse
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.training import run_iterations
from jaxrl.types import Agent, Model
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, assert_close, run_steps, slow_unless, small, small_ppo, to_numpy
from tests.helpers.networks import DISCRETE, OBSERVATION, B, carry_like, jit, rows, shapes_of_a_step

D = 6
KEY = partial(jax.random.key, 0)
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "core": "attention", "core_size": 8, "context": 4}


def made(make: Any = q_network, **settings: Any) -> tuple[Model, Any]:
    """Return a model of 6 units after a plain layer, and parameters large enough for all rows to matter."""
    settings = {"hidden_sizes": (), "core": "attention", "core_size": D, **settings}
    model = make(OBSERVATION, DISCRETE, **settings)
    shapes, rng = jax.eval_shape(model.init, KEY(), example_input(OBSERVATION, DISCRETE)), np.random.default_rng(0)
    return model, jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape, scale=0.7), x.dtype), shapes)


# ---------------------------------------------------------------------------------------------------------------- step and unroll


@pytest.mark.parametrize(
    ("context", "length"),
    [
        pytest.param(context, length, marks=slow_unless((context, length) in ((4, 33), (20, 5))))
        for context in (1, 4, 20)
        for length in (1, 5, 33)
    ],
)
def test_an_unroll_is_repeated_steps(context: int, length: int) -> None:
    model, params = made(context=context, attention_layers=3)
    for seed, starts in enumerate((0.0, 0.2, 1.0)):
        inputs, carry = rows(length, starts=starts, seed=seed), carry_like(model.initial_carry(B), seed)
        unrolled = jit(model.unroll)(params, carry, inputs)
        assert_close(unrolled, jit(row_by_row(model))(params, carry, inputs), atol=1e-5)
        assert unrolled[1].dtype == jnp.float32


@pytest.mark.parametrize(
    "make, settings",
    [
        (actor_critic, {}),
        (actor_critic, {"shared": False, "attention_heads": 3}),
        pytest.param(actor_critic, {"dtype": "bfloat16"}, marks=pytest.mark.slow),
        (greedy_policy, {"use_previous": False, "attention_layers": 1}),
        (q_network, {"gated": True}),
        pytest.param(q_network, {"gated": True, "dtype": "bfloat16"}, marks=pytest.mark.slow),
    ],
    ids=["shared", "separate", "bf16", "greedy", "gated", "gated, bf16"],
)
def test_so_it_is_in_all_networks(make: Any, settings: dict[str, Any]) -> None:
    model, params = made(make, context=3, **settings)
    inputs, carry = rows(7, starts=0.2), carry_like(model.initial_carry(B))
    both = jit(model.unroll)(params, carry, inputs), jit(row_by_row(model))(params, carry, inputs)
    assert {x.dtype for x in jax.tree.leaves(both)} == {np.dtype("float32"), np.dtype(bool)}
    # Products over another number of rows may round differently, by 2**-8 of a number with 8 bits.
    assert_close(*both, atol=0.1 if settings.get("dtype") == "bfloat16" else 1e-5)


def test_an_unroll_in_parts_is_one_unroll() -> None:
    model, params = made(context=4)
    inputs, carry = rows(11, starts=0.15), carry_like(model.initial_carry(B))
    last, whole = jit(model.unroll)(params, carry, inputs)
    middle, first = jit(model.unroll)(params, carry, jax.tree.map(lambda x: x[:2], inputs))
    end, second = jit(model.unroll)(params, middle, jax.tree.map(lambda x: x[2:], inputs))
    assert_close((end, jnp.concatenate([first, second])), (last, whole), atol=1e-5)


def test_the_carry_begins_empty() -> None:
    model, _ = made(context=5, attention_layers=3)
    keys, values, valid = model.initial_carry(7)
    assert keys.shape == values.shape == (7, 3, 4, D) and keys.dtype == values.dtype == jnp.float32
    assert valid.shape == (7, 4) and valid.dtype == bool
    assert not any(leaf.any() for leaf in (keys, values, valid))


def test_parameters_may_be_batched_as_those_of_seeds() -> None:
    model, _ = made(context=4)
    inputs, keys = rows(9, starts=0.2), jax.random.split(KEY(), 3)
    first = jax.tree.map(lambda x: x[0], inputs)

    def run(key: Any) -> Any:
        params = model.init(key, first)
        return params, model.unroll(params, model.initial_carry(B), inputs)

    together = jit(jax.vmap(run))(keys)
    alone = jit(run)(keys[1])
    assert_close(jax.tree.map(lambda x: x[1], together), alone, atol=1e-5)
    q_values = np.asarray(together[1][1])
    assert np.abs(q_values[0] - q_values[1]).min() > 0


# ------------------------------------------------------------------------------------------------------------------ against NumPy


def linear(x: np.ndarray, layer: dict[str, np.ndarray]) -> np.ndarray:
    return x @ layer["kernel"] + layer["bias"]


def norm(x: np.ndarray, layer: dict[str, np.ndarray]) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-6) * layer["scale"] + layer["bias"]


def gate(p: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Join the input of a layer with its output: the sum, or GTrXL's gate if there is one."""
    if p is None:
        return x + y
    sigmoid, y = lambda x: 1 / (1 + np.exp(-x)), np.maximum(y, 0)
    (w_r, w_z, w_h), (u_r, u_z) = np.split(p["output"]["kernel"], 3, 1), np.split(p["input"]["kernel"], 2, 1)
    r, z = sigmoid(y @ w_r + x @ u_r), sigmoid(y @ w_z + x @ u_z - p["bias"])
    return (1 - z) * x + z * np.tanh(y @ w_h + (r * x) @ p["reset_input"]["kernel"])


def layer_in_numpy(
    p: Any, heads: int, context: int, x: np.ndarray, is_first: np.ndarray, cache: list[tuple[int, np.ndarray, np.ndarray]]
) -> np.ndarray:
    """Transform the rows of one environment, x[T, d], after cached rows (time, key, value) with times below 0."""
    seen, out, parts = list(cache), [], slice(None)
    for t, row in enumerate(x):
        seen = [] if is_first[t] else seen
        query, key, value = np.split(linear(norm(row, p["attention_norm"]), p["query_key_value"]), 3)
        seen.append((t, key, value))
        mixed = []
        for head in range(heads):
            parts = slice(head * D // heads, (head + 1) * D // heads)
            window = [(t - time, k[parts], v[parts]) for time, k, v in seen if t - time < context]
            logits = [query[parts] @ k / math.sqrt(D / heads) + p["distance_bias"][head, ago] for ago, k, _ in window]
            weights = np.exp(np.array(logits) - max(logits))
            mixed.append(sum(w * v for w, (_, _, v) in zip(weights / weights.sum(), window, strict=True)))
        row = gate(p.get("attention_gate"), row, linear(np.concatenate(mixed), p["attention_output"]))
        hidden = np.maximum(linear(norm(row, p["hidden_norm"]), p["hidden"]), 0)
        out.append(gate(p.get("hidden_gate"), row, linear(hidden, p["hidden_output"])))
    return np.stack(out)


@pytest.mark.parametrize("heads, gated", [(1, False), (3, False), (2, True)])
def test_one_layer_against_numpy(heads: int, gated: bool) -> None:
    model, params = made(context=4, attention_layers=1, attention_heads=heads, gated=gated, use_previous=False)
    inputs, carry = rows(9, starts=0.15), carry_like(model.initial_carry(B))
    q_values = jit(model.unroll)(params, carry, inputs)[1]

    p, (keys, values, valid), is_first = to_numpy(params["params"]), to_numpy(carry), np.asarray(inputs.is_first)
    assert is_first.any() and not is_first.all() and p["core_layers"]["layer_0"]["distance_bias"].shape == (heads, 4)
    for b in range(B):
        cache = [(i - 3, keys[b, 0, i], values[b, 0, i]) for i in range(3) if valid[b, i]]
        x = linear(np.asarray(inputs.obs)[:, b], p["core_input"])
        x = layer_in_numpy(p["core_layers"]["layer_0"], heads, 4, x, is_first[:, b], cache)
        x = np.stack([norm(row, p["core_layers"]["norm"]) for row in x])
        np.testing.assert_allclose(q_values[:, b], linear(x, p["q"]), rtol=1e-4, atol=1e-4)


def test_a_gated_layer_is_near_the_identity_at_the_start() -> None:
    """About σ(−2) = 0.12 of its output is new, where a sum is all new."""
    x, y = np.random.default_rng(0).normal(size=(2, 1000, 64)).astype(np.float32)
    params = jit(Gate("float32").init)(KEY(), x, y)
    params = nn.meta.unbox(params)
    assert {name: part.shape for name, part in params["params"].items() if name == "bias"} == {"bias": (64,)}
    new = np.asarray(jit(Gate("float32").apply)(params, x, y)) - x
    assert 0.1 < np.sqrt((new**2).mean()) < 0.35 and (np.asarray(params["params"]["bias"]) == 2).all()


@pytest.mark.parametrize("held, context", [(3, 4), (1, 1), (5, 3)])
def test_a_bias_depends_on_the_distance_alone(held: int, context: int) -> None:
    bias = jnp.arange(2.0 * context).reshape(2, context) + 1
    found = np.asarray(distance_bias(bias, 6, held + 6))
    assert found.shape == (2, 6, held + 6)
    for t in range(6):
        for ago in range(context):
            np.testing.assert_array_equal(found[:, t, held + t - ago], bias[:, ago])


def test_what_is_masked_has_no_influence_even_if_it_is_nan() -> None:
    rng = np.random.default_rng(0)
    query, keys, values = (jnp.float32(rng.normal(size=(1, n, D))) for n in (2, 4, 4))
    mask = jnp.array([[[False, True, False, True], [True, True, False, True]]])
    bias = jnp.zeros((2, 2, 4))
    plain = attention(query, keys, values, mask, bias)
    broken = attention(query, keys.at[:, 2].set(jnp.nan), values.at[:, 2].set(jnp.nan), mask, bias)
    assert_bit_equal(broken, plain)
    dead = attention(query, keys.at[:, 0].set(jnp.nan), values.at[:, 0].set(jnp.nan), mask, bias)
    assert_bit_equal(dead[:, 0], plain[:, 0])
    assert np.isnan(dead[:, 1]).all()  # a fault within the episode is not hidden


# ------------------------------------------------------------------------------------------------------------------- what it sees


@pytest.mark.parametrize("layers, context", [(1, 4), (2, 4), (2, 1), (3, 2)])
def test_a_row_sees_those_of_the_window_of_each_layer(layers: int, context: int) -> None:
    """Exactly those at most layers · (context − 1) rows before it, none after it."""
    length, reach = 12, layers * (context - 1)
    model, params = made(context=context, attention_layers=layers, use_previous=False)
    inputs = rows(length, size=1)

    def influence(changed: Any) -> Any:
        obs = jnp.where((jnp.arange(length) == changed)[:, None, None], inputs.obs + 1, inputs.obs)
        return model.unroll(params, model.initial_carry(1), inputs._replace(obs=obs))[1]

    *outputs, plain = np.asarray(jit(jax.vmap(influence))(jnp.arange(length + 1)))[:, :, 0]  # the last changes nothing
    ago = np.arange(length) - np.arange(length)[:, None]  # [changed, t]
    np.testing.assert_array_equal((np.stack(outputs) != plain).any(-1), (ago >= 0) & (ago <= reach))


def test_the_carry_is_seen_as_far() -> None:
    model, params = made(context=4, attention_layers=1)
    inputs, (keys, values, valid) = rows(5, size=1), carry_like(model.initial_carry(1))
    valid = jnp.ones_like(valid)
    unroll = jit(model.unroll)
    plain = unroll(params, (keys, values, valid), inputs)[1]
    for i in range(3):
        for changed in ((keys.at[:, :, i].add(1.0), values, valid), (keys, values, valid.at[:, i].set(False))):
            seen = np.asarray(unroll(params, changed, inputs)[1] != plain).any((1, 2))
            assert seen.tolist() == [t <= i for t in range(5)]


@pytest.mark.parametrize("start", [0, 3, 6])
@pytest.mark.parametrize("by_steps", [False, True])
def test_nothing_passes_the_start_of_an_episode(start: int, by_steps: bool) -> None:
    """Not even numbers that are not finite."""
    model, params = made(context=6)
    inputs, carry = rows(8), carry_like(model.initial_carry(B))
    inputs = inputs._replace(is_first=inputs.is_first.at[start].set(True))
    unroll = jit(row_by_row(model) if by_steps else model.unroll)
    last, outputs = unroll(params, carry, inputs)
    for other in (7.0, np.nan, np.inf):
        earlier = {
            "obs": inputs.obs.at[:start].set(other),
            "prev_reward": inputs.prev_reward.at[:start].set(other),
            "prev_action": inputs.prev_action.at[:start].add(1) % 4,
        }
        before = jax.tree.map(lambda x, other=other: jnp.full_like(x, other), carry)
        after, changed = unroll(params, before, inputs._replace(**earlier))
        assert_bit_equal((after, changed[start:]), (last, outputs[start:]))
        assert start == 0 or (np.asarray(changed[:start]) != np.asarray(outputs[:start])).all()


def test_the_time_since_the_start_has_no_influence() -> None:
    """If a window's rows are the same, so are the outputs, early and late in an episode."""
    model, params = made(context=3, attention_layers=1)
    inputs = jax.tree.map(lambda x: jnp.concatenate([x, x, x]), rows(4, starts=0.0))
    outputs = jit(model.unroll)(params, model.initial_carry(B), inputs)[1]
    np.testing.assert_allclose(outputs[2:4], outputs[6:8], atol=1e-5)
    np.testing.assert_allclose(outputs[4:8], outputs[8:], atol=1e-5)
    assert np.abs(outputs[:2] - outputs[4:6]).max() > 1e-3  # a window that is not full


def test_a_context_of_one_row_has_no_memory() -> None:
    model, params = made(context=1)
    inputs = rows(5)
    carry = model.initial_carry(B)
    outputs = jit(model.unroll)(params, carry_like(carry), inputs)[1]
    alone = jit(jax.vmap(partial(model.apply, params, carry)))(inputs)[1]
    np.testing.assert_allclose(outputs, alone, atol=1e-6)
    assert all(leaf.size for leaf in jax.tree.leaves(carry))  # checkpoints cannot store empty arrays


# ---------------------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.slow
def test_gradients_are_those_of_repeated_steps() -> None:
    """With respect to parameters, inputs and the carry; all finite, and each parameter has one."""
    model, params = made(context=4)
    inputs, carry = rows(9, starts=0.15), carry_like(model.initial_carry(B))
    weights = jnp.float32(np.random.default_rng(1).normal(size=(9, B, 4)))

    def gradient(unroll: Any) -> Any:
        def loss(params: Any, obs: Any, cache: Any) -> Any:
            return (weights * unroll(params, (*cache, carry[2]), inputs._replace(obs=obs))[1]).sum()

        return jit(jax.grad(loss, (0, 1, 2)))(params, inputs.obs, carry[:2])

    found = gradient(model.unroll)
    assert all(np.isfinite(x).all() and np.any(x) for x in jax.tree.leaves(found))
    assert_close(found, gradient(row_by_row(model)), atol=1e-4)


def test_rows_of_another_episode_have_no_gradient() -> None:
    model, params = made(context=6)
    inputs, carry = rows(8), carry_like(model.initial_carry(B))
    inputs = inputs._replace(is_first=inputs.is_first.at[3, 1].set(True))

    def later(obs: Any, keys: Any) -> Any:
        return model.unroll(params, (keys, *carry[1:]), inputs._replace(obs=obs))[1][3:, 1].sum()

    by_obs, by_keys = jit(jax.grad(later, (0, 1)))(inputs.obs, carry[0])
    assert not np.any(by_obs[:3]) and not np.any(by_keys) and not np.any(by_obs[:, [0, 2]])
    assert np.any(by_obs[3:, 1], axis=-1).all()


# ----------------------------------------------------------------------------------------------------------------------- settings


def test_defaults_and_names_of_parameters() -> None:
    model = actor_critic(OBSERVATION, DISCRETE, core="attention")
    keys, _, valid = model.initial_carry(2)
    assert keys.shape == (2, 2, 19, 64) and valid.shape == (2, 19)
    shapes = jax.eval_shape(model.init, KEY(), example_input(OBSERVATION, DISCRETE))["params"]
    assert set(shapes) == {"encoder", "core_input", "core_layers", "policy_head", "value_head"}
    layers = jax.tree.map(lambda x: x.shape, shapes["core_layers"])
    assert set(layers) == {"layer_0", "layer_1", "norm"}
    assert layers["layer_0"]["distance_bias"] == (2, 20) and layers["layer_0"]["query_key_value"]["kernel"] == (64, 192)
    assert layers["layer_0"]["hidden"]["kernel"] == (64, 256)


def test_initial_kernels_are_scaled_and_the_bias_is_zero() -> None:
    model = q_network(OBSERVATION, DISCRETE, core="attention")
    params = jit(model.init)(KEY(), example_input(OBSERVATION, DISCRETE))["params"]["core_layers"]
    for name in ("layer_0", "layer_1"):
        layer = params[name]
        assert not np.any(layer["distance_bias"]) and not np.any(layer["query_key_value"]["bias"])
        kernel = np.asarray(layer["query_key_value"]["kernel"])
        np.testing.assert_allclose(kernel @ kernel.T, 3 * np.eye(64), atol=1e-4)
        output = np.asarray(layer["attention_output"]["kernel"])
        np.testing.assert_allclose(output @ output.T, np.eye(64) / 4, atol=1e-4)


@pytest.mark.parametrize("config", [CoreConfig, ActorCriticConfig, GreedyPolicyConfig, QNetworkConfig])
@pytest.mark.parametrize(
    "settings, error",
    [
        ({"core": "gru", "context": 8}, "context=8 has no effect with core='gru': it is for core='attention'"),
        ({"core": "lstm", "attention_heads": 1}, "attention_heads=1 has no effect with core='lstm'"),
        ({"core": "gru", "gated": True}, "gated=True has no effect with core='gru': it is for core='attention'"),
        ({"attention_layers": 2}, "attention_layers=2 has no effect with core=None: it is for core='attention'"),
        ({"core": "attention", "context": 0}, "context=0 must be an integer >= 1"),
        ({"core": "attention", "context": 2.5}, r"context=2\.5 must be an integer >= 1"),
        ({"core": "attention", "attention_layers": 0}, "attention_layers=0 must be an integer >= 1"),
        ({"core": "attention", "attention_heads": True}, "attention_heads=True must be an integer >= 1"),
        (
            {"core": "attention", "attention_heads": 3},
            "attention_heads=3 does not divide core_size=64, .* multiple of 3, or attention_heads=1",
        ),
        ({"core": "attention", "core_size": 5}, "attention_heads=2 does not divide core_size=5"),
        ({"core": "atention"}, r"core='atention' is unknown: choose one of .* Did you mean 'attention'\?"),
    ],
)
def test_what_is_refused(config: Any, settings: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{error}"):
        config(**settings)


def test_dueling_streams_exclude_it() -> None:
    with pytest.raises(ValueError, match="core='attention' and dueling=True are mutually exclusive"):
        q_network(OBSERVATION, DISCRETE, core="attention", dueling=True)
    assert q_network(OBSERVATION, DISCRETE, dueling=True).initial_carry(1) == ()


def test_cores_are_listed() -> None:
    assert [name for name, core in CORES.items() if core.parallel] == ["attention", "s5"]


def test_the_command_line_takes_its_arguments() -> None:
    words = ["--env", "CartPole-v1", "--model", "core=attention", "context=16", "attention_layers=1", "gated=True"]
    assert parse("ppo", words)[1]["model"] == {"core": "attention", "context": 16, "attention_layers": 1, "gated": True}


# --------------------------------------------------------------------------------------------------------------------- algorithms

ALGORITHMS = {
    "ppo": {},
    "a2c": {},
    "impala": {},
    "reinforce": {},
    "r2d2": {},
    "es": {"noise": "low_rank"},
}


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=slow_unless(name in ("ppo", "r2d2", "es"))) for name in ALGORITHMS]
)
def test_algorithms_take_it_by_its_arguments(algorithm: str) -> None:
    """Also from their spec. Nothing is compiled."""
    agent = small(algorithm, "tests.helpers.probes:memory", model=SMALL, **ALGORITHMS[algorithm])
    shapes_of_a_step(agent)
    assert jaxrl.build(agent.spec).spec == agent.spec


def test_it_is_refused_where_an_algorithm_learns_from_rows() -> None:
    with pytest.raises(TypeError, match="DQN learns from single rows, so its model must be memoryless"):
        jaxrl.make_dqn("CartPole-v1", model={"core": "attention"})


@pytest.mark.slow
def test_ppo_learns_from_what_was_acted_and_continues_bit_for_bit(tmp_path: Path) -> None:
    """Before a gradient step, the probabilities of actions are those recorded when acting, although rollouts begin in the middle
    of episodes."""
    agent = small_ppo(probes.memory(), model=SMALL, num_epochs=1, num_minibatches=1, rollout_length=6)
    state, metrics = run_steps(agent, jit(agent.init)(KEY()), 2)
    assert np.any(state.actor.carry[2]) and not np.asarray(state.actor.carry[2]).all()
    assert abs(float(metrics["losses/approx_kl"])) < 1e-6 and float(metrics["losses/entropy"]) > 0
    save(tmp_path, state, 2, spec=agent.spec)
    restored, _ = restore(tmp_path, jax.eval_shape(agent.init, KEY()))
    assert_bit_equal(run_steps(agent, restored, 1), run_steps(agent, state, 1))


@pytest.mark.slow
def test_r2d2_stores_its_carries_and_continues_bit_for_bit(tmp_path: Path) -> None:
    agent = small("r2d2", probes.memory(), model={**SMALL, "context": 1 + 3})
    state, _ = run_steps(agent, jit(agent.init)(KEY()), 2)
    stored = [x for x in jax.tree.leaves(state.learner.replay) if x.shape[-3:] == (2, 3, 8)]
    assert len(stored) == 2 and all(np.any(x) for x in stored)
    save(tmp_path, state, 2, spec=agent.spec)
    restored, _ = restore(tmp_path, jax.eval_shape(agent.init, KEY()))
    after, metrics = run_steps(agent, restored, 1)
    assert_bit_equal((after, metrics), run_steps(agent, state, 1))
    assert np.isfinite(float(metrics["losses/td_loss"]))


@pytest.mark.slow
def test_a_context_of_one_row_is_saved(tmp_path: Path) -> None:
    agent = small_ppo(probes.memory(), model={**SMALL, "context": 1})
    state, _ = run_steps(agent, jit(agent.init)(KEY()), 1)
    save(tmp_path, state, 1, spec=agent.spec)
    restored, _ = restore(tmp_path, jax.eval_shape(agent.init, KEY()))
    assert_bit_equal(restored, state)


@pytest.mark.slow
def test_a_loaded_policy_remembers_and_is_exported(tmp_path: Path) -> None:
    """For any number of environments, from a memory of zeros."""
    agent = small_ppo("tests.helpers.probes:memory", model=SMALL)
    jaxrl.run(agent, 64, seeds=1, out=tmp_path / "run", quiet=True, eval_every=0)
    policy: LoadedPolicy = jaxrl.load_policy(tmp_path / "run", which="last", trust="tests")
    policy.export(tmp_path / "policy.jax")
    function = export.deserialize(bytearray((tmp_path / "policy.jax").read_bytes()))
    (like, *_), _ = jax.tree.unflatten(function.in_tree, function.in_avals)
    for size in (1, 5):
        policy.reset()
        memory: Any = tuple(np.zeros((size, *x.shape[1:]), x.dtype) for x in like)
        inputs = rows(9, size=size)
        for t in range(9):
            if t == 6:
                policy.reset()
            obs, reward = np.asarray(inputs.obs)[t, :, :2], np.asarray(inputs.prev_reward)[t]
            memory, action = function.call(memory, obs, reward, np.full(size, t in (0, 6)))
            np.testing.assert_array_equal(action, policy(obs, prev_reward=reward))
        assert policy._memory is not None
        assert_close(list(memory[:-1]), jax.tree.leaves(policy._memory.carry), atol=1e-5)


def trained(agent: Agent, iterations: int) -> float:
    state, _ = jax.jit(partial(run_iterations, agent))(agent.init(KEY()), iterations)
    return float(jaxrl.evaluate(agent, state, KEY(), 256).episodic_return.mean())


@pytest.mark.slow
@pytest.mark.parametrize("context, layers, remembers", [(4, 1, True), (16, 2, True), (3, 1, False)])
def test_ppo_remembers_a_cue_that_is_in_reach(context: int, layers: int, remembers: bool) -> None:
    """The cue is three rows before the question. A policy without memory has a mean return of 0."""
    settings: dict[str, Any] = {**SMALL, "core_size": 16, "context": context, "attention_layers": layers, "use_previous": False}
    sizes: dict[str, Any] = {"num_envs": 32, "rollout_length": 20, "num_epochs": 4, "learning_rate": 5e-3, "gamma": 0.9}
    result = trained(small_ppo(probes.memory(), model=settings, **sizes), 100)
    assert result > 0.95 if remembers else abs(result) < 0.25


@pytest.mark.slow
def test_es_remembers_a_cue() -> None:
    sizes: dict[str, Any] = {"members": 64, "episodes": 16, "horizon": 8, "sigma": 0.3, "learning_rate": 0.1}
    agent = small("es", probes.memory(), noise="low_rank", model=SMALL, **sizes)
    assert trained(agent, 60) > 0.95
