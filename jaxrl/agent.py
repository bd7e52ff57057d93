"""Binding an ``Algorithm`` to an environment: the ``Agent``."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.metrics import all_reduce
from jaxrl.optimize.schedules import ScheduleWarning, doubtful
from jaxrl.rollout.collect import check_env_params, collect, init_actor
from jaxrl.settings.validation import merge_hyperparams, setting_types
from jaxrl.types import Agent, AgentState, Algorithm, Array, Env, HostEnv, Key, LearnerState, Metrics, PyTree, Rollout
from jaxrl.xla.fast_random import fold_in
from jaxrl.xla.ordered_collectives import in_order
from jaxrl.xla.private_jax import is_traced, setting


def environment_ids(batch: int, axis_name: str | None) -> Array:
    """i32[batch]: the global ids of this device's environments."""
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
) -> Agent:
    """An Agent that collects ``rollout_length`` rows in ``num_envs`` environments per step, and learns from them.

    Args:
      hyperparams: the rule's defaults, a NamedTuple of Python floats (kept as floats: arrays could be donated away).
      spec: what ``jaxrl.build`` needs; a rule of your own may leave it out.
      axis_name: the device axis that ``step`` runs under (pmap, shard_map), each device holding its share of environments.
    """
    if not isinstance(axis_name, str | None):
        raise TypeError(f"axis_name={axis_name!r} must be the name of a mapped axis, such as 'd', or None")
    setting_types(type(hyperparams))  # type: ignore[arg-type]  # refuses those that do not say what they may be
    if isinstance(env, HostEnv):
        init, step = _host_functions(algorithm, env)
    else:
        init, step = _pure_functions(algorithm, env, num_envs, rollout_length, axis_name)

    defaults = hyperparams

    def init_agent(key: Key, hyperparams: Any = None, env_params: PyTree = None) -> AgentState:
        check_key(key)
        if not is_traced(key):  # a program that is traced may be for shapes alone
            for said in doubtful(schedules or {}, defaults):
                warnings.warn(said, ScheduleWarning, stacklevel=2)
        if env_params is None:
            env_params = env.params if isinstance(env, Env) else ()
        elif isinstance(env, Env):
            check_env_params(env, env_params, num_envs)
        else:
            refuse_env_params(env)
        return init(key, merge_hyperparams(defaults, hyperparams), env_params)

    return Agent(
        init_agent, step, algorithm, env, dict(spec or {}), num_envs, rollout_length, axis_name, defaults, schedules or {}
    )


def with_total_steps(agent: Agent, hyperparams: Any, total_steps: int) -> Any:
    """``hyperparams`` (None, a mapping or the rule's NamedTuple) with a run's length, if the rule has a ``total_steps``.

    One that is given, and not 0, stays.
    """
    if "total_steps" not in getattr(agent.hyperparams, "_fields", ()):
        return hyperparams
    if isinstance(hyperparams, type(agent.hyperparams)):
        hyperparams = hyperparams._asdict()
    elif not isinstance(hyperparams, Mapping | None):
        return hyperparams  # which init refuses
    given = (hyperparams or {}).get("total_steps", 0.0)
    where: Any = jnp.where if isinstance(given, jax.Array) else np.where
    return {**(hyperparams or {}), "total_steps": where(given == 0, np.float32(total_steps), given)}


def state_shapes(agent: Agent) -> AgentState:
    """Shapes of what ``agent.init`` gives."""
    return jax.eval_shape(lambda: agent.init(jax.random.key(0)))


def refuse_env_params(env: HostEnv) -> None:
    """Say that host environments have none."""
    raise ValueError(f"env_params are for pure environments; {env.name} runs on the host and takes options in make_env")


def check_key(key: Any, *, vmapped: str = "agent.init") -> None:
    """Refuse what is no typed key, and a batch of them.

    Args:
      vmapped: what takes several keys under ``jax.vmap``, for the error.
    """
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        kind = f"an array of {key.dtype}" if hasattr(key, "dtype") else type(key).__name__
        raise TypeError(f"key must be a typed key, as jax.random.key(0) makes, not {kind}")
    if key.ndim:
        raise TypeError(f"key must be one key, not a batch of shape {key.shape}: use jax.vmap({vmapped})(keys)")


def check_axis(axis_name: str) -> None:
    """Refuse to run outside of the mapped axis that an agent was built for."""
    try:
        jax.lax.axis_size(axis_name)
    except NameError:
        raise ValueError(
            f"axis_name={axis_name!r}: step must run under a mapped axis of that name, as in jax.pmap(agent.step, "
            f"axis_name={axis_name!r}), or the agent be built without axis_name"
        ) from None


def check_agent(agent: Any) -> None:
    """Refuse what no builder made."""
    if not isinstance(agent, Agent):
        kind = f"{agent!r}" if isinstance(agent, str) else f"a {type(agent).__name__}"
        raise TypeError(f"agent must be what a builder makes, as jaxrl.make_ppo('CartPole-v1') does, not {kind}")


