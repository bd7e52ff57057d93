"""Train a policy and export it for programs without jaxrl: as a JAX function and as NumPy arrays."""

import numpy as np

import jaxrl


def main(total_steps=100_000):
    ppo = jaxrl.make_ppo("CartPole-v1", normalize_observations=True)
    jaxrl.run(ppo, total_steps, seeds=1, out="runs/exported", quiet=True)
    policy = jaxrl.load_policy("runs/exported")

    policy.export("policy.jax")  # for jax.export.deserialize
    np.savez("policy.npz", **policy.arrays())

    rng = np.random.default_rng(0)
    observations = rng.normal(size=(5, 4)).astype(np.float32)
    np.save("observations.npy", observations)
    print("actions:", policy(observations))


if __name__ == "__main__":
    main()
