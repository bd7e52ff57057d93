"""``jaxrl es``: the loop of a product from the command line, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from jaxrl import evolution
from jaxrl.runtime.cli.main import main
from tests.helpers.products import log, theta


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "start.npy", np.zeros(6))
    settings = ['theta = "start.npy"', "sigma = 0.2", 'noise = "normal"', "[strategy]", 'name = "openai"', 'shaping = "wierstra"']
    (tmp_path / "e.toml").write_text("\n".join(settings))
    folder = str(tmp_path / "w")
    assert main(["es", "init", str(tmp_path / "e.toml"), "--out", folder]) == 0
    run = capsys.readouterr().out.strip()
    assert main(["es", "ask", folder, "--members", "4", "--format", "f32", "--out", str(tmp_path / "m.f32")]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert asked["run"] == run and asked["noise"] == "normal" and asked["number"] == 4
    rows = np.fromfile(tmp_path / "m.f32", "<f4").reshape(4, 6)
    np.testing.assert_array_equal(rows, evolution.member_parameters(folder, 0, range(4)))
    log(tmp_path / "w", [{"run": run, "version": 0, "member": m, "fitness": m} for m in range(4)] + ["{torn"])
    assert main(["es", "tell", folder]) == 0
    assert capsys.readouterr().out == "version 1: 4 rewards, mean 1.5; refused: 1 torn\n"
    assert main(["es", "tell", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["updated"] is False
    assert main(["es", "status", folder]) == 0
    assert "kept: 0 to 1" in capsys.readouterr().out
    assert main(["es", "status", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accepted"] == 4
    assert main(["es", "export", folder, str(tmp_path / "t.npy")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), theta(tmp_path / "w"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["es", "tells"], "unknown command 'tells'"),
        (["es", "tell", "nowhere"], "'nowhere' has no run.json: jaxrl es init makes such a folder"),
        (["es", "ask", "nowhere", "--format", "npz"], "--format and --out belong together"),
    ],
)
def test_mistakes_are_told_in_a_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_what_init_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written then, and a folder of other files is left alone."""
    (tmp_path / "words.npy").write_text("some words")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    for text, out, said in (
        ("theta = 5", "w", "theta=5 must be the name of a file of initial parameters"),
        ('theta = "words.npy"', "w", "words.npy holds no parameters: theta must be an array"),
        ("size 3", "w", "e.toml is not TOML"),
        ("size = 3", "full", "is not empty, and holds no evolution"),
        ('size = 4\nstrategy = "ars"', "w", "strategy='ars' is unknown. Allowed: 'openai'"),
    ):
        (tmp_path / "e.toml").write_text(text)
        assert main(["es", "init", str(tmp_path / "e.toml"), "--out", str(tmp_path / out)]) == 2
        error = capsys.readouterr().err
        assert said in error and "allow_pickle" not in error and error.count("\n") == 1
    assert not (tmp_path / "w").exists() and os.listdir(tmp_path / "full") == ["notes.txt"]


def test_members_are_written_to_the_file_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are reserved only if it can be written."""
    made = evolution.init(tmp_path / "w", np.zeros(3, np.float32))
    ask = ["es", "ask", str(tmp_path / "w"), "--format", "npz", "--out"]
    assert main([*ask, str(tmp_path / "no" / "m.npz")]) == 2
    assert "cannot be written to" in capsys.readouterr().err
    assert main([*ask, str(tmp_path / "members")]) == 0
    assert json.loads(capsys.readouterr().out)["first"] == 0 and made
    with np.load(tmp_path / "members") as found:
        assert sorted(found) == ["0", "1"] and not (tmp_path / "members.npz").exists()


def test_a_file_without_parameters_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.toml").write_text("sigma = 0.2\n")
    assert main(["es", "init", str(tmp_path / "e.toml"), "--out", str(tmp_path / "w")]) == 2
    assert "must have either theta, a file of initial parameters, or size" in capsys.readouterr().err
    for name, content in (("theta.npy", b""), ("theta.npz", b"PK\x03\x04")):
        (tmp_path / name).write_bytes(content)
        (tmp_path / "e.toml").write_text(f'theta = "{name}"\n')
        assert main(["es", "init", str(tmp_path / "e.toml"), "--out", str(tmp_path / "w")]) == 2
        assert f"{name} holds no parameters: theta must be an array" in capsys.readouterr().err
    assert main(["es"]) == 2 and "init FILE --out FOLDER" in capsys.readouterr().out
