"""Goal environments: what their observations have to hold. Imports no jax, as ``jaxrl.spaces.action_masks``.

The names are those of Gymnasium-Robotics (Plappert et al. 2018): ``observation`` is what the agent sees of the world,
``achieved_goal`` what the world has come to, in the terms of a goal, and ``desired_goal`` what it should come to.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

OBSERVATION, ACHIEVED, DESIRED = GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


def has_goals(space: spaces.Space) -> bool:
    """Whether observations of ``space`` are those of a goal environment."""
    return isinstance(space, spaces.Dict) and {*GOAL_KEYS} <= {*space.spaces}


def check_goals(env: Any, why: str) -> None:
    """Refuse an environment that is no goal environment; ``why`` says which setting needs one.

    Raises:
      ValueError: it has no ``compute_reward``.
    """
    if getattr(env, "compute_reward", None) is not None:
        return
    if has_goals(env.observation_space):
        fix = (
            "give it Env(…, compute_reward=function of (achieved, desired) -> (reward, terminated)); the wrapper action_repeat "
            "takes it away, as it sums rewards"
        )
    else:
        fix = (
            "its observations must be a Dict of observation, achieved_goal and desired_goal, as those of 'jaxrl:BitFlip' are; "
            "the wrappers flatten_observation and select_observation take goals away, and no network needs them to"
        )
    raise ValueError(f"{why} needs a goal environment, with compute_reward, and {env.name} is none: {fix}")
