"""Trained policies as functions of observations, from NumPy to NumPy in one compiled call."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.builder.teacher import Teacher, teacher_of
from jaxrl.rollout.autoreset import zero_actions
from jaxrl.rollout.collect import simulator_of
from jaxrl.runtime.evaluation.export import PLATFORMS, export_row, flat_arrays
from jaxrl.runtime.system.disk import check_writable, replacing
from jaxrl.spaces.entries import PRIVILEGED_KEY, has_privileged_state
from jaxrl.spaces.trees import show_shapes, zeros
from jaxrl.types import Agent, Array, Env, Key, Policy, PyTree, StepInput


class PolicyMemory(NamedTuple):
    """State that a policy carries from one observation to the next."""

    carry: PyTree
    action: Array
    """[B]"""


class LoadedPolicy:
    """``policy(obs) -> action``, for one observation or a batch of them.

    A recurrent policy keeps state between calls: call ``reset`` at the beginning of each episode.
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
        which: str = "last",
        about: str = "",
        search: Env | None = None,
    ) -> None:
        self.observation_space: spaces.Space = agent.env.observation_space
        self.action_space: spaces.Space = agent.env.action_space
        self.policy, self.seed, self.step = policy, seed, step
        """Parameters, and the seed and iteration that they come from."""
        self.which = which
        """"best" or "last", as in ``load_policy``; "last" if the run has no best policies."""
        self.about = about
        """Description, with scores of this and the run's other policies, and a warning if greedy ones are far below training."""
        self.explore = explore
        """Default for the ``explore`` of a call."""
        self.search = search
        """The environment in which a policy that plans searches; None: its network acts alone."""
        self.algorithm = agent.algorithm
        """The algorithm, whose ``act`` computes the actions."""
        self._agent = agent
        self._act = jax.jit(partial(_act, self._row), static_argnames=("explore", "impl"))
        self._draws = None if key is None else _plain(key)
        self._num_draws = 0
        self._memory: PolicyMemory | None = None
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(jax.eval_shape(lambda: zeros(self.observation_space)))
        self._expected = [(f"obs{jax.tree_util.keystr(path)}", x.shape, np.dtype(x.dtype)) for path, x in leaves]
        """Name, shape and dtype of each leaf of an observation."""

    def __call__(
        self,
        obs: PyTree,
        *,
        explore: bool | None = None,
        key: Key | None = None,
        prev_reward: Any = 0.0,
        env_state: PyTree = None,
    ) -> Any:
        """Return the action in the environment's units, as a NumPy array: for one observation, or [B] for a batch.

        Args:
          obs: an observation of ``observation_space``, or a batch with one more axis in front, such as those of several agents.
            A ``privileged_state`` may be left out.
          explore: act as in training instead of greedily; default: as passed to ``load_policy``.
          key: random key for exploring in this call; default: a new key for each call, derived from the key passed to
            ``load_policy``.
          prev_reward: reward of the previous action, for policies that use it (recurrent ones do).
          env_state: with ``search``, the state of the environment, or a batch of them, as its ``reset`` and ``step`` return it.

        Raises:
          ValueError, TypeError: the observation has a different structure, shape or dtype; or a key is missing.
        """
        leaves, batch = self._checked(obs)
        size = 1 if batch is None else batch
        explore = self.explore if explore is None else explore
        draws, impl, number = self._drawing(key) if explore else (None, None, None)
        memory, is_first = self._memory, False
        if memory is None or len(memory.action) != size:
            memory, is_first = PolicyMemory(self.algorithm.initial_carry(size), zero_actions(self.action_space, size)), True
        inputs = StepInput(
            self._structure.unflatten([x[None] for x in leaves] if batch is None else leaves),
            memory.action,
            np.full(size, 0.0 if is_first else prev_reward, np.float32),  # type: ignore[arg-type]
            np.full(size, is_first),  # type: ignore[arg-type]
        )
        states = self._states(env_state, batch)
        self._memory = self._act(self.policy, memory.carry, inputs, draws, number, states, explore=explore, impl=impl)
        action = np.asarray(self._memory.action)
        return action[0] if batch is None else action

    def _states(self, env_state: PyTree, batch: int | None) -> PyTree:
        """Return the states to search from, [B]; None without a search."""
        if (env_state is None) != (self.search is None):
            fix = "pass env_state=state" if env_state is None else "load it with search=True"
            raise ValueError(f"a search needs the states of the environment, and a policy that searches: {fix}")
        return jax.tree.map(lambda x: jnp.asarray(x)[None], env_state) if batch is None else env_state

    def _row(self, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, states: Any, **how: Any) -> Any:
        if self.search is not None:
            how["simulator"] = simulator_of(self.search, states, self.search.params)
        return self.algorithm.act(policy, carry, inputs, env_id, key, **how)

    def __repr__(self) -> str:
        how = "exploring" if self.explore else "greedy"
        return f"<LoadedPolicy of seed {self.seed}, {how}{self.about and f'; {self.about}'}>"

    def as_teacher(self) -> Teacher:
        """Return the policy as a ``teacher``, which ``make_dagger`` and ``make_qdagger`` take; it shows the greedy action."""
        return teacher_of(self._agent, self.policy)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the parameters by name, as in ``{"actor/hidden_0/kernel": f32[4, 64], …}``, for ``np.savez`` or safetensors.

        The statistics that normalise observations are below ``statistics/``.
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
        """Write the policy to a file as a function for ``jax.export.deserialize``, which can be used without jaxrl.

        The function includes everything needed to act: parameters, normalisation, masks and the units of actions. It takes
        batches of observations with the dtypes of ``observation_space`` and has the form ``obs -> action``. If the policy needs
        more, as recurrent ones do, it is ``(memory, obs, prev_reward f32[B], is_first bool[B]) -> (memory, action)``. ``memory``
        is a tuple of arrays [B, ...], initially zeros; where ``is_first`` is true, it is ignored.

        Args:
          path: of the file, which is replaced if it exists.
          explore: act as in training instead of greedily; default: as passed to ``load_policy``. If true, the function takes
            one more argument, the last: ``jax.random.key_data(key)``, with a new key for each call.
          batch_size: the only batch size of the function; default: any. For networks that cannot be traced with a symbolic size.
          platforms: platforms that the function is compiled for: cpu, cuda, tpu, rocm.

        Raises:
          OSError: the file cannot be written.
          ValueError: ``platforms`` or ``batch_size`` is not allowed.
        """
        file, explore = check_writable(path, "path"), self.explore if explore is None else explore
        row = partial(_act, self.algorithm.act, self.policy, number=None, explore=explore, impl=None)
        carry, both = self.algorithm.initial_carry(1), (self.observation_space, self.action_space)
        function = export_row(row, carry, *both, explore=explore, batch_size=batch_size, platforms=platforms)
        with replacing(file) as opened:
            opened.write(function.serialize())

    def reset(self) -> None:
        """Clear the memory: the next observation is the first of an episode (in a batch: of all its episodes)."""
        self._memory = None

    def _drawing(self, key: Key | None) -> tuple[np.ndarray, Any, Any]:
        """Return the data of a key, its implementation, and the number to fold in, which is None for a key of a single call."""
        if key is not None:
            return *_plain(key), None
        if self._draws is None:
            raise ValueError(
                "explore=True needs a random key: pass key=jax.random.key(…) to load_policy, or a new key to each call"
            )
        self._num_draws += 1
        return *self._draws, np.uint32(self._num_draws - 1)

    def _checked(self, obs: PyTree) -> tuple[list[np.ndarray], int | None]:
        """Return the leaves of the observation in JAX's dtypes, and the batch size, which is None for a single observation."""
        space = self.observation_space
        if isinstance(obs, list | tuple) and not isinstance(space, spaces.Dict | spaces.Tuple):
            obs = _as_array(obs)
        if has_privileged_state(space) and isinstance(obs, dict) and PRIVILEGED_KEY not in obs:
            obs = _with_any_state(space, obs)
        leaves, structure = jax.tree.flatten(obs)
        if structure != self._structure:
            shapes = show_shapes(jax.eval_shape(lambda: zeros(space)))
            received = "one array" if isinstance(obs, np.ndarray) else show_shapes(obs)
            raise TypeError(f"obs must be structured as {type(space).__name__} {shapes}, not as {received}")
        leaves = [_as_expected(x, *expected) for x, expected in zip(leaves, self._expected, strict=True)]
        batches = {x.shape[0] if x.ndim > len(shape) else None for x, (_, shape, _) in zip(leaves, self._expected, strict=True)}
        if len(batches) > 1:
            raise ValueError("obs has leaves with and without a batch axis, or of different sizes")
        return leaves, batches.pop() if batches else None


