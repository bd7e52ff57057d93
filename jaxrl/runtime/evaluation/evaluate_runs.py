"""Evaluation of the policies of a run, on its environment or another one with the same spaces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.builder.spec import algorithm_name, build_again
from jaxrl.envs import make_env
from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.evaluation.chosen_policy import chosen, greedy_warning
from jaxrl.runtime.evaluation.load_policy import load_policies
from jaxrl.runtime.logs.run_folder import read_config
from jaxrl.runtime.samplers.sampler import stack
from jaxrl.runtime.system.devices import seed_devices
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.runtime.trainers.host_evaluation import evaluate_host
from jaxrl.spaces.trees import realize_space, space_text
from jaxrl.training import check_episodes, evaluate_pure, evaluation_key
from jaxrl.types import Agent, Array, HostEnv, Key, Policy

EPISODE_STREAM = 0x706C6179
"""Replaces the iteration in the key of evaluations. It is far above any iteration, so episodes differ from those of training."""

Say = Callable[[str], None]


class EvaluationSettings(NamedTuple):
    """Settings of an evaluation."""

    episodes: int = 128
    """Episodes per seed."""
    explore: bool = False
    eval_seed: int = 0
    max_steps: int | None = None


class RunScore(NamedTuple):
    """Results of the policies of one run."""

    run: str
    algorithm: str
    env: str
    iteration: int
    """Iteration of the policies."""
    seeds: list[int]
    played: Evaluation
    """NumPy arrays [num_seeds, episodes]."""
    diverged: list[int]
    """Seeds that were excluded because they had diverged."""
    versions: dict[str, str]
    """Versions with which the run was trained."""
    eval_explore: bool = False
    """True if the evaluations that chose the run's best policies explored."""
    about: str = ""
    """Description of the policies, with the recorded scores of the run's other policies."""
    warning: str | None = None
    """Set if the greedy evaluations of the run are far below its training returns."""
    hyperparams: Sequence[dict[str, float]] = ()
    """For each of the seeds the hyperparameters that the run changed."""

    @property
    def returns(self) -> np.ndarray:
        """Mean over episodes, f64[num_seeds]; NaN for a seed whose mean is not finite."""
        with np.errstate(invalid="ignore"):
            means = np.asarray(self.played.episodic_return, np.float64).mean(axis=1)
        return np.where(np.isfinite(means), means, np.nan)


def episode_key(seed: Array | int, eval_seed: Array | int) -> Key:
    """Return the key of the episodes played by the policy of a seed."""
    return jax.random.fold_in(evaluation_key(seed, EPISODE_STREAM), eval_seed)


def evaluate_run(
    run: str | os.PathLike[str],
    settings: EvaluationSettings,
    *,
    which: str = "best",
    seeds: Sequence[int] | None = None,
    env_id: str | None = None,
    trust: str | Iterable[str] = (),
    begin: Say = lambda text: None,
    say: Say = lambda text: None,
) -> RunScore:
    """Play the policies of one run.

    Args:
      which, trust: as in ``load_policy``. Unlike there, the environment is needed.
      seeds: a subset of the run's seeds; default: all.
      env_id: an environment to use instead of the run's.
      begin: called with a line that describes the evaluation.
      say: called with the progress, if it is known.

    Raises:
      FileNotFoundError, ValueError, CheckpointError: as ``load_policy``.
      ValueError: the policies do not fit the environment, all seeds diverged, or the settings are out of range.
    """
    config, name = read_config(run), os.fspath(run)
    episodes, max_steps = check_episodes(settings.episodes, settings.max_steps)
    settings = settings._replace(episodes=episodes, max_steps=max_steps)
    saved = load_policies(run, seeds=seeds, which=which, trust=trust)
    agent = playing_agent(config, env_id, trust)
    sound = finite_seeds(saved.policies) & ~saved.diverged
    playing, diverged = (np.array(saved.seeds)[these].tolist() for these in (sound, ~sound))
    if not playing:
        raise ValueError(f"{name!r} has no policy to play: its seeds {saved.seeds} all diverged")
    policies = jax.tree.map(lambda x: x[sound], saved.policies)
    begin(f"{name}: {len(playing)} seed{'s' * (len(playing) > 1)} × {settings.episodes} episodes")
    play = _play_on_host if isinstance(agent.env, HostEnv) else _play_fused
    played = jax.tree.map(np.asarray, play(agent, policies, playing, settings, say))
    found = (name, algorithm_name(agent.spec), agent.env.name, saved.step, playing, played, diverged)
    about, warning = chosen(run, which, saved.step), greedy_warning(run)
    changed = [each for each, plays in zip(saved.hyperparams, sound, strict=True) if plays]
    return RunScore(*found, config.get("versions", {}), config["run"]["eval_explore"], about, warning, changed)


def playing_agent(config: dict[str, Any], env_id: str | None = None, trust: str | Iterable[str] = ()) -> Agent:
    """Build the agent of a run on its environment, or on another one with the same spaces; ValueError if they differ."""
    if env_id is None:
        return build_again(config["agent"], trust=trust)
    env = make_env(env_id)
    for name, trained in (config.get("spaces") or {}).items():
        there, here = (space_text(space, bounds=False) for space in (realize_space(trained), getattr(env, f"{name}_space")))
        if there != here:
            raise ValueError(
                f"env={env_id!r} does not fit these policies: its {name}s are {here}, but they were trained on "
                f"{config['agent']['env']} with {there}"
            )
    return build_again(config["agent"], trust=trust, env=env)


def finite_seeds(policies: Policy) -> np.ndarray:
    """Return bool[num_seeds]: True if all parameters of the seed are finite."""
    rows = [np.isfinite(x).reshape(len(x), -1).all(axis=1) for x in jax.tree.leaves(policies.params)]
    return np.logical_and.reduce(rows)


def _play_fused(agent: Agent, policies: Policy, seeds: list[int], settings: EvaluationSettings, say: Say) -> Evaluation:
    """Evaluate all seeds in one program, sharded over devices; [num_seeds, episodes]."""

    def play(seed: Array, policy: Policy, eval_seed: Array) -> Evaluation:
        key = episode_key(seed, eval_seed)
        return evaluate_pure(agent, policy, key, settings.episodes, explore=settings.explore, max_steps=settings.max_steps)

    driver = FusedDriver(agent, seeds, seed_devices(len(seeds)).devices)
    say("compiling and playing all seeds in one program …")
    return driver.call("play", play, (0, 0, None), np.asarray(seeds, np.uint32), policies, np.uint32(settings.eval_seed))


def _play_on_host(agent: Agent, policies: Policy, seeds: list[int], settings: EvaluationSettings, say: Say) -> Evaluation:
    """Evaluate one seed after the other; [num_seeds, episodes]."""
    results = []
    for row, seed in enumerate(seeds):

        def tell(finished: int, seed: int = seed) -> None:
            say(f"seed {seed}: {finished} of {settings.episodes}")

        policy, key = jax.tree.map(lambda x, row=row: x[row], policies), episode_key(seed, settings.eval_seed)
        keywords: dict[str, Any] = {"explore": settings.explore, "max_steps": settings.max_steps, "on_row": tell}
        results.append(evaluate_host(agent, policy, key, settings.episodes, **keywords))
    return stack(results)
