"""Act with an exported policy without jaxrl: with JAX, or with NumPy alone. export_policy.py writes the files."""

import sys

import numpy as np


def with_jax(path="policy.jax"):
    """Load any policy without memory. The file contains parameters, normalisation, action masks and action scaling."""
    from jax import export

    with open(path, "rb") as file:
        exported = export.deserialize(bytearray(file.read()))
    return lambda obs: np.asarray(exported.call(obs))


def with_numpy(path="policy.npz"):
    """Load PPO's default network for vector observations and discrete actions: tanh layers, then the largest logit."""
    weights = dict(np.load(path))
    layers = sum(name.startswith("actor/hidden_") and name.endswith("/kernel") for name in weights)

    def act(obs):
        x = obs.reshape(len(obs), -1)
        if "statistics/observations/mean" in weights:  # normalize_observations=True
            mean, variance = weights["statistics/observations/mean"], weights["statistics/observations/variance"]
            x = np.clip((x - mean.reshape(-1)) / np.sqrt(variance.reshape(-1) + 1e-8), -10, 10)
        for i in range(layers):
            x = np.tanh(x @ weights[f"actor/hidden_{i}/kernel"] + weights[f"actor/hidden_{i}/bias"])
        return (x @ weights["policy/logits/kernel"] + weights["policy/logits/bias"]).argmax(-1)

    return act


def main(how="jax"):
    act = {"jax": with_jax, "numpy": with_numpy}[how]()
    print(act(np.load("observations.npy")))


if __name__ == "__main__":
    main(*sys.argv[1:])
