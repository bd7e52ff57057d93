"""Particle environments row by row against PettingZoo's (package ``mpe2``), from the same states with the same actions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import make_env
from jaxrl.envs.builtin import particles
from jaxrl.envs.builtin.reference import ReferenceState
from jaxrl.envs.builtin.speaker_listener import SpeakerListenerState
from jaxrl.envs.builtin.spread import SpreadState
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.types import Env

ROWS = particles.STEPS


class Case(NamedTuple):
    name: str
    peer: str
    options: dict[str, Any]
    """Of the peer."""
    lengths: tuple[int, ...]
    """Of the agents' observations without padding."""
    actions: tuple[int, ...]
    """Numbers of actions of the agents."""
    state_of: Callable[[Any], Any]
    """State of this library's environment, from the peer's world."""


def column(entities: Any, what: str = "p_pos") -> Any:
    return np.array([getattr(entity.state, what) for entity in entities])


def goals(world: Any) -> Any:
    return np.int32([world.landmarks.index(agent.goal_b) for agent in world.agents if agent._goal_b is not None])


def spread_state(world: Any) -> Any:
    return SpreadState(column(world.agents), column(world.agents, "p_vel"), column(world.landmarks))


def speaker_state(world: Any) -> Any:
    listener = world.agents[1:]
    position, velocity = column(listener)[0], column(listener, "p_vel")[0]
    return SpeakerListenerState(position, velocity, column(world.landmarks), goals(world)[0], np.array(-1, np.int32))


def reference_state(world: Any) -> Any:
    words = np.full(2, -1, np.int32)
    return ReferenceState(column(world.agents), column(world.agents, "p_vel"), column(world.landmarks), goals(world), words)


SPREAD = Case("Spread", "simple_spread_v3", {}, (18,) * 3, (5,) * 3, spread_state)
CASES = {
    "Spread": SPREAD,
    "Spread?agents=5&local_ratio=0.2": SPREAD._replace(options={"N": 5, "local_ratio": 0.2}, lengths=(30,) * 5, actions=(5,) * 5),
    "SpeakerListener": Case("SpeakerListener", "simple_speaker_listener_v4", {}, (3, 11), (3, 5), speaker_state),
    "Reference": Case("Reference", "simple_reference_v3", {}, (21, 21), (50, 50), reference_state),
    "Reference?local_ratio=0.9": Case(
        "Reference", "simple_reference_v3", {"local_ratio": 0.9}, (21, 21), (50, 50), reference_state
    ),
}


def own(name: str) -> Env:
    env = make_env(f"jaxrl:{name}")
    assert isinstance(env, Env)
    return env


@cache
def runner(name: str) -> Any:
    """Return the program (states [E], actions [E, T, A]) -> (observations [E, T, A, ...], rewards [E, T, A])."""
    env = own(name)

    def episode(state: Any, actions: Any) -> Any:
        def row(state: Any, action: Any) -> Any:
            state, reached = env.step(jax.random.key(0), state, action, env.params)
            return state, (reached.obs, reached.reward, reached.terminated | reached.truncated)

        return jax.lax.scan(row, state, actions)[1]

    return jax.jit(jax.vmap(episode), compiler_options=COMPILE_FAST)


def stacked(states: list[Any], dtype: Any = np.float32) -> Any:
    batch = jax.tree.map(lambda *x: np.stack(x), *states)
    return jax.tree.map(lambda x: x.astype(dtype) if x.dtype.kind == "f" else x, batch)


def in_peer(case: Case, actions: Any, seed: int) -> tuple[list[Any], list[Any], Any]:
    """Play episodes in the peer, from positions of 32 bits: (the first states, observations [E, T, n] of each agent, rewards)."""
    peer = importlib.import_module(f"mpe2.{case.peer}").parallel_env(**case.options)
    states, seen, rewards = [], [], []
    for episode, of_rows in enumerate(actions):
        peer.reset(seed=seed + episode)
        world = peer.unwrapped.world
        for entity in world.entities:
            entity.state.p_pos = entity.state.p_pos.astype(np.float32).astype(float)
        states.append(case.state_of(world))
        for row in of_rows:
            obs, reward, terminated, truncated, _ = peer.step(dict(zip(peer.possible_agents, row.tolist(), strict=True)))
            seen.append([*obs.values()])
            rewards.append([*reward.values()])
            assert not any(terminated.values())
        assert all(truncated.values()) and not peer.agents  # after as many rows
    shape = actions.shape[:2]
    observations = [np.array(x).reshape(*shape, -1) for x in zip(*seen, strict=True)]
    return states, observations, np.array(rewards).reshape(actions.shape)


