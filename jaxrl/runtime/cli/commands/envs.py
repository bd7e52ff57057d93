"""``jaxrl envs``: list the environments for ``jaxrl train --env``."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxrl.runtime.cli.flags import Flag, read_flags, shown_as
from jaxrl.runtime.console.tables import show_table, terminal
from jaxrl.settings.aliases import nearest

HEADINGS = ("id", "observation", "action", "max steps")

MOST_DESCRIBED = 40
"""Maximum number of environments per backend that are listed with spaces and limits; longer lists show ids only."""

HELP = """\
List the environments for jaxrl train --env: the number in each family or, for
a selection, ids with spaces and time limits (if at most 40 per backend).

An id is NAME (gymnax: in JAX, on the same device as training) or BACKEND:NAME (envpool:
in C++ on the CPU; gymnasium and pettingzoo: in Python on the CPU; brax, craftax, jaxmarl,
jumanji, pgx, playground and xminigrid: in JAX; jaxrl: small ones included in jaxrl).
Options may follow: 'CartPole-v1?gravity=5.0'. A custom environment is MODULE:FUNCTION,
and a custom gymnasium environment is gymnasium:MODULE:NAME.
Wrappers of pure environments come last, the innermost first: 'CartPole-v1|frame_stack(4)|time_limit(200)'.

try:
  jaxrl envs pong
  jaxrl envs atari
  jaxrl envs 'Half*-v4'
  jaxrl envs --backend gymnax
  jaxrl envs 'CartPole-v1|select_observation(0,2)'
