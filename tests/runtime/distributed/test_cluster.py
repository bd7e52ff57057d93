"""``examples/cluster``: its files agree with each other and with jaxrl, and the script restarts what should be restarted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.runtime.cli.commands.train import parse
from jaxrl.runtime.cli.run_flags import RunOptions
from jaxrl.runtime.distributed.cluster import find_place
from jaxrl.runtime.distributed.messages import find_secret
from tests.helpers.paths import ROOT

FOLDER = ROOT / "examples" / "cluster"
SCRIPT = (FOLDER / "slurm.sbatch").read_text()


def options_of(command: list[str]) -> RunOptions:
    """Parse a command of jaxrl. Exits if it is wrong."""
    assert command[:2] == ["jaxrl", "train"]
    return parse(command[2], command[3:])[0]


def srun() -> list[str]:
    (line,) = re.findall(r"^srun .*$", SCRIPT.replace("\\\n", ""), re.MULTILINE)
    return shlex.split(line)


@pytest.fixture
def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the service and the job."""
    service, job = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    return service, job


def test_the_pods_find_each_other(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    service, job = documents
    assert (service["kind"], job["kind"]) == ("Service", "Job") and service["spec"]["clusterIP"] == "None"
    name, spec = job["metadata"]["name"], job["spec"]
    assert service["spec"]["selector"] == {"job-name": name} and spec["completionMode"] == "Indexed"
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"] if each["name"] != "JAXRL_SECRET"}
    assert all(isinstance(value, str) for value in variables.values())
    for number in range(spec["completions"]):
        place = find_place({**variables, "JOB_COMPLETION_INDEX": str(number)})
        assert place == (f"{name}-0.{pod['subdomain']}:14270", spec["completions"], number)
    assert spec["completions"] == spec["parallelism"] > 1


def test_the_pods_train_into_the_folder_that_they_share(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    pod = documents[1]["spec"]["template"]["spec"]
    (container,), (volume,) = pod["containers"], pod["volumes"]
    (mount,) = container["volumeMounts"]
    options = options_of(container["command"])
    assert mount["name"] == volume["name"] and options.out and options.out.startswith(f"{mount['mountPath']}/")
    devices = documents[1]["spec"]["completions"] * int(container["resources"]["requests"]["cpu"])
    assert int(options.seeds) % devices == 0
    assert pod["terminationGracePeriodSeconds"] > 60 and pod["restartPolicy"] == "Never"


def test_both_train_the_same(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    (container,) = documents[1]["spec"]["template"]["spec"]["containers"]
    command = srun()
    one, other = options_of(container["command"]), options_of(command[command.index("jaxrl") :])
    assert other.distributed and not one.distributed
    assert (one.env, one.seeds, one.total_steps) == (other.env, other.seeds, other.total_steps)


def test_slurm_is_told_before_the_first_command() -> None:
    """SLURM ignores later directives."""
    head = SCRIPT.partition("\nout=")[0]
    asked = re.findall(r"^#SBATCH --([a-z-]+)", SCRIPT, re.MULTILINE)
    assert asked == re.findall(r"^#SBATCH --([a-z-]+)", head, re.MULTILINE)
    assert all(len(line.split()) == 2 for line in head.splitlines() if line.startswith("#SBATCH"))
    assert {"nodes", "ntasks-per-node", "requeue", "signal", "open-mode"} <= set(asked)
    assert re.search(r"^#SBATCH --signal=TERM@\d+", SCRIPT, re.MULTILINE)  # without B: to the processes, not to the script


@pytest.mark.parametrize(
    ("code", "restarts", "again"), [(0, "", False), (143, "", True), (134, "3", True), (1, "20", False), (2, "", False)]
)
def test_the_script_starts_again_what_another_start_would_mend(code: int, restarts: str, again: bool, tmp_path: Path) -> None:
    for name, body in (
        ("srun", f'printf "%s\\n" "$@" > srun-got; echo $JAXRL_SECRET > srun-secret; exit {code}'),
        ("scontrol", 'echo "$@" > scontrol-got'),
    ):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    given = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_CPUS_PER_TASK": "8", "SLURM_JOB_ID": "77"}
    done = subprocess.run(
        ["bash", FOLDER / "slurm.sbatch"],
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            **given,
            **({"SLURM_RESTART_COUNT": restarts} if restarts else {}),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, "")
    words = (tmp_path / "srun-got").read_text().splitlines()
    assert options_of(words[words.index("jaxrl") :]).out == str(tmp_path / "runs" / "slurm")
    assert len(find_secret({"JAXRL_SECRET": (tmp_path / "srun-secret").read_text()})) == 64
    asked = tmp_path / "scontrol-got"
    assert asked.exists() == again and (not again or asked.read_text() == "requeue 77\n")
