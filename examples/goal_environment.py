"""A custom goal environment, trained with hindsight experience replay.

A goal environment is an Env with ``compute_reward`` and a Dict observation: ``observation``, ``achieved_goal``, ``desired_goal``.

python examples/goal_environment.py
jaxrl train dqn --env examples.goal_environment:make_walk --hindsight future --gamma 0.9
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

import jaxrl

MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]], np.int32)


class State(NamedTuple):
    cell: jax.Array
    goal: jax.Array


def compute_reward(achieved, desired):
    """Return the reward and whether the episode ends, for any goal. Hindsight calls it with goals that were never set."""
    reached = (achieved == desired).all()
    return reached.astype(jnp.float32), reached


def observe(state):
    return {"observation": state.cell, "achieved_goal": state.cell, "desired_goal": state.goal}


def make_walk(size: int = 16) -> jaxrl.Env:
    """Walk to a cell of a board. The only reward is at that cell."""

    def reset(key, params):
        state = State(*jax.random.randint(key, (2, 2), 0, size))
        return state, observe(state)

    def step(key, state, action, params):
        state = State(jnp.clip(state.cell + jnp.asarray(MOVES)[action], 0, size - 1), state.goal)
        reward, terminated = compute_reward(state.cell, state.goal)
        return state, jaxrl.TimeStep(observe(state), reward, terminated, truncated=jnp.asarray(False))

    cell = spaces.MultiDiscrete([size, size], dtype=np.int32)
    seen = spaces.Dict({"observation": cell, "achieved_goal": cell, "desired_goal": cell})
    actions = spaces.Discrete(len(MOVES))
    limit = 2 * size
    return jaxrl.Env(reset, step, seen, actions, name="walk", max_episode_steps=limit, compute_reward=compute_reward)


def main(size: int = 16, total_steps: int = 40_000, num_seeds: int = 4) -> dict[str, float]:
    env = make_walk(size)
    jaxrl.check_env(env)  # also checks that compute_reward agrees with step
    success = {}
    for hindsight in ("none", "future"):
        dqn = jaxrl.make_dqn(env, hindsight=hindsight, gamma=0.9, batch_size=256, learning_rate=1e-3, adam_eps=1e-5)
        train = jax.jit(jax.vmap(jaxrl.make_train(dqn, total_steps)))
        states, _ = train(jax.random.split(jax.random.key(0), num_seeds))
        played = jax.jit(jax.vmap(lambda state, dqn=dqn: jaxrl.evaluate(dqn, state, jax.random.key(1))))(states)
        success[hindsight] = float(played.episodic_return.mean())  # 1 where the goal was reached
        print(f"hindsight={hindsight!r}: {success[hindsight]:.0%} of the goals are reached, over {num_seeds} seeds")
    return success


if __name__ == "__main__":
    main()
