"""Joining of a group of processes that train together."""

from __future__ import annotations

import os

from jaxrl.runtime.distributed.cluster import COORDINATOR, NUM_PROCESSES


def join_group(distributed: bool, out: str | None) -> None:
    """Join the group of processes, if this process belongs to one; ValueError if there is none, or no ``out``."""
    if not (distributed or {COORDINATOR, NUM_PROCESSES} & set(os.environ)):
        return
    if out is None:
        raise ValueError("processes that train together need a shared folder: add --out FOLDER")
    from jaxrl.parallel import initialize

    initialize()
