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


TOLERANT = "use a rule with replay, or one that corrects for them, as PPO and IMPALA do"


def check_sampler(agent: Agent, name: str) -> str:
    """Refuse a sampler that is unknown, or that the agent cannot use.

    Raises:
      ValueError: there is no such sampler; the environments are in JAX, or cannot be halved; or the algorithm requires rollouts
        of its current policy.
    """
    if not isinstance(name, str) or name not in SAMPLERS:
        raise unknown("sampler", name, list(SAMPLERS))
    if name == "sync":
        return name
    if not isinstance(agent.env, HostEnv):
        raise ValueError(
            f"sampler={name!r} is for environments on the host, and {agent.env.name} runs in JAX, in one program with what "
            "learns: leave sampler out"
        )
    if name == "async" and not agent.algorithm.tolerates_lag:
        raise ValueError(
            f"sampler='async' begins rollouts by older parameters than those that learn, and {_learns_as_its_own(agent)}: use "
            f"another sampler, or {TOLERANT}"
        )
    if name != "xla" and agent.num_envs % 2:
        raise ValueError(f"sampler={name!r} steps halves of num_envs={agent.num_envs}: use an even number")
    return name


def check_overlap(agent: Agent, overlap: bool) -> bool:
    """Refuse ``overlap`` for environments in JAX, and for algorithms that require rollouts of their current policy.

    Raises:
      TypeError: ``overlap`` is not a bool.
      ValueError: it is True, and the agent does not support it.
    """
    check_switches(overlap=overlap)
    if not overlap:
        return False
    if not isinstance(agent.env, HostEnv):
        raise ValueError(f"overlap=True is for environments on the host, and {agent.env.name} runs in JAX: leave overlap out")
    if not agent.algorithm.tolerates_lag:
        raise ValueError(
            f"overlap=True collects by parameters that are an update old, and {_learns_as_its_own(agent)}: leave overlap out, or "
            f"{TOLERANT}"
        )
    return True


def _learns_as_its_own(agent: Agent) -> str:
    return f"{algorithm_name(agent.spec)} learns as if they were its own"
