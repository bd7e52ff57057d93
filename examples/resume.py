"""Kill a run and call it again: it resumes from its last checkpoint and ends bit for bit as an uninterrupted run.

python examples/resume.py [FOLDER]
"""

import sys

import jax
import numpy as np

import jaxrl


class PowerCut(Exception):
    pass


def main(folder: str = "runs/example-resume", total_steps: int = 100_000) -> None:
    ppo = jaxrl.make_ppo("CartPole-v1", num_envs=8, rollout_length=64)
    settings = {"seeds": 2, "eval_episodes": 16, "checkpoint_every": 0.5, "quiet": True}

    def cut(chunk):
        if chunk.rows > total_steps / 2:
            raise PowerCut

    try:
        jaxrl.run(ppo, total_steps, out=f"{folder}/disturbed", on_chunk=cut, **settings)
    except PowerCut:
        print("cut off in the middle")
    states, history = jaxrl.run(ppo, total_steps, out=f"{folder}/disturbed", **settings)  # the same call
    others, _ = jaxrl.run(ppo, total_steps, out=f"{folder}/undisturbed", **settings)

    def equal(a, b):
        is_key = jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key)
        return np.array_equal(*(jax.random.key_data(x) if is_key else x for x in (a, b)))

    same = all(jax.tree.leaves(jax.tree.map(equal, states, others)))
    print(f"{len(history['iteration'])} rows of logs; every bit of both final states equal: {same}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
