"""Every algorithm's programs lower for CUDA and TPU, which JAX can do on any machine. Nothing is compiled or run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.models import actor_critic
from jaxrl.rollout.autoreset import first_input
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.spaces.trees import zeros
from tests.helpers.agents import REPRESENTATIVES, cartpole, each_family
from tests.helpers.lowering import lowered, operations

BARRIER = "optimization_barrier"
"""In programs for CPUs: it hides computations from XLA's optimisations."""


def key() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


@each_family
def test_init_and_step_lower_for_accelerators(algorithm: str) -> None:
    agent = cartpole(algorithm)
    assert "main" in lowered(agent.init, key())
    assert BARRIER not in lowered(agent.step, jax.eval_shape(agent.init, key()))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", REPRESENTATIVES)
def test_steps_of_seeds_over_devices_lower_for_accelerators(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ``jaxrl.run``: seeds are vmapped and sharded, and one seed's environments are split, with collectives.

    The order of collectives, where each is concatenated with a number from the previous one, is for CPUs alone.
    """

    def program(seeds: range, devices_per_seed: int) -> str:
        driver = FusedDriver(cartpole(algorithm), seeds, jax.devices()[:2], devices_per_seed)
        args = (driver.shapes(), np.int32(0), np.ones(len(seeds), bool), driver.data)
        return lowered(driver._mapped(driver._iterate_one, (0, None, 0, None), *args, gives=driver._iterated), *args)

    alone, split = program(range(4), 1), program(range(2), 2)
    assert "all_reduce" in split and "all_reduce" not in alone and BARRIER not in split + alone
    monkeypatch.setattr("jaxrl.agent.in_order", lambda update: update)
    unordered, names = program(range(2), 2), ("all_reduce", "concatenate", "slice")
    assert [operations(split)[name] for name in names] == [operations(unordered)[name] for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "shape", "core"),
    [("minatar", (10, 10, 4), "gru"), ("nature", (84, 84, 4), "lstm"), ("impala", (64, 64, 3), None)],
)
def test_networks_for_images_lower_for_accelerators(encoder: str, shape: Sequence[int], core: str | None) -> None:
    """With their gradients. On a CPU, convolutions are other programs."""
    seen, acts = spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(3)
    model = actor_critic(seen, acts, encoder=encoder, core=core)
    now = first_input(zeros(seen, (4,)), acts, 4)
    rows = jax.tree.map(lambda x: jnp.stack([x, x]), now)

    def loss(params: Any) -> Any:
        return model.unroll(params, model.initial_carry(4), rows)[1].value.sum()

    program = lowered(jax.grad(loss), jax.eval_shape(model.init, key(), now))
    assert program.count("stablehlo.convolution") >= 2


def test_what_does_not_lower_is_seen() -> None:
    with pytest.raises(NotImplementedError, match="tpu"):
        lowered(jnp.linalg.eigvals, jnp.eye(2))
