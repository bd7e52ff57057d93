"""Goal environments: the entries of their observations. Like ``jaxrl.spaces.action_masks``, this module does not import jax.

The names are those of Gymnasium-Robotics (Plappert et al. 2018): ``observation`` is the agent's view of the world,
``achieved_goal`` the state of the world as a goal, and ``desired_goal`` the goal to achieve.
"""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

OBSERVATION, ACHIEVED, DESIRED = GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


def has_goals(space: spaces.Space) -> bool:
    """Return True if ``space`` has the entries of a goal environment."""
    return isinstance(space, spaces.Dict) and {*GOAL_KEYS} <= {*space.spaces}


def check_goals(env: Any, why: str) -> None:
    """Check that an environment is a goal environment; ``why`` names the setting that needs one.

    Raises:
      ValueError: the environment has no ``compute_reward``.
    """
    if getattr(env, "compute_reward", None) is not None:
        return
    if has_goals(env.observation_space):
        fix = (
            "pass Env(…, compute_reward=function of (achieved, desired) -> (reward, terminated)); the wrapper action_repeat "
            "removes it, because it sums rewards"
        )
    else:
        fix = (
            "its observations must be a Dict of observation, achieved_goal and desired_goal, as in 'jaxrl:BitFlip'; "
            "the wrappers flatten_observation and select_observation remove goals, and the networks do not need them"
        )
    raise ValueError(f"{why} needs a goal environment, with compute_reward, but {env.name} is not one: {fix}")
