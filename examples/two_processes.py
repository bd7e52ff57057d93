"""A run of several processes from a script. Started without ``jaxrl launch``, it is a run of one process.

jaxrl launch --processes 2 -- examples/two_processes.py
"""

import os

import jaxrl
from jaxrl.parallel import initialize


def main(total_steps: int = 16_384) -> None:
    if "JAXRL_NUM_PROCESSES" in os.environ:  # set by jaxrl launch; srun and mpirun set other variables
        initialize()  # before any other use of JAX, which counts its devices only once

    ppo = jaxrl.make_ppo("CartPole-v1", num_envs=8, rollout_length=32)
    _, history = jaxrl.run(ppo, total_steps=total_steps, seeds=2, out="runs/together")
    print(f"return {history['evaluation/episodic_return'][-1].mean():.1f}")  # the same in all processes


if __name__ == "__main__":
    main()
