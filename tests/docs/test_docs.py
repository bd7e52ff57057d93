"""The documentation is correct: its Python runs, its commands parse, its links and snippets exist.

``make docs`` builds the site, with warnings and broken links as errors. These tests do not need mkdocs.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import importlib.util
import inspect
import json
import os
import pkgutil
import re
import shlex
import statistics
import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

import jaxrl
from benchmarks import scaling_report
from benchmarks.experiments import EXPERIMENTS
from benchmarks.machine import processor
from jaxrl import types
from jaxrl.agent import with_data
from jaxrl.algorithms import ALGORITHMS, known_as, setting_names
from jaxrl.algorithms.presets import PRESETS, interval_text
from jaxrl.builder.trusted_imports import import_object
from jaxrl.envs import make_env
from jaxrl.envs.ids import format_id, parse_id
from jaxrl.rollout.collect import TEAM_RETURN
from jaxrl.runtime.actors.stragglers import CUT_ROWS
from jaxrl.runtime.cli import main as cli
from jaxrl.runtime.cli.commands import es
from jaxrl.runtime.cli.commands.launch import divided
from jaxrl.runtime.cli.commands.train import parse
from jaxrl.runtime.logs.records import FIRST_COLUMNS, OF_EVALUATIONS
from jaxrl.runtime.logs.trackers import RENAMED
from jaxrl.runtime.samplers.diagnostics import LOGGED, OF_WORKERS
from jaxrl.runtime.search.search_file import SearchOptions, read_search
from jaxrl.runtime.search.sweep import expand, read_sweep
from jaxrl.settings.aliases import translate_alias
from jaxrl.settings.options import dotted_names, option_fields
from tests.helpers.agents import cartpole
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(310)

DOCS = ROOT / "docs"
SMALLER = {
    **dict.fromkeys(("1_000_000", "500_000", "100_000", "50_000", "20_000"), "2_048"),
    "10_000": "1_024",  # the first half of a run of 20,000
    "seeds=8": "seeds=2",
    "jax.random.key(0), 8)": "jax.random.key(0), 2)",
}
SNIPPET = re.compile(r"^--8<--\n(.+)\n--8<--$", re.MULTILINE)


def load_hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()
PAGES = {str(path.relative_to(DOCS)): hooks.listed(path.read_text(encoding="utf-8")) for path in sorted(DOCS.rglob("*.md"))}
PAGES |= {hooks.source_page(entry): hooks.source(entry) for entry in ALGORITHMS.values()}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def code_free(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


# ---------------------------------------------------------------------------------------------------------------------- Python


def own_python(page: str) -> list[str]:
    """Return the code blocks of a page that are not snippets of a file."""
    return [block for block in blocks(page, "python") if not SNIPPET.search(block)]


# index.md: test_readme.py
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if own_python(page) and page != "index.md"])
def test_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as one program, with smaller numbers."""
    monkeypatch.chdir(tmp_path)
    # A script, whose classes are sent to other processes as code; elsewhere a module, in which flax looks up its dataclasses.
    program = ModuleType("__main__" if page == "howto/remote.md" else "docs")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    names = vars(program)
    for block in own_python(page):
        for big, small in SMALLER.items():
            block = block.replace(big, small)
        steps = re.findall(r"total_steps=(\d[\d_]*)", block)
        assert all(int(number) < 10_000 for number in steps), (
            f"{steps}: add the larger number to SMALLER, or the test takes minutes"
        )
        exec(compile(block, page, "exec", dont_inherit=True), names)
        if "jaxrl.save(" in block:  # works twice
            exec(compile(block, page, "exec", dont_inherit=True), names)
    assert {"jaxrl", "remote", "evolution"} & {*names}


RUN_FOLDER = re.compile(
    r"""out="(runs/[^"{]+)"|^jaxrl train (?!--resume).*--out (\S+)|[fF]older = Path\("(\S+)"\)|\.save\("(\S+)",""", re.M
)


