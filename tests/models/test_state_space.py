"""S5: one step and many against each other and NumPy, starts of episodes, initial values, and its use by algorithms."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.models import actor_critic, greedy_policy, q_network
from jaxrl.models.config import ActorCriticConfig, CoreConfig, QNetworkConfig
from jaxrl.models.cores.state_space import STEP_RANGE, hippo, linear_recurrence, recurrence_by_rows, recurrence_by_scan
from jaxrl.rollout.inputs import example_input
from jaxrl.rollout.outputs import row_by_row
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.runtime.cli.commands.train import parse
from jaxrl.training import run_iterations
from jaxrl.types import Model
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, assert_close, run_steps, slow_unless, small, small_ppo, to_numpy
from tests.helpers.networks import DISCRETE, OBSERVATION, B, carry_like, jit, rows, shapes_of_a_step, values_for

D, P = 6, 4
KEY = partial(jax.random.key, 0)
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "core": "s5", "core_size": 8, "state_size": 4, "s5_layers": 1}


def made(make: Any = q_network, **settings: Any) -> tuple[Model, Any]:
    """Return a model of 6 features and 4 complex numbers after a plain layer, and random parameters."""
    model = make(OBSERVATION, DISCRETE, **{"hidden_sizes": (), "core": "s5", "core_size": D, "state_size": P, **settings})
    return model, values_for(jax.eval_shape(model.init, KEY(), example_input(OBSERVATION, DISCRETE)))


# ---------------------------------------------------------------------------------------------------------------- step and unroll


@pytest.mark.parametrize("length", [1, 33])
def test_an_unroll_is_repeated_steps(length: int) -> None:
    model, params = made(s5_layers=3)
    for seed, starts in enumerate((0.0, 0.2, 1.0)):
        inputs, carry = rows(length, starts=starts, seed=seed), carry_like(model.initial_carry(B), seed)
        unrolled = jit(model.unroll)(params, carry, inputs)
        assert_close(unrolled, jit(row_by_row(model))(params, carry, inputs), atol=1e-5)
        assert {x.dtype for x in jax.tree.leaves(unrolled)} == {np.dtype("float32")}


@pytest.mark.parametrize(
    "make, settings",
    [
        (actor_critic, {}),
        (actor_critic, {"shared": False}),
        (actor_critic, {"dtype": "bfloat16"}),
        (greedy_policy, {"use_previous": False, "s5_layers": 1}),
    ],
    ids=["shared", "separate", "bf16", "greedy"],
)
def test_so_it_is_in_all_networks(make: Any, settings: dict[str, Any]) -> None:
    model, params = made(make, **settings)
    inputs, carry = rows(7, starts=0.2), carry_like(model.initial_carry(B))
    both = jit(model.unroll)(params, carry, inputs), jit(row_by_row(model))(params, carry, inputs)
    assert {x.dtype for x in jax.tree.leaves(both)} == {np.dtype("float32")}
    # Products over another number of rows may round differently, by 2**-8 of a number with 8 bits.
    assert_close(*both, atol=0.1 if settings.get("dtype") == "bfloat16" else 1e-5)


def test_an_unroll_in_parts_is_one_unroll() -> None:
    model, params = made()
    inputs, carry = rows(11, starts=0.15), carry_like(model.initial_carry(B))
    last, whole = jit(model.unroll)(params, carry, inputs)
    middle, first = jit(model.unroll)(params, carry, jax.tree.map(lambda x: x[:2], inputs))
    end, second = jit(model.unroll)(params, middle, jax.tree.map(lambda x: x[2:], inputs))
    assert_close((end, jnp.concatenate([first, second])), (last, whole), atol=1e-5)


def test_the_carry_begins_as_zeros() -> None:
    carry = made(s5_layers=3)[0].initial_carry(7)
    assert carry.shape == (7, 3, P, 2) and carry.dtype == jnp.float32 and not carry.any()
    assert actor_critic(OBSERVATION, DISCRETE, core="s5").initial_carry(7).shape == (7, 2, 64, 2)


@pytest.mark.slow
def test_parameters_may_be_batched_as_those_of_seeds() -> None:
    model, _ = made()
    inputs, keys = rows(9, starts=0.2), jax.random.split(KEY(), 3)
    first = jax.tree.map(lambda x: x[0], inputs)

    def run(key: Any) -> Any:
        params = model.init(key, first)
        return params, model.unroll(params, model.initial_carry(B), inputs)

    together = jit(jax.vmap(run))(keys)
    assert_close(jax.tree.map(lambda x: x[1], together), jit(run)(keys[1]), atol=1e-5)
    q_values = np.asarray(together[1][1])
    assert np.abs(q_values[0] - q_values[1]).min() > 0


# ------------------------------------------------------------------------------------------------------------------ against NumPy


def linear(x: np.ndarray, layer: dict[str, np.ndarray]) -> np.ndarray:
    return x @ layer["kernel"] + layer["bias"]


def norm(x: np.ndarray, layer: dict[str, np.ndarray]) -> np.ndarray:
    spread = np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return (x - x.mean(-1, keepdims=True)) / spread * layer["scale"] + layer["bias"]


def layer_in_numpy(p: Any, x: np.ndarray, state: np.ndarray, is_first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Transform rows x[T, B, d] with a loop over time, in f64, from a state c[B, P]."""
    eigenvalue, step = -np.exp(np.float64(p["log_decay"])) + 1j * p["frequency"], np.exp(np.float64(p["log_step"]))
    b = p["input"]["kernel"][:, :P] + 1j * p["input"]["kernel"][:, P:]
    c = p["output"]["kernel"][:P] - 1j * p["output"]["kernel"][P:]  # twice the paper's
    out, decayed = [], np.exp(eigenvalue * step)
    for row, first in zip(x, is_first, strict=True):
        u = norm(row, p["norm"])
        state = decayed * np.where(first[:, None], 0, state) + (decayed - 1) / eigenvalue * (u @ b)
        y = (state @ c).real + p["skip"] * u
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        out.append(row + y / (1 + np.exp(-linear(y, p["gate"]))))
    return np.stack(out), state


