"""``jaxrl.load_policy``: a trained policy as a function of observations, without its environment and its replay buffer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.agent import state_shapes
from jaxrl.builder.spec import build_again
from jaxrl.runtime.checkpoint.manifest import latest_step
from jaxrl.runtime.checkpoint.restore import read_arrays, restore
from jaxrl.runtime.checkpoint.transfer import by_path, check_which, saved_folder
from jaxrl.runtime.evaluation.chosen_policy import chosen, greedy_warning
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.runtime.logs.files import read_records
from jaxrl.runtime.logs.records import EVALUATION_RETURN, Record
from jaxrl.runtime.logs.run_folder import BEST, CHECKPOINTS, read_config
from jaxrl.runtime.system.disk import absolute
from jaxrl.runtime.system.warn import warn
from jaxrl.spaces.goals import ACHIEVED, DESIRED, has_goals
from jaxrl.spaces.trees import realize_space
from jaxrl.types import Agent, ComputeRewardFn, HostEnv, HostEnvs, Key, Policy


def load_policy(
    run: str | os.PathLike[str],
    *,
    seed: int | None = None,
    which: str = "best",
    explore: bool = False,
    key: Key | None = None,
    trust: str | Iterable[str] = (),
    **parts: Any,
) -> LoadedPolicy:
    """The policy that a run learnt. ``print`` it to see which one it is, and what the others of its run score.

    Args:
      run: its folder.
      seed: one of the run's seeds; default: the one with the highest return in the evaluation at hand. Where several members of a
        run have the same seed (with other hyperparameters), that choice is made among them.
      which: "best", of the best evaluation (mean over seeds), or "last", of the last checkpoint. Where the run was not evaluated,
        "best" takes the last too, and a warning says so.
      explore: act as in training, not greedily, unless a call says otherwise: for policies that are worse or stand still when
        greedy. A run with ``eval_explore`` chose its best so.
      key: what exploring draws with, a stream of its own; without it every call that explores needs one.
      trust: packages or modules that the run uses, whose code may run: ``("my_package",)``. Without it only parts of jaxrl are
        imported, and those that this process gave to a builder. The environment is not needed.
      parts: parts of the agent that no other process can import, given again: ``model=my_function``.

    Raises:
      FileNotFoundError: there is no run in the folder, or it has saved nothing yet.
      ValueError: the seed is none of the run's; ``which`` is unknown; a part of the agent cannot be imported or is not trusted.
      TypeError: a keyword is no part of the agent.
      CheckpointError: what was saved is damaged.
    """
    which = _there(run, which)
    saved = load_policies(run, which=which, seeds=None if seed is None else [seed], trust=trust, parts=parts)
    best = int(np.argmax(saved.returns))
    policy = jax.tree.map(lambda x: jnp.asarray(x)[best], saved.policies)
    about = "; ".join(filter(None, (chosen(run, which, saved.step), greedy_warning(run))))
    given: dict[str, Any] = {"explore": explore, "key": key, "about": about}
    return LoadedPolicy(saved.agent, policy, seed=saved.seeds[best], step=saved.step, **given)


def _there(run: str | os.PathLike[str], which: str) -> str:
    """``which``; or "last" for the "best" of a run that was not evaluated, and a warning."""
    folder = absolute(run)
    if which != "best" or latest_step(folder / BEST) is not None or latest_step(folder / CHECKPOINTS) is None:
        return which
    warn(f"{os.fspath(run)!r} has no best/, as it was not evaluated: this is the policy of its last checkpoint")
    return "last"


class SavedPolicies(NamedTuple):
    """What a run saved of several members: seeds, or one seed with several hyperparameters."""

    agent: Agent
    """The run's, on an environment that only has its spaces."""
    policies: Policy
    """Every leaf [num_members, ...], on the host."""
    seeds: list[int]
    step: int
    """The iteration that they are of."""
    returns: np.ndarray
    """f64[num_members], of the last evaluation up to that iteration; −inf where there is none."""
    diverged: np.ndarray
    """bool[num_members]: who had diverged by then, and is frozen as before that."""


