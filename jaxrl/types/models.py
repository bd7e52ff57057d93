"""Models: pure functions around a network."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from jaxrl.types.arrays import Array, Key, PyTree
from jaxrl.types.data import StepInput


class Model(NamedTuple):
    """A network as pure functions, independent of the library that defines it."""

    init: InitModelFn
    apply: ApplyFn
    """One step over a batch: inputs [B]."""
    unroll: ApplyFn
    """The same over time: inputs [T, B]. Encodes all T·B rows at once; only a core of gates takes one after the other."""
    initial_carry: InitialCarryFn
    train: TrainFn | None = None
    """Only in a memoryless model that learns statistics, such as the moments of batch normalisation. Then ``init`` returns
    ``Variables``, ``apply`` takes them in place of parameters, and its outputs use these statistics. Algorithms that learn no
    statistics refuse such a model."""


class Variables(NamedTuple):
    """Parameters of a model with ``train``, and the statistics that it learns. Only parameters have gradients."""

    params: PyTree
    statistics: PyTree


class InitModelFn(Protocol):
    def __call__(self, key: Key, inputs: StepInput, /) -> PyTree:
        """Return parameters, given example inputs of one row, [B]."""
        ...


class TrainFn(Protocol):
    def __call__(
        self, variables: Variables, inputs: StepInput, /, valid: Array, key: Key | None = None, axis_name: str | None = None
    ) -> tuple[Any, PyTree]:
        """Return ``(outputs, statistics)`` for learning from a batch, whose rows may influence each other: the outputs use the
        statistics of the batch, and the returned statistics, to be used next, have learnt from it.

        Args:
          inputs: [B].
          valid: bool[B], the rows that count. Others enter no statistic, and their outputs are ignored.
          key: as in ``ApplyFn``.
          axis_name: device axis over which the batch is divided. Statistics are those of all rows, the same on all devices.
        """
        ...


class ApplyFn(Protocol):
    def __call__(self, params: PyTree, carry: PyTree, inputs: StepInput, /, key: Key | None = None) -> tuple[PyTree, Any]:
        """Return ``(carry, outputs)``. The function resets the carry itself wherever ``inputs.is_first`` is true.

        Args:
          key: for random numbers that the network itself draws: noise in its weights, dropout, quantiles. Without a key it draws
            none. Algorithms pass it by keyword. A network without randomness may omit this argument; builders add it.
        """
        ...


class InitialCarryFn(Protocol):
    def __call__(self, batch_size: int, /) -> PyTree:
        """Return the recurrent state at the start of an episode, [B, ...]; () when memoryless."""
        ...
