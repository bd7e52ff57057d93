"""A custom loss term added to PPO's: a function of (parameters, minibatch) that returns a loss and metrics to log.

python examples/custom_loss.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxrl


def weight_decay(params, batch):
    """Return an L2 penalty on the kernels. ``batch`` has the minibatch's inputs, action, advantage, target, …, unused here."""
    squares = sum(jnp.sum(x**2) for x in jax.tree.leaves(params) if x.ndim > 1)
    return 1e-3 * squares, {"kernel_norm": jnp.sqrt(squares)}


def main(total_steps: int = 50_000) -> None:
    for name, extra_losses in (("plain", ()), ("with weight decay", (weight_decay,))):
        ppo = jaxrl.make_ppo("CartPole-v1", extra_losses=extra_losses)
        state, metrics = jax.jit(jaxrl.make_train(ppo, total_steps))(jax.random.key(0))
        kernels = [x for x in jax.tree.leaves(state.learner.params) if x.ndim > 1]
        norm = np.sqrt(sum(float(jnp.sum(x**2)) for x in kernels))
        logged = metrics.get("losses/kernel_norm")
        shown = "" if logged is None else f"; logged at the end: {float(logged.sum[-1] / logged.count[-1]):.2f}"
        print(f"{name}: norm of the kernels {norm:.2f}{shown}")


if __name__ == "__main__":
    main()
