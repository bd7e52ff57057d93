"""Settings that algorithms share: dataclasses for rollouts and replay."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Self

from jaxrl.optimize import OptimizerFn, clipped_adam
from jaxrl.replay.options import Episode, Final, Future, Prioritized, Recent, Shift, Uniform
from jaxrl.settings.validation import Count, CountOrZero, Positive, Unit, added, is_whole
from jaxrl.types import Env, HostEnv


class AgentConfig(abc.ABC):
    """Base of structural settings, which determine shapes or control flow. Counts are global, over all devices."""

    # Properties, so that they are not settings of every algorithm.
    @property
    @abc.abstractmethod
    def num_envs(self) -> int:
        """Number of environments stepped in parallel."""

    @property
    @abc.abstractmethod
    def rollout_length(self) -> int:
        """Rows per environment in an iteration."""

    @property
    @abc.abstractmethod
    def anneal(self) -> bool:
        """Anneal the learning rate linearly to 0 at ``total_steps``."""

    @property
    def size_names(self) -> tuple[str, ...]:
        """Names of the settings whose product is the number of rows per iteration."""
        return ("num_envs", "rollout_length")

    @property
    def episodes(self) -> int:
        """Episodes per member of a population; 0 without one."""
        return 0

    @property
    def online(self) -> bool:
        """With a dataset: collect rollouts as well."""
        return False

    @property
    def only_with_data(self) -> tuple[str, ...]:
        """Names of settings that have no effect without a dataset."""
        return ()

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.rollout_length

    @property
    def warmup_iterations(self) -> int:
        """Number of iterations that collect and observe rollouts before the first update."""
        return 0

    def for_env(self, env: Env | HostEnv) -> Self:
        """Return the settings with those filled in that depend on the environment; here themselves."""
        return self

    def for_data(self) -> Self:
        """Return the settings of an agent with a dataset; here themselves."""
        return self

    @property
    def unused_with_data(self) -> tuple[str, ...]:
        """Settings that have no effect with a dataset, so that specs leave them open."""
        return ()

    def for_model(self, recurrent: bool) -> Self:
        """Return the settings for a model with or without a carry; here themselves."""
        return self

    def for_images(self, layout: str) -> Self:
        """Return the settings for a model that is told the layout of images, "auto" if it is not; here themselves."""
        return self

    def as_lanes(self, num_agents: int) -> Self:
        """Return the settings as an algorithm sees them if environments have several agents, where each is a lane; here
        themselves."""
        return self

    def network(self, default: Any) -> Any:
        """Return the function of the spaces that makes the network for these settings; here ``default``, the algorithm's own."""
        return default

    @property
    def optimizer(self) -> OptimizerFn:
        """The default optimiser."""
        return clipped_adam

    def check(self, *, recurrent: bool = False) -> None:
        """Check that the sizes fit together; each is in its own range already. Subclasses check their own settings after these.

        Args:
          recurrent: the model has a carry.

        Raises:
          ValueError: the sizes do not fit together.
        """
        if self.steps_per_iteration >= 2**31:
            sizes = " * ".join(f"{name}={getattr(self, name)}" for name in self.size_names)
            raise ValueError(f"{sizes} is {self.steps_per_iteration} rows per iteration, which are counted in 32 bits: use fewer")


@dataclasses.dataclass(frozen=True)
class RolloutConfig(AgentConfig):
    """Structural settings of algorithms that learn from rollouts."""

    num_envs: Count = 8
    """Number of environments stepped in parallel."""
    rollout_length: Count = 64
    """Rows per environment in an iteration."""
    anneal: bool = True
    """Anneal the learning rate linearly to 0 at ``total_steps``. There is no annealing if ``total_steps`` is unknown, or if
    ``schedules`` has an entry for the learning rate."""

    def as_lanes(self, num_agents: int) -> Self:
        return dataclasses.replace(self, num_envs=self.num_envs * num_agents)


