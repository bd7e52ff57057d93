"""Random shifts of images: against NumPy, of which rows and entries, in agents, and invalid settings."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.envs.checks.check_env import COMPILE_FAST
from jaxrl.options import Future, Prioritized, Shift
from jaxrl.replay.augmentation import shift_image, shift_replay, shifted
from jaxrl.replay.prioritised import prioritised_replay
from jaxrl.replay.transitions import ReplayRow, transitions
from jaxrl.replay.uniform import uniform_replay
from tests.helpers import probes
from tests.helpers.agents import run_steps, small

jit = partial(jax.jit, compiler_options=COMPILE_FAST)
IMAGE = spaces.Box(0, 255, (5, 6, 2), np.uint8)


def by_hand(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Pad with the edge, then crop."""
    most = 4
    padded = np.pad(image, ((most, most), (most, most), (0, 0)), mode="edge")
    return padded[most - down : most - down + image.shape[0], most - right : most - right + image.shape[1]]


@pytest.mark.parametrize("shift", [(0, 0), (1, -2), (-4, 3)])
def test_a_shift_pads_with_the_edge_and_crops(shift: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(256, size=(1, 5, 6, 2)).astype(np.uint8)
    expected = by_hand(image[0], *shift)
    np.testing.assert_array_equal(shift_image(image, jnp.array([shift]), (0, 1))[0], expected)
    channels_first = np.moveaxis(image, -1, 1)
    np.testing.assert_array_equal(shift_image(channels_first, jnp.array([shift]), (1, 2))[0], np.moveaxis(expected, -1, 0))


def test_only_images_of_the_policy_are_shifted() -> None:
    space = spaces.Dict(
        {"image": IMAGE, "speed": spaces.Box(-1, 1, (3,)), "privileged_state": IMAGE, "small": spaces.Box(0, 1, (3, 3))}
    )
    obs = jax.tree.map(lambda leaf: np.asarray(leaf)[None], space.sample())
    after: Any = shifted(space, obs, jnp.array([[2, 1]]))
    assert (np.asarray(after["image"]) != obs["image"]).any()
    for name in ("speed", "privileged_state", "small"):
        np.testing.assert_array_equal(after[name], obs[name])


def test_the_layout_is_that_of_the_network() -> None:
    """Or of the option. A guess would take the short first axis for channels."""
    wide = spaces.Box(0, 255, (3, 6, 8), np.uint8)
    image = np.arange(3 * 6 * 8, dtype=np.uint8).reshape(1, 3, 6, 8)
    shift = jnp.array([[1, 2]])
    np.testing.assert_array_equal(shifted(wide, image, shift, "HWC"), shift_image(image, shift, (0, 1)))
    np.testing.assert_array_equal(shifted(wide, image, shift), shift_image(image, shift, (1, 2)))
    layouts = []
    for model, layout in (({}, "auto"), ({"image_layout": "HWC"}, "auto"), ({}, "HWC"), ({"image_layout": "CHW"}, "HWC")):
        structure = jaxrl.make_dqn("Breakout-MinAtar", model=model, augmentation=Shift(layout=layout)).spec["settings"][
            "augmentation"
        ]
        layouts.append(structure["layout"])
    assert layouts == ["auto", "HWC", "HWC", "HWC"]


@pytest.mark.parametrize("prioritised", [False, True])
def test_the_current_and_the_reached_image_are_shifted_apart(prioritised: bool) -> None:
    """In transitions of three steps. Shifts reach ±2 pixels; other fields and what is stored do not change."""
    made = (prioritised_replay() if prioritised else uniform_replay)(16, 1, 16, before=1, after=3)
    plain, replay = made, shift_replay(made, IMAGE, 2)
    images = np.arange(16 * 60).reshape(16, 1, 5, 6, 2) % 251
    flat = np.zeros((16, 1), np.float32)
    rows = ReplayRow(images.astype(np.uint8), flat.astype(np.int32), flat + 1, flat > 1, flat < 1)
    example = jax.tree.map(lambda x: x[0, 0], rows)

    def run(key: Any) -> Any:
        state = replay.add(replay.init(example), rows, jnp.zeros(1, jnp.int32))
        drawn = replay.draw(state, key, 64)
        again = replay.update(state, drawn, jnp.ones(64))
        return (
            drawn,
            transitions(replay, state, drawn, 0.9, 3),
            transitions(plain, state, drawn._replace(extras=drawn.extras.inner), 0.9, 3),
            again,
        )

    drawn, moved, still, _ = jit(run)(jax.random.key(0))
    shifts = np.asarray(drawn.extras.shifts)
    assert {*np.unique(shifts)} == {-2, -1, 0, 1, 2} and (shifts[:, 0] != shifts[:, 1]).any()
    for i in range(64):
        np.testing.assert_array_equal(moved.inputs.obs[i], by_hand(np.asarray(still.inputs.obs[i]), *shifts[i, 0]))
        np.testing.assert_array_equal(moved.next_inputs.obs[i], by_hand(np.asarray(still.next_inputs.obs[i]), *shifts[i, 1]))
    for name in ("action", "reward", "discount", "valid"):
        np.testing.assert_array_equal(getattr(moved, name), getattr(still, name))


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "settings"), [("dqn", {}), ("dqn", {"replay": Prioritized()}), ("sac", {})])
def test_agents_learn_from_shifted_boards(rule: str, settings: dict[str, Any]) -> None:
    """Draws are the same as without shifts, so the first values differ by the images alone."""
    sizes = {
        "num_envs": 4,
        "rollout_length": 2,
        "batch_size": 8,
        "buffer_size": 80,
        "learning_starts": 16,
        "replay_ratio": 8,
        "n_step": 1,
    }
    networks = {"model": {"hidden_sizes": (8,), "encoder": "flat"}, **sizes, **settings}
    make = getattr(jaxrl, f"make_{rule}")
    values = []
    for augmentation in (None, Shift(2)):
        agent = make("Breakout-MinAtar", augmentation=augmentation, **networks)
        _, metrics = run_steps(agent, agent.init(jax.random.key(0)), 1)
        values.append(float(metrics["losses/q_values"].sum))
    assert np.isfinite(values).all() and values[0] != values[1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"augmentation": Shift()}, r"augmentation=Shift\(\) is for images, .* and the observation space is Box"),
        ({"augmentation": {"name": "shift", "pixels": 0}}, "pixels=0 must be an integer >= 1"),
        ({"augmentation": {"name": "shift", "layout": "WHC"}}, "layout='WHC' must be one of 'auto', 'HWC', 'CHW'"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small("dqn", probes.truncation(), **settings)


def test_it_changes_single_rows_as_they_are() -> None:
    with pytest.raises(ValueError, match=r"augmentation=Shift\(.*\) changes single rows of one agent: leave it out"):
        small("dqn", "jaxrl:BitFlip", augmentation=Shift(), hindsight=Future())
