"""Shared setup of the tests: two CPU devices, no accelerator unless requested, cheap files first."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import gc
import os
import resource
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import pytest

if TYPE_CHECKING:
    from jaxrl.types import Agent

# Tests use the CPU on a machine with a GPU too; `make test-gpu` sets the variable. Processes that tests start inherit it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax.config.update("jax_platforms", os.environ["JAX_PLATFORMS"])
jax.config.update("jax_num_cpu_devices", 2)

# A shell makes background processes ignore Ctrl-C, and their children inherit that. The tests of Ctrl-C need it handled.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests and the processes they start share compiled programs in a folder that starts empty: a stale one cannot hide a failure.
# A folder in JAXRL_TEST_CACHE is kept, which shortens a developer's second run.
if CACHE := os.environ.get("JAXRL_TEST_CACHE"):
    CACHE = os.path.abspath(CACHE)
else:
    CACHE = os.environ["JAXRL_TEST_CACHE"] = tempfile.mkdtemp(prefix="jaxrl-test-cache-")  # also for pytest-xdist's workers
    atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
os.environ["JAXRL_CACHE_DIR"] = ""  # jaxrl's own cache is off
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

# Clusters of Ray in tests listen on the loopback interface alone, and have a token of this session. Ray reads the variables
# at its import, and the token once.
RAY_TOKEN = Path(CACHE) / "ray-token"
if not RAY_TOKEN.exists():
    RAY_TOKEN.touch(0o600)
    RAY_TOKEN.write_text(secrets.token_hex(32))
os.environ |= {"RAY_AUTH_TOKEN_PATH": str(RAY_TOKEN), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.pop("RAY_ADDRESS", None)

MOST_MAPPINGS = 20_000
BASE_MEMORY, MOST_GROWTH = 800 * 2**20, 1_500 * 2**20
"""Smallest memory of a process, and growth in bytes after which it drops its compiled programs."""
resident = BASE_MEMORY

# JAX keeps many objects that live long. By default, Python's garbage collector walks them so often that it takes a tenth of the
# tests' time.
gc.set_threshold(50_000, 20, 20)

IN_EACH_PART = ("test_ordered_collectives", "test_private_jax", "test_packed_scan", "test_several_devices")
"""Files of what has differed between versions of JAX."""


def part(text: str) -> tuple[int, int]:
    """Parse ``3/8``: the fourth of eight parts."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} must be NUMBER/COUNT with NUMBER from 0 to COUNT - 1, such as 3/8")
    return int(number), int(count)


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "run the part NUMBER of COUNT (from 0), and the tests that a new JAX is likely to break"
    parser.addoption("--part", type=part, metavar="NUMBER/COUNT", help=what)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist's, which reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort cheap tests first, so that a broken helper is reported before the long tests that use it.

    Expensive files come last, the longest first, so that all workers end together. Also assign groups, which workers take as a
    whole: all tests of one algorithm, which share its compiled programs, or the rest of a file.
    """
    items.sort(key=expected_seconds)
    for item in items:
        algorithm = getattr(item, "callspec", None) and item.callspec.params.get("algorithm")
        item.add_marker(pytest.mark.xdist_group(algorithm if isinstance(algorithm, str) else item.path.stem))
    if (chosen := config.getoption("part")) is not None:
        groups = set(in_part(*chosen, [group_of(item) for item in items]))
        config.hook.pytest_deselected(items=[item for item in items if group_of(item) not in groups])
        items[:] = [item for item in items if group_of(item) in groups]


def pytest_collection_finish() -> None:
    """Exempt imported modules and collected tests from garbage collection."""
    gc.collect()
    gc.freeze()


def expected_seconds(item: pytest.Item) -> tuple[bool, float]:
    """Return the sort key of a test: cheap tests come first, then the ``expensive(seconds)`` ones, longest first."""
    marker = item.get_closest_marker("expensive")
    return (True, -float(marker.args[0])) if marker else (False, 0.0)


def group_of(item: pytest.Item) -> str:
    return str(next(item.iter_markers("xdist_group")).args[0])


def in_part(number: int, count: int, groups: Iterable[str]) -> list[str]:
    """Return every ``count``-th group. Long groups are neighbours in the order, so each part gets its share of them."""
    return [group for i, group in enumerate(dict.fromkeys(groups)) if i % count == number or group in IN_EACH_PART]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Refuse to run without groups: every worker would compile, and keep in memory, the programs of all algorithms."""
    if node.config.option.dist == "loadgroup" and not all("@" in id for id in ids):
        pytest.exit(f"pytest-xdist did not group the tests: it does not support pytest {pytest.__version__}", 4)


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Drop compiled programs in time: they need memory, and each has many mappings, where a process may have 65,530."""
    yield
    global resident
    if mappings() > MOST_MAPPINGS or resident_bytes() > resident + MOST_GROWTH:
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        resident = max(resident_bytes(), BASE_MEMORY)


def mappings() -> int:
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


def resident_bytes() -> int:
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * resource.getpagesize() if status.exists() else 0


@pytest.fixture
def hangups_heard() -> Iterator[None]:
    """Restore the default handling of SIGHUP for a test and the processes it starts: under ``nohup make test`` it is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of PPO with the seeds 4 and 2. Tests copy it before they damage it."""
    import jaxrl
    from tests.helpers.agents import cartpole

    folder = tmp_path_factory.mktemp("trained") / "run"
    jaxrl.run(cartpole("ppo"), 64, seeds=[4, 2], out=folder, quiet=True, tensorboard=False, eval_episodes=2)
    return folder


@pytest.fixture(scope="session")
def agent() -> Agent:
    """A small PPO agent on CartPole. All tests share its compiled programs."""
    from tests.helpers.agents import cartpole

    return cartpole("ppo")
