"""Checks of what a planner's builder is given: the environment's spaces, the network, and settings without effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.builder.attempt import attempt, show
from jaxrl.builder.prepare import PreparedAgent
from jaxrl.models import StepPrediction
from jaxrl.settings.validation import refuse_schedules, refuse_unused
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Env, HostEnv, Model

WITHOUT_LEARNING = "with dynamics=SimulatorDynamics(), which learns nothing: leave it out"


def check_spaces(env: Env | HostEnv, *, learned: bool) -> None:
    """Raise ValueError for an environment of several agents, a Box without bounds or, if the dynamics are learned, observations
    other than vectors. Other actions than those of a Box are refused elsewhere."""
    actions, seen = env.action_space, env.observation_space
    if not isinstance(actions, spaces.Box):
        return
    if env.num_agents:
        raise ValueError(f"MPC plans for one agent, and {env.name} has {env.num_agents}: use make_ppo or make_sac")
    if not (actions.is_bounded() and np.issubdtype(actions.dtype, np.floating)):
        raise ValueError(
            f"{env.name} has {actions}, but MPC draws actions from a Box of real numbers with bounds on all sides: give the "
            "environment bounds, or use make_ppo"
        )
    if learned and not (isinstance(seen, spaces.Box) and len(seen.shape) == 1):
        raise ValueError(
            f"{env.name} has the observations {seen}, and MPC learns the dynamics of vectors, a Box with one axis: flatten its "
            "observations, or plan with dynamics=SimulatorDynamics()"
        )


def no_network(observation_space: spaces.Space, action_space: spaces.Space, **arguments: Any) -> Model:
    """Return a model without parameters and outputs, where nothing is learned."""
    apply = lambda params, carry, inputs, key=None: (carry, ())  # noqa: E731
    return Model(lambda key, inputs: (), apply, apply, lambda batch_size: ())


def refuse_learning(prepared: PreparedAgent[Any], parts: Mapping[str, Any], used: Collection[str]) -> None:
    """Raise ValueError for what has no effect where nothing is learned: parts, and hyperparameters other than those ``used``."""
    for name in ("model", "optimizer", "reward"):
        if parts[name] is not None:
            raise ValueError(f"{name}={show(parts[name])} has no effect {WITHOUT_LEARNING}")
    given: Any = prepared.hyperparams
    unused = [name for name in given._fields if name not in used]
    refuse_unused(given, type(given)(), unused, WITHOUT_LEARNING)
    refuse_schedules(prepared.setup.schedules, unused, WITHOUT_LEARNING)


def check_dynamics(prepared: PreparedAgent[Any], parts: Mapping[str, Any]) -> None:
    """Raise TypeError unless the model gives predictions of a step, and the ``reward``, if there is one, a number; ValueError for
    an argument of the model without effect."""
    env, output, reward = prepared.env, prepared.output, parts["reward"]
    if isinstance(parts["model"], Mapping) and parts["model"].get("use_previous"):
        raise ValueError("use_previous=True has no effect: the networks predict from an observation and an action alone")
    (size,) = env.observation_space.shape  # type: ignore[misc]
    wanted = ((1, size + 1), (1, size + 1), (1, size + 1), (1,))
    if not isinstance(output, StepPrediction) or tuple(getattr(x, "shape", None) for x in output) != wanted:
        raise TypeError(
            f"model={show(parts['model'])} must give StepPrediction(mean, log_variance, width f32[batch, {size + 1}], terminated "
            f"f32[batch]), as dynamics_network does; for a batch of one it gives {show_shapes(output)}"
        )
    if reward is None:
        return
    if not callable(reward):
        raise TypeError(f"reward={show(reward)} must be a function (obs, action, next_obs) -> reward f32[]")
    obs, action = (jax.ShapeDtypeStruct(space.shape, jnp.float32) for space in (env.observation_space, env.action_space))
    found = attempt(f"reward={show(reward)}, called as (obs, action, next_obs),", reward, obs, action, obs)
    if getattr(found, "shape", None) != ():
        raise TypeError(f"reward={show(reward)} gives {show_shapes(found)} for one row, and must give one number")
