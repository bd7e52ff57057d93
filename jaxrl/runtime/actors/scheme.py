"""``Scheme``: where rollouts are collected, gradients computed and updates applied, and who waits for whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax

from jaxrl.agent import state_shapes
from jaxrl.builder.spec import algorithm_name
from jaxrl.replay.sequence import SequenceState
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.system.devices import threads_per_worker, usable_cores
from jaxrl.settings.aliases import nearest, unknown
from jaxrl.settings.validation import CountOrZero, Positive, PositiveUnit, checked, setting_types
from jaxrl.types import Agent, HostEnv


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One cell of the grid of Bou and De Fabritiis (2020), "NAPPO: Modular and scalable reinforcement learning in PyTorch"."""

    num_workers: CountOrZero = 0
    """Processes that share out the environments; 0: one for each core but the learner's, and no more than there are
    environments."""
    inference: Literal["workers", "learner"] = "workers"
    """Where the policy acts: "workers", each in its own environments; "learner", in batches over all workers, which then only
    step (GA3C, Babaeizadeh et al. 2017; SEED, Espeholt et al. 2020)."""
    clock: Literal["deterministic", "async"] = "deterministic"
    """"deterministic": rollout n is made by the parameters of version max(0, n - lag), and two runs are the same, unless
    ``sync_fraction`` lets a clock decide who is cut short. "async": by the newest that there are when a worker begins; who is
    ready first is served first."""
    lag: CountOrZero = 0
    """How many rollouts are under way while one is learnt from. On the asynchronous clock it bounds the age of parameters."""
    gradients: Literal["learner", "workers"] = "learner"
    """Who computes them. Workers do of their own rollouts, for rules with one gradient per rollout: on the deterministic clock
    the learner applies their mean, on the asynchronous one each as it comes (A3C, Mnih et al. 2016)."""
    updates: Literal["learner", "all_reduced"] = "learner"
    """"all_reduced": the learner is several devices, as many as there are workers, each of which learns from one worker's
    rollouts by gradients that are averaged over all (DD-PPO, Wijmans et al. 2020)."""
    sync_fraction: PositiveUnit = 1.0
    """The share of the workers that finish their rollout before the others are cut short (Wijmans et al. 2020, section 3: 0.6);
    1: wait for all. Each collects a quarter of its rows at least; what is missing is padding, and their environments go on where
    they stand. With "ddppo" and two workers all finish, as two are the least that 0.6 of them can be."""
    max_restarts: CountOrZero = 10
    """How many workers may be replaced, in all, before the run ends; with ``inference="learner"``, each of them."""
    timeout: Positive = 60.0
    """Seconds in which a row must end; a worker that takes longer is taken to hang, and replaced."""
    pin: bool = False
    """Hold each worker to a core of its own."""

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
}


def resolve_scheme(agent: Agent, scheme: Scheme | str | Mapping[str, Any] | None, num_workers: int | None) -> Scheme | None:
    """What a run was asked for, with its number of workers; None where it collects by itself.

    Args:
      scheme: itself, its name in ``SCHEMES``, or its fields.
      num_workers: in place of the scheme's.

    Raises:
      TypeError, ValueError: it is none, or one that cannot serve this agent; the message says which one is nearest that can.
    """
    if scheme is None and num_workers is None:
        return None
    chosen = _read(Scheme() if scheme is None else scheme)
    if num_workers is not None:
        chosen = dataclasses.replace(chosen, num_workers=checked("num_workers", num_workers, CountOrZero))
    if not isinstance(agent.env, HostEnv):
        raise ValueError(
            f"scheme=… is for environments on the host, and {agent.env.name} runs in JAX, in one program: leave it out"
        )
    chosen = dataclasses.replace(chosen, num_workers=chosen.num_workers or max(1, min(_envs_here(agent), usable_cores() - 1)))
    if problem := _why_impossible(chosen) or _why_unfit(chosen, agent):
        raise ValueError(problem)
    return chosen


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
    """Why there is no such cell in the grid, and the nearest that there is."""
    if scheme.gradients == "workers" and scheme.inference == "learner":
        return (
            "gradients='workers' needs rollouts there, and inference='learner' makes them in the learner: nearest are "
            "inference='workers' (scheme='a3c'), and gradients='learner' (scheme='ga3c')"
        )
    if scheme.gradients == "workers" and scheme.updates == "all_reduced":
        return (
            "updates='all_reduced' averages the gradients of the learner's devices, and gradients='workers' computes them "
            "elsewhere: nearest are gradients='learner' (scheme='ddppo'), and updates='learner' (scheme='a3c')"
        )
    if scheme.updates == "all_reduced" and (scheme.clock == "async" or scheme.inference == "learner"):
        return (
            "updates='all_reduced' waits for the rollouts of all workers, made by the same parameters: nearest is "
            "clock='deterministic', inference='workers' (scheme='ddppo')"
        )
    if scheme.sync_fraction < 1 and (scheme.clock == "async" or scheme.inference == "learner"):
        why = "with inference='learner' all step together" if scheme.clock == "deterministic" else "with clock='async' none does"
        return (
            f"sync_fraction={scheme.sync_fraction:g} cuts workers short for which others wait, and {why}: nearest are "
            "sync_fraction=1, and clock='deterministic', inference='workers' (scheme='ddppo')"
        )
    if scheme.pin and scheme.inference == "learner":
        return "pin=True holds workers that act to cores, and with inference='learner' they only step: leave it out"
    if scheme.clock == "async" and scheme.gradients == "learner" and not scheme.lag:
        return (
            "clock='async' with lag=0 has nothing to do while the learner learns: nearest are lag=1, and clock='deterministic' "
            "(scheme='a2c')"
        )
    return None


