"""Links of the pages lead somewhere, all pages can be reached, and the reference is complete.

``make docs`` builds the site, with warnings and broken links as errors. These tests do not need mkdocs.
"""

from __future__ import annotations

import os
import pkgutil
import re
from pathlib import Path

import pytest

import jaxrl
from jaxrl import types
from jaxrl.algorithms import ALGORITHMS
from tests.helpers.pages import DOCS, PAGES, code_free, hooks
from tests.helpers.paths import ROOT


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
