"""Updates of SAC with the conservative term of ``jaxrl.algorithms.common.offline.conservative``: the actions that it is computed
for, the returns that bound it in Cal-QL, and a policy that clones the data at first.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from gymnasium import spaces

from jaxrl.algorithms.common import soft_policy
from jaxrl.algorithms.common.critics import updates
from jaxrl.algorithms.common.critics.ensemble import ActorCriticSetup, action_values
from jaxrl.algorithms.common.offline.conservative import LagrangeCQL, Penalty, discrete_gap, sampled_gap
from jaxrl.distributions import TanhNormal, select_actions
from jaxrl.exploration.action_noise import standard_normal, uniform
from jaxrl.optimize.gradients import pmean
from jaxrl.replay.dataset import Dataset
from jaxrl.replay.dataset_replay import drawn_from_data
from jaxrl.replay.transitions import ReplayRow, Transitions
from jaxrl.rollout.autoreset import next_input
from jaxrl.settings.validation import refuse_schedules, refuse_unused
from jaxrl.types import Array, Key, PyTree

PROPOSED = 3
"""Random stream of an update's drawn actions; the networks have those before."""
REFERENCES = 2
"""Random stream of an iteration's actions at the ends of episodes; noise and the choice of critics have those before."""


def check_conservative(setup: ActorCriticSetup[Any]) -> None:
    """Raise ValueError for settings of ``conservative`` that have no effect with this action space, or that need data."""
    chosen, space = setup.config.conservative, setup.action_space
    if chosen is None:
        return
    if setup.config.has_memory:
        raise ValueError(f"conservative={chosen} needs networks without memory: leave it out, or the core")
    if isinstance(space, spaces.Discrete):
        refuse_unused(chosen, type(chosen)(), ("samples", "weighted"), f"on {space}: the sum over its actions is exact")
        if chosen.calibrated:
            raise ValueError(f"calibrated=True is for Box actions, whose term has actions of the policy, and not for {space}")
    if chosen.calibrated and setup.data is None:
        raise ValueError("calibrated=True bounds values by the returns of a dataset: give data=…, or leave it out")
    if chosen.calibrated and setup.replay.prioritised:
        raise ValueError("calibrated=True needs draws that do not depend on priorities: leave replay=Prioritized() out")
    if isinstance(chosen, LagrangeCQL):
        use = "use CQL(), or a schedule for conservative_threshold"
        refuse_schedules(setup.schedules, ("conservative_weight",), f"with LagrangeCQL, which starts at it: {use}")


# ---------------------------------------------------------------------------------------------------------- draws of an iteration


class ConservativeBatch(NamedTuple):
    """Inputs of one update of the critics: the fields of ``CriticBatch``, and two more."""

    batch: Any
    noise: Array
    chosen: Array
    key: Key
    draw_key: Key | None
    reference: PyTree
    """f32[batch_size]: ``discounted_returns`` of the rows, −∞ where unknown; () unless the term is ``calibrated``."""
    cloning: PyTree
    """bool[]: the policy clones the data; () without ``cloning_updates``."""


