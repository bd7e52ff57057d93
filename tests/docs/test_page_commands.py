"""Command lines of the pages parse, files that they show are valid, and the page of the command line is what ``--help`` says."""

from __future__ import annotations

import dataclasses
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest

from benchmarks.experiments import EXPERIMENTS
from jaxrl.algorithms import ALGORITHMS
from jaxrl.builder.trusted_imports import import_object
from jaxrl.runtime.cli import main as cli
from jaxrl.runtime.cli.commands import es
from jaxrl.runtime.cli.commands.launch import divided
from jaxrl.runtime.cli.commands.train import parse
from jaxrl.runtime.search.search_file import SearchOptions, read_search
from jaxrl.runtime.search.sweep import expand, read_sweep
from tests.helpers.pages import PAGES, blocks, code_free, hooks
from tests.helpers.paths import ROOT


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


def test_the_page_of_the_command_line_is_what_help_says() -> None:
    source = PAGES["command-line.md"]
    every = ["", *cli.COMMANDS, *(f"train {name}" for name in ALGORITHMS), *(f"es {name}" for name in es.SUBCOMMANDS)]
    assert sorted(name.strip() for name in hooks.HELP.findall(source)) == sorted(every)
    page = hooks.on_page_markdown(source)
    for command in every:
        shown = hooks.help_text(command)
        assert f"```text\n{shown}```" in page and max(map(len, shown.splitlines())) <= 100, command
