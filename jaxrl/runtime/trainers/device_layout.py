"""Layout of seeds and environments over devices. Devices share the environments of a seed where seeds alone leave some idle."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

import jax

from jaxrl import agent as agents
from jaxrl.builder.spec import modules_outside, unimportable_parts
from jaxrl.parallel import DATA, check_devices, on_axis
from jaxrl.pbt.builder import POPULATION
from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.system.devices import DeviceLayout, seed_devices
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.types import Agent

MIN_ROWS = 4_096
"""Rows of an iteration of one seed, on each device, from which sharing its environments pays off. With PPO, CartPole and two
layers of 64 units on two cores, 32,768 train 1.4 times as fast as on one core, 4,096 1.3 times, 2,048 1.1 times."""


def open_fused(agent: Agent, seeds: Sequence[int], each: int | None = None) -> tuple[FusedDriver, DeviceLayout]:
    """Open a driver on all usable devices, including those of other processes of the group.

    Args:
      each: number of devices that share the environments of each seed; default: as many as are useful.
    """

    @functools.cache
    def shared() -> Agent | None:
        with contextlib.suppress(ValueError):  # it cannot be rebuilt: an agent from another process has no trusted parts
            return on_axis(agent, DATA)
        return None

    def share(spare: int) -> int:
        if jax.process_count() == 1:
            number = devices_per_seed(agent, spare)
        else:  # as many as possible: the processes were started to be used
            number = next(number for number in range(spare, 0, -1) if number == 1 or _divides(agent, number))
        return number if number > 1 and shared() else 1

    layout = seed_devices(len(seeds), share, each, of_all_processes=True)
    if layout.devices_per_seed == 1:
        return FusedDriver(agent, seeds, layout.devices), layout
    stepping = on_axis(agent, DATA) if each else shared()
    return FusedDriver(agent, seeds, layout.devices, layout.devices_per_seed, stepping), layout


def devices_per_seed(agent: Agent, spare: int) -> int:
    """Return how many of ``spare`` devices should share the environments of one seed: a power of two.

    More than one only if the result is the same up to rounding, and training is faster.
    """
    most = min(spare, agent.steps_per_iteration // MIN_ROWS)
    powers = [2**n for n in range(1, most.bit_length())] if learns_alike(agent) else []
    return next((number for number in reversed(powers) if _divides(agent, number)), 1)


def _divides(agent: Agent, num_devices: int) -> bool:
    try:
        check_devices(agent, num_devices)
    except ValueError:
        return False
    return True


def learns_alike(agent: Agent) -> bool:
    """Return whether several devices learn the same as one. True for populations, whose members are independent, and for jaxrl's
    algorithms without replay, and without custom losses and bonuses.

    Replay algorithms draw a different batch on each device. A custom function that computes a mean or a maximum would see only a
    device's share.
    """
    if agent.spec.get("builder") == {"import": POPULATION}:
        return True
    entries = [x for x in ALGORITHMS.values() if x.family not in ("replay", "planning")]
    without_replay = [{"import": f"{x.module}:{x.builder}"} for x in entries]
    parts = agent.spec.get("parts", {})
    has_builders_step = getattr(agent.step, "__module__", None) == agents.__name__ and not hasattr(agent.step, "__wrapped__")
    return (
        agent.spec.get("builder") in without_replay
        and not (parts.get("extra_losses") or modules_outside(parts.get("intrinsic")))
        and not unimportable_parts(agent.spec)
        and has_builders_step  # a replaced step would be lost when the agent is rebuilt
    )
