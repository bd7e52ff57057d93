"""``jaxrl train ALGORITHM``: every field of the algorithm's Config and Hyperparams is a flag, with its default and docstring."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from jaxrl.algorithms.presets import Preset, words
from jaxrl.registry import ALGORITHMS, OTHER_NETWORKS, setting_names, unknown_algorithm
from jaxrl.runtime.cli.flags import (
    Count,
    ModelWords,
    Trust,
    field_docs,
    parse_count,
    read_flags,
    refuse_foreign_flags,
    refuse_switch_values,
)
from jaxrl.runtime.cli.group import join_group
from jaxrl.runtime.cli.options import chosen_options, option_flags
from jaxrl.runtime.cli.preset_file import named_preset
from jaxrl.runtime.cli.resume import parse_resume, resume
from jaxrl.runtime.cli.run_flags import RunOptions, run_flags
from jaxrl.runtime.cli.user_code import import_algorithm, import_env_module, import_trusted
from jaxrl.runtime.console.tables import folded, plain_table
from jaxrl.settings.options import dotted_names, option_fields

HELP = """\
usage: jaxrl train ALGORITHM --env ENV [OPTIONS]
       jaxrl train ALGORITHM --preset NAME [OPTIONS]
       jaxrl train --resume FOLDER [--total-steps N] [--devices-per-seed N] [--trust PACKAGE]
                                   [--quiet] [--distributed]

Train over seeds with regular evaluations, and write logs, a learning curve, checkpoints and the best policies to a folder. A run
that was stopped or killed resumes from its last checkpoint with --resume, with the same results as without the interruption.

algorithms:
{algorithms}
jaxrl train ALGORITHM --help lists all settings and their defaults, and jaxrl train --resume --help what a resumed run takes.

try:
  jaxrl train ppo --env CartPole-v1 --seeds 8 --out runs/cartpole
  jaxrl train ppo --env envpool:CartPole-v1 --total-steps 200000 --num-envs 64
  jaxrl train dqn --env Acrobot-v1 --seeds 3,5,7 --learning-rate 1e-3
  jaxrl train ppo --preset ppo-pendulum
  jaxrl train --resume runs/cartpole
