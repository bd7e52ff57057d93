"""The README and the first page are correct: their Python runs in order, and their command lines run, with smaller numbers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import jaxrl
from benchmarks.cases import DQN, HIDDEN_SIZES, PPO
from jaxrl.runtime.cli import main as cli
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(90)

README = (ROOT / "README.md").read_text()
FIRST_PAGE = (ROOT / "docs/index.md").read_text()
RESULTS = (ROOT / "docs/results.md").read_text()
SMALLER = {
    **dict.fromkeys(("500_000", "100_000", "50_000", "20_000"), "2_048"),
    **dict.fromkeys(("500000", "100000", "50000"), "2048"),
    "--seeds 8": "--seeds 2",
}


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    for big, small in SMALLER.items():
        found = [block.replace(big, small) for block in found]
    return found


def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(README, "python"):
        exec(compile(block, "README.md", "exec"), names)
        assert capsys.readouterr().out, block  # users must see that something happened
    assert names["returns"].shape[0] == 8 and names["action"] in (0, 1)
    assert (tmp_path / "runs/ppo/learning_curve.png").stat().st_size > 0


@pytest.mark.slow
def test_python_of_the_first_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks(FIRST_PAGE, "python")):
        exec(compile(block, "index.md", "exec"), names)
        assert capsys.readouterr().out or number == 1 or number > 4, block  # the second block's output is printed by the fourth
        if "jaxrl.save(" in block:  # resumes when it is run again
            exec(compile(block, "index.md", "exec"), names)
    assert names["info"].step == 1 and int(names["state"].iteration) == 2
    assert names["rates"].shape == (3,) and names["action"] in (0, 1)
    assert names["shared"].axis_name is not None
    assert (tmp_path / "runs/envpool-dqn/learning_curve.png").stat().st_size > 0


SHELL = "".join(block for text in (README, FIRST_PAGE) for block in blocks(text, "bash"))
COMMANDS = [line for line in SHELL.splitlines() if line.startswith("jaxrl ")]


@pytest.mark.slow
def test_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """In order, since some read the output of others."""
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        short = ["--total-steps", "2048"] if "--env" in command and "--total-steps" not in command else []
        short += ["--episodes", "4"] if command.startswith("jaxrl eval") else []
        try:
            code = cli.main([*shlex.split(command, comments=True)[1:], *short])
        except SystemExit as stop:
            code = stop.code or 0  # type: ignore[assignment]
        out, err = capsys.readouterr()
        assert code == 0, f"{command}: {err}"
        if "--help" in command:
            assert "--learning-rate" in out
        for left in re.findall(r"--(?:out|resume|json) (\S+)", command):
            path = tmp_path / left
            assert (path / "progress.csv" if path.is_dir() else path).stat().st_size > 0, command
        assert out, command


@pytest.mark.parametrize("page", [README, FIRST_PAGE], ids=["README", "index"])
def test_a_first_page_says_which_jaxrl_this_is_and_how_metrics_become_numbers(page: str) -> None:
    assert "not the older `jaxrl` of Ilya Kostrikov" in page and "jaxrl.metrics.to_floats(metrics)" in page


def test_the_readme_and_a_release_in_the_changelog_are_short() -> None:
    """The first release is the version in development."""
    _, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert len(README.splitlines()) <= 160 and max(len(release.splitlines()) for release in releases) <= 40
    assert releases[0].partition("\n")[0] in (f"Unreleased ({jaxrl.__version__.partition('.dev')[0]})", jaxrl.__version__)


def test_the_settings_of_the_speed_table_are_those_of_the_benchmark() -> None:
    said = " ".join(RESULTS.partition("Speed on the same machine")[2].partition("|")[0].split())
    ppo = f"{PPO['rollout_length']} rows per environment, {PPO['num_epochs']} epochs and {PPO['num_minibatches']} min"
    dqn = f"{DQN['num_envs']} environment, and {DQN['batch_size']} rows drawn for each update"
    assert "networks of 64×64" in said and HIDDEN_SIZES == (64, 64)
    assert f"PPO with {ppo}" in said and f"DQN with {dqn}" in said


def test_links_and_make_targets_of_the_readme_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
