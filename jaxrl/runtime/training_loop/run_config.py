"""``RunConfig``: the settings of a run as one value, which ``config.json`` records and ``resume`` reads back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from jaxrl.parallel import check_devices
from jaxrl.runtime.actors.scheme import Scheme, resolve_scheme
from jaxrl.runtime.distributed.group import current
from jaxrl.runtime.logs.run_folder import plain
from jaxrl.runtime.logs.trackers import import_wandb
from jaxrl.runtime.samplers.by_name import check_overlap, check_sampler
from jaxrl.runtime.training_loop.members import check_hyperparams, check_members
from jaxrl.settings.validation import added, check_count, check_number, check_seeds, check_switches
from jaxrl.training import MAX_EPISODES
from jaxrl.types import Agent

ON_NAN = ("drop", "stop")


@dataclass(frozen=True)
class Settings:
    """Base of ``RunConfig`` and its groups, which are frozen dataclasses. A field is a keyword of ``run``, or a group of them.

    Fields declared with ``compare=False`` do not change a run's results, so that a run may be resumed with other values. Two
    configs are equal if all other fields are.
    """

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Self:
        """Return the settings with these values, by name, and defaults for the others."""
        values = {}
        for each in fields(cls):
            if isinstance(each.default, Settings):
                values[each.name] = each.default.of(keywords)
            elif each.name in keywords:
                values[each.name] = keywords[each.name]
        return cls(**values)

    def as_plain(self, *, compared: bool) -> dict[str, Any]:
        """Return plain data by name: of all fields that are compared, or of those that are not.

        Fields that were ``added`` after runs had been recorded without them are omitted at their defaults.
        """
        data: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Settings):
                data |= value.as_plain(compared=compared)
            elif each.compare is compared and not ("added" in each.metadata and value == each.default):
                data[each.name] = plain(_compared(value) if isinstance(value, Scheme) else value)
        return data

    def _set(self, **values: Any) -> None:
        """Set fields to their checked values, while the object is being made."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _compared(scheme: Scheme) -> dict[str, Any]:
    return {each.name: getattr(scheme, each.name) for each in fields(scheme) if each.compare}


def setting_fields(source: type[Settings]) -> dict[str, tuple[type[Settings], dataclasses.Field[Any]]]:
    """Return the settings of a class and of its groups: name -> (class, field)."""
    found: dict[str, tuple[type[Settings], dataclasses.Field[Any]]] = {}
    for each in fields(source):
        found |= setting_fields(type(each.default)) if isinstance(each.default, Settings) else {each.name: (source, each)}
    return found


@dataclass(frozen=True)
class Members(Settings):
    """Seeds of a run, and the hyperparameters that differ from the agent's."""

    seeds: Any = 1
    """A number of seeds, or a list; a list once checked."""
    hyperparams: Any = None
    """Name -> one value for all seeds, or one for each."""

    def __post_init__(self) -> None:
        self._set(seeds=check_seeds(self.seeds))

    def for_agent(self, agent: Agent) -> Members:
        values = check_hyperparams(agent, self.hyperparams, len(self.seeds))
        check_members(self.seeds, values)
        return Members(self.seeds, values)

    def hyperparam_arrays(self) -> dict[str, np.ndarray] | None:
        """Return the changed hyperparameters as f32[] or f32[num_seeds]."""
        if self.hyperparams is None:
            return None
        return {name: np.asarray(value, np.float32) for name, value in self.hyperparams.items()}


@dataclass(frozen=True)
class Evaluations(Settings):
    """Evaluations during a run."""

    eval_every: int | None = None
    """Iterations between evaluations. The first takes place before training; 0: no evaluations."""
    eval_episodes: int = 128
    """Episodes per evaluation and seed."""
    eval_explore: bool = False
    """In evaluations, act as in training instead of greedily; best/ then holds the policies that are best in this sense."""
    stop_at: float | None = None
    """End when the mean evaluation return over seeds reaches this value. Not for games of two players."""

    def __post_init__(self) -> None:
        if self.eval_every is not None:
            self._set(eval_every=check_count("eval_every", self.eval_every, at_least=0))
        self._set(eval_episodes=check_count("eval_episodes", self.eval_episodes, at_most=MAX_EPISODES))
        if not isinstance(self.eval_explore, bool):
            raise TypeError(
                f"eval_explore={self.eval_explore!r} must be True (evaluations act as in training) or False (greedily)"
            )
        if self.stop_at is None:
            return
        check_number("stop_at", self.stop_at)
        if self.eval_every == 0:
            raise ValueError(
                f"stop_at={self.stop_at} needs evaluations, but eval_every=0 disables them: set eval_every, or leave stop_at out"
            )
        self._set(stop_at=float(self.stop_at))


@dataclass(frozen=True)
class Collection(Settings):
    """Collection of rollouts from environments on the host."""

    sampler: str = added("sync")
    """For environments on the host: step all at once; step one half while the policy acts in the other; act in the half that is
    ready first; or step them inside a compiled program, which is the fastest (envpool on a CPU)."""
    overlap: bool = added(False)
    """For environments on the host: collect each rollout while learning from the one before."""
    scheme: Any = added(None)
    """For environments on the host: how collecting and learning are distributed over processes, and synchronised."""
    num_workers: int | None = added(None)
    """Number of worker processes over which the environments are distributed."""
    engine: str | None = added(None, compare=False)
    """Where the scheme's workers are: "local", processes of this machine; "ray", a cluster of Ray, which the variable RAY_ADDRESS
    names, or else one that is started on this machine."""
    placement: str | None = added(None, compare=False)
    """Machines of the cluster for the workers: "pack", one that is in use until half of it is; "spread", each one in turn."""
    insecure: bool = added(False, compare=False)
    """Use a cluster of Ray that asks for no token, where anyone who reaches it can run programs."""

    def for_agent(self, agent: Agent, workers_before: int = 0) -> Collection:
        """Return the collection with a ``Scheme``, which has its number of workers, or None.

        Args:
          workers_before: number of workers of the run that is resumed, if these settings leave it open; 0: none.
        """
        if agent.is_offline:
            for each in fields(self):
                if (value := getattr(self, each.name)) != each.default:
                    raise ValueError(f"{each.name}={value!r} has no effect with data=…: no environment is stepped to learn")
        places = {"engine": self.engine, "placement": self.placement, "insecure": self.insecure or None}
        scheme = resolve_scheme(agent, self.scheme, self.num_workers, workers_before, **places)
        if agent.online and (not current().is_alone or (scheme is not None and scheme.updates == "all_reduced")):
            raise ValueError("online=True learns on one device of one process: use a scheme with updates='learner'")
        sampler, overlap = check_sampler(agent, self.sampler), check_overlap(agent, self.overlap)
        if scheme is not None and (overlap or sampler != "sync"):
            which = "overlap=True" if overlap else f"sampler={sampler!r}"
            raise ValueError(f"{which} is for environments in this process: leave it out, or use the scheme's clock= and lag=")
        return Collection(sampler, overlap, scheme, **({name: getattr(scheme, name) for name in places} if scheme else {}))


@dataclass(frozen=True)
class Checkpoints(Settings):
    """Checkpoints of a run."""

    checkpoint_every: float = field(default=60.0, compare=False)
    """Seconds between checkpoints, more if saving would take over 3 % of the time; 0: only at the end."""
    keep_checkpoints: int = field(default=3, compare=False)
    """Number of checkpoints to keep."""
    save_replay: bool = True
    """Include the replay buffer in checkpoints; otherwise a resumed run is not bit-equal to an uninterrupted one."""

    def __post_init__(self) -> None:
        every = self.checkpoint_every
        if isinstance(every, bool) or not isinstance(every, int | float) or not 0 <= every < math.inf:
            raise ValueError(f"checkpoint_every={every!r} must be a number of seconds >= 0; 0 saves only at the end")
        self._set(keep_checkpoints=check_count("keep_checkpoints", self.keep_checkpoints))
        check_switches(save_replay=self.save_replay)


