"""MkDocs hooks: fill generated content into pages, so that it is never out of date.

MkDocs calls the functions named ``on_…``. They replace these marks in a page's Markdown:

* ``<!-- help: train ppo -->``: the output of ``jaxrl train ppo --help``
* ``<!-- results: PPO -->``: a table of measured scores
* ``<!-- curves: PPO -->``: their learning curves and commands
* ``<!-- speed: ppo -->``: the measured speed
* ``<!-- switches: CartPole-v1 -->``: scores of DQN's variants
* ``<!-- asked: NAME -->``: returns that a decision transformer was asked for, and reached
* ``<!-- scaling: shared -->``: a table of devices and processes
* ``<!-- algorithms: table -->``: a list from the registry
* ``<!-- environments: gymnax -->``: the ids of a backend
* ``[code: ppo.py | some text]``: a link to the line of that file that contains the text

They also convert LaTeX to MathML, add a page with the source of each algorithm, and check all links of the built site.
"""

from __future__ import annotations

import contextlib
import html
import importlib.util
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks import scaling_report
from benchmarks.comparison import comparison_table, read_compared
from benchmarks.pictures import page_name, read_scores
from benchmarks.sparklines import with_curves
from benchmarks.summary import page_table, read_speed
from jaxrl.algorithms import ALGORITHMS, Entry
from jaxrl.algorithms.presets import PRESETS, interval_text, shown

ROOT = Path(__file__).resolve().parents[1]
SCORES = ROOT / "benchmarks/results/scores"
PICTURES = ROOT / "benchmarks/results/curves"
CURVES = "algorithms/curves"
"""Folder of the site for the images of learning curves."""
WIDTH = "100"

HELP = re.compile(r"<!-- help: ?([a-z0-9 ]*)-->")
LISTS = re.compile(r"<!-- algorithms: (\w+) -->")
ENVIRONMENTS = re.compile(r"<!-- environments: (\w+) -->")
MEASURED = re.compile(r"<!-- (results|curves|speed|switches|scaling|asked): (.+?) -->")
LOGGED = re.compile(r"^## What is logged\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"\[code: (\w+)\.py \| (.+?)\]")
EQUATION = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)
WIDE = re.compile(r'<table>.*?</table>|<math [^>]*display="block".*?</math>', re.DOTALL)


# --------------------------------------------------------------------------------------------------------------- MkDocs events


