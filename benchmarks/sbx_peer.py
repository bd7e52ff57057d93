"""SBX's program of a case. It runs in SBX's virtual environment, so it does not import jaxrl.

SBX steps one gymnasium environment in Python and calls a compiled update after each step.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

import gymnasium
import jax
import numpy as np
from sbx import SAC, CrossQ

from benchmarks.cases import Case
from benchmarks.worker import EPISODES, count_parameters, serve_program

COMPILING_STEPS = 32
"""Steps after the warm-up that are not timed. In them SBX compiles its functions, which it does again for each model."""

ALGORITHMS = {"sac": SAC, "crossq": CrossQ}


class SBXProgram:
    """``SAC(...).learn(...)`` or ``CrossQ(...).learn(...)``, as SBX documents it."""

    name, version = "sbx", importlib.metadata.version("sbx-rl")

    def __init__(self, case: Case) -> None:
        if case.algorithm not in ALGORITHMS or case.num_seeds != 1:
            raise ValueError(f"{case.name}: only SAC and CrossQ with one seed can be measured with SBX")
        self._case, self.total_steps = case, case.peer_total_steps or case.total_steps

    def _model(self, seed: int) -> Any:
        ours = ("num_envs", "rollout_length", "max_grad_norm")  # SBX steps one environment before each update, and does not clip
        settings = {name: value for name, value in self._case.settings.items() if name not in ours}
        sizes = list(self._case.hidden_sizes)
        sizes_of = {"pi": sizes, "qf": list(settings.pop("critic", {}).get("hidden_sizes", sizes))}
        settings |= {"train_freq": 1, "gradient_steps": 1, "policy_kwargs": {"net_arch": sizes_of}}
        model = ALGORITHMS[self._case.algorithm]("MlpPolicy", gymnasium.make(self._case.env), seed=seed, **settings)
        built = {"pi": list(model.actor.net_arch), "qf": list(model.qf.net_arch)}
        if built != sizes_of:
            raise ValueError(f"SBX built networks of {built}; the case needs {sizes_of}")
        return model

    def compile(self) -> tuple[float, int]:
        model = self.prepare(np.zeros(1, np.uint32))
        self._actor, self._space = model.policy.actor, model.action_space
        return 0.0, count_parameters((model.policy.actor_state.params, model.policy.qf_state.params))

    def prepare(self, seeds: np.ndarray) -> Any:
        """Return a model that has compiled, with a buffer filled by random actions."""
        return self._model(int(seeds[0])).learn(self._case.settings["learning_starts"] + COMPILING_STEPS)

    def train(self, model: Any) -> tuple[Any, int]:
        """Run the rest of the training. Earlier steps are not counted."""
        before = model.num_timesteps
        model.learn(self.total_steps - before, reset_num_timesteps=False)
        jax.block_until_ready(model.policy.qf_state.params)
        return variables(model.policy.actor_state), model.num_timesteps - before

    def policies(self, params: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], params)

    def evaluate(self, policies: Any, keys: Any) -> Any:
        act = jax.jit(lambda params, obs: self._actor.apply(params, obs).mode())
        seeds = jax.random.bits(keys[0], (len(keys),)) // 2
        return [self._mean_return(act, jax.tree.map(lambda x, i=i: x[i], policies), int(seeds[i])) for i in range(len(keys))]

    def _mean_return(self, act: Any, params: Any, seed: int) -> float:
        envs = gymnasium.make_vec(self._case.env, num_envs=EPISODES, vectorization_mode="sync")
        obs, _ = envs.reset(seed=seed)
        returns, running = np.zeros(EPISODES), np.ones(EPISODES, bool)
        while running.any():
            scale = 0.5 * (np.asarray(act(params, obs)) + 1.0)
            obs, reward, terminated, truncated, _ = envs.step(self._space.low + scale * (self._space.high - self._space.low))
            returns += np.where(running, reward, 0.0)
            running &= ~(terminated | truncated)
        envs.close()
        return float(returns.mean())


def variables(state: Any) -> Any:
    """Return what a network is applied to: CrossQ's parameters and statistics, or SAC's parameters, which have their name."""
    return {"params": state.params, "batch_stats": state.batch_stats} if hasattr(state, "batch_stats") else state.params


def main(case_json: str) -> None:
    case = Case(**json.loads(case_json))
    serve_program(SBXProgram(case), case)


if __name__ == "__main__":
    main(*sys.argv[1:])
