"""Frames of ``jaxrl record``: episodes of a policy, step by step, as pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl.rollout.agents import lanes_of
from jaxrl.rollout.autoreset import StepOutcome
from jaxrl.rollout.collect import act_in, advance, init_actor
from jaxrl.runtime.cli.flags import PlayOptions
from jaxrl.runtime.console.progress import number
from jaxrl.runtime.evaluation.evaluate_runs import episode_key
from jaxrl.runtime.evaluation.rendering import Drawing
from jaxrl.runtime.evaluation.video import Shot, captioned
from jaxrl.runtime.samplers.stepper import Stepper
from jaxrl.training import check_pure
from jaxrl.types import Agent, HostEnv, Key, Policy

PAUSE = 1.0
"""Seconds for which the last picture of an episode is shown."""


class Moment(NamedTuple):
    """One step of an episode, or its first observation. Observations and actions of several agents are [A, ...]."""

    scene: Any
    """State from which an environment is drawn (see ``rendering.Drawing``)."""
    obs: Any
    """Observation after the step."""
    action: Any = None
    """Action of the step."""
    episodic_return: float = 0.0
    """Return of the episode so far, as in evaluations: the mean over agents, and in a game player 0's."""
    ended: bool = False


Player = Callable[[int], Iterator[Moment]]
"""Function that plays the episode with the given number, from its first observation to its end."""


def film(
    play: Player, drawn: Drawing, name: str, fps: float, options: PlayOptions, tally: list[str], say: Callable[[str], None]
) -> Iterator[Shot]:
    """Yield the pictures of all episodes, and append a summary of each episode to ``tally``."""
    assert options.max_steps is not None
    for episode in range(options.episodes):
        for step, moment in enumerate(islice(play(episode), options.max_steps + 1)):
            total = moment.episodic_return
            cut = step == options.max_steps and not moment.ended
            where = f"step {step}   return {total:.2f}"
            if options.episodes > 1:
                where = f"episode {episode + 1} of {options.episodes}   {where}"
            say(where)
            caption = f"{name.partition('?')[0].partition('|')[0]}   {where}"
            picture = captioned(drawn.draw(moment.scene, moment.obs, moment.action), caption)
            yield Shot(picture, PAUSE if cut or moment.ended else 1 / fps)
        tally.append(f"return {number(total, total)} in {step} steps" + " (cut by --max-steps)" * cut)


# ----------------------------------------------------------------------------------------------------------------------- playing


def player(agent: Agent, policy: Policy, seed: int, options: PlayOptions) -> Player:
    """Return a player of the policy on the agent's environment, pure or on the host."""
    make = _host_player if isinstance(agent.env, HostEnv) else _pure_player
    return make(agent, policy, episode_key(seed, options.eval_seed), options.explore)


def _pure_player(agent: Agent, policy: Policy, key: Key, explore: bool) -> Player:
    """Return a player whose episode i equals that of environment i in ``evaluate_pure``: keys are drawn in the same way."""
    env, algorithm = check_pure(agent, "record"), agent.algorithm
    reset_key, row_key = jax.random.split(key)

    @jax.jit
    def start(lanes: Any) -> Any:
        return init_actor(algorithm, env, reset_key, lanes, env.params)

    @jax.jit
    def step(policy: Policy, actor: Any, lanes: Any, time: Any) -> Any:
        act_key, step_key, unused = jax.random.split(jax.random.fold_in(row_key, time), 3)
        carry, action, _ = act_in(algorithm, env, policy, actor, env.params, lanes, act_key, explore=explore)
        actor, row = advance(env, actor, carry, action, env.params, lanes, step_key, unused)
        return actor, action, row

    def scene(actor: Any) -> Any:
        return jax.tree.map(lambda x: x[0], actor.env_state)

    def play(episode: int) -> Iterator[Moment]:
        lanes: Any = lanes_of(np.array([episode], np.int32), env.num_agents)  # type: ignore[arg-type]
        actor = start(lanes)
        yield Moment(scene(actor), _only(actor.input.obs, env.num_agents))
        for time in count():
            actor, action, row = step(policy, actor, lanes, np.int32(time))
            yield _moment(scene(actor), actor.input.obs, np.asarray(action), row, env.num_agents)
            if row.over.all():
                return

    return play


def _host_player(agent: Agent, policy: Policy, key: Key, explore: bool) -> Player:
    """Return a player that opens a new environment for each episode."""
    env, algorithm = agent.env, agent.algorithm
    assert isinstance(env, HostEnv)
    shown = env._replace(open_eval=env.open_render or env.open_eval)
    act = jax.jit(partial(algorithm.act, explore=explore))

    def play(episode: int) -> Iterator[Moment]:
        reset_key, row_key = jax.random.split(jax.random.fold_in(key, episode))
        envs = Stepper(shown, 1, int(jax.random.randint(reset_key, (), 0, 2**31 - 1)), evaluation=True)
        try:
            envs.reset()
            lanes: Any = np.arange(max(1, env.num_agents), dtype=np.int32)
            carry = algorithm.initial_carry(len(lanes))
            yield Moment(envs, _only(envs.input.obs, env.num_agents))
            for time in count():
                carry, action, _ = act(policy, carry, envs.input, lanes, jax.random.fold_in(row_key, time))
                action = np.asarray(action)
                row = envs.step(action)
                yield _moment(envs, envs.input.obs, action, row, env.num_agents)
                if row.over.all():
                    return
        finally:
            envs.close()

    return play


def _moment(scene: Any, obs: Any, action: np.ndarray, row: StepOutcome, num_agents: int) -> Moment:
    obs, action = _only((obs, action), num_agents)
    return Moment(scene, obs, action, float(row.of_environments(num_agents)[0].episodic_return[0]), bool(row.over.all()))


def _only(lanes: Any, num_agents: int) -> Any:
    """Return what the lanes of one environment hold: [A, ...], or without agents the only row."""
    return lanes if num_agents else jax.tree.map(lambda x: x[0], lanes)
