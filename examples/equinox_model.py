"""An equinox module as a Model: its arrays are the parameters, the rest of it is static.

pip install equinox; python examples/equinox_model.py
"""

import equinox as eqx
import jax

import jaxrl
from jaxrl.distributions import Categorical
from jaxrl.models import ActorCriticOutput


class Net(eqx.Module):
    """Policy and value heads on a shared two-layer torso. Takes a single observation."""

    torso: eqx.nn.MLP
    policy: eqx.nn.Linear
    value: eqx.nn.Linear

    def __init__(self, size: int, num_actions: int, key):
        torso_key, policy_key, value_key = jax.random.split(key, 3)
        self.torso = eqx.nn.MLP(size, 64, 64, depth=1, activation=jax.nn.tanh, final_activation=jax.nn.tanh, key=torso_key)
        self.policy = eqx.nn.Linear(64, num_actions, key=policy_key)
        self.value = eqx.nn.Linear(64, "scalar", key=value_key)

    def __call__(self, obs):
        x = self.torso(obs)
        return ActorCriticOutput(Categorical(self.policy(x)), self.value(x))


def from_equinox(make) -> jaxrl.Model:
    """Return a Model of ``make(key)``, a module without memory that takes a single observation."""
    shapes = eqx.filter_eval_shape(lambda: make(jax.random.key(0)))
    static = eqx.filter(shapes, lambda x: isinstance(x, jax.ShapeDtypeStruct), inverse=True)

    def init(key, inputs):
        return eqx.filter(make(key), eqx.is_array)

    def apply(params, carry, inputs):
        module = eqx.combine(params, static)
        for _ in inputs.is_first.shape:  # [B], or [T, B]
            module = jax.vmap(module)
        return carry, module(inputs.obs)

    return jaxrl.Model(init, apply, unroll=apply, initial_carry=lambda batch_size: ())


def make_net(observation_space, action_space) -> jaxrl.Model:
    (size,), num_actions = observation_space.shape, int(action_space.n)
    return from_equinox(lambda key: Net(size, num_actions, key))


def main(total_steps: int = 100_000) -> None:
    ppo = jaxrl.make_ppo("CartPole-v1", model=make_net)
    state, _ = jax.jit(jaxrl.make_train(ppo, total_steps, metrics_every=10))(jax.random.key(0))
    result = jaxrl.evaluate(ppo, state, jax.random.key(1), 32)
    print(f"return with a network of equinox: {result.episodic_return.mean():.1f}")


if __name__ == "__main__":
    main()