def on_files(files: Any, config: Any) -> Any:
    """Add the source pages of algorithms, and the images of curves in the folder of the benchmarks."""
    from mkdocs.structure.files import File

    for entry in ALGORITHMS.values():
        files.append(File.generated(config, source_page(entry), content=source(entry)))
    for path in sorted(PICTURES.glob("*.png")):
        files.append(File.generated(config, f"{CURVES}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = HELP.sub(lambda match: f"```text\n{help_text(match[1])}```", listed(markdown))
    markdown = ENVIRONMENTS.sub(lambda match: environments(match[1]), markdown)
    markdown = MEASURED.sub(lambda match: MEASURES[match[1]](match[2]), markdown)
    return CODE.sub(lambda match: code_link(match[1], match[2]), markdown)


def on_page_content(content: str, page: Any = None, **_: Any) -> str:
    from latex2mathml.converter import convert

    if page and page.file.src_uri == "results.md":
        content = with_curves(content, read_scores(SCORES))

    def mathml(match: re.Match[str]) -> str:
        formula = html.unescape(match[2]).strip()
        converted = convert(formula, display="block" if match[1] == "div" else "inline")
        if "<mi>&</mi>" in converted:  # latex2mathml leaves unknown environments unchanged, without an error
            raise ValueError(f"latex2mathml cannot align {formula!r}: use align*")
        return converted

    return scrolling(EQUATION.sub(mathml, content))


def scrolling(content: str) -> str:
    """Put each table and each display equation into a box that scrolls, so that none makes a page wider than a phone."""
    return WIDE.sub(r'<div class="scroll">\g<0></div>', content)


def on_post_build(config: Any) -> None:
    """Raise PluginError if a link within the site is broken, including links that MkDocs does not check."""
    if broken := list(broken_links(Path(config.site_dir))):
        from mkdocs.exceptions import PluginError

        raise PluginError("broken links:\n" + "\n".join(broken))


# -------------------------------------------------------------------------------------------------------------------- registry


def page(entry: Entry) -> str:
    return f"algorithms/{entry.name}.md"


def source_page(entry: Entry) -> str:
    return f"algorithms/{entry.name}-source.md"


def source_file(entry: Entry) -> Path:
    found = importlib.util.find_spec(entry.module)
    assert found and found.origin, entry
    return Path(found.origin)


def source(entry: Entry) -> str:
    """Return the page with an algorithm's file."""
    file, code = entry.module.replace(".", "/"), source_file(entry).read_text(encoding="utf-8")
    about = f"`{file}.py`, which reads from top to bottom; [its page]({entry.name}.md) explains the details."
    return f'# Source of {entry.title}\n\n{about}\n\n````python linenums="1"\n{code}````\n'


def listed(markdown: str) -> str:
    """Replace each ``<!-- algorithms: … -->`` by content from the registry, and point links to builders to their modules."""
    for entry in ALGORITHMS.values():
        markdown = markdown.replace(f"][jaxrl.{entry.builder}]", f"][{entry.module}.{entry.builder}]")
    return LISTS.sub(lambda match: LIST_MAKERS[match[1]](), markdown)


def table() -> str:
    rows = ["| algorithm | description | actions | family | models | paper | source |", "|---" * 7 + "|"]
    for entry in ALGORITHMS.values():
        paper = f"{entry.paper}, {entry.paper.source}" if entry.paper else "–"
        link, code = f"[{entry.title}]({entry.name}.md)", f"[`{entry.name}.py`]({entry.name}-source.md)"
        rows.append(f"| {link} | {entry.line} | {entry.takes} | {entry.family} | {entry.models} | {paper} | {code} |")
    return "\n".join(rows)


def each(text: str) -> str:
    return "\n\n".join(text.format(entry=entry) for entry in ALGORITHMS.values())


def logged(entry: Entry) -> str:
    """Return the section of an algorithm's page on its log keys."""
    section = LOGGED.search((ROOT / "docs" / page(entry)).read_text(encoding="utf-8"))
    if section is None:
        raise ValueError(f"{page(entry)} has no section '## What is logged'")
    return section[1]


LIST_MAKERS: dict[str, Callable[[], str]] = {
    "table": table,
    "commands": lambda: each("### jaxrl train {entry.name}\n\n<!-- help: train {entry.name} -->"),
    "builders": lambda: each("::: {entry.module}.{entry.builder}\n    options:\n      heading: jaxrl.{entry.builder}"),
    "logged": lambda: "\n".join(f"## {entry.title}\n{logged(entry)}" for entry in ALGORITHMS.values()),
    "parts": lambda: each("::: {entry.module}\n    options:\n      filters: ['!^_', '!^make_']"),
}


# ------------------------------------------------------------------------------------------------------------------- generated


def help_text(command: str) -> str:
    """Return the output of ``jaxrl COMMAND --help``, in lines of 100 characters."""
    from jaxrl.runtime.cli import main as cli

    before = os.environ.get("COLUMNS")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # without an encoding, tyro draws no boxes
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            cli.main([*command.split(), "--help"])
    finally:
        os.environ.pop("COLUMNS")
        os.environ.update({} if before is None else {"COLUMNS": before})
    out.seek(0)
    text = out.read()
    if "usage: jaxrl" not in text:
        raise ValueError(f"jaxrl {command} --help gives no help: {text!r}; use the name of a command")
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def environments(backend: str) -> str:
    """List the ids of a backend whose package is always installed."""
    from jaxrl.envs import list_envs

    return ", ".join(f"`{name}`" for name in list_envs(backend))


def scores_of(agent: str) -> list[dict[str, Any]]:
    """Return an algorithm's scores in ``benchmarks/results/scores``, those of presets first."""
    found = [result for result in read_scores(SCORES) if result["agent"] == agent]
    if not found:
        raise ValueError(f"{SCORES} has no scores of {agent}")
    return found


def results(agent: str) -> str:
    """Return a table of an algorithm's scores."""
    found = scores_of(agent)
    header = ("score", "environment", "steps per seed", "seeds", "mean return [95 %]", "worst seed", "required", "training, s")
    rows = [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *map(score_row, found), ""]
    hardware = dict.fromkeys(f"{x['hardware']['cores']} cores ({x['hardware']['cpu']})" for x in found)
    versions = dict.fromkeys(f"jax {x['versions']['jax']}" for x in found)
    return "\n".join([*rows, f"Measured on {' and '.join(hardware)} with {' and '.join(versions)}."])


def score_row(result: dict[str, Any]) -> str:
    cells = (
        f"`{result['name']}`",
        f"`{result['experiment']['env']}`",
        f"{result['total_steps']:,}",
        f"{len(result['seeds'])}",
        interval_text(result["mean"], *result["interval"]),
        shown(min(result["scores"]), result["mean"]),
        result["asked"],
        f"{result['train_seconds']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def asked(name: str) -> str:
    """Return a table of the returns that a score's policies were asked for, and of those that they reached."""
    found = json.loads((SCORES / f"{name}.json").read_text(encoding="utf-8"))["asked_returns"]
    wanted = [f"{x:.0f}" for x in found["asked"]]
    reached = [f"{sum(x) / len(x):.0f}" for x in found["returned"]]
    return "\n".join(
        f"| {' | '.join(row)} |" for row in (["asked for", *wanted], ["---"] * (len(wanted) + 1), ["returned", *reached])
    )


def curves(agent: str) -> str:
    """Return the image of an algorithm's learning curves, drawn by ``benchmarks``, and the commands of each score."""
    picture = f"![Learning curves of {agent}](curves/{page_name(agent)}.png)"
    legend = (
        "Training return against environment steps per seed: the mean, its 95 % interval, and each seed. The numbers above a "
        "panel are its score."
    )
    return "\n\n".join([picture, legend, *(commands(result["name"]) for result in scores_of(agent))])


def commands(name: str) -> str:
    """Return the commands that reproduce a score."""
    block = f"python -m benchmarks scores {name}   # and its curve"
    if preset := PRESETS.get(name):
        flags = in_lines(preset.command())
        block = f"jaxrl train {preset.algorithm} --preset {name}\n# the same, flag by flag\n{flags}\n{block}"
    return f"### {name}\n\n```bash\n{block}\n```"


def in_lines(command: str, width: int = 84) -> str:
    """Break a command into lines before flags."""
    first, *flags = command.split(" --")
    lines = [first]
    for flag in flags:
        if len(lines[-1]) + len(flag) + 3 > width:
            lines.append("   ")
        lines[-1] += f" --{flag}"
    return " \\\n".join(lines)


def speed(algorithm: str) -> str:
    """Return a table of an algorithm's training speed and that of Rejax, from ``benchmarks/results``."""
    return page_table(read_speed(SCORES.parent), algorithm)


def switches(env: str) -> str:
    """Return a table that compares DQN's switches, from ``benchmarks/results/scores``."""
    return comparison_table(read_compared(SCORES), env)


def scaling(name: str) -> str:
    """Return a table of devices and processes, from ``benchmarks/results``."""
    return scaling_report.page_part(name, SCORES.parent)


MEASURES: dict[str, Callable[[str], str]] = {
    "results": results,
    "curves": curves,
    "speed": speed,
    "switches": switches,
    "asked": asked,
    "scaling": scaling,
}


def code_link(stem: str, text: str) -> str:
    """Return a link to the line of ``jaxrl/algorithms/STEM.py`` that contains ``text``; there must be exactly one."""
    lines = (ROOT / f"jaxrl/algorithms/{stem}.py").read_text(encoding="utf-8").splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if text in line]
    if len(numbers) != 1:
        raise ValueError(f"{text!r} is on {len(numbers)} lines of {stem}.py ({numbers}): use a text that is on exactly one line")
    return f'<a href="{stem}-source.html#__codelineno-0-{numbers[0]}"><code>{stem}.py:{numbers[0]}</code></a>'


# ----------------------------------------------------------------------------------------------------------------------- links


class _Page(HTMLParser):
    """Targets of a page's links, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield ``page: target`` for each link within a built site whose file or anchor is missing."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.resolve().rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for target in page.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (path.parent / unquote(url.path)).resolve() if url.path else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (file in pages and unquote(url.fragment) not in pages[file].anchors):
                yield f"{path.relative_to(site.resolve())}: {target}"