"""


@dataclasses.dataclass(frozen=True)
class Options:
    filter: Annotated[tyro.conf.Positional[str | None], shown_as("[FILTER]")] = None
    """Only ids that contain this text, ignoring case; with *, a pattern for the entire name. A family selects all its members.
    A full id with options or wrappers selects that environment."""
    backend: Annotated[str | None, shown_as("BACKEND", "all")] = None
    """Only the environments of this backend, such as gymnax, envpool, gymnasium or jaxrl."""
    all: Flag = False
    """List every id, if neither a filter nor a backend is given."""


def main(args: Sequence[str]) -> int:
    options = read_flags(Options, args, prog="jaxrl envs", description=HELP)
    if "jax" not in sys.modules:
        os.environ["JAX_PLATFORMS"] = "cpu"  # listing needs no accelerator and must not reserve its memory
    if options.filter and {"?", "|"} & set(options.filter):  # one environment, with options or wrappers, which is in no list
        from jaxrl.envs import make_env
        from jaxrl.runtime.cli.user_code import import_env_module

        import_env_module(options.filter)
        make_env(options.filter)  # raises an error that explains the problem
        show_table(HEADINGS, [describe(options.filter)])
        return 0
    known, failures = list_ids(options.backend)
    if known and options == Options():
        summarise(known)
    elif known:
        show(known, options.filter)
    for failure in failures:
        print(f"jaxrl: {failure}; for details, run jaxrl doctor", file=sys.stderr)
    return 0 if known else 2


def summarise(known: dict[str, list[str]]) -> None:
    """Print a line for each family, the largest of each backend first."""
    from jaxrl.envs import EXTRAS, family_of
    from jaxrl.envs.wrappers import WRAPPERS, usage

    rows = []
    for backend, ids in known.items():
        families: dict[str, list[str]] = {}
        for env_id in ids:
            families.setdefault(family_of(env_id), []).append(env_id)
        for family, members in sorted(families.items(), key=lambda item: -len(item[1])):
            rows.append((backend, family, f"{len(members):,}", ", ".join(members[:2])))
    show_table(("backend", "family", "environments", "such as"), rows, fixed=(0, 1))
    print(f"\n{counted(known)}. For details: jaxrl envs FAMILY or a part of an id, --backend, --all\n")
    if absent := [f'"jaxrl[{each}]"' for each in EXTRAS if each not in known]:
        print(f"For more environments: pip install {' or '.join(absent)}\n")
    wrappers = [(usage(name), str(WRAPPERS[name].__doc__).partition("\n")[0].replace("``", "")) for name in sorted(WRAPPERS)]
    show_table(("wrapper", "effect on a pure environment"), wrappers, fixed=(0,))
    print("\nAn id with wrappers, the innermost first: 'CartPole-v1|frame_stack(4)|time_limit(200)'")


def show(known: dict[str, list[str]], wanted: str | None) -> None:
    """Print the environments selected by a filter."""
    chosen = known if wanted is None else choose(known, wanted)
    if wanted is not None and not any(chosen.values()):
        every = [name for ids in known.values() for name in ids]
        near = nearest(wanted, {name.partition(":")[2] or name for name in every})
        raise ValueError(f"no environment matches {wanted!r}.{near} jaxrl envs --all lists all {len(every):,}.")
    for ids in sorted(chosen.values(), key=len, reverse=True):  # on a terminal, the end is visible
        if len(ids) > MOST_DESCRIBED:
            list_plainly(ids)
        elif ids:
            show_table(HEADINGS, [describe(env_id) for env_id in ids])
        if ids:
            print()
    long = any(len(ids) > MOST_DESCRIBED for ids in chosen.values())
    print(counted(chosen) + (". For spaces and time limits, give a part of the id: jaxrl envs CartPole" if long else ""))


def choose(known: dict[str, list[str]], wanted: str) -> dict[str, list[str]]:
    """Return the ids of the family with this name, or else the ids that match."""
    from jaxrl.envs import family_of

    kin = {b: [env_id for env_id in ids if family_of(env_id).lower() == wanted.lower()] for b, ids in known.items()}
    if any(kin.values()):
        return kin
    return {backend: [name for name in ids if matches(name, wanted)] for backend, ids in known.items()}


def list_ids(backend: str | None) -> tuple[dict[str, list[str]], list[str]]:
    """Return ``(backend -> ids, errors of backends that cannot be listed)``. Ids of the default backend omit its name."""
    from jaxrl.envs import EXTRAS, _backends, list_envs
    from jaxrl.envs.ids import DEFAULT_BACKEND, shortest

    if backend is not None:
        return {backend: [shortest(env_id) for env_id in list_envs(backend)]}, []
    known, failures = {}, []
    for each in sorted(_backends(), key=lambda name: (name != DEFAULT_BACKEND, name)):
        try:
            known[each] = [shortest(env_id) for env_id in list_envs(each)]
        except Exception as error:  # a broken package may raise anything, and must not hide the others
            if each in EXTRAS and isinstance(error, ModuleNotFoundError) and error.name == each:
                continue
            failures.append(f"{each} cannot be used: {' '.join(str(error).split()) or type(error).__name__}")
    return known, failures


def matches(env_id: str, pattern: str) -> bool:
    name, wanted = env_id.lower(), pattern.lower()
    if "*" in wanted:
        return fnmatch.fnmatchcase(name, wanted) or fnmatch.fnmatchcase(name.partition(":")[2], wanted)
    return wanted in name


def describe(env_id: str) -> tuple[str, str, str, str]:
    """Return a row of the table: with the reason if the environment cannot be built, and a note if its limit terminates."""
    from jaxrl.envs import make_env
    from jaxrl.envs.backends.gymnax import HORIZONS
    from jaxrl.envs.ids import DEFAULT_BACKEND, format_id, parse_id
    from jaxrl.envs.step_limits import step_limit
    from jaxrl.spaces.trees import space_text

    try:
        env = make_env(env_id)
    except Exception as error:  # packages of environments may raise any exception
        return env_id, f"cannot be built: {' '.join(str(error).split()) or type(error).__name__}", "", ""
    parsed = parse_id(env.name)
    inside = make_env(format_id(parsed._replace(wrappers=())))
    limit = step_limit(env if env.max_episode_steps else inside)
    repeated = not env.max_episode_steps and any(call.name == "action_repeat" for call in parsed.wrappers)
    ends = " inside" * repeated
    ends += ", then terminates" if parsed.backend == DEFAULT_BACKEND and parsed.name in HORIZONS else ""
    return (
        env_id,
        space_text(env.observation_space),
        space_text(env.action_space),
        f"{limit:,}{ends}" if limit is not None else "none",
    )


def list_plainly(ids: Sequence[str]) -> None:
    """Print ids next to each other on a terminal, to save space; else one per line."""
    if (console := terminal()) is None:
        print("\n".join(ids))
    else:
        console.print("  ".join(ids), markup=False)


def counted(chosen: dict[str, list[str]]) -> str:
    parts = ", ".join(f"{len(ids):,} of {backend}" for backend, ids in chosen.items() if ids)
    number = sum(map(len, chosen.values()))
    return f"{number:,} environment{'s' if number > 1 else ''}: {parts}"
