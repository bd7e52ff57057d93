"""Problems that the checks of an environment find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxrl.envs import EnvError, check_env
from jaxrl.types import Env, HostEnv


def problems(env: Env | HostEnv, check: Callable[[Any], None] = check_env) -> tuple[str, ...]:
    """Return the problems of the error that ``check`` raises, each of which its message has."""
    with pytest.raises(EnvError) as caught:
        check(env)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems
