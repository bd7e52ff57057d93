"""Critics that see a privileged state, values that are normalised, and MAPPO, which has both."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.algorithms.common.ppo_objectives import Batch
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.models import action_value, actor_critic, policy_network, q_network
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.running_statistics import init_moments, normalized_values, values_in_units
from jaxrl.spaces.entries import PRIVILEGED_KEY
from jaxrl.training import run_iterations
from tests.helpers.agents import assert_bit_equal, small_ppo

SEEN = spaces.Box(-1.0, 1.0, (2,), np.float32)
SPACE = spaces.Dict({"observation": SEEN, PRIVILEGED_KEY: spaces.Box(-1.0, 1.0, (3,), np.float32)})
CHOICE, LINE = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,), np.float32)
CENTRAL = "tests.helpers.teams:mortal|central_state"
jit = partial(jax.jit, compiler_options=COMPILE_FAST)
KEY = partial(jax.random.key, 0)


def observed(own: float, state: float) -> Any:
    obs = {"observation": jnp.full((1, 2), own), PRIVILEGED_KEY: jnp.full((1, 3), state)}
    return first_input(obs, CHOICE, 1)


def changes(function: Any) -> tuple[bool, bool]:
    """Return whether an output depends on the observation, and on the state."""
    before, own, state = (np.asarray(function(observed(*each))) for each in ((0.1, 0.2), (0.5, 0.2), (0.1, 0.7)))
    return bool((before != own).any()), bool((before != state).any())


@pytest.mark.parametrize("core", [None, "gru"])
def test_the_state_reaches_values_alone(core: str | None) -> None:
    model = actor_critic(SPACE, CHOICE, critic="privileged", core=core, hidden_sizes=(8,))
    params = model.init(KEY(), observed(0, 0))
    # The heads of policies start near 0.
    params = jax.tree.map(lambda x: x + 0.1, params)
    output = lambda inputs: model.apply(params, model.initial_carry(1), inputs)[1]  # noqa: E731
    assert changes(lambda inputs: output(inputs).policy.logits) == (True, False)
    assert changes(lambda inputs: output(inputs).value) == (True, True)  # in addition to the observation


@pytest.mark.parametrize("network", [actor_critic, q_network, policy_network])
def test_other_networks_ignore_the_state(network: Any) -> None:
    model = network(SPACE, CHOICE, hidden_sizes=(8,))
    params = jax.tree.map(lambda x: x + 0.1, model.init(KEY(), observed(0, 0)))
    leaves = lambda inputs: jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(model.apply(params, (), inputs)[1])])  # noqa: E731
    assert changes(leaves) == (True, False)


def test_critics_of_actions_may_see_the_state() -> None:
    for space, action in ((CHOICE, None), (LINE, jnp.zeros((1, 1)))):
        for privileged in (False, True):
            model = action_value(SPACE, space, hidden_sizes=(8,), privileged=privileged)
            seen = lambda inputs, action=action: inputs if action is None else inputs._replace(obs=(inputs.obs, action))  # noqa: E731
            params = model.init(KEY(), seen(observed(0, 0)))
            value = lambda inputs, m=model, p=params, seen=seen: m.apply(p, (), seen(inputs))[1]  # noqa: E731
            assert changes(value) == (True, privileged)
    agent = jaxrl.make_sac(CENTRAL, critic={"privileged": True, "hidden_sizes": (8,)}, model={"hidden_sizes": (8,)})
    shapes = jax.eval_shape(lambda: agent.init(KEY())).learner.params.critic
    assert any(x.shape[1:] == (3 + 9, 8) for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: actor_critic(SEEN, CHOICE, critic="privileged"),
            r"critic='privileged' needs observations that are a Dict",
        ),
        (lambda: action_value(SEEN, CHOICE, privileged=True), r"privileged=True needs observations"),
        (
            lambda: actor_critic(SPACE, CHOICE, critic="privileged", shared=True),
            r"critic='privileged' and shared=True",
        ),
        (lambda: actor_critic(SPACE, CHOICE, critic="priviliged"), r"Did you mean 'privileged'\?"),
        (lambda: jaxrl.make_mappo("CartPole-v1"), r"critic='privileged' needs observations"),
        (lambda: jaxrl.make_env("CartPole-v1|central_state"), r"is for environments of several agents, and this one has one"),
        (lambda: jaxrl.make_env(f"{CENTRAL}|central_state"), r"have a 'privileged_state' already"),
        (lambda: jaxrl.make_env("tests.helpers.teams:mortal|frame_stack(2)"), r"frame_stack wraps environments of one agent"),
    ],
)
def test_what_is_refused(build: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()


def test_the_central_state_is_what_all_agents_see() -> None:
    env: Any = jaxrl.make_env(CENTRAL)
    state, obs = env.reset(KEY(), ())
    assert env.num_agents == 3 and obs[PRIVILEGED_KEY].shape == (3, 9) == (3, *env.observation_space[PRIVILEGED_KEY].shape)
    np.testing.assert_array_equal(obs[PRIVILEGED_KEY], np.tile(np.asarray(obs["observation"]).reshape(-1), (3, 1)))
    _, reached = env.step(KEY(), state, jnp.zeros(3, jnp.int32), ())
    np.testing.assert_array_equal(reached.obs[PRIVILEGED_KEY][1], np.asarray(reached.obs["observation"]).reshape(-1))
    jaxrl.check_env(env, steps=10)


def test_a_loaded_policy_needs_no_state(tmp_path: Path) -> None:
    agent = jaxrl.make_mappo(CENTRAL, num_envs=2, rollout_length=4, model={"hidden_sizes": (8,)})
    jaxrl.run(agent, 8, out=tmp_path, quiet=True, tensorboard=False, eval_episodes=2)
    policy = jaxrl.load_policy(tmp_path, which="last")
    own = np.zeros((3, 3), np.float32)
    assert (policy({"observation": own}) == policy({"observation": own, PRIVILEGED_KEY: np.ones((3, 9), np.float32)})).all()
    assert policy({"observation": own[0]}).shape == ()
    with pytest.raises(TypeError, match="obs must be structured as Dict"):
        policy({"other": own})


# -------------------------------------------------------------------------------------------------------------- normalised values


def test_values_are_normalised_by_the_moments_of_targets() -> None:
    rng = np.random.default_rng(0)
    target, value, valid = rng.normal(50, 20, 64), rng.normal(40, 5, 64), rng.random(64) < 0.7
    rows: Any = Batch(*[()] * 5, target=jnp.float32(target), value=jnp.float32(value), valid=jnp.array(valid))
    moments, batch = normalized_values(init_moments(jnp.zeros(())), rows, None)
    mean, std = target[valid].mean(), target[valid].std()
    np.testing.assert_allclose(batch.target, (target - mean) / std, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(batch.value, (value - mean) / std, rtol=1e-3, atol=1e-3)
    statistics: Any = jaxrl.make_ppo("CartPole-v1", normalize_values=True).init(KEY()).learner.statistics
    np.testing.assert_allclose(values_in_units(statistics._replace(values=moments), batch.value), value, rtol=1e-4)
    assert values_in_units(statistics._replace(values=()), batch.value) is batch.value
    assert normalized_values((), rows, None) == ((), rows)


@pytest.mark.slow
def test_values_far_from_zero_are_learnt() -> None:
    """The returns of ``mortal`` are between 1 and 43: outputs near 0 stand for their mean, and are soon right."""
    explained = []
    for normalize in (True, False):
        agent = small_ppo("tests.helpers.teams:mortal|select_observation(0, 1)", normalize_values=normalize, num_epochs=4)
        state, _ = jit(partial(run_iterations, agent, iterations=120))(agent.init(KEY()))
        state, metrics = jit(agent.step)(state)
        explained.append(float(metrics["losses/explained_variance"]))
        if normalize:
            assert 15 < float(state.learner.statistics.values.mean) < 35
    assert explained[0] > 0.8 and explained[0] > explained[1] + 0.2


def test_without_normalised_values_nothing_changes() -> None:
    plain, asked = (small_ppo("CartPole-v1", **each) for each in ({}, {"normalize_values": False}))
    assert plain.spec == asked.spec and "normalize_values" not in plain.spec["settings"]
    assert_bit_equal(*(jit(agent.step)(agent.init(KEY()))[0] for agent in (plain, asked)))
