"""Hundreds of seeds in one jit: a training run is a pure function of a key.

python examples/vmap_seeds.py
"""

import jax
import numpy as np

import jaxrl


def main(num_seeds: int = 128, total_steps: int = 50_000) -> None:
    ppo = jaxrl.make_ppo("CartPole-v1")
    train = jaxrl.make_train(ppo, total_steps, metrics_every=10)
    keys = jax.random.split(jax.random.key(0), num_seeds)
    states, _ = jax.jit(jax.vmap(train))(keys)

    def score(state, key):
        return jaxrl.evaluate(ppo, state, key, 16).episodic_return.mean()

    returns = np.asarray(jax.jit(jax.vmap(score))(states, keys))
    low, middle, high = np.quantile(returns, [0.1, 0.5, 0.9])
    print(f"{num_seeds} seeds after {total_steps:,} steps each: median return {middle:.0f}, 80 % in [{low:.0f}, {high:.0f}]")


if __name__ == "__main__":
    main()
