"""Bind an ``Algorithm`` to an environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent.checks import EagerStepWarning as EagerStepWarning
from jaxrl.agent.checks import check_axis, check_key, check_state, refuse_env_params, warn_if_eager
from jaxrl.metrics import all_reduce
from jaxrl.optimize.schedules import ScheduleWarning, doubtful
from jaxrl.replay.dataset import check_data
from jaxrl.replay.dataset_replay import with_attached
from jaxrl.rollout.agents import num_environment_rows
from jaxrl.rollout.collect import collect, init_actor
from jaxrl.rollout.env_batches import check_env_params
from jaxrl.rollout.play import play_population, population_metrics
from jaxrl.settings.validation import merge_hyperparams, present, setting_types
from jaxrl.types import (
    Agent,
    AgentState,
    Algorithm,
    Array,
    Env,
    Episodes,
    HostEnv,
    Key,
    LearnerState,
    Mean,
    Metrics,
    Policy,
    PyTree,
    Rollout,
)
from jaxrl.xla.fast_random import fold_in
from jaxrl.xla.ordered_collectives import in_order
from jaxrl.xla.private_jax import is_traced


def lane_ids(batch: int, axis_name: str | None) -> Array:
    """Return the global ids of this device's lanes, i32[batch]: of its environments, or of all agents in them."""
    offset = 0 if axis_name is None else jax.lax.axis_index(axis_name) * batch
    return offset + jnp.arange(batch, dtype=jnp.int32)


