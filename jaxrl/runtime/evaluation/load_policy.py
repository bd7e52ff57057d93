"""``jaxrl.load_policy``: load a trained policy as a function of observations, without its environment and replay buffer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.agent import state_shapes
from jaxrl.builder.spec import algorithm_name, build_again
from jaxrl.builder.stand_in import stand_in
from jaxrl.envs import make_env
from jaxrl.runtime.checkpoint.manifest import latest_step
from jaxrl.runtime.checkpoint.restore import read_arrays, restore
from jaxrl.runtime.checkpoint.transfer import by_path, check_which, saved_folder
from jaxrl.runtime.evaluation.chosen_policy import chosen, greedy_warning
from jaxrl.runtime.evaluation.loaded_policy import LoadedPolicy
from jaxrl.runtime.logs.files import read_records
from jaxrl.runtime.logs.records import EVALUATION_RETURN, Record
from jaxrl.runtime.logs.run_folder import BEST, CHECKPOINTS, changed_hyperparams, read_config
from jaxrl.runtime.system.disk import absolute
from jaxrl.runtime.system.warn import warn
from jaxrl.spaces.trees import realize_space
from jaxrl.types import Agent, Env, Key, Policy


def load_policy(
    run: str | os.PathLike[str],
    *,
    seed: int | None = None,
    which: str = "best",
    explore: bool = False,
    key: Key | None = None,
    search: bool = False,
    trust: str | Iterable[str] = (),
    **parts: Any,
) -> LoadedPolicy:
    """Load a trained policy of a run. ``print`` it to see which one it is, with the scores of the run's other policies.

    Args:
      run: the run folder.
      seed: one of the run's seeds; default: the one with the highest return in the evaluation of these policies, of those that
        had not diverged. If several members of a run have the same seed (with different hyperparameters), the best of them is
        chosen in the same way.
      which: "best" for the best evaluation (mean over seeds), or "last" for the last checkpoint. If the run was not evaluated,
        "best" also loads the last, with a warning.
      explore: default of calls: act as in training instead of greedily. Use it for policies that perform worse, or do not move,
        when greedy. A run with ``eval_explore`` chose its best policies in this way.
      key: random key for exploring, from which every call draws a new one; without it, each call that explores needs a key.
      search: for algorithms that plan with the environment, such as AlphaZero: search from the states of the environment that
        calls get, ``policy(obs, env_state=state)``. Without it the network acts alone. The environment is then needed.
      trust: packages or modules used by the run, whose code may run: ``("my_package",)``. Otherwise only parts of jaxrl, and
        parts that were passed to a builder in this process, are imported. The environment is not needed.
      parts: parts of the agent that no other process can import, passed again: ``model=my_function``.

    Raises:
      FileNotFoundError: the folder holds no run, or the run has saved nothing yet.
      ValueError: the run has no such seed; ``which`` is unknown; a part of the agent cannot be imported or is not trusted;
        ``search`` has no effect.
      TypeError: a keyword is not a part of the agent.
      CheckpointError: the saved policy is damaged.
    """
    folder = absolute(run)
    if which == "best" and latest_step(folder / BEST) is None and latest_step(folder / CHECKPOINTS) is not None:
        warn(f"{os.fspath(run)!r} has no best/, because it was not evaluated: using the policy of its last checkpoint")
        which = "last"
    saved = load_policies(run, which=which, seeds=None if seed is None else [seed], trust=trust, parts=parts)
    best = max(range(len(saved.seeds)), key=lambda row: (not saved.diverged[row], saved.returns[row]))
    policy = jax.tree.map(lambda x: jnp.asarray(x)[best], saved.policies)
    lost = f"seed {saved.seeds[best]} diverged, and this is its policy from before" if saved.diverged[best] else None
    about = "; ".join(filter(None, (chosen(run, which, saved.step), lost, greedy_warning(run))))
    keywords: dict[str, Any] = {"explore": explore, "key": key, "which": which, "about": about}
    if search:
        keywords["search"] = searched_env(saved.agent, read_config(run))
    return LoadedPolicy(saved.agent, policy, seed=saved.seeds[best], step=saved.step, **keywords)


def searched_env(agent: Agent, config: Mapping[str, Any]) -> Env:
    """Return the environment of a run whose algorithm plans with it. Raise ValueError if it does not."""
    if not agent.algorithm.plans:
        raise ValueError(f"search=True has no effect: {algorithm_name(agent.spec)} does not plan with the environment")
    env = make_env(config["agent"]["env"])
    assert isinstance(env, Env)
    return env


class SavedPolicies(NamedTuple):
    """Saved policies of several members of a run: seeds, or one seed with several hyperparameters."""

    agent: Agent
    """Agent of the run, on a placeholder environment that only has its spaces."""
    policies: Policy
    """Policies on the host; every leaf [num_members, ...]."""
    seeds: list[int]
    step: int
    """Iteration of the policies."""
    returns: np.ndarray
    """f64[num_members], returns of the last evaluation up to that iteration; −inf if there is none."""
    diverged: np.ndarray
    """bool[num_members]: True if the member had diverged by then and is frozen in its state before that."""
    hyperparams: list[dict[str, float]]
    """For each member the hyperparameters that the run changed."""


def load_policies(
    run: str | os.PathLike[str],
    *,
    seeds: Sequence[int] | None = None,
    which: str = "best",
    trust: str | Iterable[str] = (),
    parts: Mapping[str, Any] | None = None,
) -> SavedPolicies:
    """Load the policies of all members of a run, or of those with the given seeds, in the run's order; see ``load_policy``."""
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
    found = (agent, policies, [trained[row] for row in rows], step, _evaluated(records, rows), diverged)
    return SavedPolicies(*found, [changed_hyperparams(config, row) for row in rows])


