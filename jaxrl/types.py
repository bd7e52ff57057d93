"""Contracts: the types that the parts of jaxrl exchange.

Each type is a NamedTuple of arrays or a NamedTuple of pure functions, typed by the Protocols below. Shapes are written
``f32[B]``. ``B`` is the number of environments and ``T`` the number of rows in a rollout; ``[]`` is one environment, unbatched.
With several agents in an environment, each is a lane, so ``B`` is the number of environments times that of agents.

Rows follow the NEXT_STEP convention of Gymnasium and envpool. When an episode ends at row t, ``inputs[t + 1].obs`` is the true
last observation. Row t + 1 is the reset row: its action is ignored, its reward is 0 and ``valid`` is False. Then
``inputs[t + 2].is_first`` is True. So the value after a truncated step is always ``V(inputs[t + 1])``.
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
    """Result of one environment step, unbatched."""

    obs: PyTree
    """The observation that the step reached. Environments never reset themselves."""
    reward: Array
    """f32[], raw: neither scaled nor clipped."""
    terminated: Array
    """bool[]. The MDP ended, so the value beyond is 0. If both flags are true, the episode counts as terminated."""
    truncated: Array
    """bool[]. A limit cut the episode, so the value beyond is V(obs)."""
    info: dict[str, Array] = {}
    """Numbers for ``Rollout.info``, with the same names, shapes and types in every step. Unused ones cost nothing."""


class ResetFn(Protocol):
    def __call__(self, key: Key, params: PyTree, /) -> tuple[PyTree, PyTree]:
        """Start an episode; return ``(env_state, obs)``."""
        ...


class StepFn(Protocol):
    def __call__(self, key: Key, env_state: PyTree, action: Array, params: PyTree, /) -> tuple[PyTree, TimeStep]:
        """Advance one environment by one action; return ``(env_state, TimeStep)``."""
        ...


class RenderFn(Protocol):
    def __call__(self, env_state: PyTree, action: Any, params: PyTree, /) -> Any:
        """Draw one environment and return the image, u8[height, width, 3].

        The function is never traced, so it may use Pillow, matplotlib or NumPy.

        Args:
          action: the action that led to ``env_state``, of all agents if there are several, or None at the start of an episode.
        """
        ...


class ComputeRewardFn(Protocol):
    def __call__(self, achieved: PyTree, desired: PyTree, /) -> tuple[Array, Array]:
        """Return ``(reward f32[], terminated bool[])`` of a step that reached ``achieved`` with goal ``desired``; unbatched."""
        ...


class Symmetries(NamedTuple):
    """Symmetries of a game with a board, S in all. The first changes nothing.

    In map s, square i of the new board is square ``squares[s, i]`` of the old one, and action j is ``actions[s, j]``. They apply
    to the entry ``observation``, whose leading axes are those of the board, and to ``action_mask``.
    """

    squares: Any
    """i32[S, squares], row by row"""
    actions: Any
    """i32[S, actions]"""


class Env(NamedTuple):
    """A pure environment: functions of one unbatched instance, and data.

    An environment with ``compute_reward`` is a *goal environment*. Its observations are a Dict of ``observation``,
    ``achieved_goal`` and ``desired_goal``, as in Gymnasium-Robotics. Reward and termination of a step depend only on the achieved
    and the desired goal. See ``jaxrl.spaces.goals``.
    """

    reset: ResetFn
    step: StepFn
    observation_space: spaces.Space
    action_space: spaces.Space
    params: PyTree = ()
    """Default environment parameters. They are data, so they can be batched over environments and differ between seeds."""
    name: str = "custom"
    max_episode_steps: int | None = None
    """Step limit that jaxrl enforces by truncation, in addition to the environment's internal limit. None: no further limit."""
    render: RenderFn | None = None
    """Draw a state, for ``jaxrl record``."""
    render_fps: float = 30.0
    """Frames per second in real time."""
    compute_reward: ComputeRewardFn | None = None
    """Only in goal environments: reward and termination of any step for any goal, for hindsight replay."""
    num_agents: int = 0
    """Number of agents, A. Then all leaves of observations, actions, rewards and ``info`` have a leading axis [A], and the flags
    of a step may. The spaces are those of one agent. 0 for environments of one agent, without this axis. An agent whose flag is
    true takes no further part in the episode, which ends when those of all agents are; the environment ignores its actions."""
    players: int = 1
    """2 in a game of two players who take turns, one lane for both: observations are those of the player to move, with the entry
    ``player`` (``jaxrl.spaces.entries.PLAYER_KEY``); a reward is that of the player who moved, the other's is its opposite."""
    symmetries: Symmetries | None = None
    """Maps of a board under which a game stays the same."""


