"""Peers in separate virtual environments: Rejax needs an old gymnax, SBX needs torch, and both install tensorflow-probability.

Standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from benchmarks.protocol import ROOT


class PeerError(RuntimeError):
    """A peer's virtual environment could not be built."""


class Peer(NamedTuple):
    """A library that jaxrl is compared with. ``NAME_peer.py`` runs in a virtual environment with ``requirements-NAME.txt``."""

    name: str
    title: str
    modules: tuple[str, ...]
    """Modules that must be importable."""
    lives_with: str = ""
    """Peer whose virtual environment it shares; empty: it has its own."""

    @property
    def folder(self) -> Path:
        return ROOT / f".venv-{self.lives_with or self.name}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def requirements(self, gpu: bool) -> list[str]:
        """Return the requirements of the file, and the version of jax that jaxrl runs on here."""
        file = ROOT / "benchmarks" / f"requirements-{self.lives_with or self.name}.txt"
        lines = file.read_text(encoding="utf-8").splitlines()
        return [*(line for line in lines if line and line[0] != "#"), f"jax{'[cuda12]' if gpu else ''}=={version('jax')}"]

    def install(self, *, gpu: bool = False) -> Path:
        """Build the environment if it is missing or out of date. Return its interpreter.

        Raises:
          PeerError: pip failed, or an installed module cannot be imported. The message ends with the output.
        """
        stamp, requirements = self.folder / "installed.txt", self.requirements(gpu)
        wanted = "\n".join([sys.version, *requirements])
        if stamp.is_file() and stamp.read_text() == wanted:
            return self.python
        print(f"Installing {', '.join(requirements)} into {self.folder.name}, once. Takes minutes.", file=sys.stderr, flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._run(sys.executable, "-m", "venv", str(self.folder))
        self._run(str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
        self._run(str(self.python), "-c", "\n".join(f"import {module}" for module in self.modules))
        stamp.write_text(wanted)
        return self.python

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise PeerError(
                f"the environment of {self.title} could not be built: {' '.join(command[1:])} failed. --without-peer {self.name} "
                f"skips it. Output:\n{tail}"
            )


PEERS = {
    peer.name: peer
    for peer in (
        Peer("rejax", "Rejax", ("rejax", "gymnax")),
        Peer("plain", "plain JAX", ("rejax", "gymnax"), lives_with="rejax"),
        Peer("sbx", "SBX", ("sbx",)),
    )
}

SB3 = Peer("sb3", "Stable-Baselines3 in torch", ("stable_baselines3", "torch"), lives_with="sbx")
"""Peer of ``benchmarks.race``, which SBX needs too."""
EVOSAX = Peer("evosax", "evosax", ("evosax", "gymnax"))
"""Peer of ``benchmarks.evolution``."""
CORL = Peer("corl", "JAX-CORL", ("distrax", "flax", "omegaconf", "optax", "pydantic", "tqdm"))
"""Peer of ``benchmarks.offline``, whose files are in a clone."""
TEAMS = Peer("jaxmarl", "JaxMARL", ("distrax", "flashbax", "jaxmarl", "omegaconf", "optax"))
"""Peer of ``benchmarks.teams``, whose scripts are in a clone."""
ZOO = Peer("zoo", "RL Zoo and Ray Tune", ("rl_zoo3", "stable_baselines3", "ray.tune"))
"""Peers of ``benchmarks.search``."""
SELF_PLAY = Peer("pgx", "pgx's example", ("haiku", "mctx", "omegaconf", "optax", "pgx", "pydantic"))
"""Peer of ``benchmarks.self_play``, whose example is in a clone."""