def test_different_runs_have_different_folders() -> None:
    """Following the README and then the pages never uses one folder for two runs, and all folders that commands read exist."""
    texts = {**PAGES, "README.md": (ROOT / "README.md").read_text()}
    texts |= {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    swept = re.findall(r"results in (runs/\w+):", PAGES["howto/sweeps.md"])
    made: dict[str, set[tuple[str, str]]] = {folder: {("sweep", folder)} for folder in swept}
    for page, text in texts.items():
        for line in text.splitlines():
            for found in RUN_FOLDER.finditer(line):  # a run that is made longer is the same run
                folder = next(filter(None, found.groups()))
                made.setdefault(folder, set()).add((page, re.sub(r"total_steps=\w+", "", line)))
    assert len(made) > 20 and not {folder: runs for folder, runs in made.items() if len(runs) > 1}
    for page, text in texts.items():
        lines = re.findall(r"jaxrl (?:plot|eval|record|train --resume) ([^\n`]*)", text)
        read = [word for line in lines for word in line.partition(" --")[0].split() if word.startswith("runs/")]
        read += re.findall(r"""(?:load_policy\(|init_from=|\.resume\()"(runs/[^"]+)""", text)
        assert set(read) <= set(made), page


def test_snippets_are_whole_files_that_tests_run() -> None:
    tested = "".join((ROOT / "tests" / name).read_text() for name in ("docs/test_examples.py", "envs/checks/test_check_env.py"))
    snippets = [(page, path) for page, text in PAGES.items() for path in SNIPPET.findall(text)]
    assert len(snippets) >= 10
    for page, path in snippets:
        assert (ROOT / path).is_file(), f"{page}: {path}"
        where, _, name = path.partition("/")
        assert where == "jaxrl" or (where == "examples" and name.removesuffix(".py") in tested), f"{page}: {path} is not tested"


# -------------------------------------------------------------------------------------------------------------------- commands


def commands() -> list[tuple[str, str]]:
    """Return ``(page, command line)`` of all shell blocks, and of inline code that begins with jaxrl."""
    found = []
    for page, text in PAGES.items():
        found += [(page, line) for block in blocks(page, "bash") for line in block.splitlines() if line.strip()]
        found += [(page, line) for line in re.findall(r"`(jaxrl [^`]+)`", code_free(text))]
    return found


@cache
def flags_of(command: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z.-]+[a-z]", hooks.help_text(command)))


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_line_names_what_there_is(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, command, *args = shlex.split(line, comments=True)
    if program == "make":
        assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    if program != "jaxrl" or command == "COMMAND":
        assert program in ("jaxrl", "make", "pip", "tensorboard"), f"{page}: {line}: what is this?"
        return
    if command == "launch":  # a command follows the dashes
        own, args = divided(args)
        assert {arg for arg in own if arg.startswith("--")} <= flags_of("launch") | {"--help"}, line
        if not args or args[0].endswith(".py"):
            return
        command, *args = args
    assert command in cli.COMMANDS, line
    for own in [name for name in args[:1] if command in ("train", "algos") and ":" in name]:
        monkeypatch.setitem(ALGORITHMS, own, import_object(own))
    if command == "train" and {*args[:1]} & {*ALGORITHMS} and args[1:] != ["--help"]:
        assert parse(args[0], args[1:])[0].env  # exits if a flag or a value is wrong
    else:
        called = f"{command} {args[0]}" if command == "es" else command
        assert {arg for arg in args if arg.startswith("--")} <= flags_of(called) | {"--help"}, line
        assert command != "algos" or set(args) <= set(ALGORITHMS), line


def test_extras_and_experiments_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "".join(PAGES.values())
    named = re.findall(r'pip install "(?:jaxrl|\.)\[(\w+)\]"', text)
    assert {"cuda", "wandb", "video"} <= set(named) <= set(extras)
    shown = "".join(hooks.curves(title) for what, title in hooks.MEASURED.findall(text) if what == "curves")
    scores = re.findall(r"benchmarks scores ([\w-]+)", text + shown)
    assert scores and set(scores) <= set(EXPERIMENTS)


def test_the_sweep_files_are_some(tmp_path: Path) -> None:
    block, other_grid = blocks("howto/sweeps.md", "toml")
    path = tmp_path / "rates.toml"
    path.write_text(block)
    assert [len(job.members) for job in expand(read_sweep(path))] == [3, 3]
    path.write_text(block.partition("[grid]")[0] + other_grid)
    assert [job.name for job in expand(read_sweep(path))] == ["model=default", "model=core=gru,core_size=32"]


def test_the_search_file_is_one(tmp_path: Path) -> None:
    (block,) = blocks("howto/search.md", "toml")
    path = tmp_path / "search.toml"
    path.write_text(block)
    found = read_search(path)
    assert found.options.rungs == (0.1, 0.3, 1.0) and [d.name for d in found.space if d.is_structure] == ["num_envs"]
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|", PAGES["howto/search.md"], re.MULTILINE)[1:]
    shown = dict(
        zip(re.findall(r"`(\w+)`", "".join(name for name, _ in rows)), ", ".join(x for _, x in rows).split(", "), strict=True)
    )
    for field in dataclasses.fields(SearchOptions):
        default = [1.0] if field.name == "rungs" else field.default
        assert str(default) == shown[field.name].strip("` ")


# ------------------------------------------------------------------------------------------------------------------- generated


def test_the_page_of_the_command_line_is_what_help_says() -> None:
    source = PAGES["command-line.md"]
    every = ["", *cli.COMMANDS, *(f"train {name}" for name in ALGORITHMS), *(f"es {name}" for name in es.SUBCOMMANDS)]
    assert sorted(name.strip() for name in hooks.HELP.findall(source)) == sorted(every)
    page = hooks.on_page_markdown(source)
    for command in every:
        shown = hooks.help_text(command)
        assert f"```text\n{shown}```" in page and max(map(len, shown.splitlines())) <= 100, command


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (lambda: hooks.help_text("trian"), "gives no help"),
        (lambda: hooks.speed("td3"), "no speed of td3"),
        (lambda: hooks.code_link("ppo", "def no_such_loss("), r"lines of ppo\.py"),
        (lambda: hooks.code_link("ppo", "return"), r"lines of ppo\.py"),  # several lines
    ],
)
def test_marks_that_cannot_be_filled_in_stop_the_build(mark: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mark()


@pytest.mark.parametrize("path", sorted(hooks.SCORES.glob("*.json")), ids=lambda path: path.stem)
def test_results_are_those_of_the_benchmarks(path: Path) -> None:
    result = json.loads(path.read_text())
    (entry,) = (entry for entry in ALGORITHMS.values() if entry.title == result["agent"])
    table, curves = hooks.results(entry.title), hooks.curves(entry.title)
    score = interval_text(result["mean"], *result["interval"])
    assert f"| `{path.stem}` |" in table and f"| {score} |" in table
    row, *_ = (line.split("|") for line in PAGES["results.md"].splitlines() if line.startswith(f"| {path.stem} "))
    expected = [path.stem, f"{result['total_steps']:,}", f"{len(result['seeds'])}", score]
    assert [cell.strip() for cell in row[1:5]] == expected
    assert f"(curves/{entry.name}.png)" in curves and (hooks.PICTURES / f"{entry.name}.png").is_file()
    assert all(f"<!-- {what}: {entry.title} -->" in PAGES[hooks.page(entry)] for what in ("results", "curves"))
    assert f"python -m benchmarks scores {path.stem} " in curves
    assert (f"\njaxrl train {entry.name} --preset {path.stem}\n" in curves) == (path.stem in PRESETS)


def test_long_commands_are_whole() -> None:
    for command in (preset.command() for preset in PRESETS.values()):
        assert shlex.split(hooks.in_lines(command).replace("\\\n", "")) == shlex.split(command)


def test_the_speed_on_a_page_is_that_of_the_benchmark() -> None:
    shown = hooks.on_page_markdown("<!-- speed: ppo -->")
    results = [json.loads(path.read_text()) for path in hooks.SCORES.parent.glob("speed-ppo-[!mr]*.json")]
    cases = [(processor(result["hardware"]), case) for result in results for case in result["cases"]]
    assert len(cases) >= 3
    for where, case in cases:
        (row,) = (line for line in shown.splitlines() if line.startswith(f"| {case['title']} ") and f" {where} |" in line)
        pairs = zip(case["programs"]["jaxrl"]["sections"], case["programs"]["rejax"]["sections"], strict=True)
        ratios = [a["env_steps"] / a["seconds"] * b["seconds"] / b["env_steps"] for a, b in pairs]
        assert f" {statistics.median(ratios):.3g} |" in row


def test_the_page_of_scaling_has_every_table() -> None:
    named = [name for what, name in hooks.MEASURED.findall(PAGES["scaling.md"]) if what == "scaling"]
    shown = hooks.on_page_markdown(PAGES["scaling.md"])
    assert named == [*scaling_report.PAGE, "stragglers"] and "Not measured yet" not in shown


def test_what_is_wide_scrolls_in_a_box_of_its_own() -> None:
    """Otherwise it would make the page wider than a phone, or overlap the next column."""
    table, block = "<table>\n<tr><td>1</td></tr>\n</table>", '<math xmlns="m" display="block"><mi>x</mi></math>'
    others = block.replace("block", "inline"), '<table class="highlighttable"></table>'
    boxed = [f'<div class="scroll">{wide}</div>' for wide in (table, block)]
    assert hooks.scrolling("".join([table, *others, block])) == "".join([boxed[0], *others, boxed[1]])
    assert "overflow-x: auto" in (DOCS / "style.css").read_text().partition(".md-typeset .scroll {")[2].partition("}")[0]


def test_equations_become_mathml() -> None:
    pytest.importorskip("latex2mathml", reason="of the docs extra")
    equations = [tex for text in PAGES.values() for tex in re.findall(r"^\$\$\n(.+?)\n\$\$$", text, re.DOTALL | re.MULTILINE)]
    assert len(equations) >= 4
    for tex in equations:
        shown = hooks.on_page_content(f'<div class="arithmatex">\\[{html.escape(tex)}\\]</div>')
        assert shown.startswith('<div class="scroll"><math ') and shown.count("<mtable") == tex.count(r"\begin{align*}"), tex
    with pytest.raises(ValueError, match=r"use align\*"):
        hooks.on_page_content(r'<div class="arithmatex">\[\begin{aligned} x &= y \end{aligned}\]</div>')


def test_nothing_is_left_to_fill_in() -> None:
    """Every mark for the build is known, and every line of code that is referred to exists once."""
    for page, text in PAGES.items():
        if page != "command-line.md":
            filled = hooks.on_page_markdown(text)
            assert "[code:" not in filled and "<!-- help" not in filled and not hooks.MEASURED.search(filled), page
    assert re.search(r'href="ppo-source.html#__codelineno-0-\d+"><code>ppo.py:\d+<', hooks.code_link("ppo", "def ppo_loss("))


# ------------------------------------------------------------------------------------------------- names of other libraries


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


# ------------------------------------------------------------------------------------------------------------ links and names


def slugs(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower())) for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", code_free(PAGES[page])):
        assert "://" not in target, f"{target}: pages fetch nothing, and name no address that could change"
        file, _, anchor = target.partition("#")
        path = (DOCS / page).parent / file if file else DOCS / page
        if path.parent == DOCS / hooks.CURVES:  # the build takes them from the benchmarks' folder
            path = hooks.PICTURES / path.name
        found = os.path.relpath(path, DOCS)
        assert found in PAGES or path.is_file(), target
        assert not anchor or anchor in slugs(code_free(PAGES[found])), target


