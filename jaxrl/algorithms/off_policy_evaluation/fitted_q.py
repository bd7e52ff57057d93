"""Fitted Q evaluation (Le, Voloshin & Yue 2019, algorithm 3): learn the action-values of a fixed policy from a dataset.

The policy enters as its actions at the observations of all rows, so the functions here know no policy, and one program serves
all policies. Reads top to bottom: settings, the problem, values, learning.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.off_policy_networks import seen_by_critic
from jaxrl.builder.config import ReplayConfig
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.distributions import select_actions
from jaxrl.optimize.learner import TargetLearner
from jaxrl.optimize.schedules import remaining
from jaxrl.replay import Draw, Replay
from jaxrl.replay.dataset import Dataset, DatasetInfo
from jaxrl.replay.dataset_replay import dataset_replay
from jaxrl.replay.gather import gather_rows
from jaxrl.replay.transitions import Transitions, bootstrapped, transitions
from jaxrl.returns import discounted_sums
from jaxrl.rollout.autoreset import first_input
from jaxrl.rollout.running_statistics import RunningMoments, normalize
from jaxrl.settings import hyperparams as shared
from jaxrl.spaces.action_scaling import from_environment
from jaxrl.types import Array, Key, Model, PyTree, StepInput

ROWS_AT_ONCE = 1024
"""Initial observations whose values are computed at once."""
LEAST_SPREAD = 1e-4
"""Standard deviation of returns, relative to their mean, below which they count as equal: it is rounding."""


class FittedQHyperparams(NamedTuple):
    """Hyperparameters of fitted Q evaluation."""

    learning_rate: shared.LearningRate = 1e-3
    gamma: shared.Gamma = 0.99
    tau: shared.Tau = 0.05
    """Step of the target critic towards the critic at each update, as a fraction."""
    max_grad_norm: shared.MaxGradNorm = 1_000.0
    adam_eps: shared.AdamEps = 1e-8
    total_steps: shared.TotalSteps = 0.0
    """Updates over which the learning rate falls linearly to 0; 0: it stays."""


# ----------------------------------------------------------------------------------------------------------------- the problem


class Units(NamedTuple):
    """Units of the critic's output f: Q(s, a) = mean + scale · f(s, a); and the range of values, f32[] each."""

    mean: Array
    scale: Array
    least: Array
    most: Array

    def values(self, output: Array) -> Array:
        return self.mean + self.scale * output

    def possible(self, output: Array) -> Array:
        """Return values clipped to their range, so that extrapolated ones cannot grow without limit."""
        return jnp.clip(self.values(output), self.least, self.most)


class Problem(NamedTuple):
    """Data and actions that all seeds share: an argument of programs, neither in a state nor a constant."""

    data: Dataset
    actions: Array
    """[N, 1, ...]: the policy's action at the observation of each row, also of rows that are not valid, in the critic's units:
    i32 for Discrete actions, f32[d] in [−1, 1] for a Box."""
    moments: RunningMoments | tuple[()]
    """Moments of the observations to normalise with; () for raw observations."""
    units: Units


def units_of(data: Dataset, gamma: Array) -> Units:
    """Return the units of values in the data.

    Mean and scale are the mean and standard deviation of the discounted returns from all rows, where an episode that was cut off
    continues for ever with the mean reward. A scale of 1 stands for returns that are all equal. The range is that of sums of
    rewards between the lowest and the highest one: for ever, or where episodes terminate, of at least one.
    """
    rows = data.rows()
    following = jnp.concatenate([rows.valid[1:], jnp.zeros(1, bool)])
    mean = lambda x: jnp.where(rows.valid, x, 0.0).sum() / data.info.rows  # noqa: E731
    endless = mean(rows.reward) / (1.0 - gamma)
    beyond = jnp.where(following | rows.terminated, 0.0, gamma * endless)
    returns = discounted_sums(rows.reward + beyond, jnp.where(following, gamma, 0.0), jnp.zeros(()))
    centre = mean(returns)
    spread = jnp.sqrt(mean((returns - centre) ** 2))
    scale = jnp.where(spread > LEAST_SPREAD * jnp.abs(centre), spread, 1.0)
    rewards = jnp.where(rows.valid, rows.reward, rows.reward[0])  # the first row is valid
    low, high = rewards.min(), rewards.max()
    ends = rows.terminated.any()
    least = jnp.where(ends & (low > 0), low, low / (1.0 - gamma))
    return Units(centre, scale, least, jnp.where(ends & (high < 0), high, high / (1.0 - gamma)))


def check_action_space(space: spaces.Space) -> None:
    """Raise TypeError or ValueError unless a critic can take actions of this space."""
    if not isinstance(space, spaces.Box | spaces.Discrete):
        raise TypeError(f"fitted Q evaluation needs Box or Discrete actions, and the dataset has {space}")
    if isinstance(space, spaces.Box) and not (space.is_bounded() and np.issubdtype(space.dtype, np.floating)):
        raise ValueError(
            f"the dataset has {space}, but fitted Q evaluation needs a Box of real numbers with bounds on all sides, to which it "
            "scales actions"
        )


def make_setup(info: DatasetInfo, critic: Model, *, updates: int, batch_size: int, n_step: int) -> ReplaySetup[Any]:
    """Return the setup of chunks of ``updates`` gradient steps on a dataset with this description."""
    config = ReplayConfig(updates=updates, batch_size=batch_size, n_step=n_step).for_data()
    observed = seen_by_critic(info.observation_space, info.action_space)
    return ReplaySetup(observed, info.action_space, critic, config, replay=replay_with_actions(n_step))