def load_policies(
    run: str | os.PathLike[str],
    *,
    seeds: Sequence[int] | None = None,
    which: str = "best",
    trust: str | Iterable[str] = (),
    parts: Mapping[str, Any] | None = None,
) -> SavedPolicies:
    """The policies of all members of a run, or of those with the seeds asked for, in the run's order; see ``load_policy``."""
    check_which("which", which)
    config = read_config(run)
    trained = config["run"]["seeds"]
    for seed in seeds or ():
        if seed not in trained:
            raise ValueError(f"seed={seed} was not trained in {os.fspath(run)!r}: it has the seeds {trained}")
    saved = saved_folder(run, which)
    agent = rebuild(config, trust, parts or {})
    if which == "best":
        policies, step = _best_policies(agent, saved, len(trained), config.get("id"))
    else:
        policies, step = _last_policies(agent, saved, config.get("id"))
    rows = [row for row, seed in enumerate(trained) if seeds is None or seed in seeds]
    policies = jax.tree.map(lambda x: np.asarray(x)[np.array(rows)], policies)
    records = read_records(absolute(run), step, len(trained))
    diverged = np.asarray(records[-1]["diverged"], bool)[rows] if records else np.zeros(len(rows), bool)
    return SavedPolicies(agent, policies, [trained[row] for row in rows], step, _evaluated(records, rows), diverged)


def rebuild(config: dict[str, Any], trust: str | Iterable[str], parts: Mapping[str, Any]) -> Agent:
    """The agent of a run, on an environment that only has its spaces, if they are known."""
    described = config.get("spaces")
    if described is not None and "env" not in parts:
        space = {name: realize_space(data) for name, data in described.items()}
        parts = {**parts, "env": stand_in(str(config["agent"].get("env")), space["observation"], space["action"])}
    return build_again(config["agent"], trust=trust, **parts)


def stand_in(name: str, observation_space: spaces.Space, action_space: spaces.Space) -> HostEnv:
    """An environment with these spaces and nothing behind them: enough to build an agent, without what the real one needs."""

    def refuse(num_envs: int, seed: int, first_id: int = 0) -> HostEnvs:
        raise NotImplementedError(f"only the spaces of {name} are here")

    return HostEnv(refuse, observation_space, action_space, name=name, compute_reward=_reward_of(observation_space))


def _reward_of(observation_space: spaces.Space) -> ComputeRewardFn | None:
    """What stands for ``compute_reward`` where observations are those of a goal environment, with its types alone: agents that
    learnt in hindsight are built on it, and none learns here."""
    if not has_goals(observation_space) or observation_space[ACHIEVED] != observation_space[DESIRED]:  # type: ignore[index]
        return None
    return lambda achieved, desired: (jnp.zeros(()), jnp.zeros((), bool))


def _best_policies(agent: Agent, saved: Path, num_seeds: int, run: str | None) -> tuple[Policy, int]:
    def policy(key: Key) -> Policy:
        return agent.algorithm.policy(agent.init(key).learner)

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num_seeds))
    policies, info = restore(saved, jax.eval_shape(jax.vmap(policy), keys), run=run)
    return policies, info.step


def _last_policies(agent: Agent, saved: Path, run: str | None) -> tuple[Policy, int]:
    found, info = read_arrays(saved, run=run)
    found = by_path(found)
    learner = state_shapes(agent).learner
    # Keys, and a replay buffer that was left out, are no part of a policy.
    arrays = jax.tree_util.tree_map_with_path(lambda path, _: found.get(f".learner{jax.tree_util.keystr(path)}"), learner)
    pairs = zip(agent.hyperparams, arrays.hyperparams, strict=True)
    numbers = [default if there is None else there for default, there in pairs]  # None: the rule had no such number yet
    return agent.algorithm.policy(arrays._replace(hyperparams=type(agent.hyperparams)(*numbers))), info.step


def _evaluated(records: Sequence[Record], rows: list[int]) -> np.ndarray:
    """``SavedPolicies.returns`` of the members in these rows."""
    returns = [np.asarray(record[EVALUATION_RETURN])[rows] for record in records if EVALUATION_RETURN in record]
    known = [np.nan_to_num(each, nan=-np.inf) for each in returns if not np.isnan(each).all()]
    return known[-1] if known else np.full(len(rows), -np.inf)
