"""Modules in the folder in which a command runs: the user's modules are found, and no other module there is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import jaxrl
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.cli.user_code import import_modules
from jaxrl.runtime.evaluation import load_policy
from tests.helpers.agents import cartpole
from tests.helpers.paths import ROOT
from tests.helpers.written_runs import write_run


def python_in(folder: Path, *args: str) -> str:
    """Run Python in a folder that is not on the path. Return its output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *args]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert not (folder / "mark").exists(), (folder / "mark").read_text()
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def commands(**codes: int) -> str:
    """Return Python code that runs command lines, like the console script, and expects their exit codes."""
    lines = [f"assert main({line.split()!r}) == {code}" for line, code in codes.items()]
    return "\n".join(["from jaxrl.runtime.cli.main import main", *lines])


MY_ENV = """
import jax.numpy as jnp
import tensorboardX.record_writer  # which looks for boto3
ONE = jnp.ones(())  # which starts a backend, and looks for its plugins

def action_choice():
    import my_helper
    return my_helper.action_choice()
"""

MY_MAZE = """
import sys
import gymnasium
import maze_helper

class Corridor(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(5), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return self.at, {}

    def step(self, action):
        self.at = min(4, self.at + int(action))
        return self.at, 1.0, self.at == maze_helper.LENGTH, False, {}

class Closed(Corridor):
    def __init__(self):
        if sys.modules["__main__"].__spec__ is not None:  # in a worker
            raise OSError("no way\\nin")
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files named like modules that libraries look for, and a user's environment."""
    folder = tmp_path_factory.mktemp("hostile")
    trap = f"open({str(folder / 'mark')!r}, 'a').write(__name__ + chr(10))\n"
    names = (
        "boto3",
        "botocore",
        "jax_plugins",
        "prometheus_client",
        "IPython",
        "sitecustomize",
        "usercustomize",
        "tensorflow",
        "six",
    )
    for name in (
        *names,
        "rich",
        "tyro",
        "optax",
        "colorama",
        "pygame",
        "ml_collections",
        "cloudpickle",
        "google",
        "libtpu",
        "psutil",
    ):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(trap)
        (folder / name / "plugin.py").write_text(trap)
    (folder / "evil-1.dist-info").mkdir()
    (folder / "evil-1.dist-info" / "METADATA").write_text("Name: evil\nVersion: 1\n")
    (folder / "evil-1.dist-info" / "entry_points.txt").write_text(
        "[jax_plugins]\nevil = psutil\n[gymnasium.envs]\n__root__ = psutil\n"
    )
    (folder / "my_env.py").write_text(MY_ENV)
    (folder / "my_maze.py").write_text(MY_MAZE)
    (folder / "maze_helper.py").write_text("LENGTH = 4\n")
    (folder / "my_helper.py").write_text("from tests.helpers.probes import action_choice\n")
    return folder


SMALL = ("--num-envs", "2", "--rollout-length", "4", "--num-epochs", "1", "--num-minibatches", "1", "--eval-episodes", "2")


@pytest.mark.slow
def test_no_command_imports_from_the_current_folder(hostile: Path) -> None:
    jaxrl.run(cartpole("ppo"), 64, seeds=[4, 2], out=hostile / "run", eval_episodes=2, tensorboard=False, quiet=True)
    given = {"plot run": 0, "eval run --episodes 2": 0, "envs --backend gymnax CartPole": 0, "train --resume run --quiet": 0}
    python_in(hostile, "-P", "-c", commands(**given))
    assert "PPO" in python_in(hostile, "-m", "jaxrl", "plot", "run")
    assert not (hostile / "mark").exists()


@pytest.mark.slow
def test_a_module_of_the_users_is_found_in_the_current_folder(hostile: Path) -> None:
    """No other module is found."""
    train = ("train", "ppo", "--env", "my_env:action_choice", "--total-steps", "64", "--out", "mine")
    assert "step 64 of 64" in python_in(hostile, "-m", "jaxrl", *train, *SMALL)
    given = {"train --resume mine": 2, "eval mine --episodes 2": 2, "train --resume mine --trust my_env": 0}
    given |= {"eval mine --episodes 2 --trust my_env --trust nothing": 0}
    said = python_in(hostile, "-P", "-c", commands(**given))
    assert said.count("--trust my_env on the command line") == 2


@pytest.mark.slow
def test_workers_find_the_users_module_there(hostile: Path) -> None:
    """No other module is found. A failure in a worker is one line that names its log."""
    words = "train ppo --num-workers 2 --total-steps 16 --eval-every 0 --quiet " + " ".join(SMALL)
    given = {f"{words} --env gymnasium:my_maze:Corridor --out maze": 0, f"{words} --env gymnasium:my_maze:Closed --out closed": 1}
    said = python_in(hostile, "-P", "-c", commands(**given))
    assert (hostile / "maze" / "checkpoints" / "2").is_dir()
    (line,) = said.splitlines()
    found = re.fullmatch(
        r"jaxrl: worker \d .* failed: .*no way in.*, before it could start: its output is in (.*/worker-\d\.log)", line
    )
    assert found and "OSError: no way\nin" in Path(found[1]).read_text(), line


def test_a_teacher_with_parts_of_the_users_is_trusted_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "nets_of_mine.py").write_text("net = None")
    write_run(tmp_path / "teacher", [[1.0]], parts={"model": {"import": "nets_of_mine:net"}})
    seen: list[Any] = []

    def load(folder: str, *, trust: tuple[str, ...]) -> None:
        seen.append((folder, trust, "nets_of_mine" in sys.modules))
        raise ValueError("loaded")

    monkeypatch.setattr(load_policy, "load_policy", load)
    train = ["train", "dagger", "--env", "CartPole-v1", "--teacher", "teacher"]
    assert [main(train), main([*train, "--trust", "nets_of_mine"])] == [2, 2]
    assert seen == [("teacher", (), False), ("teacher", ("nets_of_mine",), True)]
    assert capsys.readouterr().err == "jaxrl: loaded\n" * 2


def test_only_the_users_modules_find_others_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    path = [*sys.path]
    (tmp_path / "module_of_mine.py").write_text("def more():\n    import helper_of_mine\n    return helper_of_mine.number\n")
    (tmp_path / "helper_of_mine.py").write_text("number = 3")
    (tmp_path / "broken_module_of_mine.py").write_text("import package_that_is_not_there")
    import_modules(["module_of_mine", "no_such_module", "no_such_package.module"])
    with pytest.raises(ModuleNotFoundError):
        import_module("helper_of_mine")
    assert import_module("module_of_mine").more() == 3
    with pytest.raises(ModuleNotFoundError, match="package_that_is_not_there"):
        import_modules(["broken_module_of_mine"])
    assert sys.path == path
