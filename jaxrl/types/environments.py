"""Environments: in JAX, and on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from gymnasium import spaces

from jaxrl.types.arrays import Array, Key, PyTree


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