@dataclasses.dataclass(frozen=True)
class BufferConfig(RolloutConfig):
    """Structural settings of algorithms that draw rows from a buffer."""

    batch_size: Count = 64
    """Rows per gradient step."""
    buffer_size: Count = 100_000
    """Rows kept, over all environments."""
    learning_starts: CountOrZero = 1_000
    """Rows collected before the first update."""
    replay_ratio: Positive = 32.0
    """Rows drawn per row collected: updates per iteration = replay_ratio · num_envs · rollout_length / batch_size, exactly."""

    def as_lanes(self, num_agents: int) -> Self:
        lanes = super().as_lanes(num_agents)
        size = max(1, self.buffer_size // lanes.num_envs) * lanes.num_envs  # the default may not be a multiple
        # A draw of all agents is the same share of the rows of lanes as of those of environments.
        ratio = self.replay_ratio / (num_agents if self.draws_environments else 1)
        return dataclasses.replace(lanes, buffer_size=size, replay_ratio=ratio)

    @property
    def draws_environments(self) -> bool:
        """True if ``batch_size`` counts rows of environments, each with those of all agents, and not rows of lanes."""
        return False

    @property
    def has_memory(self) -> bool:
        """True if the networks have memory, and so learn from sequences."""
        return False

    @property
    def rows_per_update(self) -> tuple[int, str]:
        """Number of rows per gradient step, and the same number as an expression of setting names."""
        return self.batch_size, "batch_size"

    @property
    def updates_per_iteration(self) -> int:
        return round(self.replay_ratio * self.steps_per_iteration / self.rows_per_update[0])

    @property
    def warmup_iterations(self) -> int:
        """Number of iterations that collect at least ``learning_starts`` rows."""
        return -(-self.learning_starts // self.steps_per_iteration)

    @property
    def window(self) -> tuple[int, str]:
        """Number of rows of an environment that a draw needs, and the same number as an expression of setting names."""
        return 1, "1"

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        rows, names = self.rows_per_update
        updates = self.replay_ratio * self.steps_per_iteration / rows
        if not updates >= 1 or not is_whole(updates):
            raise ValueError(
                f"replay_ratio={self.replay_ratio:g} gives {updates:g} updates per iteration (replay_ratio * num_envs * "
                f"rollout_length / {names}), which must be a whole number >= 1: use a multiple of "
                f"{rows / self.steps_per_iteration!r}, or change the sizes"
            )
        if self.buffer_size % self.num_envs:
            raise ValueError(f"buffer_size={self.buffer_size} must be a multiple of num_envs={self.num_envs}")
        self.check_buffer()
        if self.learning_starts > self.buffer_size:
            raise ValueError(f"learning_starts={self.learning_starts} must be at most buffer_size={self.buffer_size}")

    def check_buffer(self) -> None:
        """Raise ValueError if the buffer is too small for a batch, an iteration or the windows of all environments."""
        window, names = self.window
        if self.buffer_size < max(self.batch_size, window * self.num_envs, self.steps_per_iteration):
            raise ValueError(
                f"buffer_size={self.buffer_size} is too small: it must hold a batch ({self.batch_size}), one iteration "
                f"({self.steps_per_iteration}) and {names} = {window} rows of each environment "
                f"({window * self.num_envs})"
            )


@dataclasses.dataclass(frozen=True)
class ReplayConfig(BufferConfig):
    """Structural settings of algorithms that learn from transitions or sequences of replay."""

    n_step: Count = 1
    """Number of rewards in a return before it bootstraps."""
    updates: Count = added(100)
    """Gradient steps of an iteration that learns from ``data`` alone; then a step is a gradient step, and ``num_envs``,
    ``rollout_length``, ``replay_ratio``, ``buffer_size`` and ``learning_starts`` have no effect."""
    online: bool = added(False)
    """With ``data``: collect rollouts as well, without a warm-up, and learn from both."""
    mixing_ratio: Unit = added(0.5)
    """With ``online``: fraction of each batch that is drawn from the data."""
    reset_interval: CountOrZero = added(0)
    """Environment steps, or with ``data`` updates, between resets of all networks and optimisers, which then learn again from the
    whole replay (Nikishin et al. 2022); 0: never."""

    @property
    def only_with_data(self) -> tuple[str, ...]:
        return ("updates", "online")

    @property
    def unused_with_data(self) -> tuple[str, ...]:
        collecting = ("num_envs", "rollout_length", "replay_ratio", "buffer_size")
        return ("learning_starts", *(() if self.online else collecting))

    def as_lanes(self, num_agents: int) -> Self:
        # Counts rows of lanes: an environment step has one for each agent.
        return dataclasses.replace(super().as_lanes(num_agents), reset_interval=self.reset_interval * num_agents)

    @property
    def rows_around(self) -> int:
        """Number of rows of an environment that a draw needs in addition to those of its return."""
        return 2

    @property
    def rows_behind(self) -> int:
        """Number of rows of a draw after its first."""
        return self.n_step

    @property
    def window(self) -> tuple[int, str]:
        return self.n_step + self.rows_around, f"n_step + {self.rows_around}"

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        if self.reset_interval % self.steps_per_iteration:
            raise ValueError(
                f"reset_interval={self.reset_interval} must be a multiple of an iteration's {self.steps_per_iteration} rows: "
                "networks are reset between iterations"
            )
        if not self.online and self.mixing_ratio != type(self)().mixing_ratio:
            raise ValueError(f"mixing_ratio={self.mixing_ratio:g} has no effect without online=True: leave it out")
        replay = getattr(self, "replay", None)
        if self.online and self.mixing_ratio == 1 and replay not in (None, Uniform()):
            raise ValueError(f"replay={replay} has no effect with mixing_ratio=1, which draws no collected rows: leave it out")
        if self.online and not is_whole(self.mixing_ratio * self.batch_size):
            raise ValueError(
                f"mixing_ratio={self.mixing_ratio:g} of batch_size={self.batch_size} is {self.mixing_ratio * self.batch_size:g} "
                "rows, which must be a whole number: change one of these"
            )

    def for_data(self) -> Self:
        """Return the settings of an agent with a dataset. Raise ValueError if a setting has no effect then.

        That of an agent that learns from it alone is an iteration of one environment with a row for each update.
        """
        kind: Any = type(self)
        if self.online:
            for name, value in {"learning_starts": 0, "updates": kind().updates, "hindsight": None}.items():
                if getattr(self, name, value) not in (value, getattr(kind(), name, value)):
                    raise ValueError(f"{name}={getattr(self, name)!r} has no effect with online=True: leave it out")
            return dataclasses.replace(self, learning_starts=0)
        defaults = kind()
        sizes: dict[str, Any] = {"num_envs": 1, "rollout_length": self.updates, "learning_starts": 0}
        sizes["replay_ratio"] = float(self.rows_per_update[0])
        for name, value in {**sizes, "buffer_size": defaults.buffer_size, "replay": Uniform(), "hindsight": None}.items():
            if getattr(self, name, value) not in (value, getattr(defaults, name, value)):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no effect with data=…: no environment is stepped, and no row is stored"
                )
        return dataclasses.replace(self, **sizes)


@dataclasses.dataclass(frozen=True)
class DatasetConfig(AgentConfig):
    """Structural settings of algorithms that learn from a dataset alone. A step is a gradient step."""

    updates: Count = 100
    """Gradient steps of an iteration."""
    batch_size: Count = 256
    """Rows per gradient step."""
    anneal: bool = False
    """Anneal the learning rate linearly to 0 at ``total_steps``."""
    normalize_observations: bool = True
    """Normalise observations by their mean and standard deviation in the data."""

    @property
    def num_envs(self) -> int:
        return 1

    @property
    def rollout_length(self) -> int:
        return self.updates

    @property
    def size_names(self) -> tuple[str, ...]:
        return ("updates",)

    @property
    def updates_per_iteration(self) -> int:
        return self.updates


@dataclasses.dataclass(frozen=True)
class HindsightConfig(ReplayConfig):
    """Structural settings of algorithms that can draw by priority and relabel goals."""

    replay: Uniform | Prioritized | Recent = added(Uniform())
    """How rows are drawn from replay, unless ``replay`` is a custom ``ReplayFn``."""
    hindsight: Future | Final | Episode | None = added(None)
    """Hindsight experience replay, for goal environments: relabel a share of the drawn rows with a goal that was reached."""
    augmentation: Shift | None = added(None)
    """Change of the images in drawn rows, so that the networks generalise."""

    def for_images(self, layout: str) -> Self:
        if self.augmentation is None or self.augmentation.layout != "auto":
            return self
        return dataclasses.replace(self, augmentation=dataclasses.replace(self.augmentation, layout=layout))  # type: ignore[arg-type]

    @property
    def rows_around(self) -> int:
        return 2 + (self.hindsight is not None)
