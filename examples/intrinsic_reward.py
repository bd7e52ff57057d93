"""Hard exploration: PPO alone, and PPO with random network distillation (Burda et al. 2018).

DeepSea of depth N gives one reward after N steps to the right in a row, and each of them has a small cost. Random actions
practically never find it.

python examples/intrinsic_reward.py
"""

from functools import partial

import jax
import numpy as np

import jaxrl
from jaxrl.intrinsic import rnd


def main(size: int = 16, total_steps: int = 200_000, num_seeds: int = 8) -> dict[str, int]:
    found = {}
    for name, intrinsic in (("PPO", None), ("PPO with RND", partial(rnd, coef=2.0))):
        ppo = jaxrl.make_ppo(f"DeepSea-bsuite?size={size}", num_envs=8, intrinsic=intrinsic)
        train = jax.jit(jax.vmap(jaxrl.make_train(ppo, total_steps)))
        _, metrics = train(jax.random.split(jax.random.key(0), num_seeds))
        total, episodes = (np.asarray(x)[:, -5:].sum(1) for x in metrics["charts/episodic_return"])  # the last five iterations
        returns = total / episodes
        found[name] = int((returns > 0.5).sum())
        print(f"{name}: the reward is found by {found[name]} of {num_seeds} seeds; mean return {returns.mean():.2f} of 0.99")
    return found


if __name__ == "__main__":
    main()
