"""``python -m jaxrl``: the command line."""

import sys

from jaxrl.runtime.cli import main

sys.exit(main())
