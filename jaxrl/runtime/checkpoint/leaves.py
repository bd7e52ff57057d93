"""A state as orbax can hold it: a flat dict of arrays, and a description of every leaf.

orbax fails on zero-size arrays, NumPy scalars and empty trees, and casts silently where dtypes differ. So leaves are numbered in
flatten order, keys become their data, zero-size leaves are left out and made anew, and structures are compared before orbax runs.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import PyTree

FILLER = "filler"
"""One more entry, so that the dict is never empty."""

PYTHON_NUMBERS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
"""Most special first: a bool is an int."""


class LeafSpec(NamedTuple):
    """One leaf of a state."""

    path: str
    """As ``jax.tree_util.keystr`` writes it: ``.learner.params['Dense_0']['kernel']``; empty when the state is one leaf."""
    shape: tuple[int, ...]
    """Of typed keys: without the axis of their data."""
    dtype: str
    """``float32``, ``bfloat16``, ...; ``key<fry>`` for typed keys."""
    kind: str
    """``jax``, ``numpy`` (an array), ``scalar`` (of NumPy) or ``python`` (a number); ``abstract``, in targets, leaves it open."""

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def is_key(self) -> bool:
        return self.dtype.startswith("key<")

    @property
    def is_stored(self) -> bool:
        return math.prod(self.shape) > 0


# ---------------------------------------------------------------------------------------------------------------------- saving


def describe(state: PyTree) -> list[LeafSpec]:
    """One LeafSpec per leaf, in flatten order.

    Raises:
      TypeError: a leaf is not an array, a typed key or a number; the message names its path.
    """
    return [_describe_leaf(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]


def encode(state: PyTree) -> tuple[list[LeafSpec], dict[str, Any]]:
    """The description of a state, and the arrays to store.

    Raises:
      TypeError: a leaf is not concrete data; the message names its path.
      ValueError: a leaf was donated, or is a Python integer beyond 64 bits.
    """
    structure, arrays = describe(state), {FILLER: np.zeros((), np.int32)}
    for index, (spec, leaf) in enumerate(zip(structure, jax.tree.leaves(state), strict=True)):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"state{spec.path} is a jax.ShapeDtypeStruct: only a state with values can be saved")
        if spec.kind == "jax" and leaf.is_deleted():
            raise ValueError(
                f"state{spec.path} was donated to a jitted function and holds no data any more: save the state that this"
                " function returned"
            )
        if spec.is_stored:
            arrays[_name(index)] = _to_array(spec, leaf)
    return structure, arrays


def _describe_leaf(path: str, leaf: Any) -> LeafSpec:
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(f"state{path} is traced: checkpoints are saved and restored outside jit, vmap and scan")
    kind = _kind(leaf)
    if kind == "python":
        number = next(number for python, number in PYTHON_NUMBERS.items() if isinstance(leaf, python))
        return LeafSpec(path, (), np.dtype(number).name, kind)
    if kind is None or not (_is_key(leaf) or leaf.dtype == np.bool_ or jnp.issubdtype(leaf.dtype, np.number)):
        what = f"a {type(leaf).__name__}" if kind is None else f"an array of {leaf.dtype}"
        raise TypeError(f"state{path} is {what} ({leaf!r:.60}): a checkpoint holds arrays, typed PRNG keys and numbers only")
    return LeafSpec(path, tuple(leaf.shape), str(leaf.dtype) if _is_key(leaf) else leaf.dtype.name, kind)


def _kind(leaf: Any) -> str | None:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return "abstract" if leaf.sharding is None else "jax"
    if isinstance(leaf, jax.Array):
        return "jax"
    if isinstance(leaf, np.ndarray):
        return "numpy"
    if isinstance(leaf, np.generic):
        return "scalar"
    return "python" if isinstance(leaf, tuple(PYTHON_NUMBERS)) else None


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(index: int) -> str:
    return f"{index:06d}"


def _to_array(spec: LeafSpec, leaf: Any) -> Any:
    if spec.is_key:
        return jax.random.key_data(leaf)
    if spec.kind == "jax":
        return leaf
    try:
        return np.array(leaf, np.dtype(spec.dtype), order="C")  # a copy: a host environment may go on writing to its arrays
    except OverflowError:
        raise ValueError(f"state{spec.path} is {leaf}: an integer in a checkpoint has 64 bits at most") from None


# ------------------------------------------------------------------------------------------------------------------- restoring


def first_difference(saved: list[LeafSpec], wanted: list[LeafSpec]) -> str | None:
    """Where a checkpoint and a target differ first, said from the checkpoint's side; None when the checkpoint fits."""
    saved_paths, wanted_paths = {leaf.path for leaf in saved}, {leaf.path for leaf in wanted}
    for have, want in itertools.zip_longest(saved, wanted):
        if have and want and have.path == want.path:
            if not _fits(have, want):
                return f"at state{want.path} it has {have}, and the agent wants {want}"
        elif want and want.path not in saved_paths:
            return f"it has nothing at state{want.path}, where the agent wants {want}"
        elif have and have.path not in wanted_paths:
            return f"at state{have.path} it has {have}, where the agent wants nothing"
        else:
            return f"it has state{have.path} where the agent wants state{want.path}: another order"
    return None


