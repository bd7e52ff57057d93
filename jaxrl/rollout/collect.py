"""Collection of a ``Rollout`` from pure environments: acting, stepping, and metrics of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxrl.metrics import masked_max, masked_mean, masked_min
from jaxrl.rollout.agents import all_over, as_lanes, by_agent, environment_of, row_as_lanes, together
from jaxrl.rollout.autoreset import StepOutcome, finish_step, first_input, no_episode
from jaxrl.rollout.env_batches import fold_each, params_axes, reset_done_envs, reset_envs
from jaxrl.spaces.entries import player_sign
from jaxrl.spaces.trees import show_shapes, zeros
from jaxrl.types import (
    ActorState,
    Algorithm,
    Array,
    Env,
    HostEnv,
    Key,
    Mean,
    Metrics,
    Policy,
    PyTree,
    Rollout,
    Simulator,
    StepInput,
    TimeStep,
)
from jaxrl.xla.fast_random import split
from jaxrl.xla.packed_scan import packed_scan

TEAM_RETURN = "charts/team_return"
"""Log key that environments of several agents alone have."""


def init_actor(algorithm: Algorithm, env: Env, key: Key, env_id: Array, env_params: PyTree) -> ActorState:
    """Start all environments; return the state before row 0."""
    env_state, obs = reset_envs(env, key, environment_of(env_id, env.num_agents), env_params)
    obs, batch = as_lanes(obs, env.num_agents), env_id.shape[0]
    carry, done = algorithm.initial_carry(batch), jnp.zeros(batch, bool)
    return ActorState(env_state, first_input(obs, env.action_space, batch), carry, done, no_episode(batch, jnp))


def advance(
    env: Env, actor: ActorState, carry: PyTree, action: Array, env_params: PyTree, env_id: Array, step_key: Key, reset_key: Key
) -> tuple[ActorState, StepOutcome]:
    """Execute ``action``; return ``(next actor state, outcome of the row)``, [B].

    If the previous row ended an episode, this row is spent on the reset.
    """
    chex.assert_equal_shape_prefix([action, actor.done, env_id], 1)
    env_params = jax.tree.map(jnp.asarray, env_params)  # environments may index them with traced values
    axes, agents = (0, 0, 0, params_axes(env, env_params)), env.num_agents
    number, actions = environment_of(env_id, agents), by_agent(action, agents)
    env_state, reached = jax.vmap(env.step, in_axes=axes)(fold_each(step_key, number), actor.env_state, actions, env_params)
    over = all_over(actor.done, agents)
    env_state, obs = reset_done_envs(env, over, reset_key, number, env_state, reached.obs, env_params)
    reached = row_as_lanes(reached._replace(obs=obs), agents)
    sign = player_sign(actor.input.obs)
    inputs, outcome = finish_step(actor.done, actor.episode, action, reached, env.max_episode_steps, agents, sign)
    return ActorState(env_state, inputs, carry, outcome.over, outcome.episode), outcome


def act_in(
    algorithm: Algorithm,
    env: Env,
    policy: Policy,
    actor: ActorState,
    env_params: PyTree,
    env_id: Array,
    key: Key,
    *,
    explore: bool,
) -> tuple[PyTree, Array, PyTree]:
    """Return ``(carry, action[B], extras[B])`` of an algorithm in pure environments, from which it may plan."""
    planning: Any = {"simulator": simulator_of(env, actor.env_state, env_params)} if algorithm.plans else {}
    return algorithm.act(policy, actor.carry, actor.input, env_id, key, explore=explore, **planning)


def simulator_of(env: Env, env_state: PyTree, env_params: PyTree) -> Simulator:
    """Return a simulator of environments in these states, [B]. Parameters of single environments are part of its states."""
    env_params = jax.tree.map(jnp.asarray, env_params)
    leaves, structure = jax.tree.flatten(env_params)
    own = [axis is not None for axis in structure.flatten_up_to(params_axes(env, env_params))]

    def step(key: Key, state: PyTree, action: Array) -> tuple[PyTree, TimeStep]:
        env_state, own_leaves = state
        each = iter(own_leaves)
        params = structure.unflatten([next(each) if is_own else x for x, is_own in zip(leaves, own, strict=True)])
        env_state, reached = env.step(key, env_state, action, params)
        return (env_state, own_leaves), reached

    return Simulator((env_state, [x for x, is_own in zip(leaves, own, strict=True) if is_own]), step)


def collect(
    algorithm: Algorithm,
    env: Env,
    policy: Policy,
    actor: ActorState,
    env_params: PyTree,
    env_id: Array,
    key: Key,
    num_rows: int,
    *,
    explore: bool = True,
) -> tuple[ActorState, Rollout, Metrics]:
    """Act for ``num_rows`` rows; return ``(actor, rollout, metrics)``.

    Args:
      env_id: i32[B], global over devices; those of lanes with several agents.
      key: key of the iteration. Rows draw from splits of it, environments from (key of the row, env_id).
    """

    @jax.named_scope("row")
    def row(actor: ActorState, keys: Key) -> tuple[ActorState, Any]:
        carry, action, extras = act_in(algorithm, env, policy, actor, env_params, env_id, keys[0], explore=explore)
        after, outcome = advance(env, actor, carry, action, env_params, env_id, keys[1], keys[2])
        return after, (actor.input, (action, extras), outcome)

    after, (inputs, acted, outcome) = packed_scan(row, actor, split(key, (num_rows, 3)))
    inputs = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), inputs, after.input)
    version = jnp.broadcast_to(policy.version, env_id.shape)
    return after, to_rollout(inputs, acted, outcome, actor.carry, env_id, version), episode_metrics(outcome, env.num_agents)


def to_rollout(
    inputs: StepInput, acted: tuple[Array, PyTree], outcome: StepOutcome, carry: PyTree, env_id: Array, version: Array
) -> Rollout:
    """Build a Rollout from rows [T, B].

    Args:
      inputs: [T + 1, B], the inputs of the rows and of the row after them.
      acted: actions and extras.
    """
    action, extras = acted
    return Rollout(
        inputs=inputs,
        action=action,
        reward=outcome.reward,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        extras=extras,
        valid=outcome.valid,
        carry=carry,
        env_id=env_id,
        version=version,
        info=outcome.info,
    )


def example_info(env: Env) -> dict[str, Any]:
    """Return the shapes of an environment's ``info``, of one step, without running it."""

    def first_step(key: Key) -> dict[str, Array]:
        action = zeros(env.action_space, (env.num_agents,) * (env.num_agents > 0))
        return env.step(key, env.reset(key, env.params)[0], action, env.params)[1].info

    return jax.eval_shape(first_step, jax.eval_shape(lambda: jax.random.key(0)))


