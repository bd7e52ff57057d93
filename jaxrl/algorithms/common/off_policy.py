"""Shared parts of algorithms that learn a policy and an ensemble of critics from replay: settings, builder and initial state.
Their updates are in ``jaxrl.algorithms.common.critics``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.algorithms.common.critics.ensemble import ActorCriticPair, ActorCriticSetup, Ensemble
from jaxrl.algorithms.common.critics.network_state import networks
from jaxrl.algorithms.common.off_policy_networks import resolve_critic, seen_by_critic
from jaxrl.algorithms.common.sequence_batches import check_sequences, example_sequence
from jaxrl.builder.components import resolve_replay
from jaxrl.builder.config import HindsightConfig
from jaxrl.builder.keywords import split_keywords
from jaxrl.builder.networks import ModelFn, as_network, check_arguments, check_statistics
from jaxrl.builder.prepare import PreparedAgent, prepare
from jaxrl.builder.replay_setup import ReplaySetup
from jaxrl.builder.setup import AlgorithmSetup
from jaxrl.distributions import MASKED, Categorical, sample_each
from jaxrl.models import action_value, policy_network
from jaxrl.models.config import keywords_of_other_cores
from jaxrl.registry import title_of
from jaxrl.replay.options import Recent
from jaxrl.replay.sequence import sequence_replay
from jaxrl.replay.transitions import example_row
from jaxrl.rollout.inputs import example_input
from jaxrl.rollout.outputs import split_variables
from jaxrl.settings.validation import Count, Positive, refuse_schedules, refuse_unused
from jaxrl.types import Agent, Array, EnvLike, Key, Policy, PyTree


@dataclass(frozen=True)
class OffPolicyConfig(HindsightConfig):
    """Structural settings of an algorithm with a policy and an ensemble of critics."""

    num_envs: Count = 4
    rollout_length: Count = 16
    batch_size: Count = 256
    replay_ratio: Positive = 256.0
    """Rows drawn per row collected: updates per iteration = replay_ratio · num_envs · rollout_length / batch_size, exactly. The
    default gives one update per row; for 20 updates per row, use 20 · batch_size."""
    critics: Ensemble = Ensemble()
    """The critics, and how targets use them."""
    policy_delay: Count = 1
    """Updates of the critics per update of the policy (Fujimoto et al. 2018)."""

    @property
    def reads_next_action(self) -> bool:
        """True if the losses read ``Transitions.next_action``."""
        return False

    @property
    def joint_actions(self) -> bool:
        """True if critics take the actions of all agents."""
        return False

    def critic_actions(self, space: spaces.Space, num_agents: int) -> spaces.Space:
        """Return the actions as critics take them (``ActorCriticSetup.critic_actions``); here those of the environment."""
        return space

    def critic_network(self, default: Any) -> Any:
        """Return the function of the spaces that makes a critic for these settings; here ``default``, as in ``network``."""
        return default

    def check(self, *, recurrent: bool = False) -> None:
        super().check(recurrent=recurrent)
        if self.updates_per_iteration % self.policy_delay:
            raise ValueError(
                f"policy_delay={self.policy_delay} must divide the {self.updates_per_iteration} updates of an iteration "
                "(replay_ratio * num_envs * rollout_length / batch_size, or updates with data=…): change one of these"
            )


C = TypeVar("C", bound=OffPolicyConfig)


# -------------------------------------------------------------------------------------------------------------------- builders


def prepare_off_policy(
    builder: Callable[..., Agent],
    env: EnvLike,
    config: type[C],
    hyperparams: type,
    keywords: Mapping[str, Any],
    kinds: tuple[type[spaces.Space], ...],
    network: ModelFn = policy_network,
    statistics: bool = False,
    memory: bool = False,
) -> tuple[PreparedAgent[C], ActorCriticSetup[C]]:
    """Call ``prepare`` for an algorithm with a policy (``model``), a ``critic`` and a ``replay``.

    Args:
      keywords: those of the builder.
      kinds: the kinds of action space that the algorithm supports.
      network: function of the spaces that makes the default policy network. Other parameters are those of ``prepare``.
      statistics: the algorithm learns the statistics of a policy or critics that have some.
      memory: the algorithm can train networks with memory.

    Returns:
      The prepared agent, and the setup with critic and replay.

    Raises:
      ValueError: a Box without bounds on all sides; settings of networks that have no effect.
    """
    settings, parts = split_keywords(builder, keywords)
    model, critic = parts["model"], parts["critic"]
    if isinstance(critic, Mapping):
        check_arguments(action_value, critic, "critic")
    if isinstance(model, Mapping) and (critic is None or isinstance(critic, Mapping)):
        # The arguments are for both networks. Those that a critic does not take are checked by the policy's network.
        given = critic or {}
        unused = keywords_of_other_cores(given["core"]) if "core" in given else set()
        takes = {*inspect.signature(action_value).parameters} - unused
        critic = {**{name: value for name, value in model.items() if name in takes}, **given}
    parts = {**parts, "critic": critic}
    options: Any = {"statistics": statistics, "memory": memory}
    prepared = prepare(builder, env, config, hyperparams, settings, kinds, network, parts, **options)
    structure, bound, space = prepared.setup.config, prepared.env, prepared.env.action_space
    if isinstance(space, spaces.Box) and not (space.is_bounded() and np.issubdtype(space.dtype, np.floating)):
        raise ValueError(
            f"{bound.name} has {space}, but this algorithm needs a Box of real numbers with bounds on all sides, to which it "
            "scales actions: give the environment bounds, or use make_ppo"
        )
    if prepared.spec["settings"]["learning_rate"] is None:  # the optimiser does not read it
        why = "with an optimizer that does not use learning_rate"
        refuse_unused(prepared.hyperparams, hyperparams(), ("actor_learning_rate",), why)
        refuse_schedules(prepared.setup.schedules, ("actor_learning_rate",), why)
    outputs, num_agents = structure.critics.num_outputs, prepared.setup.num_agents
    bound = bound._replace(action_space=structure.critic_actions(space, num_agents))
    if outputs and not isinstance(space, spaces.Box):
        raise ValueError(f"critics={structure.critics.name!r} are for Box actions, and the environment has {space}")
    if bound.action_space != space and isinstance(critic, Mapping) and critic.get("use_previous"):
        raise ValueError("use_previous=True is for critics of the environment's actions: leave it out of the critic's arguments")
    of_critics = structure.critic_network(action_value)
    sizes: Any = {"num_outputs": outputs, "memory": structure.has_memory}
    if critic is None or isinstance(critic, Mapping):
        resolved = resolve_critic(None, partial(of_critics, num_outputs=outputs, **(critic or {})), bound, **sizes)
    else:
        resolved = resolve_critic(as_network(critic, action_value, of_critics), of_critics, bound, **sizes)
    if not statistics:
        check_statistics(title_of(builder.__name__), resolved, "critic")
    chosen, data = parts["replay"], prepared.setup.data
    if structure.has_memory:
        check_memory(structure)
        chosen = chosen or sequence_replay(structure.replay.function)
    replay = resolve_replay(chosen, prepared.env, structure, before=1, after=structure.rows_behind, data=data)
    joint = num_agents if structure.joint_actions else 0
    fields: dict[str, Any] = {"critic": resolved, "critic_actions": bound.action_space, "joint_agents": joint}
    setup = ActorCriticSetup.from_setup(prepared.setup, replay=replay, **fields)
    if structure.has_memory and parts["replay"] is not None:
        check_sequences(parts["replay"], setup)
    return prepared, setup


def check_memory(config: OffPolicyConfig) -> None:
    """Raise ValueError for settings that do not go with networks that have memory."""
    if isinstance(config.replay, Recent):
        raise ValueError(
            f"replay={config.replay} draws single rows, and a model with memory learns from sequences: leave one out"
        )
    if config.reads_next_action:
        raise ValueError("cloning=ReBRAC() reads next actions, which sequences do not hold: leave it out, or the core")
    if config.joint_actions:
        raise ValueError("joint_actions=True needs networks without memory: leave the core out, or frame_stack the observations")


# --------------------------------------------------------------------------------------------------------------- state, acting


def init_networks(setup: ActorCriticSetup[Any], key: Key, hyperparams: Any) -> tuple[ActorCriticPair, PyTree, ActorCriticPair]:
    """Initialise policy and critics, and return ``(parameters, statistics, optimiser states)``; statistics are () if no network
    learns any."""
    actor_key, *critic_keys = jax.random.split(key, 1 + setup.config.critics.size)
    inputs = example_input(setup.observation_space, setup.action_space)
    seen = example_input(seen_by_critic(setup.observation_space, setup.critic_actions), setup.action_space)
    critic = jax.vmap(setup.critic.init, in_axes=(0, None))(jnp.stack(critic_keys), seen._replace(prev_action=inputs.prev_action))
    made = zip(*map(split_variables, (setup.model.init(actor_key, inputs), critic)), strict=True)
    params, statistics = (ActorCriticPair(*parts) for parts in made)
    nets = networks(setup, params, hyperparams)
    opt_states = ActorCriticPair(*(net.init(part) for net, part in zip(nets, params, strict=True)))
    return params, statistics if jax.tree.leaves(statistics) else (), opt_states


def init_replay(setup: ReplaySetup[Any]) -> Any:
    if setup.config.has_memory:
        return setup.replay.init(example_sequence(setup))
    return setup.replay.init(example_row(setup.observation_space, setup.action_space))


def sample_discrete(output: Categorical, keys: Key, at_random: Array) -> Array:
    """Draw an action for each environment, i32[B]; with ``at_random`` all allowed ones have the same probability."""
    return sample_each(Categorical(jnp.where(at_random & (output.logits > 0.5 * MASKED), 0.0, output.logits)), keys)


def policy(setup: AlgorithmSetup[Any], learner: Any) -> Policy:
    """Return the policy, without the critics. It acts at random until the first update, and so during the warm-up."""
    statistics = learner.statistics and learner.statistics._replace(critic=())
    return Policy(learner.params._replace(critic=()), statistics, setup.acts_at_random(learner), learner.version)
