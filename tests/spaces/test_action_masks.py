"""Actions that a mask allows, for NumPy and JAX arrays."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.spaces.action_masks import allowed, choices, flat_mask, is_allowed, nothing_allowed, some_allowed

ONE, SEVERAL = spaces.Discrete(3), spaces.MultiDiscrete([[2, 3]])
FLAT = np.array([[1, 0, 0, 1, 1], [0, 1, 0, 0, 0], [0, 0, 1, 1, 1]], np.int8)
"""Three rows for ``SEVERAL``. The second allows nothing in the second dimension, the third nothing in the first."""
both = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


@both
def test_a_mask_for_each_dimension(xp: Any) -> None:
    flat = xp.asarray(FLAT)
    for mask in (flat, (flat[:, :2], flat[:, 2:])):
        parts = choices({"x": 0, "action_mask": mask}, SEVERAL)
        assert [part.dtype for part in parts] == [bool, bool]
        np.testing.assert_array_equal(np.concatenate(parts, -1), FLAT.astype(bool))
        np.testing.assert_array_equal(flat_mask(mask), FLAT)
        np.testing.assert_array_equal(nothing_allowed({"action_mask": mask}, SEVERAL), [False, True, True])
    (part,) = choices({"action_mask": flat[:, :3]}, ONE)
    np.testing.assert_array_equal(part, FLAT[:, :3] > 0)
    np.testing.assert_array_equal(nothing_allowed({"action_mask": flat[:, 3:]}, spaces.Discrete(2)), [False, True, False])


@pytest.mark.parametrize(
    "obs, space",
    [
        (FLAT, ONE),
        ({"x": FLAT}, ONE),
        ({"action_mask": FLAT}, ONE),
        ({"action_mask": FLAT[:, :1]}, ONE),
        ({"action_mask": (FLAT[:, :3], FLAT[:, 3:])}, SEVERAL),
        ({"action_mask": FLAT}, spaces.Box(0, 1, (5,))),
    ],
    ids=["no dict", "no mask", "too long", "one for all", "dimensions in the wrong order", "no choices"],
)
def test_no_mask_or_one_that_does_not_fit(obs: Any, space: spaces.Space) -> None:
    assert choices(obs, space) == [] and nothing_allowed(obs, space) is None
    action = np.ones(3, np.int32)
    assert allowed(action, obs, space) is action and is_allowed(action, obs, space) is None


@both
def test_a_mask_that_forbids_everything_is_none(xp: Any) -> None:
    mask = FLAT[:, :3].astype(bool)
    mask[2] = False
    np.testing.assert_array_equal(some_allowed(xp.asarray(mask)), [[1, 0, 0], [0, 1, 0], [1, 1, 1]])


@pytest.mark.slow
@both
def test_random_actions_are_mapped_evenly_onto_those_allowed(xp: Any) -> None:
    mask = np.array([0, 1, 0, 1, 1, 0], np.int8)
    action, obs = xp.arange(6, dtype=xp.int32), {"action_mask": xp.asarray(np.tile(mask, (6, 1)))}
    got = allowed(action, obs, spaces.Discrete(6))
    assert got.dtype == xp.int32
    np.testing.assert_array_equal(got, [1, 3, 4, 1, 3, 4])
    pair = xp.asarray(np.array([[[1, 2]], [[0, 2]], [[1, 1]]], np.int32))
    got = allowed(pair, {"action_mask": xp.asarray(FLAT)}, SEVERAL)  # the first action, if nothing is allowed
    np.testing.assert_array_equal(got, [[[0, 1]], [[1, 0]], [[0, 1]]])


@both
def test_whether_actions_are_allowed(xp: Any) -> None:
    flat = xp.asarray(FLAT)
    for action, expected in (([0, 1, 2], [True, True, True]), ([1, 1, 0], [False, True, False])):
        found = is_allowed(xp.asarray(np.array(action, np.int32)), {"action_mask": flat[:, :3]}, ONE)
        np.testing.assert_array_equal(found, expected)
    pairs = xp.asarray(np.array([[[0, 1]], [[1, 1]], [[0, 2]]], np.int32))
    np.testing.assert_array_equal(is_allowed(pairs, {"action_mask": flat}, SEVERAL), [True, False, False])
    pairs = xp.asarray(np.array([[[0, 0]], [[0, 1]], [[0, 1]]], np.int32))
    np.testing.assert_array_equal(is_allowed(pairs, {"action_mask": flat}, SEVERAL), [False, False, False])