def example_rollout(algorithm: Algorithm, env: Env | HostEnv, policy: Policy, num_lanes: int, num_rows: int) -> Rollout:
    """Return a rollout of zeros with the shapes of ``collect``, without running an environment. The ``info`` of host environments
    is not known, so theirs has a cost alone."""
    first = first_input(zeros(env.observation_space, (num_lanes,)), env.action_space, num_lanes)
    carry, env_id = algorithm.initial_carry(num_lanes), jnp.arange(num_lanes, dtype=jnp.int32)
    _, action, extras = algorithm.act(policy, carry, first, env_id, jax.random.key(0), explore=True)

    def rows(tree: PyTree, length: int = num_rows) -> Any:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (length, *x.shape)), tree)

    no, own = jnp.zeros(num_lanes, bool), env.num_agents > 0
    told = example_info(env) if isinstance(env, Env) else {"cost": jax.ShapeDtypeStruct((1,) * own, jnp.float32)}
    info = {name: jnp.zeros((num_lanes, *x.shape[own:]), x.dtype) for name, x in told.items()}
    outcome = StepOutcome(first.prev_reward, no, no, ~no, info, no_episode(num_lanes, jnp), no)
    version = jnp.broadcast_to(policy.version, env_id.shape)
    return to_rollout(rows(first, num_rows + 1), rows((action, extras)), rows(outcome), carry, env_id, version)


JOINED = Rollout(**dict.fromkeys(Rollout._fields, 1) | {"carry": 0, "env_id": 0, "version": 0})  # type: ignore[arg-type]
"""Axis of the environments in the leaves of each field of a rollout."""


def concat_rollouts(rollouts: Sequence[Rollout]) -> Rollout:
    """Concatenate rollouts along the environment axis, such as the parts of workers into one batch. NumPy arrays stay NumPy.

    Raises:
      ValueError: ``rollouts`` is empty, or two of them differ in more than their number of environments.
    """
    if not rollouts:
        raise ValueError("concat_rollouts needs at least one rollout")

    def without(axis: int, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype), part)

    for i, other in enumerate(rollouts[1:], 1):
        for name, axis, first, part in zip(Rollout._fields, JOINED, rollouts[0], other, strict=True):
            if without(axis, first) != without(axis, part):
                raise ValueError(
                    f"rollouts[{i}].{name} is {show_shapes(part)}, but that of rollouts[0] is {show_shapes(first)}: rollouts may "
                    "only differ in their number of environments"
                )

    def join(axis: int, *parts: PyTree) -> PyTree:
        return jax.tree.map(lambda *leaves: leaves[0].__array_namespace__().concatenate(leaves, axis), *parts)

    return jax.tree.map(join, JOINED, *rollouts)


def episode_metrics(outcome: StepOutcome, num_agents: int = 0) -> Metrics:
    """Compute metrics of the episodes that ended in these rows, [T, B]; ``charts/valid_rows`` is the fraction of valid rows.

    With several agents, an episode's return is that of each agent, ``charts/team_return`` is the sum over the agents of an
    environment, and its row is valid unless it was spent on a reset.
    """
    chex.assert_rank([outcome.done, outcome.valid], 2)
    episode, ended, valid = outcome.episode, outcome.done, outcome.valid
    team = dict[str, Mean]()
    if num_agents:
        returns = together(episode.episodic_return, num_agents).sum(-1)
        team = {TEAM_RETURN: masked_mean(returns, all_over(outcome.over, num_agents))}
        valid = together(valid, num_agents).any(-1)
    return {
        "charts/episodic_return": masked_mean(episode.episodic_return, ended),
        "charts/episodic_length": masked_mean(episode.episodic_length, ended),
        "charts/episodic_return_min": masked_min(episode.episodic_return, ended),
        "charts/episodic_return_max": masked_max(episode.episodic_return, ended),
        "charts/valid_rows": Mean(valid.sum(dtype=jnp.int32), jnp.full((), valid.size, jnp.int32)),  # exact, as integers
        **team,
    }
