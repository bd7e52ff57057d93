"""Evaluation on either kind of environment."""

from __future__ import annotations

from jaxrl import training
from jaxrl.agent import check_agent, refuse_env_params
from jaxrl.names import says_keywords
from jaxrl.training import Evaluation
from jaxrl.types import Agent, AgentState, HostEnv, Key, Policy, PyTree


@says_keywords
def evaluate(
    agent: Agent,
    policy: Policy | AgentState,
    key: Key,
    num_episodes: int = 128,
    *,
    explore: bool = False,
    env_params: PyTree = None,
    max_steps: int | None = None,
) -> Evaluation:
    """Play ``num_episodes`` whole episodes, one in each of as many parallel environments, so that short ones are not favoured.

    Pure environments run as ``jaxrl.training.evaluate`` (jit it if you call it often); host environments run on the host.

    Args:
      policy: a Policy, or an AgentState of one seed.
      explore: act as in training instead of greedily.
      env_params: parameters of a pure environment, one value or one per episode; default: the state's or the environment's own.
      max_steps: rows after which an episode is given up; default: the environment's limit, or 100 000.

    Returns:
      Evaluation: episodic_return f32, episodic_length i32 and finished bool, [num_episodes] each; raw rewards, undiscounted.

    Raises:
      ValueError: ``num_episodes`` or ``max_steps`` below 1, or ``env_params`` for a host environment.
    """
    check_agent(agent)
    if not isinstance(agent.env, HostEnv):
        return training.evaluate(agent, policy, key, num_episodes, explore=explore, env_params=env_params, max_steps=max_steps)
    if env_params is not None:
        refuse_env_params(agent.env)
    from jaxrl.runtime.drivers.host import evaluate_host

    return evaluate_host(agent, policy, key, num_episodes, explore=explore, max_steps=max_steps)
