"""Export of a trained policy for use without jaxrl: its function by ``jax.export``, and its arrays by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import export

from jaxrl.rollout.autoreset import expand_mask, zero_actions
from jaxrl.settings.validation import check_count
from jaxrl.spaces.trees import zeros
from jaxrl.types import Array, Policy, PyTree, StepInput

PLATFORMS = ("cpu", "cuda", "tpu")
"""Default platforms of an exported policy, regardless of where it is exported."""
KNOWN_PLATFORMS = (*PLATFORMS, "rocm")
"""Names of platforms. ``jax.export`` takes any text, and a function for an unknown platform runs nowhere."""

Row = Callable[[PyTree, StepInput, Array | None], tuple[PyTree, Array]]
"""One row of a policy: (carry, inputs [B], key data) -> (carry, action [B])."""


def check_platforms(platforms: Sequence[str]) -> list[str]:
    """Return the platforms as a list. Raise ValueError unless all are known, and there is at least one."""
    listed = [] if isinstance(platforms, str) else list(platforms)
    if not listed or not all(name in KNOWN_PLATFORMS for name in listed):
        fix = ": a GPU is cuda or rocm" if "gpu" in platforms else ""
        raise ValueError(f"platforms={platforms!r} must be a sequence of {', '.join(KNOWN_PLATFORMS)}, such as ('cpu',){fix}")
    return listed


def flat_arrays(policy: Policy) -> dict[str, np.ndarray]:
    """Return parameters by path, without flax's level ``params``, and the statistics of normalisation below ``statistics/``."""
    found = jax.tree_util.tree_leaves_with_path(policy.params)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in found]
    short = ["/".join(part for part in path.split("/") if part != "params") or "params" for path in paths]
    names = short if len(set(short)) == len(short) else paths
    arrays = {name: np.ascontiguousarray(x) for name, (_, x) in zip(names, found, strict=True)}
    for path, x in jax.tree_util.tree_leaves_with_path(policy.statistics):
        name = f"statistics/{jax.tree_util.keystr(path, simple=True, separator='/')}"
        arrays[name] = np.array(x)
    return arrays


def export_row(
    row: Row,
    carry: PyTree,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    explore: bool,
    batch_size: int | None = None,
    platforms: Sequence[str] = PLATFORMS,
) -> export.Exported:
    """Export a policy with this initial carry, [1, ...], as a compiled function of plain arrays; see ``LoadedPolicy.export``."""
    platforms, actions = check_platforms(platforms), zero_actions(action_space, 1)
    carries, structure = jax.tree.flatten(carry)

    def general(memory: tuple[Array, ...], obs: PyTree, prev_reward: Array, is_first: Array, *key: Array) -> Any:
        *leaves, action = memory
        action = jnp.where(expand_mask(is_first, action), actions, action)
        inputs = StepInput(obs, action, jnp.where(is_first, 0.0, prev_reward), is_first)
        carry, action = row(structure.unflatten(leaves), inputs, *key or (None,))
        return (*jax.tree.leaves(carry), action), action

    def memoryless(obs: PyTree, *key: Array) -> Array:
        size = jax.tree.leaves(obs)[0].shape[0]
        previous = jnp.broadcast_to(actions, (size, *actions.shape[1:]))
        return general((previous,), obs, jnp.zeros(size), jnp.ones(size, bool), *key)[1]

    def arguments(size: Any) -> tuple[Any, ...]:
        """Return the shapes of the arguments of ``general``."""
        memory = tuple(jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in (*carries, actions))
        obs = jax.eval_shape(lambda: zeros(observation_space))
        obs = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), obs)
        key = (jax.ShapeDtypeStruct((2,), jnp.uint32),) if explore else ()
        flags = [jax.ShapeDtypeStruct((size,), dtype) for dtype in (jnp.float32, jnp.bool_)]
        return (memory, obs, *flags, *key)

    size = export.symbolic_shape("batch")[0] if batch_size is None else check_count("batch_size", batch_size)
    memory, obs, prev_reward, is_first, *key = arguments(size)
    # With concrete sizes, jax.export drops unused arguments: this shows if previous action and reward, and is_first, are used.
    looked_at = export.export(jax.jit(general))(*arguments(1)).module_kept_var_idx
    unused = {len(carries), *(len(carries) + 1 + len(jax.tree.leaves(obs)) + i for i in range(2))}
    if not carries and not unused & set(looked_at):
        return export.export(jax.jit(memoryless), platforms=platforms)(obs, *key)
    return export.export(jax.jit(general), platforms=platforms)(memory, obs, prev_reward, is_first, *key)
