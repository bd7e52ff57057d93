"""SBX's and Stable-Baselines3's side of a race. It runs in SBX's virtual environment, so it does not import jaxrl."""

from __future__ import annotations

import importlib
import time
from typing import Any

from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.protocol import serve
from benchmarks.race_cases import EPISODES, EVALUATIONS


def race(how: dict[str, Any], score: float, total_steps: int, num_seeds: int, first_seed: int) -> dict[str, Any]:
    if num_seeds != 1:
        raise ValueError(f"{how['library']} trains one seed, and {num_seeds} are asked for")
    begin = time.perf_counter()
    settings = dict(how["settings"])
    num_envs = settings.pop("n_envs")
    envs, tested = (make_vec_env(how["env"], number, seed=first_seed) for number in (num_envs, EPISODES))
    every = max(1, total_steps // EVALUATIONS // num_envs)
    stop = StopTrainingOnRewardThreshold(score)
    watch = EvalCallback(tested, callback_on_new_best=stop, n_eval_episodes=EPISODES, eval_freq=every, verbose=0)
    model = getattr(importlib.import_module(how["library"]), how["algorithm"])("MlpPolicy", envs, seed=first_seed, **settings)
    model.learn(total_steps, callback=watch)
    return {
        "seconds": time.perf_counter() - begin,
        "steps": int(model.num_timesteps),
        "reached": float(watch.last_mean_reward),
    }


if __name__ == "__main__":
    serve({"race": race})
