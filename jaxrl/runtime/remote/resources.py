"""CPUs, GPUs and memory that remote objects ask for. Does not import jax."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from jaxrl.envs.subprocess.descendants import PROCESSES
from jaxrl.runtime.remote.errors import NotEnough
from jaxrl.runtime.system.gpus import count_gpus, gpus_excluded
from jaxrl.runtime.system.memory import show_bytes
from jaxrl.settings.aliases import shortened
from jaxrl.settings.validation import Range

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}

PAGE = os.sysconf("SC_PAGE_SIZE")

WEIGH = 1.0
"""Seconds between two checks of the memory that objects use."""


class Resources(NamedTuple):
    """Resources that an object asks for, or a machine has."""

    cpus: float
    gpus: float
    memory: int
    """Bytes; 0: without a limit."""

    def __str__(self) -> str:
        texts = [f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}"]
        texts += [f"{self.gpus:g} GPU{'s' * (self.gpus != 1)}"] if self.gpus else []
        texts += [f"{show_bytes(self.memory)} of memory"] if self.memory else []
        return ", ".join(texts)


def asked(cpus: Any, gpus: Any, memory: Any) -> Resources:
    """Check what an object asks for.

    Raises:
      TypeError, ValueError: it is not a number, or negative.
    """
    for name, value in (("cpus", cpus), ("gpus", gpus)):
        check_amount(name, value, Range(0))
    return Resources(cpus, gpus, 0 if memory is None else parse_size("memory", memory))


def check_amount(name: str, value: Any, allowed: Range) -> None:
    """Check that a value is a number in the range, as ``settings.validation.check_number`` does with JAX."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={shortened(value)} must be {allowed}")
    if not allowed.contains(value):
        raise ValueError(f"{name}={value:g} is not allowed: it must be {allowed}")


def parse_size(name: str, value: object) -> int:
    """Return the bytes that ``value`` stands for: a whole number, or text such as "2GB", "512 MiB" or "1.5G"."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", value.upper()) if isinstance(value, str) else None
    if found is None or found[2] not in UNITS or not (size := round(float(found[1]) * UNITS[found[2]])):
        wrong: type[Exception] = ValueError if isinstance(value, str | int | float) and not isinstance(value, bool) else TypeError
        raise wrong(f'{name}={value!r} must be a number of bytes, or text such as "2GB" or "512MiB"')
    return size


def left_of(total: Resources, used: Iterable[Resources]) -> Resources:
    """Return what objects leave of the total."""
    return Resources(*(have - sum(taken) for have, *taken in zip(total, *used, strict=True)))


def check_enough(what: str, wanted: Resources, total: Resources, left: Resources, hint: str) -> None:
    """Check that an object fits into what is left.

    Raises:
      NotEnough: it does not. ``hint`` says how to get more.
    """
    for name, want, have, free in zip(wanted._fields, wanted, total, left, strict=True):
        if want and want > free + 1e-9:
            wants, has, took = (show_bytes(int(n)) if name == "memory" else f"{n:g}" for n in (want, have, have - free))
            kind = "of memory" if name == "memory" else f"{name[:-1].upper()}{'s' * (want != 1)}"
            rest = f", and other objects use {took}" if have > free else ""
            raise NotEnough(f"{what} asks for {wants} {kind}, and there are {has}{rest}: {hint}")


def number_that_fit(wanted: Resources, left: Resources, at_most: int) -> int:
    """Return how many such objects fit into what is left."""
    return min([at_most, *(int(free / want + 1e-9) for want, free in zip(wanted, left, strict=True) if want)])


def check_memory(used: int, limit: int) -> str | None:
    """Return the fault of a process that uses more memory than its limit, as a predicate."""
    if used <= limit:
        return None
    return f"used {show_bytes(used)} of memory, more than its limit of {show_bytes(limit)}, and was killed"


def memory_of(pid: int) -> int:
    """Return the bytes that a process uses. Memory that it shares is not counted."""
    resident, shared = map(int, (PROCESSES / str(pid) / "statm").read_text().split()[1:3])
    return (resident - shared) * PAGE


def memory_in_use(groups: Iterable[int]) -> dict[int, int]:
    """Return the bytes that each of these process groups uses. Memory that processes share is not counted."""
    totals = dict.fromkeys(groups, 0)
    if not totals:
        return totals
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            group = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
            if group in totals:
                totals[group] += memory_of(int(folder.name))
        except (OSError, IndexError, ValueError):  # the process has ended
            continue
    return totals


class Gpus:
    """GPUs of this machine. An object has whole ones, or a fraction of one."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._left = dict.fromkeys(ids, 1.0)

    def take(self, wanted: float) -> dict[str, float]:
        """Return the share of each GPU that an object gets.

        Raises:
          NotEnough: none has that much left.
          ValueError: more than one GPU, and not a whole number of them.
        """
        if wanted > 1 and wanted % 1:
            raise ValueError(f"gpus={wanted:g} must be a whole number, or a fraction of one GPU")
        share = min(wanted, 1.0)
        chosen = [name for name, left in self._left.items() if left >= share - 1e-9][: max(1, int(wanted))] if wanted else []
        if len(chosen) * share < wanted - 1e-9:
            raise NotEnough(f"gpus={wanted:g}: other objects have a part of each GPU that is left")
        for name in chosen:
            self._left[name] -= share
        return dict.fromkeys(chosen, share)

    def give_back(self, shares: Mapping[str, float]) -> None:
        for name, share in shares.items():
            self._left[name] += share


def machine(cpus: int, gpus: int) -> Resources:
    """Return what this machine has."""
    return Resources(cpus, gpus, os.sysconf("SC_PHYS_PAGES") * PAGE)


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if gpus_excluded():
        return []
    return [str(n) for n in range(count_gpus())] if listed is None else [name for name in listed.split(",") if name.strip()]
