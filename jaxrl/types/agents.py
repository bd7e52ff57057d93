"""Agents: an algorithm bound to an environment, and their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from jaxrl.types.algorithms import Algorithm
from jaxrl.types.arrays import Array, Key, PyTree
from jaxrl.types.data import StepInput
from jaxrl.types.environments import Env, HostEnv
from jaxrl.types.metrics import Metrics


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
