"""Learner states: the fields that all algorithms have, declared once and inherited."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, Self, dataclass_transform

import jax

from jaxrl.types import Array, Key, PyTree


@dataclass_transform(frozen_default=True)
class Struct:
    """Base class of frozen dataclasses that are pytrees, with the methods of a NamedTuple. Unlike those, they inherit fields."""

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        made: Any = dataclasses.dataclass(frozen=True)(cls)
        cls._fields = tuple(made.__dataclass_fields__)
        jax.tree_util.register_dataclass(made, data_fields=cls._fields, meta_fields=())

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def _replace(self, **fields: Any) -> Self:
        return dataclasses.replace(self, **fields)  # type: ignore[type-var]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._asdict().values())


class Learner(Struct):
    """Learner state of an algorithm with no further state. Those of other algorithms inherit its fields."""

    params: PyTree
    opt_state: PyTree
    hyperparams: Any
    statistics: PyTree
    key: Key
    """Constant. Update n draws its random numbers from (key, n)."""
    version: Array


class ReplayLearner(Learner):
    """Learner state of an algorithm with replay and without target networks."""

    replay: Any


class TargetLearner(Learner):
    """Learner state of an algorithm with target networks and replay."""

    target_params: PyTree
    replay: Any