class HostStep(NamedTuple):
    """Result of one step of a batch of host environments: NumPy arrays, NEXT_STEP rows (see the module's docstring).

    The arrays belong to the caller: a later step must not write into them.
    """

    obs: PyTree
    reward: Any
    """f32[B], or other real numbers, which are converted; 0 on reset rows."""
    terminated: Any
    """bool[B]"""
    truncated: Any
    """bool[B]"""
    info: dict[str, Any] = {}
    """Arrays of numbers [B, ...] for ``Rollout.info``, with the same names, shapes and types in every step."""


class HostEnvs(Protocol):
    """A running batch of host environments, as returned by ``HostEnv.open``. It may have optional methods:

    * ``reset_where(mask bool[B]) -> obs[B]`` starts new episodes in the masked environments; the other rows of ``obs`` are
      ignored. It is required unless ``step`` ends episodes at ``HostEnv.max_episode_steps`` itself.
    * ``send`` and ``recv`` step in the background; together they replace ``step``. ``send(action, env_id=None)`` starts a row of
      all environments, or of those that one ``recv`` returned, and returns at once. ``recv() -> (env_id i32[n], HostStep[n])``
      waits for rows that were sent and returns some of them, in any order; ``env_id`` counts from 0 in this batch. Do not call
      ``step`` or ``reset`` between the two. If ``open`` takes a keyword ``batch_size``, ``recv`` returns that number of rows,
      from the environments that finish first, and ``send`` accepts any environments.
    * ``recv_all() -> HostStep[B]``, if rows arrive in parts, returns the rows of all environments after ``send(action)`` without
      copying each part.
    * ``begun_anew() -> bool[B]`` marks environments that were lost and restarted. Their last row does not result from the action:
      it is a reset row (``obs`` is the first of a new episode, reward 0, both flags false) after a row that did not end the
      episode. That row is not valid, the row before it counts as truncated, and the episode is left out of the statistics. After
      ``reset_where`` it marks further environments in which ``obs`` is the first of a new episode.
    * ``compiled() -> CompiledEnvs`` makes the environments available to a compiled program.
    """

    def reset(self) -> PyTree:
        """Start an episode in every environment and return obs[B]."""
        ...

    def step(self, action: Any) -> HostStep:
        """Step all environments. An environment whose episode ended at the previous step ignores its action and resets."""
        ...

    def close(self) -> None:
        """Release all resources. No method is called afterwards."""
        ...


class CompiledEnvs(NamedTuple):
    """A running batch of host environments as operations of a JAX program on a CPU. They do not support ``vmap``."""

    handle: Array
    """Handle of the batch before its next row. Each call takes the handle that the previous call returned, which orders them."""
    send: Callable[[Array, Array], Array]
    """(handle, action [B, ...]) -> handle: start a row of all environments. Actions are not checked."""
    recv: Callable[[Array], tuple[Array, HostStep]]
    """handle -> (handle, row): return the row, in the order of the environments."""


class OpenFn(Protocol):
    def __call__(self, num_envs: int, seed: int, first_id: int = 0) -> HostEnvs:
        """Start ``num_envs`` environments.

        The random stream of the i-th depends only on ``seed`` and ``first_id + i``: two processes that open two environments each
        produce the same rows as one process that opens four.
        """
        ...


