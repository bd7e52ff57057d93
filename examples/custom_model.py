"""A custom network without flax: a Model is four pure functions over any pytree of parameters.

python examples/custom_model.py
"""

import jax
import jax.numpy as jnp

import jaxrl
from jaxrl.distributions import Categorical
from jaxrl.models import ActorCriticOutput


def make_fourier(observation_space, action_space, num_features: int = 64) -> jaxrl.Model:
    """Build random Fourier features with two linear heads. Only the heads are trained."""
    (size,), num_actions = observation_space.shape, int(action_space.n)

    def init(key, inputs):
        feature_key, phase_key = jax.random.split(key)
        return {
            "frequency": jax.random.normal(feature_key, (size, num_features)),
            "phase": jax.random.uniform(phase_key, (num_features,), maxval=2 * jnp.pi),
            "policy": jnp.zeros((num_features, num_actions)),
            "value": jnp.zeros(num_features),
        }

    def apply(params, carry, inputs):
        fixed = jax.lax.stop_gradient((params["frequency"], params["phase"]))
        features = jnp.cos(inputs.obs @ fixed[0] + fixed[1])
        return carry, ActorCriticOutput(Categorical(features @ params["policy"]), features @ params["value"])

    return jaxrl.Model(init, apply, unroll=apply, initial_carry=lambda batch_size: ())  # no memory: apply also works on [T, B]


def main(total_steps: int = 100_000) -> None:
    ppo = jaxrl.make_ppo("CartPole-v1", model=make_fourier, learning_rate=1e-2)
    state, _ = jax.jit(jaxrl.make_train(ppo, total_steps, metrics_every=10))(jax.random.key(0))
    result = jaxrl.evaluate(ppo, state, jax.random.key(1), 32)
    print(f"return with Fourier features: {result.episodic_return.mean():.1f}")


if __name__ == "__main__":
    main()
