"""Actions of a fixed policy at the observations of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.agent.checks import check_agent
from jaxrl.builder.stand_in import stand_in
from jaxrl.replay.dataset import Dataset, DatasetInfo, check_spaces
from jaxrl.rollout.autoreset import next_input
from jaxrl.rollout.inputs import example_input
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.settings.aliases import shortened
from jaxrl.spaces.trees import bounds, show_shapes
from jaxrl.training import policy_of
from jaxrl.types import Agent, Algorithm, Array, Key, Policy, PyTree, StepInput

ROWS_AT_ONCE = 4096
"""Rows for which a policy computes actions at once."""

PolicyFunction = Callable[[PyTree], Any]
"""Observations [B, ...] -> actions [B, ...], in the environment's units."""


class FixedPolicy(NamedTuple):
    """A policy that does not change, as one of two: an algorithm with its ``Policy``, or a function."""

    algorithm: Algorithm | None
    policy: Policy | tuple[()]
    explore: bool
    function: PolicyFunction | None = None


def fixed_policy(policy: Any, info: DatasetInfo, explore: bool | None) -> FixedPolicy:
    """Return the policy that an argument stands for.

    Args:
      policy: a ``LoadedPolicy``; a pair of an agent and its state, or its ``Policy``; or a ``PolicyFunction``.
      info: description of the data, whose spaces the policy must have.
      explore: act as in training; None: as passed to ``load_policy``, and otherwise not.

    Raises:
      TypeError: another kind of object, or a policy whose actions depend on more than the current row's input.
      ValueError: other spaces than the data's, a state of several seeds, or ``explore`` for a function.
    """
    if isinstance(policy, LoadedPolicy):
        check_spaces(info, stand_in("the policy", policy.observation_space, policy.action_space))
        found = FixedPolicy(policy.algorithm, policy.policy, policy.explore if explore is None else bool(explore))
    elif type(policy) is tuple and len(policy) == 2 and isinstance(policy[0], Agent):
        agent, state = policy
        check_agent(agent)
        check_spaces(info, agent.env)
        found = FixedPolicy(agent.algorithm, policy_of(agent, state), bool(explore))
    elif callable(policy):
        if explore:
            raise ValueError("explore=True has no effect on a function, which computes its actions alone: leave it out")
        return FixedPolicy(None, (), False, policy)
    else:
        raise TypeError(
            f"policy={shortened(policy)} must be what jaxrl.load_policy returns, a pair (agent, state), or a function of "
            "observations [B, ...] that returns actions [B, ...]"
        )
    if _has_memory(found, info):
        how = "exploring actions" if found.explore else "actions"
        raise TypeError(
            f"the {how} of this policy depend on a carry, as those of recurrent policies do, and fitted Q evaluation is for "
            "policies that are functions of the observation: use jaxrl.evaluate on an environment"
        )
    return found


def _has_memory(fixed: FixedPolicy, info: DatasetInfo) -> bool:
    """Return whether the actions depend on the carry. Noise that is held over rows is in one, and greedy actions ignore it."""
    algorithm = fixed.algorithm
    assert algorithm is not None

    def action(carry: PyTree) -> Array:
        inputs, one = example_input(info.observation_space, info.action_space), jnp.zeros(1, jnp.int32)
        return algorithm.act(fixed.policy, carry, inputs, one, jax.random.key(0), explore=fixed.explore)[1]  # type: ignore[arg-type]

    carries = jax.eval_shape(lambda: jax.tree.map(lambda x: x[None], algorithm.initial_carry(1)))
    if not jax.tree.leaves(carries):
        return False
    try:  # vmap raises an error if an output that it must not map depends on what it maps
        jax.eval_shape(jax.vmap(action, out_axes=None), carries)
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        return True
    return False


def actions_of(fixed: FixedPolicy, data: Dataset, key: Key) -> Array:
    """Return the policy's action at the observation of each row of the data, also of rows that are not valid, [N, ...].

    A row's input has the action and the reward of the row before. Actions are in the environment's units.

    Raises:
      TypeError, ValueError: a function returns other actions than those of the data's action space.
    """
    if fixed.function is not None:
        return jnp.asarray(_of_function(fixed.function, data))
    assert fixed.algorithm is not None
    return _of_algorithm(fixed.algorithm, fixed.explore, fixed.policy, data, key)


@partial(jax.jit, static_argnums=(0, 1))
def _of_algorithm(algorithm: Algorithm, explore: bool, policy: Policy, data: Dataset, key: Key) -> Array:
    number = len(data.returns_to_go)
    size = min(ROWS_AT_ONCE, number)
    env_id = jnp.arange(size, dtype=jnp.int32)

    def part(first: Array) -> Array:
        at = (first + env_id) % number
        row, before = (data.records[x, 0].unpack() for x in (at, (at - 1) % number))
        inputs: StepInput = next_input(row.obs, before.action, before.reward, before.valid)
        carry, key_of_part = algorithm.initial_carry(size), jax.random.fold_in(key, first)
        return algorithm.act(policy, carry, inputs, env_id, key_of_part, explore=explore)[1]

    found = jax.lax.map(part, jnp.arange(0, number, size, dtype=jnp.int32))
    return found.reshape(-1, *found.shape[2:])[:number]


def _of_function(function: PolicyFunction, data: Dataset) -> np.ndarray:
    space, number = data.info.action_space, len(data.returns_to_go)
    parts = []
    for first in range(0, number, ROWS_AT_ONCE):
        rows: Any = data.records[first : first + ROWS_AT_ONCE, 0].unpack()
        obs = jax.tree.map(np.asarray, rows.obs)
        parts.append(_checked(function(obs), len(rows.valid), space))
    return np.concatenate(parts)


def _checked(action: Any, number: int, space: spaces.Space) -> np.ndarray:
    """Return the actions of a function in the type of actions; raise an error if they are not in the space."""
    found, shape = np.asarray(action), (number, *(space.shape or ()))
    box = isinstance(space, spaces.Box)
    if found.shape != shape or found.dtype.kind not in ("iuf" if box else "iu"):
        wanted = jax.ShapeDtypeStruct(shape, jnp.float32 if box else jnp.int32)
        raise TypeError(f"policy must return actions {show_shapes(wanted)} for {number} observations, not {show_shapes(found)}")
    low, high = bounds(space) if isinstance(space, spaces.Box) else (0, int(space.n) - 1)  # type: ignore[attr-defined]
    found = found.astype(np.float32 if box else np.int32)
    outside = ~((found >= low) & (found <= high))  # also NaN
    if outside.any():
        raise ValueError(f"policy returns the action {found[outside][0]}, outside of {space}: clip actions to the space")
    return found