class HostEnv(NamedTuple):
    """An environment that runs on the host (C++ or Python). Nothing is started before ``open``."""

    open: OpenFn
    observation_space: spaces.Space
    action_space: spaces.Space
    options: Mapping[str, Any] = {}
    name: str = "host"
    max_episode_steps: int | None = None
    """Step limit that jaxrl enforces by truncation, in training and evaluation (see ``HostEnvs``)."""
    open_eval: OpenFn | None = None
    """Like ``open``, for evaluation: raw rewards and whole games, if ``open`` changes these for learning. None: use ``open``."""
    open_render: OpenFn | None = None
    """Like ``open_eval``, with a method ``render() -> u8[B, height, width, 3]`` that draws the current states."""
    render_fps: float = 30.0
    """Frames per second in real time."""
    compute_reward: ComputeRewardFn | None = None
    """As ``Env.compute_reward``. It must be a JAX function, because updates call it."""
    num_agents: int = 0
    """As ``Env.num_agents``: arrays of a batch are [B, A, ...], and an environment spends a row on its reset after the one on
    which the last of its agents ended."""
    players: int = 1
    """As ``Env.players``."""


EnvLike: TypeAlias = str | Env | HostEnv | Callable[..., Any]
"""Environment argument of builders: an id, an Env, a HostEnv, or a class or function that makes one Gymnasium environment."""


# ------------------------------------------------------------------------------------------------------------------------ data


class StepInput(NamedTuple):
    """Input of a policy, the same for every model. Unbatched, [B] or [T, B]."""

    obs: PyTree
    prev_action: Array
    """The action that the environment executed on the previous row; zeros on the first row of an episode."""
    prev_reward: Array
    """f32, raw; 0 on the first row of an episode."""
    is_first: Array
    """bool: the first row of an episode, where a recurrent model restarts from its initial carry."""


class Rollout(NamedTuple):
    """Input of a learner: time-major, T rows of B environments."""

    inputs: StepInput
    """[T + 1, B]. ``inputs[t + 1].obs`` is always the observation that row t reached, so V(next of t) = V(inputs[t + 1])."""
    action: Array
    """[T, B, ...], as executed by the environment."""
    reward: Array
    """f32[T, B], raw."""
    terminated: Array
    """bool[T, B]"""
    truncated: Array
    """bool[T, B]"""
    extras: PyTree
    """[T, B, ...]: values that ``Algorithm.act`` recorded for the update (log_prob, value, ...)."""
    valid: Array
    """bool[T, B]. False on the reset row after an end and on padding: such rows are left out of losses and statistics."""
    carry: PyTree
    """[B, ...]: the recurrent state before row 0, as used when acting; () when memoryless."""
    env_id: Array
    """i32[B]: ids of the environments."""
    version: Array
    """i32[B]: ``Policy.version`` of the parameters that acted."""
    info: dict[str, Array] = {}
    """[T, B, ...]: ``info`` of the environments, for every row; undefined where ``valid`` is False."""


class Episodes(NamedTuple):
    """Input of a learner whose algorithm has ``members``: whole episodes of a population, B in all, and no rows.

    Each member played the same number of episodes. They are ordered by member, and those of a member by episode.
    """

    episodic_return: Array
    """f32[B]: sum of raw rewards; with several agents, the mean over them."""
    episodic_length: Array
    """i32[B]: number of rows; with several agents, the most."""
    finished: Array
    """bool[B]: False for an episode stopped at a limit; its return up to there counts."""
    member: Array
    """i32[B]: numbers of the members, over all devices."""
    version: Array
    """i32[B]: ``Policy.version`` of the population that they belong to."""
    moments: PyTree = ()
    """[B · A, ...]: moments of the observations of each lane, to update ``Policy.statistics``; () without statistics."""
    info: dict[str, Array] = {}
    """[B, ...]: further numbers of the episodes."""


