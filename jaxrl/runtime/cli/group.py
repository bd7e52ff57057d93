"""What commands do where they are one of several processes that train together."""

from __future__ import annotations

import os

from jaxrl.runtime.distributed.cluster import COORDINATOR, NUM_PROCESSES


def join_group(distributed: bool, out: str | None) -> None:
    """Meet the other processes, where this one is to train together with some.

    Raises:
      ValueError: there is no such group, or no folder for all.
    """
    if not (distributed or {COORDINATOR, NUM_PROCESSES} & set(os.environ)):
        return
    if out is None:
        raise ValueError("processes that train together need one folder for all: add --out FOLDER")
    from jaxrl.parallel import initialize

    initialize()