"""


def main(args: Sequence[str]) -> int:
    """Train or resume a run; return the exit code."""
    if not args or args[0] in ("-h", "--help"):
        rows = [("", name, entry.help) for name, entry in ALGORITHMS.items()]
        print(folded(HELP.format(algorithms=plain_table(None, rows))), end="")
        return 0 if args else 2
    if goes_on(args):
        return resume(args)
    return train(named_algorithm(args), args[1:])


def goes_on(args: Sequence[str]) -> bool:
    """Return whether the flags resume a run."""
    return any(arg.partition("=")[0] == "--resume" for arg in args)


def named_algorithm(args: Sequence[str]) -> str:
    """Return the first argument. Raise ValueError if it is not an algorithm."""
    if args[0].startswith("-"):
        is_last = args[-1] in ALGORITHMS and not args[-2:][0].startswith("-")
        name, *others = [args[-1], *args[:-1]] if is_last else ["ppo", *args]
        raise ValueError(
            f"name the algorithm first: jaxrl train {name} {' '.join(others)}. Choose one of {', '.join(ALGORITHMS)}"
        )
    import_algorithm(args[0])
    if args[0] not in ALGORITHMS:
        raise unknown_algorithm(args[0])
    return args[0]


def train(algorithm: str, args: Sequence[str]) -> int:
    options, settings = parse(algorithm, args)
    preset = named_preset(options.preset, algorithm) if options.preset else None
    if preset and not preset.score and not options.quiet:
        print(f"preset {preset.name} has not been measured: its settings are from {preset.published}")
    seeds = parse_seeds(options.seeds)
    join_group(options.distributed, options.out)
    from jaxrl.runtime.system.devices import request_devices_for

    request_devices_for([options.env])
    import_env_module(options.env)
    if (file := settings.pop("data", None)) is not None:
        if preset and file == preset.data and not Path(file).exists():
            raise FileNotFoundError(
                f"preset {preset.name} learns from {file}, which does not exist: make it with 'python -m benchmarks datasets "
                f"{preset.dataset}' in jaxrl's repository, or choose another with --data FILE"
            )
        from jaxrl.runtime.datasets.files import load_dataset

        settings["data"] = load_dataset(file, options.env)
    folder, trust = settings.pop("teacher", None), settings.pop("trust", ())
    if folder is not None:
        from jaxrl.runtime.evaluation.load_policy import load_policy
        from jaxrl.runtime.logs.run_folder import read_config

        import_trusted(read_config(folder)["agent"], trust)
        settings["teacher"] = load_policy(folder, trust=trust)
    agent = ALGORITHMS[algorithm].load().make(options.env, **settings)
    from jaxrl.runtime.run import run

    keywords = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    keywords |= {"seeds": seeds, "out": own_folder(algorithm, options) if options.out is None else options.out}
    for name in ("env", "total_steps", "preset", "distributed"):
        del keywords[name]
    run(agent, options.total_steps, **keywords)
    return 0


# ----------------------------------------------------------------------------------------------------------------------- flags


def parse(algorithm: str, args: Sequence[str]) -> tuple[RunOptions, dict[str, Any]]:
    """Parse flags into ``(run options, keywords of the builder)``. A ValueError for a wrong flag names the nearest one."""
    entry, flags = ALGORITHMS[algorithm], run_flags()
    _, config, hyperparams = entry.load()
    preset, names = _chosen_preset(algorithm, args), setting_names(algorithm)
    measured = preset.settings if preset else {}
    structure = _flags("Structure", "Sizes and switches. Changing a value recompiles the program.", config, names[0], measured)
    if entry.network:
        structure = _with_networks(structure, algorithm, measured, preset.data if preset else None)
    data = _flags("Hyperparameters", "Numbers that the algorithm uses as data.", hyperparams, names[1], measured)
    options = option_flags(config, measured)

    def chosen(run: RunOptions, structure: Any, hyperparameters: Any, options: Any) -> tuple[RunOptions, dict[str, Any]]:
        settings = {**dataclasses.asdict(structure), **dataclasses.asdict(hyperparameters)}
        settings = {name: value for name, value in settings.items() if value not in ({}, (), None)}  # the defaults, no data
        return run, settings | chosen_options(config, measured, dataclasses.asdict(options))

    chosen.__annotations__ |= {"run": flags, "structure": structure, "hyperparameters": data, "options": options}
    if preset:
        run = flags(preset.env, str(preset.num_seeds), preset.total_steps, preset=preset.name, **preset.run)
        chosen.__defaults__ = (run, structure(), data(), options())
    if not {"-h", "--help"} & set(args):
        allowed = {*get_type_hints(flags), *get_type_hints(structure), *names[1], *option_fields(config), *dotted_names(config)}
        refuse_foreign_flags(args, allowed)
        refuse_switch_values(args, [name for name, type_ in get_type_hints(config).items() if type_ is bool])
    return read_flags(
        chosen,
        args,
        prog=f"jaxrl train {algorithm}",
        description=f"Train {entry.title}: {entry.help}.",
        config=(tyro.conf.OmitArgPrefixes,),
    )


def _chosen_preset(algorithm: str, args: Sequence[str]) -> Preset | None:
    """Return the preset named by the flags, if any. It is parsed first, because it sets the defaults of the other flags."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--preset")
    with contextlib.suppress(argparse.ArgumentError):  # without a name: reported with the other flags
        name = parser.parse_known_args(list(args))[0].preset
        return named_preset(name, algorithm) if name is not None else None
    return None


def _flags(name: str, doc: str, source: type, names: Sequence[str], measured: Mapping[str, Any]) -> type:
    """Make a dataclass for tyro with these fields of ``source``: their types, help, and defaults (of the preset, if given)."""
    from jaxrl.settings.validation import in_words, setting_types

    types, texts, defaults = setting_types(source), field_docs(source), source()
    fields = []
    for field in names:
        type_ = types[field]
        help_ = texts.get(field, "") + f" [{in_words(type_)}]" * (type_ is not bool)
        read_as = Count if getattr(type_, "__origin__", None) is int else type_
        default = dataclasses.field(default=measured.get(field, getattr(defaults, field)))
        fields.append((field, Annotated[read_as, tyro.conf.arg(help=help_)], default))
    flags = dataclasses.make_dataclass(name, fields, frozen=True)
    flags.__doc__ = doc
    return flags


