"""What the build writes into pages by itself, so that it cannot go stale; mkdocs calls the functions named ``on_…``.

In a page's Markdown, ``<!-- help: train ppo -->`` becomes what ``jaxrl train ppo --help`` says, ``<!-- results: PPO -->`` a table
of measured scores, and ``[code: ppo.py | some text]`` the line of that file which holds the text. LaTeX becomes MathML.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
SCORES = ROOT / "benchmarks/results/scores"
CURVES = "algorithms/curves"
"""Where the curves of the scores are in the site."""
WIDTH = "100"

HELP = re.compile(r"<!-- help: ?([a-z ]*)-->")
RESULTS = re.compile(r"<!-- results: (\w+) -->")
CODE = re.compile(r"\[code: (\w+)\.py \| (.+?)\]")
EQUATION = re.compile(r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>', re.DOTALL)
WIDE = re.compile(r'<table>.*?</table>|<math [^>]*display="block".*?</math>', re.DOTALL)


# ----------------------------------------------------------------------------------------------------------- what mkdocs calls


def on_files(files: Any, config: Any) -> Any:
    """The curves stay where the benchmarks leave them."""
    from mkdocs.structure.files import File

    for path in sorted(SCORES.glob("*.png")):
        files.append(File.generated(config, f"{CURVES}/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = HELP.sub(lambda match: f"```text\n{help_text(match[1])}```", markdown)
    markdown = RESULTS.sub(lambda match: results(match[1]), markdown)
    return CODE.sub(lambda match: code_link(match[1], match[2]), markdown)


def on_page_content(content: str, **_: Any) -> str:
    from latex2mathml.converter import convert

    def mathml(match: re.Match[str]) -> str:
        formula = html.unescape(match[2]).strip()
        converted = convert(formula, display="block" if match[1] == "div" else "inline")
        if "<mi>&</mi>" in converted:  # an environment that it does not know is left as it is, without a word
            raise ValueError(f"latex2mathml cannot align {formula!r}: use align*")
        return converted

    return scrolling(EQUATION.sub(mathml, content))


def scrolling(content: str) -> str:
    """Each table and each equation on a line of its own in a box that scrolls, so that none makes a page wider than a phone."""
    return WIDE.sub(r'<div class="scroll">\g<0></div>', content)


def on_post_build(config: Any) -> None:
    """Every link within the site leads somewhere, those that mkdocs does not check included."""
    if broken := list(broken_links(Path(config.site_dir))):
        from mkdocs.exceptions import PluginError

        raise PluginError("broken links:\n" + "\n".join(broken))


# ------------------------------------------------------------------------------------------------------------------- generated


def help_text(command: str) -> str:
    """What ``jaxrl COMMAND --help`` prints, in lines of 100 characters."""
    from jaxrl.runtime.cli import main as cli

    before = os.environ.get("COLUMNS")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # with an encoding, or tyro draws no boxes
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
        raise ValueError(f"jaxrl {command} --help gives no help: {text!r}")
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def results(agent: str) -> str:
    """Table and curves of an algorithm's scores, from ``benchmarks/results/scores``."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(SCORES.glob("*.json"))]
    found = [result for result in found if result["agent"] == agent]
    if not found:
        raise ValueError(f"{SCORES} holds no scores of {agent}")
    rows = ["| score | environment | steps per seed | seeds | mean return [95 %] | worst seed | training, s |", "|---" * 7 + "|"]
    for result in found:
        low, high = result["interval"]
        rows.append(
            f"| `{result['name']}` | {result['experiment']['env']} | {result['total_steps']:,} | {len(result['seeds'])} "
            f"| {result['mean']:.1f} [{low:.1f}, {high:.1f}] | {min(result['scores']):.1f} | {result['train_seconds']:.0f} |"
        )
    first = found[0]
    rows += [
        "",
        f"Measured on {first['hardware']['cores']} cores ({first['hardware']['cpu']}) with jax {first['versions']['jax']}.",
    ]
    rows += [f"\n![Learning curve of {result['name']}](curves/{result['name']}.png)" for result in found]
    return "\n".join(rows)


def code_link(stem: str, text: str) -> str:
    """A link to the only line of ``jaxrl/algorithms/STEM.py`` that holds ``text``."""
    lines = (ROOT / f"jaxrl/algorithms/{stem}.py").read_text(encoding="utf-8").splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if text in line]
    if len(numbers) != 1:
        raise ValueError(f"{text!r} is on {len(numbers)} lines of {stem}.py ({numbers}): a page must name exactly one")
    return f'<a href="{stem}-source.html#__codelineno-0-{numbers[0]}"><code>{stem}.py:{numbers[0]}</code></a>'


# ----------------------------------------------------------------------------------------------------------------------- links


class _Page(HTMLParser):
    """The targets of a page's links, and the anchors that it offers."""

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
    """``page: target`` of each link within a built site whose file or anchor is missing."""
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
