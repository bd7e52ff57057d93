"""Gradient steps: the same for packed parameters and for trees, in loops and alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.ppo import PPOHyperparams
from jaxrl.optimize import clipped_adam, clipped_rmsprop, elementwise, is_elementwise
from jaxrl.optimize.descent import Descent, descent
from jaxrl.xla import packed_parameters
from tests.helpers.agents import assert_bit_equal, assert_close

HP = PPOHyperparams(learning_rate=0.1, max_grad_norm=0.5)
RNG = np.random.default_rng(0)


def numbers() -> Any:
    return {"a": {"w": jnp.float32(RNG.normal(size=(2, 3)))}, "b": jnp.float32(RNG.normal(size=4))}


PARAMS, TARGET, GOALS = numbers(), numbers(), [numbers() for _ in range(3)]


def of_tree(hyperparams: Any) -> Any:
    """Return the same optimizer for parameters in a tree."""
    return clipped_adam(hyperparams)


def loss_to(goal: Any) -> Any:
    """Return half the squared distance to ``goal``. Its gradient is the difference."""

    def loss(params: Any) -> Any:
        total = sum(0.5 * ((x - y) ** 2).sum() for x, y in zip(*map(jax.tree.leaves, (params, goal)), strict=True))
        return total, {"total": total}

    return loss


def stepped(steps: Descent) -> tuple[dict[str, Any], Any, int]:
    """Return the result of a step to each goal, the metrics of the last, and the number of arrays of parameters in between."""
    progress = steps.start(PARAMS, steps.init(PARAMS), TARGET)
    for goal in GOALS:
        progress, metrics = steps.step(loss_to(goal), progress)
        progress = steps.move_target(progress, jnp.float32(0.25))
    return steps.finish(progress), metrics, len(jax.tree.leaves(progress.params))


def test_packing_parameters_changes_nothing() -> None:
    packed, trees = (stepped(descent(optimizer, HP, PARAMS)) for optimizer in (clipped_adam, of_tree))
    assert (packed[2], trees[2]) == (1, 2)
    assert [len(jax.tree.leaves(result["opt_state"])) for result, *_ in (packed, trees)] == [3, 5]  # count, and two moments
    for name in ("params", "target_params"):
        assert jax.tree.structure(packed[0][name]) == jax.tree.structure(PARAMS)
        assert_close(packed[0][name], trees[0][name], atol=1e-6)
    assert {*packed[1]} == {"total", "losses/grad_norm"}
    assert_close(packed[1], trees[1], atol=1e-5)


def test_a_target_moves_by_a_fraction_or_becomes_a_copy() -> None:
    steps = descent(clipped_adam, HP, PARAMS)
    start = steps.start(PARAMS, steps.init(PARAMS), TARGET)
    half, copy = (steps.target_params(steps.move_target(start, jnp.float32(share))) for share in (0.5, 1.0))
    assert_close(half, jax.tree.map(lambda p, t: 0.5 * (p + t), PARAMS, TARGET), atol=1e-6)
    assert_bit_equal(copy, PARAMS)


@pytest.mark.parametrize("optimizer", [clipped_adam, of_tree])
def test_single_steps_are_those_of_a_loop(optimizer: Any) -> None:
    expected, metrics, _ = stepped(descent(optimizer, HP, PARAMS))
    steps = descent(optimizer, HP, PARAMS, single_steps=True)
    params, opt_state = PARAMS, steps.init(PARAMS)
    applied = PARAMS, steps.init(PARAMS)
    for goal in GOALS:
        applied = steps.apply(jax.grad(lambda params, goal=goal: loss_to(goal)(params)[0])(applied[0]), *applied)
        params, opt_state, logged = steps.single_step(loss_to(goal), params, opt_state)
    for result in (applied, (params, opt_state)):
        assert_close(result, (expected["params"], expected["opt_state"]), atol=1e-6)
    assert_close(logged, metrics, atol=1e-6)


def test_large_parameters_are_packed_for_many_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.optimize.descent.MOST_PACKED", 9)
    assert packed_parameters.packing(PARAMS, at_most=10) is not packed_parameters.UNPACKED
    assert descent(clipped_adam, HP, PARAMS, single_steps=True).packing is packed_parameters.UNPACKED
    assert descent(clipped_adam, HP, PARAMS).packing is not packed_parameters.UNPACKED


def test_which_optimizers_get_one_vector() -> None:
    """Runs with a ``partial`` have saved states of trees, which must still be restored."""
    assert is_elementwise(clipped_adam) and is_elementwise(clipped_rmsprop)
    assert not is_elementwise(partial(clipped_rmsprop, decay=0.95)) and not is_elementwise(of_tree)
    assert is_elementwise(elementwise(lambda hyperparams: clipped_adam(hyperparams)))
