"""``python -m jaxrl``: the command line."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder: a file in there that is named like an optional package must not be imported for it

from jaxrl.runtime.cli.main import run_and_exit

run_and_exit()
