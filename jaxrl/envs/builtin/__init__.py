"""Backend ``jaxrl``: small pure environments of this library, with goals, with costs, with several agents, and games of two
players."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxrl.envs.builtin.bit_flip import bit_flip
from jaxrl.envs.builtin.hazards import hazards
from jaxrl.envs.builtin.line_games import connect_four, tic_tac_toe
from jaxrl.envs.builtin.matrix_game import matrix_game
from jaxrl.envs.builtin.reach import reach
from jaxrl.envs.builtin.reference import reference
from jaxrl.envs.builtin.speaker_listener import speaker_listener
from jaxrl.envs.builtin.spread import spread
from jaxrl.envs.builtin.switch_riddle import switch_riddle
from jaxrl.envs.builtin.two_step import two_step
from jaxrl.envs.ids import check_name, check_options, defaults_of
from jaxrl.types import Env

GOALS: dict[str, Callable[..., Env]] = {"BitFlip": bit_flip, "Reach": reach}
COSTS: dict[str, Callable[..., Env]] = {"Hazards": hazards}
AGENTS: dict[str, Callable[..., Env]] = {
    "MatrixGame": matrix_game,
    "TwoStep": two_step,
    "SwitchRiddle": switch_riddle,
    "Spread": spread,
    "SpeakerListener": speaker_listener,
    "Reference": reference,
}
GAMES: dict[str, Callable[..., Env]] = {"TicTacToe": tic_tac_toe, "ConnectFour": connect_four}
MAKERS = GOALS | COSTS | AGENTS | GAMES
"""Functions that make the environments, by name. The options of an environment are the function's arguments."""


def list_names() -> list[str]:
    return [*MAKERS]


def family(name: str) -> str:
    families = {"goals": GOALS, "costs": COSTS, "agents": AGENTS, "games": GAMES}
    return next(kind for kind, makers in families.items() if name in makers)


def make(name: str, options: dict[str, Any]) -> Env:
    """Make an environment of this library. Its function in ``MAKERS`` documents it."""
    check_name("jaxrl", name, MAKERS)
    check_options(f"jaxrl:{name}", options, defaults_of(MAKERS[name]))
    return MAKERS[name](**options)
