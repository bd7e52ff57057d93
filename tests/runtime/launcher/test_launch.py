"""``jaxrl launch``: output of processes, handling of faults and signals, and errors before anything starts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from jaxrl.runtime.cli.commands.launch import divided
from jaxrl.runtime.cli.main import main
from jaxrl.runtime.launcher import assignments, group, supervisor
from jaxrl.runtime.launcher.output import LONGEST, RankOutput
from jaxrl.runtime.launcher.process import Fault, Kind
from jaxrl.runtime.launcher.supervisor import LaunchPlan, supervise
from jaxrl.runtime.system.cores import cpu_devices
from tests.helpers.command_line import start
from tests.helpers.processes.children import is_stopped, runs, soon

RAISING = '    raise ZeroDivisionError("in the world")'
SCRIPT = '''
"""Stands for a training: counts its starts, does at each what it is told for it, and is slow where that is nothing."""
import os, signal, sys, time
from pathlib import Path
FAULTS = "kill", "abort", "raise", "exit", "stop", "term"
number, told = os.environ["JAXRL_PROCESS_ID"], dict(word.split("=") for word in sys.argv[1:])
with Path("starts-" + number).open("a") as starts:
    print(os.getpid(), os.environ["JAXRL_COORDINATOR"], file=starts)
start = len(Path("starts-" + number).read_text().splitlines())

def save(signal_number, frame):
    time.sleep(0.3)
    Path("saved-" + number).touch()
    os._exit(143)

signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in told.values() else save)
print("start", start)
how = told.get(number, "ends").split(",")[start - 1 :][:1] or ["ends"]
print("doing:", how[0])
with Path("said-" + number).open("a") as said:
    said.write("x")
while how[0] in FAULTS and not all(path.exists() and len(path.read_text()) >= start for path in (Path("said-0"), Path("said-1"))):
    time.sleep(0.01)
if how[0] == "raise":
    raise ZeroDivisionError("in the world")
if how[0] == "exit":
    sys.exit("no more of this")
if how[0] == "abort":
    os.abort()
if how[0].isdecimal():
    sys.exit(int(how[0]))
if how[0] in ("kill", "stop", "term"):
    os.kill(os.getpid(), {"kill": 9, "stop": signal.SIGSTOP, "term": 15}[how[0]])
if how[0] == "late":  # after another's end, which it causes
    time.sleep(0.3)
    os.kill(os.getpid(), 9)
if how[0] in ("waits", "deaf"):
    time.sleep(600)
print("no line end", end="")
'''


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("JAXRL_HEARTBEAT", raising=False)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def starts(number: int) -> list[list[str]]:
    """Return, for each start of a process, its id and the group's address."""
    return [line.split() for line in Path(f"starts-{number}").read_text().splitlines()]


def nothing_runs() -> bool:
    return not any(runs(int(pid)) for path in Path().glob("starts-*") for pid, _ in starts(int(path.name[-1])))


def launch(capsys: pytest.CaptureFixture[str], *args: str, flags: str = "--processes 2") -> tuple[int, list[str], str]:
    """Return ``(exit code, lines, stderr)``. Assert that no process is left."""
    code = main(["launch", *flags.split(), "--", "script.py", *args])
    out, err = capsys.readouterr()
    assert nothing_runs()
    return code, out.splitlines(), err


def of(number: int, lines: list[str]) -> list[str]:
    return [line[4:] for line in lines if line.startswith(f"[{number}] ")]


# ---------------------------------------------------------------------------------------------------------------------- output


