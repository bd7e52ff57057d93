"""``python -m jaxrl``: the command line."""

from jaxrl.runtime.cli import run_and_exit

run_and_exit()
