"""A trained policy as a function of observations: NumPy in, one compiled call, NumPy out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.rollout.autoreset import zero_actions
from jaxrl.runtime.evaluation.export import PLATFORMS, export_row, flat_arrays
from jaxrl.runtime.system.disk import absolute, replacing
from jaxrl.spaces.trees import show_shapes, zeros
from jaxrl.types import Agent, Array, Key, Policy, PyTree, StepInput


class PolicyMemory(NamedTuple):
    """What a policy carries from one observation to the next."""

    carry: PyTree
    action: Array
    """[B]"""


class LoadedPolicy:
    """``policy(obs) -> action``, for one observation or a batch of them.

    A recurrent policy remembers what it saw: call ``reset`` where an episode begins.
    """

    def __init__(
        self,
        agent: Agent,
        policy: Policy,
        *,
        seed: int,
        step: int,
        explore: bool = False,
        key: Key | None = None,
        about: str = "",
    ) -> None:
        self.observation_space: spaces.Space = agent.env.observation_space
        self.action_space: spaces.Space = agent.env.action_space
        self.policy, self.seed, self.step = policy, seed, step
        """The parameters; the seed that learnt them; the iteration that they are of."""
        self.about = about
        """Which of the run's policies this is, what the others score, and whether greedy ones are far below training."""
        self.explore = explore
        """What a call does that does not say."""
        self._algorithm = agent.algorithm
        self._act = jax.jit(partial(_act, agent.algorithm.act), static_argnames=("explore", "impl"))
        self._draws = None if key is None else _plain(key)
        self._num_draws = 0
        self._memory: PolicyMemory | None = None
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(jax.eval_shape(lambda: zeros(self.observation_space)))
        self._expected = [(f"obs{jax.tree_util.keystr(path)}", x.shape, np.dtype(x.dtype)) for path, x in leaves]
        """Name, shape and dtype of each leaf of an observation."""

    def __call__(self, obs: PyTree, *, explore: bool | None = None, key: Key | None = None, prev_reward: Any = 0.0) -> Any:
        """The action in the environment's units, as a NumPy array: of one observation, or [B] of a batch.

        Args:
          obs: as ``observation_space`` has them, or with one more axis in front.
          explore: act as in training instead of greedily; default: as the policy was loaded.
          key: what exploring draws this call's action with; default: a new one each time, from the key that was given to
            ``load_policy``.
          prev_reward: what the previous action earned, for policies that look at it (recurrent ones do).

        Raises:
          ValueError, TypeError: the observation has another structure, shape or type; or a key is missing.
        """
        leaves, batch = self._checked(obs)
        size = 1 if batch is None else batch
        explore = self.explore if explore is None else explore
        draws, impl, number = self._drawing(key) if explore else (None, None, None)
        memory, is_first = self._memory, False
        if memory is None or len(memory.action) != size:
            memory, is_first = PolicyMemory(self._algorithm.initial_carry(size), zero_actions(self.action_space, size)), True
        inputs = StepInput(
            self._structure.unflatten([x[None] for x in leaves] if batch is None else leaves),
            memory.action,
            np.full(size, 0.0 if is_first else prev_reward, np.float32),  # type: ignore[arg-type]
            np.full(size, is_first),  # type: ignore[arg-type]
        )
        self._memory = self._act(self.policy, memory.carry, inputs, draws, number, explore=explore, impl=impl)
        action = np.asarray(self._memory.action)
        return action[0] if batch is None else action

    def __repr__(self) -> str:
        how = "exploring" if self.explore else "greedy"
        return f"<LoadedPolicy of seed {self.seed}, {how}{self.about and f'; {self.about}'}>"

    def arrays(self) -> dict[str, np.ndarray]:
        """The parameters by name, as in ``{"actor/hidden_0/kernel": f32[4, 64], …}``, for ``np.savez`` or safetensors.

        What observations are normalised with is below ``statistics/``.
        """
        return flat_arrays(self.policy)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        explore: bool | None = None,
        batch_size: int | None = None,
        platforms: Sequence[str] = PLATFORMS,
    ) -> None:
        """Write the policy to a file as a function that ``jax.export.deserialize`` reads, in a process that need not have jaxrl.

        It has all that acting takes: parameters, normalisation, masks, the units of actions. It is given batches of observations
        in the types of ``observation_space``, and is ``obs -> action``, or, where the policy looks at more (recurrent ones do),
        ``(memory, obs, prev_reward f32[B], is_first bool[B]) -> (memory, action)``. ``memory`` is a tuple of arrays [B, ...],
        zeros to begin with; where ``is_first`` is true, it is not looked at.

        Args:
          path: of the file, which is replaced if it exists.
          explore: act as in training instead of greedily; default: as the policy was loaded. The function then takes one more
            argument, last: ``jax.random.key_data(key)``, another one for each call.
          batch_size: the only one that the function takes; default: it takes any. For networks that cannot be traced so.
          platforms: what the function is compiled for.

        Raises:
          OSError: the file cannot be written.
        """
        explore = self.explore if explore is None else explore
        row = partial(_row, self._algorithm.act, self.policy, explore=explore)
        carry = self._algorithm.initial_carry(1)
        function = export_row(
            row,
            carry,
            self.observation_space,
            self.action_space,
            explore=explore,
            batch_size=batch_size,
            platforms=platforms,
        )
        with replacing(absolute(path)) as file:
            file.write(function.serialize())

    def reset(self) -> None:
        """Forget: the next observation is the first of an episode (of a batch: of all its episodes)."""
        self._memory = None

    def _drawing(self, key: Key | None) -> tuple[np.ndarray, Any, Any]:
        """Words of a key, its kind, and the number to fold in: None for a key that is of one call only."""
        if key is not None:
            return *_plain(key), None
        if self._draws is None:
            raise ValueError(
                "explore=True draws actions: give key=jax.random.key(…) to load_policy, or another one to each call of the policy"
            )
        self._num_draws += 1
        return *self._draws, np.uint32(self._num_draws - 1)

    def _checked(self, obs: PyTree) -> tuple[list[np.ndarray], int | None]:
        """The leaves of the observation in JAX's types, and the size of the batch, None for a single one."""
        space = self.observation_space
        if isinstance(obs, list | tuple) and not isinstance(space, spaces.Dict | spaces.Tuple):
            obs = _as_array(obs)
        leaves, structure = jax.tree.flatten(obs)
        if structure != self._structure:
            shapes = show_shapes(jax.eval_shape(lambda: zeros(space)))
            given = "one array" if isinstance(obs, np.ndarray) else show_shapes(obs)
            raise TypeError(f"obs must be structured as {type(space).__name__} {shapes}, not as {given}")
        leaves = [_as_expected(x, *expected) for x, expected in zip(leaves, self._expected, strict=True)]
        batches = {x.shape[0] if x.ndim > len(shape) else None for x, (_, shape, _) in zip(leaves, self._expected, strict=True)}
        if len(batches) > 1:
            raise ValueError("obs has leaves with and without a batch axis, or of different sizes")
        return leaves, batches.pop() if batches else None


