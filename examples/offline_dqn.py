"""Offline learning from a saved replay buffer: one agent collects rows, another learns from the file without an environment.

python examples/offline_dqn.py [FILE]
"""

import sys

import jax

import jaxrl
from jaxrl.settings.validation import merge_hyperparams


def main(file: str = "runs/cartpole-replay.npz", total_steps: int = 100_000, iterations: int = 400) -> None:
    sizes = {"num_envs": 8, "buffer_size": 40_000}
    collector = jaxrl.make_dqn("CartPole-v1", epsilon_end=0.3, **sizes)
    states, _ = jaxrl.run(collector, total_steps, quiet=True)
    jaxrl.save_replay(file, jax.tree.map(lambda x: x[0], states))

    # Only the agent's algorithm is used from here on: CartPole is neither reset nor stepped.
    offline = jaxrl.make_dqn("CartPole-v1", anneal=False, learning_rate=1e-3, replay="prioritized", **sizes)
    learner = offline.algorithm.init(jax.random.key(1), merge_hyperparams(offline.hyperparams, None))
    learner = jaxrl.load_replay(file, offline, learner)
    print(f"{int(learner.replay.ring.size)} rows of each of {offline.num_envs} environments to learn from")

    learn = jax.jit(lambda learner: jax.lax.scan(lambda carry, _: offline.algorithm.learn(carry), learner, length=iterations)[0])
    learner = learn(learner)

    score = jaxrl.evaluate(offline, offline.algorithm.policy(learner), jax.random.key(2), num_episodes=32)
    print(f"return of the policy learnt from the file: {float(score.episodic_return.mean()):.1f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
