"""Bytes that a compiled program's kernels read and write, from its text. Standard library only.

A kernel reads its operands and writes its result. Of an operand from which it only takes slices or gathers rows, it reads
those; of an array that it updates in place, it writes the updated part. Caches are ignored, so this is what a device moves whose
arrays do not fit into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.hlo import NO_KERNEL, Instruction, Program, bytes_of

SLICES = {"dynamic-slice", "gather", "slice"}
"""Opcodes that read as much of their first operand as their result has."""
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Opcodes that write into their first operand -> the position of the operand with what they write."""
NAMES = {"bitcast", "get-tuple-element", "tuple"}
"""Opcodes that give other names to existing arrays."""


class Traffic:
    """The bytes of a program's computations."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[str, float] = {}

    def of(self, computation: str) -> float:
        """Return the bytes of one run of a computation, including its loops and calls.

        A loop of unknown length counts as one trip, and a conditional as its cheapest branch, as kernels are counted.
        """
        if computation not in self._known:
            body = self._program.own_instructions(computation)
            named = {x.name: x for x in body}
            self._known[computation] = sum(self._moved(x, named) for x in body)
        return self._known[computation]

    def _moved(self, x: Instruction, named: Mapping[str, Instruction]) -> float:
        if x.opcode in NO_KERNEL:
            return 0
        if x.opcode == "while":
            return (x.trips or 1) * self.of(x.called[1])
        if x.opcode == "conditional":
            return min(map(self.of, x.called))
        if x.opcode == "call" and not x.is_one_kernel:
            return self.of(x.called[0])
        operands = [bytes_of(named[name].shape) for name in x.operands]
        if x.opcode == "fusion":
            return self._of_fusion(x, operands)
        if x.opcode in SLICES:
            return 2 * bytes_of(x.shape) + sum(operands[1:])
        if x.opcode in UPDATES:
            return 2 * operands[UPDATES[x.opcode]]
        return sum(operands) + bytes_of(x.shape)

    def _of_fusion(self, fusion: Instruction, operands: Sequence[int]) -> float:
        """Return the bytes of a fusion, whose computation says how it uses its operands."""
        body = self._program.own_instructions(fusion.called[0])
        named, users = {x.name: x for x in body}, dict[str, list[tuple[Instruction, int]]]()
        for x in body:
            for position, operand in enumerate(x.operands):
                users.setdefault(operand, []).append((x, position))
        read = sum(_read(x, users, operands[x.parameter]) for x in body if x.parameter is not None)
        return read + _written(body[-1], named)


def _read(x: Instruction, users: Mapping[str, Sequence[tuple[Instruction, int]]], size: int) -> int:
    """Return how much a fusion reads of the array ``x``, which has ``size`` bytes."""
    total = 0
    for user, position in users.get(x.name, ()):
        if user.opcode in NAMES:
            total += _read(user, users, size)
        elif position == 0 and user.opcode in SLICES:
            total += bytes_of(user.shape)
        elif position != 0 or user.opcode not in UPDATES:
            return size
    return min(total, size)


def _written(root: Instruction, named: Mapping[str, Instruction]) -> int:
    """Return how much a fusion writes."""
    if root.opcode in NAMES:
        return sum(_written(named[name], named) for name in root.operands)
    if root.opcode in UPDATES:
        return bytes_of(named[root.operands[UPDATES[root.opcode]]].shape)
    return bytes_of(root.shape)
