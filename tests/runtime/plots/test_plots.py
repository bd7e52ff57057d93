"""Figures of learning curves, and output of `jaxrl plot`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl.runtime.cli.main import main
from jaxrl.runtime.plots import draw as plots
from jaxrl.runtime.plots import style as figures
from jaxrl.runtime.plots.draw import Curve
from tests.helpers.paths import ROOT
from tests.helpers.written_runs import EVALUATION, write_run

NAN = np.nan


# ---------------------------------------------------------------------------------------------------------------------- figures


def picture(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return imread(path)


def colours(path: Path) -> set[str]:
    """Return the opaque colours of a PNG."""
    red, green, blue = (picture(path)[..., :3] * 255).round().astype(int).reshape(-1, 3).T
    return {f"#{pixel:06x}" for pixel in np.unique(red << 16 | green << 8 | blue).tolist()}


def test_each_curve_has_its_colour(tmp_path: Path) -> None:
    steps, values = np.array([100.0, 200.0]), np.array([[1.0, 2.0, 4.0], [2.0, 4.0, 9.0]])
    curves = [Curve("env", f"curve {i}", steps, values + i, np.zeros(3, int)) for i in range(3)]
    bands = [plots.summarise(curve) for curve in curves]
    plots.draw_curves(bands, tmp_path / "a.png", ylabel="return", caption="three seeds", title="T")
    assert set(figures.COLOURS[:3]) <= colours(tmp_path / "a.png")
    assert figures.COLOURS[3] not in colours(tmp_path / "a.png")
    other = [plots.summarise(curve._replace(panel=f"env {i % 2}", label="one")) for i, curve in enumerate(curves)]
    plots.draw_curves(other, tmp_path / "b.png", ylabel="return", caption="three seeds")
    assert figures.COLOURS[0] in colours(tmp_path / "b.png") and figures.COLOURS[1] not in colours(tmp_path / "b.png")


def test_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    curve = Curve("$x^{", "_a $b$ $", np.array([1.0]), np.array([[1.0]]), np.zeros(1, int))
    bands = [plots.summarise(c) for c in (curve, curve._replace(panel="other"), curve._replace(label="$\\nothing$"))]
    plots.draw_curves(bands, tmp_path / "a.svg", ylabel="return", caption="one seed")
    assert "</svg>" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.SVG", b"<?xml")])
def test_files_are_of_the_format_of_their_ending_and_repeatable(tmp_path: Path, name: str, start: bytes) -> None:
    run = write_run(tmp_path / "run", [[1.0, 2.0], [3.0, 5.0]])
    out = tmp_path / "new" / "folder" / name
    assert main(["plot", str(run), "--out", str(out)]) == 0
    first = out.read_bytes()
    assert first.startswith(start)
    assert main(["plot", str(run), "--out", str(out)]) == 0
    assert out.read_bytes() == first
    assert [path.name for path in out.parent.iterdir()] == [name]
    if name == "a.pdf":
        assert b"/Type3" not in first


# ---------------------------------------------------------------------------------------------------------------------- command


def test_plot_prints_how_curves_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs/a", [[0.0] * 5, [500, 100, 200, 400, NAN]], diverged=[[False] * 5, [False] * 4 + [True]])
    write_run(tmp_path / "runs/b", [[7.0], [12.25]], algorithm="dqn", steps=[1000, 20_000])
    assert main(["plot", "runs"]) == 0
    out, err = capsys.readouterr()
    first, ppo, dqn = out.splitlines()
    assert err == "" and first == "curves.png: evaluation return"
    assert ppo.startswith("  CartPole-v1 · PPO  4 of 5 seeds, 1 diverged     at 200 steps  300.0  [")
    low, high = (float(x) for x in ppo.split("[")[1].rstrip("]").split(", "))
    assert 100 <= low < 300 < high <= 500
    assert dqn == "  CartPole-v1 · DQN  1 seed                    at 20,000 steps   12.2"
    assert picture(tmp_path / "curves.png").shape[0] > 500


def test_each_environment_has_its_own_decimals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores below 1 next to scores of thousands, such as Catch and HalfCheetah, would all be 0 or 1."""
    for name, env, ends in (("a", "Catch-bsuite", [0.125]), ("b", "Catch-bsuite", [0.875]), ("c", "envpool:Ant-v4", [4321.5])):
        write_run(tmp_path / name, [[0.0], ends], env=env, algorithm="dqn" if name == "b" else "ppo")
    assert main(["plot", str(tmp_path), "--out", str(tmp_path / "a.png")]) == 0
    ends = {line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert ends == {"0.1250", "0.8750", "4,322"}


def test_curves_have_the_names_that_are_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, env, rate in (("a", "CartPole-v1", 0.1), ("b", "CartPole-v1", 0.2), ("c", "Acrobot-v1", 0.2)):
        write_run(tmp_path / name, [[1.0], [2.0]], env=env, learning_rate=rate)
    write_run(tmp_path / "d", [[1.0], [2.0]], env="Acrobot-v1", learning_rate=0.1)
    command = ["plot", str(tmp_path), "--out", str(tmp_path / "a.svg")]
    assert main([*command, "--labels", "slow $x$", "fast"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert sorted(row.split("  ")[1] for row in rows) == [
        f"{env} · {x}" for env in ("Acrobot-v1", "CartPole-v1") for x in ("fast", "slow $x$")
    ]
    assert main([*command, "--labels", "slow"]) == 2
    said = "--labels needs a different name for each of 2 curves, in this order: learning rate 0.1; learning rate 0.2"
    assert said in capsys.readouterr().err


def test_plot_of_the_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", [[0.0, 1.0, 2.0, 97.0]])
    for metric, value in (("iqm", "1.50"), ("mean", "25.00")):
        assert main(["plot", str(run), "--metric", metric, "--out", str(tmp_path / "a.png"), "--title", "$\\gamma$"]) == 0
        assert f"  {value}  [" in capsys.readouterr().out


def test_plot_of_another_key_and_normalised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a", [[1.0, 3.0]], key="losses/entropy")
    args = ["plot", str(run), "--key", "losses/entropy", "--normalize", "CartPole-v1=0,4", "--out", str(tmp_path / "a.png")]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "normalised losses/entropy\n" in out and "  0.5000  [0.2500, 0.7500]\n" in out


def test_seeds_without_a_value_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hyperparams = {"learning_rate": [0.1, 9.0]}
    run = write_run(tmp_path / "a", [[1.0, NAN]], hyperparams=hyperparams, diverged=[[False, True]], seeds=[0, 0])
    (tmp_path / "empty").mkdir()
    begun = write_run(tmp_path / "begun", np.empty((0, 1)))
    assert main(["plot", str(run.parent), "--out", str(tmp_path / "a.png")]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        f"note: no records yet in {begun}",
        f"note: no values of {EVALUATION} for learning rate 9 (1 seed)",
    ]
    assert out.count("\n") == 2 and "learning rate 0.1" in out


def test_too_many_curves_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = [0.001 * (i + 1) for i in range(29)]
    run = write_run(tmp_path / "a", [[1.0] * 29, [2.0] * 29], hyperparams={"learning_rate": rates})
    assert main(["plot", str(run), "--out", str(tmp_path / "a.png")]) == 0
    out, err = capsys.readouterr()
    assert err == "note: 29 curves are too many to distinguish: name fewer runs\n" and out.count("\n") == 30


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "name at least one folder of a run"),
        (["nowhere"], "'nowhere' is not a folder of one or more runs: there is no such folder"),
        (["file"], "it is a file"),
        (["hollow"], "'hollow' holds no run"),
        (["begun"], "'begun' has no records yet: wait for the first chunk"),
        (["later"], "none of the 2 runs has records yet"),
        (["broken"], "line 1 is damaged"),
        (["misfit"], "line 1 is damaged (its 'env_steps' has the shape"),
        (["uneven"], "uneven/records.jsonl, line 2 is damaged (its 'evaluation/episodic_return' has the shape"),
        (["other"], "is invalid: it lacks 'agent'"),
        (["run", "--key", "loses/td"], "unknown log key 'loses/td'. Did you mean 'losses/td'?"),
        (["run", "--key", "evaluation/x"], "Available: diverged, losses/td."),
        (["run"], "unknown log key 'charts/episodic_return'"),
        (["run", "good", "--key", EVALUATION], "'run' has no values of 'evaluation/episodic_return'"),
        (["good", "--out", "a.jpg"], "unknown file extension '.jpg': choose one of .png, .pdf, .svg"),
        (["good", "--out", "curves"], "file ending ''"),
        (["good", "--out", "file/a.png"], "--out 'file/a.png' cannot be written to"),
        (["good", "--out", "folder.png"], "--out 'folder.png' cannot be written to"),
        (["good", "--level", "95"], "--level 95 must be between 0 and 1"),
        (["good", "--normalize", "CartPole-v1"], "must be ENV=LOW,HIGH"),
        (["good", "--normalize", "CartPole-v1=1,1"], "two different numbers"),
        (["good", "--normalize", "CartPole=0,1"], "Did you mean 'CartPole-v1'?"),
        (["good", "acrobot", "--normalize", "CartPole-v1=0,1"], "--normalize lacks 'Acrobot-v1'"),
    ],
)
def test_bad_input_is_one_line(
    args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "good", [[1.0, 2.0]])
    write_run(tmp_path / "acrobot", [[1.0, 2.0]], env="Acrobot-v1")
    write_run(tmp_path / "run", [[1.0]], key="losses/td")
    write_run(tmp_path / "begun", np.empty((0, 1)))
    for name in ("later/a", "later/b"):
        write_run(tmp_path / name, np.empty((0, 1)))
    write_run(tmp_path / "broken", [[1.0]])
    (tmp_path / "broken" / "records.jsonl").write_text("{\n")
    write_run(tmp_path / "misfit", [[1.0, 2.0]])
    (tmp_path / "misfit/config.json").write_text((tmp_path / "run/config.json").read_text())
    uneven = write_run(tmp_path / "uneven", [[1.0]]) / "records.jsonl"
    uneven.write_text(uneven.read_text() + uneven.read_text().replace("[1.0]", "[1.0, 2.0]"))
    write_run(tmp_path / "other", [[1.0]])
    (tmp_path / "other/config.json").write_text("{}")
    (tmp_path / "hollow").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["plot", *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("jaxrl: ") and words in err
    assert sorted(tmp_path.rglob("*")) == before


def test_help_is_short_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["plot", "--help"])
    text = capsys.readouterr().out
    assert exit_.value.code == 0
    for words in ("--out", "--key", "--metric", "--level", "--title", "--pool", "--normalize", "jaxrl plot runs/quickstart"):
        assert words in text
    assert main(["plot", "x", "--metrik", "mean"]) == 2 and "--metric" in capsys.readouterr().err


def test_plotting_starts_no_backend_and_no_pyplot(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [[1.0, 2.0], [3.0, 4.0]])
    code = (
        "import sys; from jaxrl.runtime.cli.main import main; from jaxrl.xla.private_jax import backends_started;"
        "code = main(sys.argv[1:]); sys.exit(code or backends_started() or 'matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "plot", str(run), "--out", str(tmp_path / "a.png")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
