"""Fixtures of the tests of checkpoints."""

from pathlib import Path

import pytest

from jaxrl.runtime.checkpoint.store import save
from tests.helpers.checkpoints import tiny


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with steps 1 and 2, whose kernels consist of 1 and 2."""
    for step in (1, 2):
        save(tmp_path / "two", tiny(step), step)
    return tmp_path / "two"
