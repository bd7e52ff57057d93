"""Whole iterations with PPO's options for updates and exploration: penalty, early stop, accumulated gradients, held noise."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from gymnasium import spaces

from jaxrl.agent import state_shapes
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.common.ppo_objectives import KLPenalty
from jaxrl.algorithms.ppo import PPOConfig, ppo_loss, targets
from jaxrl.exploration.action_noise import HeldNoise
from jaxrl.metrics import to_floats
from jaxrl.models import ActorCriticOutput, actor_critic
from jaxrl.optimize import clipped_adam
from jaxrl.optimize.learner import Learner
from jaxrl.optimize.minibatches import minibatches, shuffled
from jaxrl.parallel import data_parallel
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.types import Agent, Env, Model, TimeStep
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, SMALL_ACTOR_CRITIC, assert_bit_equal, assert_close, small, small_ppo
from tests.helpers.ppo_cases import jit, one_rollout, sample, small_model, weighted_params, whole_batch

KEY = partial(jax.random.key, 0)
EPOCHS = {"num_epochs": 3, "num_minibatches": 2}


# ------------------------------------------------------------------------------------------------------------------ the stop


def by_hand(learner: Any, rollout: Any, stop_kl: float) -> tuple[Any, list[dict[str, float]]]:
    """Loop over the same minibatches until the step before ``stop_kl`` is exceeded. Return the parameters and the logs."""
    model, config = small_model(whole_batch().env), PPOConfig(**EPOCHS)
    batch = targets(model, config, learner, rollout, learner.hyperparams)
    order = minibatches(jax.random.fold_in(learner.key, learner.version), batch.valid.size, rollout.env_id.size, *EPOCHS.values())
    gradient = jit(jax.grad(lambda p, part: ppo_loss(model, config, learner.hyperparams, p, part, None), has_aux=True))
    params, logged = learner.params, []
    for epoch in np.asarray(order):
        parts = shuffled(batch, epoch, standardize=True)
        for i in range(len(epoch)):
            g, metrics = gradient(params, jax.tree.map(lambda x, i=i: x[i], parts))
            if float(metrics["losses/approx_kl"]) > stop_kl:
                return params, logged
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, g)
            logged.append({name: float(x) for name, x in metrics.items()})
    return params, logged


@pytest.mark.slow
def test_from_the_first_minibatch_beyond_the_limit_on_nothing_is_learnt() -> None:
    state, rollout = sample()
    everything = by_hand(state.learner, rollout, np.inf)[1]
    moved = [step["losses/approx_kl"] for step in everything]
    limit = float(np.mean(sorted(moved)[2:4]))  # between the smaller and the larger ones
    expected, logged = by_hand(state.learner, rollout, limit)
    assert 1 < len(logged) < len(everything) == 6
    after, metrics = jit(whole_batch(stop_kl=limit, **EPOCHS).algorithm.update)(state.learner, rollout)
    assert_close(after.params, expected, atol=1e-5)
    closed = to_floats(metrics)
    assert closed["charts/num_epochs"] == len(logged) / 2
    for name in logged[0]:
        assert closed[name] == pytest.approx(np.mean([step[name] for step in logged]), rel=1e-3, abs=1e-5)
        assert int(metrics[name].count) == len(logged)


def test_a_stop_stops_the_optimiser_too() -> None:
    """Adam's moments and count are those after the last step that was taken."""
    state, rollout = sample()
    after = jit(small_ppo(probes.memory(), stop_kl=1e-12, **EPOCHS).algorithm.update)(adam_learner(), rollout)[0]
    taken = int(optax.tree.get(after.opt_state, "count"))
    assert 0 < taken < 6 and int(after.version) == int(state.learner.version) + 1


def adam_learner() -> Any:
    """Return the learner of ``sample``, with Adam."""
    learner = sample()[0].learner
    opt_state = clipped_adam(learner.hyperparams).init(jax.flatten_util.ravel_pytree(learner.params)[0])
    return learner._replace(opt_state=opt_state)


# --------------------------------------------------------------------------------------------------------------- the penalty


@cache
def penalised() -> tuple[Any, Any, dict[str, float]]:
    """Return the state before and after an update that moves the policy a little, and its metrics."""
    agent = whole_batch(surrogate=KLPenalty(coef=0.5, target=1e-6), **EPOCHS)
    state = jit(agent.init)(KEY())
    after, metrics = jit(agent.algorithm.update)(state.learner, sample()[1])
    return state.learner, after, to_floats(metrics)  # type: ignore[return-value]


