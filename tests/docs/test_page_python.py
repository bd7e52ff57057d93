"""Python of the pages runs, their runs have folders of their own, and their snippets are tested files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.pages import PAGES, blocks
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(100)

SMALLER = {
    **dict.fromkeys(("1_000_000", "500_000", "100_000", "50_000", "20_000"), "2_048"),
    "10_000": "1_024",  # the first half of a run of 20,000
    "seeds=8": "seeds=2",
    "jax.random.key(0), 8)": "jax.random.key(0), 2)",
}
SNIPPET = re.compile(r"^--8<--\n(.+)\n--8<--$", re.MULTILINE)


def own_python(page: str) -> list[str]:
    """Return the code blocks of a page that are not snippets of a file."""
    return [block for block in blocks(page, "python") if not SNIPPET.search(block)]


WITH_PYTHON = [page for page in PAGES if own_python(page) and page != "index.md"]  # that one: test_readme.py


@pytest.mark.slow
@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.xdist_group(page)) for page in WITH_PYTHON])
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
