"""Algorithms: what learns, and what acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jaxrl.types.arrays import Array, Key, PyTree
from jaxrl.types.data import Episodes, Rollout, StepInput
from jaxrl.types.environments import TimeStep
from jaxrl.types.metrics import Metrics
from jaxrl.types.models import InitialCarryFn


class Policy(NamedTuple):
    """Everything that an actor needs."""

    params: PyTree
    statistics: PyTree
    """Statistics used for acting: of normalisation, or those that the model learns; () if there are none."""
    exploration: PyTree
    """Exploration state used with ``explore=True``, such as epsilon; () if there is none."""
    version: Array
    """i32[]: the number of ``update`` (or ``learn``) calls that led to these parameters."""
    hyperparams: PyTree = ()
    """Hyperparameters for ``Algorithm.gradients``, after schedules and annealing; () in algorithms without ``gradients``."""


class LearnerState(Protocol):
    """Fields shared by the learner states of all algorithms; each algorithm's NamedTuple adds more (target_params, replay, ...).

    A NamedTuple anywhere in a state that holds data per environment declares it with a property ``env_axes``: field -> the axis
    that runs over environments, in all leaves of the field. With several devices, each holds its share of that axis.
    """

    @property
    def params(self) -> PyTree: ...
    @property
    def opt_state(self) -> PyTree: ...
    @property
    def hyperparams(self) -> PyTree: ...
    @property
    def statistics(self) -> PyTree: ...
    @property
    def key(self) -> Key: ...
    @property
    def version(self) -> Array: ...


class Simulator(NamedTuple):
    """The environments' states, [B], and the function that steps one of them, for algorithms that plan."""

    state: PyTree
    step: Callable[[Key, PyTree, Array], tuple[PyTree, TimeStep]]
    """(key, state, action) -> ``(state, TimeStep)`` of one environment, as ``Env.step``."""


class ActFn(Protocol):
    def __call__(
        self, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
    ) -> tuple[PyTree, Array, PyTree]:
        """Return ``(carry, action[B], extras[B])``.

        Random numbers of environment i depend only on (key, env_id[i]), not on the rest of the batch. With ``Algorithm.plans``
        there is an optional keyword ``simulator``, a ``Simulator``.
        """
        ...


class Algorithm(NamedTuple):
    """A learning algorithm, bound to spaces but not to an environment. ``Any`` stands for its ``LearnerState``."""

    init: Callable[[Key, PyTree], Any]
    """Return the initial learner state for a key and hyperparameters."""
    policy: Callable[[Any], Policy]
    act: ActFn
    update: Callable[[Any, Rollout], tuple[Any, Metrics]]
    """Learn from one rollout. With replay: ``observe``, then ``learn``."""
    initial_carry: InitialCarryFn
    """``initial_carry`` of the model, for actors."""
    observe: Callable[[Any, Rollout], Any] | None = None
    """Take in a rollout without learning: store rows, update statistics. Required for a warm-up."""
    learn: Callable[[Any], tuple[Any, Metrics]] | None = None
    """Only with replay: draw rows and learn from them."""
    mark_discontinuity: Callable[[Any], Any] | None = None
    """Only with replay: mark a discontinuity. The environments are reset, so the next rows do not follow the stored ones."""
    gradients: Callable[[Policy, Rollout], tuple[PyTree, Metrics]] | None = None
    """Only with a single gradient per rollout: return that gradient, shaped like the parameters, and metrics. It does not need
    the learner, so another process can compute it. ``update`` computes it, then calls ``observe`` (if present) and ``apply``."""
    apply: Callable[[Any, PyTree], Any] | None = None
    """Learn from a gradient, or the mean of several: return the learner with new parameters and the next version. It does not
    update the statistics of observations and rewards, so the rollouts must also be passed to ``observe``."""
    warmup_iterations: int = 0
    """Number of rollouts that ``Agent.init`` collects and observes without learning."""
    transferable_fields: tuple[str, ...] = ("params", "statistics")
    """Fields of the LearnerState that ``init_from`` takes from another run. A field missing there starts as a copy of that run's
    ``params``: saved policies, for example, have no target networks."""
    buffers: tuple[str, ...] = ()
    """Fields of the LearnerState that store rows. ``save_replay=False`` leaves these fields out of checkpoints. Freezing a seed
    does not restore their arrays. With host environments their arrays are donated to each ``update`` and ``observe``, so a
    ``Policy`` must not hold them. If a NamedTuple within these fields also has other arrays, such as priorities, it lists its
    fields of rows in a property ``row_fields``; then only those arrays are meant."""
    members: Callable[[Policy, Array], Policy] | None = None
    """Only in evolution: return the policy of one member of the population, given its number, i32[]. It is called once for all
    episodes of the member, which ``act`` then plays without exploration."""
    learn_from: Callable[[Any, Episodes], tuple[Any, Metrics]] | None = None
    """Only with ``members``, in place of ``update``: learn from the episodes of all members, or of this device's share."""
    remaining_rows: Callable[[Any], Array] | None = None
    """Only with ``members``: number of rows that may still be played, i32[]. If it is 0, no episodes are played, and
    ``learn_from`` returns the same learner."""
    plans: bool = False
    """``act`` plans with a ``Simulator`` of the environment, which must be pure; without one it acts by its network alone. The
    simulator draws from its own key, so a plan does not see the random numbers that the environment will draw."""
    check_vma: bool = True
    """``jax.shard_map`` checks which values vary over devices. False with loops that are not typed for that, such as mctx's."""
    tolerates_lag: bool = False
    """``update`` is correct for rollouts of parameters that are a few updates old, because rows come from replay or because the
    algorithm corrects for the probabilities with which actions were drawn."""
