"""Checks of the networks of algorithms that learn a policy and critics from replay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from jaxrl.builder.attempt import show
from jaxrl.builder.networks import ModelFn, is_recurrent, model_output, resolve_model
from jaxrl.distributions import Categorical, TanhNormal
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Env, HostEnv, Model, PyTree


def resolve_critic(
    argument: Model | ModelFn | None,
    default: ModelFn,
    env: Env | HostEnv,
    num_outputs: int | None = None,
    *,
    memory: bool = False,
) -> Model:
    """Resolve a builder's ``critic`` keyword, and check its output shapes.

    Args:
      memory: it learns from sequences, so it may have memory.

    Raises:
      TypeError: not a model of action-values, or one with memory that learns from single rows.
    """
    critic = resolve_model(argument, default, env, name="critic")
    if is_recurrent(critic) and not memory:
        named = "the critic" if argument is None else f"critic={show(argument)}"  # None: it was given as arguments
        raise TypeError(
            f"{named} must be memoryless (initial_carry gives ()), because it learns from single rows: critics "
            "with memory need a policy with memory"
        )
    space = env.action_space
    box = isinstance(space, spaces.Box)
    seen = env._replace(observation_space=seen_by_critic(env.observation_space, space))
    output = model_output(argument, critic, seen, unrolled=is_recurrent(critic), name="critic")
    shape = ((1, num_outputs) if num_outputs else (1,)) if box else (1, space.n)  # type: ignore[attr-defined]
    if getattr(output, "shape", None) != shape:
        wanted = f"values f32[batch, {shape[-1]}] of all actions"
        if box:
            wanted = f"{num_outputs} numbers f32[batch, {num_outputs}]" if num_outputs else "a value f32[batch]"
            wanted += " for each observation and action"
        raise TypeError(f"critic={show(argument)} must give {wanted}; for a batch of one it gives {show_shapes(output)}")
    return critic


def check_policy(model: Any, output: PyTree, action_space: spaces.Space) -> None:
    """Raise TypeError unless ``output``, the shapes for a batch of one, is a distribution over these actions."""
    kind: Any = TanhNormal if isinstance(action_space, spaces.Box) else Categorical
    size = math.prod(action_space.shape) if isinstance(action_space, spaces.Box) else int(action_space.n)  # type: ignore[attr-defined]
    if not isinstance(output, kind) or output[0].shape != (1, size):
        raise TypeError(
            f"model={show(model)} must give a {kind.__name__} policy of size {size} for {action_space}, as policy_network does; "
            f"for a batch of one it gives {show_shapes(output)}"
        )
    if isinstance(output, TanhNormal) and output.low is not None:
        raise TypeError(
            f"model={show(model)} must give a TanhNormal in [−1, 1]; jaxrl scales it to the bounds: leave low and high out"
        )


def check_actions_of(model: Any, output: PyTree, action_space: spaces.Space) -> None:
    """Raise TypeError unless ``output``, the shapes for a batch of one, is an action of this space's size."""
    size = math.prod(action_space.shape or ())
    if getattr(output, "shape", None) != (1, size):
        raise TypeError(
            f"model={show(model)} must give actions f32[batch, {size}] in [−1, 1], as deterministic_policy does; "
            f"for a batch of one it gives {show_shapes(output)}"
        )


def seen_by_critic(observation_space: spaces.Space, action_space: spaces.Space) -> spaces.Space:
    """Return the space of the ``obs`` passed to a critic: for Box actions, a tuple of observation and action."""
    if not isinstance(action_space, spaces.Box):
        return observation_space
    return spaces.Tuple((observation_space, spaces.Box(-1.0, 1.0, (math.prod(action_space.shape),), np.float32)))
