"""Training and evaluation as pure functions of an Agent on a pure environment; ``jaxrl.evaluate`` is the public evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxrl.agent import with_data, with_total_steps
from jaxrl.agent.checks import check_agent
from jaxrl.metrics import identity, merge, only_if
from jaxrl.optimize.schedules import ScheduleWarning, doubtful
from jaxrl.rollout.play import Evaluation, Progress, play_row, start_episodes
from jaxrl.settings.aliases import suggest_keywords
from jaxrl.settings.validation import check_count, merge_hyperparams
from jaxrl.spaces.trees import same_shapes
from jaxrl.types import Agent, AgentState, Array, Env, Key, Mean, Metrics, Policy, PyTree
from jaxrl.xla.in_place import put_back

EVALUATION_LIMIT = 100_000
"""Number of rows after which ``jaxrl.evaluate`` stops an episode, for environments without a step limit."""
MAX_EPISODES = 1_000_000
"""Limit per evaluation and seed. Each episode has an environment, and more would exhaust memory."""

EVALUATION_STREAM = 0x6576616C
"""Number folded into a seed's key. It is far from 0, 1, 2, …, because ``fold_in(key, i)`` equals ``split(key)[i]``, and training
splits the same key."""


def evaluation_key(seed: Array | int, iteration: Array | int) -> Key:
    """Return the key for evaluating a seed at an iteration, distinct from all keys of its training."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), EVALUATION_STREAM), iteration)