def draw_updates(setup: ActorCriticSetup[Any], learner: Any, gamma: Array) -> Any:
    """Return ``updates.draw_updates``, with ``conservative`` as ``ConservativeBatch``: [groups, policy_delay, ...]."""
    draws, chosen = updates.draw_updates(setup, learner, gamma), setup.config.conservative
    if chosen is None:
        return draws
    shape, reference, cloning = draws.chosen.shape[:2], cast(PyTree, ()), cast(PyTree, ())
    if chosen.calibrated:
        reference = references(setup, learner, gamma).reshape((*shape, -1))
    if chosen.cloning_updates:
        each = setup.config.updates_per_iteration
        # At most as many iterations as have any, because the count of all updates may not fit in 32 bits.
        first = jnp.minimum(learner.version, -(-chosen.cloning_updates // each)) * each
        cloning = (first + jnp.arange(each) < chosen.cloning_updates).reshape(shape)
    return ConservativeBatch(*draws, reference, cloning)


# ------------------------------------------------------------------------------------------------------------ returns of the data


def discounted_returns(rows: ReplayRow, beyond: Array, gamma: Array | float) -> Array:
    """Return the discounted rewards from each row to the end of its episode, f32[N]: Σ γᵏ·r, and where the episode was cut off
    after n rows γⁿ·V of the observation that it reached.

    Args:
      rows: those of a ``Dataset``, [N].
      beyond: V of the last observation of each episode, in its row that is not valid, f32[N]; other rows are not read.
    """
    after_end = jnp.roll(rows.valid & rows.terminated, 1)
    factor = jnp.where(rows.valid, gamma, 0.0)
    term = jnp.where(rows.valid, rows.reward, jnp.where(after_end, 0.0, beyond))

    def join(later: tuple[Array, Array], row: tuple[Array, Array]) -> tuple[Array, Array]:
        return row[0] * later[0], row[1] + row[0] * later[1]

    # Not ``discounted_sums``: on an accelerator each iteration would wait for N steps, and here it waits for log N.
    returns: Array = jax.lax.associative_scan(join, (factor, term), reverse=True)[1]
    return returns


def references(setup: ActorCriticSetup[Any], learner: Any, gamma: Array) -> Array:
    """Return the discounted returns of the rows that an iteration draws, f32[updates · batch_size]; −∞ for rows that the agent
    collected itself, whose episodes may not have ended.

    The draw is that of ``updates.draw_updates``, since it depends on the learner alone. V is the least target critic's
    value of an action of the policy, both at the start of the iteration.
    """
    data: Dataset = learner.replay.data
    draw, records = setup.draw(learner), data.records[:, 0]
    ends = jnp.append(data.starts[1:], len(records.words)) - 1
    last, reached = (records[at].unpack() for at in (ends - 1, ends))
    beyond = jnp.zeros(len(records.words)).at[ends].set(_last_values(setup, learner, last, reached))
    found = discounted_returns(records.unpack(), beyond, gamma)[draw.row]
    return jnp.where(drawn_from_data(setup.replay, len(draw.row)), found, -jnp.inf)


def _last_values(setup: ActorCriticSetup[Any], learner: Any, last: ReplayRow, reached: ReplayRow) -> Array:
    """Return V of the last observations of episodes, f32[episodes]."""
    inputs = next_input(reached.obs, last.action, last.reward, last.valid)
    output = setup.model.apply(learner.params.actor, (), inputs)[1]
    action = output.at(standard_normal(setup.stream(learner, REFERENCES), output.mean.shape))[0]
    outputs = action_values(setup, learner.target_params.critic, inputs, action)
    return setup.config.critics.values(outputs).min(0)


# ------------------------------------------------------------------------------------------------------------------- the critics


def proposals(setup: ActorCriticSetup[Any], actor: PyTree, update: Any, samples: int) -> tuple[Array, Array]:
    """Draw actions uniformly, from the policy at s, and from the policy at s′.

    Returns:
      The actions f32[3, samples, N, d], and the logarithms of their densities f32[3, samples, N].
    """
    here, following = (setup.model.apply(actor, (), inputs)[1] for inputs in (update.batch.inputs, update.batch.next_inputs))
    # The observation after a termination may not be finite. The policy at the one before it proposes actions just as well.
    after_end = (update.batch.discount == 0)[:, None]
    pairs = jax.tree.map(lambda x, y: jnp.stack([x, jnp.where(after_end, x, y)])[:, None], here, following)
    policies: TanhNormal = jax.tree.map(lambda x: jnp.repeat(x, samples, 1), pairs)
    shape = (samples, *here.mean.shape)
    keys = jax.random.split(jax.random.fold_in(update.key, PROPOSED), 3)
    # In a loop, because XLA on a CPU would otherwise compute the noise three times: for the actions, and for two parts of their
    # densities.
    action, log_density = policies.at(jax.lax.map(lambda key: standard_normal(key, shape), keys[1:]))
    density = jnp.full((1, *shape[:-1]), -math.log(2) * shape[-1])
    return jnp.concatenate([uniform(keys[0], shape)[None], action]), jnp.concatenate([density, log_density])


def penalty(setup: ActorCriticSetup[Any], hp: Any, state: PyTree, actor: PyTree, update: Any) -> Penalty | None:
    """Return the inputs of the conservative term of an update, without gradients, or None without ``conservative``.

    Args:
      state: of the weight.
    """
    chosen = setup.config.conservative
    if chosen is None:
        return None
    weight = chosen.weight_at(hp, state)
    if isinstance(setup.action_space, spaces.Discrete):
        return Penalty(weight)
    action, log_density = proposals(setup, actor, update, chosen.samples)
    least = cast(PyTree, ())
    if chosen.calibrated:
        is_policy = jnp.array([False, True, True])[:, None, None]
        least = _flat(jnp.broadcast_to(jnp.where(is_policy, update.reference, -jnp.inf), log_density.shape))
    return jax.lax.stop_gradient(Penalty(weight, _flat(action), _flat(log_density) if chosen.weighted else (), least))


def _flat(x: Array) -> Array:
    return x.reshape((-1, *x.shape[2:]))


def values_of_data(setup: ActorCriticSetup[Any], critic: PyTree, update: Any, term: Penalty | None) -> tuple[Array, Array | None]:
    """Return the critics' outputs for the actions of a batch, [num_critics, N, ...], and the conservative term of each row, f32
    [num_critics, N], or None without one. The critics see all actions of all rows in one batch."""
    batch, key = update.batch, jax.random.fold_in(update.key, 1)
    if isinstance(setup.action_space, spaces.Discrete):
        every = action_values(setup, critic, batch.inputs, None, key)
        values = select_actions(every, jnp.broadcast_to(batch.action, every.shape[:-1]))
        if term is None:
            return values, None
        return values, jax.vmap(lambda values: discrete_gap(values, batch.action, batch.inputs.obs))(every)
    if term is None:
        return action_values(setup, critic, batch.inputs, batch.action, key), None
    action = jnp.concatenate([batch.action[None], term.action])
    number, rows = action.shape[:2]
    inputs = jax.tree.map(lambda x: jnp.tile(x, (number, *[1] * (x.ndim - 1))), batch.inputs)
    outputs = action_values(setup, critic, inputs, _flat(action), key)
    outputs = outputs.reshape((len(outputs), number, rows, *outputs.shape[2:]))
    values = setup.config.critics.values(outputs)
    return outputs[:, 0], sampled_gap(values[:, 1:], values[:, 0], term)


def add_penalty(
    setup: ActorCriticSetup[Any], batch: Transitions, term: Penalty | None, gap: Any, loss: Array, logged: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """Return the critics' loss with the sum over critics of α·w·gap added, as a mean over valid draws, and the scalars to log."""
    if term is None:
        return loss, logged
    means = setup.valid_mean(batch.valid)(batch.weight * gap)
    logged |= {"losses/conservative_gap": means.mean(), "losses/conservative_weight": term.weight}
    return loss + term.weight * means.sum(), logged


def adapted(setup: ActorCriticSetup[Any], hp: Any, state: PyTree, metrics: dict[str, Array]) -> PyTree:
    """Return the state of the weight after an update with these metrics."""
    if setup.config.conservative is None:
        return state
    return setup.config.conservative.adapted(hp, state, pmean(metrics["losses/conservative_gap"], setup.axis_name))


# -------------------------------------------------------------------------------------------------------------------- the policy


def actor_loss(
    setup: ActorCriticSetup[Any], actor: PyTree, critic: PyTree, temperature: Array, update: Any
) -> tuple[Array, dict[str, Array]]:
    """The policy's loss in SAC; in the first ``cloning_updates`` E[α·log π(a′ | s) − log π(a | s)], with the action a of the data
    and a′ of the policy (the authors' code)."""
    loss, logged = soft_policy.actor_loss(setup, actor, critic, temperature, update)
    if setup.config.conservative is None or not setup.config.conservative.cloning_updates:
        return loss, logged
    batch = update.batch
    likelihood = setup.model.apply(actor, (), batch.inputs)[1].log_prob(batch.action)
    cloning = -temperature * logged["losses/entropy"] - setup.valid_mean(batch.valid)(likelihood)
    loss = jnp.where(update.cloning, cloning, loss)
    return loss, {**logged, "losses/actor_loss": loss}