def check_state(state: Any) -> None:
    """Refuse what is no AgentState of one seed."""
    if not isinstance(state, AgentState):
        raise TypeError(f"state must be an AgentState, as agent.init(key) and agent.step give, not {type(state).__name__}")
    if lead := jnp.shape(state.iteration):
        raise ValueError(f"state holds {lead[0]} states, on the leading axis of every leaf: use jax.vmap(agent.step)(states)")


class EagerStepWarning(UserWarning):
    """``agent.step`` was called outside of ``jit``; said once per process."""


def warn_if_eager(state: AgentState) -> None:
    """Tell the caller of a step that nothing compiles it."""
    traced = any(is_traced(leaf) for leaf in jax.tree.leaves(state))
    # A state that a traced function closes over has no tracers, but what is computed from it there is one.
    traced = traced or is_traced(state.iteration + 1)
    if not traced and not setting("jax_disable_jit"):
        _warn_of_eager_step()


@functools.cache
def _warn_of_eager_step() -> None:
    warnings.warn(
        "agent.step runs outside of jit, operation by operation, which takes hundreds of times as long: compile it once, "
        "step = jax.jit(agent.step), and call state, metrics = step(state)",
        EagerStepWarning,
        stacklevel=4,  # whoever called the step
    )


def as_only_device(function: Any, axis_name: str | None) -> Any:
    """``function`` with its device axis bound to an axis of size one: ``init`` runs outside of any mapping."""
    if axis_name is None:
        return function
    alone = jax.vmap(function, axis_name=axis_name)
    return lambda *args: jax.tree.map(lambda x: x[0], alone(*jax.tree.map(lambda x: x[None], args)))


def _strong(tree: PyTree) -> PyTree:
    """Arrays with fixed types: weak ones would retrace the step, and Python scalars would not batch."""
    return jax.tree.map(lambda x: jax.lax.convert_element_type(jnp.asarray(x), jnp.asarray(x).dtype), tree)


def _pure_functions(
    algorithm: Algorithm, env: Env, num_envs: int, rollout_length: int, axis_name: str | None
) -> tuple[Callable[..., AgentState], Callable[..., Any]]:
    def collect_rollout(state: AgentState, env_id: Array) -> Any:
        policy, key = algorithm.policy(state.learner), fold_in(state.key, state.iteration)
        return collect(algorithm, env, policy, state.actor, state.env_params, env_id, key, rollout_length)

    @jax.jit
    def init(key: Key, hyperparams: Any, env_params: PyTree) -> AgentState:
        learner_key, actor_key, key = jax.random.split(key, 3)
        env_id, env_params = environment_ids(num_envs, None), _strong(env_params)
        actor = init_actor(algorithm, env, actor_key, env_id, env_params)
        learner = algorithm.init(learner_key, hyperparams)
        state = AgentState(learner, actor, env_params, key, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

        def warm_up(state: AgentState, _: None) -> tuple[AgentState, None]:
            actor, rollout, _ = collect_rollout(state, env_id)
            learner = as_only_device(algorithm.observe, axis_name)(state.learner, rollout)
            rows = state.warmup_rows + rollout.valid.sum(dtype=jnp.int32)
            return state._replace(learner=learner, actor=actor, iteration=state.iteration + 1, warmup_rows=rows), None

        if algorithm.warmup_iterations:
            state, _ = jax.lax.scan(warm_up, state, length=algorithm.warmup_iterations)
        return state

    def update(learner: LearnerState, rollout: Rollout, episodes: Metrics) -> tuple[LearnerState, Metrics]:
        learner, losses = algorithm.update(learner, rollout)
        return learner, all_reduce(episodes | losses, axis_name)

    if axis_name is not None:
        update = in_order(update)

    def step(state: AgentState) -> tuple[AgentState, Metrics]:
        check_state(state)
        if axis_name is not None:
            check_axis(axis_name)
        warn_if_eager(state)
        env_id = environment_ids(state.actor.done.shape[0], axis_name)
        # The names say in profiles, and in the compiled program, what belongs where; they change nothing in it.
        with jax.named_scope("rollout"):
            actor, rollout, episodes = collect_rollout(state, env_id)
        with jax.named_scope("update"):
            learner, metrics = update(state.learner, rollout, episodes)
        return state._replace(learner=learner, actor=actor, iteration=state.iteration + 1), metrics

    return init, step


def _host_functions(algorithm: Algorithm, env: HostEnv) -> tuple[Callable[..., AgentState], Callable[..., Any]]:
    @jax.jit
    def init(key: Key, hyperparams: Any, env_params: PyTree) -> AgentState:
        learner_key, _, key = jax.random.split(key, 3)
        learner = algorithm.init(learner_key, hyperparams)
        return AgentState(learner, (), env_params, key, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))  # type: ignore[arg-type]

    def step(state: AgentState) -> tuple[AgentState, Metrics]:
        raise RuntimeError(
            f"{env.name} runs on the host, so its agent has no pure step: use jaxrl.run(agent, total_steps=…), "
            "which collects on the host and calls the same update"
        )

    return init, step
