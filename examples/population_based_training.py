"""Population-based training: 16 members start with learning rates over four decades, and the worst continue from the best.

python examples/population_based_training.py
"""

import jax
import numpy as np

import jaxrl
from jaxrl import pbt


def main(members: int = 16, total_steps: int = 200_000, seeds: int = 4) -> None:
    ppo = jaxrl.make_ppo("CartPole-v1", anneal=False)
    space = {"learning_rate": {"low": 1e-5, "high": 1e-1, "log": True}, "ent_coef": {"low": 0.0, "high": 0.05}}
    population = pbt.make(ppo, space, members=members, ready=20)
    first = np.asarray(population.init(jax.random.key(0)).learner.hyperparams.learning_rate)
    states, _ = jaxrl.run(population, members * total_steps, eval_every=0)
    state = jax.tree.map(lambda x: x[0], states)  # of one population

    last, scores = np.asarray(state.learner.hyperparams.learning_rate), np.asarray(pbt.mean_scores(state.learner))
    print(f"learning_rate: from [{first.min():.1e}, {first.max():.1e}] to [{last.min():.1e}, {last.max():.1e}]")
    print(f"training return of the members: median {np.nanmedian(scores):.1f}")

    # The best of a population is chosen by noisy scores. Its schedule, on other seeds, tells how good it is.
    schedule = pbt.schedule_of(population, state)
    rates = schedule.values["learning_rate"]
    print(f"schedule of the best: {len(rates)} generations, learning_rate {rates[0]:.1e} at first, {rates[-1]:.1e} at the end")
    _, history = jaxrl.run(pbt.replay(ppo, schedule), total_steps, seeds=range(100, 100 + seeds))
    print(f"return of its schedule on {seeds} other seeds: {history['evaluation/episodic_return'][-1].mean():.1f}")


if __name__ == "__main__":
    main()
