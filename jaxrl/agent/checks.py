"""Checks of the arguments of an ``Agent``'s functions."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.types import Agent, AgentState, HostEnv
from jaxrl.xla.private_jax import is_traced, setting


def refuse_env_params(env: HostEnv) -> None:
    """Raise ValueError: host environments have no ``env_params``."""
    raise ValueError(f"env_params are for pure environments; {env.name} runs on the host and takes options in make_env")


def check_key(key: Any, *, vmapped: str = "agent.init") -> None:
    """Raise TypeError unless ``key`` is a single typed key.

    Args:
      vmapped: the function to ``jax.vmap`` over several keys, for the error.
    """
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        kind = f"an array of {key.dtype}" if hasattr(key, "dtype") else type(key).__name__
        raise TypeError(f"key must be a typed key, as jax.random.key(0) makes it, not {kind}")
    if key.ndim:
        raise TypeError(f"key must be one key, not a batch of shape {key.shape}: use jax.vmap({vmapped})(keys)")


def check_axis(axis_name: str) -> None:
    """Raise ValueError outside of a mapped axis of this name."""
    try:
        jax.lax.axis_size(axis_name)
    except NameError:
        raise ValueError(
            f"axis_name={axis_name!r}: step must run under a mapped axis of that name, as in jax.pmap(agent.step, "
            f"axis_name={axis_name!r}); to run without one, build the agent without axis_name"
        ) from None


def check_agent(agent: Any) -> None:
    """Raise TypeError unless ``agent`` is an Agent."""
    if not isinstance(agent, Agent):
        kind = f"{agent!r}" if isinstance(agent, str) else f"a {type(agent).__name__}"
        raise TypeError(f"agent must be an Agent, as jaxrl.make_ppo('CartPole-v1') returns, not {kind}")


def check_state(state: Any) -> None:
    """Raise an error unless ``state`` is the AgentState of a single seed."""
    if not isinstance(state, AgentState):
        raise TypeError(f"state must be an AgentState, as agent.init(key) and agent.step return, not {type(state).__name__}")
    if lead := jnp.shape(state.iteration):
        raise ValueError(f"state holds {lead[0]} states, on the leading axis of every leaf: use jax.vmap(agent.step)(states)")


class EagerStepWarning(UserWarning):
    """``agent.step`` was called outside of ``jit``. Issued once per process."""


def warn_if_eager(state: AgentState) -> None:
    """Warn if a step runs outside of ``jit``."""
    traced = any(is_traced(leaf) for leaf in jax.tree.leaves(state))
    # A state that a traced function closes over holds no tracers, but values computed from it there are tracers.
    traced = traced or is_traced(state.iteration + 1)
    if not traced and not setting("jax_disable_jit"):
        _warn_of_eager_step()


@functools.cache
def _warn_of_eager_step() -> None:
    warnings.warn(
        "agent.step runs outside of jit, operation by operation, which is hundreds of times slower: compile it once with "
        "step = jax.jit(agent.step), then call state, metrics = step(state)",
        EagerStepWarning,
        stacklevel=4,  # the caller of step
    )
