"""``examples/cluster``: the cluster of Ray in SLURM, with commands that only record what they are asked, and in Kubernetes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl.runtime.doctor.ray.hops import ALLOWED
from tests.helpers.paths import ROOT
from tests.helpers.processes.network import why_not
from tests.helpers.processes.ray_hosts import OBJECTS, QUICK_HEALTH, RAYLET, ray_hosts

FOLDER = ROOT / "examples" / "cluster"
SCRIPT = FOLDER / "ray.sbatch"
MANIFEST = yaml.safe_load((FOLDER / "kuberay.yaml").read_text())

RECORD = """
printf '%s\\n' "$@" > srun-got
env > srun-env
cp -p "$RAY_AUTH_TOKEN_PATH" token-seen
exit 7
"""


def command(folder: Path, name: str, body: str) -> None:
    """Make a command of this name in a folder."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def slurm(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment in which SLURM starts a script."""
    found = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_NUM_NODES": "2"}
    rest = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
    return rest | found | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"} | more


@pytest.mark.parametrize("program", [[], ["python", "my program.py"]])
def test_what_the_script_runs_on_each_node(program: list[str], tmp_path: Path) -> None:
    command(tmp_path / "bin", "srun", RECORD)
    command(tmp_path / "bin", "hostname", "echo 10.0.0.5 192.168.0.5")
    done = subprocess.run(["bash", SCRIPT, *program], env=slurm(tmp_path), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")
    got = (tmp_path / "srun-got").read_text().splitlines()
    ours, theirs = got[got.index("ray") : got.index("--")], got[got.index("--") + 1 :]
    assert ours[:6] == ["ray", "symmetric-run", "--address", "10.0.0.5:6379", "--min-nodes", "2"]
    assert {f"--object-manager-port={OBJECTS}", f"--node-manager-port={RAYLET}", "--num-cpus=2"} <= {*ours}
    expected = program or ["jaxrl", "doctor", "--ray", "10.0.0.5:6379", "--shared", str(tmp_path)]
    assert theirs == ["env", "RAY_ADDRESS=10.0.0.5:6379", *expected]

    variables = dict(line.split("=", 1) for line in (tmp_path / "srun-env").read_text().splitlines() if "=" in line)
    assert variables["RAY_AUTH_MODE"] == "token" and QUICK_HEALTH.items() <= variables.items()
    token = tmp_path / "token-seen"
    assert len(token.read_text()) == 64 and token.stat().st_mode & 0o777 == 0o600
    assert Path(variables["RAY_AUTH_TOKEN_PATH"]).parent == tmp_path and not Path(variables["RAY_AUTH_TOKEN_PATH"]).exists()


def test_the_script_has_its_directives_before_the_first_command() -> None:
    """SLURM ignores later ones."""
    head, _, body = SCRIPT.read_text().partition("\nset -euo pipefail")
    assert subprocess.run(["bash", "-n", SCRIPT], capture_output=True, timeout=60).stderr == b"" and "#SBATCH" not in body
    asked = re.findall(r"^#SBATCH --([a-z-]+)", head, re.MULTILINE)
    assert {"nodes", "ntasks-per-node", "cpus-per-task", "exclusive"} <= set(asked)


OPTIONS = """
from ray.scripts.scripts import start
from ray.scripts.symmetric_run import symmetric_run
print(*(option for each in (start, symmetric_run) for parameter in each.params for option in parameter.opts))
"""
"""In another process, as Ray reads variables when it is imported, which are not set yet in this one."""


@pytest.mark.ray
def test_ray_has_the_options_that_the_script_gives() -> None:
    done = subprocess.run([sys.executable, "-c", OPTIONS], capture_output=True, text=True, timeout=60, check=True)
    words = shlex.split(SCRIPT.read_text().replace("\\\n", "").rpartition("\nsrun ")[2], comments=True)
    given = {word.partition("=")[0] for word in words[words.index("ray") : words.index("--")] if word.startswith("--")}
    assert given <= {*done.stdout.split()} and {"--address", "--min-nodes"} <= given


@pytest.mark.ray
@pytest.mark.expensive(60)
def test_the_script_on_two_hosts(tmp_path: Path) -> None:
    """With an srun that runs the command on both: the cluster is sound, and a program's exit code is the job's."""
    if reason := why_not():
        pytest.skip(reason)
    with ray_hosts("first", "second") as hosts:
        shared = hosts.folder / "shared"
        shared.mkdir()
        there = [shlex.join(host.command("env", f"--chdir={shared}")) + ' "$@" &' for host in hosts.hosts]
        command(shared / "bin", "srun", "\n".join(["while [[ $1 == --* ]]; do shift; done", *there, "wait -n"]))
        command(shared / "bin", "hostname", f"echo {hosts.head.address}")
        for name, module in (("ray", "ray.scripts.scripts"), ("jaxrl", "jaxrl")):
            command(shared / "bin", name, f'exec {sys.executable} -P -m {module} "$@"')
        environment = slurm(shared, RAY_TMPDIR=str(hosts.local), PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu")
        with (tmp_path / "output").open("w") as output:
            program = ["sh", "-c", f'jaxrl doctor --ray "$RAY_ADDRESS" --shared {shared} && exit 7']
            job = subprocess.Popen(["bash", SCRIPT, *program], env=environment, stdout=output, stderr=output)
            code = job.wait(200)
        said = (tmp_path / "output").read_text()
        assert code == 7 and "no problems" in said, said[:3000]
        assert "node 10.99.0.1 (first) " in said and "node 10.99.0.2 (second)" in said
        assert os.listdir(shared) == ["bin"]


# -------------------------------------------------------------------------------------------------------------------- Kubernetes

PODS: list[dict[str, Any]] = [
    group["template"]["spec"]
    for group in (MANIFEST["spec"]["rayClusterSpec"]["headGroupSpec"], *MANIFEST["spec"]["rayClusterSpec"]["workerGroupSpecs"])
]


def test_the_job_of_kuberay_asks_for_a_token_and_ends_with_its_program() -> None:
    spec = MANIFEST["spec"]
    assert (MANIFEST["apiVersion"], MANIFEST["kind"]) == ("ray.io/v1", "RayJob") and spec["entrypoint"]
    assert spec["shutdownAfterJobFinishes"] is True and spec["activeDeadlineSeconds"] > 0
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    version = tuple(map(int, spec["rayClusterSpec"]["rayVersion"].split(".")))
    assert ALLOWED[0] <= version < ALLOWED[1]
    for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"] and group["groupName"]


def test_its_pods_have_memory_for_objects_and_a_shared_folder() -> None:
    assert len(PODS) == 2 and len({pod["containers"][0]["image"] for pod in PODS}) == 1
    for pod in PODS:
        (container,) = pod["containers"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory" and "persistentVolumeClaim" in mounts["/shared"]
        assert container["resources"]["limits"]["memory"].endswith("Gi")
        assert all(isinstance(variable["value"], str) for variable in container["env"])
    settings = {variable["name"]: variable["value"] for variable in PODS[0]["containers"][0]["env"]}
    assert QUICK_HEALTH.items() <= settings.items()  # the head checks the nodes
