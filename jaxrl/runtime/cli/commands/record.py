"""``jaxrl record RUN``: record a policy as a GIF or MP4."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxrl.runtime.cli.flags import Count, PlayOptions, read_flags, shown_as

HELP = """\
Record episodes of a trained policy as a GIF or MP4.

Supported environments: those that render themselves, which are gymnax's classic control, FourRooms, MetaMaze and PointRobot, most
of envpool (Atari, MuJoCo, Box2D, MiniGrid, ...; MuJoCo needs the system library libEGL) and of gymnasium (most need pygame), and
custom ones with a render method; those whose observations are small boards, drawn as cells with a colour for each channel, which
are gymnax's MinAtar, Catch, DeepSea and Pong; and those whose observations are images (Procgen, VizDoom). No window is opened,
and no display is needed.

try:
  jaxrl record runs/cartpole                                   the best policy of the best seed: runs/cartpole/best-seed-S.gif
  jaxrl record runs/breakout --episodes 3 --seed 5 --out breakout.gif
  jaxrl record runs/pendulum --which last --explore --out pendulum.mp4
  jaxrl record runs/cartpole --env "CartPole-v1?length=0.8"    in a different environment than in training
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordOptions(PlayOptions):
    """Options of ``jaxrl record``."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    out: Annotated[str | None, shown_as("FILE", "RUN/WHICH-seed-S.gif")] = None
    """Output file: .gif, or .mp4 (which needs pip install "jaxrl[video]"). An existing file is replaced."""
    episodes: Count = 1
    """Number of episodes, recorded one after the other."""
    max_steps: Count = 1000
    """Steps after which an episode is cut. Writing a GIF takes 100 to 500 kB of memory per step."""
    seed: Annotated[Count | None, shown_as("S", "the best in its evaluation")] = None
    """One of the run's seeds."""
    eval_seed: Count = 0
    """Seed of the episodes. On gymnax they equal the first ones of jaxrl eval with the same number."""
    fps: Annotated[float | None, shown_as("FLOAT", "real time, in a GIF at most 50")] = None
    """Frames per second, one frame per step; at most 50 for a GIF."""


def main(args: Sequence[str]) -> int:
    """Record the episodes, and print a summary of the film."""
    options = read_flags(RecordOptions, args or ["--help"], prog="jaxrl record", description=HELP)
    options.check()
    import jax

    from jaxrl.builder.spec import algorithm_name
    from jaxrl.runtime.cli.film import film, player
    from jaxrl.runtime.cli.user_code import import_env_module, import_trusted
    from jaxrl.runtime.console.progress import spinner
    from jaxrl.runtime.evaluation.evaluate_runs import finite_seeds, playing_agent
    from jaxrl.runtime.evaluation.load_policy import load_policy
    from jaxrl.runtime.evaluation.rendering import drawing
    from jaxrl.runtime.evaluation.video import FASTEST, check_film, write_film
    from jaxrl.runtime.logs.run_folder import read_config
    from jaxrl.runtime.system.devices import enable_compilation_cache

    config = read_config(options.run)
    import_trusted(config["agent"], options.trust)
    import_env_module(options.env)
    loaded = load_policy(options.run, seed=options.seed, which=options.which, trust=options.trust)
    if not finite_seeds(jax.tree.map(lambda x: x[None], loaded.policy)).all():
        raise ValueError(f"seed={loaded.seed} of {options.run!r} diverged: its parameters are not finite. Choose another one")
    agent = playing_agent(config, options.env, options.trust)
    drawn = drawing(agent.env)
    out = options.out or os.path.join(options.run, f"{loaded.which}-seed-{loaded.seed}.gif")
    fastest = FASTEST.get(os.path.splitext(out)[1].lower(), drawn.fps)
    fps = min(drawn.fps, fastest) if options.fps is None else options.fps
    path = check_film(out, fps)
    enable_compilation_cache()
    play = player(agent, loaded.policy, loaded.seed, options)
    tally: list[str] = []
    with spinner(path.name) as say:
        write_film(path, film(play, drawn, agent.env.name, fps, options, tally, say), fps)
    who = f"{algorithm_name(agent.spec)} on {agent.env.name}, seed {loaded.seed}"
    who += f", {loaded.which} policy (iteration {loaded.step})"
    print(f"{options.run}: {loaded.about}")
    print(f"{who}: {'; '.join(tally)}. {out}: {path.stat().st_size / 1e6:.2g} MB at {fps:g} pictures/s")
    return 0
