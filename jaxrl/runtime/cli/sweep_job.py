"""One job of a sweep, in a separate process: ``python -P -m jaxrl.runtime.cli.sweep_job FOLDER NAME [TRUSTED …]``."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

from jaxrl.runtime.cli.main import run_and_exit  # the only early import: it sets up Ctrl-C before the rest is loaded


def main(folder: str, name: str, *trust: str) -> int:
    from jaxrl.builder.spec import check_env_id, check_factory
    from jaxrl.registry import ALGORITHMS
    from jaxrl.runtime.cli.user_code import import_algorithm, import_env_module
    from jaxrl.runtime.search.sweep import MANIFEST, SweepFile, expand, job_folder, stop_with_parent
    from jaxrl.runtime.system.devices import request_devices_for
    from jaxrl.runtime.system.disk import parse_json, read_regular
    from jaxrl.settings.validation import check_seeds

    stop_with_parent()
    sweep = SweepFile(**parse_json(read_regular(Path(folder) / MANIFEST))["sweep"])
    import_algorithm(sweep.algorithm, trust)
    job = next(job for job in expand(sweep) if job.name == name)
    request_devices_for([check_env_id(sweep.env, trust)])
    import_env_module(sweep.env)
    check_factory(sweep.env, trust)
    settings: dict[str, Any] = {**sweep.settings, **job.settings}
    if sweep.data is not None:
        from jaxrl.runtime.datasets.files import load_dataset

        settings["data"] = load_dataset(sweep.data, sweep.env)
    agent = ALGORITHMS[sweep.algorithm].load().make(sweep.env, **settings)
    seeds = check_seeds(sweep.seeds)
    members = [(member, seed) for member in job.members for seed in seeds]
    hyperparams = {key: [member[key] for member, _ in members] for key in job.members[0]} or None

    from jaxrl.runtime.run import RunDiverged, run

    with contextlib.suppress(RunDiverged):  # reported in the table of the sweep
        run(
            agent,
            sweep.total_steps,
            seeds=[seed for _, seed in members],
            hyperparams=hyperparams,
            out=job_folder(Path(folder), name),
            eval_episodes=sweep.eval_episodes,
            eval_explore=sweep.eval_explore,
        )
    return 0


if __name__ == "__main__":
    run_and_exit(partial(main, *sys.argv[1:]))
