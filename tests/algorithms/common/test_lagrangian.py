"""PPO with a constraint: the controller and the costs of episodes against NumPy, the loss, a probe, devices, resuming, errors."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrl
from jaxrl.agent import state_shapes
from jaxrl.algorithms.common.constraints.costs import cost_of
from jaxrl.algorithms.common.constraints.lagrangian import (
    ConstrainedOutput,
    ConstrainedPenaltyState,
    ConstraintState,
    CostTargets,
    constrained,
    controlled,
)
from jaxrl.algorithms.ppo import PPOConfig, PPOHyperparams, ppo_loss
from jaxrl.metrics import to_floats
from jaxrl.models import actor_critic
from jaxrl.options import Clip, Lagrangian
from jaxrl.parallel import data_parallel
from jaxrl.returns import discounts, gae
from jaxrl.rollout.episode_mean import EpisodeMean, add_rollout, no_episodes
from jaxrl.runtime.checkpoint.restore import restore
from jaxrl.runtime.checkpoint.store import save
from jaxrl.types import Agent, Model, Rollout, StepInput, TimeStep
from tests.helpers import probes
from tests.helpers.agents import RECURRENT, assert_bit_equal, assert_close, small, small_ppo
from tests.helpers.hosted import hosted
from tests.helpers.loss_cases import linear_model, loss_case
from tests.helpers.ppo_cases import jit, one_rollout

KEY = partial(jax.random.key, 0)
GAINS = {"cost_limit": 2.0, "pid_kp": 0.5, "pid_ki": 0.1, "pid_kd": 0.3}


# ------------------------------------------------------------------------------------------------------------------ controller


def costing(cost: float, count: float = 1.0) -> EpisodeMean:
    return EpisodeMean(jnp.zeros(1), jnp.float32(cost * count), jnp.float32(count))


def multipliers(costs: list[float], **gains: float) -> list[float]:
    """Return λ after each of the costs."""
    zero = jnp.zeros(())
    state, hp, found = ConstraintState(costing(0.0), zero, zero, zero), SimpleNamespace(**{**GAINS, **gains}), []
    for cost in costs:
        state = controlled(state._replace(costs=costing(cost)), hp)
        found.append(float(state.multiplier))
    return found


def test_the_controller_is_that_of_the_paper() -> None:
    """Algorithm 2 of Stooke et al. 2020, in plain Python."""
    costs = [*np.random.default_rng(0).uniform(0, 5, 30)]
    integral, previous, expected = 0.0, 0.0, []
    for cost in costs:
        error, rise = cost - 2.0, max(cost - previous, 0.0)
        integral = max(integral + error, 0.0)
        expected.append(max(0.5 * error + 0.1 * integral + 0.3 * rise, 0.0))
        previous = cost
    assert min(expected) == 0 and max(expected) > 1
    np.testing.assert_allclose(multipliers(costs), expected, rtol=1e-5, atol=1e-6)


def test_the_multiplier_rises_above_the_limit_and_falls_below_it() -> None:
    found = multipliers([4.0] * 10 + [1.0] * 40, pid_kp=0.0, pid_kd=0.0)
    assert np.all(np.diff(found[:10]) > 0) and np.all(np.diff(found[9:30]) < 0)
    assert found[29:] == [0.0] * 21  # the integral does not become negative, so …
    assert multipliers([4.0] * 10 + [1.0] * 40 + [2.5], pid_kp=0.0, pid_kd=0.0)[-1] == pytest.approx(0.05)  # … it rises at once


def test_it_waits_for_the_first_episode_to_end() -> None:
    state = ConstraintState(no_episodes(1), *(jnp.float32(x) for x in (0.25, 0.5, 0.75)))
    assert_bit_equal(controlled(state, SimpleNamespace(**GAINS)), state)


# ----------------------------------------------------------------------------------------------------------- costs of episodes


def rows_of(valid: Any, first: Any, ends: Any, cost: Any, env_id: Any) -> Rollout:
    """Return a rollout [T, B] with these flags. The flags ``first`` are [T + 1, B]."""
    inputs = StepInput(None, None, None, jnp.asarray(first, bool))
    nothing: dict[str, Any] = dict.fromkeys(("action", "extras", "carry", "version"))
    valid, ends = jnp.asarray(valid, bool), jnp.asarray(ends, bool)
    reward, never = jnp.zeros(valid.shape), jnp.zeros_like(valid)
    flags = {"valid": valid, "terminated": ends, "truncated": never, "reward": reward}
    return Rollout(inputs=inputs, env_id=jnp.asarray(env_id, jnp.int32), info={"cost": jnp.asarray(cost)}, **flags, **nothing)


def random_rows(seed: int, num_rollouts: int = 3, t: int = 12, b: int = 4) -> tuple[list[Rollout], list[list[float]]]:
    """Return rollouts of episodes that continue over them, with paddings, and the costs of the episodes that end in each."""
    rng = np.random.default_rng(seed)
    running, done, new = np.zeros(b), np.zeros(b, bool), np.ones(b, bool)
    rollouts, finished = [], []
    for _ in range(num_rollouts):
        valid, first, ends = np.zeros((t, b), bool), np.zeros((t + 1, b), bool), np.zeros((t, b), bool)
        cost, over = rng.uniform(0, 2, (t, b)).astype(np.float32), []
        for row in range(t):
            padded = rng.random(b) < 0.1
            for i in range(b):
                first[row, i] = new[i]
                if padded[i]:
                    cost[row, i] = np.nan
                elif done[i]:
                    done[i], new[i], cost[row, i] = False, True, 50.0  # spent on a reset: its cost does not count
                else:
                    running[i] = cost[row, i] + (0 if new[i] else running[i])
                    valid[row, i], new[i], ends[row, i] = True, False, rng.random() < 0.3
                    done[i] = ends[row, i]
                    over += [running[i]] * bool(ends[row, i])
        first[t] = new
        rollouts.append(rows_of(valid, first, ends, cost, np.arange(b)))
        finished.append(over)
    return rollouts, finished


@pytest.mark.parametrize("smoothing", [0.0, 0.75])
def test_costs_of_episodes_are_those_of_a_loop(smoothing: float) -> None:
    """Over the seams of rollouts. Rows that are not valid do not count."""
    rollouts, finished = random_rows(0)
    costs, total, count = no_episodes(4), 0.0, 0.0
    add = jit(lambda costs, rollout: add_rollout(costs, rollout, cost_of(rollout), jnp.float32(smoothing), None))
    for rollout, over in zip(rollouts, finished, strict=True):
        costs, ended = add(costs, rollout)
        total, count = smoothing * total + sum(over), smoothing * count + len(over)
        assert len(over) > 2 and float(costs.mean) == pytest.approx(total / count, rel=1e-5)
        assert float(ended) == pytest.approx(np.mean(over), rel=1e-5) and int(ended.count) == len(over)


def test_the_estimate_stays_while_no_episode_ends() -> None:
    never = rows_of(*(np.full((n, 2), x) for n, x in ((3, True), (4, False), (3, False))), np.ones((3, 2)), [0, 1])
    before = EpisodeMean(jnp.zeros(2), jnp.float32(6.0), jnp.float32(4.0))
    for smoothing in (0.0, 0.5):
        after, ended = add_rollout(before, never, cost_of(never), jnp.float32(smoothing), None)
        assert (float(after.mean), int(ended.count)) == (1.5, 0) and to_floats({"cost": ended}) == {"cost": None}
        np.testing.assert_array_equal(after.running, [3, 3])


def test_devices_agree_on_the_estimate() -> None:
    rollouts, _ = random_rows(1)
    alone, _ = add_rollout(no_episodes(4), rollouts[0], cost_of(rollouts[0]), jnp.float32(0), None)
    halves = jax.tree.map(lambda x: jnp.stack(jnp.split(x, 2, -1)), rollouts[0])

    def on_a_device(half: Rollout) -> Any:
        return add_rollout(no_episodes(2), half, cost_of(half), jnp.float32(0), "d")

    shared, ended = jax.vmap(on_a_device, axis_name="d")(halves)
    np.testing.assert_allclose(shared.mean, [alone.mean] * 2, rtol=1e-6)
    np.testing.assert_allclose(shared.running.ravel(), alone.running, rtol=1e-6)
    assert int(ended.count.sum()) == int(alone.count)


# ------------------------------------------------------------------------------------------------------- advantages and losses


def test_advantages_are_those_of_rewards_less_those_of_costs() -> None:
    (rollout, *_), _ = random_rows(2)
    rng = np.random.default_rng(0)
    value, of_rewards = (rng.normal(size=(n, 4)).astype(np.float32) for n in (13, 12))
    hp, multiplier = PPOHyperparams(gamma=0.9, gae_lambda=0.8), 1.5
    rows = SimpleNamespace(advantage=of_rewards, _replace=lambda **fields: fields)
    state = ConstraintState(no_episodes(4), jnp.float32(multiplier), jnp.zeros(()), jnp.zeros(()))
    made = constrained(rows, state, rollout, jnp.asarray(value), hp)
    cost = np.where(rollout.valid, rollout.info["cost"], 0)
    of_costs = np.asarray(gae(cost, *discounts(rollout, 0.9, 0.8), value[:-1], value[1:], rollout.valid))
    np.testing.assert_allclose(made["advantage"], (of_rewards - 1.5 * of_costs) / 2.5, rtol=1e-5)
    np.testing.assert_allclose(made["cost"].target, of_costs + value[:-1], rtol=1e-5)
    np.testing.assert_array_equal(made["cost"].value, value[:-1])


def two_values(discrete: bool) -> Model:
    """The linear model, whose value of costs is x·u."""
    plain = linear_model(discrete)

    def apply(params: Any, carry: Any, inputs: Any) -> Any:
        output = plain.apply(params, carry, inputs)[1]
        return carry, ConstrainedOutput(output.policy, output.value, inputs.obs @ params["u"])

    return plain._replace(apply=apply)


@pytest.mark.parametrize("clipped", [False, True])
def test_the_loss_of_the_value_of_costs_is_added(clipped: bool) -> None:
    """Half its mean squared error over valid rows, with the clip of the value if there is one."""
    params, batch = loss_case(True)
    rng = np.random.default_rng(5)
    u, target, old = (rng.normal(size=shape).astype(np.float32) for shape in (3, batch.valid.size, batch.valid.size))
    plain, config = (PPOConfig(surrogate=Clip(value_loss=clipped), constraint=x) for x in (None, Lagrangian()))
    hp = PPOHyperparams(vf_coef=0.7, clip_eps=0.15)
    expected, logs = ppo_loss(linear_model(True), plain, hp, params, batch, None)
    with_costs = batch._replace(cost=CostTargets(target, old))
    total, found = ppo_loss(two_values(True), config, hp, {**params, "u": u}, with_costs, None)
    new = np.asarray(batch.inputs.obs) @ u
    errors = (new - target) ** 2
    if clipped:
        errors = np.maximum(errors, (old + np.clip(new - old, -0.15, 0.15) - target) ** 2)
    loss = 0.5 * errors[batch.valid].mean()
    assert float(found.pop("losses/cost_value_loss")) == pytest.approx(loss, rel=1e-4)
    assert float(total - expected) == pytest.approx(0.7 * loss, rel=1e-3)
    assert {name: float(x) for name, x in found.items()} == pytest.approx({name: float(x) for name, x in logs.items()}, rel=1e-5)


# ----------------------------------------------------------------------------------------------------------------------- agents


def constrained_ppo(env: Any = None, limit: float = 0.3, **settings: Any) -> Agent:
    option = Lagrangian(limit=limit, kp=1.0, ki=0.05, kd=0.0, smoothing=0.0)
    return small_ppo(probes.costly_choice() if env is None else env, **{"constraint": option, "learning_rate": 0.01, **settings})


def test_the_policy_mixes_a_costly_and_a_free_action_at_the_limit() -> None:
    """Without a constraint its probability of the costly action goes to 1. Limits are data: three of them in one program."""
    sizes = {"num_envs": 32, "rollout_length": 16, "num_epochs": 4, "ent_coef": 0.0, "normalize_advantages": False}
    agent, limits = constrained_ppo(**sizes), jnp.array([0.3, 0.6, 2.0])

    def run(limit: Any) -> Any:
        state = agent.init(KEY(), {"cost_limit": limit})
        _, metrics = jax.lax.scan(lambda state, _: agent.step(state), state, length=300)
        return jax.tree.map(lambda x: x[-100:].sum(0), metrics), state

    metrics, _ = jit(jax.vmap(run))(limits)
    cost, multiplier = (np.asarray(metrics[name]) for name in ("charts/episodic_cost", "losses/lagrange_multiplier"))
    np.testing.assert_allclose(cost, [0.3, 0.6, 1.0], atol=0.05)
    assert multiplier[0] == pytest.approx(1.0, abs=0.3) and multiplier[2] == 0  # at λ = 1 both actions are equally good
    np.testing.assert_allclose(np.asarray(metrics["charts/episodic_return"]), cost, atol=1e-6)


@cache
def stepped() -> tuple[Agent, Any, Any]:
    """Return an agent with everything that can be combined, its step, and a state after two steps."""
    settings = {"surrogate": "kl", "normalize_observations": True, "normalize_rewards": True, "normalize_values": True}
    agent = constrained_ppo(probes.costly_choice(steps=3), rollout_length=5, **settings)
    step = jit(agent.step)
    return agent, step, step(step(jit(agent.init)(KEY()))[0])[0]


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    agent, step, state = stepped()
    assert isinstance(state.learner, ConstrainedPenaltyState) and float(state.learner.constraint.integral) > 0
    assert np.asarray(state.learner.constraint.costs.running).any()  # an episode that continues in the next rollout
    save(tmp_path, state, 1, spec=agent.spec)
    restored, _ = restore(tmp_path, state_shapes(agent))
    assert_bit_equal(step(restored), step(state))


def test_costs_of_the_warm_up_count() -> None:
    """Three rows and a reset per episode: the first rollout of five rows ends one, and leaves one that has begun."""
    agent, _, _ = stepped()
    state = jit(agent.init)(KEY())
    costs = state.learner.constraint.costs
    assert agent.algorithm.warmup_iterations == 1 and float(costs.count) == 4
    first = one_rollout(agent)(state)
    assert np.asarray(costs.running).tolist() == [float(x) for x in state.actor.episode.episodic_return]
    assert first.valid.shape == (5, 4)


@pytest.mark.slow
def test_two_devices_do_what_one_does() -> None:
    agent = constrained_ppo("tests.helpers.probes:costly_choice?steps=3", rollout_length=5)
    shared = data_parallel(agent, 2)
    (alone, expected), (state, metrics) = ((jax.jit(x.step)(jax.jit(x.step)(x.init(KEY()))[0])) for x in (agent, shared))
    assert_close(state.learner, alone.learner)
    logs = [{name: x for name, x in to_floats(m).items() if x is not None} for m in (metrics, expected)]
    assert logs[0] == pytest.approx(logs[1], rel=2e-3, abs=1e-6) and logs[0]["losses/lagrange_multiplier"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"env": probes.costly_choice(num_agents=3), "num_envs": 2, "num_minibatches": 3},
        {"model": RECURRENT},
        {"model": partial(actor_critic, hidden_sizes=(8,), core="gru", core_size=8, shared=False)},
        {"mean_noise": 0.0, "extra_losses": lambda params, batch: (batch.cost.value.mean(), {"cost": batch.cost.target.mean()})},
        {"intrinsic": "rnd", "stop_kl": 0.1, "accumulation_steps": 2},
    ],
    ids=["agents", "memory", "two cores", "extra loss", "intrinsic"],
)
def test_what_ppo_can_do_it_can_do_with_a_constraint(settings: dict[str, Any]) -> None:
    if settings.get("intrinsic") == "rnd":
        from jaxrl.intrinsic import rnd

        settings = {**settings, "intrinsic": partial(rnd, hidden_sizes=(8,), embedding_size=4)}
    agent = constrained_ppo(**settings)
    state, metrics = jax.eval_shape(lambda: agent.step(agent.init(KEY())))
    lanes = agent.num_lanes
    constraint = getattr(state.learner, "constraint", None) or state.learner.rest.constraint
    assert constraint.costs.running.shape == (lanes,)
    assert {"charts/episodic_cost", "losses/lagrange_multiplier", "losses/cost_value_loss"} <= {*metrics}


def test_environments_on_the_host_report_costs() -> None:
    agent = constrained_ppo(hosted(probes.costly_choice()), learning_rate=0.01)
    _, history = jaxrl.run(agent, 64, eval_every=0, quiet=True)
    assert 0 < float(history["charts/episodic_cost"][-1, 0]) < 1
    with pytest.raises(ValueError, match=r"in info\['cost'\], and the environment reports nothing: return it in TimeStep.info"):
        jaxrl.run(constrained_ppo(hosted(probes.action_choice())), 64, eval_every=0, quiet=True)


def test_without_a_constraint_nothing_is_added() -> None:
    agent = small_ppo(probes.costly_choice())
    state = state_shapes(agent)
    assert not hasattr(state.learner, "constraint") and "constraint" not in agent.spec["settings"]
    absent = {"cost_limit", "pid_kp", "pid_ki", "pid_kd", "cost_smoothing"}
    assert {name for name, x in state.learner.hyperparams._asdict().items() if x is None} == absent
    with pytest.raises(ValueError, match="cost_limit has no effect, because the agent was built without the option"):
        agent.init(KEY(), {"cost_limit": 1.0})
    built = jaxrl.build(constrained_ppo("tests.helpers.probes:costly_choice").spec, trust="tests")
    assert built.hyperparams.cost_limit == pytest.approx(0.3) and built.hyperparams.pid_kd == 0


@pytest.mark.parametrize(
    "env, settings, error, message",
    [
        ("CartPole-v1", {}, ValueError, r"one number in info\['cost'\], and gymnax:CartPole-v1 reports nothing"),
        (probes.two_players, {}, ValueError, "is for environments of one player, and .*two_players is a game of two"),
        (None, {"constraint": {"name": "lagrangian", "limit": -1}}, ValueError, "limit=-1 is not allowed: it must be a finite"),
        (
            None,
            {"constraint": {"name": "lagrangian", "smoothing": 1}},
            ValueError,
            r"smoothing=1 is not allowed: .* in \[0, 0.99",
        ),
        (None, {"constraint": "pid"}, ValueError, "constraint='pid' is unknown"),
        (None, {"constraint": Lagrangian}, TypeError, r"write constraint=Lagrangian\(\)"),
        (None, {"cost_limit": 3.0}, TypeError, r"It is a field of an option: constraint=Lagrangian\(limit=…\)"),
        (None, {"model": {"num_values": 3}}, TypeError, r"must give an ActorCriticOutput\(policy, value f32\[batch, 2\]\)"),
        (None, {"model": linear_model(True)}, TypeError, "model="),
    ],
)
def test_what_does_not_fit_is_refused(env: Any, settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        constrained_ppo(env() if callable(env) else env, **settings)


def test_costs_of_the_wrong_shape_are_refused() -> None:
    env = probes.costly_choice()

    def step(key: Any, state: Any, action: Any, params: Any) -> tuple[Any, TimeStep]:
        state, reached = env.step(key, state, action, params)
        return state, reached._replace(info={"cost": jnp.zeros(2)})

    with pytest.raises(ValueError, match=r"as one number in info\['cost'\], and .* reports float32\[2\]"):
        constrained_ppo(env._replace(step=step))


def test_other_algorithms_have_no_constraint() -> None:
    with pytest.raises(TypeError, match=r"make_a2c\(\) got an unknown keyword 'constraint'"):
        small("a2c", probes.costly_choice(), constraint=Lagrangian())
    with pytest.raises(ValueError, match=r"schedules\['cost_limit'\] has no effect with constraint='none'"):
        small_ppo(probes.costly_choice(), schedules={"cost_limit": lambda i: 1.0})


@pytest.mark.slow
def test_hyperparameters_of_other_options_stay_out_of_a_whole_tuple() -> None:
    plain, agent = small_ppo(probes.costly_choice()), constrained_ppo()
    for each, limit in ((plain, None), (agent, 0.5)):
        given = each.hyperparams._replace(cost_limit=limit)
        assert jax.eval_shape(lambda each=each, given=given: each.init(KEY(), given)).learner.hyperparams.gamma.shape == ()
        states, _ = jaxrl.run(each, 64, hyperparams=given, eval_every=0, quiet=True)
        found = states.learner.hyperparams.cost_limit
        assert found is None if limit is None else float(found[0]) == limit
