"""Costs of steps, which environments report in ``info["cost"]``, and the undiscounted cost of whole episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxrl.metrics import masked_mean
from jaxrl.rollout.collect import example_info
from jaxrl.rollout.running_statistics import starts_anew
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Array, Env, HostEnv, Mean, Rollout

COST = "cost"
"""Entry of ``Rollout.info``: the cost of a row, f32."""


class EpisodeCosts(NamedTuple):
    """Costs of episodes, tracked per lane of a rollout: per environment, or per agent."""

    running: Array
    """f32[num_envs]: cost of the current episode so far."""
    total: Array
    """f32[]: sum of the costs of the episodes that the estimate is the mean of, on all devices."""
    count: Array  # type: ignore[assignment]  # a field may hide tuple.count
    """f32[]: their number; 0 before the first has ended."""

    @property
    def env_axes(self) -> Mapping[str, int]:
        return {"running": 0}

    @property
    def mean(self) -> Array:
        """Estimate of the cost of an episode, f32[]; 0 before the first has ended."""
        return self.total / jnp.maximum(self.count, 1.0)


def no_costs(num_envs: int) -> EpisodeCosts:
    return EpisodeCosts(jnp.zeros(num_envs, jnp.float32), jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))


def cost_of(rollout: Rollout) -> Array:
    """Return the cost of each row, f32[T, B], 0 on rows that are not valid.

    Raises:
      ValueError: the environments report none. Those on the host are known only now.
    """
    check_cost(rollout.info.get(COST), "the environment", rollout.info, rollout.reward.shape)
    return jnp.where(rollout.valid, rollout.info[COST], 0).astype(jnp.float32)


def add_rollout(costs: EpisodeCosts, rollout: Rollout, smoothing: Array, axis_name: str | None) -> tuple[EpisodeCosts, Mean]:
    """Add the valid rows of a rollout; return the costs, and the mean cost of the episodes that ended.

    The estimate is the mean over these episodes and earlier ones, which weigh less by the factor ``smoothing``, f32[], for each
    rollout in which any ended. Without an end it stays.
    """
    slot = rollout.env_id % costs.running.shape[0]  # a device holds a contiguous share of the environments

    def forward(running: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        cost, anew = row
        running = jnp.where(anew, 0.0, running) + cost
        return running, running

    last, running = jax.lax.scan(forward, costs.running[slot], (cost_of(rollout), starts_anew(rollout)))
    ended = masked_mean(running, rollout.valid & (rollout.terminated | rollout.truncated))
    total, count = ended.sum, ended.count.astype(jnp.float32)
    if axis_name is not None:
        total, count = jax.lax.psum((total, count), axis_name)
    kept = jnp.where(count > 0, smoothing, 1.0)
    after = EpisodeCosts(costs.running.at[slot].set(last), kept * costs.total + total, kept * costs.count + count)
    return after, ended


def check_env_cost(env: Env | HostEnv) -> None:
    """Raise ValueError if a pure environment reports no cost."""
    if isinstance(env, Env):
        info = example_info(env)
        check_cost(info.get(COST), env.name, info, (env.num_agents,) * (env.num_agents > 0))


def check_cost(cost: Array | None, subject: str, info: Mapping[str, Array], shape: tuple[int, ...]) -> None:
    each = "of each agent, " if shape else ""
    if cost is None or cost.shape != shape:
        found = show_shapes(cost) if cost is not None else f"only {sorted(info)}" if info else "nothing"
        raise ValueError(
            f"constraint=Lagrangian(…) needs the cost of each step {each}as one number in info[{COST!r}], and {subject} reports "
            f"{found}: return it in TimeStep.info, as jaxrl:Hazards does, or leave constraint out"
        )
