"""Run code in a new interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.helpers.paths import ROOT


def in_fresh_python(code: str) -> Any:
    """Run ``code`` in a new interpreter, in which nothing is imported. Return its variable ``result``."""
    script = f"import json, sys\n{code}\nprint(json.dumps(result))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
