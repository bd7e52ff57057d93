"""Number of kernels that a compiled training program starts, from its text (``compiled.as_text()``). Standard library only.

Every instruction of the scheduled program that computes or copies is a kernel: a fusion, a product, a sort, a copy. XLA starts
them one by one, and for small networks starting them costs more than their work. Times vary from run to run; these counts do not.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

NO_KERNEL = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
    *("add-dependency", "opt-barrier", "domain", "get-dimension-size"),
}
"""Opcodes that only name existing values, or values known before the program runs."""

ROLLOUT, ROW, UPDATE, DESCEND = "rollout", "row", "update", "descend"
"""Scopes (``jax.named_scope``) of ``Agent.step``'s two halves, and of one step of each: a row, and a gradient step."""


class Instruction(NamedTuple):
    name: str
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    """Called computations: condition and body of a loop, branches of a conditional, the computation of a call or a fusion."""
    trips: int | None
    """Trip count of a loop, if the compiler knows it."""
    path: str
    """Scopes and transformations that it comes from, "jit(f)/while/body/update/…"; "" if the compiler lost them."""
    is_one_kernel: bool
    """True for a call that XLA compiles as one kernel. On a CPU it does so with small loops, such as those of random bits."""
    shape: str
    """Type and shape of its result, "f32[9157]{0}"; several in parentheses."""
    parameter: int | None = None
    """Position of a parameter among those of its computation; None for other opcodes."""

    def within(self, scope: str) -> bool:
        return re.search(rf"(^|[/(]){scope}[/)]", self.path) is not None


class Counts(NamedTuple):
    """Kernels that a program starts, per device."""

    row: float
    """For a row of the rollout of all environments and seeds, if no episode ended before it."""
    update: float
    """For a gradient step, with its share of the work once per epoch."""
    iteration: float
    """For a rollout and all its updates."""


