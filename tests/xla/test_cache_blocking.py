"""Cache blocking: what is counted, and where work is split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxrl.xla.cache_blocking import LEAST_ROWS, bytes_of_products, cached_bytes, choice, is_a_part, parts_in_cache
from jaxrl.xla.processor import CORES, USUAL_BYTES, cache_to_fill

CACHED_BYTES = 1 << 21
WIDTH = 64
EACH = 4 * (8 + WIDTH)  # bytes per row of the product's result and of its gathered input


@pytest.fixture(autouse=True)
def two_mebibytes() -> Iterator[None]:
    """The same parts on every machine."""
    with choice(CACHED_BYTES):
        yield


def layer(params: Any, x: Any) -> Any:
    return jax.jit(lambda x: jnp.tanh(x @ params))(jnp.concatenate([x, x], -1))


def shapes(rows: int, width: int = WIDTH) -> Any:
    return jax.ShapeDtypeStruct((8, width), jnp.float32), jax.ShapeDtypeStruct((rows, 4), jnp.float32)


def parts(rows: int, width: int = WIDTH) -> int:
    return parts_in_cache(layer, *shapes(rows, width), rows=rows)


FOUR = 4 * (CACHED_BYTES // EACH + 1)
"""A few more rows than four caches hold."""


def test_rows_are_cut_to_what_a_cache_holds() -> None:
    assert bytes_of_products(layer, *shapes(100)) == 100 * EACH
    assert [parts(FOUR), parts(2 * FOUR), parts(3 * FOUR)] == [4, 8, 8]
    assert parts(FOUR - 8) == 1  # two parts do not pay
    assert parts(FOUR + 2) == 1  # not divisible by four
    assert parts(LEAST_ROWS - 1, 100_000) == 1


def test_what_is_work_enough_by_itself() -> None:
    enough = CACHED_BYTES // 8 // EACH + 1
    parts = [is_a_part(layer, *shapes(rows, width), rows=rows) for rows, width in ((enough, 64), (enough - 1, 64), (63, 100_000))]
    assert parts == [True, False, False]


def test_a_choice_holds_in_its_block_alone() -> None:
    with choice(2 * CACHED_BYTES):
        assert parts(2 * FOUR) == 4
        with choice(None):
            assert cached_bytes() == 2 * CACHED_BYTES
    with choice(0):
        assert parts(2 * FOUR) == 1 and not is_a_part(layer, *shapes(FOUR), rows=FOUR)
    assert parts(2 * FOUR) == 8


def machine(root: Path, vendor: str | None, sizes: dict[str, str]) -> Path:
    """Write what Linux tells of a processor into a folder."""
    (root / "proc").mkdir()
    if vendor is not None:
        (root / "proc/cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu\n")
    for number, (level, size) in enumerate(sizes.items()):
        index = root / f"sys/devices/system/cpu/cpu0/cache/index{number}"
        index.mkdir(parents=True)
        (index / "level").write_text(f"{level}\n")
        (index / "size").write_text(f"{size}\n")
    return root


@pytest.mark.parametrize(
    ("vendor", "sizes", "expected"),
    [
        ("AuthenticAMD", {"1": "32K", "2": "512K", "3": "32768K"}, CORES * 512 * 1024),
        ("AuthenticAMD", {}, CORES * USUAL_BYTES),
        ("AuthenticAMD", {"2": "?"}, CORES * USUAL_BYTES),
        ("GenuineIntel", {"2": "2048K"}, 0),
        (None, {}, 0),  # not Linux
    ],
)
def test_the_processor_decides(tmp_path: Path, vendor: str | None, sizes: dict[str, str], expected: int) -> None:
    assert cache_to_fill(machine(tmp_path, vendor, sizes)) == expected
