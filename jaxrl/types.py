"""The contracts: the only types that travel between the parts of jaxrl.

Everything here is data (NamedTuples of arrays) or a NamedTuple of pure functions, typed by the Protocols below. Shapes read
``f32[B]``; ``B`` is the number of environments, ``T`` the number of rows in a rollout; ``[]`` is one environment, unbatched.

Rows follow the NEXT_STEP convention of Gymnasium and envpool. When an episode ends at row t, ``inputs[t + 1].obs`` is the true
last observation; row t + 1 is spent on the reset (its action is ignored, its reward is 0 and ``valid`` is False), and
``inputs[t + 2].is_first`` is True. So the value that follows a truncated step is always ``V(inputs[t + 1])``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from jax import Array
else:
    Array = Any  # a process that only steps host environments need not import jax

PyTree: TypeAlias = Any
Key: TypeAlias = Array
"""A typed threefry key, as made by ``jax.random.key``."""


# ---------------------------------------------------------------------------------------------------------------- environments


class TimeStep(NamedTuple):
    """What one environment step returns, unbatched."""

    obs: PyTree
    """The observation that was reached. Environments never reset themselves."""
    reward: Array
    """f32[], raw: neither scaled nor clipped."""
    terminated: Array
    """bool[]. The MDP ended, so the value beyond is 0. Wins when both flags are true."""
    truncated: Array
    """bool[]. A limit cut the episode, so the value beyond is V(obs)."""
    info: dict[str, Array] = {}
    """Numbers, of the same names, shapes and types in every step, for ``Rollout.info``. What no rule reads costs nothing."""


class ResetFn(Protocol):
    def __call__(self, key: Key, params: PyTree, /) -> tuple[PyTree, PyTree]:
        """Start an episode: ``(env_state, obs)``."""
        ...


class StepFn(Protocol):
    def __call__(self, key: Key, env_state: PyTree, action: Array, params: PyTree, /) -> tuple[PyTree, TimeStep]:
        """Advance one environment by one action: ``(env_state, TimeStep)``."""
        ...


class RenderFn(Protocol):
    def __call__(self, env_state: PyTree, action: Any, params: PyTree, /) -> Any:
        """One environment as a picture: u8[height, width, 3]. ``action`` led there; it is None where an episode starts.

        Never traced: it may draw with Pillow, matplotlib or NumPy.
        """
        ...


class ComputeRewardFn(Protocol):
    def __call__(self, achieved: PyTree, desired: PyTree, /) -> tuple[Array, Array]:
        """``(reward f32[], terminated bool[])`` of a step that reached ``achieved`` where ``desired`` was the goal; unbatched."""
        ...


class Env(NamedTuple):
    """A pure environment: functions of one unbatched instance, and data.

    One with ``compute_reward`` is a *goal environment*: its observations are a Dict of ``observation``, ``achieved_goal`` and
    ``desired_goal``, the names of Gymnasium-Robotics, and what a step earns and whether it ends the episode follow from what was
    achieved and what was desired. See ``jaxrl.spaces.goals``.
    """

    reset: ResetFn
    step: StepFn
    observation_space: spaces.Space
    action_space: spaces.Space
    params: PyTree = ()
    """Default environment parameters: data, so they can be batched over environments and differ between seeds."""
    name: str = "custom"
    max_episode_steps: int | None = None
    """A limit that jaxrl enforces, as truncation, on top of the environment's own. None: the environment has its own, or none."""
    render: RenderFn | None = None
    """Draws a state, for ``jaxrl record``."""
    render_fps: float = 30.0
    """Pictures per second in real time."""
    compute_reward: ComputeRewardFn | None = None
    """Of a goal environment: the reward and the termination of any step for any goal, for replay in hindsight."""


class HostStep(NamedTuple):
    """What a batch of host environments returns for one step: NumPy arrays, NEXT_STEP rows (see the module's text).

    The arrays are the caller's: a later step must not write into them.
    """

    obs: PyTree
    reward: Any
    """f32[B], or other real numbers, which become it; 0 on reset rows."""
    terminated: Any
    """bool[B]"""
    truncated: Any
    """bool[B]"""
    info: dict[str, Any] = {}
    """Arrays of numbers [B, ...], of the same names, shapes and types in every step, for ``Rollout.info``."""


