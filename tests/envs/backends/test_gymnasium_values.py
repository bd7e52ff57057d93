"""Observations as rows of a batch: what NumPy would wrap is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs.backends.values import Wrong, empty, write

BYTES, WHOLE = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-5, 5, (2,), np.int64)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (BYTES, np.array([300, 1]), r"obs has integers from 1 to 300, but observation_space is uint8\[2\]: .* within \[0, 255\]"),
        (BYTES, [7, -1], "obs has integers from -1 to 7, .* within \\[0, 255\\]"),
        (WHOLE, np.array([2**31, 0]), "obs has integers from 0 to 2147483648, but observation_space is int32"),
        (WHOLE, np.array([2**31, 0], np.uint32), "obs has integers from 0 to 2147483648"),
        (spaces.Discrete(3), 2**40, r"from 1099511627776 to 1099511627776, but observation_space is int32\[\]"),
        (spaces.Dict({"a": spaces.MultiBinary(2)}), {"a": [1, 200]}, r"obs\['a'\] has integers from 1 to 200, .* \[-128, 127\]"),
    ],
)
def test_integers_that_would_wrap_are_refused(space: spaces.Space, value: Any, message: str) -> None:
    with pytest.raises(Wrong, match=message):
        write(empty(space, 1), 0, value)


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (BYTES, np.array([255, 0])),
        (BYTES, np.array([True, False])),
        (WHOLE, np.array([-(2**31), 2**31 - 1])),
        (WHOLE, np.array([-7, 7], np.int8)),
        (spaces.Box(0, 255, (0,), np.uint8), np.zeros(0, int)),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([2**40, -1])),
    ],
)
def test_values_that_fit_are_written(space: spaces.Space, value: Any) -> None:
    batch = empty(space, 1)
    write(batch, 0, value)
    np.testing.assert_array_equal(batch[0], value)
