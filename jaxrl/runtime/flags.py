"""What the flags of several commands have in common."""

from __future__ import annotations

from typing import Annotated

import tyro

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""False, unless it is given: there is no --no-… beside it."""


def check_eval_seed(eval_seed: int) -> None:
    """Refuse what is no seed of episodes."""
    if not 0 <= eval_seed < 2**32:
        raise ValueError(f"eval_seed={eval_seed} is outside 0 … 2**32 - 1")