class HostEnvs(Protocol):
    """A running batch of host environments, as ``HostEnv.open`` returns it.

    Where ``step`` does not end episodes at ``HostEnv.max_episode_steps`` by itself, there is one more method:
    ``reset_where(mask bool[B]) -> obs[B]`` starts new episodes in some environments; the other rows of ``obs`` are not looked at.

    Environments that step in the background have two more, which together do what ``step`` does. ``send(action, env_id=None)``
    begins a row of all environments, or of those that a ``recv`` gave together, and returns at once.
    ``recv() -> (env_id i32[n], HostStep[n])`` waits for rows that were sent and gives some of them, in any order; ``env_id``
    counts from 0 in this batch. No ``step`` and no ``reset`` may come between the two. Where rows come in parts there may be
    ``recv_all() -> HostStep[B]`` too, which gives those of all environments, after ``send(action)``, without a copy of each part.
    Where ``open`` takes a keyword ``batch_size`` as well, ``recv`` gives so many rows, of the environments that are done first,
    and ``send`` takes any environments.

    Environments that can be lost and begun anew by themselves tell of it: ``begun_anew() -> bool[B]`` says in which of them the
    last row did not come of the action, but is a reset row (``obs`` the first of a new episode, reward 0, both flags false) after
    a row that ended nothing. That row is not valid, the row before it counts as cut off there, and the episode is in no
    statistic. After ``reset_where`` it says in which environments besides ``obs`` is the first of a new episode.

    Environments that a compiled program can step have ``compiled() -> CompiledEnvs``.
    """

    def reset(self) -> PyTree:
        """Start all episodes and return obs[B]."""
        ...

    def step(self, action: Any) -> HostStep:
        """Step all environments. An environment that ended at the step before ignores its action and resets."""
        ...

    def close(self) -> None:
        """Release what the environments hold. Nothing is called afterwards."""
        ...


class CompiledEnvs(NamedTuple):
    """A running batch of host environments as operations of a program of JAX's, on a CPU; no ``vmap`` goes over them."""

    handle: Array
    """Of the batch, before its next row. What each function gives is given to the next: that keeps them in order."""
    send: Callable[[Array, Array], Array]
    """(handle, action [B, ...]) -> handle: begins a row of all environments. Actions are not looked at."""
    recv: Callable[[Array], tuple[Array, HostStep]]
    """handle -> (handle, the row), in the order of the environments."""


class OpenFn(Protocol):
    def __call__(self, num_envs: int, seed: int, first_id: int = 0) -> HostEnvs:
        """Start ``num_envs`` environments. The stream of the i-th is fixed by ``seed`` and ``first_id + i``, and by nothing else:
        two processes that open two each have the rows of one that opens four."""
        ...


class HostEnv(NamedTuple):
    """An environment that runs on the host (C++ or Python): nothing starts before ``open``."""

    open: OpenFn
    observation_space: spaces.Space
    action_space: spaces.Space
    options: Mapping[str, Any] = {}
    name: str = "host"
    max_episode_steps: int | None = None
    """A limit that jaxrl enforces, as truncation, in training and in evaluation (see ``HostEnvs``)."""
    open_eval: OpenFn | None = None
    """As ``open``, for scores: raw rewards and whole games where ``open`` changes them for learning. None: ``open`` itself."""
    open_render: OpenFn | None = None
    """As ``open_eval``, with one more method: ``render() -> u8[B, height, width, 3]`` draws where the environments stand."""
    render_fps: float = 30.0
    """Pictures per second in real time."""
    compute_reward: ComputeRewardFn | None = None
    """Of a goal environment, as ``Env.compute_reward``; a function of JAX, as learning calls it."""


EnvLike: TypeAlias = str | Env | HostEnv | Callable[..., Any]
"""An environment, as builders take it: an id, an Env, a HostEnv, or a class or function that makes one Gymnasium environment."""


