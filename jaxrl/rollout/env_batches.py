"""Batches of pure environments: their keys, their parameters, and resets of those that are done.

Environment i draws in iteration n from (key, n, i) alone, so its rows do not depend on its batch or device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from jaxrl.rollout.autoreset import expand_mask
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Array, Env, Key, PyTree
from jaxrl.xla.fast_random import fold_in


def fold_each(key: Key, env_id: Array) -> Key:
    """Return one key per environment, [B], from a common key or one key each."""
    chex.assert_rank(env_id, 1)
    return jax.vmap(fold_in, in_axes=(0 if key.ndim else None, 0))(key, env_id)


def params_axes(env: Env, env_params: PyTree) -> PyTree:
    """Return ``in_axes`` for environment parameters: 0 for a leaf with one value per environment, None for a shared value."""
    defaults, structure = jax.tree.flatten(env.params)
    if jax.tree.structure(env_params) != structure:
        kind = type(env.params).__name__
        way = next((way for way in ("replace", "_replace") if hasattr(env.params, way)), None)
        fix = f"agent.env.params.{way}(name=value)" if way else "a copy of agent.env.params"
        raise ValueError(
            f"env_params must have the structure of the environment's own params, a {kind} like {show_shapes(env.params)}, not "
            f"{show_shapes(env_params)}: use {fix}"
        )
    pairs = zip(structure.flatten_up_to(env_params), defaults, strict=True)
    return structure.unflatten([None if jnp.ndim(leaf) == jnp.ndim(default) else 0 for leaf, default in pairs])


def check_env_params(env: Env, env_params: PyTree, num_envs: int) -> None:
    """Check that each parameter is one value, or one value per environment."""
    params_axes(env, env_params)  # checks the structure
    defaults = jax.tree.leaves(env.params)
    for default, (path, leaf) in zip(defaults, jax.tree.leaves_with_path(env_params), strict=True):
        shape = jnp.shape(default)
        if not isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array):
            raise TypeError(f"env_params{jax.tree_util.keystr(path)}={leaf!r} must be a number or an array")
        if jnp.shape(leaf) not in (shape, (num_envs, *shape)):
            raise ValueError(
                f"env_params{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}: give one value of shape {shape} for all "
                f"environments, or one for each of num_envs={num_envs}"
            )


def reset_envs(env: Env, key: Key, env_id: Array, env_params: PyTree) -> tuple[PyTree, PyTree]:
    """Start an episode in every environment; return ``(env_state, obs)``, [B]."""
    env_params = jax.tree.map(jnp.asarray, env_params)  # environments may index them with traced values
    return jax.vmap(env.reset, in_axes=(0, params_axes(env, env_params)))(fold_each(key, env_id), env_params)


def _reset_where_done(reset: Callable[..., Any], axes: tuple[int | None, ...], structure: Any) -> Callable[..., Any]:
    """Return a function that resets a batch under one ``cond``, which any ``vmap`` preserves.

    Most rows reset no environment, and a reset can cost more than a step, so the reset depends on ``done.any()``. Under vmap, a
    plain cond would become a select and always reset. The batching function here folds each new axis into the batch instead and
    keeps the cond. Parameters are passed as flat leaves; ``axes`` has 0 for the leaves with a batch axis.
    """

    @custom_vmap
    def reset_where_done(done: Array, key: Key, env_id: Array, env_state: PyTree, obs: PyTree, leaves: list[Array]) -> Any:
        old = (env_state, obs)

        def select(new: Any) -> Any:
            return jax.tree.map(lambda n, o: jnp.where(expand_mask(done, o), n, o), new, old)

        def reset_one(key: Key, leaves: list[Array]) -> Any:
            return reset(key, structure.unflatten(leaves))

        def fresh() -> Any:
            keys = fold_each(key, env_id)
            return select(jax.vmap(reset_one, in_axes=(0, list(axes)))(keys, leaves))

        # select(old) costs nothing, and types both branches as varying over the same devices, which shard_map checks.
        return jax.lax.cond(done.any(), fresh, lambda: select(old))

    @reset_where_done.def_vmap
    def fold(axis_size: int, in_batched: Any, *args: Any) -> Any:
        batch = args[0].shape[-1]

        def folded(x: Array, batched: bool) -> Array:
            x = x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            return x.reshape((axis_size * batch, *x.shape[2:]))

        def folded_leaf(x: Array, batched: bool, axis: int | None) -> Array:
            if axis is None:
                return jnp.repeat(x, batch, axis=0) if batched else x
            return folded(x, batched)

        rows = jax.tree.map(folded, args[:-1], tuple(in_batched[:-1]))
        leaves = [folded_leaf(x, b, axis) for x, b, axis in zip(args[-1], in_batched[-1], axes, strict=True)]
        new_axes = tuple(0 if b or axis == 0 else None for b, axis in zip(in_batched[-1], axes, strict=True))
        out = _reset_where_done(reset, new_axes, structure)(*rows, leaves)
        out = jax.tree.map(lambda x: x.reshape((axis_size, batch, *x.shape[1:])), out)
        return out, jax.tree.map(lambda _: True, out)

    return reset_where_done


def reset_done_envs(
    env: Env, done: Array, key: Key, env_id: Array, env_state: PyTree, obs: PyTree, env_params: PyTree
) -> tuple[PyTree, PyTree]:
    """Reset environments where ``done``; return ``(env_state, obs)``, unchanged elsewhere, [B]."""
    chex.assert_rank([done, env_id], 1)
    chex.assert_equal_shape([done, env_id])
    leaves, structure = jax.tree.flatten(env_params)
    axes = tuple(structure.flatten_up_to(params_axes(env, env_params)))
    keys = jnp.broadcast_to(key, done.shape)
    return _reset_where_done(env.reset, axes, structure)(done, keys, env_id, env_state, obs, [jnp.asarray(x) for x in leaves])