def replay_with_actions(n_step: int) -> Replay:
    """Return a replay of a ``Problem``. Observations of its rows are pairs of observation and the policy's action."""
    plain = dataset_replay(before=1, after=n_step)

    def take(state: Problem, draw: Draw, offset: int | Array) -> Any:
        row, at = plain.take(state, draw, offset), (draw.row + offset) % len(state.actions)
        return row._replace(obs=(row.obs, gather_rows(state.actions, at, draw.env)))

    return plain._replace(take=take)


# ---------------------------------------------------------------------------------------------------------------------- values


def outputs(setup: ReplaySetup[Any], params: PyTree, inputs: StepInput, action: Array) -> Array:
    """Return f(s, a) f32[N] for normalised inputs and actions in the critic's units."""
    if isinstance(setup.action_space, spaces.Discrete):
        return select_actions(setup.model.apply(params, (), inputs)[1], action)
    return setup.model.apply(params, (), inputs._replace(obs=(inputs.obs, action)))[1]


def normalized(problem: Problem, inputs: StepInput, obs: PyTree) -> StepInput:
    return inputs._replace(obs=normalize(problem.moments, obs) if problem.moments else obs)


def initial_values(setup: ReplaySetup[Any], problem: Problem, learner: TargetLearner) -> Array:
    """Return Q(s₀, π(s₀)) of the target critic at the first observations of all episodes, f32[episodes]."""

    def value(row: Array) -> Array:
        unpacked, action = problem.data.records[row, 0].unpack(), problem.actions[row, 0]
        obs, action = jax.tree.map(lambda x: x[None], (unpacked.obs, action))
        inputs = first_input(obs, setup.action_space, 1)
        return outputs(setup, learner.target_params, normalized(problem, inputs, obs), action)[0]

    found = jax.lax.map(value, problem.data.starts, batch_size=min(ROWS_AT_ONCE, problem.data.info.episodes))
    return problem.units.possible(found)


# -------------------------------------------------------------------------------------------------------------------- learning


def init(setup: ReplaySetup[Any], key: Key, hyperparams: FittedQHyperparams) -> TargetLearner:
    learner = setup.init_learner(key, hyperparams)
    return TargetLearner(**learner._asdict(), target_params=jax.tree.map(jnp.copy, learner.params), replay=())


class FittedBatch(NamedTuple):
    """A batch, [N], with normalised observations."""

    rows: Transitions
    next_action: Array
    """The policy's action at ``rows.next_inputs``."""


def batch_of(setup: ReplaySetup[Any], problem: Problem, draw: Draw, gamma: Array) -> FittedBatch:
    drawn = transitions(setup.replay, problem, draw, gamma, setup.config.n_step)
    (obs, _), (next_obs, next_action) = drawn.inputs.obs, drawn.next_inputs.obs
    rows = drawn._replace(
        inputs=normalized(problem, drawn.inputs, obs),
        next_inputs=normalized(problem, drawn.next_inputs, next_obs),
        action=from_environment(setup.action_space, drawn.action),
    )
    return FittedBatch(rows, next_action)


def target(setup: ReplaySetup[Any], target_params: PyTree, units: Units, batch: FittedBatch) -> Array:
    """y = r + γ·(1 − terminated)·Q⁻(s′, π(s′)), f32[N], where Q⁻ is the target critic."""
    return bootstrapped(batch.rows, units.possible(outputs(setup, target_params, batch.rows.next_inputs, batch.next_action)))


def loss(
    setup: ReplaySetup[Any], params: PyTree, units: Units, batch: FittedBatch, target: Array
) -> tuple[Array, dict[str, Array]]:
    """½·(Q(s, a) − y)² in the critic's units, as a mean. The metric is the mean of (Q(s, a) − y)²."""
    error = units.values(outputs(setup, params, batch.rows.inputs, batch.rows.action)) - target
    return 0.5 * ((error / units.scale) ** 2).mean(), {"losses/td_loss": (error**2).mean()}


def learn(setup: ReplaySetup[Any], problem: Problem, learner: TargetLearner) -> tuple[TargetLearner, Array]:
    """Take a chunk of gradient steps, and return the learner and the mean of (Q(s, a) − y)² in them, f32[]."""
    hp, units = learner.hyperparams, problem.units
    descent = setup.descent(hp, learner.params)

    def update_once(progress: Any, update: Any) -> Any:
        number, batch = update
        left = remaining(learner.version * setup.config.updates + number, 1, hp.total_steps)
        descent = setup.descent(hp._replace(learning_rate=hp.learning_rate * left), learner.params)
        y = target(setup, descent.target_params(progress), units, batch)
        progress, metrics = descent.step(lambda params: loss(setup, params, units, batch, y), progress)
        return descent.move_target(progress, hp.tau), (metrics["losses/td_loss"], ())

    start = descent.start(learner.params, learner.opt_state, learner.target_params)
    attached = learner._replace(replay=problem)
    draw = lambda replay, draw: batch_of(setup, replay, draw, hp.gamma)  # noqa: E731
    progress, _, td_loss = setup.scan_updates(attached, update_once, start, draw)
    return learner._replace(version=learner.version + 1, **descent.finish(progress)), td_loss.mean()