def _why_unfit(scheme: Scheme, agent: Agent) -> str | None:
    """Why the agent cannot be trained so, and the nearest way that it can."""
    name, rule = algorithm_name(agent.spec), agent.algorithm
    if scheme.num_workers > (here := _envs_here(agent)):
        of_each = "" if current().is_alone else f", of which each of {current().num_processes} processes has {here}"
        most = f"num_envs={agent.num_envs}{of_each}"
        return f"num_workers={scheme.num_workers} must be at most {most}: each has one environment at least"
    if scheme.gradients == "workers" and rule.gradients is None:
        nearest_one = "apex" if rule.learn else "ddppo"
        return (
            f"gradients='workers' is for rules with one gradient per rollout, and {name} takes several: nearest is "
            f"scheme={nearest_one!r}, where workers collect"
        )
    if scheme.inference == "learner" and scheme.clock == "async" and agent.num_envs % 2:
        return f"inference='learner' on the asynchronous clock acts in halves of num_envs={agent.num_envs}: use an even number"
    uneven = agent.num_envs % scheme.num_workers
    if uneven and (scheme.gradients == "workers" or scheme.updates == "all_reduced"):
        return f"num_envs={agent.num_envs} must be a multiple of num_workers={scheme.num_workers}: each gradient counts alike"
    if scheme.sync_fraction < 1 and _replays_memory(agent):
        return (
            f"sync_fraction={scheme.sync_fraction:g} leaves gaps in replay, and {name} takes memory to begin anew behind them: "
            "nearest are sync_fraction=1, and scheme='r2d2', where nobody waits"
        )
    if (scheme.lag or scheme.clock == "async") and scheme.gradients == "learner" and not rule.tolerates_lag:
        return (
            f"this scheme collects by parameters that are older than those that learn, and {name} learns as if they were its "
            "own: nearest is scheme='a2c', which waits; or use a rule with replay, or one that corrects for them, as PPO and "
            "IMPALA do"
        )
    return None


def _replays_memory(agent: Agent) -> bool:
    """Whether it learns from stored sequences, and the carries that they began with."""
    is_one: Any = lambda x: isinstance(x, SequenceState)  # noqa: E731
    return agent.algorithm.learn is not None and any(map(is_one, jax.tree.leaves(state_shapes(agent).learner, is_leaf=is_one)))


def _envs_here(agent: Agent) -> int:
    """The environments of each seed that are in this process."""
    return agent.num_envs // current().num_processes


def describe(scheme: Scheme, num_envs: int) -> str:
    """In one line, with who uses which cores; of so many environments of each seed."""
    cores, workers = usable_cores(), scheme.num_workers
    each = f"{num_envs // workers}" + (f" or {num_envs // workers + 1}" if num_envs % workers else "")
    what = "act and step" if scheme.inference == "workers" else "step"
    threads = threads_per_worker(workers)
    over = "" if workers + 1 <= cores else ": more than there are, which suits environments that wait"
    return (
        f"{workers} worker{'s' * (workers > 1)} {what} in {each} environments a seed each, with {threads} of {cores} cores each, "
        f"and the learner has one{over}"
    )