# ------------------------------------------------------------------------------------------------------------------------ data


class StepInput(NamedTuple):
    """What a policy sees, the same for every model. Unbatched, [B] or [T, B]."""

    obs: PyTree
    prev_action: Array
    """The action that the environment executed one row before; zeros on the first row of an episode."""
    prev_reward: Array
    """f32, raw; 0 on the first row of an episode."""
    is_first: Array
    """bool: the first row of an episode; a recurrent model starts from its initial carry here."""


class Rollout(NamedTuple):
    """What a learner gets, whoever collected it: time-major, T rows of B environments."""

    inputs: StepInput
    """[T + 1, B]. ``inputs[t + 1].obs`` is always what row t reached, so V(next of t) = V(inputs[t + 1])."""
    action: Array
    """[T, B, ...], as the environment executed it."""
    reward: Array
    """f32[T, B], raw."""
    terminated: Array
    """bool[T, B]"""
    truncated: Array
    """bool[T, B]"""
    extras: PyTree
    """[T, B, ...]: what ``Algorithm.act`` recorded for its own learning rule (log_prob, value, ...)."""
    valid: Array
    """bool[T, B]. False on the reset row after an end and on padding: such rows enter no loss and no statistic."""
    carry: PyTree
    """[B, ...]: the recurrent state before row 0, as it was when acting; () when memoryless."""
    env_id: Array
    """i32[B]: which environments these are."""
    version: Array
    """i32[B]: which parameters acted (``Policy.version``)."""
    info: dict[str, Array] = {}
    """[T, B, ...]: what the environments told besides, on every row; whatever that is where ``valid`` is False."""


