"""The best that agents without a common memory can do in the switch riddle: exact best responses, one agent after another."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import NamedTuple

ABSENT, OFF, ON = range(3)
"""Observations of an agent on a day: outside, or inside with the light off or on."""
NOTHING, SWITCH, TELL = range(3)
History = tuple[int, ...]
Policy = dict[History, int]
"""Observations up to a day that the agent is inside -> its action."""


class Situation(NamedTuple):
    """Hidden state of the riddle, for the agent whose best response is computed."""

    light: int
    been: frozenset[int]
    others: tuple[History, ...]
    """Observations of all agents; those of the agent itself do not count."""

    def visited(self, guest: int) -> Situation:
        """Return the situation of a day with this agent inside."""
        seen = (OFF + self.light if agent == guest else ABSENT for agent in range(len(self.others)))
        return Situation(self.light, self.been | {guest}, tuple((*h, x) for h, x in zip(self.others, seen, strict=True)))

    @property
    def telling(self) -> float:
        """The return of an agent that tells."""
        return 1.0 if len(self.been) == len(self.others) else -1.0


Open = dict[Situation, float]
"""Situations that an agent's observations leave open, with their probabilities."""


def best_response(agent: int, policies: list[Policy], days: int) -> tuple[float, Policy]:
    """Return the largest mean return against these policies of the others, and a policy that reaches it.

    The search follows all observations and actions of the agent, with all situations that they leave open.
    """

    def day_outside(situations: Open) -> tuple[float, Open, tuple[Open, Open]]:
        """Return the return of others that tell today, and what is open to the agent outside, and inside with each light."""
        value, (outside, dark, lit) = 0.0, (defaultdict[Situation, float](float) for _ in range(3))
        inside = (dark, lit)
        for situation, probability in situations.items():
            for guest in range(len(policies)):
                share, today = probability / len(policies), situation.visited(guest)
                today = today._replace(others=tuple(() if j == agent else h for j, h in enumerate(today.others)))
                action = None if guest == agent else policies[guest].get(today.others[guest], NOTHING)
                if action is None:
                    inside[today.light][today] += share
                elif action == TELL:
                    value += share * today.telling
                else:
                    outside[today._replace(light=today.light ^ (action == SWITCH))] += share
        return value, outside, inside

    def solve(day: int, situations: Open, seen: History) -> tuple[float, Policy]:
        if day == days or not situations:
            return 0.0, {}
        told, outside, inside = day_outside(situations)
        later, policy = solve(day + 1, outside, (*seen, ABSENT))
        value = told + later
        for light, here in enumerate(inside):
            if not here:
                continue
            history = (*seen, OFF + light)
            switched = {situation._replace(light=1 - light): p for situation, p in here.items()}
            branches: dict[int, tuple[float, Policy]] = {
                TELL: (sum(p * situation.telling for situation, p in here.items()), {}),
                NOTHING: solve(day + 1, here, history),
                SWITCH: solve(day + 1, switched, history),
            }
            action = max(branches, key=lambda action: round(branches[action][0], 12))
            value += branches[action][0]
            policy = {**policy, **branches[action][1], history: action}
        return value, policy

    start = Situation(0, frozenset(), tuple(() for _ in policies))
    return solve(0, {start: 1.0}, ())


def ascend(seed: int, agents: int = 3, days: int = 6) -> float:
    """Return the mean return that best responses, in random order, reach from random policies, until none is better."""
    rng, last, value = random.Random(seed), -2.0, -1.0
    histories = [h for day in range(days) for h in itertools.product(range(3), repeat=day + 1) if h[-1] != ABSENT]
    policies = [{h: rng.choices((NOTHING, SWITCH, TELL), (6, 6, 1))[0] for h in histories} for _ in range(agents)]
    while value > last + 1e-9:
        last = value
        for agent in rng.sample(range(agents), agents):
            value, policies[agent] = best_response(agent, policies, days)
    return value
