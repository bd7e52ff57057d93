"""What every test stands on: two CPU devices, no accelerator unless asked for, and cheap files first."""

import os

import jax
import pytest

# Tests mean the same on a machine with a GPU; `make test-gpu` sets the variable. Processes that tests start inherit it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
jax.config.update("jax_num_cpu_devices", 2)

# Compiled programs are kept nowhere, so that a stale one cannot hide a failure; a folder shortens the second run of a developer.
CACHE = os.environ.get("JAXRL_TEST_CACHE") and os.path.abspath(os.environ["JAXRL_TEST_CACHE"])
os.environ["JAXRL_CACHE_DIR"] = CACHE or ""  # for `jaxrl.run`, here and in child processes
if CACHE:
    jax.config.update("jax_compilation_cache_dir", CACHE)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

EXPENSIVE_FILES = (
    "test_envs.py",
    "test_envs_gymnax.py",
    "test_checkpoint.py",
    "test_ppo.py",
    "test_dqn.py",
    "test_run.py",
    "test_cli.py",
    "test_contract.py",
)
"""Run last, in this order; all others come before them, in pytest's own order."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cheapest first: a broken helper is reported before the long tests that stand on it."""
    rank = {name: position for position, name in enumerate(EXPENSIVE_FILES)}
    items.sort(key=lambda item: rank.get(item.path.name, -1))
