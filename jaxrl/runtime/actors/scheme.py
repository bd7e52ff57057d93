"""``Scheme``: which processes collect rollouts, compute gradients and apply updates, and which wait for which."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

import jax

from jaxrl.agent import state_shapes
from jaxrl.builder.spec import algorithm_name
from jaxrl.replay.sequence import SequenceState
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.system.cores import usable_cores
from jaxrl.runtime.system.devices import threads_per_worker
from jaxrl.settings.aliases import nearest, unknown
from jaxrl.settings.validation import CountOrZero, Positive, PositiveUnit, checked, setting_types
from jaxrl.types import Agent, HostEnv


@dataclasses.dataclass(frozen=True)
class Scheme:
    """Distribution of training over processes: one cell of the grid of Bou and De Fabritiis (2020), "NAPPO: Modular and scalable
    reinforcement learning in PyTorch"."""

    num_workers: CountOrZero = 0
    """Number of worker processes, among which the environments are divided; 0: one per core except the learner's, at most one
    per environment."""
    inference: Literal["workers", "learner"] = "workers"
    """Where the policy acts: "workers", each in its own environments; "learner", in batches over all workers, which then only
    step (GA3C, Babaeizadeh et al. 2017; SEED, Espeholt et al. 2020)."""
    clock: Literal["deterministic", "async"] = "deterministic"
    """Parameters that collect a rollout. "deterministic": rollout n uses those of version max(0, n - lag), and two runs are
    equal, unless ``sync_fraction`` cuts workers short by the clock. "async": each worker uses the newest parameters when it
    begins, and workers are served in the order in which they are ready."""
    lag: CountOrZero = 0
    """Number of rollouts being collected while the learner learns from another. On the asynchronous clock it bounds the age of
    the parameters."""
    gradients: Literal["learner", "workers"] = "learner"
    """Where gradients are computed. "workers": each worker computes that of its rollouts, for algorithms with one gradient per
    rollout. On the deterministic clock the learner applies their mean, on the asynchronous one each as it arrives (A3C, Mnih et
    al. 2016)."""
    updates: Literal["learner", "all_reduced"] = "learner"
    """"all_reduced": the learner uses as many devices as there are workers. Each device learns from one worker's rollouts, with
    gradients averaged over all devices (DD-PPO, Wijmans et al. 2020)."""
    sync_fraction: PositiveUnit = 1.0
    """Fraction of the workers that finish their rollout before the others are cut short (Wijmans et al. 2020, section 3: 0.6);
    1: wait for all. Each worker collects at least a quarter of its rows. The missing rows are padding, and the environments
    continue from their current states in the next rollout. With "ddppo" and two workers none is cut short, since 0.6 of two
    workers rounds up to two."""
    max_restarts: CountOrZero = 10
    """Total number of worker restarts before the run fails; with ``inference="learner"``, restarts of each worker."""
    timeout: Positive = 60.0
    """Seconds that a row may take. A worker that takes longer is assumed to hang, and is replaced."""
    pin: bool = False
    """Pin each worker to one core."""
    engine: Literal["local", "ray"] = field(default="local", compare=False)
    """Where workers are: "local", processes of this machine; "ray", a cluster of Ray, which ``RAY_ADDRESS`` names, or else one
    that is started on this machine. Each worker asks the cluster for one CPU. Rollouts are the same."""
    placement: Literal["pack", "spread"] = field(default="pack", compare=False)
    """Machines of the cluster for the workers: "pack", one that is in use until half of it is; "spread", each one in turn."""
    insecure: bool = field(default=False, compare=False)
    """Use a cluster of Ray that asks for no token, where anyone who reaches it can run programs."""

    def __post_init__(self) -> None:
        for name, type_ in setting_types(Scheme).items():
            object.__setattr__(self, name, checked(f"scheme.{name}", getattr(self, name), type_))


SCHEMES: dict[str, Scheme] = {
    "a2c": Scheme(),
    "a3c": Scheme(clock="async", gradients="workers", lag=1),
    "ga3c": Scheme(clock="async", inference="learner", lag=1),
    "impala": Scheme(clock="async", lag=2),
    "apex": Scheme(clock="async", lag=2),
    "r2d2": Scheme(clock="async", lag=2),
    "ddppo": Scheme(updates="all_reduced", sync_fraction=0.6),
    "es": Scheme(),
}


