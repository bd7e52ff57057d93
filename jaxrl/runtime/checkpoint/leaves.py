"""Conversion of a state into a form that orbax can store: a flat dict of arrays and a description of every leaf.

orbax fails on zero-size arrays and empty trees, and casts silently where dtypes differ. Therefore leaves are numbered in flatten
order, PRNG keys are stored as their data, zero-size leaves are omitted and recreated, and structures are compared first.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.types import PyTree
from jaxrl.xla.private_jax import is_traced

FILLER = "filler"
"""Name of an extra entry, which keeps the dict from being empty."""

GENERATORS = {"key<fry>": ("threefry2x32", 2), "key<rbg>": ("rbg", 4), "key<urbg>": ("unsafe_rbg", 4)}
"""JAX's PRNG implementations by the dtype of their keys: (name, u32 words per key)."""


class LeafSpec(NamedTuple):
    """One leaf of a state."""

    path: str
    """As written by ``jax.tree_util.keystr``: ``.learner.params['Dense_0']['kernel']``; empty if the state is a single leaf."""
    shape: tuple[int, ...]
    """For typed keys, without the axis of their data."""
    dtype: str
    """``float32``, ``bfloat16``, ...; ``key<fry>`` for typed keys."""

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def is_key(self) -> bool:
        return self.dtype in GENERATORS

    @property
    def is_stored(self) -> bool:
        return math.prod(self.shape) > 0

    @property
    def data(self) -> np.ndarray:
        """Zeros of the stored shape and dtype, which take no memory; for keys, the shape and dtype of their data."""
        shape, dtype = ((*self.shape, GENERATORS[self.dtype][1]), "uint32") if self.is_key else (self.shape, self.dtype)
        return np.broadcast_to(np.zeros((), np.dtype(dtype)), shape)


def is_dtype(name: Any) -> bool:
    """Return whether a ``LeafSpec`` may have this dtype."""
    try:
        return name in GENERATORS or (np.dtype(name).name == name and _holds_numbers(np.dtype(name)))
    except TypeError:
        return False


def _holds_numbers(dtype: Any) -> bool:
    return bool(dtype == np.bool_ or jnp.issubdtype(dtype, np.number))


def describe(state: PyTree) -> list[LeafSpec]:
    """Return one LeafSpec per leaf, in flatten order. Raise TypeError for a leaf that is not an array or a typed key."""
    return [_describe_leaf(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)]


def encode(state: PyTree) -> tuple[list[LeafSpec], dict[str, Any]]:
    """Return the description of a state, and the arrays to store. Raise an error that names a leaf without data."""
    structure, arrays = describe(state), {FILLER: np.zeros((), np.int32)}
    for index, (spec, leaf) in enumerate(zip(structure, jax.tree.leaves(state), strict=True)):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise TypeError(f"state{spec.path} is a jax.ShapeDtypeStruct, which has no values: pass a state that holds arrays")
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise ValueError(
                f"state{spec.path} was donated to a jitted function and no longer holds data: save the state that this"
                " function returned"
            )
        if spec.is_key:
            leaf = jax.random.key_data(leaf)
        elif isinstance(leaf, np.ndarray):
            leaf = np.array(leaf, order="C")  # a copy: a host environment may continue to write to its arrays
        if spec.is_stored:
            arrays[_name(index)] = leaf
    return structure, arrays


def _describe_leaf(path: str, leaf: Any) -> LeafSpec:
    if is_traced(leaf):
        raise TypeError(f"state{path} is traced: checkpoints are saved and restored outside jit, vmap and scan")
    is_array = isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct)
    if is_array and str(leaf.dtype) in GENERATORS:
        return LeafSpec(path, tuple(leaf.shape), str(leaf.dtype))
    if is_array and _holds_numbers(leaf.dtype):
        return LeafSpec(path, tuple(leaf.shape), leaf.dtype.name)
    kind = "array" if is_array else type(leaf).__name__
    description = f"a{'n' * (kind[0] in 'aeiou')} {kind}" + (f" of {leaf.dtype}" if is_array else "")
    fix = ": jnp.asarray makes an array of a number" if isinstance(leaf, bool | int | float | complex | np.generic) else ""
    raise TypeError(f"state{path} is {description} ({leaf!r:.60}): a checkpoint holds arrays and typed PRNG keys only{fix}")


def _name(index: int) -> str:
    return f"{index:06d}"


def first_difference(saved: list[LeafSpec], wanted: list[LeafSpec]) -> str | None:
    """Describe the first difference between a checkpoint and a target, with the checkpoint as "it"; None if there is none."""
    saved_paths, wanted_paths = {leaf.path for leaf in saved}, {leaf.path for leaf in wanted}
    for have, want in itertools.zip_longest(saved, wanted):
        if have and want and have.path == want.path:
            if have != want:
                return f"at state{want.path} it has {have}, but the agent expects {want}"
        elif want and want.path not in saved_paths:
            return f"it has nothing at state{want.path}, where the agent expects {want}"
        elif have and have.path not in wanted_paths:
            return f"at state{have.path} it has {have}, where the agent expects nothing"
        else:
            return f"it has state{have.path} where the agent expects state{want.path}: the leaves are in a different order"
    return None