def test_every_page_is_in_the_navigation_or_linked_from_the_page_of_algorithms() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2].partition("\nnot_in_nav:")[0]
    listed = re.findall(r": (\S+\.md)(?: #.*)?$", navigation, re.MULTILINE)
    linked = re.findall(r"\]\(([\w-]+\.md)\)", PAGES["algorithms/index.md"])
    of_algorithms = [page(entry) for entry in ALGORITHMS.values() for page in (hooks.page, hooks.source_page)]
    assert sorted(linked) == sorted(Path(page).name for page in of_algorithms)
    assert sorted([*listed, *of_algorithms]) == sorted(PAGES)


def test_names_in_the_text_exist() -> None:
    found = re.findall(r"(?:\]\[(?=jaxrl[\w.]*\])|^::: )([\w.]+)", "\n".join(PAGES.values()), re.MULTILINE)
    assert len({*found}) > 30
    for name in {*found}:
        pkgutil.resolve_name(name)


def test_the_reference_is_complete() -> None:
    listed = set(re.findall(r"^(?:::: |      heading: )jaxrl\.(\w+)$", PAGES["api/index.md"], re.MULTILINE))
    assert listed == {name for name in jaxrl.__all__ if not hasattr(types, name)}
    assert "::: jaxrl.types" in PAGES["api/types.md"]


def test_broken_links_of_a_built_site_are_found(tmp_path: Path) -> None:
    good = '<a href="b.html#here"></a><a href="https://example.org/x"></a><a href="#top"></a>'
    (tmp_path / "a.html").write_text(f'<h1 id="top"></h1>{good}')
    (tmp_path / "b.html").write_text('<p id="here"></p><img src="c.png"><a href="a.html#gone"></a>')
    assert sorted(hooks.broken_links(tmp_path)) == ["b.html: a.html#gone", "b.html: c.png"]


@pytest.mark.parametrize("page", [page for page in PAGES if not page.endswith("-source.md")])
def test_a_page_opens_with_what_it_is_for(page: str) -> None:
    """A title, and then one or two sentences before any table, code or picture."""
    text = re.sub(r"^---\n.*?\n---\n", "", PAGES[page], flags=re.DOTALL).strip()
    title, _, rest = text.partition("\n")
    opening = rest.strip().partition("\n\n")[0].replace("\n", " ")
    assert re.fullmatch(r"# [^#]+", title)
    assert re.match(r"[A-Z]", opening) and opening.endswith((".", ":")) and 40 < len(opening) < 700, opening
