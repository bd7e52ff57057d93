"""Datasets collected by the policy of a run, for ``jaxrl collect``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.distributions import Categorical, MultiCategorical
from jaxrl.envs.checks.check_env import random_action
from jaxrl.models.heads import masked
from jaxrl.replay.dataset import Dataset, make_dataset
from jaxrl.replay.transitions import ReplayRow, replay_rows
from jaxrl.rollout.collect import collect, init_actor
from jaxrl.rollout.env_batches import fold_each
from jaxrl.runtime.evaluation.evaluate_runs import playing_agent
from jaxrl.runtime.evaluation.load_policy import load_policy
from jaxrl.runtime.logs.run_folder import read_config
from jaxrl.runtime.samplers.sampler import HostSampler
from jaxrl.settings.aliases import shortened
from jaxrl.settings.validation import check_count, check_seed
from jaxrl.types import Agent, Algorithm, Array, HostEnv, Key, Policy, PyTree, Rollout, StepInput
from jaxrl.xla.fast_random import fold_in

ROLLOUT = 256
"""Rows of each environment between two reports of the progress."""
STREAM = 0x64617461
"""Number folded into the key of a collection, far from those of training and evaluation."""


def share_at_random(policy: str) -> tuple[str, float]:
    """Return which policies to load, and the share of the environments in which actions are random.

    Args:
      policy: "best", "last", "random", or "mix:SHARE": the best policy, and in a share of the environments random actions.

    Raises:
      ValueError: another text.
    """
    kind, _, share = policy.partition(":")
    if policy in ("best", "last"):
        return policy, 0.0
    if policy == "random":
        return "last", 1.0
    with contextlib.suppress(ValueError):
        if kind == "mix" and 0 < float(share) < 1:
            return "best", float(share)
    raise ValueError(
        f"policy={shortened(policy)} must be best, last, random, or mix:0.5 for random actions in half of the environments"
    )


def collect_dataset(
    run: str | os.PathLike[str],
    rows: int,
    *,
    policy: str = "best",
    explore: bool = False,
    seed: int | None = None,
    collect_seed: int = 0,
    num_envs: int = 8,
    env_id: str | None = None,
    trust: str | Iterable[str] = (),
    say: Callable[[int], None] = lambda rows: None,
) -> Dataset:
    """Play a run's policy, and return the rows as a dataset.

    Args:
      rows: number of transitions, at least.
      policy: "best" or "last" policies of the run, "random" actions, or "mix:0.5": random actions in half of the environments.
      explore: act as in training instead of greedily.
      seed: one of the run's seeds; default: the best one.
      collect_seed: seed of the environments and of the actions.
      num_envs: number of environments; each gives a part of the rows.
      env_id: an environment to use instead of the run's.
      trust: as in ``load_policy``.
      say: called with the number of transitions so far.

    Raises:
      ValueError: a setting is not allowed; other errors are those of ``load_policy``.
    """
    which, share = share_at_random(policy)
    rows, num_envs = check_count("rows", rows), check_count("envs", num_envs)
    collect_seed = check_seed("collect_seed", collect_seed)
    loaded = load_policy(run, seed=seed, which=which, trust=trust)
    agent = playing_agent(read_config(run), env_id, trust)
    if isinstance(agent.env, HostEnv):
        agent = agent._replace(env=agent.env._replace(open=agent.env.open_eval or agent.env.open))  # raw rewards, whole games
    at_random = round(share * num_envs)
    if share and not 0 < at_random <= num_envs - (share < 1):
        raise ValueError(f"policy={policy!r} needs more environments than num_envs={num_envs}, to have some of both kinds")
    agent = agent._replace(algorithm=behaving(agent, explore, at_random), num_envs=num_envs, rollout_length=ROLLOUT)
    key, parts, found = jax.random.fold_in(jax.random.key(collect_seed), STREAM), list[ReplayRow](), 0
    with contextlib.closing(rollouts(agent, loaded.policy, key, collect_seed)) as source:
        for rollout in source:
            part: Any = jax.tree.map(np.asarray, replay_rows(rollout))
            parts.append(part)
            found += int(part.valid.sum())
            say(found)
            if found >= rows:
                break
    obs = jax.tree.map(lambda x: np.asarray(x)[-1:], rollout.inputs.obs)
    last: Any = jax.tree.map(lambda x: x[-1:], parts[-1])
    # The observation after the last row is known.
    joined: Any = jax.tree.map(lambda *x: np.concatenate(x), *parts, last._replace(obs=obs, valid=np.zeros_like(last.valid)))
    return make_dataset(joined, agent.env)


def behaving(agent: Agent, explore: bool, at_random: int) -> Algorithm:
    """Return an algorithm that acts at random in the first ``at_random`` environments, and in the others with the policy."""
    chosen, algorithm = explore, agent.algorithm

    def act(
        policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool = True, **planning: Any
    ) -> tuple[PyTree, Array, PyTree]:
        carry, action, _ = algorithm.act(policy, carry, inputs, env_id, fold_in(key, 0), explore=chosen, **planning)
        drawn = jax.vmap(partial(uniform_action, agent.env.action_space))(inputs.obs, fold_each(fold_in(key, 1), env_id))
        where = (env_id < at_random * max(1, agent.env.num_agents)).reshape(-1, *[1] * (action.ndim - 1))
        return carry, jnp.where(where, drawn.astype(action.dtype), action), {}

    return algorithm._replace(act=act)


def uniform_action(space: spaces.Space, obs: PyTree, key: Key) -> Array:
    """Draw an action for one observation, uniformly from those that its mask allows."""
    if isinstance(space, spaces.Discrete):
        return Categorical(masked(jnp.zeros(int(space.n)), obs)).sample(key)
    if isinstance(space, spaces.MultiDiscrete):
        nvec = space.nvec.ravel().tolist()
        return MultiCategorical.from_flat(masked(jnp.zeros(sum(nvec)), obs), nvec).sample(key).reshape(space.shape)
    return random_action(space, key)


def rollouts(agent: Agent, policy: Policy, key: Key, seed: int) -> Generator[Rollout, None, None]:
    """Yield rollouts [ROLLOUT, num_envs] that continue each other."""
    if isinstance(agent.env, HostEnv):
        sampler = HostSampler(agent, seed)
        try:
            number = 0
            while True:
                yield sampler.collect(policy, jax.random.fold_in(key, number))[0]
                number += 1
        finally:
            sampler.close()
    env, env_id = agent.env, jnp.arange(agent.num_lanes, dtype=jnp.int32)

    @jax.jit
    def start(key: Key) -> Any:
        return init_actor(agent.algorithm, env, key, env_id, env.params)

    @jax.jit
    def more(actor: Any, policy: Policy, key: Key) -> Any:
        return collect(agent.algorithm, env, policy, actor, env.params, env_id, key, agent.rollout_length)[:2]

    actor, number = start(jax.random.fold_in(key, 0)), 0
    while True:
        number += 1
        actor, rollout = more(actor, policy, jax.random.fold_in(key, number))
        yield rollout
