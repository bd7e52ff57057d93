"""CURL (Laskin et al. 2020) as an extra loss of PPO: the encoder of images learns which two shifted views are of the same image.

The paper's momentum encoder is left out: both views have the same encoder, as in SimCLR (Chen et al. 2020).

python examples/contrastive_loss.py
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import jaxrl
from jaxrl.distributions import Categorical
from jaxrl.models import ActorCriticOutput, from_linen
from jaxrl.replay.augmentation import shift_image

PIXELS = 1  # largest shift of a board of 10×10; the paper crops 100×100 to 84×84


class Network(nn.Module):
    """Encoder of boards, the heads of PPO, and the bilinear product that compares two encodings (eq. 2)."""

    num_actions: int

    def setup(self) -> None:
        self.hidden, self.features = nn.Dense(128), nn.Dense(64)
        self.logits, self.value = nn.Dense(self.num_actions), nn.Dense(1)
        self.similarity = self.param("similarity", nn.initializers.orthogonal(), (64, 64))

    def encode(self, obs: Any) -> Any:
        flat = obs.reshape((*obs.shape[:-3], -1)).astype(jnp.float32)
        return nn.relu(self.features(nn.relu(self.hidden(flat))))

    def __call__(self, inputs: Any) -> ActorCriticOutput:
        x = self.encode(inputs.obs)
        return ActorCriticOutput(Categorical(self.logits(x)), self.value(x)[..., 0])

    def compare(self, one: Any, other: Any) -> Any:
        """Return the similarity of each pair of views, f32[N, N]."""
        return self.encode(one) @ self.similarity @ self.encode(other).T


def contrastive_loss(weight: float, num_actions: int) -> Any:
    network = Network(num_actions)

    def loss(params: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        obs = batch.inputs.obs
        # A random key that differs between minibatches: an extra loss gets none.
        key = jax.random.key(jax.lax.bitcast_convert_type(batch.advantage.sum(), jnp.uint32))
        shifts = jax.random.randint(key, (2, len(obs), 2), -PIXELS, PIXELS + 1)
        views = (shift_image(obs, shift, (0, 1)) for shift in shifts)
        logits = network.apply(params, *views, method="compare")
        same = jnp.arange(len(obs))
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, same).mean()  # InfoNCE (eq. 1)
        return weight * loss, {"contrastive_accuracy": (logits.argmax(-1) == same).mean()}

    return loss


def main(total_steps: int = 300_000) -> None:
    env = jaxrl.make_env("Breakout-MinAtar")
    num_actions = int(env.action_space.n)
    model = lambda observed, actions: from_linen(Network(num_actions))  # noqa: E731
    settings = {"num_envs": 64, "num_minibatches": 16, "num_epochs": 4}
    for name, extra in (("PPO", ()), ("with CURL", (contrastive_loss(0.1, num_actions),))):
        ppo = jaxrl.make_ppo(env, model=model, extra_losses=extra, **settings)
        state, metrics = jax.jit(jaxrl.make_train(ppo, total_steps))(jax.random.key(0))
        score = jaxrl.evaluate(ppo, state, jax.random.key(1), 64).episodic_return.mean()
        accuracy = metrics.get("losses/contrastive_accuracy")
        told = "" if accuracy is None else f"; {accuracy.sum[-1] / accuracy.count[-1]:.0%} of the views are recognised"
        print(f"{name}: mean return {score:.1f}{told}")


if __name__ == "__main__":
    main()
