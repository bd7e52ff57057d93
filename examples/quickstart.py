"""Train PPO on CartPole over eight seeds, with logs, checkpoints and a learning curve; then use the trained policy.

python examples/quickstart.py [FOLDER]
"""

import sys

import numpy as np

import jaxrl


def main(out: str = "runs/example-quickstart", total_steps: int = 500_000, seeds: int = 8) -> None:
    ppo = jaxrl.make_ppo("CartPole-v1")
    _, history = jaxrl.run(ppo, total_steps, seeds=seeds, out=out)  # the same call resumes a killed run
    final = history["evaluation/episodic_return"][-1]
    print(f"evaluation return: {final.mean():.1f} over {len(final)} seeds, the worst {final.min():.1f}")

    policy = jaxrl.load_policy(out)
    leaning_right = np.array([0.0, 0.0, 0.1, 0.0])
    print(f"the pole leans to the right; the policy pushes to the {('left', 'right')[policy(leaning_right)]}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
