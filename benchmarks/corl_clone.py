"""The clone of JAX-CORL that a user names. Standard library only."""

from __future__ import annotations

import hashlib
from pathlib import Path

from benchmarks.peer import PeerError

COMMIT = "d747dd8"
DIGESTS = {
    "iql.py": "554cca798b18ca19fabe3573a5b9a6d0b3f242ac7a92e57141726390ffeee0f0",
    "td3bc.py": "e1d4de823c30413f3d45e457677dd60f00e6c29f7ce83bc8821c0844f8693c2e",
    "cql.py": "775d6e8f763fc648d70037cb69098d120424b0862e9fbf384dfee5ce4ba01580",
}
"""SHA-256 of the files that are executed, at ``COMMIT``."""


def files_of(clone: Path) -> Path:
    """Return the folder of the clone's files.

    Raises:
      PeerError: a file is missing, or is not that of ``COMMIT``.
    """
    folder = clone / "algos"
    for name, digest in DIGESTS.items():
        path = folder / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        if found != digest:
            wrong = "does not exist" if found is None else f"is not that of commit {COMMIT}"
            raise PeerError(
                f"{path} {wrong}. --jax-corl takes a clone: git clone https://github.com/nissymori/JAX-CORL {clone}; "
                f"git -C {clone} checkout {COMMIT}"
            )
    return folder
