"""Whether the environments of each seed are shared out over devices, where seeds alone would leave some idle."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax

from jaxrl import agent as agents
from jaxrl.builder.spec import modules_outside, unimportable_parts
from jaxrl.parallel import DATA, check_devices, on_axis
from jaxrl.registry import ALGORITHMS
from jaxrl.runtime.system.devices import DeviceLayout, seed_devices
from jaxrl.runtime.trainers.fused import FusedDriver
from jaxrl.types import Agent

MIN_ROWS = 4_096
"""Of an iteration of one seed, on each device, from which sharing out wins. With PPO, CartPole and two layers of 64 units on two
cores, 32,768 train 1.4 times as fast as on one of them, 4,096 1.3 times, 2,048 1.1 times."""


def open_fused(agent: Agent, seeds: Sequence[int], each: int | None = None) -> tuple[FusedDriver, DeviceLayout]:
    """A driver on all devices that serve, also those of other processes of the group.

    Args:
      each: over so many devices the environments of each seed are shared out; default: as many as serve.
    """
    shared = functools.cache(lambda: _shared(agent))

    def share(spare: int) -> int:
        number = devices_per_seed(agent, spare) if jax.process_count() == 1 else most_devices(agent, spare)
        return number if number > 1 and shared() else 1

    layout = seed_devices(len(seeds), share, each, of_all_processes=True)
    if layout.devices_per_seed == 1:
        return FusedDriver(agent, seeds, layout.devices), layout
    stepping = on_axis(agent, DATA) if each else shared()
    return FusedDriver(agent, seeds, layout.devices, layout.devices_per_seed, stepping), layout


def devices_per_seed(agent: Agent, spare: int) -> int:
    """Over how many of ``spare`` devices to share out the environments of one seed: a power of two.

    Several only where what is learnt is the same up to rounding, and faster.
    """
    most = min(spare, agent.steps_per_iteration // MIN_ROWS)
    powers = [2**n for n in range(1, most.bit_length())] if learns_alike(agent) else []
    return next((number for number in reversed(powers) if _divides(agent, number)), 1)


def most_devices(agent: Agent, spare: int) -> int:
    """The most of ``spare`` devices that can share out the environments of one seed, where all are to serve: those of several
    processes, which were started for that."""
    return next(number for number in range(spare, 0, -1) if number == 1 or _divides(agent, number))


def _divides(agent: Agent, num_devices: int) -> bool:
    try:
        check_devices(agent, num_devices)
    except ValueError:
        return False
    return True


def learns_alike(agent: Agent) -> bool:
    """Whether several devices learn what one does: jaxrl's on-policy rules do, without losses and bonuses of the user's own.

    Replay rules draw another batch on each device. What a function of the user's takes a mean or a maximum of, it would take of
    a device's share.
    """
    on_policy = [{"import": f"{x.module}:{x.builder}"} for x in ALGORITHMS.values() if x.family == "on-policy"]
    parts = agent.spec.get("parts", {})
    of_builder = getattr(agent.step, "__module__", None) == agents.__name__ and not hasattr(agent.step, "__wrapped__")
    return (
        agent.spec.get("builder") in on_policy
        and not (parts.get("extra_losses") or modules_outside(parts.get("intrinsic")))
        and not unimportable_parts(agent.spec)
        and of_builder  # one in its place would not be built again
    )


def _shared(agent: Agent) -> Agent | None:
    """The agent on the axis of the devices, if it can be built again: one that came from another process brings no trust."""
    try:
        return on_axis(agent, DATA)
    except ValueError:
        return None