def _with_any_state(space: Any, obs: dict[str, Any]) -> dict[str, Any]:
    """Return an observation, or a batch of them, with zeros for the privileged state, which no policy sees."""
    name = next((name for name in space if name in obs), None)
    if name is None:
        return obs
    example, like = jax.tree.leaves(obs[name])[0], jax.tree.leaves(jax.eval_shape(lambda: zeros(space[name])))[0]
    lead = np.shape(example)[: max(0, np.ndim(example) - like.ndim)]
    return {**obs, PRIVILEGED_KEY: jax.tree.map(np.asarray, zeros(space[PRIVILEGED_KEY], lead))}


def _act(
    act: Callable[..., Any],
    policy: Policy,
    carry: PyTree,
    inputs: StepInput,
    draws: Array | None,
    number: Array | None,
    *given: PyTree,
    explore: bool,
    impl: Any,
) -> PolicyMemory:
    """Compute one row in one program. The key is made here, because typed keys as arguments take a slow path in JAX."""
    key = jax.random.key(0) if draws is None else jax.random.wrap_key_data(draws, impl=impl)
    if number is not None:
        key = jax.random.fold_in(key, number)
    env_id = jnp.arange(inputs.is_first.shape[0], dtype=jnp.int32)
    carry, action, _ = act(policy, carry, inputs, env_id, key, *given, explore=explore)
    return PolicyMemory(carry, action)


def _plain(key: Key) -> tuple[np.ndarray, Any]:
    """Return the data of a key and its implementation."""
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)) or key.ndim:
        raise TypeError(f"key must be one typed key, such as jax.random.key(0), not {key!r}")
    return np.asarray(jax.random.key_data(key)), jax.random.key_impl(key)


def _as_array(obs: list[Any] | tuple[Any, ...]) -> np.ndarray:
    try:
        return np.asarray(obs)
    except ValueError:  # its elements have different shapes
        gymnasium = len(obs) == 2 and isinstance(obs[1], dict)
        fix = "reset returns (obs, info): pass only obs" if gymnasium else "its elements have different shapes"
        raise TypeError(f"obs is a {type(obs).__name__} of {len(obs)} that cannot be converted to an array: {fix}") from None


def _as_expected(value: Any, where: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    x = np.asarray(value)
    extra = x.ndim - len(shape)
    if extra not in (0, 1) or x.shape[extra:] != shape:
        raise ValueError(f"{where} has shape {x.shape}: it must be {shape}, or (batch, {', '.join(map(str, shape))})")
    if x.dtype != dtype:
        if not np.can_cast(x.dtype, dtype, "same_kind"):
            raise TypeError(f"{where} has dtype {x.dtype} instead of {dtype}: convert it first")
        x = x.astype(dtype)
    return x
