"""Additions of the build to the pages: results, speeds, equations, links to lines of code."""

from __future__ import annotations

import html
import json
import re
import shlex
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scaling_report
from benchmarks.machine import processor
from jaxrl.algorithms import ALGORITHMS
from jaxrl.algorithms.presets import PRESETS, interval_text
from tests.helpers.pages import DOCS, PAGES, hooks


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
