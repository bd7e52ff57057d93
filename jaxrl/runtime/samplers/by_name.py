"""The samplers of ``jaxrl.run``, by name."""

from __future__ import annotations

from functools import partial

from jaxrl.builder.spec import algorithm_name
from jaxrl.runtime.samplers.asynchronous import AsyncSampler
from jaxrl.runtime.samplers.sampler import HostSampler, SamplerFn
from jaxrl.runtime.samplers.xla import CompiledSampler
from jaxrl.settings.aliases import unknown
from jaxrl.settings.validation import check_switches
from jaxrl.types import Agent, HostEnv

SAMPLERS: dict[str, SamplerFn] = {
    "sync": HostSampler,
    "alternating": partial(HostSampler, num_groups=2),
    "async": AsyncSampler,
    "xla": CompiledSampler,
}


def _refuse_lag(agent: Agent, why: str, instead: str) -> None:
    """Raise ValueError if the algorithm requires rollouts of its current policy."""
    if not agent.algorithm.tolerates_lag:
        raise ValueError(
            f"{why}, and {algorithm_name(agent.spec)} does not correct for stale data: {instead}, or use an algorithm with "
            "replay, or one that corrects for stale data, such as PPO or IMPALA"
        )


def _refuse_population(agent: Agent, setting: str) -> None:
    """Raise ValueError if the agent learns from whole episodes of a population."""
    if agent.episodes:
        raise ValueError(
            f"{setting} is for rollouts, and {algorithm_name(agent.spec)} plays whole episodes with each member of a population: "
            "leave it out, or use num_workers"
        )


def check_sampler(agent: Agent, name: str) -> str:
    """Return ``name``. Raise ValueError if there is no such sampler, or the agent cannot use it."""
    if not isinstance(name, str) or name not in SAMPLERS:
        raise unknown("sampler", name, list(SAMPLERS))
    if name == "sync":
        return name
    if not isinstance(agent.env, HostEnv):
        raise ValueError(
            f"sampler={name!r} is for environments on the host, and {agent.env.name} runs in JAX, in one program with the "
            "learner: leave sampler out"
        )
    _refuse_population(agent, f"sampler={name!r}")
    if agent.env.num_agents and name in ("async", "xla"):
        raise ValueError(
            f"sampler={name!r} is for environments of one agent, and {agent.env.name} has {agent.env.num_agents}: use another"
        )
    if name == "async":
        _refuse_lag(agent, "sampler='async' begins rollouts with older parameters", "use another sampler")
    if name != "xla" and agent.num_envs % 2:
        raise ValueError(f"sampler={name!r} steps half of num_envs={agent.num_envs} at a time: use an even number")
    return name


def check_overlap(agent: Agent, overlap: bool) -> bool:
    """Return ``overlap``. Raise TypeError if it is not a bool, and ValueError if the agent does not support it."""
    check_switches(overlap=overlap)
    if not overlap:
        return False
    if not isinstance(agent.env, HostEnv):
        raise ValueError(f"overlap=True is for environments on the host, and {agent.env.name} runs in JAX: leave overlap out")
    _refuse_population(agent, "overlap=True")
    _refuse_lag(agent, "overlap=True collects with parameters that are one update old", "leave overlap out")
    return True