def resolve_scheme(
    agent: Agent, scheme: Scheme | str | Mapping[str, Any] | None, num_workers: int | None, before: int = 0, **places: Any
) -> Scheme | None:
    """Return the requested scheme with its number of workers; None if the run uses no workers.

    Args:
      scheme: a scheme, its name in ``SCHEMES``, or a mapping of its fields.
      num_workers: replaces the scheme's number.
      before: number of workers of the run that is resumed, which may have been on a machine with other cores; 0: none.
      places: values for its ``engine``, ``placement`` and ``insecure``; None: the scheme's.

    Raises:
      TypeError, ValueError: ``scheme`` is not a scheme, is inconsistent, or cannot train this agent. The message names the
        nearest one that can.
    """
    places = {name: value for name, value in places.items() if value is not None}
    if scheme is None and num_workers is None and not places:
        return None
    chosen = dataclasses.replace(_read(Scheme() if scheme is None else scheme), **places)
    if num_workers is not None:
        chosen = dataclasses.replace(chosen, num_workers=checked("num_workers", num_workers, CountOrZero))
    if not isinstance(agent.env, HostEnv):
        name = "scheme" if scheme is not None else "num_workers" if num_workers is not None else next(iter(places))
        raise ValueError(
            f"{name}=… is for environments on the host, and {agent.env.name} runs in JAX, in one program: leave {name} out"
        )
    if problem := _why_impossible(chosen):
        raise ValueError(problem)
    chosen = dataclasses.replace(chosen, num_workers=chosen.num_workers or before or _default_workers(chosen, agent))
    if problem := _why_unfit(chosen, agent):
        raise ValueError(problem)
    return chosen


