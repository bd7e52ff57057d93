"""Setup of algorithms that learn from replay: draws, and the scan over the updates of an iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import jax
import jax.numpy as jnp

from jaxrl.builder.config import BufferConfig, DatasetConfig
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.optimize.descent import Progress
from jaxrl.optimize.schedules import remaining
from jaxrl.replay import Draw, Replay, over_devices
from jaxrl.replay.transitions import replay_rows
from jaxrl.rollout.inputs import example_input
from jaxrl.types import Algorithm, Array, Key, LearnerState, Metrics, PyTree, Rollout
from jaxrl.xla.fast_random import fold_in

R = TypeVar("R", bound=BufferConfig | DatasetConfig)

PRIORITIES = "priorities"
"""Key in the metrics of a loss for the priorities of the drawn rows, f32[batch_size]. They are not logged."""
GATHERED_BYTES = 2**15
"""Most bytes of observations to gather from replay at once. This much stays in a cache, and for many seeds the gathered rows
stay small compared with the replay: 16 seeds of CartPole with 100,000 rows each take 1.29 times the memory of their rows, and
1.71 times with a limit eight times as large."""


@dataclass(frozen=True, kw_only=True)
class ReplaySetup(AlgorithmSetup[R]):
    """Setup of an algorithm with replay."""

    replay: Replay

    @classmethod
    def from_setup(cls, setup: AlgorithmSetup[R], **fields: Any) -> Self:
        """Add the ``fields`` of this class to a setup."""
        return cls(**vars(setup), **fields)

    def algorithm(self, **keywords: Any) -> Algorithm:
        """Bind functions as ``AlgorithmSetup.algorithm`` does. By default ``observe`` and ``mark_discontinuity`` are those of
        this module. Rollouts of older policies are always allowed."""
        shared = {"observe": store, "mark_discontinuity": mark_discontinuity, "buffers": ("replay",), "tolerates_lag": True}
        if getattr(self.config, "reset_interval", 0):
            keywords["learn"] = partial(learn_after_reset, keywords["init"], keywords["learn"])
        return super().algorithm(**{**shared, **keywords})

    def draw(self, learner: Any) -> Draw:
        """Draw the rows for all updates of an iteration, one batch after the other."""
        return self.draw_batches(learner.replay, self.draw_key(learner), self.config.updates_per_iteration)

    def draw_batches(self, replay: PyTree, key: Key, number: int = 1) -> Draw:
        """Draw the rows of ``number`` batches. Each device draws its share of every batch."""
        return over_devices(self.replay.draw(replay, key, number * self.device_batch_size), self.axis_name)

    def draw_key(self, learner: LearnerState) -> Key:
        """Return the random key for this iteration's rows on this device."""
        return self.device_key(self.update_key(learner))

    @property
    def device_batch_size(self) -> int:
        """Number of rows of a batch on this device. Raise ValueError if devices cannot have equal shares."""
        size, devices = self.config.batch_size, 1 if self.axis_name is None else jax.lax.axis_size(self.axis_name)
        if size % devices:
            raise ValueError(f"batch_size={size} must be a multiple of the {devices} devices, which draw equal shares of a batch")
        return size // devices

    @property
    def num_parts(self) -> int:
        """Number of equal parts in which an iteration gathers rows.

        It is the smallest divisor of the number of updates that keeps the observations and next observations of a part within
        ``GATHERED_BYTES``, or else one part per update. With priorities it is one part per update, because a draw depends on the
        updates before it.
        """
        obs = jax.tree.leaves(example_input(self.observation_space, self.action_space).obs)
        update, number = 2 * self.config.batch_size * sum(x.nbytes for x in obs), self.config.updates_per_iteration
        fits = (k for k in range(1, number) if number % k == 0 and number // k * update <= GATHERED_BYTES)
        return number if self.replay.prioritised else next(fits, number)

    def scan_updates(
        self, learner: Any, step: Callable[[Any, Any], Any], start: PyTree, batch: Callable[[Any, Draw], PyTree], *others: PyTree
    ) -> tuple[PyTree, Any, Any]:
        """Run the updates of an iteration with ``jax.lax.scan``.

        Args:
          step: a single update, (carry, (number of the update, batch, *others)) -> (carry, (metrics, priorities
            f32[batch_size])).
          start: the initial carry.
          batch: (replay's state, draw) -> the update's batch, one row for each row of the draw.
          others: leaves [updates_per_iteration, ...]; each update gets its slice.

        Returns:
          The last carry, the replay's state, and the metrics, stacked.
        """
        number, parts, prioritised = self.config.updates_per_iteration, self.num_parts, self.replay.prioritised
        key = self.draw_key(learner)

        def one(carry: Any, update: Any) -> Any:
            carry, (metrics, priorities) = step(carry, update)
            return carry, (metrics, priorities if prioritised else ())

        def part(carry: Any, updates: Any) -> Any:
            (learnt, replay), (drawn, numbers, *others) = carry, updates
            if prioritised:  # a single update
                drawn = self.draw_batches(replay, fold_in(key, numbers[0]))
            # Gathering all rows of a part in one large step is faster than one gather per update.
            batches = in_parts(batch(replay, drawn), number // parts)
            learnt, (metrics, priorities) = scan(one, learnt, (numbers, batches, *others))
            if prioritised:
                replay = self.replay.update(replay, drawn, priorities[0])
            return (learnt, replay), metrics

        drawn = () if prioritised else self.draw(learner)
        updates = in_parts((drawn, jnp.arange(number, dtype=jnp.int32), *others), parts)
        # The scan carries the buffer; otherwise the buffer would be copied into the loop.
        (learnt, replay), metrics = scan(part, (start, learner.replay), updates)
        return learnt, replay, jax.tree.map(lambda x: x.reshape((number, *x.shape[2:])), metrics)

    def learn(
        self,
        learner: Any,
        hyperparams: Any,
        loss: Callable[..., tuple[Array, dict[str, Array]]],
        batch: Callable[[Any, Draw], PyTree],
        number: int = 0,
    ) -> tuple[Any, Metrics]:
        """Run the updates of an iteration without a target network, with one gradient step per batch.

        Args:
          hyperparams: ``current(learner)``.
          loss: (params, parameters before the step, batch, key) -> (loss, scalars to log), with ``PRIORITIES`` if it has any.
          batch: (replay's state, draw) -> the update's batch, as in ``scan_updates``.
          number: that of the random ``stream`` of the losses' keys.
        """
        descent = self.descent(hyperparams, learner.params)
        keys = jax.random.split(self.device_key(self.stream(learner, number)), self.config.updates_per_iteration)

        def update_once(progress: Progress, drawn: tuple[Array, PyTree, Key]) -> Any:
            _, rows, key = drawn
            before = descent.params(progress)
            progress, metrics = descent.step(lambda params: loss(params, before, rows, key), progress)
            return progress, (metrics, metrics.pop(PRIORITIES, ()))

        start = descent.start(learner.params, learner.opt_state)
        progress, replay, metrics = self.scan_updates(learner, update_once, start, batch, keys)
        return self.updated(learner, hyperparams, metrics, **descent.finish(progress), replay=replay)

    def weighted(self, drawn: Any, learner: LearnerState) -> Any:
        """Raise the weights of drawn rows to the importance exponent of the settings, if they have one.

        With ``anneal`` the exponent rises to 1 at ``total_steps``. The drawn weights are for an exponent of 1.
        """
        exponent = getattr(getattr(self.config, "replay", None), "importance_exponent", None)
        if exponent is None:
            return drawn
        iteration, total_steps = learner.version + self.warmup_iterations, learner.hyperparams.total_steps
        left = remaining(iteration, self.steps_per_iteration, total_steps) if self.config.anneal else 1.0
        return drawn._replace(weight=drawn.weight ** (1.0 - (1.0 - exponent) * jnp.asarray(left)))


def in_parts(rows: PyTree, parts: int) -> PyTree:
    """Reshape rows [n, ...] to [parts, n / parts, ...]."""
    return jax.tree.map(lambda x: x.reshape((parts, len(x) // parts, *x.shape[1:])), rows)


def scan(body: Callable[[Any, Any], tuple[Any, Any]], carry: PyTree, xs: PyTree) -> tuple[PyTree, PyTree]:
    """``jax.lax.scan``, without a loop for a single step."""
    if len(jax.tree.leaves(xs)[0]) > 1:
        return jax.lax.scan(body, carry, xs)
    carry, out = body(carry, jax.tree.map(lambda x: x[0], xs))
    return carry, jax.tree.map(lambda x: x[None], out)


def store(setup: ReplaySetup[Any], learner: Any, rollout: Rollout) -> Any:
    """Add the rollout's rows, not normalised, to the replay."""
    return learner._replace(replay=setup.replay.add(learner.replay, replay_rows(rollout), rollout.env_id))


RESET = 99
"""Random stream of the parameters after a reset."""
KEPT = ("replay", "hyperparams", "key", "version")
"""Fields of a learner's state that a reset keeps."""


def learn_after_reset(
    init: Callable[..., Any], learn: Callable[..., tuple[Any, Metrics]], setup: ReplaySetup[Any], learner: Any
) -> tuple[Any, Metrics]:
    """Run an iteration's updates; after each ``reset_interval`` with initial networks and optimisers (Nikishin et al. 2022)."""
    due = (learner.version > 0) & (learner.version % (setup.config.reset_interval // setup.config.steps_per_iteration) == 0)

    def fresh(learner: Any) -> Any:
        new = init(setup, setup.stream(learner, RESET), learner.hyperparams)
        return new._replace(**{name: getattr(learner, name) for name in KEPT})

    return learn(setup, jax.lax.cond(due, fresh, lambda learner: learner, learner))


def mark_discontinuity(setup: ReplaySetup[Any], learner: Any) -> Any:
    """Mark a break in the replay, because the environments are reset."""
    return learner._replace(replay=setup.replay.mark_discontinuity(learner.replay))
