"""RL Zoo's search and Ray Tune's population, in their own virtual environment: ``python -m benchmarks.zoo_peer KIND JSON``.

Both train PPO of stable-baselines3 on CartPole with the sizes of jaxrl's default settings. Does not import jaxrl.
"""

from __future__ import annotations

import csv
import importlib.metadata
import json
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv


def sizes(case: dict[str, Any]) -> dict[str, Any]:
    """Return the structural settings by their names in stable-baselines3."""
    rows = case["num_envs"] * case["rollout_length"]
    return {
        "n_steps": case["rollout_length"],
        "batch_size": rows // case["num_minibatches"],
        "n_epochs": case["num_epochs"],
        "policy_kwargs": {"net_arch": list(case["hidden_sizes"])},
    }


def searched(case: dict[str, Any]) -> dict[str, Any]:
    """Search by RL Zoo's own command in this process; return the seconds from the first trial's start to the last one's end."""
    from rl_zoo3 import hyperparams_opt, train

    def sample(trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
        return {
            "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True),
            "gamma": 1 - trial.suggest_float("one_minus_gamma", 1e-4, 0.1, log=True),
            "ent_coef": trial.suggest_float("ent_coef", 0.0, 0.05),
            **sizes(case),
        }

    hyperparams_opt.HYPERPARAMS_SAMPLER["ppo"] = sample
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "--algo": "ppo",
            "--env": case["env"],
            "-n": case["total_steps"],
            "--n-trials": case["trials"],
            "--sampler": "random",
            "--pruner": "none",
            "--seed": case["seed"],
            "--num-threads": 1,
            "--device": "cpu",
            "-f": folder,
            "--hyperparams": f"n_envs:{case['num_envs']}",
        }
        words = [str(word) for pair in flags.items() for word in pair]
        sys.argv = ["train", *words, "-optimize", "--no-optim-plots"]
        train.train()
        report = next(Path(folder).rglob("report_*.csv"))
        with open(report, encoding="utf-8") as file:
            trials = list(csv.DictReader(file))
    begun, ended = ([datetime.fromisoformat(trial[name]) for trial in trials] for name in ("datetime_start", "datetime_complete"))
    return {"trials": len(trials), "seconds": (max(ended) - min(begun)).total_seconds()}


def population(case: dict[str, Any]) -> dict[str, Any]:
    """Train a population by Ray Tune's PBT, all members at once, each in its process.

    Return the env steps and seconds after each member has reported once.
    """
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    class Member(tune.Trainable):
        """One member: PPO, which trains for a generation in each step."""

        def setup(self, config: dict[str, Any]) -> None:
            torch.set_num_threads(1)
            envs = DummyVecEnv([lambda: gymnasium.make(case["env"])] * case["num_envs"])
            rate = config["learning_rate"]
            self.model = PPO("MlpPolicy", envs, learning_rate=rate, device="cpu", verbose=0, **sizes(case))

        def step(self) -> dict[str, Any]:
            self.model.learn(case["generation_steps"], reset_num_timesteps=False)
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            return {"episodic_return": sum(returns) / max(len(returns), 1)}

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            self.model.save(Path(checkpoint_dir) / "model.zip")

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.model.set_parameters(str(Path(checkpoint) / "model.zip"))

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.model.learning_rate = new_config["learning_rate"]
            self.model._setup_lr_schedule()
            return True

    class Clock(tune.Callback):
        """Times of the members' reports."""

        def __init__(self) -> None:
            self.reports: list[tuple[float, str]] = []

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            self.reports.append((time.perf_counter(), trial.trial_id))

    clock, rates = Clock(), tune.loguniform(1e-5, 1e-1)
    ray.init("local", num_cpus=case["cores"], include_dashboard=False, log_to_driver=False)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=1,
        hyperparam_mutations={"learning_rate": rates},
        quantile_fraction=0.25,
        resample_probability=0.25,
    )
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(Member, {"cpu": case["cores"] / case["members"]}),
            param_space={"learning_rate": rates},
            tune_config=tune.TuneConfig(
                scheduler=scheduler, num_samples=case["members"], metric="episodic_return", mode="max", reuse_actors=True
            ),
            run_config=tune.RunConfig(
                storage_path=folder, stop={"training_iteration": case["generations"]}, callbacks=[clock], verbose=0
            ),
        )
        tuner.fit()
    ray.shutdown()
    firsts = {member: when for when, member in reversed(clock.reports)}
    begun, ended = max(firsts.values()), clock.reports[-1][0]
    later = sum(when > begun for when, _ in clock.reports)
    return {"env_steps": later * case["generation_steps"], "seconds": ended - begun}


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("rl_zoo3", "stable_baselines3", "ray", "torch")}


if __name__ == "__main__":
    kind, given = sys.argv[1], json.loads(sys.argv[2])
    found = {"search": searched, "population": population}[kind](given)
    print(json.dumps(found | {"versions": versions()}))