def rebuild(config: dict[str, Any], trust: str | Iterable[str], parts: Mapping[str, Any]) -> Agent:
    """Rebuild the agent of a run; if its spaces are recorded, on a placeholder environment that only has these."""
    described = config.get("spaces")
    if described is not None and "env" not in parts:
        space = {name: realize_space(data) for name, data in described.items()}
        env = stand_in(str(config["agent"].get("env")), space["observation"], space["action"])
        parts = {**parts, "env": env._replace(num_agents=config.get("num_agents", 0))}
    return build_again(config["agent"], trust=trust, **parts)


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
    # A replay buffer that was not saved is not part of a policy, unless it explores with it.
    arrays = jax.tree_util.tree_map_with_path(lambda path, _: found.get(f".learner{jax.tree_util.keystr(path)}"), learner)
    num_members = len(jax.tree.leaves(arrays.params)[0])

    def keyed(shape: Any, there: Any) -> Any:
        """Return new keys in place of those of the learner, or of a population's members: they are not part of a policy."""
        if not jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
            return there
        return jnp.broadcast_to(jax.random.key(0), (num_members, *shape.shape))

    def number(default: float | None, shape: Any, there: Any) -> Any:
        if default is None or there is not None:
            return there
        return np.full((num_members, *shape.shape), default, np.float32)  # the hyperparameter did not exist yet

    numbers = map(number, agent.hyperparams, learner.hyperparams, arrays.hyperparams)
    learners = jax.tree.map(keyed, learner, arrays)._replace(hyperparams=type(agent.hyperparams)(*numbers))
    return jax.vmap(agent.algorithm.policy)(learners), info.step


def _evaluated(records: Sequence[Record], rows: list[int]) -> np.ndarray:
    """Return ``SavedPolicies.returns`` of the members with these indices."""
    returns = [np.asarray(record[EVALUATION_RETURN])[rows] for record in records if EVALUATION_RETURN in record]
    known = [np.nan_to_num(each, nan=-np.inf) for each in returns if not np.isnan(each).all()]
    return known[-1] if known else np.full(len(rows), -np.inf)
