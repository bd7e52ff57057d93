"""``make``: a population as an agent."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from jaxrl.agent.checks import check_agent
from jaxrl.builder.spec import build
from jaxrl.pbt.population import Population
from jaxrl.settings.space import Dimension, read_range
from jaxrl.settings.validation import Range, check_count, check_hyperparam, check_number
from jaxrl.training import check_pure
from jaxrl.types import Agent

POPULATION = "jaxrl.pbt.builder:make_population"
"""Builder in the spec of a population."""


def make(
    agent: Agent,
    space: Mapping[str, Mapping[str, Any]],
    *,
    members: int = 16,
    ready: int = 20,
    quantile: float = 0.25,
    generations: int = 512,
    axis_name: str | None = None,
) -> Agent:
    """Return an agent that is a population of ``agent``.

    A member's score is the bias-corrected decaying mean of its training returns. At the end of a generation each member among the
    worst ``quantile`` takes over the learner (parameters, optimiser, statistics, replay, hyperparameters) and the score of one of
    the best, drawn uniformly, if that one is better; environments and keys stay, so that copies diverge. Each hyperparameter of
    the space then changes, independently: by a factor of 0.8 or 1.25 if its range is logarithmic, else by 20 % of the range up or
    down; with probability ¼ it is drawn anew. Members without an ended episode are neither replaced nor taken over. A member
    that diverges stops, and is the worst.

    Evaluations, ``load_policy`` and ``record`` use the member with the best score. The best of a population is chosen by noisy
    scores; compare it with others by ``replay`` on new seeds.

    Args:
      agent: an agent on a pure environment that learns from rollouts. With replay, each member has its own.
      space: hyperparameter -> ``{"low": …, "high": …}``, and ``"log": True`` or ``"complement"`` (1 − value is log-uniform).
        Members start with uniform draws from these ranges.
      members: M, the number of members.
      ready: iterations of a generation.
      quantile: share of the members that may be replaced, and of those that they may take over.
      generations: number of generations for which the lineage has room; further ones are not recorded.
      axis_name: device axis over which members are divided, as with any agent.

    Returns:
      An Agent whose iteration has the rows of all members, and whose ``init`` takes hyperparameters that all members share.

    Raises:
      TypeError, ValueError: the agent has no pure environment, or an argument is not allowed.
    """
    check_member(agent)
    return _bound(agent, space, members, ready, quantile, generations, axis_name)


def _bound(
    agent: Agent, space: Any, members: int, ready: int, quantile: float, generations: int, axis_name: str | None = None
) -> Agent:
    """Return the population. Its environment may be on the host if it only plays."""
    ready, generations = check_count("ready", ready), check_count("generations", generations)
    check_number("quantile", quantile, Range(0, 0.5, open_low=True))
    members = check_count("members", members, at_least=2)
    population = Population(agent, ranges_of(agent, space), members, ready, quantile, generations, axis_name)
    described = None
    if agent.spec:
        settings: dict[str, Any] = {"agent": json.dumps(agent.spec), "space": {name: dict(x) for name, x in space.items()}}
        settings |= {"members": members, "ready": ready, "quantile": quantile, "generations": generations}
        described = spec_of(POPULATION, agent, settings)
    algorithm = agent.algorithm._replace(
        init=population.init_learner,
        policy=population.policy,
        buffers=(),
        transferable_fields=(),
        mark_discontinuity=None,
        check_vma=False,  # what devices gather is the same on all of them, which is not typed
    )
    return agent._replace(
        init=population.init,
        step=population.step,
        algorithm=algorithm,
        spec=described or {},
        num_envs=members * agent.num_envs,
        axis_name=axis_name,
    )


def make_population(*, env: Any, agent: str, axis_name: str | None = None, num_envs: int | None = None, **settings: Any) -> Agent:
    """Rebuild a population from its spec, to train, or to play with any environment.

    Args:
      agent: spec of its members, as JSON.
      num_envs: environments of one device's share, which must be those of whole members.
    """
    member = build(json.loads(agent), env=env)
    if num_envs is not None and num_envs % member.num_envs:
        raise ValueError(f"num_envs={num_envs} must be a multiple of a member's {member.num_envs}: devices divide the members")
    return _bound(member, axis_name=axis_name, **settings)


def spec_of(builder: str, agent: Agent, settings: dict[str, Any]) -> dict[str, Any]:
    return {"builder": {"import": builder}, "env": agent.spec["env"], "settings": settings, "parts": {}}


def check_member(agent: Agent) -> None:
    check_agent(agent)
    check_pure(agent, "jaxrl.pbt")
    if agent.episodes or agent.data is not None:
        raise ValueError("jaxrl.pbt needs an agent that learns from rollouts, not from whole episodes or a dataset")
    if agent.env.players == 2:
        raise ValueError(
            f"jaxrl.pbt ranks members by their training returns, and those of self-play in {agent.env.name} say who wins, not "
            "how well both play: compare agents by jaxrl.arena"
        )
    if agent.axis_name is not None:
        raise ValueError(f"axis_name={agent.axis_name!r}: build the agent without axis_name; devices divide the members")


def ranges_of(agent: Agent, space: Any) -> tuple[Dimension, ...]:
    """Return the ranges of a space, checked against the agent's hyperparameters."""
    if not isinstance(space, Mapping) or not space:
        raise ValueError('space must have a hyperparameter, such as {"learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}}')
    dimensions = []
    for name, values in space.items():
        if not isinstance(values, Mapping):
            raise TypeError(f'space[{name!r}]={values!r} must be a range, such as {{"low": 0.9, "high": 0.999}}')
        low, high, log = read_range(name, values, functools.partial(check_hyperparam, agent.hyperparams, name))
        dimensions.append(Dimension(name, low, high, log, hyperparam=name))
    return tuple(dimensions)
