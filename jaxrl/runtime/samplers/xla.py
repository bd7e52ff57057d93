"""Compiled sampler: collects a whole rollout in one program, which steps host environments itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.envs.host import EnvironmentFailed, bounds_of, check_actions, outside
from jaxrl.rollout.autoreset import finish_step, first_input, no_episode
from jaxrl.rollout.collect import episode_metrics, to_rollout
from jaxrl.runtime.samplers.diagnostics import Stopwatch
from jaxrl.runtime.samplers.host_envs import close_envs, open_envs
from jaxrl.runtime.samplers.sampler import host_env, row_keys, stack
from jaxrl.runtime.samplers.stepper import check_mask
from jaxrl.runtime.system.compiling import CompiledCall
from jaxrl.spaces.action_masks import nothing_allowed
from jaxrl.types import (
    Agent,
    Array,
    CompiledEnvs,
    EpisodeStatistics,
    HostEnv,
    HostStep,
    Key,
    Metrics,
    Policy,
    PyTree,
    Rollout,
    StepInput,
)
from jaxrl.xla.seed_axis import over_seeds


class Standing(NamedTuple):
    """Current state of the environments of all seeds, [num_seeds, B]."""

    handles: tuple[Array, ...]
    """One handle per seed."""
    input: StepInput
    carry: PyTree
    done: Array
    episode: EpisodeStatistics


class Faults(NamedTuple):
    """Errors that a compiled program cannot raise: bool[], for one rollout."""

    action: Array
    """An action is not in the action space; the environment received a replacement."""
    limit: Array
    """An episode continued past a limit that the environments do not know."""
    mask: Array
    """A mask forbids all actions."""


class CompiledSampler:
    """Acts and steps row after row without Python in between. Rollouts are those of ``HostSampler`` up to rounding."""

    def __init__(self, agent: Agent, seed: int | Sequence[int]) -> None:
        """Open and reset the environments, which a compiled program must be able to step; ``seed`` as for ``HostSampler``."""
        self.env, self.single = host_env(agent), not np.shape(seed)
        self.watch, self.envs = Stopwatch(), list[Any]()
        try:
            for env_seed in np.atleast_1d(seed):
                self.envs.append(open_envs(self.env, agent.num_envs, int(env_seed)))
            compiled = [_compiled(self.env, envs) for envs in self.envs]
            first = stack([first_input(envs.reset(), self.env.action_space, agent.num_envs) for envs in self.envs])
        except BaseException:
            self.close()
            raise
        num_seeds, carry = len(self.envs), agent.algorithm.initial_carry(agent.num_envs)
        self.standing = Standing(
            tuple(part.handle for part in compiled),
            first,
            jax.tree.map(lambda x: jnp.broadcast_to(x, (num_seeds, *x.shape)), carry),
            np.zeros((num_seeds, agent.num_envs), bool),  # type: ignore[arg-type]
            stack([no_episode(agent.num_envs)] * num_seeds),
        )
        self.program = CompiledCall(jax.jit(partial(_collect, agent, self.env, compiled)))

    def collect(self, policy: Policy, key: Key) -> tuple[Rollout, Metrics]:
        args = (policy, key)
        if self.single:
            args = jax.tree.map(lambda x: jnp.asarray(x)[None], args)
        with self.watch("environments"):  # acting included: the program cannot time them separately
            self.standing, rollout, metrics, faults = jax.block_until_ready(self.program(*args, self.standing))
        if any(map(bool, faults)):
            self._refuse(rollout, faults)
        return jax.tree.map(lambda x: x[0], (rollout, metrics)) if self.single else (rollout, metrics)

    def close(self) -> None:
        for envs in self.envs:
            close_envs(self.env, envs)

    def _refuse(self, rollout: Rollout, faults: Faults) -> None:
        """Raise the error that the first faulty row would raise in ``HostSampler``."""
        env, rows = self.env, jax.tree.map(np.asarray, rollout)
        for of_seed, t in np.ndindex(rows.reward.shape[:2]):
            check_actions(env.name, env.action_space, rows.action[of_seed, t], rows.action.shape[2])
            if faults.mask:
                inputs = jax.tree.map(lambda x, at=(of_seed, t): x[at], rows.inputs)
                check_mask(env, inputs.obs, ~rows.valid[of_seed, t], rows.env_id[of_seed])
        raise EnvironmentFailed(
            f"{env.name}: an episode continued past max_episode_steps={env.max_episode_steps}, and sampler='xla' cannot end it: "
            "use sampler='sync', or set truncated at the limit in step"
        )


def _compiled(env: HostEnv, envs: Any) -> CompiledEnvs:
    compiled = getattr(envs, "compiled", None)
    if compiled is None:
        raise TypeError(
            f"sampler='xla' needs environments that a compiled program can step, which {env.name} does not support: use "
            "sampler='sync', or an envpool environment"
        )
    if jax.default_backend() != "cpu":
        raise ValueError(
            f"sampler='xla' steps environments from within a program on the CPU, and JAX computes on {jax.default_backend()}: "
            "use sampler='alternating', or JAX_PLATFORMS=cpu"
        )
    operations: CompiledEnvs = compiled()
    return operations


def _collect(
    agent: Agent, env: HostEnv, compiled: Sequence[CompiledEnvs], policy: Policy, key: Key, start: Standing
) -> tuple[Standing, Rollout, Metrics, Faults]:
    """Collect one rollout of all seeds, [num_seeds, T, B]: ``rollout.collect`` for environments with side effects.

    The policy's inputs are written in place row by row. Appending the last row afterwards would copy all of them, which is slow
    for images.
    """
    num_rows, over = agent.rollout_length, over_seeds(len(compiled))
    env_id = jnp.arange(agent.num_envs, dtype=jnp.int32)
    act = over(partial(agent.algorithm.act, explore=True), in_axes=(0, 0, 0, None, 0))

    def put(inputs: StepInput, new: StepInput, t: Array | int) -> StepInput:
        return jax.tree.map(lambda all_, x: jax.lax.dynamic_update_index_in_dim(all_, x, t, 1), inputs, new)

    def at(inputs: StepInput, t: Array | int) -> StepInput:
        return jax.tree.map(lambda all_: jax.lax.dynamic_index_in_dim(all_, t, 1, keepdims=False), inputs)

    def row(standing: Standing, t_and_key: tuple[Array, Key]) -> tuple[Standing, Any]:
        """Execute one row. ``standing.input`` holds the inputs of all rows, [num_seeds, T + 1, B]."""
        t, key = t_and_key
        step_input = at(standing.input, t)
        carry, action, extras = act(policy, standing.carry, step_input, env_id, key)
        allowed, wrong = _allowed(env.action_space, action)
        handles, reached = _step(compiled, standing.handles, allowed)
        after, outcome = finish_step(standing.done, standing.episode, action, reached, env.max_episode_steps)
        forbidden = nothing_allowed(step_input.obs, env.action_space)
        faults = Faults(
            wrong,
            (outcome.truncated & ~reached.truncated).any(),
            jnp.zeros((), bool) if forbidden is None else (forbidden & ~standing.done).any(),
        )
        inputs = put(standing.input, after, t + 1)
        return Standing(handles, inputs, carry, outcome.done, outcome.episode), (((action, extras), outcome), faults)

    inputs = jax.tree.map(lambda x: jnp.zeros((x.shape[0], num_rows + 1, *x.shape[1:]), x.dtype), start.input)
    keys = jnp.swapaxes(over(partial(row_keys, num_rows=num_rows))(key), 0, 1)
    begin = jax.tree.map(jnp.asarray, start)._replace(input=put(inputs, start.input, 0))
    end, (rows, faults) = jax.lax.scan(row, begin, (jnp.arange(num_rows), keys))
    inputs, standing = end.input, end._replace(input=at(end.input, num_rows))
    acted, outcome = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows)
    version = jnp.broadcast_to(policy.version[:, None], (len(compiled), agent.num_envs))
    ids = jnp.broadcast_to(env_id, version.shape)
    rollout = to_rollout(inputs, acted, outcome, start.carry, ids, version)
    return standing, rollout, over(episode_metrics)(outcome), jax.tree.map(jnp.any, faults)


def _step(compiled: Sequence[CompiledEnvs], handles: Sequence[Array], action: Array) -> tuple[tuple[Array, ...], HostStep]:
    """Step all seeds' environments: all begin before the first is waited for."""
    sent = [part.send(handle, action[i]) for i, (part, handle) in enumerate(zip(compiled, handles, strict=True))]
    received = [part.recv(handle) for part, handle in zip(compiled, sent, strict=True)]
    return tuple(handle for handle, _ in received), jax.tree.map(lambda *x: jnp.stack(x), *(step for _, step in received))


def _allowed(space: spaces.Space, action: Array) -> tuple[Array, Array]:
    """Return the actions with invalid ones replaced, and True if there were any. Envpool's C++ does not check actions."""
    wrong, least = outside(space, action), bounds_of(space)[0]
    some = np.where(np.isfinite(least), least, 0).astype(action.dtype)
    return jnp.where(wrong, some, action), wrong.any()