class Mean(NamedTuple):
    """A weighted mean as sum and count: parts combine by addition, and the ratio is taken on the host.

    ``float`` returns the ratio over all elements, ``np.asarray`` one ratio per element; NaN where nothing was counted.
    ``jaxrl.metrics.to_floats`` converts all metrics at once.
    """

    sum: Array
    count: Array  # type: ignore[assignment]  # a field may hide tuple.count

    def __float__(self) -> float:
        total, count = (np.sum(np.asarray(x), dtype=np.float64) for x in self)
        return float(_ratio(np.asarray(total), np.asarray(count)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _ratio(np.asarray(self.sum, np.float64), np.asarray(self.count, np.float64)).astype(dtype or np.float64)


class Min(NamedTuple):
    """A running minimum; +inf if there were no values, which ``float`` and ``np.asarray`` convert to NaN."""

    value: Array

    def __float__(self) -> float:
        return float(_seen(np.min(np.asarray(self.value))))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return _seen(np.asarray(self.value)).astype(dtype or np.float64)


class Max(NamedTuple):
    """A running maximum; -inf if there were no values, which ``float`` and ``np.asarray`` convert to NaN."""

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
    """A network as pure functions, independent of the library that defines it."""

    init: InitModelFn
    apply: ApplyFn
    """One step over a batch: inputs [B]."""
    unroll: ApplyFn
    """The same over time: inputs [T, B]. Encodes all T·B rows at once; only a core of gates takes one after the other."""
    initial_carry: InitialCarryFn
    train: TrainFn | None = None
    """Only in a memoryless model that learns statistics, such as the moments of batch normalisation. Then ``init`` returns
    ``Variables``, ``apply`` takes them in place of parameters, and its outputs use these statistics. Algorithms that learn no
    statistics refuse such a model."""


class Variables(NamedTuple):
    """Parameters of a model with ``train``, and the statistics that it learns. Only parameters have gradients."""

    params: PyTree
    statistics: PyTree


class InitModelFn(Protocol):
    def __call__(self, key: Key, inputs: StepInput, /) -> PyTree:
        """Return parameters, given example inputs of one row, [B]."""
        ...


class TrainFn(Protocol):
    def __call__(
        self, variables: Variables, inputs: StepInput, /, valid: Array, key: Key | None = None, axis_name: str | None = None
    ) -> tuple[Any, PyTree]:
        """Return ``(outputs, statistics)`` for learning from a batch, whose rows may influence each other: the outputs use the
        statistics of the batch, and the returned statistics, to be used next, have learnt from it.

        Args:
          inputs: [B].
          valid: bool[B], the rows that count. Others enter no statistic, and their outputs are ignored.
          key: as in ``ApplyFn``.
          axis_name: device axis over which the batch is divided. Statistics are those of all rows, the same on all devices.
        """
        ...


class ApplyFn(Protocol):
    def __call__(self, params: PyTree, carry: PyTree, inputs: StepInput, /, key: Key | None = None) -> tuple[PyTree, Any]:
        """Return ``(carry, outputs)``. The function resets the carry itself wherever ``inputs.is_first`` is true.

        Args:
          key: for random numbers that the network itself draws: noise in its weights, dropout, quantiles. Without a key it draws
            none. Algorithms pass it by keyword. A network without randomness may omit this argument; builders add it.
        """
        ...


class InitialCarryFn(Protocol):
    def __call__(self, batch_size: int, /) -> PyTree:
        """Return the recurrent state at the start of an episode, [B, ...]; () when memoryless."""
        ...


# ------------------------------------------------------------------------------------------------------------------ algorithms


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


# ---------------------------------------------------------------------------------------------------------------------- agents


class EpisodeStatistics(NamedTuple):
    """Statistics of the current episode of each environment, [B]."""

    episodic_return: Array
    """f32[B]: sum of raw rewards so far."""
    episodic_length: Array
    """i32[B]: number of valid rows so far."""


class ActorState(NamedTuple):
    """State of the environments. Every leaf has the leading axis [B]; with several agents, those of ``env_state`` have
    [num_envs]."""

    env_state: PyTree
    input: StepInput
    carry: PyTree
    done: Array
    """bool[B]: the episode is over. The next row is the reset row, with several agents once those of all are over."""
    episode: EpisodeStatistics

    @property
    def env_axes(self) -> Mapping[str, int]:
        return dict.fromkeys(self._fields, 0)


class AgentState(NamedTuple):
    """The complete state of a run: with it and the same program, the run continues bit for bit."""

    learner: Any
    actor: ActorState
    env_params: PyTree
    """One value for all environments, or leaves with a leading axis [num_envs]."""
    key: Key
    """Constant. Environment i in iteration n draws its random numbers from (key, n, i)."""
    iteration: Array
    """i32[]: number of rollouts collected so far, including the warm-up."""
    warmup_rows: Array
    """i32[]: number of valid rows collected in the warm-up, over all environments."""


class InitAgentFn(Protocol):
    def __call__(self, key: Key, hyperparams: Any = None, env_params: PyTree = None) -> AgentState:
        """Initialise the state and run the warm-up.

        Args:
          hyperparams: a mapping of the hyperparameters to change, or the algorithm's complete NamedTuple.
        """
        ...


StepAgentFn: TypeAlias = Callable[..., tuple[AgentState, Metrics]]
"""``step(state)`` collects one rollout and learns from it. With ``Agent.data``, ``step(state, data)`` learns from the dataset,
which all seeds share: ``jax.vmap(agent.step, in_axes=(0, None))``. Only with ``Agent.online`` does it collect a rollout too."""


class Agent(NamedTuple):
    """An Algorithm bound to an environment."""

    init: InitAgentFn
    step: StepAgentFn
    algorithm: Algorithm
    env: Env | HostEnv
    spec: dict[str, Any]
    """Plain data from which ``jaxrl.build`` rebuilds the same agent in another process or on another machine."""
    num_envs: int
    rollout_length: int
    axis_name: str | None = None
    hyperparams: Any = ()
    """Default hyperparameters: a NamedTuple of numbers."""
    schedules: Mapping[str, Callable[[Array], Array]] = {}
    """Hyperparameter -> function of the iteration that returns a factor on it."""
    data: Any = None
    """The ``Dataset`` that it learns from, or its description. Then ``step(state, data)`` takes the dataset. Unless the agent is
    ``online``, ``num_envs`` is 1, and a row is an update."""
    online: bool = False
    """With ``data``: collect rollouts too, and learn from both."""
    episodes: int = 0
    """Episodes of each member of a population, whose ``num_envs`` environments play whole episodes of at most ``rollout_length``
    rows. 0 for algorithms that learn from rollouts."""

    @property
    def num_lanes(self) -> int:
        """Number of rows at a time: one for each agent of each environment."""
        return self.num_envs * max(1, self.env.num_agents)

    @property
    def steps_per_iteration(self) -> int:
        """Number of environment steps per ``step``, over all environments and devices; for a population the largest number; with
        ``data`` the number of updates."""
        return self.num_envs * self.rollout_length

    @property
    def collects_on_host(self) -> bool:
        """True if the rows come from environments on the host."""
        return isinstance(self.env, HostEnv) and not self.is_offline

    @property
    def is_offline(self) -> bool:
        """True if it learns from a dataset alone."""
        return self.data is not None and not self.online


_METHODS_ELSEWHERE = {
    "learn train fit run": "jaxrl.run(agent, total_steps=…) trains it",
    "predict act sample get_action get_actions compute_action compute_actions compute_single_action forward policy": (
        "use jaxrl.load_policy(folder) to act with a trained policy, or agent.algorithm.act to act with a state's policy"
    ),
    "save": "jaxrl.run(agent, …, out=folder) saves during training, and jaxrl.save(folder, state, step) saves a state",
    "load restore from_checkpoint": "jaxrl.load_policy(folder) loads a trained policy, and jaxrl.restore loads a state",
    "evaluate": "jaxrl.evaluate(agent, state, key) evaluates it",
    "update": "agent.step(state) collects a rollout and learns from it, and agent.algorithm.update learns from a given rollout",
    "reset": "agent.init(key) returns a new state",
    "params parameters": "the parameters are in a state, state.learner.params",
    "get_env set_env observation_space action_space": "agent.env is its environment; to change it, build another agent",
}
"""Methods of agents in PARL, Stable-Baselines3, RLlib and others -> the equivalent here."""


def _say_what_does_it(agent: Agent, name: str) -> Any:
    hint = next((f": {advice}" for names, advice in _METHODS_ELSEWHERE.items() if name in names.split()), "")
    raise AttributeError(f"an Agent holds functions and no state, and has no attribute {name!r}{hint}")


if not TYPE_CHECKING:  # so that type checkers report unknown attributes
    Agent.__getattr__ = _say_what_does_it
