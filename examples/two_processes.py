"""A run of several processes, from a script, which alone is a plain run.

jaxrl launch --processes 2 -- examples/two_processes.py
"""

import os

import jaxrl
from jaxrl.parallel import initialize


def main(total_steps: int = 16_384) -> None:
    if "JAXRL_NUM_PROCESSES" in os.environ:  # as jaxrl launch sets it; srun and mpirun have variables of their own
        initialize()  # before anything else of JAX: it counts its devices once

    ppo = jaxrl.make_ppo("CartPole-v1", num_envs=8, rollout_length=32)
    _, history = jaxrl.run(ppo, total_steps=total_steps, seeds=2, out="runs/together")
    print(f"return {history['evaluation/episodic_return'][-1].mean():.1f}")  # the same in all processes


if __name__ == "__main__":
    main()
