"""Clones of peers that are not packages, which a user names. Standard library only."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from benchmarks.peer import PeerError


class Clone(NamedTuple):
    """Files of a repository at a commit."""

    option: str
    """Option of ``python -m benchmarks`` that takes the folder of the clone."""
    repository: str
    """owner/name on GitHub."""
    commit: str
    folder: str
    """Folder of the files."""
    digests: dict[str, str]
    """Path in that folder -> SHA-256, for the files that are executed."""

    def files_of(self, clone: Path) -> Path:
        """Return the folder of the files.

        Raises:
          PeerError: a file is missing, or is not that of the commit.
        """
        folder = clone / self.folder
        for name, digest in self.digests.items():
            path = folder / name
            found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            if found != digest:
                wrong = "does not exist" if found is None else f"is not that of commit {self.commit}"
                raise PeerError(
                    f"{path} {wrong}. {self.option} takes a clone: git clone https://github.com/{self.repository} {clone}; "
                    f"git -C {clone} checkout {self.commit}"
                )
        return folder


JAX_CORL = Clone(
    "--jax-corl",
    "nissymori/JAX-CORL",
    "d747dd8",
    "algos",
    {
        "iql.py": "554cca798b18ca19fabe3573a5b9a6d0b3f242ac7a92e57141726390ffeee0f0",
        "td3bc.py": "e1d4de823c30413f3d45e457677dd60f00e6c29f7ce83bc8821c0844f8693c2e",
        "cql.py": "775d6e8f763fc648d70037cb69098d120424b0862e9fbf384dfee5ce4ba01580",
    },
)
JAXMARL = Clone(
    "--jaxmarl",
    "FLAIROx/JaxMARL",
    "c793d09",
    "baselines",
    {
        "IPPO/ippo_ff_mpe.py": "a65d2a5f93d5b961142796108eeaef7edf8f87a7e007060dfc593373ce11f882",
        "QLearning/qmix_rnn.py": "7b03994769792c0ad34eea041bce43be10233a03cbbc0c4931cb21e9f28ec8fc",
    },
)
PGX = Clone(
    "--pgx",
    "sotetsuk/pgx",
    "079b2d7",
    "examples/alphazero",
    {"train.py": "2116beffdb36dbf0bc255c6f8e725deb6c91a9ebb50412edf620dcd857280c37"},
)