def test_two_layers_against_numpy() -> None:
    model, params = made(use_previous=False)
    inputs, carry = rows(9, starts=0.15), carry_like(model.initial_carry(B))
    last, q_values = jit(model.unroll)(params, carry, inputs)

    p, is_first = to_numpy(params["params"]), np.asarray(inputs.is_first)
    x, states = linear(np.asarray(inputs.obs), p["core_input"]), np.asarray(carry[..., 0] + 1j * carry[..., 1])
    for i in range(2):
        x, state = layer_in_numpy(p["core_layers"][f"layer_{i}"], x, states[:, i], is_first)
        np.testing.assert_allclose(last[:, i, :, 0] + 1j * last[:, i, :, 1], state, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(q_values, linear(norm(x, p["core_layers"]["norm"]), p["q"]), rtol=1e-4, atol=1e-5)
    assert is_first[1:].any() and not is_first.all()


# ------------------------------------------------------------------------------------------------------------- starts of episodes


@pytest.mark.parametrize("start", [0, 3, 6])
@pytest.mark.parametrize("by_steps", [False, True])
def test_nothing_passes_the_start_of_an_episode(start: int, by_steps: bool) -> None:
    """Not even numbers that are not finite."""
    model, params = made()
    inputs, carry = rows(8), carry_like(model.initial_carry(B))
    inputs = inputs._replace(is_first=inputs.is_first.at[start].set(True))
    unroll = jit(row_by_row(model) if by_steps else model.unroll)
    last, outputs = unroll(params, carry, inputs)
    for other in (7.0, np.nan, np.inf):
        earlier = {"obs": inputs.obs.at[:start].set(other), "prev_reward": inputs.prev_reward.at[:start].set(other)}
        after, changed = unroll(params, jnp.full_like(carry, other), inputs._replace(**earlier))
        assert_bit_equal((after, changed[start:]), (last, outputs[start:]))
        assert start == 0 or (np.asarray(changed[:start]) != np.asarray(outputs[:start])).all()


def rows_of_scan(length: int, seed: int = 0) -> list[Any]:
    """Return a factor c64[P], inputs c64[T, 2, P] and a state c64[2, P]."""
    rng, shapes = np.random.default_rng(seed), ((P,), (length, 2, P), (2, P))
    factor, *others = (jnp.asarray(rng.normal(size=(*shape, 2)) @ [1, 1j], jnp.complex64) for shape in shapes)
    return [factor / (1 + jnp.abs(factor)), *others]


@pytest.mark.parametrize("length", [1, 2, 13])
def test_a_scan_is_a_loop(length: int) -> None:
    """Both ways to compute it, and what platforms choose."""
    starts = jnp.asarray(np.random.default_rng(1).random((length, 2, 1)) < 0.2)
    factor, new, state = rows_of_scan(length)
    expected, now = [], np.asarray(state)
    for row, start in zip(np.asarray(new), np.asarray(starts), strict=True):
        expected.append(now := np.asarray(factor) * np.where(start, 0, now) + row)
    for compute in (recurrence_by_rows, recurrence_by_scan):
        np.testing.assert_allclose(jit(compute)(factor, new, state, starts), expected, rtol=1e-4, atol=1e-5)
    assert_bit_equal(
        *(jit(f)(factor, new, state, x) for f, x in ((linear_recurrence, starts[..., 0]), (recurrence_by_rows, starts)))
    )


@pytest.mark.parametrize("compute", [recurrence_by_rows, recurrence_by_scan])
@pytest.mark.parametrize("start, other", [(3, 7.0), (3, np.nan), (0, 7.0), (0, np.nan)])
def test_nothing_passes_a_start_of_a_scan(compute: Any, start: int, other: float) -> None:
    """Neither values nor gradients. Rows that are not finite have none themselves, but a carry may be NaN."""
    factor, new, state = rows_of_scan(7)
    starts = jnp.zeros((7, 2, 1), bool).at[start, 0].set(True)
    changed = (factor, new.at[:start, 0].set(other), state.at[0].set(other))
    run = jit(compute)
    assert_bit_equal(run(*changed, starts)[start:, 0], run(factor, new, state, starts)[start:, 0])
    if start and np.isnan(other):
        return

    def later(factor: Any, new: Any, state: Any) -> Any:
        return (jnp.abs(compute(factor, new, state, starts)[start:, 0]) ** 2).sum()

    slope = jit(jax.grad(later, (0, 1, 2)))
    of_factor, of_new, of_state = found = slope(factor, new, state)
    assert_bit_equal(slope(*changed), found)
    assert np.isfinite(of_factor).all() and np.abs(of_factor).min() > 0 and not np.any(of_state)
    assert not np.any(of_new[:start]) and not np.any(of_new[:, 1]) and np.abs(of_new[start:, 0]).min() > 0


@pytest.mark.parametrize("starts", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
def test_gradients_are_those_of_repeated_steps(starts: float) -> None:
    """With respect to parameters, inputs and the carry; all finite, and each parameter has one."""
    model, params = made()
    inputs, carry = rows(9, starts=starts), carry_like(model.initial_carry(B))
    weights = jnp.float32(np.random.default_rng(1).normal(size=(9, B, 4)))

    def gradient(unroll: Any) -> Any:
        def loss(params: Any, obs: Any, carry: Any) -> Any:
            return (weights * unroll(params, carry, inputs._replace(obs=obs))[1]).sum()

        return jit(jax.grad(loss, (0, 1, 2)))(params, inputs.obs, carry)

    found = gradient(model.unroll)
    assert all(np.isfinite(x).all() and np.any(x) for x in jax.tree.leaves(found))
    assert_close(found, gradient(row_by_row(model)), atol=1e-4)


# ----------------------------------------------------------------------------------------------------------------- initial values


@pytest.mark.parametrize("size", [1, 8, 64])
def test_eigenvalues_are_those_of_hippo(size: int) -> None:
    """Of HiPPO-LegS plus a matrix of rank 1 that makes it normal, whose other eigenvalues are conjugates of these."""
    i = np.arange(2 * size)
    legs = np.tril(-np.sqrt(np.outer(2 * i + 1, 2 * i + 1)), -1) - np.diag(i + 1)
    normal = legs + np.outer(np.sqrt(i + 0.5), np.sqrt(i + 0.5))
    values, vectors = hippo(size)
    np.testing.assert_allclose(normal @ vectors, vectors * values, atol=1e-10 * np.abs(values).max())
    np.testing.assert_allclose(2 * (vectors @ vectors.conj().T).real, np.eye(2 * size), atol=1e-10)
    assert (values.imag > 0).all() and (vectors[0].real > 0).all() and np.abs(vectors[0].imag).max() < 1e-12


def test_initial_parameters() -> None:
    model = q_network(OBSERVATION, DISCRETE, core="s5", core_size=32)
    params = jit(model.init)(KEY(), example_input(OBSERVATION, DISCRETE))["params"]["core_layers"]
    assert set(params) == {"layer_0", "layer_1", "norm"}
    layer = to_numpy(params["layer_0"])
    assert set(layer) == {"norm", "log_decay", "frequency", "log_step", "input", "output", "skip", "gate"}
    assert {x.dtype for x in jax.tree.leaves(layer)} == {np.dtype("float32")}
    values, vectors = hippo(64)
    np.testing.assert_allclose(-np.exp(layer["log_decay"]) + 1j * layer["frequency"], values, rtol=1e-5)
    low, high = np.exp(layer["log_step"].min()), np.exp(layer["log_step"].max())
    assert STEP_RANGE[0] <= low < 2 * STEP_RANGE[0] and STEP_RANGE[1] / 2 < high <= STEP_RANGE[1]
    b, c = layer["input"]["kernel"], layer["output"]["kernel"]
    real = 2 * (vectors @ (b[:, :64] + 1j * b[:, 64:]).T).real  # B₀: real and Gaussian
    assert real.shape == (128, 32) and abs(real.std() * np.sqrt(32) - 1) < 0.05
    read = ((c[:64] - 1j * c[64:]).T @ vectors.conj().T).real  # C₀
    assert read.shape == (32, 128) and abs(read.std() * np.sqrt(128) - 1) < 0.05
    assert np.abs(to_numpy(params["layer_1"])["log_step"] - layer["log_step"]).min() > 0


# ----------------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("config", [CoreConfig, ActorCriticConfig, QNetworkConfig])
@pytest.mark.parametrize(
    "settings, error",
    [
        ({"core": "gru", "state_size": 8}, "state_size=8 has no effect with core='gru': it is for core='s5'"),
        ({"core": "attention", "s5_layers": 1}, "s5_layers=1 has no effect with core='attention': it is for core='s5'"),
        ({"core": "s5", "context": 8}, "context=8 has no effect with core='s5': it is for core='attention'"),
        ({"core": "s5", "gated": True}, "gated=True has no effect with core='s5'"),
        ({"core": "s5", "s5_layers": 0}, "s5_layers=0 must be an integer >= 1"),
        ({"core": "S5"}, r"core='S5' is unknown: choose one of .* Did you mean 's5'\?"),
    ],
)
def test_what_is_refused(config: Any, settings: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{error}"):
        config(**settings)


def test_the_command_line_takes_its_arguments() -> None:
    words = ["--env", "CartPole-v1", "--model", "core=s5", "state_size=16", "s5_layers=1"]
    assert parse("ppo", words)[1]["model"] == {"core": "s5", "state_size": 16, "s5_layers": 1}


# --------------------------------------------------------------------------------------------------------------------- algorithms

ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "a2c": {},
    "impala": {},
    "reinforce": {},
    "pqn": {},
    "r2d2": {},
    "sac": {"critic": {}, "batch_size": 4, "sequence_length": 4},
    "td3": {"critic": {}, "batch_size": 4, "sequence_length": 4},
    "es": {"noise": "low_rank"},
}


@pytest.mark.parametrize("algorithm", [pytest.param(name, marks=slow_unless(name in ("ppo", "sac"))) for name in ALGORITHMS])
def test_algorithms_take_it_by_its_arguments(algorithm: str) -> None:
    """Also from their spec. Nothing is compiled."""
    agent = small(algorithm, "tests.helpers.probes:memory", model=SMALL, **ALGORITHMS[algorithm])
    shapes_of_a_step(agent)
    assert jaxrl.build(agent.spec).spec == agent.spec


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "r2d2"])
def test_a_run_continues_bit_for_bit(algorithm: str, tmp_path: Path) -> None:
    agent = small(algorithm, probes.memory(), model=SMALL)
    state, _ = run_steps(agent, jit(agent.init)(KEY()), 2)
    assert np.any(state.actor.carry)
    save(tmp_path, state, 2, spec=agent.spec)
    restored, _ = restore(tmp_path, jax.eval_shape(agent.init, KEY()))
    assert_bit_equal(run_steps(agent, restored, 1), run_steps(agent, state, 1))


@pytest.mark.slow
def test_ppo_remembers_a_cue() -> None:
    """The cue is three rows before the question. A policy without memory has a mean return of 0."""
    sizes: dict[str, Any] = {"num_envs": 32, "rollout_length": 20, "num_epochs": 4, "learning_rate": 5e-3, "gamma": 0.9}
    agent = small_ppo(probes.memory(), model={**SMALL, "core_size": 16, "use_previous": False}, **sizes)
    state, _ = jax.jit(partial(run_iterations, agent))(agent.init(KEY()), 100)
    assert float(jaxrl.evaluate(agent, state, KEY(), 256).episodic_return.mean()) > 0.95