def _with_networks(structure: type, algorithm: str, measured: Mapping[str, Any], file: str | None) -> type:
    """Add ``--model`` and the flags of other networks that the algorithm has, ``--teacher`` and its ``--trust``, and ``--data``,
    by default ``file``."""
    entry = ALGORITHMS[algorithm]
    networks = {"model": entry.network, **OTHER_NETWORKS}
    fields = list[tuple[str, Any, Any]]()
    for name in networks.keys() & inspect.signature(entry.load().make).parameters.keys():
        help_ = f"Arguments of the network {networks[name]}, such as hidden_sizes=128,128"
        help_ += f" (listed by jaxrl algos {algorithm})." if name == "model" else "; others are those of --model."
        default = dict(measured.get(name, {}))
        shown = tyro.conf.arg(help=help_, help_behavior_hint=f"(default: {' '.join(words(default)) or 'none'})")
        fields.append((name, Annotated[ModelWords, shown], dataclasses.field(default_factory=default.copy)))
    if "teacher" in inspect.signature(entry.load().make).parameters:
        shown = tyro.conf.arg(help="Folder of the run whose best policy is the teacher.", metavar="RUN")
        fields.append(("teacher", Annotated[str | None, shown], dataclasses.field(default=None)))
        shown = tyro.conf.arg(help="Package or module that the teacher's run may import and execute. Can be repeated.")
        fields.append(("trust", Annotated[Trust, shown], dataclasses.field(default=())))
    if "data" in inspect.signature(entry.load().make).parameters:
        help_ = "Dataset to learn from, in place of rollouts: a file of jaxrl collect, or others that jaxrl data reads."
        default_file = file or "none; learn from rollouts"
        shown = tyro.conf.arg(help=help_, metavar="FILE", help_behavior_hint=f"(default: {default_file})")
        fields.append(("data", Annotated[str | None, shown], dataclasses.field(default=file)))
    flags = dataclasses.make_dataclass(structure.__name__, sorted(fields, reverse=True), bases=(structure,), frozen=True)
    flags.__doc__ = structure.__doc__
    return flags


def parse_seeds(text: str) -> int | list[int]:
    """Parse seeds: ``"8"`` means eight seeds, ``"3,5"`` two, and ``"3,"`` one."""
    try:
        return [int(part) for part in text.split(",") if part.strip()] if "," in text else parse_count(text)
    except ValueError:
        raise ValueError(f"--seeds {text!r} must be a number of seeds (8), or seeds separated by commas (3,5,7)") from None


def settled(args: Sequence[str]) -> list[str]:
    """Check the arguments and return them, with ``--out`` added if it is missing, for use by several processes and restarts."""
    if not args or args[0] in ("-h", "--help"):
        raise SystemExit(main(args))
    if goes_on(args):
        from jaxrl.runtime.logs.run_folder import read_config

        read_config(parse_resume(args).resume)
        return [*args]
    options, _ = parse(algorithm := named_algorithm(args), args[1:])
    parse_seeds(options.seeds)
    return [*args] if options.out else [*args, "--out", str(own_folder(algorithm, options))]


def own_folder(algorithm: str, options: RunOptions) -> Path:
    """Return the default folder of a run."""
    return free_folder(f"{ALGORITHMS[algorithm].name}-{options.env}")


def free_folder(name: str) -> Path:
    """Return ``runs/<name>``, with a number appended if it exists."""
    base = Path("runs") / re.sub(r"[^\w.-]+", "-", name)
    candidates = itertools.chain([base], (base.with_name(f"{base.name}-{n}") for n in itertools.count(2)))
    return next(path for path in candidates if not path.exists())
