"""``python -m jaxrl``: the command line."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder, so that no file in it is imported in place of an optional package

from jaxrl.runtime.cli.main import run_and_exit

run_and_exit()