def num_iterations(agent: Agent, total_steps: int, *, exact_steps: bool = False) -> int:
    """Return the number of ``agent.step`` calls after ``init`` that make ``total_steps`` rows, rounded up to whole iterations.

    Args:
      total_steps: rows per seed, including the warm-up.
      exact_steps: raise an error instead of rounding.

    Raises:
      ValueError: the number is not positive or too large, or would be rounded with ``exact_steps``.
    """
    total_steps = check_count("total_steps", total_steps)
    rows = agent.steps_per_iteration
    if exact_steps and total_steps % rows:
        raise ValueError(
            f"total_steps={total_steps} is not a multiple of num_envs * rollout_length = {rows}, as exact_steps=True requires: "
            f"use {total_steps // rows * rows or rows} or {-(-total_steps // rows) * rows}"
        )
    iterations = -(-total_steps // rows) - agent.algorithm.warmup_iterations
    if iterations < 1:
        raise ValueError(
            f"total_steps={total_steps} leaves nothing after the warm-up of {agent.algorithm.warmup_iterations * rows} rows: "
            f"use at least {(agent.algorithm.warmup_iterations + 1) * rows}"
        )
    if iterations >= 2**31:
        raise ValueError(
            f"total_steps={total_steps} makes {iterations} iterations of {rows} rows, and iterations are counted in 32 bits: "
            "use fewer"
        )
    return iterations


def run_iterations(agent: Agent, state: Any, iterations: Array | int) -> tuple[Any, Metrics]:
    """Run ``iterations`` steps in one loop and merge their metrics.

    ``iterations`` may be traced, so one compiled program serves any length.
    """

    step = jax.jit(agent.step, inline=True)  # traced once for both uses

    def body(_: Array, carry: tuple[Any, Metrics]) -> tuple[Any, Metrics]:
        state, metrics = carry
        state, new = step(state)
        return state, merge(metrics, new)

    empty = identity(jax.eval_shape(step, state)[1])
    return jax.lax.fori_loop(0, iterations, body, (state, empty))


def freezing(agent: Agent) -> Agent:
    """Return an agent whose ``step`` freezes a state that becomes NaN or infinite.

    ``step`` takes and returns ``(AgentState, alive)``, with alive bool[]. If the losses of an iteration, or the parameters after
    it, are not finite, the state stays as it was before that iteration, and ``alive`` is False from then on. The metrics include
    the losses of that iteration, so that the failure is visible; all other metrics, and all later ones, count nothing.

    The arrays of rows in the algorithm's ``buffers`` are an exception: they keep the rows of the last iteration, because
    restoring them would copy the buffer. Positions, priorities and tables are restored. So each later iteration writes to the
    same places, and a repaired state overwrites these rows before it draws.
    """

    def step(carry: tuple[AgentState, Array]) -> tuple[tuple[AgentState, Array], Metrics]:
        before, alive = carry
        after, metrics = agent.step(before)
        goes_on = alive & is_finite(after, metrics)

        def keep(new: Array, old: Array) -> Array:
            return new if new is old else jnp.where(goes_on, new, old)

        state = jax.tree.map(keep, after, put_back(agent.algorithm, before, after))
        return (state, goes_on), only_if(goes_on, metrics) | only_if(alive, losses(metrics))

    return agent._replace(step=step)  # type: ignore[arg-type]


def losses(metrics: Metrics) -> dict[str, Mean]:
    return {name: x for name, x in metrics.items() if name.startswith("losses/") and isinstance(x, Mean)}


def is_finite(state: AgentState, metrics: Metrics) -> Array:
    """Return whether the losses of an iteration and the parameters after it are finite, bool[]."""
    checked = ([x.sum for x in losses(metrics).values()], state.learner.params)
    numbers = [x for x in jax.tree.leaves(checked) if jnp.issubdtype(x.dtype, jnp.inexact)]
    # 0 · x is 0, or NaN if x is not finite. A sum of floats is vectorised on a CPU; an `all` of booleans is not, and over a
    # network's parameters it took 5 % of an iteration. Parameters that were packed for the update are read without unpacking.
    return jnp.isfinite((0.0 * ravel_pytree(numbers)[0]).sum())


@suggest_keywords
def make_train(
    agent: Agent, total_steps: int, *, metrics_every: int = 1, exact_steps: bool = False
) -> Callable[..., tuple[AgentState, Metrics]]:
    """Return a pure training run, ``train(key, hyperparams=None, env_params=None, data=None) -> (state, metrics)``.

    Args:
      agent: an agent on a pure environment; for a HostEnv use ``jaxrl.run``. One that learns from a dataset may have either, and
        takes it as ``data``, which ``jax.vmap(train, in_axes=(0, None, None, None))`` shares.
      total_steps: rows per seed (see ``num_iterations``), and the hyperparameter of this name unless ``train`` is given one.
      metrics_every: number of iterations merged into one entry of the metrics, so each has the shape
        [ceil(iterations / metrics_every)]. Rows are counted in 32 bits, so an entry covers fewer than 2**31.
      exact_steps: raise an error if ``total_steps`` is not a whole number of iterations.
    """
    if not isinstance(agent, Agent) or not agent.is_offline:
        check_pure(agent, "make_train")
    metrics_every = check_count("metrics_every", metrics_every)
    iterations = num_iterations(agent, total_steps, exact_steps=exact_steps)
    rows = (agent.algorithm.warmup_iterations + iterations) * agent.steps_per_iteration
    for said in doubtful(agent.schedules, agent.hyperparams, agent.algorithm.warmup_iterations + iterations):
        warnings.warn(said, ScheduleWarning, stacklevel=3)  # the caller, outside of suggest_keywords
    if (entry := min(metrics_every, iterations) * agent.steps_per_iteration) >= 2**31:
        raise ValueError(
            f"metrics_every={metrics_every} merges {entry} rows into one entry, and rows are counted in 32 bits: use at most "
            f"{(2**31 - 1) // agent.steps_per_iteration}"
        )

    def train(key: Key, hyperparams: Any = None, env_params: PyTree = None, data: Any = None) -> tuple[AgentState, Metrics]:
        state, stepping = agent.init(key, with_total_steps(agent, hyperparams, rows), env_params), with_data(agent, data)
        if metrics_every == 1:
            return jax.lax.scan(lambda state, _: stepping.step(state), state, length=iterations)
        full, rest = divmod(iterations, metrics_every)
        lengths = jnp.array([metrics_every] * full + [rest] * bool(rest), jnp.int32)
        return jax.lax.scan(lambda state, n: run_iterations(stepping, state, n), state, lengths)

    return train


def check_pure(agent: Agent, caller: str) -> Env:
    """Return the agent's environment.

    Raises:
      TypeError: the environment runs on the host.
    """
    check_agent(agent)
    if not isinstance(agent.env, Env):
        raise TypeError(
            f"{caller} needs a pure environment, but {agent.env.name} runs on the host: use jaxrl.run or jaxrl.evaluate"
        )
    return agent.env


def check_episodes(num_episodes: int, max_steps: int | None) -> tuple[int, int | None]:
    """Return both as integers; raise an error unless they are positive."""
    num_episodes = check_count("num_episodes", num_episodes, at_most=MAX_EPISODES)
    return num_episodes, None if max_steps is None else check_count("max_steps", max_steps)


def evaluate_pure(
    agent: Agent,
    policy: Policy | AgentState,
    key: Key,
    num_episodes: int,
    *,
    explore: bool = False,
    env_params: PyTree = None,
    max_steps: int | None = None,
) -> Evaluation:
    """Implement ``jaxrl.evaluate`` for pure environments. The arguments have been checked."""
    env = check_pure(agent, "evaluate_pure")
    algorithm, policy_or_state = agent.algorithm, policy
    policy = policy_of(agent, policy_or_state)
    if isinstance(policy_or_state, AgentState) and env_params is None:
        env_params = _shared_params(env, policy_or_state.env_params)
    if env_params is None:
        env_params = env.params
    limit = max_steps or env.max_episode_steps or EVALUATION_LIMIT
    env_id = jnp.arange(num_episodes, dtype=jnp.int32)
    reset_key, key = jax.random.split(key)

    def row(at: tuple[Progress, Array]) -> tuple[Progress, Array]:
        progress, time = at
        row_key = jax.random.fold_in(key, time)
        return play_row(algorithm, env, policy, progress, env_id, row_key, env_params, explore=explore), time + 1

    start = start_episodes(algorithm, env, reset_key, env_id, env_params), jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(lambda at: (~at[0].result.finished).any() & (at[1] < limit), row, start)[0].result


def policy_of(agent: Agent, policy_or_state: Any) -> Policy:
    """Return the policy to play with: ``policy_or_state`` itself, or the policy of an AgentState.

    Raises:
      TypeError: ``policy_or_state`` is neither a Policy nor an AgentState.
      ValueError: ``policy_or_state`` holds several seeds, or belongs to another agent.
    """
    check_one_policy(policy_or_state)
    policy = agent.algorithm.policy(policy_or_state.learner) if isinstance(policy_or_state, AgentState) else policy_or_state
    hyperparams = merge_hyperparams(agent.hyperparams, None)
    new = lambda: agent.algorithm.policy(agent.algorithm.init(jax.random.key(0), hyperparams))  # noqa: E731
    expected = jax.eval_shape(new).params
    if not same_shapes(policy.params, expected):
        from jaxrl.envs.checks.validate import mismatches

        which = mismatches("its params", jax.eval_shape(lambda: policy.params), expected, f"the agent on {agent.env.name}")
        raise ValueError(f"policy is of another agent: {which[0]}")
    return policy


def check_one_policy(policy_or_state: Any) -> None:
    """Raise an error unless ``policy_or_state`` is the state or the policy of one seed."""
    if not isinstance(policy_or_state, AgentState | Policy):
        several = isinstance(policy_or_state, list | tuple) and any(isinstance(x, AgentState) for x in policy_or_state)
        fix = ": states is the first of the two that run returns" if several and isinstance(policy_or_state, tuple) else ""
        fix = fix or (": pick one, states[0]" if several else "")
        raise TypeError(
            f"policy must be an AgentState or a Policy (agent.algorithm.policy(state.learner)), not {_kind(policy_or_state)}{fix}"
        )
    if lead := jnp.shape(policy_or_state.iteration if isinstance(policy_or_state, AgentState) else policy_or_state.version):
        raise ValueError(
            f"policy holds {lead[0]} seeds, on the leading axis of every leaf: pick one, jax.tree.map(lambda x: x[0], states), "
            "or evaluate all, jax.vmap(lambda state: jaxrl.evaluate(agent, state, key))(states)"
        )


def _kind(value: Any) -> str:
    """Return a short description of an object, for an error."""
    return f"a {type(value).__name__}" if not isinstance(value, dict) or "params" not in value else "bare parameters"


def _shared_params(env: Env, env_params: PyTree) -> PyTree:
    shared = jax.tree.map(lambda leaf, default: jnp.ndim(leaf) == jnp.ndim(default), env_params, env.params)
    if not all(jax.tree.leaves(shared)):
        raise ValueError(
            "the state's env_params differ between its environments: give evaluate env_params=…, one value or one per episode"
        )
    return env_params
