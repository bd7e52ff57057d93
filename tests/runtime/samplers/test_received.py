"""Rows of running environments: observations are cast to their space, and rows that do not fit it are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs.host import EnvironmentFailed
from jaxrl.runtime.samplers.rollout_buffer import RolloutBuffer
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.types import HostEnv, HostStep

BOX = spaces.Box(-1, 1, (2,), np.float32)


class Walk:
    """Two environments whose rows can be changed."""

    def __init__(self, first: Any, **changes: Any) -> None:
        self.first, self.changes, self.rows = first, changes, 0

    def reset(self) -> Any:
        return self.first

    def step(self, action: Any) -> Any:
        self.rows += 1
        no = np.zeros(2, bool)
        row = HostStep(np.full((2, 2), 0.75, np.float32), np.ones(2, np.float32), no, no, {"cost": np.zeros(2, np.float32)})
        return row._replace(**{name: value(self.rows) for name, value in self.changes.items() if name != "row"})

    def close(self) -> None:
        pass


class Tuples(Walk):
    def step(self, action: Any) -> Any:
        return tuple(super().step(action))


def stepper(first: Any = None, kind: type[Walk] = Walk, space: spaces.Space = BOX, **changes: Any) -> Stepper:
    first = np.zeros((2, 2), np.float32) if first is None else first
    return Stepper(HostEnv(lambda num_envs, seed: kind(first, **changes), space, spaces.Discrete(2), name="walk"), 2, 0)


def test_observations_have_the_types_of_their_space() -> None:
    """Otherwise the first row of a rollout would decide: integers at the reset would truncate all that follow."""
    envs, buffer = stepper(np.zeros((2, 2), int)), RolloutBuffer((), 1, 2)
    envs.reset()
    buffer.write("obs", (0,), envs.input.obs, more_rows=1)
    envs.step(np.zeros(2, int))
    buffer.write("obs", (1,), envs.input.obs)
    np.testing.assert_array_equal(buffer.read("obs"), [[[0, 0]] * 2, [[0.75] * 2] * 2])
    double = stepper(obs=lambda row: np.full((2, 2), 0.25))
    double.reset()
    assert double.step(np.zeros(2, int)) and double.input.obs.dtype == np.float32
    nested = spaces.Dict({"image": spaces.Box(0, 255, (1,), np.uint8), "pair": spaces.Tuple([BOX, spaces.Discrete(3)])})
    obs = {"image": np.ones((2, 1), int), "pair": (np.ones((2, 2)), np.ones(2, np.int64))}
    several = stepper(obs, space=nested)
    several.reset()
    found = several.input.obs
    assert (found["image"].dtype, *(x.dtype for x in found["pair"])) == (np.uint8, np.float32, np.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": Tuples}, r"walk: step gave tuple, which must be a jaxrl.types.HostStep: make HostStep\(\*row\[:4\]\)"),
        ({"reward": lambda row: np.ones((2, 1))}, r"step gave reward=float64\[2, 1\]; it must be an array float32\[2\]"),
        ({"reward": lambda row: 1.0}, r"step gave reward=float64\[\]; it must be an array float32\[2\]"),
        ({"terminated": lambda row: None}, r"step gave terminated=None; it must be an array bool\[2\]"),
        (
            {"obs": lambda row: np.zeros((2, 3), np.float32)},
            r"an observation is float32\[2, 3\], and .* it must be float32\[2, 2\]",
        ),
        ({"obs": lambda row: {"x": np.zeros((2, 2))}}, r"an observation is dict of 'x', and observation_space is Box"),
        ({"info": lambda row: None}, r"step gave info=object\[\]; it must be a dict of arrays"),
        (
            {"info": lambda row: {"a": np.ones(2)} if row > 1 else {}},
            r"was \{\} and is now \{a: float64\[\]\}: it must have the same",
        ),
        ({"info": lambda row: {"cost": np.ones(2, int if row == 1 else float)}}, r"cost: int64\[\]\} and is now \{cost: float64"),
        ({"space": spaces.Box(0, 255, (2,), np.uint8), "first": np.zeros((2, 2), np.uint8)}, r"float32\[2, 2\].*must be uint8"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    envs = stepper(**changes)
    envs.reset()
    with pytest.raises(EnvironmentFailed, match=message):
        for _ in range(2):
            envs.step(np.zeros(2, int))