def _fits(have: LeafSpec, want: LeafSpec) -> bool:
    if have.shape != want.shape:
        return False
    if want.kind == "abstract" and have.kind != "jax" and not have.is_key:
        return jax.dtypes.canonicalize_dtype(have.dtype).name == want.dtype  # eval_shape shows 64-bit host data as JAX takes it
    return have.dtype == want.dtype


def restore_targets(saved: list[LeafSpec], target: PyTree) -> dict[str, Any]:
    """What to ask of orbax: arrays on the sharding of the target's leaf where it has one, NumPy arrays elsewhere."""
    targets: dict[str, Any] = {FILLER: np.zeros((), np.int32)}
    for index, (spec, leaf) in enumerate(zip(saved, jax.tree.leaves(target), strict=True)):
        if spec.is_stored:
            data = _data_of(spec, leaf)
            _, sharding = _placement(spec, leaf)
            if sharding is not None:
                targets[_name(index)] = jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding)
            else:
                targets[_name(index)] = np.broadcast_to(np.zeros((), data.dtype), data.shape)  # of that shape, without its memory
    return targets


KEY_WORDS = {"key<fry>": 2, "key<rbg>": 4, "key<urbg>": 4}
"""u32 words per key of JAX's generators."""


def stored(saved: list[LeafSpec]) -> list[tuple[str, LeafSpec]]:
    """(name of the array, leaf) of every leaf that has data."""
    return [(_name(index), spec) for index, spec in enumerate(saved) if spec.is_stored]


def host_targets(saved: list[LeafSpec]) -> dict[str, Any]:
    """What to ask of orbax to get everything as NumPy arrays, keys as their data."""
    targets: dict[str, Any] = {FILLER: np.zeros((), np.int32)}
    for name, spec in stored(saved):
        shape, dtype = ((*spec.shape, KEY_WORDS[spec.dtype]), "uint32") if spec.is_key else (spec.shape, spec.dtype)
        targets[name] = np.broadcast_to(np.zeros((), np.dtype(dtype)), shape)  # of that shape, without its memory
    return targets


def decode(saved: list[LeafSpec], arrays: dict[str, Any], target: PyTree) -> PyTree:
    """The state: the values in ``arrays``, in the structure, kinds and places of ``target``."""
    leaves = []
    for index, (spec, leaf) in enumerate(zip(saved, jax.tree.leaves(target), strict=True)):
        data = _data_of(spec, leaf)
        value = arrays[_name(index)] if spec.is_stored else np.zeros(data.shape, data.dtype)
        leaves.append(_to_leaf(spec, leaf, value))
    return jax.tree.unflatten(jax.tree.structure(target), leaves)


def _placement(spec: LeafSpec, leaf: Any) -> tuple[str, jax.sharding.Sharding | None]:
    """The kind of leaf to restore, and where to: None leaves a jax.Array uncommitted, as ``init`` makes it."""
    kind = _kind(leaf)
    if kind == "jax":
        return kind, leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) or leaf.committed else None
    return (spec.kind if kind == "abstract" else str(kind)), None


def _data_of(spec: LeafSpec, leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype as stored: those of the key data for a key."""
    if spec.is_key:
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(spec.shape, leaf.dtype))
    return jax.ShapeDtypeStruct(spec.shape, np.dtype(spec.dtype))


def _to_leaf(spec: LeafSpec, leaf: Any, value: Any) -> Any:
    kind, sharding = _placement(spec, leaf)
    if kind == "python":
        return value.item()
    if kind == "scalar":
        return value[()]
    if kind == "numpy":
        return value
    array = jnp.array(value) if sharding is None else jax.device_put(value, sharding)
    if spec.is_key:
        array = jax.random.wrap_key_data(array, impl=_key_impl(leaf))
        return array if sharding is None else jax.device_put(array, sharding)
    if array.dtype != spec.dtype:
        raise ValueError(f"state{spec.path} is {spec}, which JAX holds in 64-bit mode only: set jax_enable_x64")
    return array


def _key_impl(leaf: Any) -> Any:
    """The generator behind a typed key or its ShapeDtypeStruct."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct((), leaf.dtype))
    return found[0]