class Mean(NamedTuple):
    """A weighted mean that is still open: parts combine by adding, the ratio is taken on the host.

    ``float`` gives the ratio of all that was counted, ``np.asarray`` one for each element; NaN where nothing was counted.
    ``jaxrl.metrics.to_floats`` does so for all metrics at once.
    """

    sum: Array
    count: Array  # type: ignore[assignment]  # a field may hide tuple.count

    def __float__(self) -> float:
        total, count = (np.sum(np.asarray(x), dtype=np.float64) for x in self)
        return float(_ratio(np.asarray(total), np.asarray(count)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _ratio(np.asarray(self.sum, np.float64), np.asarray(self.count, np.float64)).astype(dtype or np.float64)


class Min(NamedTuple):
    """A minimum that is still open; +inf when nothing was seen, for which ``float`` and ``np.asarray`` give NaN."""

    value: Array

    def __float__(self) -> float:
        return float(_seen(np.min(np.asarray(self.value))))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _seen(np.asarray(self.value)).astype(dtype or np.float64)


class Max(NamedTuple):
    """A maximum that is still open; -inf when nothing was seen, for which ``float`` and ``np.asarray`` give NaN."""

    value: Array

    def __float__(self) -> float:
        return float(_seen(np.max(np.asarray(self.value))))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _seen(np.asarray(self.value)).astype(dtype or np.float64)


def _ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def _seen(value: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(value), value, np.nan)


Metrics: TypeAlias = dict[str, Mean | Min | Max]
"""Flat, with the log keys of CleanRL (``charts/episodic_return``, ``losses/value_loss``, ...)."""


# ---------------------------------------------------------------------------------------------------------------------- models


class Model(NamedTuple):
    """A network as pure functions; nothing here knows which library made it."""

    init: InitModelFn
    apply: ApplyFn
    """One step over a batch: inputs [B]."""
    unroll: ApplyFn
    """The same over time: inputs [T, B]; encodes all T·B rows at once and scans only the core."""
    initial_carry: InitialCarryFn


class InitModelFn(Protocol):
    def __call__(self, key: Key, inputs: StepInput, /) -> PyTree:
        """Parameters, given an example of one row: inputs [B]."""
        ...


class ApplyFn(Protocol):
    def __call__(self, params: PyTree, carry: PyTree, inputs: StepInput, /, key: Key | None = None) -> tuple[PyTree, Any]:
        """``(carry, outputs)``. Restarts the carry by itself wherever ``inputs.is_first``.

        ``key`` is for what the network itself draws: noise in its weights, dropout, quantiles. Without one it draws nothing.
        Rules that have one give it by name. A function that draws nothing may leave the argument out: builders see to that.
        """
        ...


class InitialCarryFn(Protocol):
    def __call__(self, batch_size: int, /) -> PyTree:
        """The recurrent state at the start of an episode, [B, ...]; () when memoryless."""
        ...


# ------------------------------------------------------------------------------------------------------------------ algorithms


class Policy(NamedTuple):
    """All that an actor needs, and no more."""

    params: PyTree
    statistics: PyTree
    """Normalisation statistics that acting uses; () when there are none."""
    exploration: PyTree
    """Whatever ``explore=True`` needs besides the parameters (an epsilon); () when there is nothing."""
    version: Array
    """i32[]: the number of ``update`` (or ``learn``) calls that led to these parameters."""
    hyperparams: PyTree = ()
    """Those that ``Algorithm.gradients`` learns with, after schedules and annealing; () in rules without it."""


class LearnerState(Protocol):
    """What every rule's LearnerState has; each rule's own NamedTuple adds its fields (target_params, replay, ...).

    A NamedTuple anywhere in a state that keeps something per environment says so by a property ``env_axes``: field -> the axis
    that runs over environments, in all leaves of the field. On several devices each then holds its own share of them.
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


class ActFn(Protocol):
    def __call__(
        self, policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
    ) -> tuple[PyTree, Array, PyTree]:
        """``(carry, action[B], extras[B])``. Environment i draws from (key, env_id[i]) alone, whatever the batch around it."""
        ...


class Algorithm(NamedTuple):
    """A learning rule. It knows spaces, and no environment. ``Any`` is the rule's own ``LearnerState``."""

    init: Callable[[Key, PyTree], Any]
    """From a key and hyperparams."""
    policy: Callable[[Any], Policy]
    act: ActFn
    update: Callable[[Any, Rollout], tuple[Any, Metrics]]
    """Learn from one rollout. For replay rules, ``learn`` after ``observe``."""
    initial_carry: InitialCarryFn
    """The model's, for whoever acts."""
    observe: Callable[[Any, Rollout], Any] | None = None
    """Take rollouts in without learning: store rows, refresh statistics. Present where the warm-up needs it."""
    learn: Callable[[Any], tuple[Any, Metrics]] | None = None
    """Replay rules only: draw and learn."""
    mark_discontinuity: Callable[[Any], Any] | None = None
    """Replay rules only: the environments begin anew, so no row stored so far is followed by the next one to come."""
    gradients: Callable[[Policy, Rollout], tuple[PyTree, Metrics]] | None = None
    """Rules with one gradient per rollout only: that gradient, shaped like the parameters, and metrics. It needs no learner, so
    another process can compute it. ``update`` is ``apply`` of it, after ``observe`` where the rule has one."""
    apply: Callable[[Any, PyTree], Any] | None = None
    """Learn from a gradient, or from the mean of several: the learner with other parameters and the next version. What
    ``observe`` keeps (statistics of observations and rewards) stays: whoever learns from gradients alone has to observe the
    rollouts as well, or those statistics never move."""
    warmup_iterations: int = 0
    """How many rollouts ``Agent.init`` collects and observes without learning."""
    transferable_fields: tuple[str, ...] = ("params", "statistics")
    """Fields of the LearnerState that ``init_from`` takes from another run. One that is not there, as target networks are not
    where policies were saved, begins with that run's ``params``."""
    buffers: tuple[str, ...] = ()
    """Fields of the LearnerState that store rows: ``save_replay=False`` leaves them out of checkpoints, where a seed is frozen
    their arrays alone are not put back, and where environments run on the host those arrays are given up to each ``update`` and
    ``observe``, which write into them: a ``Policy`` must not hold them. A NamedTuple within them that has other arrays as well,
    such as priorities, names its fields of rows by a property ``row_fields``; then only these arrays count."""
    tolerates_lag: bool = False
    """Whether ``update`` is right for a rollout of parameters that are a few updates old: because rows come from replay, or
    because the rule corrects for the probability with which actions were drawn."""


# ---------------------------------------------------------------------------------------------------------------------- agents


class EpisodeStatistics(NamedTuple):
    """The running episode of each environment, [B]."""

    episodic_return: Array
    """f32[B]: the sum of raw rewards so far."""
    episodic_length: Array
    """i32[B]: the number of valid rows so far."""


class ActorState(NamedTuple):
    """Where the environments stand; every leaf has the leading axis [num_envs]."""

    env_state: PyTree
    input: StepInput
    carry: PyTree
    done: Array
    """bool[B]: the episode ended on the row before, so the next row is spent on the reset."""
    episode: EpisodeStatistics

    @property
    def env_axes(self) -> Mapping[str, int]:
        return dict.fromkeys(self._fields, 0)


class AgentState(NamedTuple):
    """Everything: with this and the program, a run goes on bit for bit."""

    learner: Any
    actor: ActorState
    env_params: PyTree
    """One value for all environments, or leaves with a leading axis [num_envs]."""
    key: Key
    """Constant: iteration n of environment i draws from (key, n, i)."""
    iteration: Array
    """i32[]: rollouts collected so far, the warm-up included."""
    warmup_rows: Array
    """i32[]: valid rows that the warm-up collected, over all environments."""


class InitAgentFn(Protocol):
    def __call__(self, key: Key, hyperparams: Any = None, env_params: PyTree = None) -> AgentState:
        """Initialise and run the warm-up. ``hyperparams``: a mapping of the ones to change, or the rule's whole NamedTuple."""
        ...


class StepAgentFn(Protocol):
    def __call__(self, state: AgentState, /) -> tuple[AgentState, Metrics]:
        """Collect one rollout and learn from it."""
        ...


class Agent(NamedTuple):
    """An Algorithm bound to an environment."""

    init: InitAgentFn
    step: StepAgentFn
    algorithm: Algorithm
    env: Env | HostEnv
    spec: dict[str, Any]
    """Plain data from which ``jaxrl.build`` makes the same agent again, in another process or on another machine."""
    num_envs: int
    rollout_length: int
    axis_name: str | None = None
    hyperparams: Any = ()
    """The rule's defaults: a NamedTuple of numbers."""
    schedules: Mapping[str, Callable[[Array], Array]] = {}
    """Factors on them, by name: functions of the iteration."""

    @property
    def steps_per_iteration(self) -> int:
        """Rows per ``step``, over all environments and devices."""
        return self.num_envs * self.rollout_length


_METHODS_ELSEWHERE = {
    "learn train fit run": "jaxrl.run(agent, total_steps=…) trains it",
    "predict act sample get_action get_actions compute_action compute_actions compute_single_action forward policy": (
        "jaxrl.load_policy(folder) acts as a run has learnt, and agent.algorithm.act as a state has"
    ),
    "save": "jaxrl.run(agent, …, out=folder) saves as it trains, and jaxrl.save(folder, state, step) saves a state",
    "load restore from_checkpoint": "jaxrl.load_policy(folder) gives what a run has learnt, and jaxrl.restore a state",
    "evaluate": "jaxrl.evaluate(agent, state, key) does it",
    "update": "agent.step(state) collects and learns, and agent.algorithm.update learns from a rollout",
    "reset": "agent.init(key) gives a new state",
    "params parameters": "they are in a state, state.learner.params",
    "get_env set_env observation_space action_space": "agent.env is its environment; for another one, build another agent",
}
"""Methods of agents in PARL, Stable-Baselines3, RLlib and others, and what does the same here."""


def _say_what_does_it(agent: Agent, name: str) -> Any:
    hint = next((f": {what}" for names, what in _METHODS_ELSEWHERE.items() if name in names.split()), "")
    raise AttributeError(f"an Agent holds functions and no state, and has no attribute {name!r}{hint}")


if not TYPE_CHECKING:  # a checker is to say itself that there is no such attribute
    Agent.__getattr__ = _say_what_does_it
