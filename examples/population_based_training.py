"""Population-based training (Jaderberg et al. 2017): hyperparameters are part of the state, so a population is one vmapped state.

After each chunk the worst quarter of the members copies the learners of the best quarter and perturbs their hyperparameters.

python examples/population_based_training.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl

TUNED = ("learning_rate", "ent_coef")
RETURN = "charts/episodic_return"


def exploit_and_explore(states, scores, key):
    """Replace the worst quarter of the members by copies of the best, with perturbed hyperparameters."""
    order = np.argsort(np.nan_to_num(scores, nan=-np.inf))
    quarter = max(1, len(order) // 4)
    source = np.arange(len(order))
    source[order[:quarter]] = order[-quarter:]
    replaced = jnp.asarray(source != np.arange(len(order)))

    def take(x):
        return x[source]

    # Copy parameters, optimiser state and hyperparameters. Environments and keys stay, so that members remain independent.
    learner = states.learner
    copied = jax.tree.map(take, (learner.params, learner.opt_state, learner.hyperparams))
    hyperparams = copied[2]
    for name, coin_key in zip(TUNED, jax.random.split(key, len(TUNED)), strict=True):
        factor = jnp.where(jax.random.bernoulli(coin_key, shape=replaced.shape), 1.25, 0.8)
        value = getattr(hyperparams, name)
        hyperparams = hyperparams._replace(**{name: jnp.where(replaced, value * factor, value)})
    return states._replace(learner=learner._replace(params=copied[0], opt_state=copied[1], hyperparams=hyperparams))


def main(members: int = 8, total_steps: int = 200_000, chunk_iterations: int = 20) -> None:
    ppo = jaxrl.make_ppo("CartPole-v1")
    rng = np.random.default_rng(0)
    start = {
        "learning_rate": (10 ** rng.uniform(-4.5, -2.0, members)).astype(np.float32),
        "ent_coef": (10 ** rng.uniform(-3.0, -1.0, members)).astype(np.float32),
    }

    def evolve(chunk):  # depends only on the chunk, so a resumed run is the same
        key = jax.random.fold_in(jax.random.key(1), chunk.iteration)
        return exploit_and_explore(chunk.states, chunk.record[RETURN], key)

    states, history = jaxrl.run(
        ppo, total_steps, seeds=members, hyperparams=start, on_chunk=evolve, chunk_iterations=chunk_iterations, eval_every=0
    )
    for name in TUNED:
        first, last = start[name], np.asarray(getattr(states.learner.hyperparams, name))
        print(f"{name}: from [{first.min():.1e}, {first.max():.1e}] to [{last.min():.1e}, {last.max():.1e}]")
    first, last = np.nanmean(history[RETURN][0]), np.nanmean(history[RETURN][-1])
    print(f"training return: {first:.1f} at first, {last:.1f} at the end")


if __name__ == "__main__":
    main()
