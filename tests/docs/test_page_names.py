"""Names of other libraries and log keys on the pages exist, and no log key is missing."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache

import jax
import pytest

import jaxrl
from jaxrl.agent import with_data
from jaxrl.algorithms import ALGORITHMS, known_as, setting_names
from jaxrl.envs import make_env
from jaxrl.envs.ids import format_id, parse_id
from jaxrl.rollout.collect import TEAM_RETURN
from jaxrl.runtime.actors.stragglers import CUT_ROWS
from jaxrl.runtime.logs.records import FIRST_COLUMNS, OF_EVALUATIONS
from jaxrl.runtime.logs.trackers import RENAMED
from jaxrl.runtime.samplers.diagnostics import LOGGED, OF_WORKERS
from jaxrl.settings.aliases import translate_alias
from jaxrl.settings.options import dotted_names, option_fields
from tests.helpers.agents import cartpole
from tests.helpers.pages import DOCS, PAGES, hooks

pytestmark = pytest.mark.expensive(100)


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table below a heading of names.md, as cells. The first cell is jaxrl's name."""
    section = PAGES["names.md"].partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 5 and all(len(row) == len(rows[0]) for row in rows), heading
    return rows[2:]


@pytest.mark.parametrize("title", re.findall("^## Settings of (.+)$", PAGES["names.md"], re.MULTILINE))
def test_settings_in_the_table_of_names_exist(title: str) -> None:
    (algorithm,) = (name for name, entry in ALGORITHMS.items() if entry.title == title)
    (structure, data), config = setting_names(algorithm), ALGORITHMS[algorithm].load().config
    known = {*structure, *data, *option_fields(config), *dotted_names(config)}
    for ours, *theirs in table(f"Settings of {title}"):
        (name,) = re.findall(r"`([\w.]+)`", ours)
        assert name in known, name
        for cell in theirs:  # an error gives the same name as the table
            if (other := re.fullmatch(r"`(\w+)`", cell)) and other[1] not in known:
                assert (found := translate_alias(other[1], known)) and found[0] == name, cell


def test_functions_in_the_table_of_names_exist() -> None:
    calls = [call for ours, *_ in table("Functions") for call in re.findall(r"`([^`]+)`", ours)]
    for call in calls:
        parsed = ast.parse(call.replace("…", "..."), mode="eval").body
        assert isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name) and parsed.func.id in jaxrl.__all__, call
        signature = inspect.signature(getattr(jaxrl, parsed.func.id))
        signature.bind(*parsed.args, **{keyword.arg: keyword.value for keyword in parsed.keywords if keyword.arg})
        assert {keyword.arg for keyword in parsed.keywords} <= set(signature.parameters), call


def test_algorithms_and_environments_in_the_table_of_names_exist() -> None:
    """The command line gives the same settings for the name of another library."""
    for name, ours in ((name, ours) for theirs, ours, _ in table("Algorithms") for name in theirs.split(", ")):
        found = known_as(name)
        assert found and found[0] in re.findall(r"`(\w+)`", ours), name
    for env_id in (env_id for ours, _ in table("Environments") for env_id in re.findall(r"`([^`]+)`", ours)):
        parsed = parse_id(env_id)
        if parsed.backend in ("gymnax", "envpool"):  # others need packages that a test may lack
            assert make_env(env_id).name == format_id(parsed)


OF_A_RUN = {*OF_EVALUATIONS, *FIRST_COLUMNS, *LOGGED, *OF_WORKERS, CUT_ROWS, TEAM_RETURN}
"""Log keys that no algorithm writes on CartPole. ``test_run`` and ``test_samplers`` check that this list is complete."""


@cache
def logged_by(algorithm: str) -> set[str]:
    agent = cartpole(algorithm)
    stepping = with_data(agent, agent.data)
    return set(jax.eval_shape(lambda key: stepping.step(agent.init(key))[1], jax.random.key(0)))


def keys_in(page: str) -> set[str]:
    """Return the log keys in the first column of a page's tables."""
    return set(re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_page_of_an_algorithm_has_what_it_logs(algorithm: str) -> None:
    common, own = keys_in((DOCS / "log-keys.md").read_text()), keys_in(hooks.logged(ALGORITHMS[algorithm]))
    assert not logged_by(algorithm) - common - own and not own & common
    assert not own - logged_by(algorithm)


def test_the_page_of_log_keys_has_all_and_no_other() -> None:
    page, keys = PAGES["log-keys.md"], OF_A_RUN.union(*map(logged_by, ALGORITHMS)) | {"pbt/NAME", "pbt/alive"}
    assert keys_in(page) == keys and all(f"`{tag}`" in page for tag in RENAMED.values())
    assert {ours.strip("`") for ours, *_ in table("Log keys")} <= keys  # of the table of names