def test_what_processes_print_is_shown_with_their_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    Path("folder").mkdir()
    Path("folder/beside.py").write_text("text = 'imported'")
    Path("script.py").unlink()
    Path("folder/script.py").write_text(
        "import beside, os, sys; print(sys.argv, beside.text, __name__); print('to stderr', file=sys.stderr);"
        "print(*(os.environ[x] for x in ('JAXRL_PROCESS_ID', 'JAXRL_NUM_PROCESSES', 'JAX_NUM_CPU_DEVICES', 'JAXRL_HEARTBEAT')));"
        "print('flags:', os.environ['XLA_FLAGS']); print('ü' * 9, end='')"
    )
    flags = ["--processes", "2", "--devices-per-process", "3", "--heartbeat", "2.5"]
    assert main(["launch", *flags, "--", "folder/script.py", "--flag", "--"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and lines[0] == "launch: 2 processes, 3 CPU devices each: folder/script.py --flag --"
    for number in range(2):
        first, *rest = of(number, lines)
        assert first == "['folder/script.py', '--flag', '--'] imported __main__"
        assert [line.strip() for line in rest] == ["to stderr", f"{number} 2 3 2.5", "flags:", "ü" * 9]


def test_lines_are_whole_and_what_is_drawn_over_is_left_out() -> None:
    shown: list[str] = []
    output = RankOutput(3, shown.append)
    for data in (b"one\ntw", b"o\r\n10 %\r20", b" %\r30 %\n", b"\n", b"\xff\xc3", b"\xbc\n", b"x" * LONGEST, b"y\n", b"begun"):
        os.write(output.into, data)
    assert soon(lambda: len(shown) == 7, 10)  # lines are shown while the process runs
    output.hand_over()
    output.close()
    assert shown == ["[3] one", "[3] two", "[3] 30 %", "[3] ", "[3] �ü", f"[3] {'x' * LONGEST}", "[3] y", "[3] begun"]
    assert output.last_lines == f"{'x' * 200}… | y | begun"


def test_output_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descendant of the process holds the other end."""
    monkeypatch.setattr("jaxrl.runtime.launcher.output.PATIENCE", 0.1)
    shown: list[str] = []
    output = RankOutput(0, shown.append)
    os.write(output.into, b"all\n")
    output.close()
    assert soon(lambda: shown == ["[0] all"], 10)
    output.hand_over()


# ---------------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.slow
def test_all_are_started_again_after_each_kind_of_fault(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for the other one is ended. Each group uses a new port."""
    monkeypatch.setattr(group, "SETTLE", 0.05)
    monkeypatch.setattr(group, "FAREWELL", 0.3)
    faults = "kill,raise,exit,abort,stop,term"
    waits = ",".join(["waits"] * 6)
    code, lines, err = launch(
        capsys, f"0={waits}", f"1={faults}", flags="--processes 2 --max-restarts 6 --heartbeat 1 --devices-per-process 1"
    )
    assert (code, err) == (0, "")
    told = [line for line in lines if line.startswith("launch: rank")]
    expected = (
        r"was killed by SIGKILL \(unless a user or program sent it, the system ran out of memory\)",
        r"ended with exit code 1",
        r"ended with exit code 1",
        r"was killed by SIGABRT",
        r"was stopped \(SIGSTOP\) for 1 s",
        r"ended with exit code 143 \(as after SIGTERM to any of them, which lets all save\)",
    )
    assert len(told) == 6
    for restart, (line, how) in enumerate(zip(told, expected, strict=True), 1):
        goes_on = rf"Resuming from the last checkpoint \(restart {restart} of 6\)"
        assert re.fullmatch(rf"launch: rank 1 {how}, and the others were ended\. {goes_on}", line), line
    one, other = starts(0), starts(1)
    assert len(one) == len(other) == 7 and [place for _, place in one] == [place for _, place in other]
    assert len({place for _, place in one}) > 1
    for number in range(2):
        mine = of(number, lines)
        assert [line for line in mine if line.startswith("start ")] == [f"start {n}" for n in range(1, 8)]
        assert mine[-1] == "no line end"
    assert "[1] ZeroDivisionError: in the world" in lines and "[1] no more of this" in lines
    assert [line for line in of(1, lines) if line.startswith("  File ")] == [  # and no line of jaxrl's code
        f'  File "script.py", line {SCRIPT.splitlines().index(RAISING) + 1}, in <module>'
    ]


@pytest.mark.slow
def test_a_fault_too_many_is_told_of_with_the_command_that_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, err = launch(
        capsys, "0=ends,waits", "1=raise,raise", "x=a b", flags="--processes 2 --max-restarts 1 --heartbeat 9"
    )
    assert code == 1 and len(starts(0)) == 2 and sum("restart 1 of 1" in line for line in lines) == 1
    assert err.count("\n") == 1
    pattern = (
        r"jaxrl: rank 1 ended with exit code 1 first, after 1 restart, with the message: .*\| ZeroDivisionError: in the world\. "
        r"To resume from the last checkpoint: jaxrl launch --processes 2 --max-restarts 1 --heartbeat 9 -- script\.py "
        r"0=ends,waits 1=raise,raise 'x=a b'\n"
    )
    assert re.fullmatch(pattern, err), err


def test_a_request_that_cannot_be_met_is_made_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "CONFESSION", 0.1)
    code, lines, err = launch(capsys, "0=waits", "1=2")
    assert code == 2 and len(starts(0)) == 1 and not any("restart" in line for line in lines)
    assert err == "jaxrl: rank 1 ended with exit code 2, with the message: start 1 | doing: 2\n"


def test_the_first_to_fail_is_named_though_another_was_seen_to_end_before_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX ends processes that have lost another one."""
    monkeypatch.setattr(group, "SETTLE", 30.0)
    code, _, err = launch(capsys, "0=abort", "1=late", flags="--processes 2 --max-restarts 0")
    assert code == 1 and err.startswith("jaxrl: rank 1 was killed by SIGKILL (") and "first, and --max-restarts is 0" in err


def test_who_was_told_of_a_failure_may_end_before_the_one_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "SETTLE", 0.0)
    Path("script.py").write_text(
        "import os, sys, time; first = os.environ['JAXRL_PROCESS_ID'] == '0'; time.sleep(0.7 * first); sys.exit(2 - first)"
    )
    assert main(["launch", "--processes", "2", "--max-restarts", "0", "--", "script.py"]) == 1
    assert capsys.readouterr().err.startswith("jaxrl: rank 0 ended with exit code 1 first")


@pytest.mark.slow
def test_who_stands_still_while_others_abort_is_the_cause(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "SETTLE", 0.8)
    code, _, err = launch(capsys, "0=stop", "1=abort", flags="--processes 2 --max-restarts 0")
    assert code == 1 and err.startswith("jaxrl: rank 0 was stopped (SIGSTOP)")


def test_the_cause_is_what_nothing_else_explains() -> None:
    faults = [Fault(kind, when, 0, "", "") for when, kind in enumerate(sorted(Kind, reverse=True))]
    assert [fault.kind for fault in sorted(faults)] == [*Kind]
    assert min(Fault(Kind.FAILED, 2.0, 0, "", ""), Fault(Kind.FAILED, 1.0, 1, "", "")).number == 1


@pytest.mark.slow
def test_after_one_is_asked_to_end_all_may_save(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They agree on it. In this test the other process gets the signal too."""
    Path("other.py").write_text(
        "import os, sys, time; from pathlib import Path; number = os.environ['JAXRL_PROCESS_ID']\n"
        "mark = Path('saved-' + number)\n"
        "if not mark.exists():\n    time.sleep(0.7 * (number == '0')); mark.touch(); sys.exit(143)"
    )
    assert main(["launch", "--processes", "2", "--", "other.py"]) == 0
    out = capsys.readouterr().out
    assert Path("saved-0").exists() and out.count("(restart 1 of 3)") == 1


@pytest.mark.slow
def test_one_that_has_ended_well_waits_for_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    Path("script.py").write_text("import os, time; time.sleep(float(os.environ['JAXRL_PROCESS_ID'])); print('done')")
    code, lines, _ = launch(capsys)
    assert code == 0 and of(1, lines) == ["done"]


MEETING = """
import os, sys
from pathlib import Path
from jaxrl.runtime.cli.main import guarded
from jaxrl.runtime.distributed.cluster import find_place
from jaxrl.runtime.distributed.rendezvous import roll_call
from jaxrl.runtime.distributed.messages import find_secret

def meet():
    place = find_place(os.environ)
    with Path(f"starts-{place.process_id}").open("a") as starts:
        print(os.getpid(), os.environ["JAXRL_SECRET"], file=starts)
    roll_call(place, {}, 60.0, find_secret(os.environ))
    print("met")
    return 0

sys.exit(guarded(meet) if sys.argv[1] == "command" else meet())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["command", "script"])
def test_where_the_port_is_taken_another_one_is_chosen(
    how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not count as a restart. The program there may answer, and processes may reach it before process 0 notices it."""
    Path("script.py").write_text(MEETING)
    choose, asked = assignments.places, 0

    def places(*given: Any) -> list[dict[str, str]]:
        nonlocal asked
        asked += 1
        chosen = choose(*given)
        return chosen if asked > 2 else [each | {"JAXRL_COORDINATOR": taken} for each in chosen]

    monkeypatch.setattr(supervisor, "places", places)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    other.accept()[0].sendall(b"220 mail\n")

        threading.Thread(target=answer, daemon=True).start()
        code, lines, err = launch(capsys, how, flags="--processes 2 --max-restarts 0")
        other.shutdown(socket.SHUT_RDWR)
    assert (code, err) == (0, "") and sum("restarting all processes with another one" in line for line in lines) == 2
    assert of(0, lines)[-1] == of(1, lines)[-1] == "met"
    secrets = [secret for _, secret in starts(0)]
    assert secrets[-1] == starts(1)[-1][1] and len(set(secrets)) == 3 and {*map(len, secrets)} == {64}


# --------------------------------------------------------------------------------------------------------------------- signals


def started(*args: str, processes: int = 2) -> subprocess.Popen[str]:
    """Start a launch in a separate process. Return it once all its processes work."""
    process = start("-m", "jaxrl", "launch", "--processes", str(processes), "--heartbeat", "1", "--", "script.py", *args)
    assert process.stdout
    seen = 0
    for line in process.stdout:
        seen += "doing:" in line
        if seen == processes:
            return process
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_all_save_and_none_is_started_again(number: int, code: int) -> None:
    process = started("0=waits", "1=waits")
    process.send_signal(number)
    process.send_signal(number)  # as `timeout` does
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "jaxrl: interrupted\n")
    name = signal.Signals(number).name
    assert out == f"launch: {name}: waiting for 2 to save and end; Ctrl-C ends them at once\n"
    assert Path("saved-0").exists() and Path("saved-1").exists() and nothing_runs()


