"""What rules share that act with an actor-critic model and learn from what it just collected: settings, acting, statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from jaxrl.actions import to_environment
from jaxrl.config import RolloutConfig
from jaxrl.distributions import sample_each
from jaxrl.normalize import init_statistics, normalize_inputs, refresh
from jaxrl.rollout import fold_each
from jaxrl.rule import Learner, Rule
from jaxrl.types import Array, Key, Policy, PyTree, Rollout, StepInput


@dataclass(frozen=True)
class OnPolicyConfig(RolloutConfig):
    """Structure of a rule that may normalise what it learns from."""

    normalize_observations: bool = False
    """By running mean and deviation."""
    normalize_rewards: bool = False
    """Divide by the running deviation of the discounted return, for learning only."""

    @property
    def warmup_iterations(self) -> int:
        """One for the statistics, where there are some."""
        return int(self.normalize_observations or self.normalize_rewards)


# ---------------------------------------------------------------------------------------------------- functions of an Algorithm


def init(rule: Rule[Any], key: Key, hyperparams: Any) -> Learner:
    """Parameters, and statistics of what is normalised."""
    observations = rule.observation_space if rule.config.normalize_observations else None
    rewards = rule.config.num_envs if rule.config.normalize_rewards else None
    return rule.init_learner(key, hyperparams, init_statistics(observations, rewards))


def act(
    rule: Rule[Any], policy: Policy, carry: PyTree, inputs: StepInput, env_id: Array, key: Key, *, explore: bool
) -> tuple[PyTree, Array, dict[str, Array]]:
    """Actions drawn from the model's policy, or its mode; extras hold their ``log_prob``, and the ``raw_action`` as it was drawn
    where the environment takes it in other units."""
    carry, output = rule.model.apply(policy.params, carry, normalize_inputs(policy.statistics, inputs))
    drawn = sample_each(output.policy, fold_each(key, env_id)) if explore else output.policy.mode()
    extras = {"log_prob": output.policy.log_prob(drawn)}
    if not isinstance(rule.action_space, spaces.Discrete):
        extras["raw_action"] = drawn
    return carry, to_environment(rule.action_space, drawn), extras


def observe(rule: Rule[Any], learner: Learner, rollout: Rollout) -> Learner:
    """The statistics with the rollout's valid rows."""
    return learner._replace(statistics=refresh(learner.statistics, rollout, rule.current(learner).gamma, rule.axis_name))


# -------------------------------------------------------------------------------------------------------------------- learning


def drawn_actions(rollout: Rollout) -> Array:
    """[T, B, ...]: the actions in model units, as ``act`` drew them."""
    return rollout.extras.get("raw_action", rollout.action)