def _act(
    act: Callable[..., Any],
    policy: Policy,
    carry: PyTree,
    inputs: StepInput,
    draws: Array | None,
    number: Array | None,
    *,
    explore: bool,
    impl: Any,
) -> PolicyMemory:
    """One row, in one program: the key is made here too, since typed keys as arguments take JAX's slow path."""
    key = jax.random.key(0) if draws is None else jax.random.wrap_key_data(draws, impl=impl)
    if number is not None:
        key = jax.random.fold_in(key, number)
    env_id = jnp.arange(inputs.is_first.shape[0], dtype=jnp.int32)
    carry, action, _ = act(policy, carry, inputs, env_id, key, explore=explore)
    return PolicyMemory(carry, action)


def _row(
    act: Callable[..., Any], policy: Policy, carry: PyTree, inputs: StepInput, draws: Array | None, *, explore: bool
) -> PolicyMemory:
    """The same with a key of JAX's default kind."""
    return _act(act, policy, carry, inputs, draws, None, explore=explore, impl=None)


def _plain(key: Key) -> tuple[np.ndarray, Any]:
    """A key's words, and its kind."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)) or key.ndim:
        raise TypeError(f"key must be one typed key, as jax.random.key(0) makes, not {key!r}")
    return np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)


def _as_array(obs: list[Any] | tuple[Any, ...]) -> np.ndarray:
    try:
        return np.asarray(obs)
    except ValueError:  # its parts have several shapes
        gymnasium = len(obs) == 2 and isinstance(obs[1], dict)
        fix = "it is what reset returns: give its first part" if gymnasium else "its parts have different shapes"
        raise TypeError(f"obs is a {type(obs).__name__} of {len(obs)} that makes no array: {fix}") from None


def _as_expected(value: Any, where: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    x = np.asarray(value)
    extra = x.ndim - len(shape)
    if extra not in (0, 1) or x.shape[extra:] != shape:
        raise ValueError(f"{where} has shape {x.shape}: it must be {shape}, or (batch, {', '.join(map(str, shape))})")
    if x.dtype != dtype:
        if not np.can_cast(x.dtype, dtype, "same_kind"):
            raise TypeError(f"{where} has dtype {x.dtype}, which is no {dtype}: convert it first")
        x = x.astype(dtype)
    return x
