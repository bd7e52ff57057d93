"""``jaxrl:Hazards`` against plain Python, and with policies written by hand that cross the hazard or go around it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import check_env, describe_env, family_of, list_envs, make_env
from jaxrl.envs.builtin.hazards import CIRCLE, DRAG, PUSH, REACHED, STEPS
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.checks.validate import picture_problem
from jaxrl.types import Env


def hazards(options: str = "") -> Env:
    env = make_env(f"jaxrl:Hazards{options}")
    assert isinstance(env, Env)
    return env


def test_it_keeps_the_contract() -> None:
    env = hazards()
    check_env(env)
    assert describe_env(env) == env.name == "jaxrl:Hazards" and family_of(env.name) == "costs"
    assert env.name in list_envs("jaxrl") and env.max_episode_steps == STEPS


def test_a_point_gets_rewards_for_goals_and_costs_in_the_hazard() -> None:
    env, rng = hazards("?radius=0.5"), np.random.default_rng(0)
    step = jax.jit(env.step, compiler_options=COMPILE_FAST)
    state, obs = jax.jit(env.reset, compiler_options=COMPILE_FAST)(jax.random.key(0), env.params)
    position, velocity = np.asarray(state.position), np.zeros(2)
    np.testing.assert_allclose(np.linalg.norm(position), CIRCLE, rtol=1e-5)
    np.testing.assert_allclose(obs, [*position, 0, 0, *(state.goal - position)], rtol=1e-5, atol=1e-6)
    costs, goals = 0, 0
    for i in range(150):
        # To the goals, later in all directions, and into a corner.
        action = 10 * np.asarray(obs[4:]) if i < 90 else rng.uniform(-3, 3, 2) if i < 110 else np.array([1.0, -1.0])
        goal, before = np.asarray(state.goal), position
        state, reached = step(jax.random.key(i), state, jnp.asarray(action, jnp.float32), env.params)
        velocity = (1 - DRAG) * velocity + PUSH * np.clip(action, -1, 1)
        position = position + velocity
        beyond = np.abs(position) >= 1
        position, velocity = np.clip(position, -1, 1), np.where(beyond, 0, velocity)
        obs = reached.obs
        np.testing.assert_allclose(obs[:4], [*position, *velocity], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(obs[4:], state.goal - position, rtol=1e-4, atol=1e-5)
        far, near = np.linalg.norm(goal - before), np.linalg.norm(goal - position)
        assert float(reached.reward) == pytest.approx(far - near + (near <= REACHED), abs=1e-5)
        assert float(reached.info["cost"]) == (np.linalg.norm(position) < 0.5)
        assert not reached.terminated and not reached.truncated
        assert np.array_equal(state.goal, goal) == (near > REACHED)
        np.testing.assert_allclose(np.linalg.norm(state.goal), CIRCLE, rtol=1e-5)
        costs, goals = costs + int(reached.info["cost"]), goals + int(near <= REACHED)
        position, velocity = np.asarray(state.position), np.asarray(state.velocity)
    assert costs > 5 and goals > 3 and position.tolist() == [1, -1]


def straight(obs: Any) -> Any:
    return 20 * obs[4:]


def around(obs: Any) -> Any:
    """Aim along the tangent of a circle around the hazard if the goal lies behind it."""
    position, ahead = obs[:2], obs[4:]
    away, far = jnp.linalg.norm(position), jnp.linalg.norm(ahead)
    side = position[0] * ahead[1] - position[1] * ahead[0]
    behind = (jnp.abs(side) / far < 0.47) & (position @ ahead < 0) & (position @ ahead / far**2 > -1.0)
    angle = jnp.arcsin(jnp.clip(0.5 / away, 0, 1)) * jnp.where(side < 0, -1.0, 1.0)
    turn = jnp.array([[jnp.cos(angle), jnp.sin(angle)], [-jnp.sin(angle), jnp.cos(angle)]])
    aim = turn @ (-position / away)
    return 20 * (jnp.where(behind, aim, ahead / far) - 2.0 * obs[2:4])


def played(act: Any, num_episodes: int = 256) -> tuple[float, float]:
    """Return the mean return and cost of episodes."""
    env = hazards()

    def episode(key: Any) -> Any:
        first, *keys = jax.random.split(key, STEPS + 1)

        def row(carry: Any, key: Any) -> Any:
            state, reached = env.step(key, carry[0], act(carry[1]), env.params)
            return (state, reached.obs), (reached.reward, reached.info["cost"])

        return jax.lax.scan(row, env.reset(first, env.params), jnp.stack(keys))[1]

    reward, cost = jax.jit(jax.vmap(episode), compiler_options=COMPILE_FAST)(jax.random.split(jax.random.key(1), num_episodes))
    return float(reward.sum(1).mean()), float(cost.sum(1).mean())


def test_shortest_ways_cross_the_hazard_and_detours_take_little_time() -> None:
    """So a limit on the cost binds, and leaves more than nine tenths of the return."""
    (fast, costly), (safe, free) = played(straight), played(around)
    assert costly > 12 and free < 1 and 0.9 * fast < safe < fast


def test_a_picture_shows_the_state_and_the_action() -> None:
    env = hazards()
    state, _ = env.reset(jax.random.key(0), env.params)
    assert env.render is not None
    pictures = [env.render(state, action, env.params) for action in (None, np.ones(2))]
    assert all(picture_problem(picture) is None for picture in pictures) and pictures[0].tobytes() != pictures[1].tobytes()
    other = hazards("?radius=0.2")
    assert env.render(state, None, other.params).tobytes() != pictures[0].tobytes()


@pytest.mark.parametrize("radius", [-0.1, 0.8])
def test_a_hazard_within_the_circle(radius: float) -> None:
    with pytest.raises(ValueError, match=f"jaxrl:Hazards: option radius={radius} must be at least 0, and below 0.8"):
        hazards(f"?radius={radius}")


def test_costs_of_repeated_actions_are_summed() -> None:
    env, one = hazards("?radius=0.7"), np.ones(2, np.float32)
    state, _ = env.reset(jax.random.key(0), env.params)
    inside = state._replace(position=jnp.zeros(2))
    repeated = hazards("?radius=0.7|action_repeat(3)")
    _, reached = repeated.step(
        jax.random.key(0), repeated.reset(jax.random.key(0), env.params)[0]._replace(env_state=inside), one, env.params
    )
    assert float(reached.info["cost"]) == 3
