"""Each example runs, in short form, and prints the expected output."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT

pytestmark = pytest.mark.expensive(190)

EXAMPLES = ROOT / "examples"

SHORT: dict[str, tuple[dict[str, Any], str]] = {
    "quickstart": ({"total_steps": 2048, "seeds": 2}, r"evaluation return: \d+\.\d over 2 seeds.*\n.*pushes to the (left|right)"),
    "vmap_seeds": ({"total_steps": 1024, "num_seeds": 3}, r"3 seeds after 1,024 steps each: median return \d+"),
    "hyperparameter_grid": ({"total_steps": 1024, "num_seeds": 2}, r"3\.0e-04( +\d+\.\d){2}\n.*1\.0e-03( +\d+\.\d){2}\n"),
    "custom_model": ({"total_steps": 2048}, r"return with Fourier features: \d+\.\d"),
    "equinox_model": ({"total_steps": 2048}, r"return with a network of equinox: \d+\.\d"),
    "custom_loss": (
        {"total_steps": 2048},
        r"plain: norm of the kernels [\d.]+\nwith weight decay: .*; logged at the end: ",
    ),
    "contrastive_loss": (
        {"total_steps": 8192},
        r"PPO: mean return \d+\.\d\nwith CURL: mean return \d+\.\d; \d+% of the views are recognised",
    ),
    "demonstrations": (
        {"total_steps": 8192, "num_seeds": 2},
        r"PPO: mean return -\d+ over 2 seeds, at worst -200\nwith 4 demonstrations: mean return -\d+ over 2 seeds",
    ),
    "intrinsic_reward": (
        {"size": 4, "total_steps": 8192, "num_seeds": 2},
        r"PPO: the reward is found by \d of 2 seeds.*\nPPO with RND: the reward is found by \d of 2 seeds; mean return",
    ),
    "goal_environment": (
        {"size": 4, "total_steps": 4096, "num_seeds": 2},
        r"hindsight='none': \d+% of the goals .*\nhindsight='future': \d+% of the goals are reached, over 2 seeds",
    ),
    "custom_option": (
        {"total_steps": 2048},
        r"squared: mean return \d+\.\d\nHuber\(delta=2\.0\): mean return \d+\.\d\nside by side, delta is \[0\.5 1\.  2\. \]",
    ),
    "first_algorithm": ({"total_steps": 2048}, r"mean return: \d+\.\d"),
    "custom_algorithm": ({"total_steps": 8192, "seeds": 2}, r"REINFORCE on CartPole: return \d+\.\d over 2 seeds"),
    "host_env": ({"total_steps": 1024}, r"PPO on masses to balance: return \d+\.\d of 100"),
    "python_simulator": (
        {"total_steps": 1024, "num_workers": 2},
        r"in this process: \d+ steps per second\n2 workers: \d+ steps per second\nreturn of a day: -\d+ at first, -\d+ after",
    ),
    "resume": ({"total_steps": 8192}, r"cut off in the middle\n\d+ rows of logs; every bit of both final states equal: True"),
    "offline_dqn": (
        {"file": "rows.npz", "total_steps": 4096, "iterations": 2},
        r"\d+ rows of each of 8 environments to learn from\nreturn of the policy learnt from the file: \d+\.\d",
    ),
    "ga3c": (
        {"total_steps": 2048},
        r"\d+ updates from rollouts of 2 workers, whose parameters were \d\.\d updates old .*\nmean return of \d+ at first, \d+",
    ),
    "maml": ({"iterations": 10}, r"at first: error on new tasks \d\.\d\d, .*\nafter 10 updates: error on new tasks \d\.\d\d, "),
    "export_policy": ({"total_steps": 1024}, r"actions: \[[01]( [01]){4}\]"),
    "two_processes": ({"total_steps": 1024}, r"return \d+\.\d"),
    "remote_objects": ({"candidates": 8, "episodes": 1}, r"best of 8 policies: \d+\.\d of 500, mean of all: \d+\.\d"),
    "es_product/product": ({"folder": "w", "hours": 3}, r"version 3: \[-?\d\.\d+, .*\]"),
    "pmap": ({"iterations": 3}, r"2 devices, 3 iterations, return \d+\.\d"),
    "population_based_training": (
        {"members": 4, "total_steps": 12_288, "seeds": 2},
        r"learning_rate: from \[.*\] to \[.*\]\ntraining return of the .*\nschedule of the best: 2 gen.*\n(.*\n)*return of its",
    ),
    "hyperparameter_search": (
        {"total_steps": 5120, "trials": 8},
        r"best settings: \{'learning_rate': .*\n(no )?better than the defaults",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    settings, said = SHORT[name]
    importlib.import_module(name.replace("/", ".")).main(**settings)
    assert re.search(said, capsys.readouterr().out)


def test_every_example_is_tried() -> None:
    found = {path.relative_to(EXAMPLES).as_posix() for folder in (".", "es_product") for path in (EXAMPLES / folder).glob("*.*")}
    assert {name.removesuffix(".py") for name in found} == {
        *SHORT,
        "es_product/member.c",  # tests/runtime/evolution/test_product.py
        "es_product/writer.sh",  # the same
        "custom_env",  # tests/envs/test_envs.py runs it
        "serve_policy",  # tests/runtime/evaluation/test_export.py
    }


@pytest.mark.slow
def test_population_based_training_is_short() -> None:
    assert len((EXAMPLES / "population_based_training.py").read_text().splitlines()) < 80
