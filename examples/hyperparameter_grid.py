"""A grid of hyperparameters times seeds in one program: both are arrays, so vmap runs over both.

python examples/hyperparameter_grid.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl


def main(total_steps: int = 50_000, num_seeds: int = 4) -> None:
    ppo = jaxrl.make_ppo("CartPole-v1")
    train = jaxrl.make_train(ppo, total_steps, metrics_every=10)
    rates, entropies = jnp.array([3e-4, 1e-3, 3e-3]), jnp.array([0.0, 0.01])
    keys = jax.random.split(jax.random.key(0), num_seeds)

    def score(rate, entropy, key):
        state, _ = train(key, {"learning_rate": rate, "ent_coef": entropy})
        return jaxrl.evaluate(ppo, state, key, 16).episodic_return.mean()

    over_seeds = jax.vmap(score, in_axes=(None, None, 0))
    over_entropies = jax.vmap(over_seeds, in_axes=(None, 0, None))
    grid = jax.jit(jax.vmap(over_entropies, in_axes=(0, None, None)))(rates, entropies, keys)  # [rates, entropies, seeds]

    print("mean return, learning_rate × ent_coef")
    print(" " * 9 + "".join(f"{entropy:>9.3g}" for entropy in entropies))
    for rate, row in zip(rates, np.asarray(grid).mean(-1), strict=True):
        print(f"{rate:>9.1e}" + "".join(f"{value:9.1f}" for value in row))


if __name__ == "__main__":
    main()