def _default_workers(scheme: Scheme, agent: Agent) -> int:
    """Return the largest number of workers below that of the cores with which the scheme can train the agent; at least one."""
    if agent.episodes:
        return max(1, min(agent.num_envs // agent.episodes, usable_cores() - 1))
    most = max(1, min(_envs_here(agent), usable_cores() - 1))
    return next(n for n in range(most, 0, -1) if not (_has_equal_shares(scheme) and agent.num_envs % n))


def _has_equal_shares(scheme: Scheme) -> bool:
    """Return whether gradients of the workers' rollouts have equal weight, so that these must be of equal size."""
    return scheme.gradients == "workers" or scheme.updates == "all_reduced"


def _read(scheme: Any) -> Scheme:
    if isinstance(scheme, str):
        if scheme not in SCHEMES:
            raise unknown("scheme", scheme, list(SCHEMES))
        return SCHEMES[scheme]
    if isinstance(scheme, Scheme):
        return scheme
    if not isinstance(scheme, Mapping):
        raise TypeError(
            f"scheme={scheme!r} must be a jaxrl.Scheme, one of {', '.join(SCHEMES)}, or a mapping of a scheme's fields"
        )
    types = setting_types(Scheme)
    for name in scheme:
        if name not in types:
            raise TypeError(f"scheme has no {name!r}.{nearest(name, sorted(types))} It has {', '.join(types)}")
    return Scheme(**scheme)


def _why_impossible(scheme: Scheme) -> str | None:
    """Return the message for settings that contradict each other, with the nearest valid ones; None if the scheme is valid."""
    if scheme.gradients == "workers" and scheme.inference == "learner":
        return (
            "gradients='workers' needs rollouts in the workers, but inference='learner' makes them in the learner: use "
            "inference='workers' (scheme='a3c') or gradients='learner' (scheme='ga3c')"
        )
    if scheme.gradients == "workers" and scheme.updates == "all_reduced":
        return (
            "updates='all_reduced' averages gradients of the learner's devices, but gradients='workers' computes them in the "
            "workers: use gradients='learner' (scheme='ddppo') or updates='learner' (scheme='a3c')"
        )
    if scheme.updates == "all_reduced" and (scheme.clock == "async" or scheme.inference == "learner"):
        return (
            "updates='all_reduced' needs rollouts that all workers made with the same parameters: use clock='deterministic' and "
            "inference='workers' (scheme='ddppo')"
        )
    if scheme.sync_fraction < 1 and (scheme.clock == "async" or scheme.inference == "learner"):
        why = "with inference='learner' all step together" if scheme.clock == "deterministic" else "with clock='async' none waits"
        return (
            f"sync_fraction={scheme.sync_fraction:g} cuts short the workers that others wait for, but {why}: use "
            "sync_fraction=1, or clock='deterministic' and inference='workers' (scheme='ddppo')"
        )
    if scheme.engine == "ray" and (problem := _why_not_on_ray(scheme)):
        return problem
    if scheme.engine == "local" and (scheme.placement != "pack" or scheme.insecure):
        return "placement and insecure are for workers on a cluster: use engine='ray', or leave them out"
    if scheme.pin and scheme.inference == "learner":
        return "pin=True pins workers that act, but with inference='learner' they only step: leave pin out"
    if scheme.clock == "async" and scheme.gradients == "learner" and not scheme.lag:
        return (
            "clock='async' with lag=0 leaves the workers idle while the learner learns: use lag=1 or clock='deterministic' "
            "(scheme='a2c')"
        )
    return None


def _why_not_on_ray(scheme: Scheme) -> str | None:
    """Return the message for a scheme whose workers cannot be on a cluster of Ray; None if they can."""
    if importlib.util.find_spec("ray") is None:
        return "engine='ray' needs the package ray: pip install \"jaxrl[ray]\""
    if not scheme.num_workers:
        return "engine='ray' needs num_workers, one for each CPU of the cluster that is to collect rollouts"
    if scheme.inference == "learner":
        return "engine='ray' would send each step over the network with inference='learner': use inference='workers'"
    if scheme.pin:
        return "pin=True pins workers to cores of this machine: leave pin out with engine='ray'"
    if not current().is_alone:
        return (
            f"engine='ray' is for one process, and this is one of {current().num_processes}: use engine='local', with workers "
            "beside each process"
        )
    return None


def _why_unfit_for_population(scheme: Scheme, agent: Agent, name: str) -> str | None:
    """Return the message for a scheme whose workers cannot play the members of a population; None if they can."""
    plain = dataclasses.replace(
        Scheme(), num_workers=scheme.num_workers, max_restarts=scheme.max_restarts, timeout=scheme.timeout
    )
    if scheme != plain:
        return f"{name} plays whole episodes with each member of a population, and then learns from all of them: use scheme='es'"
    if not current().is_alone:
        return f"{name} on environments of the host is for one process, and this is one of {current().num_processes}"
    if scheme.num_workers > (members := agent.num_envs // agent.episodes):
        return f"num_workers={scheme.num_workers} must be at most members={members}: each worker plays whole members"
    return None


def _why_unfit(scheme: Scheme, agent: Agent) -> str | None:
    """Return the message for a scheme that cannot train this agent, with the nearest one that can; None if it can."""
    name, algorithm = algorithm_name(agent.spec), agent.algorithm
    if agent.episodes:
        return _why_unfit_for_population(scheme, agent, name)
    if scheme.num_workers > (here := _envs_here(agent)):
        of_each = "" if current().is_alone else f" in all, each of {current().num_processes} processes has {here}"
        most = f"num_envs={agent.num_envs}{of_each}"
        return f"num_workers={scheme.num_workers} must be at most {most}: each worker needs at least one environment"
    if scheme.gradients == "workers" and algorithm.gradients is None:
        nearest_scheme = "apex" if algorithm.learn else "ddppo"
        return (
            f"gradients='workers' is for algorithms with one gradient per rollout, and {name} takes several: use "
            f"scheme={nearest_scheme!r}, where workers only collect"
        )
    if scheme.inference == "learner" and scheme.clock == "async" and agent.num_envs % 2:
        return f"num_envs={agent.num_envs} must be even: inference='learner' with clock='async' acts in one half at a time"
    if agent.num_envs % scheme.num_workers and _has_equal_shares(scheme):
        return f"num_envs={agent.num_envs} must be a multiple of num_workers={scheme.num_workers}: gradients have equal weight"
    if scheme.sync_fraction < 1 and _replays_memory(agent):
        return (
            f"sync_fraction={scheme.sync_fraction:g} leaves gaps in replay, after which {name} would reset its recurrent carry: "
            "use sync_fraction=1, or scheme='r2d2', where no worker waits"
        )
    if (scheme.lag or scheme.clock == "async") and scheme.gradients == "learner" and not algorithm.tolerates_lag:
        return (
            f"this scheme collects with older parameters, and {name} does not correct for stale data: use scheme='a2c', which "
            "waits, or an algorithm with replay, or one that corrects for stale data, such as PPO or IMPALA"
        )
    return None


def _replays_memory(agent: Agent) -> bool:
    """Return True if the algorithm replays stored sequences from stored recurrent carries."""
    is_one: Any = lambda x: isinstance(x, SequenceState)  # noqa: E731
    return agent.algorithm.learn is not None and any(map(is_one, jax.tree.leaves(state_shapes(agent).learner, is_leaf=is_one)))


def _envs_here(agent: Agent) -> int:
    """Return the number of environments per seed in this process."""
    return agent.num_envs // current().num_processes


def describe(scheme: Scheme, num_envs: int) -> str:
    """Describe the scheme and its use of cores in one line; ``num_envs`` is per seed and process."""
    cores, workers = usable_cores(), scheme.num_workers
    each = f"{num_envs // workers}" + (f" or {num_envs // workers + 1}" if num_envs % workers else "")
    duties = "act and step" if scheme.inference == "workers" else "step"
    if scheme.engine == "ray":
        return f"{workers} worker{'s' * (workers > 1)} on Ray {duties} in {each} environments per seed each, with 1 CPU each"
    threads = threads_per_worker(workers)
    over = "" if workers + 1 <= cores else ": more than this machine has, which suits environments that mostly wait"
    return (
        f"{workers} worker{'s' * (workers > 1)} {duties} in {each} environments per seed each, with {threads} of {cores} cores "
        f"each, and the learner has one{over}"
    )
