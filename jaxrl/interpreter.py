"""Start Python processes that find modules in the same places as this process, and nowhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

BOOT = """
import json, runpy, sys
sys.path[:], found = json.loads(sys.argv.pop(1))
if found:
    from jaxrl.interpreter import FolderFinder
    sys.meta_path += [FolderFinder(folder, modules=names) for folder, names in found.items()]
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def python_command(module: str, *args: str) -> list[str]:
    """Return a command that runs a module like ``python -m``, but does not search the current folder first.

    Modules that a ``FolderFinder`` has found for this process, and no others, are found in its folder by the new process too.
    """
    root = str(Path(__file__).resolve().parents[1])
    path = [*dict.fromkeys([*sys.path, root])]
    finders = [finder for finder in sys.meta_path if isinstance(finder, FolderFinder)]
    found = {finder.folder: sorted(finder.modules) for finder in finders if finder.modules}
    return [sys.executable, "-P", "-c", BOOT, json.dumps([path, found]), module, *args]


class FolderFinder:
    """Import finder for a folder that serves only given importers, and the modules that it has found itself.

    With the folder on ``sys.path``, a library that tries to import an optional package (boto3, jax_plugins) would run a file of
    that name in the folder.
    """

    def __init__(self, folder: str, *, importers: Iterable[str] = (), modules: Iterable[str] = ()) -> None:
        """
        Args:
          importers: names of modules that may import everything in the folder.
          modules: names of modules found for every importer, because another process has imported them from the folder.
        """
        self.folder, self.modules = folder, set(modules)
        self._importers = set(importers)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        importer = _importer()
        served = {importer, importer.partition(".")[0]} & (self._importers | self.modules)
        if path is not None or not (served or name in self.modules):
            return None
        found = PathFinder.find_spec(name, [self.folder])
        if found is not None:
            self.modules.add(name)
        return found


def _importer() -> str:
    """Return the name of the importing module: the first caller outside of importlib."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("importlib", "_frozen_importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))