@pytest.mark.slow
def test_a_second_ctrl_c_waits_for_nobody() -> None:
    process = started("0=deaf", "1=deaf")
    process.send_signal(signal.SIGINT)
    assert process.stdout and "waiting for 2" in process.stdout.readline()
    time.sleep(0.6)  # later than an echo
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "jaxrl: interrupted\n") and nothing_runs()


def test_nothing_is_left_of_a_launch_that_is_killed() -> None:
    """Neither of a process that ignores signals, nor of one that is stopped."""
    process = started("0=deaf", "1=stop")
    assert soon(lambda: is_stopped(int(starts(1)[0][0])))  # one that stops after the launcher's end is not woken by the system
    process.kill()
    process.wait(60)
    assert soon(nothing_runs)
    process.communicate()


@pytest.mark.slow
def test_who_stands_still_hears_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The others save, and the stopped one is ended."""
    process = started("0=waits", "1=stop")
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "jaxrl: interrupted\n") and Path("saved-0").exists() and nothing_runs()


# ----------------------------------------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--processes 0 -- script.py", "processes=0 must be an integer >= 1"),
        ("--processes 2 --devices-per-process 0 -- script.py", "devices_per_process=0 must be an integer >= 1"),
        ("--processes 2 --max-restarts -1 -- script.py", "max_restarts=-1 must be an integer >= 0"),
        ("--processes 2 --heartbeat 0 -- script.py", "heartbeat=0 is not allowed"),
        ("-- train ppo --env CartPole-v1", "--processes"),
        ("--processes 2", "needs a command after --: jaxrl launch --processes 2 -- train ppo"),
        ("--processes 2 --", "needs a command after --"),
        ("--processes 2 train ppo", "needs a command after --"),
        ("--processes 2 -- eval runs", "'eval' cannot be launched: use train or a script (a file that ends in .py)"),
        ("--processes 2 -- nothing.py", "script 'nothing.py' does not exist"),
        ("--processes 2 -- train pqo --env CartPole-v1", "algorithm 'pqo'"),
        ("--processes 2 -- train --env CartPole-v1", "name the algorithm first: jaxrl train ppo --env CartPole-v1"),
        ("--processes 2 -- train ppo --env CartPole-v1 --seeds x", "--seeds 'x' must be a number of seeds"),
        ("--processes 2 -- train ppo --env CartPole-v1 --n-envs 4", "--n-envs is called --num-envs here"),
        ("--processes 2 -- train --resume nowhere", "'nowhere' is not a run folder"),
        ("--processes 2 -- train --resume nowhere --gamma 1", "--gamma cannot be combined with --resume"),
    ],
)
def test_what_is_refused_before_anything_starts(
    line: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def supervised(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(supervisor, "supervise", supervised)
    assert main(["launch", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1


def test_a_wrong_flag_of_either_command_is_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("--processes 2 -- train ppo --env CartPole-v1 --gama 0.9", "--proceses 2 -- train ppo --env CartPole-v1"):
        assert main(["launch", *line.split()]) == 2
        err = capsys.readouterr().err
        assert err.count("Unrecognized options:") == err.count("\n") == 1
    with pytest.raises(SystemExit) as end:
        main(["launch", "--help"])
    assert end.value.code == 0 and "try:" in capsys.readouterr().out


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    """Return the plans that would be executed."""
    made: list[LaunchPlan] = []
    monkeypatch.setattr(supervisor, "supervise", lambda plan, show: made.append(plan))
    return made


def test_all_processes_and_starts_have_one_folder(plans: list[LaunchPlan], capsys: pytest.CaptureFixture[str]) -> None:
    line = ["launch", "--processes", "2", "--", "train", "ppo", "--env", "CartPole-v1"]
    Path("runs/ppo-CartPole-v1").mkdir(parents=True)
    for given in ([], ["--out", "here"], ["--preset", "ppo-cartpole"]):
        assert main([*line, *given]) == 0
    for plan, folder in zip(plans, ("runs/ppo-CartPole-v1-2", "here", "runs/ppo-CartPole-v1-2"), strict=True):
        assert plan.command[:4] == line[4:] and plan.command[-2:] == ["--out", folder]
        assert (plan.max_restarts, plan.heartbeat, len(plan.devices)) == (3, 30.0, 2)
    assert f"{line[-1]} --out here\n" in capsys.readouterr().out


def test_the_heartbeat_is_that_of_the_environment(
    plans: list[LaunchPlan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAXRL_HEARTBEAT", "7")
    for flags in ([], ["--heartbeat", "8"]):
        main(["launch", "--processes", "1", *flags, "--", "script.py"])
    assert [plan.heartbeat for plan in plans] == [7, 8]
    assert assignments.places(2, 7.0)[1].items() >= {("JAXRL_HEARTBEAT", "7"), ("JAXRL_PROCESS_ID", "1")}
    monkeypatch.setenv("JAXRL_HEARTBEAT", "soon")
    assert main(["launch", "--processes", "1", "--", "script.py"]) == 2 and "JAXRL_HEARTBEAT='soon'" in capsys.readouterr().err


def test_a_command_of_jaxrl_says_what_is_wrong_itself() -> None:
    shown: list[str] = []
    fault = supervise(LaunchPlan(["train", "nonsense"], [cpu_devices(1)], 3, 30.0), shown.append)
    assert fault and fault.kind is Kind.REFUSED and "unknown algorithm 'nonsense'" in fault.said
    assert len(shown) == 1


@pytest.mark.slow
def test_processes_train_together(capsys: pytest.CaptureFixture[str]) -> None:
    """One of them shows the progress. The same command again has nothing left to do."""
    flags = "--env CartPole-v1 --seeds 2 --total-steps 16 --eval-every 0 --no-tensorboard --num-envs 2 --rollout-length 4"
    line = ["launch", "--processes", "2", "--", "train", "ppo", *flags.split(), "--num-epochs", "1", "--num-minibatches", "1"]
    assert main(line) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2 seeds on 2 devices in 2 processes" in of(0, lines)[0] and "results in runs/ppo-CartPole-v1" in of(0, lines)[-1]
    assert not [text for text in of(1, lines) if "step" in text] and Path("runs/ppo-CartPole-v1/checkpoints/2").is_dir()


def test_the_first_dashes_divide() -> None:
    assert divided(["--a", "1", "--", "x", "--", "y"]) == (["--a", "1"], ["x", "--", "y"])
    assert divided(["--a"]) == (["--a"], [])


# --------------------------------------------------------------------------------------------------------------------- devices


def test_more_devices_than_cores_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "usable_cores", lambda: 4)
    assert assignments.lay_out(2, 2).advice is None and assignments.lay_out(2, None).shown == "1 CPU device each"
    assert assignments.lay_out(2, 3).advice == "6 CPU devices share 4 cores: for tests only, since this is slower"


def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there: list[str] = ["jax_cuda13_plugin"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name in there or None)
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.delenv(assignments.GPUS, raising=False)
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert assignments.visible_gpus(tmp_path) == ["0", "1", "2"]
    monkeypatch.setenv(assignments.GPUS, "4, 5,GPU-a,7,9,-1,2")
    assert assignments.visible_gpus(tmp_path) == ["4", "5", "GPU-a", "7", "9"]
    found = assignments.lay_out(2, None)
    assert [each[assignments.GPUS] for each in found.variables] == ["4,5", "GPU-a,7"] and found.advice is None
    assert found.shown == "GPU 4,5 for process 0, GPU GPU-a,7 for process 1"
    assert [each[assignments.GPUS] for each in assignments.lay_out(5, 1).variables] == ["4", "5", "GPU-a", "7", "9"]
    for processes, each, message in ((6, None, "processes=6 with 1 GPU each"), (2, 3, "processes=2 with 3 GPUs each")):
        with pytest.raises(ValueError, match=rf"{message} need more than the 5 that are visible: .* JAX_PLATFORMS=cpu"):
            assignments.lay_out(processes, each)
    for platforms, packages, given in (("cpu", there, "0"), ("", [], "0"), ("", there, ""), ("", there, "-1")):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        monkeypatch.setenv(assignments.GPUS, given)
        there[:] = packages
        assert not assignments.visible_gpus(tmp_path)
        there[:] = ["jax_cuda12_plugin"]
