"""An environment that counts its steps, its plain Python, and rows of both."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.rollout.autoreset import StepOutcome, first_input, no_episode
from jaxrl.rollout.collect import advance
from jaxrl.rollout.env_batches import reset_envs
from jaxrl.types import ActorState, Env, TimeStep

NUM_ENVS = 2


class Ends(NamedTuple):
    """Times at which an episode of ``clock`` terminates and is truncated."""

    end: Any = 7
    cut: Any = 100


def clock(end: int = 7, cut: int = 100, bound: float = 8.0) -> Env:
    """Environment that observes (the time, the previous action, their product), with the time plus the action as reward."""

    def seen(time: Any, action: Any) -> Any:
        return jnp.stack([time.astype(jnp.float32), action, time * action])

    def reset(key: Any, params: Ends) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(3)

    def step(key: Any, time: Any, action: Any, params: Ends) -> Any:
        time, done = time + 1, jnp.asarray(time + 1 >= params.end)
        reward = time + action[0]
        return time, TimeStep(seen(time, action[0]), reward, done, jnp.asarray(time >= params.cut), {"time": time})

    def render(time: Any, action: Any, params: Ends) -> Any:
        pixel = [int(time), 0 if action is None else int(action[0]), int(params.end)]
        return np.array([[pixel]], np.uint8)

    line = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    push = spaces.Box(-bound, bound, (1,), np.float32)
    return Env(reset, step, line, push, Ends(end, cut), render=render, render_fps=12)


class Game:
    """``clock`` in plain Python."""

    def __init__(self, end: int = 7, cut: int = 100) -> None:
        self.end, self.cut = end, cut

    def reset(self) -> list[float]:
        self.time = 0
        return [0, 0, 0]

    def step(self, action: float) -> tuple[list[float], float, bool, bool]:
        self.time += 1
        seen = [self.time, action, self.time * action]
        return seen, self.time + action, self.time >= self.end, self.time >= self.cut


def play(env: Env, actions: Any, params: Any = None) -> tuple[Any, StepOutcome]:
    """Return ``(obs [T + 1, B], outcome [T, B])`` of rows as in a rollout. All environments get the same actions [T]."""
    params, env_id = env.params if params is None else params, jnp.arange(NUM_ENVS)
    keys = jax.random.split(jax.random.key(0), len(actions) + 1)

    def row(actor: ActorState, action_and_key: Any) -> Any:
        action, key = action_and_key
        after, outcome = advance(env, actor, (), action, params, env_id, key, jax.random.fold_in(key, 1))
        return after, (actor.input.obs, outcome)

    @jax.jit
    def rows(actions: Any) -> Any:
        env_state, obs = reset_envs(env, keys[-1], env_id, params)
        first = first_input(obs, env.action_space, NUM_ENVS)
        actor = ActorState(env_state, first, (), jnp.zeros(NUM_ENVS, bool), no_episode(NUM_ENVS, jnp))
        last, (obs, outcome) = jax.lax.scan(row, actor, (actions, keys[:-1]))
        return jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), obs, last.input.obs), outcome

    batch = np.broadcast_to(np.asarray(actions, np.float32)[:, None, None], (len(actions), NUM_ENVS, 1))
    return jax.tree.map(np.asarray, rows(batch))


def expected(game: Any, actions: Any, limit: int | None = None) -> tuple[np.ndarray, ...]:
    """Return observations [T + 1], and rewards, flags and validity [T], of NEXT_STEP rows."""
    seen, rows, done, length = [game.reset()], [], False, 0
    for action in actions:
        if done:
            seen.append(game.reset())
            rows.append((0, False, False, False))
            done, length = False, 0
            continue
        obs, reward, terminated, truncated = game.step(action)
        length += 1
        truncated = (truncated or length == limit) and not terminated
        done = terminated or truncated
        seen.append(obs)
        rows.append((reward, terminated, truncated, True))
    return np.array(seen, np.float32), *map(np.array, zip(*rows, strict=True))


def assert_rows(env: Env, game: Any, actions: Any, limit: int | None = None) -> None:
    obs, outcome = play(env, actions)
    seen, *rows = expected(game, actions, limit)
    assert not all(rows[-1]) and (rows[1].any() or rows[2].any())  # some episode ended, and another one began
    for i in range(NUM_ENVS):
        np.testing.assert_allclose(obs[:, i], seen, rtol=1e-6)
        for got, want in zip((outcome.reward, outcome.terminated, outcome.truncated, outcome.valid), rows, strict=True):
            np.testing.assert_allclose(got[:, i], want, rtol=1e-6)


ACTIONS = np.array([1, -2, 3, 0, 5, -1, 2, 4, -3, 1, 2, 7, 0, 1, -5, 2, 1, 3, -2, 6], np.float32)
