"""Groups of seeds on a CPU: their size, and that they affect only the speed."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.runtime.trainers import seed_groups
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.runtime.trainers.host import HostDriver
from jaxrl.runtime.trainers.seed_groups import group_size
from tests.helpers import probes
from tests.helpers.agents import assert_bit_equal, assert_close, small_dqn, small_ppo
from tests.helpers.hosted import hosted


class Learner(NamedTuple):
    params: Any
    replay: Any


class States(NamedTuple):
    learner: Learner


def shapes(kernel: tuple[int, ...], num_seeds: int, replay: int = 0) -> States:
    """Return shapes of states whose networks have one kernel and a bias, with this number of bytes in the replay of each."""
    params = [jax.ShapeDtypeStruct((num_seeds, *shape), np.float32) for shape in (kernel, kernel[-1:])]
    return States(Learner(params, jax.ShapeDtypeStruct((num_seeds, replay), np.uint8)))


@pytest.mark.parametrize(
    ("kernel", "num_seeds", "size"),
    [
        ((64, 64), 32, 4),
        ((64, 64), 8, 4),
        ((64, 64), 6, 3),  # a divisor
        ((64, 64), 7, 1),
        ((64, 64), 2, 2),
        ((64, 63), 32, 8),
        ((2, 64, 64), 8, 1),  # two critics
        ((64, 192), 8, 1),
        ((32, 32), 64, 8),
        ((32, 31), 64, 64),
        ((2, 32, 32), 64, 8),
    ],
)
def test_groups_are_small_where_kernels_are_large(kernel: tuple[int, ...], num_seeds: int, size: int) -> None:
    assert group_size(shapes(kernel, num_seeds), num_seeds) == size


def test_large_states_are_one_group() -> None:
    """Copies of their replay would take longer than groups save."""
    at_most = seed_groups.GROUP_BYTES // 4 - 4 * (64 * 64 + 64)
    assert group_size(shapes((64, 64), 8, at_most), 8) == 4
    assert group_size(shapes((64, 64), 8, at_most + 1), 8) == 8


def test_networks_without_kernels_are_one_group() -> None:
    assert group_size(shapes((10_000,), 8), 8) == 8


def trained(driver: FusedDriver, states: Any) -> tuple[Any, Any]:
    """Return states and metrics after two iterations, and three after which the second seed does not go on."""
    states, _, _ = driver.iterate(driver.place(states), 2)
    states, metrics, alive = driver.iterate(states, 3, np.arange(len(states.iteration)) != 1)
    assert alive.tolist() == [seed != 1 for seed in range(len(alive))]
    return states, metrics


@pytest.mark.parametrize(
    ("make", "size", "num_devices"),
    [
        (small_ppo, 1, 1),
        pytest.param(partial(small_dqn, buffer_size=200, learning_starts=20), 1, 1, marks=pytest.mark.slow),
        pytest.param(small_ppo, 1, 2, marks=pytest.mark.slow),
        pytest.param(small_ppo, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_groups_have_the_results_of_each_seed(make: Any, size: int, num_devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit where seeds of one device take turns alone. A seed that has stopped stays as it is."""
    agent = make("CartPole-v1")
    monkeypatch.setattr(seed_groups, "group_size", lambda states, num_seeds: size)
    several, one = (FusedDriver(agent, range(n), jax.devices()[:d]) for n, d in ((4, num_devices), (1, 1)))
    several.compiler_options = one.compiler_options = COMPILE_FAST
    start = jax.tree.map(jnp.copy, several.init())
    of = lambda i, tree: jax.tree.map(lambda x: jnp.copy(x[i : i + 1]), tree)  # noqa: E731
    alone = [trained(one, of(i, start)) for i in (0, 3)]
    found = trained(several, start)
    assert len(several.programs) == 2
    for i, expected in zip((0, 3), alone, strict=True):
        (assert_bit_equal if (size, num_devices) == (1, 1) else assert_close)(of(i, found), expected)


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_groups_of_seeds_on_host_environments(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = small_dqn(hosted(probes.action_choice()), buffer_size=200, learning_starts=20)
    monkeypatch.setattr(seed_groups, "group_size", lambda states, num_seeds: min(size, num_seeds))

    def trained(seeds: list[int]) -> Any:
        """Return states and losses of the first and the last seed."""
        driver = HostDriver(agent, seeds)
        states, metrics, alive = driver.iterate(driver.init(), 3)
        assert alive.all()
        losses = {name: x for name, x in metrics.items() if name.startswith("losses/")}
        return [jax.tree.map(lambda x, i=i: jnp.copy(x[i : i + 1]), (states, losses)) for i in (0, len(seeds) - 1)]

    found, expected = trained([0, 1, 2, 3]), [trained([0])[0], trained([3])[0]]
    (assert_bit_equal if size == 1 else assert_close)(found, expected)
