"""``jaxrl collect RUN``: collect a dataset with the policy of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxrl.runtime.cli.flags import Count, Flag, Trust, read_flags, shown_as

HELP = """\
Play the policy of a run, and write the rows to a file, for --data of jaxrl train and data= in Python.

Rows are raw: no observation is normalised and no reward scaled. The last observation of each episode is kept, so an episode that
was cut off bootstraps from it, and one that terminated does not.

try:
  jaxrl collect runs/sac --rows 100000 --out expert.npz                       the best policy of the best seed, greedily
  jaxrl collect runs/sac --rows 100000 --policy last --explore --out data.npz
  jaxrl collect runs/sac --rows 50000 --policy random --out random.npz        random actions
  jaxrl collect runs/sac --rows 100000 --policy mix:0.5 --out mixed.npz       random actions in half of the environments
  jaxrl data expert.npz                                                       what is in it
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectOptions:
    """Options of ``jaxrl collect``."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    rows: Count
    """Transitions to collect, at least."""
    out: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """File to write: .npz, or minari:NAMESPACE/NAME-v0. An existing file is replaced, but no dataset of Minari."""
    policy: Annotated[str, tyro.conf.arg(metavar="WHICH")] = "best"
    """best, last: the policies of the run's best evaluation, or of its last checkpoint; random: random actions; mix:SHARE: random
    actions in a share of the environments, and the best policy in the others."""
    explore: Flag = False
    """Act as in training, instead of greedily."""
    seed: Annotated[Count | None, shown_as("S", "the best in its evaluation")] = None
    """One of the run's seeds."""
    collect_seed: Count = 0
    """Seed of the environments and of the actions."""
    envs: Count = 8
    """Environments that are played at the same time; each gives a part of the rows."""
    env: Annotated[str | None, shown_as("ENV", "the run's environment")] = None
    """Play in this environment; it must have the same observations and actions."""
    trust: Trust = ()
    """Package or module that the run may import and execute, such as that of your environment. Can be repeated."""


def main(args: Sequence[str]) -> int:
    """Collect the rows, write the file, and print a summary."""
    options = read_flags(CollectOptions, args or ["--help"], prog="jaxrl collect", description=HELP)
    from jaxrl.runtime.cli.user_code import import_env_module, import_trusted
    from jaxrl.runtime.console.progress import spinner
    from jaxrl.runtime.datasets.collect import collect_dataset, share_at_random
    from jaxrl.runtime.datasets.files import check_target, save_dataset
    from jaxrl.runtime.logs.run_folder import read_config
    from jaxrl.runtime.system.devices import enable_compilation_cache

    share_at_random(options.policy)
    check_target(options.out)
    import_trusted(read_config(options.run)["agent"], options.trust)
    import_env_module(options.env)
    enable_compilation_cache()
    with spinner("jaxrl collect") as say:
        data = collect_dataset(
            options.run,
            options.rows,
            policy=options.policy,
            explore=options.explore,
            seed=options.seed,
            collect_seed=options.collect_seed,
            num_envs=options.envs,
            env_id=options.env,
            trust=options.trust,
            say=lambda rows: say(f"{rows:,} of {options.rows:,} rows"),
        )
        say("writing")
        save_dataset(options.out, data)
    low, high = data.info.returns
    print(f"{options.out}: {data.info.rows:,} rows of {data.info.episodes:,} episodes, returns from {low:.1f} to {high:.1f}")
    return 0
