"""The backend ``jaxrl`` against plain Python, and goal environments with and without wrappers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import EnvError, check_env, describe_env, family_of, list_envs, make_env, validate_env
from jaxrl.envs.builtin.reach import ReachState
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.envs.checks.validate import picture_problem
from jaxrl.envs.wrappers import WRAPPERS
from jaxrl.spaces.goals import GOAL_KEYS
from jaxrl.types import Env, TimeStep

OWN = ("jaxrl:BitFlip?n=4", "jaxrl:Reach")


def own(env_id: str) -> Env:
    env = make_env(env_id)
    assert isinstance(env, Env)
    return env


def rollout(env: Env, actions: Any, seed: int = 0) -> tuple[Any, Any, list[Any]]:
    """Return ``(state, obs, steps)``: the first ones, and the result of each action."""
    step = jax.jit(env.step, compiler_options=COMPILE_FAST)
    first, obs = jax.jit(env.reset, compiler_options=COMPILE_FAST)(jax.random.key(seed), env.params)
    state, reached = first, []
    for i, action in enumerate(actions):
        state, time_step = step(jax.random.key(i), state, jnp.asarray(action), env.params)
        reached.append(jax.device_get((state, time_step)))
    return *jax.device_get((first, obs)), reached


@pytest.mark.parametrize("env_id", OWN)
def test_they_keep_the_contract(env_id: str) -> None:
    env = own(env_id)
    check_env(env)
    assert describe_env(env) == env.name == env_id
    assert env_id.partition("?")[0] in list_envs("jaxrl") and family_of(env_id) == "goals"


def test_a_bit_is_flipped_and_the_goal_ends_the_episode() -> None:
    """The number of differing bits is the number of actions to the goal. The return of an episode is then 1."""
    env = own("jaxrl:BitFlip?n=4")
    assert env.max_episode_steps == 4 and env.action_space == spaces.Discrete(4)
    for seed in range(4):
        state, obs, _ = rollout(env, [], seed)
        wrong = np.flatnonzero(state.bits != state.goal)
        assert len(wrong) > 0
        bits, (_, _, steps) = state.bits.copy(), rollout(env, wrong, seed)
        for i, (_, reached) in zip(wrong, steps, strict=True):
            bits[i] ^= 1
            for name, expected in zip(GOAL_KEYS, (bits, bits, state.goal), strict=True):
                np.testing.assert_array_equal(reached.obs[name], expected)
            solved = (bits == state.goal).all()
            assert (reached.reward, reached.terminated, reached.truncated) == (solved, solved, False)
        assert solved
        assert set(obs) == {*GOAL_KEYS}


def test_bits_and_goals_are_drawn_uniformly_and_differ() -> None:
    env = own("jaxrl:BitFlip?n=2")
    states, _ = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(0), 600), env.params)
    bits, goal = (np.asarray(x) @ [1, 2] for x in (states.bits, states.goal))
    assert (bits != goal).all()
    pairs = {(b, g): int(((bits == b) & (goal == g)).sum()) for b in range(4) for g in range(4) if b != g}
    assert min(pairs.values()) > 10 and min(np.bincount(bits)) > 100


def test_a_point_with_inertia_between_walls() -> None:
    env, rng = own("jaxrl:Reach?push=0.1&drag=0.25"), np.random.default_rng(0)
    actions = rng.uniform(-1.5, 1.5, (20, 2)).astype(np.float32)
    actions[10:] = [1.0, -1.0]  # into a corner
    state, obs, steps = rollout(env, actions)
    position, velocity = state.position.copy(), np.zeros(2, np.float32)
    np.testing.assert_array_equal(obs["observation"], [*position, 0, 0])
    for action, (_, reached) in zip(actions, steps, strict=True):
        velocity = 0.75 * velocity + 0.1 * np.clip(action, -1, 1)
        position = position + velocity
        beyond = np.abs(position) >= 1
        position, velocity = np.clip(position, -1, 1), np.where(beyond, 0, velocity)
        np.testing.assert_allclose(reached.obs["observation"], [*position, *velocity], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(reached.obs["achieved_goal"], reached.obs["observation"][:2])
        near = np.sum((position - state.goal) ** 2) <= 0.05**2
        assert (reached.reward, reached.terminated, reached.truncated) == (near, near, False)
    assert (position == [1, -1]).all()


def test_reaching_within_the_radius_ends_the_episode() -> None:
    env = own("jaxrl:Reach?radius=0.2")
    for distance, near in ((0.19, True), (0.21, False)):
        state = ReachState(jnp.zeros(2), jnp.zeros(2), jnp.array([0.0, distance]))
        _, reached = env.step(jax.random.key(0), state, jnp.zeros(2), env.params)
        assert (float(reached.reward), bool(reached.terminated)) == (near, near)


@pytest.mark.parametrize("env_id", OWN)
def test_pictures_show_the_state_and_the_action(env_id: str) -> None:
    env = own(env_id)
    state, _, [(after, _)] = rollout(env, [np.zeros(env.action_space.shape, env.action_space.dtype) + 1])
    assert env.render is not None
    action = np.ones(env.action_space.shape, env.action_space.dtype)
    pictures = [env.render(*args, env.params) for args in ((state, None), (after, None), (after, action))]
    assert all(picture_problem(picture) is None for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == 3


@pytest.mark.parametrize(
    "env_id, message",
    [
        ("jaxrl:BitFlp", "jaxrl has no environment 'BitFlp'. Did you mean 'BitFlip'"),
        ("jaxrl:BitFlip?n=0", "jaxrl:BitFlip: option n=0 must be an integer >= 1"),
        ("jaxrl:BitFlip?bits=3", "jaxrl:BitFlip has no option 'bits'.* It takes: n."),
        ("jaxrl:Reach?radius='far'", "option radius='far' must be a number"),
        ("jaxrl:Reach?radius=-0.05", "jaxrl:Reach: option radius=-0.05 must be at least 0, and finite"),
        ("jaxrl:Reach?radius=1e999", "option radius=inf must be at least 0, and finite"),
        ("jaxrl:Reach?push=-1", "option push=-1 must be at least 0, and finite"),
        ("jaxrl:Reach?push=1e300", r"option push=1e\+300 must be at least 0, and finite"),
        ("jaxrl:Reach?drag=1.5", r"option drag=1.5 must be within \[0, 1\]"),
    ],
)
def test_wrong_options_are_refused(env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env(env_id)


# ------------------------------------------------------------------------------------------------------------- goal environments


def goal_env(**changes: Any) -> Env:
    return own(OWN[0])._replace(name="mine", **changes)


def seen(**entries: spaces.Space) -> spaces.Dict:
    return spaces.Dict(entries)


BITS = spaces.MultiBinary(4)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"observation_space": BITS}, "needs a Dict that also has 'observation', 'achieved_goal', 'desired_goal': use spaces"),
        ({"observation_space": seen(observation=BITS, achieved_goal=BITS)}, "needs a Dict that also has 'desired_goal': use"),
        (
            {"observation_space": seen(observation=BITS, achieved_goal=BITS, desired_goal=spaces.MultiBinary(3))},
            r"observation_space\['achieved_goal'\] is int8\[4\], but observation_space\['desired_goal'\] has int8\[3\]: they "
            "must agree, since hindsight replay uses achieved goals as desired ones",
        ),
        ({"compute_reward": lambda achieved, desired: jnp.float32(0)}, r"compute_reward returned float32\[\]; it must return"),
        (
            {"compute_reward": lambda achieved, desired: (jnp.float32(0), achieved == desired)},
            r"compute_reward returned bool\[4\] as terminated; it must be one bool",
        ),
        ({"compute_reward": lambda achieved, desired: (0, True)}, r"returned int.* as reward; it must be one float32"),
        ({"compute_reward": lambda achieved: 0}, "compute_reward raised TypeError: "),
        (
            {"compute_reward": lambda a, d: (jnp.float32(a[0] == d[0]), True) if (a == d).all() else (0, False)},
            "compute_reward uses a traced value in Python control flow",
        ),
    ],
)
def test_goal_spaces_and_rewards_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        validate_env(goal_env(**changes))


def test_rewards_that_do_not_follow_from_the_goals_are_found() -> None:
    env = goal_env()

    def step(key: Any, state: Any, action: Any, params: Any) -> tuple[Any, TimeStep]:
        state, reached = env.step(key, state, action, params)
        return state, reached._replace(reward=reached.reward - 0.01 * action)

    with pytest.raises(
        EnvError, match=r"step gave the reward -0.0\d, but compute_reward gave 0 for the goals .* they must agree"
    ):
        check_env(env._replace(step=step))


KEPT = {"time_limit": (3,), "sticky_actions": (), "time_aware": (), "frame_stack": (2,)}
LOST = {"flatten_observation": (), "select_observation": ("observation", "desired_goal"), "action_repeat": (2,)}


@pytest.mark.parametrize("name", [*KEPT, *LOST])
def test_wrappers_keep_goals_or_make_it_no_goal_environment(name: str) -> None:
    wrapped = WRAPPERS[name](own(OWN[0]), *(KEPT | LOST)[name])
    validate_env(wrapped)
    assert (wrapped.compute_reward is not None) == (name in KEPT)
    if name in KEPT:
        assert isinstance(wrapped.observation_space, spaces.Dict)
        assert wrapped.observation_space["achieved_goal"] == wrapped.observation_space["desired_goal"] == BITS


def test_frames_are_stacked_beside_single_goals() -> None:
    env = WRAPPERS["frame_stack"](own(OWN[0]), 2)
    _, obs, [(_, reached)] = rollout(env, [1])
    assert obs["observation"].shape == (8,) and reached.obs["achieved_goal"].shape == (4,)
    np.testing.assert_array_equal(reached.obs["observation"], [*obs["achieved_goal"], *reached.obs["achieved_goal"]])
    # Those for a Box, for several agents, and one whose entries a goal environment needs itself.
    others = {"scale_action", "clip_action", "agent_id", "central_state", "privileged_state"}
    assert {*KEPT, *LOST} == {*WRAPPERS} - others
