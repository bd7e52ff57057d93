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


TOLERANT = "use an algorithm with replay, or one that corrects for stale data, such as PPO or IMPALA"


def check_sampler(agent: Agent, name: str) -> str:
    """Check that the sampler is known, and that the agent can use it.

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
            f"sampler={name!r} is for environments on the host, and {agent.env.name} runs in JAX, in one program with the "
            "learner: leave sampler out"
        )
    if name == "async" and not agent.algorithm.tolerates_lag:
        raise ValueError(
            f"sampler='async' begins rollouts with older parameters, and {_learns_as_its_own(agent)}: use another sampler, or "
            f"{TOLERANT}"
        )
    if name != "xla" and agent.num_envs % 2:
        raise ValueError(f"sampler={name!r} steps half of num_envs={agent.num_envs} at a time: use an even number")
    return name


def check_overlap(agent: Agent, overlap: bool) -> bool:
    """Check that ``overlap`` is not used in JAX, or with algorithms that require rollouts of their current policy.

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
            f"overlap=True collects with parameters that are one update old, and {_learns_as_its_own(agent)}: leave overlap out, "
            f"or {TOLERANT}"
        )
    return True


def _learns_as_its_own(agent: Agent) -> str:
    return f"{algorithm_name(agent.spec)} does not correct for stale data"
