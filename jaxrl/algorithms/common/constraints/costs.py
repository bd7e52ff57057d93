"""Costs of steps, which environments report in ``info["cost"]``."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp

from jaxrl.rollout.collect import example_info
from jaxrl.spaces.trees import show_shapes
from jaxrl.types import Array, Env, HostEnv, Rollout

COST = "cost"
"""Entry of ``Rollout.info``: the cost of a row, f32."""


def cost_of(rollout: Rollout) -> Array:
    """Return the cost of each row, f32[T, B], 0 on rows that are not valid.

    Raises:
      ValueError: the environments report none. Those on the host are known only now.
    """
    check_cost(rollout.info.get(COST), "the environment", rollout.info, rollout.reward.shape)
    return jnp.where(rollout.valid, rollout.info[COST], 0).astype(jnp.float32)


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
            f"{found}: return it in TimeStep.info, as jaxrl:Hazards does (in Gymnasium also in the info of reset, as 0.0), or "
            "leave constraint out"
        )