def test_the_penalty_is_adapted_by_the_divergence_after_the_update() -> None:
    before, after, logged = penalised()
    model, rollout = small_model(whole_batch().env), sample()[1]
    old, new = (
        np.asarray(jax.nn.log_softmax(model.unroll(x.params, (), rollout.inputs)[1].policy.logits), np.float64)[:-1]
        for x in (before, after)
    )
    divergence = (np.exp(old) * (old - new)).sum(-1)[np.asarray(rollout.valid)].mean()
    assert logged["losses/kl"] == pytest.approx(divergence, rel=2e-3) and divergence > 1.5e-6
    assert float(before.kl_coef) == logged["losses/kl_coef"] == 0.5 and float(after.kl_coef) == 1.0
    assert "losses/clipfrac" not in logged


def test_only_the_penalty_changes_the_structure_of_the_state() -> None:
    """So checkpoints from before the penalty existed can be resumed."""
    plain = whole_batch()
    assert type(sample()[0].learner) is Learner
    spec, other = plain.spec["settings"], whole_batch(surrogate="kl", accumulation_steps=2).spec["settings"]
    assert {*other} - {*spec} == {"accumulation_steps"} and other["surrogate"] == {"name": "kl", "coef": 1.0, "target": 0.01}
    assert "learning_rate" in spec and not {"stop_kl", "hold_noise"} & {*spec}


# ----------------------------------------------------------------------------------------------------- accumulated gradients


class Case(NamedTuple):
    model: Any
    settings: dict[str, Any]