def compare(name: str, episodes: int, seed: int, dtype: Any = np.float32) -> None:
    case, rng = CASES[name], np.random.default_rng(seed)
    actions = np.stack([rng.integers(0, n, (episodes, ROWS)) for n in case.actions], -1)
    states, expected, expected_rewards = in_peer(case, actions, seed)
    obs, rewards, over = jax.device_get(runner(name)(stacked(states, dtype), actions))
    seen = obs["observation"] if isinstance(obs, dict) else obs
    for agent, (length, of_peer) in enumerate(zip(case.lengths, expected, strict=True)):
        np.testing.assert_allclose(seen[:, :, agent, :length], of_peer, rtol=1e-5, atol=1e-5)
        assert not seen[:, :, agent, length:].any() and seen.shape[-1] == max(case.lengths)
    np.testing.assert_allclose(rewards, expected_rewards, rtol=1e-5, atol=1e-5)
    assert not over.any() and own(name).max_episode_steps == ROWS  # the limit truncates
    if case.name == "Spread":
        assert len(np.unique(np.round(expected_rewards - expected_rewards.mean(-1, keepdims=True), 3))) > 2  # collisions


@pytest.mark.parametrize("name", CASES)
def test_rows_equal_those_of_the_peer(name: str) -> None:
    compare(name, episodes=4, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_rows_equal_those_of_the_peer_in_many_episodes(name: str) -> None:
    """In 64 bits, as the peer computes: a collision doubles a difference in each row that it lasts."""
    with jax.enable_x64(True):
        compare(name, episodes=500, seed=1000, dtype=np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Spread", "SpeakerListener", "Reference"])
def test_random_returns_equal_those_from_states_of_the_peer(name: str) -> None:
    """Resets have the same distribution: from either, random actions have the same mean return, within 1 %."""
    case, env, rng, episodes = CASES[name], own(name), np.random.default_rng(0), 20_000
    world = (peer := importlib.import_module(f"mpe2.{case.peer}").raw_env()).world
    states = []
    for _ in range(episodes):
        peer.scenario.reset_world(world, rng)
        states.append(case.state_of(world))
    of_peer = stacked(states)
    of_own, _ = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.key(0), episodes), env.params)
    returns = []
    for start in (of_peer, of_own):
        actions = np.stack([rng.integers(0, n, (episodes, ROWS)) for n in case.actions], -1)
        returns.append(float(runner(name)(start, actions)[1].sum(1).mean()))
    assert returns[1] == pytest.approx(returns[0], rel=0.01)


def test_points_at_the_same_place_have_finite_gradients() -> None:
    """A disc and itself, two discs at one place, and an agent on a landmark are at a distance of 0, where a square root has no
    gradient."""
    env, landmarks = own("Spread"), jnp.array([[0.1, 0.2], [0.5, 0.5], [0.9, 0.9]])

    def loss(position: Any) -> tuple[Any, Any]:
        state, forces = SpreadState(position, jnp.zeros((3, 2)), landmarks), particles.contact_forces(position, 0.15)
        rewards = []
        for _ in range(2):
            state, reached = env.step(jax.random.key(0), state, jnp.array([0, 0, 1]), env.params)
            rewards.append(reached.reward)
        return jnp.stack(rewards).sum(), (forces, rewards[0])

    position = jnp.array([[0.1, 0.2], [0.1, 0.2], [0.3, 0.2]])
    program = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=COMPILE_FAST)
    (_, (forces, rewards)), gradient = program(position)
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0.1
    np.testing.assert_allclose(forces, [[-10, 0], [-10, 0], [20, 0]], atol=1e-3)  # 100 · (0.3 − 0.2) from each disc
    uncovered = np.linalg.norm([0.2, 0.3]) + np.linalg.norm([0.6, 0.7])
    np.testing.assert_allclose(rewards, -0.5 * (uncovered + 2), rtol=1e-5)  # each overlaps two others


@pytest.mark.parametrize(
    "name, message",
    [
        ("Spread?agents=0", "jaxrl:Spread: option agents=0 must be an integer >= 1"),
        ("Spread?local_ratio=1.5", r"jaxrl:Spread: option local_ratio=1.5 must be within \[0, 1\]"),
        ("Reference?local_ratio=-0.1", r"jaxrl:Reference: option local_ratio=-0.1 must be within \[0, 1\]"),
        ("Reference?agents=3", "jaxrl:Reference has no option 'agents'.* It takes: local_ratio."),
        ("SpeakerListener?agents=2", "jaxrl:SpeakerListener has no option 'agents'. It takes none."),
    ],
)
def test_wrong_options_of_particles_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        own(name)
