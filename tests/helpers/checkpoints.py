"""States for tests of checkpoints, and comparisons to the bit."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl.runtime.checkpoint import manifest
from jaxrl.runtime.checkpoint.manifest import CheckpointWarning
from jaxrl.runtime.checkpoint.restore import restore


class Learner(NamedTuple):
    params: Any
    opt_state: Any
    statistics: Any
    key: Any


NANS = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000], np.uint32).view(np.float32)
"""Quiet and signalling NaNs with payloads, and -0.0."""


def tiny(value: float = 0.0, units: int = 3) -> Learner:
    params = {"Dense_0": {"kernel": jnp.full((2, units), value, jnp.float32), "bias": jnp.zeros(units)}}
    return Learner(params, optax.adam(1e-3).init(params), (), jax.random.key(int(value)))


def odd() -> dict[str, Any]:
    return {
        "learner": tiny(),
        "nan": jnp.asarray(NANS),
        "minus_zeros": jnp.full((3,), -0.0),
        "minus_zero": jnp.asarray(-0.0),
        "half": jnp.array([1, -0.0, jnp.nan], jnp.float16),
        "bfloat": jnp.array([1, -0.0, jnp.inf], jnp.bfloat16),
        "int": jnp.array([-(2**31), 2**31 - 1], jnp.int32),
        "byte": jnp.arange(256, dtype=jnp.uint8),
        "bool": jnp.array([[True], [False]]),
        "complex": jnp.array([1 - 0.0j]),
        "keys": jax.random.split(jax.random.key(1), (2, 3)),
        "no_keys": jax.random.split(jax.random.key(1), 3)[:0],
        "rbg": jax.random.key(7, impl="rbg"),
        "no_rows": jnp.zeros((0, 4), jnp.int16),
        "nothing": (None, (), {}),
    }


HOST = {
    "array": np.arange(6.0).reshape(2, 3).T,  # f64 and not contiguous
    "no_rows": np.zeros((3, 0), np.int64),
    "i64": np.array(2**62),
    "flag": np.array(True),
}


def assert_bit_equal(got: Any, wanted: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        name = jax.tree_util.keystr(path)
        assert type(a) is type(b), name
        if isinstance(b, jax.Array):
            assert (a.committed, a.sharding) == (b.committed, b.sharding), name
        if isinstance(b, jax.Array) and jax.dtypes.issubdtype(b.dtype, jax.dtypes.prng_key):
            assert jax.random.key_impl(a) == jax.random.key_impl(b), name
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes()), name


def files_of(step: Path) -> list[Path]:
    return sorted(path for path in step.rglob("*") if path.is_file())


def assert_falls_back(folder: Path, *named: str) -> None:
    """Assert that step 1 is used, after one warning that contains all of ``named``."""
    with pytest.warns(CheckpointWarning) as said:
        state, info = restore(folder, tiny())
    assert info.step == 1
    assert_bit_equal(state, tiny(1))
    assert len(said) == 1 and said[0].filename == __file__
    for name in ("step 2", "Using step 1", *named):
        assert name in str(said[0].message)


def rewrite(step: Path, **changes: Any) -> None:
    file = step / "manifest.json"
    file.write_bytes(manifest.render({**json.loads(file.read_text()), **changes}))