_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)")
_OPCODE = re.compile(r"(?:^|[\s)}\]]) ?(?P<opcode>[a-z][a-z\-]*\d*)\((?P<operands>[^()]*)\)")
_CALLED = re.compile(
    r"(?:condition|body|calls|to_apply|branch_computations|true_computation|false_computation)=(\{[^}]*\}|[%\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"[a-z]+(\d+)\[([\d,]*)\]")
_PATH = re.compile(r'op_name="([^"]*)"')


class Program:
    """A compiled program, parsed."""

    def __init__(self, text: str) -> None:
        self._computations: dict[str, list[Instruction]] = {}
        body: list[Instruction] = []
        for line in text.splitlines():
            if start := _COMPUTATION.match(line):
                body = self._computations[start["name"]] = []
                if start["entry"]:
                    self._entry = start["name"]
            elif found := _INSTRUCTION.match(line):
                body.append(_instruction(found["name"], found["rest"]))
        if not hasattr(self, "_entry"):
            raise ValueError("not the text of a compiled program: it has no ENTRY")

    def counts(self) -> Counts:
        """Count the kernels of a program compiled by ``FusedDriver.iterate``, which has one loop over iterations.

        Raises:
          ValueError: There is no such loop, or no kernel of it is in the scope of the rollout or of the update.
        """
        loop = self.loop_over_iterations()
        iteration = loop.called[1]
        row, update = self._of_a_step(iteration, ROLLOUT, ROW), self._of_a_step(iteration, UPDATE, DESCEND)
        return Counts(row, update, self.started(loop))

    def loop_over_iterations(self) -> Instruction:
        """Return the loop over iterations of a program compiled by ``FusedDriver.iterate``.

        Raises:
          ValueError: The program has no loop of unknown length, or several.
        """
        loops = [x for x in self._instructions(self._entry) if x.opcode == "while" and x.trips is None]
        if len(loops) != 1:
            raise ValueError(f"the program has {len(loops)} loops of unknown length; expected one, over iterations")
        return loops[0]

    def computations(self) -> tuple[str, ...]:
        """Return the names of all computations: the program itself, bodies of loops, computations of fusions."""
        return tuple(self._computations)

    def own_instructions(self, computation: str) -> list[Instruction]:
        """Return a computation's instructions, in the order of the program's text."""
        return self._computations[computation]

    def all_kernels(self) -> float:
        """Count the kernels that one run of the program starts."""
        return self.kernels(self._entry)

    def kernels(self, computation: str) -> float:
        """Count the kernels that one run of a computation starts, including its loops and calls."""
        return sum(map(self.started, self._computations[computation]))

    def all_reduces(self, computation: str | None = None) -> Counter[int]:
        """Count the all-reduces of each size, in bytes, in a run of the program or of one computation.

        A loop of unknown length counts as one trip.
        """
        found = Counter[int]()
        for x in self._computations[self._entry if computation is None else computation]:
            if x.opcode in ("all-reduce", "all-reduce-start"):
                found[bytes_of(x.shape)] += 1
            ways: list[Counter[int]] = [self.all_reduces(name) for name in x.called if not x.opcode.startswith("all-reduce")]
            if x.opcode == "while":
                ways = [Counter({size: (x.trips or 1) * times for size, times in ways[1].items()})]
            most = max(ways, key=Counter.total, default=Counter[int]())  # over branches
            found += most
        return found

    def started(self, instruction: Instruction) -> float:
        """Count the kernels that one instruction starts."""
        opcode, called = instruction.opcode, instruction.called
        if opcode in NO_KERNEL:
            return 0
        if opcode == "while":  # a loop of known length runs without its condition
            return instruction.trips * self.kernels(called[1]) if instruction.trips else sum(map(self.kernels, called))
        if opcode == "conditional":  # the usual branch, without a reset or a wrap-around, does less
            return min(map(self.kernels, called))
        if opcode == "call" and not instruction.is_one_kernel:
            return self.kernels(called[0])
        return 1

    def _instructions(self, computation: str) -> Iterator[Instruction]:
        """Yield a computation's instructions and those of its plain calls."""
        for instruction in self._computations[computation]:
            yield instruction
            if instruction.opcode == "call" and not instruction.is_one_kernel:
                yield from self._instructions(instruction.called[0])

    # --------------------------------------------------------------------------------------------------------------- halves

    def _of_a_step(self, iteration: str, half: str, step: str) -> float:
        """Count the kernels of one step of a half of an iteration: the loop's body, and its share of the enclosing loops.

        The compiler unrolls a loop of one step. Then all kernels of the half count.
        """
        loops = list(self._loops_around(iteration, half, step))
        if not loops:
            return self._in_scope(iteration, half)
        each = self.kernels(loops[-1].called[1])
        for outer, inner in itertools.pairwise(loops):
            each += (self.kernels(outer.called[1]) - self.started(inner)) / (inner.trips or 1)
        return each

    def _loops_around(self, computation: str, half: str, step: str) -> Iterator[Instruction]:
        """Yield the loops of a half that repeat its step, outermost first."""
        for loop in self._instructions(computation):
            repeats = loop.opcode == "while" and loop.within(half) and not loop.within(step)
            if repeats and self._holds(loop.called[1], step):
                yield loop
                yield from self._loops_around(loop.called[1], half, step)
                return

    def _holds(self, computation: str, step: str) -> bool:
        found = self._instructions(computation)
        return any(x.within(step) or (x.opcode == "while" and self._holds(x.called[1], step)) for x in found)

    def _in_scope(self, computation: str, half: str) -> float:
        """Count the kernels of a computation that belong to one half."""
        scopes: dict[str, str | None] = {}
        total = 0.0
        for x in self._instructions(computation):
            scope = next((name for name in (ROLLOUT, UPDATE) if x.within(name)), None)
            if not x.path and x.opcode != "copy":  # the compiler lost its path: it belongs to the scope of its operands
                scope = next((scopes[name] for name in x.operands if scopes.get(name)), None)
            scopes[x.name] = scope
            total += self.started(x) if scope == half else 0
        if half not in scopes.values():
            raise ValueError(f"no kernel of an iteration is in the scope {half!r}")
        return total


def bytes_of(shape: str) -> int:
    """Return the bytes of an array of this type and shape, or of several: 36,628 for "f32[9157]{0}"."""
    found = _ARRAY.findall(shape)
    return sum(math.prod([int(size) for size in sizes.split(",") if size]) * int(bits) // 8 for bits, sizes in found)


def _instruction(name: str, rest: str) -> Instruction:
    found = _OPCODE.search(rest)
    if found is None:
        raise ValueError(f"cannot parse this instruction of a compiled program: {name} = {rest[:200]}")
    after = rest[found.end() :]
    called = tuple(re.findall(r"[\w.\-]+", " ".join(_CALLED.findall(after))))
    trips, path = _TRIPS.search(after), _PATH.search(after)
    return Instruction(
        name=name,
        opcode=found["opcode"],
        operands=tuple(re.findall(r"%([\w.\-]+)", found["operands"])),
        called=called,
        trips=int(trips[1]) if trips else None,
        path=path[1] if path else "",
        is_one_kernel='xla_cpu_small_call="true"' in after,
        shape=rest[: found.start("opcode")].strip(),
        parameter=int(found["operands"]) if found["opcode"] == "parameter" else None,
    )
