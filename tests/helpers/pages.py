"""Pages of the documentation, as the tests read them."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from jaxrl.algorithms import ALGORITHMS
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs"


def load_hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = load_hooks()
PAGES = {str(path.relative_to(DOCS)): hooks.listed(path.read_text(encoding="utf-8")) for path in sorted(DOCS.rglob("*.md"))}
"""Path of a page in ``docs`` -> its text, with the sources of algorithms, which the build adds."""
PAGES |= {hooks.source_page(entry): hooks.source(entry) for entry in ALGORITHMS.values()}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def code_free(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