@dataclass(frozen=True)
class Logging(Settings):
    """Logs of a run, in addition to its own files."""

    tensorboard: bool = field(default=True, compare=False)
    """Write TensorBoard event files."""
    wandb: str | None = field(default=None, compare=False)
    """W&B project to log to; needs pip install "jaxrl[wandb]"."""

    def __post_init__(self) -> None:
        check_switches(tensorboard=self.tensorboard)
        if self.wandb is not None:
            import_wandb()


@dataclass(frozen=True)
class RunConfig(Settings):
    """Settings of a run, apart from its agent, its folder and its source of parameters."""

    total_steps: int
    """Environment rows per seed, rounded up to full iterations."""
    members: Members = Members()
    chunk_iterations: int | None = None
    """Iterations between two updates of the display and the logs. Results do not depend on it."""
    on_nan: str = "drop"
    """When a seed's losses are NaN or infinite: freeze the seed and exclude it from all means, or end the run."""
    evaluation: Evaluations = Evaluations()
    collection: Collection = Collection()
    checkpoints: Checkpoints = Checkpoints()
    logging: Logging = Logging()
    devices_per_seed: int | None = field(default=None, compare=False)
    """Number of devices over which the environments of each seed are sharded, for environments in JAX."""

    def __post_init__(self) -> None:
        self._set(total_steps=check_count("total_steps", self.total_steps))
        if self.chunk_iterations is not None:
            self._set(chunk_iterations=check_count("chunk_iterations", self.chunk_iterations))
        if self.on_nan not in ON_NAN:
            raise ValueError(f"on_nan={self.on_nan!r} is unknown: choose one of {ON_NAN}")

    def for_agent(self, agent: Agent, before: Mapping[str, Any] | None = None) -> RunConfig:
        """Return the settings as they apply to an agent.

        Args:
          before: ``TrainingPlan.request`` of the run that is resumed. It provides the number of workers if it is left open.

        Raises:
          TypeError, ValueError: the agent cannot be trained in this way.
        """
        workers = ((before or {}).get("scheme") or {}).get("num_workers", 0)
        members, collection = self.members.for_agent(agent), self.collection.for_agent(agent, workers)
        if self.devices_per_seed is not None:
            _check_shared_out(agent, self.devices_per_seed)
        return dataclasses.replace(self, members=members, collection=collection)


def _check_shared_out(agent: Agent, devices_per_seed: int) -> None:
    """Check that the environments of a seed can be divided evenly among devices."""
    if agent.data is not None:
        raise ValueError(f"devices_per_seed={devices_per_seed} cannot be used with data=…: devices share nothing but the seeds")
    if agent.collects_on_host:
        raise ValueError(
            f"devices_per_seed={devices_per_seed} is for environments in JAX, and {agent.env.name} runs on the host: use "
            "scheme='ddppo' there"
        )
    check_devices(agent, check_count("devices_per_seed", devices_per_seed))


def recorded_config(config: Mapping[str, Any], shown: str) -> RunConfig:
    """Return the settings in the ``config.json`` of a run folder, which stores compared fields in ``run``, others in ``output``.
    Raise TypeError or ValueError, with the name ``shown`` of the folder, if one is missing or not allowed."""
    request, output = config["run"], config.get("output", {})
    stored = {}
    for name, (_, each) in setting_fields(RunConfig).items():
        section = request if each.compare else output
        if name in section:
            stored[name] = section[name]
        elif each.compare and "added" not in each.metadata:
            raise ValueError(f"config.json in {shown!r} lacks {name!r} of its run: restore it from a copy")
    return RunConfig.of(stored)