def bind(
    algorithm: Algorithm,
    env: Env | HostEnv,
    *,
    num_envs: int,
    rollout_length: int,
    hyperparams: Any,
    spec: dict[str, Any] | None = None,
    axis_name: str | None = None,
    schedules: Mapping[str, Callable[[Array], Array]] | None = None,
    episodes: int = 0,
    data: Any = None,
    online: bool = False,
) -> Agent:
    """Return an Agent whose ``step`` collects ``rollout_length`` rows in each of ``num_envs`` environments and learns from them.

    That of an algorithm with ``members`` plays ``episodes`` episodes, of at most ``rollout_length`` rows, with each of
    ``num_envs`` / ``episodes`` members, and learns from those.

    Args:
      hyperparams: the algorithm's defaults, a NamedTuple of Python floats (not of arrays, which could be donated).
      spec: data for ``jaxrl.build``; optional for custom algorithms.
      axis_name: the device axis that ``step`` runs under (pmap, shard_map). Each device holds its share of the environments.
      episodes: episodes of each member.
      data: a ``Dataset`` to learn from in place of rollouts, or its description. The algorithm's replay draws from it
        (``jaxrl.replay.dataset_replay.dataset_replay``), and ``rollout_length`` is the number of updates of an iteration.
      online: with ``data``, collect rollouts as without, and learn from both (``jaxrl.replay.dataset_replay.mixed_replay``).
    """
    if not isinstance(axis_name, str | None):
        raise TypeError(f"axis_name={axis_name!r} must be the name of a mapped axis, such as 'd', or None")
    setting_types(type(hyperparams))  # type: ignore[arg-type]  # raises if a field's type does not define its values
    if data is not None and axis_name is not None:
        raise ValueError(f"axis_name={axis_name!r} cannot be used with data=…: devices share nothing, and each learns its seeds")
    if data is not None and not online:
        init, step = _offline_functions(algorithm, data, rollout_length)
    elif isinstance(env, HostEnv):
        init, step = _host_functions(algorithm, env)
    elif algorithm.members is not None:
        init, step = _population_functions(algorithm, env, num_envs // episodes, episodes, rollout_length, axis_name)
    else:
        init, step = _pure_functions(algorithm, env, num_envs, rollout_length, axis_name, data)

    defaults = hyperparams

    def init_agent(key: Key, hyperparams: Any = None, env_params: PyTree = None) -> AgentState:
        check_key(key)
        if not is_traced(key):  # no warnings under tracing, which may be for shapes alone
            for said in doubtful(schedules or {}, defaults):
                warnings.warn(said, ScheduleWarning, stacklevel=2)
        if env_params is None:
            env_params = env.params if isinstance(env, Env) else ()
        elif isinstance(env, Env):
            check_env_params(env, env_params, episodes or num_envs)
        else:
            refuse_env_params(env)
        return init(key, merge_hyperparams(defaults, hyperparams), env_params)

    return Agent(
        init_agent,
        step,
        algorithm,
        env,
        dict(spec or {}),
        num_envs,
        rollout_length,
        axis_name,
        defaults,
        schedules or {},
        data=data,
        online=online,
        episodes=episodes,
    )


def with_total_steps(agent: Agent, hyperparams: Any, total_steps: int) -> Any:
    """Return ``hyperparams`` with ``total_steps`` set, if the algorithm has such a hyperparameter and it is missing or 0.

    Args:
      hyperparams: None, a mapping or the algorithm's NamedTuple.
    """
    if "total_steps" not in getattr(agent.hyperparams, "_fields", ()):
        return hyperparams
    if isinstance(hyperparams, type(agent.hyperparams)):
        hyperparams = present(hyperparams)
    elif not isinstance(hyperparams, Mapping | None):
        return hyperparams  # init raises the error
    current = (hyperparams or {}).get("total_steps", 0.0)
    where: Any = jnp.where if isinstance(current, jax.Array) else np.where
    return {**(hyperparams or {}), "total_steps": where(current == 0, np.float32(total_steps), current)}


def state_shapes(agent: Agent) -> AgentState:
    """Return the shapes of the state that ``agent.init`` returns."""
    return jax.eval_shape(lambda: agent.init(jax.random.key(0)))


def policy_shapes(agent: Agent) -> Policy:
    """Return the shapes of the policy of such a state."""
    return jax.eval_shape(agent.algorithm.policy, state_shapes(agent).learner)


def as_only_device(function: Any, axis_name: str | None) -> Any:
    """Return ``function`` with its device axis bound to an axis of size one, because ``init`` runs outside of any mapping."""
    if axis_name is None:
        return function
    alone = jax.vmap(function, axis_name=axis_name)
    return lambda *args: jax.tree.map(lambda x: x[0], alone(*jax.tree.map(lambda x: x[None], args)))


def _strong(tree: PyTree) -> PyTree:
    """Convert leaves to arrays without weak types: weak types would retrace the step, and Python scalars would not batch."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(jnp.asarray(x), jnp.asarray(x).dtype), tree)


def _pure_functions(
    algorithm: Algorithm, env: Env, num_envs: int, rollout_length: int, axis_name: str | None, described: Any = None
) -> tuple[Callable[..., AgentState], Callable[..., Any]]:
    def collect_rollout(state: AgentState, env_id: Array) -> Any:
        policy, key = algorithm.policy(state.learner), fold_in(state.key, state.iteration)
        return collect(algorithm, env, policy, state.actor, state.env_params, env_id, key, rollout_length)

    @jax.jit
    def init(key: Key, hyperparams: Any, env_params: PyTree) -> AgentState:
        learner_key, actor_key, key = jax.random.split(key, 3)
        env_id, env_params = lane_ids(num_envs * max(1, env.num_agents), None), _strong(env_params)
        actor = init_actor(algorithm, env, actor_key, env_id, env_params)
        learner = algorithm.init(learner_key, hyperparams)
        state = AgentState(learner, actor, env_params, key, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

        def warm_up(state: AgentState, _: None) -> tuple[AgentState, None]:
            actor, rollout, _ = collect_rollout(state, env_id)
            learner = as_only_device(algorithm.observe, axis_name)(state.learner, rollout)
            rows = state.warmup_rows + num_environment_rows(rollout.valid, env.num_agents)
            return state._replace(learner=learner, actor=actor, iteration=state.iteration + 1, warmup_rows=rows), None

        if algorithm.warmup_iterations:
            state, _ = jax.lax.scan(warm_up, state, length=algorithm.warmup_iterations)
        return state

    def update(learner: LearnerState, rollout: Rollout, episodes: Metrics) -> tuple[LearnerState, Metrics]:
        learner, losses = algorithm.update(learner, rollout)
        return learner, all_reduce(episodes | losses, axis_name)

    if axis_name is not None:
        update = in_order(update)

    def step(state: AgentState, data: Any = ()) -> tuple[AgentState, Metrics]:
        check_state(state)
        check_data(data, described)
        if axis_name is not None:
            check_axis(axis_name)
        warn_if_eager(state)
        env_id = lane_ids(state.actor.done.shape[0], axis_name)
        # These names appear in profiles and in the compiled program; they do not change the program.
        with jax.named_scope("rollout"):
            actor, rollout, episodes = collect_rollout(state, env_id)
        with jax.named_scope("update"):
            learner, metrics = with_attached(update, data)(state.learner, rollout, episodes)
        return state._replace(learner=learner, actor=actor, iteration=state.iteration + 1), metrics

    return init, step


def _population_functions(
    algorithm: Algorithm, env: Env, members: int, episodes: int, horizon: int, axis_name: str | None
) -> tuple[Callable[..., AgentState], Callable[..., Any]]:
    @jax.jit
    def init(key: Key, hyperparams: Any, env_params: PyTree) -> AgentState:
        learner_key, key = jax.random.split(key)
        return _without_actor(algorithm.init(learner_key, hyperparams), _strong(env_params), key)

    def learn(learner: LearnerState, played: Episodes) -> tuple[LearnerState, Metrics]:
        assert algorithm.learn_from is not None
        learner, metrics = algorithm.learn_from(learner, played)
        rows = played.episodic_length.shape[0] * horizon
        return learner, all_reduce(population_metrics(played, rows, env.num_agents) | metrics, axis_name)

    if axis_name is not None:
        learn = in_order(learn)

    def step(state: AgentState) -> tuple[AgentState, Metrics]:
        check_state(state)
        if axis_name is not None:
            check_axis(axis_name)
        warn_if_eager(state)
        own = lane_ids(members if axis_name is None else members // jax.lax.axis_size(axis_name), axis_name)
        with jax.named_scope("rollout"):
            played = play_population(algorithm, env, state, own, episodes, horizon)
        with jax.named_scope("update"):
            learner, metrics = learn(state.learner, played)
        return state._replace(learner=learner, iteration=state.iteration + 1), metrics

    return init, step


def _without_actor(learner: Any, env_params: PyTree, key: Key) -> AgentState:
    return AgentState(learner, (), env_params, key, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))  # type: ignore[arg-type]


def _offline_functions(
    algorithm: Algorithm, described: Any, updates: int
) -> tuple[Callable[..., AgentState], Callable[..., Any]]:
    @jax.jit
    def init(key: Key, hyperparams: Any, env_params: PyTree) -> AgentState:
        learner_key, key = jax.random.split(key)
        return _without_actor(algorithm.init(learner_key, hyperparams), _strong(env_params), key)

    def step(state: AgentState, data: Any = ()) -> tuple[AgentState, Metrics]:
        check_state(state)
        check_data(data, described)
        warn_if_eager(state)
        assert algorithm.learn is not None
        with jax.named_scope("update"):
            learner, metrics = with_attached(algorithm.learn, data)(state.learner)
        counted = {"charts/valid_rows": Mean(jnp.int32(updates), jnp.int32(updates))}
        return state._replace(learner=learner, iteration=state.iteration + 1), counted | metrics

    return init, step


def with_data(agent: Agent, data: Any) -> Agent:
    """Return an agent whose ``step`` takes a state alone, for use within a program that has the dataset as an argument."""
    return agent if agent.data is None else agent._replace(step=lambda state: agent.step(state, data))


def _host_functions(algorithm: Algorithm, env: HostEnv) -> tuple[Callable[..., AgentState], Callable[..., Any]]:
    @jax.jit
    def init(key: Key, hyperparams: Any, env_params: PyTree) -> AgentState:
        learner_key, _, key = jax.random.split(key, 3)
        return _without_actor(algorithm.init(learner_key, hyperparams), env_params, key)

    def step(state: AgentState) -> tuple[AgentState, Metrics]:
        raise RuntimeError(
            f"{env.name} runs on the host, so its agent has no pure step: use jaxrl.run(agent, total_steps=…), "
            "which collects rollouts on the host and calls the same update"
        )

    return init, step
