"""Evaluation on pure and host environments."""

from __future__ import annotations

from jaxrl.agent.checks import check_agent, check_key, refuse_env_params
from jaxrl.rollout.play import Evaluation
from jaxrl.runtime.trainers.host_evaluation import evaluate_host
from jaxrl.runtime.trainers.program_cache import SameAgent, evaluation_program
from jaxrl.settings.aliases import suggest_keywords
from jaxrl.settings.validation import check_switches
from jaxrl.training import check_episodes, check_one_policy
from jaxrl.types import Agent, AgentState, HostEnv, Key, Policy, PyTree


@suggest_keywords
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
    """Play ``num_episodes`` entire episodes, each in a separate parallel environment, so that short episodes are not favoured.

    Pure environments run in one program, which later calls with the same agent and arguments reuse, for any policy and key; there
    this is a pure function, which ``jit`` and ``vmap`` accept. Host environments run on the host.

    Args:
      policy: a Policy, or an AgentState of one seed.
      explore: act as in training instead of greedily.
      env_params: parameters of a pure environment, one value or one per episode; default: those of the state or the environment.
      max_steps: rows after which an episode is cut; default: the environment's limit, or 100 000.

    Returns:
      Evaluation: episodic_return f32, episodic_length i32 and finished bool, [num_episodes] each; raw rewards, undiscounted.

    Raises:
      ValueError: ``num_episodes`` or ``max_steps`` is below 1, or ``env_params`` is given for a host environment.
    """
    check_agent(agent)
    check_switches(explore=explore)
    num_episodes, max_steps = check_episodes(num_episodes, max_steps)
    check_one_policy(policy)
    if isinstance(agent.env, HostEnv):
        check_key(key)
        if env_params is not None:
            refuse_env_params(agent.env)
        return evaluate_host(agent, policy, key, num_episodes, explore=explore, max_steps=max_steps)
    check_key(key, vmapped="lambda key: evaluate(agent, state, key)")
    program = evaluation_program(SameAgent(agent), num_episodes, bool(explore), max_steps)
    return program(policy, key, env_params)