def other_seeds(saved: list[LeafSpec], wanted: list[LeafSpec]) -> str | None:
    """Describe the difference between a checkpoint and a target that differ only in the first axis of every leaf, [num_seeds].

    One of the two lacks that axis, or its lengths differ. None if more than this differs.
    """
    if [(leaf.path, leaf.dtype) for leaf in saved] != [(leaf.path, leaf.dtype) for leaf in wanted]:
        return None
    there, here = [leaf.shape for leaf in saved], [leaf.shape for leaf in wanted]
    single_target = "target=jax.eval_shape(agent.init, jax.random.key(0))"
    if (number := _first_axis(there, here)) is not None:
        return (
            f"holds the states of {number} seeds along a first axis, which the target lacks: restore all of them with "
            f"{_all(number)}; jax.tree.map(lambda x: x[0], states) then gives the first"
        )
    if (number := _first_axis(here, there)) is not None:
        return f"holds a single state, but the target has a first axis of {number} seeds: restore it with {single_target}"
    rests = [shape[1:] for shape in there]
    number, others = _first_axis(there, rests), _first_axis(here, rests)
    if number is not None and others is not None and number != others:
        return f"holds the states of {number} seeds, but the target has {others}: restore all of them with {_all(number)}"
    return None


def _all(number: int) -> str:
    return f"target=jax.eval_shape(jax.vmap(agent.init), jax.random.split(jax.random.key(0), {number}))"


def _first_axis(shapes: list[tuple[int, ...]], without: list[tuple[int, ...]]) -> int | None:
    """Return the length of the axis that all ``shapes`` have in front of those in ``without``; None if there is no such axis."""
    if not all(shape and shape[1:] == rest for shape, rest in zip(shapes, without, strict=True)):
        return None
    lengths = {shape[0] for shape in shapes}
    return lengths.pop() if len(lengths) == 1 and () in without else None


def stored(saved: list[LeafSpec]) -> list[tuple[str, LeafSpec]]:
    """Return (name of the array, leaf) for every leaf that has data."""
    return [(_name(index), spec) for index, spec in enumerate(saved) if spec.is_stored]


def restore_targets(saved: list[LeafSpec], target: PyTree = None) -> dict[str, Any]:
    """Build orbax's restore targets: arrays with the sharding of the target's leaf if it has one, else NumPy arrays."""
    leaves = [None] * len(saved) if target is None else jax.tree.leaves(target)
    targets: dict[str, Any] = {FILLER: np.zeros((), np.int32)}
    for index, (spec, leaf) in enumerate(zip(saved, leaves, strict=True)):
        if spec.is_stored:
            data, sharding = spec.data, _sharding(leaf)
            targets[_name(index)] = jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=sharding) if sharding else data
    return targets


def decode(saved: list[LeafSpec], arrays: dict[str, Any], target: PyTree) -> PyTree:
    """Rebuild the state: the values of ``arrays``, with the structure, array types and devices of ``target``."""
    leaves, structure = jax.tree.flatten(target)
    values = [arrays[_name(index)] if spec.is_stored else spec.data for index, spec in enumerate(saved)]
    return structure.unflatten(_as_in_target(*each) for each in zip(saved, values, leaves, strict=True))


def _sharding(leaf: Any) -> jax.sharding.Sharding | None:
    """Return the sharding to restore to; None for the host, or for an uncommitted jax.Array such as ``init`` returns."""
    if isinstance(leaf, jax.ShapeDtypeStruct) or (isinstance(leaf, jax.Array) and leaf.committed):
        return leaf.sharding
    return None


def _as_in_target(spec: LeafSpec, value: Any, leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return value if spec.is_stored else value.copy()
    sharding = _sharding(leaf)
    # jnp.array would copy a NumPy array twice, and memory shared with a NumPy array could not be donated.
    array = jax.device_put(value, may_alias=False) if sharding is None else jax.device_put(value, sharding)
    if spec.is_key:
        keys = jax.random.wrap_key_data(array, impl=GENERATORS[spec.dtype][0])
        # Keys are placed where their data are; across several processes, JAX cannot place keys itself.
        is_there = sharding is None or keys.sharding.is_equivalent_to(sharding, keys.ndim)
        return keys if is_there else jax.device_put(keys, sharding)
    if array.dtype != spec.dtype:
        raise ValueError(f"state{spec.path} is {spec}, which JAX supports in 64-bit mode only: set jax_enable_x64")
    return array
