"""``jaxrl record RUN``: a policy at work, as a GIF or MP4."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from jaxrl.runtime.cli.flags import Count, PlayOptions, shown_as

if TYPE_CHECKING:
    from jaxrl.runtime.play.pictures import Drawing
    from jaxrl.runtime.play.video import Shot
    from jaxrl.types import Agent, Key, Policy

PAUSE = 1.0
"""Seconds for which the last picture of an episode stays."""

HELP = """\
Play a policy that a run learnt, and draw what happens, as a GIF or MP4.

What can be drawn: environments that draw themselves, which are gymnax's classic control, FourRooms, MetaMaze and PointRobot, most
of envpool (Atari, MuJoCo, Box2D, MiniGrid, ...; MuJoCo needs the system library libEGL) and those of yours with a render; those
whose observations are small boards, as cells with a colour for each channel (gymnax's MinAtar, Catch, DeepSea and Pong); and
those whose observations are images (Procgen, VizDoom). Nothing opens a window, and no display is needed.

try:
  jaxrl record runs/cartpole                                   the best policy of the best seed: runs/cartpole/best-seed-S.gif
  jaxrl record runs/breakout --episodes 3 --seed 5 --out breakout.gif
  jaxrl record runs/pendulum --which last --explore --out pendulum.mp4
  jaxrl record runs/cartpole --env "CartPole-v1?length=0.8"    in another environment than it was trained in
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordOptions(PlayOptions):
    """What to draw, and where it goes."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    out: Annotated[str | None, shown_as("FILE", "RUN/WHICH-seed-S.gif")] = None
    """The file, .gif or .mp4 (which needs pip install "jaxrl[video]"). One that is there is replaced."""
    episodes: Count = 1
    """Episodes, one after the other."""
    max_steps: Count = 1000
    """Steps after which an episode is cut. A GIF takes 100 to 500 kB of memory per step while it is made."""
    seed: Annotated[Count | None, shown_as("S", "the best in its evaluation")] = None
    """One of the run's seeds."""
    eval_seed: Count = 0
    """Another number gives other episodes. On gymnax they are the first ones of jaxrl eval with the same number."""
    fps: Annotated[float | None, shown_as("FLOAT", "real time")] = None
    """Pictures, which are steps, per second; a GIF has 50 at most."""


class Moment(NamedTuple):
    """One step of an episode, or its first observation."""

    scene: Any
    """What an environment draws itself from (see ``pictures.Drawing``)."""
    obs: Any
    """The observation that was reached."""
    action: Any = None
    """The action that led there."""
    reward: float = 0.0
    ended: bool = False


Player = Callable[[int], Iterator[Moment]]
"""Plays an episode, by its number, from its first observation to its end."""


def main(args: Sequence[str]) -> int:
    """Record as the flags say."""
    options = tyro.cli(RecordOptions, prog="jaxrl record", description=HELP, args=list(args) or ["--help"])
    options.check()
    print(record(options))
    return 0


def record(options: RecordOptions) -> str:
    """Make the film; returns one line on what it shows."""
    import jax

    from jaxrl.runtime.cli.user_code import import_env_module, import_trusted
    from jaxrl.runtime.play.pictures import drawing
    from jaxrl.runtime.play.policy import load_policy
    from jaxrl.runtime.play.saved_runs import finite, playing_agent
    from jaxrl.runtime.play.video import check_film, write_film
    from jaxrl.runtime.records.folder import read_config
    from jaxrl.runtime.screen.progress import spinner
    from jaxrl.runtime.system.devices import enable_compilation_cache
    from jaxrl.spec import algorithm_name

    config = read_config(options.run)
    import_trusted(config["agent"], options.trust)
    if options.env:
        import_env_module(options.env)
    loaded = load_policy(options.run, seed=options.seed, which=options.which, trust=options.trust)
    if not finite(jax.tree.map(lambda x: x[None], loaded.policy)).all():
        raise ValueError(f"seed={loaded.seed} of {options.run!r} diverged: its parameters are not finite. Choose another one")
    agent = playing_agent(config, options.env, options.trust)
    drawn = drawing(agent.env)
    fps = drawn.fps if options.fps is None else options.fps
    out = options.out or os.path.join(options.run, f"{options.which}-seed-{loaded.seed}.gif")
    path = check_film(out, fps)
    enable_compilation_cache()
    play = player(agent, loaded.policy, loaded.seed, options)
    tally: list[str] = []
    with spinner(path.name) as say:
        write_film(path, film(play, drawn, agent.env.name, fps, options, tally, say), fps)
    who = f"{algorithm_name(agent.spec)} on {agent.env.name}, seed {loaded.seed}"
    who += f", {options.which} policy (iteration {loaded.step})"
    return f"{who}: {'; '.join(tally)}. {out}: {path.stat().st_size / 1e6:.2g} MB at {fps:g} pictures/s"


def film(
    play: Player, drawn: Drawing, name: str, fps: float, options: RecordOptions, tally: list[str], say: Callable[[str], None]
) -> Iterator[Shot]:
    """The pictures of all episodes; ``tally`` gets a few words on each."""
    from jaxrl.runtime.play.video import Shot, captioned
    from jaxrl.runtime.screen.progress import number

    for episode in range(options.episodes):
        total = 0.0
        for step, moment in enumerate(islice(play(episode), options.max_steps + 1)):
            total += float(moment.reward)
            cut = step == options.max_steps and not moment.ended
            where = f"step {step}   return {total:.2f}"
            if options.episodes > 1:
                where = f"episode {episode + 1} of {options.episodes}   {where}"
            say(where)
            picture = captioned(drawn.draw(moment.scene, moment.obs, moment.action), f"{name.partition('?')[0]}   {where}")
            yield Shot(picture, PAUSE if cut or moment.ended else 1 / fps)
        tally.append(f"return {number(total, total)} in {step} steps" + " (cut by --max-steps)" * cut)


# ----------------------------------------------------------------------------------------------------------------------- playing


def player(agent: Agent, policy: Policy, seed: int, options: RecordOptions) -> Player:
    """Plays episodes on the agent's environment, pure or on the host."""
    from jaxrl.runtime.play.saved_runs import episode_key
    from jaxrl.types import HostEnv

    make = _host_player if isinstance(agent.env, HostEnv) else _pure_player
    return make(agent, policy, episode_key(seed, options.eval_seed), options.explore)


def _pure_player(agent: Agent, policy: Policy, key: Key, explore: bool) -> Player:
    """Episode i is that of environment i in ``training.evaluate``, which draws its keys in the same way."""
    import jax
    import numpy as np

    from jaxrl.rollout import advance, init_actor
    from jaxrl.training import check_pure

    env, algorithm = check_pure(agent, "record"), agent.algorithm
    reset_key, row_key = jax.random.split(key)

    @jax.jit
    def start(env_id: Any) -> Any:
        return init_actor(algorithm, env, reset_key, env_id, env.params)

    @jax.jit
    def step(policy: Policy, actor: Any, env_id: Any, time: Any) -> Any:
        act_key, step_key, unused = jax.random.split(jax.random.fold_in(row_key, time), 3)
        carry, action, _ = algorithm.act(policy, actor.carry, actor.input, env_id, act_key, explore=explore)
        actor, row = advance(env, actor, carry, action, env.params, env_id, step_key, unused)
        return actor, action, row

    def play(episode: int) -> Iterator[Moment]:
        env_id = np.array([episode], np.int32)
        actor = start(env_id)
        yield Moment(*_first((actor.env_state, actor.input.obs)))
        for time in count():
            actor, action, row = step(policy, actor, env_id, np.int32(time))
            yield Moment(*_first((actor.env_state, actor.input.obs, np.asarray(action), row.reward, row.done)))
            if row.done[0]:
                return

    return play


def _host_player(agent: Agent, policy: Policy, key: Key, explore: bool) -> Player:
    """Each episode in an environment that is opened for it."""
    import jax
    import numpy as np

    from jaxrl.runtime.drivers.stepping import Stepper
    from jaxrl.types import HostEnv

    env, algorithm = agent.env, agent.algorithm
    assert isinstance(env, HostEnv)
    shown = env._replace(open_eval=env.open_render or env.open_eval)
    act = jax.jit(partial(algorithm.act, explore=explore))

    def play(episode: int) -> Iterator[Moment]:
        episode_key = jax.random.fold_in(key, episode)
        envs = Stepper(shown, 1, int(jax.random.randint(episode_key, (), 0, 2**31 - 1)), evaluation=True)
        try:
            envs.reset()
            carry = algorithm.initial_carry(1)
            yield Moment(envs, _first(envs.input.obs))
            for time in count():
                carry, action, _ = act(policy, carry, envs.input, np.zeros(1, np.int32), jax.random.fold_in(episode_key, time))
                action = np.asarray(action)
                row = envs.step(action)
                yield Moment(envs, *_first((envs.input.obs, action, row.reward, row.done)))
                if row.done[0]:
                    return
        finally:
            envs.close()

    return play


def _first(batch: Any) -> Any:
    """The only row of a batch."""
    import jax

    return jax.tree.map(lambda x: x[0], batch)