CASES = {
    "rows": Case(SMALL_ACTOR_CRITIC, {"num_epochs": 1}),
    "sequences": Case(RECURRENT, {"num_epochs": 1}),
    "penalty": Case(SMALL_ACTOR_CRITIC, {"surrogate": "kl", "num_epochs": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_accumulated_gradients_are_those_of_whole_minibatches(case: str) -> None:
    """Two minibatches in two parts each: advantages are normalised per minibatch, and invalid rows have no influence."""
    model, settings = CASES[case]
    settings = {"model": model, "num_minibatches": 2, "extra_losses": (weighted_params,), **settings}
    whole, parts = (small_ppo(probes.memory(), **settings, accumulation_steps=n) for n in (1, 2))
    state = jit(whole.init)(KEY())
    rollout = one_rollout(whole)(state)
    assert not rollout.valid.all()
    (learner, metrics), (accumulated, logged) = (jit(x.algorithm.update)(state.learner, rollout) for x in (whole, parts))
    assert_close(accumulated, learner, atol=2e-5)
    sizes = {"losses/size", "losses/names", "losses/squares"}  # sums over rows, not means
    assert {*logged} == {*metrics}
    assert_close(*({name: x for name, x in m.items() if name not in sizes} for m in (logged, metrics)), atol=2e-5)
    rows, other = (to_floats(m)["losses/size"] for m in (metrics, logged))
    assert rows == 2 * other  # type: ignore[operator]


def test_a_recurrent_models_minibatches_are_whole_sequences() -> None:
    """Minibatches of [2 of 4 environments, all 8 rows], and each environment once per epoch."""
    seen: list[tuple[int, ...]] = []

    def shapes(params: Any, batch: Any) -> Any:
        seen.append(batch.valid.shape)
        who = batch.inputs.obs[..., 0]
        return 0.0, {"who": (who[:, 0] ** 2).sum(), "same": jnp.abs(who - who[:, :1]).max()}

    agent = small_ppo(probes.memory(), model=RECURRENT, extra_losses=shapes, num_epochs=3, num_minibatches=2)
    state = jit(agent.init)(KEY())
    rollout = one_rollout(agent)(state)
    names = jnp.broadcast_to(2.0 ** jnp.arange(4), (9, 4))
    obs = rollout.inputs.obs.at[..., 0].set(names)
    _, metrics = jit(agent.algorithm.update)(state.learner, rollout._replace(inputs=rollout.inputs._replace(obs=obs)))
    assert {*seen} == {(2, 8)}
    assert float(metrics["losses/who"].sum) == 3 * (4.0 ** np.arange(4)).sum() and float(metrics["losses/same"].sum) == 0


@pytest.mark.slow
def test_two_devices_do_what_one_does() -> None:
    """The first two of four gradient steps, in parts, with the penalty."""
    sizes = {"num_epochs": 2, "num_minibatches": 2, "accumulation_steps": 2, "learning_rate": 0.01}
    agent = small_ppo("CartPole-v1", surrogate="kl", stop_kl=3.5e-4, **sizes)
    shared = data_parallel(agent, 2)
    (alone, expected), (state, metrics) = (jax.jit(x.step)(x.init(KEY())) for x in (agent, shared))
    assert to_floats(expected)["charts/num_epochs"] == 1  # two of four steps
    logs = [{name: x for name, x in to_floats(m).items() if x is not None} for m in (metrics, expected)]
    assert logs[0] == pytest.approx(logs[1], rel=2e-3, abs=1e-6)
    assert_close(state.learner, alone.learner)


# -------------------------------------------------------------------------------------------------------------- held noise


def reaching(length: int = 4) -> Env:
    """Episodes of ``length`` rows that observe the time. Actions have two components."""

    def reset(key: Any, params: Any) -> Any:
        return jnp.int32(0), jnp.zeros(1)

    def step(key: Any, time: Any, action: Any, params: Any) -> Any:
        obs = (time + 1).astype(jnp.float32)[None]
        return time + 1, TimeStep(obs, -(action**2).sum(), time + 1 >= length, jnp.array(False))

    return Env(reset, step, spaces.Box(0, 9, (1,), np.float32), spaces.Box(-2, 2, (2,), np.float32), (), "reaching")


@pytest.mark.parametrize(
    "model", [pytest.param(SMALL_ACTOR_CRITIC, id="rows"), pytest.param(RECURRENT, id="sequences", marks=pytest.mark.slow)]
)
def test_noise_is_held_and_drawn_anew_where_an_episode_starts(model: Any) -> None:
    """In two rollouts of eight rows, the second continues with the noise of the first. Log-probabilities are the model's."""
    agent = small_ppo(reaching(), model=model, hold_noise=3, num_epochs=1, num_minibatches=1)
    state, step = jit(agent.init)(KEY()), jit(agent.step)
    network, noise, first = model(agent.env.observation_space, agent.env.action_space), [], []
    for _ in range(2):
        rollout = one_rollout(agent)(state)
        policy = jit(network.unroll)(state.learner.params, rollout.carry.model, rollout.inputs)[1].policy
        mean, log_std = (np.asarray(x)[:-1] for x in policy)
        drawn = np.asarray(rollout.extras["raw_action"])
        noise.append((drawn - mean) / np.exp(log_std))
        first.append(np.asarray(rollout.inputs.is_first)[:-1])
        log_prob = policy.log_prob(jnp.pad(drawn, ((0, 1), (0, 0), (0, 0))))[:-1]
        np.testing.assert_allclose(log_prob, rollout.extras["log_prob"], atol=1e-4)
        state, metrics = step(state)
        assert to_floats(metrics)["losses/approx_kl"] == pytest.approx(0, abs=1e-6)
    rows, starts = np.concatenate(noise), np.concatenate(first)[:, 0]
    assert starts.nonzero()[0].tolist() == [0, 5, 10, 15]  # four rows, and one for the reset
    # Drawn at the start of an episode and then every three rows.
    same = [np.abs(rows[t] - rows[t - 1]).max() < 1e-4 for t in range(1, 16)]
    assert [t for t in range(1, 16) if not same[t - 1]] == [3, 5, 8, 10, 13, 15]
    draws = rows[[0, 3, 5, 8, 10, 13, 15]]
    assert len(np.unique(draws.round(5))) == draws.size  # different for each draw, environment and component


@pytest.mark.slow
def test_greedy_actions_and_single_rows_know_of_no_held_noise() -> None:
    env = reaching()
    plain, held, single = (small_ppo(env, **x) for x in ({}, {"hold_noise": 4}, {"hold_noise": 1}))
    assert single.spec == plain.spec
    state, other = jit(plain.init)(KEY()), jit(held.init)(KEY())
    assert_bit_equal(other.learner, state.learner)
    ids, inputs = jnp.arange(4, dtype=jnp.int32), state.actor.input
    policy = plain.algorithm.policy(state.learner)
    _, action, extras = plain.algorithm.act(policy, (), inputs, ids, KEY(), explore=False)
    carry, greedy, same = held.algorithm.act(policy, other.actor.carry, inputs, ids, KEY(), explore=False)
    assert_bit_equal((greedy, same, carry), (action, extras, other.actor.carry))
    # The first row of an episode draws the same noise as without holding.
    drawn = plain.algorithm.act(policy, (), inputs, ids, KEY(), explore=True)[1:]
    assert_bit_equal(held.algorithm.act(policy, other.actor.carry, inputs, ids, KEY(), explore=True)[1:], drawn)


@pytest.mark.parametrize("model", [SMALL_ACTOR_CRITIC, RECURRENT], ids=["rows", "sequences"])
def test_every_algorithm_that_draws_actions_can_hold_its_noise(model: Any) -> None:
    """Its learner gets the model's carry, without the noise."""
    drawing = [name for name, entry in ALGORITHMS.items() if entry.family == "on-policy" and "Box" in entry.actions]
    drawing.remove("pqn")  # adds noise to an action
    for algorithm in drawing:
        agent = small(algorithm, reaching(), model=model, hold_noise=3)
        state = jax.eval_shape(lambda agent=agent: agent.step(agent.init(KEY()))[0])
        assert isinstance(state.actor.carry, HeldNoise) and state.actor.carry.age.shape == (4,)


@pytest.mark.slow
def test_everything_at_once_is_saved_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """β, and noise that is held across the checkpoint."""
    settings = {"surrogate": "kl", "stop_kl": 0.05, "accumulation_steps": 2, "hold_noise": 3}
    agent = small_ppo(reaching(), **settings)
    step = jit(agent.step)
    state, _ = step(jit(agent.init)(KEY()))
    assert np.asarray(state.actor.carry.age).tolist() == [3] * 4 and float(state.learner.kl_coef) != 1.0
    save(tmp_path, state, 1, spec=agent.spec)
    restored, _ = restore(tmp_path, state_shapes(agent))
    assert_bit_equal(step(restored), step(state))


# ---------------------------------------------------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"surrogate": "kl", "schedules": {"clip_eps": lambda i: 1.0}},
            r"schedules\['clip_eps'\] has no effect with surrogate='kl': it is for surrogate=Clip\(eps=…\)",
        ),
        ({"stop_kl": -1}, "stop_kl=-1 is not allowed: it must be a finite number >= 0"),
        (
            {"stop_kl": 0.1, "num_epochs": 1, "num_minibatches": 1},
            "stop_kl=0.1 has no effect on an iteration of one gradient step",
        ),
        ({"accumulation_steps": 0}, "accumulation_steps=0 must be an integer >= 1"),
        ({"accumulation_steps": 3}, r"accumulation_steps=3 must divide num_envs \* rollout_length / num_minibatches = 16"),
        (
            {"accumulation_steps": 4, "model": RECURRENT},
            "accumulation_steps=4 must divide num_envs / num_minibatches = 2 .a recurr",
        ),
        ({"hold_noise": 0}, "hold_noise=0 must be an integer >= 1"),
        ({"hold_noise": 2}, r"hold_noise=2 needs a Box action space, but the action space is Discrete\(2\): leave it out"),
    ],
)
def test_settings_that_do_not_fit_or_have_no_effect(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_ppo(probes.memory(), **settings)


def test_settings_of_other_libraries_are_named() -> None:
    for name, here in {"target_kl": "stop_kl", "max_kl": "stop_kl", "sde_sample_freq": "hold_noise"}.items():
        with pytest.raises(TypeError, match=f"unknown keyword {name!r}. It is called {here!r} here"):
            small_ppo(probes.memory(), **{name: 1})
    with pytest.raises(TypeError, match=r"unknown keyword 'kl_coeff'. It is a field of an option: surrogate=KLPenalty\(coef=…\)"):
        small_ppo(probes.memory(), kl_coeff=1)


def test_a_policy_without_a_divergence_has_no_penalty() -> None:
    class Own(NamedTuple):
        x: Any

    def model(observation_space: Any, action_space: Any) -> Model:
        made = actor_critic(observation_space, action_space, hidden_sizes=())

        def with_own(function: Any) -> Any:
            def called(*args: Any, **kwargs: Any) -> Any:
                carry, output = function(*args, **kwargs)
                return carry, ActorCriticOutput(Own(output.policy), output.value)  # type: ignore[arg-type]

            return called

        return made._replace(apply=with_own(made.apply), unroll=with_own(made.unroll))

    small_ppo(probes.memory(), model=model)
    with pytest.raises(
        TypeError, match=r"surrogate=KLPenalty\(\) needs a policy with a method kl\(other\) -> f32\[...\], which Own lacks"
    ):
        small_ppo(probes.memory(), model=model, surrogate="kl")


def test_parts_have_to_fit_one_devices_share() -> None:
    agent: Agent = small_ppo("CartPole-v1", num_envs=6, rollout_length=8, accumulation_steps=8, axis_name="d")
    with pytest.raises(ValueError, match=r"^each of 2 devices would have num_envs=3, but accumulation_steps=8 must .* = 12$"):
        data_parallel(agent, 2)
    held = small_ppo(reaching(), num_envs=2, hold_noise=3, axis_name="d")  # a carry of noise does not make a model recurrent
    assert data_parallel(held, 2).num_envs == 2
