"""V-MPO: losses of network and duals against NumPy, the better half, an iteration against a loop, devices, probes, memory, and
invalid settings."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats
from gymnasium import spaces

from jaxrl import make_vmpo
from jaxrl.algorithms import vmpo
from jaxrl.algorithms.common.policy_improvement import Duals
from jaxrl.algorithms.vmpo import Batch, VMPOConfig, VMPOHyperparams
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.metrics import to_floats
from jaxrl.models import ActorCriticOutput
from jaxrl.optimize.minibatches import minibatches, shuffled
from jaxrl.runtime.evaluation.evaluate import evaluate
from jaxrl.training import run_iterations
from jaxrl.types import Model
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_ACTOR_CRITIC, Tiny, assert_close, outputs_of, small
from tests.helpers.loss_cases import FEATURES, N, linear_model, loss_case, policy_of
from tests.helpers.oracles.policy_gradient import slope
from tests.helpers.ppo_cases import one_rollout, sgd
from tests.helpers.probe_set import PROBES, SEEN, Learnt, learn_probes, learner_of

TINY = Tiny(
    settings={
        "num_envs": 4,
        "rollout_length": 8,
        "num_epochs": 2,
        "num_minibatches": 2,
        "anneal": False,
        "model": SMALL_ACTOR_CRITIC,
    },
    value=lambda *given: outputs_of(*given).value,
    one_gradient=("CartPole-v1", {"num_epochs": 1, "num_minibatches": 1}),
)

KEY = partial(jax.random.key, 0)
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
small_vmpo = partial(small, "vmpo")
HP = VMPOHyperparams(vf_coef=0.7, improvement_kl=0.2, mean_kl=0.02, deviation_kl=0.003, discrete_kl=0.05)


# ------------------------------------------------------------------------------------------------------------- the better half


@pytest.mark.parametrize(
    ("advantage", "valid", "least"),
    [
        ([3, 1, 2, 4], [1, 1, 1, 1], 3),
        ([3, 1, 2, 4, 0], [1, 1, 1, 1, 1], 2),  # three of five
        ([3, 1, 2, 9], [1, 1, 1, 0], 2),  # two of three
        ([5, 5, 5, 1], [1, 1, 1, 1], 5),  # and so three rows that are equal
        ([7, 1], [0, 1], 1),
    ],
)
def test_the_better_half_begins_at_a_threshold(advantage: list[float], valid: list[int], least: float) -> None:
    assert float(vmpo.threshold(jnp.float32(advantage), jnp.array(valid, bool))) == least


# ---------------------------------------------------------------------------------------------------------------------- losses


def case(discrete: bool, seed: int) -> tuple[Any, Batch, Duals]:
    """Return parameters, rows in which another policy acted, and duals."""
    (params, rows), (other, _) = loss_case(discrete, seed), loss_case(discrete, seed + 50)
    old = jax.tree.map(np.asarray, policy_of(discrete, other, rows.inputs.obs))
    sizes: Any = ((),) if discrete else ((2,), (2,))
    duals = Duals(jnp.float32(0.4), tuple(jnp.full(size, 0.7 + i) for i, size in enumerate(sizes)))
    return params, Batch(rows.inputs, (), rows.action, rows.advantage, rows.target, rows.valid, old), duals


def setup_of(discrete: bool, axis_name: str | None = None) -> AlgorithmSetup[VMPOConfig]:
    kind: Any = spaces.Discrete(4) if discrete else spaces.Box(-1, 1, (2,), np.float32)
    seen = spaces.Box(-1, 1, (FEATURES,), np.float32)
    return AlgorithmSetup(seen, kind, linear_model(discrete), VMPOConfig(), axis_name=axis_name)


def by_hand(discrete: bool, params: Any, batch: Batch, duals: Any) -> tuple[dict[str, Any], float]:
    """Compute the network's loss, with its terms, and that of the duals (Song et al. 2020, eq. 3 to 6) in double precision.

    Args:
      duals: temperature and multipliers themselves.
    """
    x, w, v = (np.asarray(a, np.float64) for a in (batch.inputs.obs, params["w"], params["v"]))
    out, valid, (eta, alphas) = x @ w, np.asarray(batch.valid), duals
    advantage = np.asarray(batch.advantage, np.float64)
    rows = [i for i in np.argsort(-advantage, kind="stable") if valid[i]]
    best = rows[: (len(rows) + 1) // 2]
    psi = scipy.special.softmax(advantage[best] / eta)
    if discrete:
        log_p = scipy.special.log_softmax(out, -1)
        log_prob, entropy = log_p[np.arange(N), batch.action], -(np.exp(log_p) * log_p).sum(-1)
        log_old = scipy.special.log_softmax(np.asarray(batch.policy.logits, np.float64), -1)
        apart, bounds = [(np.exp(log_old) * (log_old - log_p)).sum(-1)[valid].mean()], (HP.discrete_kl,)
    else:
        std = np.exp(np.broadcast_to(params["log_std"], out.shape).astype(np.float64))
        frozen = scipy.stats.norm(out, std)
        log_prob, entropy = frozen.logpdf(batch.action).sum(-1), frozen.entropy().sum(-1)
        mean, old = np.asarray(batch.policy.mean, np.float64), np.exp(np.asarray(batch.policy.log_std, np.float64))
        of_mean = ((out - mean) ** 2 / (2 * old**2))[valid].mean(0)
        of_deviation = (np.log(std / old) + old**2 / (2 * std**2) - 0.5)[valid].mean(0)
        apart, bounds = [of_mean, of_deviation], (HP.mean_kl, HP.deviation_kl)
    policy_loss = -(psi * log_prob[best]).sum()
    value_loss = 0.5 * ((x @ v - batch.target)[valid] ** 2).mean()
    penalty = sum((alpha * kl).sum() for alpha, kl in zip(alphas, apart, strict=True))
    found = {
        "total": policy_loss + HP.vf_coef * value_loss + penalty,
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy[valid].mean(),
        "losses/temperature": eta,
        "losses/policy_kl": sum(kl.sum() for kl in apart),
    }
    dual = eta * HP.improvement_kl + eta * np.log(np.exp(advantage[best] / eta).mean())
    return found, dual + sum((a * (e - kl)).sum() for a, e, kl in zip(alphas, bounds, apart, strict=True))


def softplus(x: Any) -> np.ndarray:
    return np.log1p(np.exp(np.asarray(x, np.float64)))


@cache
def losses_and_gradients(discrete: bool) -> Any:
    def run(params: Any, batch: Batch, duals: Duals) -> Any:
        of_network, of_duals = vmpo.losses(setup_of(discrete), HP, batch)
        by_params = jax.value_and_grad(partial(of_network, duals), has_aux=True)(params)
        return by_params, jax.value_and_grad(partial(of_duals, params), has_aux=True)(duals)

    return jit(run)


@pytest.mark.parametrize("discrete", [True, False])
def test_losses_and_gradients_are_the_papers(discrete: bool) -> None:
    """Also those of the temperature and the multipliers, through the softplus."""
    for seed in range(2):
        params, batch, duals = case(discrete, seed)
        ((total, logged), gradient), ((dual_loss, _), slopes) = losses_and_gradients(discrete)(params, batch, duals)
        own = (softplus(duals.temperature), [softplus(x) for x in duals.multipliers])
        found = {"total": float(total), **{name: float(x) for name, x in logged.items()}}
        expected, dual = by_hand(discrete, params, batch, own)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5) and float(dual_loss) == pytest.approx(dual, rel=1e-4)
        numeric = slope(lambda p, own=own, batch=batch: by_hand(discrete, p, batch, own)[0]["total"], params)
        assert_close(gradient, jax.tree.map(np.float32, numeric), atol=1e-3)

        def of_duals(raw: Any, params: Any = params, batch: Batch = batch, duals: Duals = duals) -> float:
            multipliers = [softplus(raw[f"multiplier {i}"]) for i in range(len(duals.multipliers))]
            return by_hand(discrete, params, batch, (softplus(raw["temperature"]), multipliers))[1]

        raw = {"temperature": np.asarray(duals.temperature)}
        raw |= {f"multiplier {i}": np.asarray(x) for i, x in enumerate(duals.multipliers)}
        numeric = slope(of_duals, raw)
        np.testing.assert_allclose(slopes.temperature, numeric["temperature"], rtol=1e-3, atol=1e-4)
        for i, x in enumerate(slopes.multipliers):
            np.testing.assert_allclose(x, numeric[f"multiplier {i}"], rtol=1e-3, atol=1e-5)


def test_invalid_rows_have_no_influence() -> None:
    """Their advantages are not in the better half either, however large."""
    params, batch, duals = case(True, 0)
    garbage = lambda x: np.where(batch.valid, x, x.dtype.type(9))  # noqa: E731
    other = batch._replace(advantage=garbage(batch.advantage), target=garbage(batch.target), action=garbage(batch.action) % 4)
    given = losses_and_gradients(True)
    assert_close(given(params, other, duals), given(params, batch, duals), atol=1e-6)
    huge = batch._replace(advantage=np.where(batch.valid, batch.advantage, np.float32(1e5)))  # beyond what exp can hold
    assert_close(given(params, huge, duals), given(params, batch, duals), atol=1e-6)
    nothing = given(params, batch._replace(valid=np.zeros(N, bool)), duals)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(nothing))
    assert not any(np.any(x) for x in jax.tree.leaves(nothing[0][1]))


@pytest.mark.parametrize("discrete", [True, False])
def test_two_devices_have_the_losses_of_one(discrete: bool) -> None:
    """The better half is that of the rows of both; gradients, those of the duals too, are means over devices."""
    params, batch, duals = case(discrete, 0)
    setup = setup_of(discrete, "d")

    def gradients(batch: Batch) -> Any:
        of_network, of_duals = vmpo.losses(setup, HP, batch)
        each = (
            jax.grad(partial(of_network, duals), has_aux=True)(params)[0],
            jax.grad(of_duals, 1, has_aux=True)(params, duals)[0],
        )
        return jax.lax.pmean(each, "d")

    halves = jax.tree.map(lambda x: jnp.asarray(x).reshape(2, N // 2, *x.shape[1:]), batch)
    shared = jax.tree.map(lambda x: x[0], jit(jax.vmap(gradients, axis_name="d"))(halves))
    (_, gradient), (_, slopes) = losses_and_gradients(discrete)(params, batch, duals)
    assert_close(shared, (gradient, slopes), atol=1e-5)


# ------------------------------------------------------------------------------------------------------------- update schedule


@pytest.mark.slow
def test_updates_are_those_of_a_loop() -> None:
    """Two epochs of two minibatches; the policy that acted stays the same during the iteration."""
    agent = small_vmpo(probes.memory(), optimizer=sgd, learning_rate=0.05)
    setup, state = agent.algorithm.update.args[0], jit(agent.init)(KEY())  # type: ignore[attr-defined]
    rollout, start = one_rollout(agent)(state), state.learner
    after, _ = jit(agent.algorithm.update)(start, rollout)
    hp, params, duals = start.hyperparams, start.params, start.duals
    assert float(jax.nn.softplus(duals.temperature)) == pytest.approx(1.0, rel=1e-4)
    assert float(jax.nn.softplus(duals.multipliers[0])) == pytest.approx(5.0, rel=1e-4)
    adam = optax.adam(hp.dual_learning_rate)
    dual_state = adam.init(duals)
    batch, _ = jit(partial(vmpo.targets, setup))(start, rollout, hp)
    order = minibatches(setup.update_key(start), len(batch.valid), 4, 2, 2)
    for epoch in order:
        parts = shuffled(batch, epoch, True)
        for i in range(2):
            of_network, of_duals = vmpo.losses(setup, hp, jax.tree.map(lambda x, i=i: x[i], parts))
            slopes = jax.grad(of_duals, 1, has_aux=True)(params, duals)[0]
            gradient = jax.grad(of_network, 1, has_aux=True)(duals, params)[0]
            params = jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient)
            step, dual_state = adam.update(slopes, dual_state)
            duals = optax.apply_updates(duals, step)
    assert_close(after.params, params, atol=1e-4)
    assert_close(after.duals, duals, atol=1e-4)
    assert (int(after.version), int(start.version)) == (1, 0)


def test_extra_losses_are_added_and_logged() -> None:
    def weights(params: Any, batch: Batch) -> Any:
        return 0.5 * sum((x**2).sum() for x in jax.tree.leaves(params)), {"size": jnp.float32(batch.valid.size)}

    sizes = {"num_epochs": 1, "num_minibatches": 1, "optimizer": sgd, "learning_rate": 0.1}
    plain, extra = small_vmpo(probes.memory(), **sizes), small_vmpo(probes.memory(), extra_losses=weights, **sizes)
    state = jit(plain.init)(KEY())
    rollout = one_rollout(plain)(state)
    alone, (both, metrics) = (jit(x.algorithm.update)(state.learner, rollout) for x in (plain, extra))
    assert_close(both.params, jax.tree.map(lambda a, p: a - 0.1 * p, alone[0].params, state.learner.params), atol=1e-5)
    assert to_floats(metrics)["losses/size"] == 32


# ---------------------------------------------------------------------------------------------------------------------- probes


@cache
def learnt() -> dict[str, Learnt]:
    return learn_probes("vmpo", 80, num_epochs=4, discrete_kl=0.1)


@pytest.mark.parametrize("probe", PROBES)
def test_probe(probe: str) -> None:
    PROBES[probe][1](learnt()[probe])


@pytest.mark.parametrize("squash", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_probe_target_action(squash: bool) -> None:
    """A Box, with a Gaussian that is clipped at the bounds, or squashed within them."""
    settings = {"model": partial(SMALL_ACTOR_CRITIC, squash=squash), "mean_kl": 0.1, "deviation_kl": 0.01}
    action = jit(learner_of("vmpo", probes.target_action(), 120, **settings))(KEY(), ()).action
    assert float(action[1, 0]) == pytest.approx(3.0, abs=0.3)


@pytest.mark.slow
def test_probe_two_choices() -> None:
    """A MultiDiscrete space with a mask, which is always respected. At an end no action is allowed."""
    seen = {"sign": SEEN[[0, 2]], "action_mask": np.array([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]], np.int8)}
    run = learner_of("vmpo", probes.two_choices(), 120, seen, discrete_kl=0.1)
    action, probability, value, least = jit(run)(KEY(), ())
    assert action.tolist() == [[1, 1], [1, 2]] and action.dtype == jnp.int32
    assert (probability > 0.8).all() and (value > 0.8).all() and float(least) >= 0


@pytest.mark.slow
def test_a_gru_remembers_a_cue() -> None:
    """A policy without memory has a mean return of 0."""
    sizes = {"num_envs": 32, "rollout_length": 20, "num_epochs": 4, "learning_rate": 1e-2, "gamma": 0.9, "discrete_kl": 0.1}
    agent = small_vmpo(probes.memory(), model=RECURRENT, **sizes)

    def run(key: Any) -> Any:
        state, _ = run_iterations(agent, agent.init(key), 200)
        return evaluate(agent, state, key, 256).episodic_return.mean()

    assert float(jit(run)(KEY())) > 0.95


@pytest.mark.slow
def test_a_recurrent_model_learns_from_the_carry_that_acted() -> None:
    """So before the first gradient step the divergence is 0, although rollouts begin in the middle of episodes."""
    agent = small_vmpo(probes.memory(), model=RECURRENT, num_epochs=1, num_minibatches=1, rollout_length=6)
    state, step = jit(agent.init)(KEY()), jit(agent.step)
    for _ in range(3):
        state, metrics = step(state)
        assert to_floats(metrics)["losses/policy_kl"] == pytest.approx(0, abs=1e-6)
        assert to_floats(metrics)["losses/grad_norm"] > 0
    assert np.any(state.actor.carry)


# ----------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_minibatches": 3}, r"num_minibatches=3 must divide num_envs \* rollout_length=32"),
        (
            {"num_minibatches": 8, "model": RECURRENT},
            "num_minibatches=8 must divide num_envs=4 .a recurrent model learns from whole",
        ),
        ({"improvement_kl": 0.0}, "improvement_kl=0 is not allowed: it must be a finite number > 0"),
        ({"mean_kl": 0.1}, r"mean_kl=0\.1 has no effect on Discrete\(2\)"),
        ({"schedules": {"mean_kl": lambda i: 1.0}}, r"schedules\['mean_kl'\] has no effect on Discrete\(2\)"),
        ({"schedules": {"temperature": lambda i: 1.0}}, r"schedules\['temperature'\] has no effect on η"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_vmpo(probes.truncation(), **settings)


def test_settings_of_the_other_kind_of_actions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"discrete_kl=0\.1 has no effect on Box"):
        small_vmpo(probes.target_action(), discrete_kl=0.1)


def test_policies_of_another_kind_are_refused() -> None:
    def model(observation_space: Any, action_space: Any) -> Model:
        made = SMALL_ACTOR_CRITIC(observation_space, action_space)

        def with_own(function: Any) -> Any:
            def called(*args: Any, **kwargs: Any) -> Any:
                carry, output = function(*args, **kwargs)
                return carry, ActorCriticOutput((output.policy,), output.value)  # type: ignore[arg-type]

            return called

        return made._replace(apply=with_own(made.apply), unroll=with_own(made.unroll))

    with pytest.raises(TypeError, match="V-MPO needs a Categorical, MultiCategorical, Normal or TanhNormal policy, not tuple"):
        make_vmpo(probes.truncation(), model=model)
