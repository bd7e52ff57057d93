"""MAML (Finn et al. 2017): learn parameters from which few gradient steps solve a new task. The tasks are sinusoids to fit.

The inner steps are a scan of SGD, and the gradient of the error on new points of a task is taken through them.

python examples/maml.py
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from jaxrl.models import MLP, dense

POINTS, TASKS, INNER_RATE = 10, 25, 0.01  # as in the paper

network = nn.Sequential([MLP((40, 40), "relu"), dense(1, 1.0)])


def draw_task(key: Any) -> tuple[Any, Any]:
    """Return x and y of a sinusoid, f32[2, POINTS, 1]: of points to adapt to, and of new ones that measure the error."""
    amplitude, phase, x = jax.random.split(key, 3)
    x = jax.random.uniform(x, (2, POINTS, 1), minval=-5.0, maxval=5.0)
    phase = jax.random.uniform(phase, maxval=jnp.pi)
    return x, jax.random.uniform(amplitude, minval=0.1, maxval=5.0) * jnp.sin(x - phase)


def error(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((network.apply(params, x) - y) ** 2)


def adapt(params: Any, x: Any, y: Any, steps: int) -> Any:
    """Return the parameters after gradient steps on one task."""

    def step(params: Any, _: None) -> tuple[Any, None]:
        slope = jax.grad(error)(params, x, y)
        return jax.tree.map(lambda p, g: p - INNER_RATE * g, params, slope), None

    return jax.lax.scan(step, params, length=steps)[0]


def error_after(params: Any, keys: Any, steps: int) -> Any:
    """Return the mean error on new points of the tasks of ``keys``, after gradient steps on each (eq. 1)."""

    def of_task(key: Any) -> Any:
        x, y = draw_task(key)
        return error(adapt(params, x[0], y[0], steps), x[1], y[1])

    return jax.vmap(of_task)(keys).mean()


def main(iterations: int = 10_000) -> None:
    optimizer = optax.adam(1e-3)

    def learn(state: Any, key: Any) -> tuple[Any, None]:
        params, opt_state = state
        slope = jax.grad(error_after)(params, jax.random.split(key, TASKS), 1)  # through the inner step
        updates, opt_state = optimizer.update(slope, opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    @jax.jit
    def train(key: Any) -> tuple[Any, Any]:  # parameters at the start and at the end
        first, keys = jax.random.split(key)
        start = nn.meta.unbox(network.init(first, jnp.zeros((1, 1))))
        (params, _), _ = jax.lax.scan(learn, (start, optimizer.init(start)), jax.random.split(keys, iterations))
        return start, params

    @jax.jit
    def errors(params: Any, key: Any) -> Any:
        return jnp.stack([error_after(params, jax.random.split(key, 1000), steps) for steps in (0, 1, 10)])

    for name, params in zip(("at first", f"after {iterations:,} updates"), train(jax.random.key(0)), strict=True):
        none, one, ten = errors(params, jax.random.key(1))
        print(f"{name}: error on new tasks {none:.2f}, after one gradient step {one:.2f}, after ten {ten:.2f}")


if __name__ == "__main__":
    main()
