"""Masks and entries with a meaning: those that do not fit, or that stand where they have none, are named with a fix."""

from __future__ import annotations

import jax.numpy as jnp
import pytest
from gymnasium import spaces

import jaxrl
from jaxrl.envs import check_env, validate_env
from jaxrl.envs.checks.validate import find_problems
from jaxrl.spaces.trees import zeros
from jaxrl.types import Env, TimeStep
from tests.helpers import probes
from tests.helpers.env_problems import problems
from tests.helpers.hosted import hosted


def masked(change=lambda mask, reached: mask, truncated=False, **fields):
    """Return the probe of two choices, with another mask at the first observation and at those that a step reached.

    A forbidden action breaks it.
    """
    env = probes.two_choices()

    def with_mask(obs, reached):
        return {**obs, "action_mask": change(jnp.ones_like(obs["action_mask"]).at[jnp.array([0, 3])].set(0), reached)}

    def masked_reset(key, params):
        state, obs = env.reset(key, params)
        return state, with_mask(obs, False)

    def masked_step(key, state, action, params):
        state, reached = env.step(key, state, action, params)
        wrong = (action[0] == 0) | (action[1] == 1)
        reward, ended = jnp.where(wrong, jnp.nan, 0.0), reached.terminated
        return state, TimeStep(with_mask(reached.obs, True), reward, ended & (not truncated), ended & truncated)

    return env._replace(reset=masked_reset, step=masked_step, **fields)


def nothing_once_reached(mask, reached):
    return jnp.zeros_like(mask) if reached else mask


def no_second(mask, reached):
    return mask.at[2:].set(0)


@pytest.mark.parametrize("where", [lambda env: env, pytest.param(hosted, marks=pytest.mark.slow)], ids=["pure", "host"])
def test_a_mask_that_forbids_every_action(where):
    """This is allowed at the end. The check plays allowed actions."""
    check_env(where(masked()), steps=8)
    check_env(where(masked(nothing_once_reached)), steps=8)
    for env, when in ((masked(no_second), "after reset"), (masked(nothing_once_reached, truncated=True), "after a step")):
        found = problems(where(env), lambda env: check_env(env, steps=8))
        assert f"action_mask forbids every action {when}: allow one in each dimension, or terminate the episode there" in found


def test_a_mask_that_does_not_fit_the_actions():
    for actions in (spaces.MultiDiscrete([2, 2]), spaces.MultiDiscrete([3, 3]), spaces.Box(-1, 1, (5,))):
        for env in (masked(action_space=actions), hosted(masked(action_space=actions))):
            (problem,) = problems(env)
            assert problem.startswith("observation_space['action_mask'] is MultiBinary(5), and action_space ")
            assert "MultiBinary(n) for Discrete(n)" in problem


def observing(space: spaces.Space) -> Env:
    """Return an environment of one row whose observations are zeros of ``space``."""
    row = lambda: TimeStep(zeros(space), jnp.float32(0), jnp.bool_(True), jnp.bool_(False))  # noqa: E731
    return Env(
        lambda key, params: (0, zeros(space)), lambda key, state, action, params: (state, row()), space, spaces.Discrete(2)
    )


BOX, MASK = spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (spaces.Dict(board=spaces.Dict(view=BOX, action_mask=MASK)), "observation_space['board'] has an entry 'action_mask'"),
        (
            spaces.Dict(inner=spaces.Tuple([BOX, spaces.Dict(player=MASK, x=BOX)])),
            "observation_space['inner'][1] has an entry 'player'",
        ),
        (spaces.Tuple([spaces.Dict(x=BOX, privileged_state=BOX)]), "observation_space[0] has an entry 'privileged_state'"),
    ],
)
def test_names_with_a_meaning_inside_an_entry(space: spaces.Space, where: str) -> None:
    """Networks would not see such an entry, and nothing else would use it."""
    (problem,) = problems(observing(space), validate_env)
    assert problem.startswith(where) and problem.endswith("move the entry there, or rename it")
    with pytest.raises(ValueError, match="move the entry there, or rename it"):
        jaxrl.make_ppo(observing(space))


def test_names_with_a_meaning_outside() -> None:
    assert not find_problems(observing(spaces.Dict(view=spaces.Dict(x=BOX), action_mask=MASK, privileged_state=BOX)))
