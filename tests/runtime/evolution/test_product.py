"""The loop of a product: records that are refused, transactions, kills, writers in three languages."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import evolution
from jaxrl.runtime.evolution.folder import EvolutionFolder
from jaxrl.runtime.evolution.records import new_lines
from tests.helpers.paths import ROOT
from tests.helpers.products import log, theta

EXAMPLE = ROOT / "examples" / "es_product"
SIZE = 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    evolution.init(tmp_path / "w", np.linspace(-1, 1, SIZE), sigma=0.1, learning_rate=0.1, max_to_keep=3)
    return tmp_path / "w"


def records(folder: Path, number: int = 16, **more: Any) -> list[dict[str, Any]]:
    """Return records of new members, whose fitness is that of parameters near 1."""
    asked = evolution.ask(folder, number)
    members = range(asked.first, asked.first + number)
    rows = evolution.member_parameters(folder, asked.version, list(members))
    return [
        {"run": asked.run, "version": asked.version, "member": m, "fitness": -float(((x - 1) ** 2).sum()), **more}
        for m, x in zip(members, rows, strict=True)
    ]


def step(folder: Path) -> Any:
    log(folder, records(folder))
    return evolution.tell(folder)


@pytest.mark.slow
def test_the_loop_learns(folder: Path) -> None:
    told = [step(folder) for _ in range(25)]
    assert [each.version for each in told] == list(range(1, 26)) and all(each.accepted == 16 for each in told)
    assert told[-1].fitness > told[0].fitness / 2
    assert np.abs(theta(folder) - 1).mean() < 0.7 * np.abs(np.linspace(-1, 1, SIZE) - 1).mean()


def test_members_are_reserved_once_and_begin_anew_with_each_version(folder: Path) -> None:
    first, second = evolution.ask(folder, 4, owner="shop-7"), evolution.ask(folder, 6, owner="shop-8")
    assert (first.first, second.first) == (0, 4) and first.version == second.version == 0
    assert evolution.status(folder).asked == {"members": 10, "owners": {"shop-7": 4, "shop-8": 6}}
    step(folder)
    assert evolution.ask(folder, 2).first == 0 and evolution.status(folder).asked == {"members": 2, "owners": {}}


def test_members_are_those_of_the_manifest(folder: Path) -> None:
    """Pairs mirror the mean, with the manifest's σ."""
    rows = evolution.member_parameters(folder, 0, [6, 7, 8])
    np.testing.assert_allclose((rows[0] + rows[1]) / 2, theta(folder), atol=1e-6)
    np.testing.assert_allclose(np.abs(rows - theta(folder)), evolution.ask(folder).sigma, atol=1e-6)
    assert (rows[0] != rows[2]).any()


REFUSED = {
    "torn": ['{"run": "x", "vers', "[1, 2]", "null", "12", "[" * 100_000],
    "incomplete": [{"member": 1}, {"run": "RUN", "version": 0, "member": 1}],
    "format": [{"v": 2}],
    "foreign": [{"run": "another"}, {"run": 7}],
    "unknown version": [{"version": 9}, {"version": -1}, {"version": "0"}, {"version": 0.0}, {"version": True}],
    "digest": [{"sha256": "00ff"}, {"sha256": 3}],
    "member": [{"member": -1}, {"member": 2**31}, {"member": "3"}, {"member": 1.5}],
    "fitness": ["NAN", {"fitness": "high"}, {"fitness": None}, {"fitness": True}, {"fitness": 10**400}, {"fitness": 1e39}],
    "id": [{"id": 5}],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_wrong_records_are_refused_with_a_reason(folder: Path, reason: str) -> None:
    right = records(folder, 4)

    def wrong_one(line: Any) -> Any:
        if line == "NAN":
            return json.dumps(right[0]).replace(str(right[0]["fitness"]), "NaN")
        return line if reason in ("torn", "incomplete") else {**right[0], **line}

    wrong = [wrong_one(line) for line in REFUSED[reason]]
    log(folder, [*wrong, *right])
    told = evolution.tell(folder)
    assert told.refused == {reason: len(wrong)} and told.accepted == 4 and told.updated
    kept = [json.loads(line) for line in (folder / "commits" / "000001" / "rejected.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in kept] == [reason] * len(wrong) and all(line["file"] == "a.jsonl" for line in kept)
    assert evolution.status(folder).refused == {reason: len(wrong)}


def test_duplicates_are_refused_across_files_and_versions(folder: Path) -> None:
    one = [{**record, "id": f"order-{i}"} for i, record in enumerate(records(folder, 4))]
    log(folder, [*one, one[0]])
    assert evolution.tell(folder).refused == {"duplicate": 1}
    log(folder, one[:2], "b")
    log(folder, records(folder, 2), "b")
    told = evolution.tell(folder)
    assert told.refused == {"duplicate": 2} and told.accepted == 2


def test_old_versions_expire(folder: Path) -> None:
    """Three are kept: rewards of the present version and the two before are accepted."""
    old = records(folder, 2)
    for _ in range(2):
        step(folder)
    log(folder, old[:1])
    assert evolution.tell(folder).accepted == 1  # version 0, at version 2
    log(folder, [*old[1:], *records(folder, 2)])
    told = evolution.tell(folder)
    assert told.refused == {"expired": 1} and told.accepted == 2
    assert sorted(path.name for path in (folder / "versions").iterdir()) == ["000002", "000003", "000004"]


def test_rewards_of_a_member_are_averaged(tmp_path: Path) -> None:
    """Three noisy rewards of each member, in any order, give the parameters that their means give."""
    for name in ("one", "several"):
        evolution.init(tmp_path / name, np.zeros(5), seed=3)
    lines = records(tmp_path / "one", 8)
    log(tmp_path / "one", lines)
    run = EvolutionFolder.open(tmp_path / "several").run
    noisy = [{**line, "run": run, "fitness": line["fitness"] + shift} for shift in (-2.0, 2.0, 0.0) for line in lines]
    random.Random(0).shuffle(noisy)
    log(tmp_path / "several", noisy)
    assert [evolution.tell(tmp_path / name).accepted for name in ("one", "several")] == [8, 24]
    np.testing.assert_allclose(theta(tmp_path / "one"), theta(tmp_path / "several"), rtol=1e-6)


def test_a_record_that_follows_a_torn_one_on_its_line_counts(folder: Path) -> None:
    lines = [json.dumps({"meta": {"shop": 7}, **line}) for line in records(folder, 4)]
    (folder / "logs" / "a.jsonl").write_text(f"{lines[0]}\n{lines[1][:40]}{lines[2]}\n{lines[3]}\n")
    told = evolution.tell(folder)
    assert told.accepted == 3 and told.refused == {"torn": 1}


def test_a_smaller_file_of_the_same_name_is_read_from_its_begin(folder: Path) -> None:
    log(folder, records(folder, 8))
    assert evolution.tell(folder).accepted == 8
    (folder / "logs" / "a.jsonl").unlink()
    log(folder, records(folder, 2))
    assert evolution.tell(folder).accepted == 2 and evolution.status(folder).waiting == 0


def test_versions_are_dropped_as_a_whole(tmp_path: Path) -> None:
    """Their records are neither learnt from nor counted."""
    folder = tmp_path / "w"
    evolution.init(folder, np.zeros(5), staleness="drop")
    old = records(folder, 4)
    step(folder)
    log(folder, old)
    told = evolution.tell(folder, at_least=2)
    assert told.refused == {"stale": 4} and not told.updated and told.version == 1
    log(folder, records(folder, 2))
    assert evolution.tell(folder, at_least=2).accepted == 2


def test_the_home_folder_may_be_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    evolution.init("~/w", np.zeros(5))
    assert evolution.status("~/w").version == 0 and evolution.ask("~/w", 2).first == 0


def test_a_line_that_is_still_being_written_waits(folder: Path) -> None:
    lines = [json.dumps(line) for line in records(folder, 4)]
    path = folder / "logs" / "a.jsonl"
    path.write_text("\n".join(lines)[:-20])
    assert evolution.tell(folder).accepted == 3
    with open(path, "a") as file:
        file.write(lines[-1][-20:] + "\n")
    assert evolution.tell(folder).accepted == 1


def test_too_few_members_wait(folder: Path) -> None:
    log(folder, records(folder, 4))
    told = evolution.tell(folder, at_least=5)
    assert not told.updated and told.version == 0 and evolution.status(folder).waiting > 0
    log(folder, records(folder, 4))
    assert evolution.tell(folder, at_least=5).accepted == 8 and evolution.status(folder).waiting == 0


def test_a_damaged_version_is_noticed(folder: Path) -> None:
    path = folder / "versions" / "000000" / "theta.f32"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    log(folder, records(folder, 2))
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"theta.f32 is damaged: restore"):
        evolution.tell(folder)


def test_arrays_come_back_by_name(tmp_path: Path) -> None:
    start = {"w": np.arange(6.0).reshape(2, 3), "b": np.ones(2)}
    evolution.init(tmp_path / "w", start)
    assert evolution.export(tmp_path / "w", tmp_path / "out.npz") == 0
    with np.load(tmp_path / "out.npz") as found:
        assert {name: found[name].tolist() for name in found} == {name: x.tolist() for name, x in start.items()}
    evolution.export(tmp_path / "w", tmp_path / "out.npy")
    assert np.load(tmp_path / "out.npy").tolist() == [1, 1, 0, 1, 2, 3, 4, 5]
    evolution.export(tmp_path / "w", tmp_path / "out.f32")
    assert np.fromfile(tmp_path / "out.f32", "<f4").tolist() == [1, 1, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sigma": -1}, "sigma=-1 is not allowed"),
        ({"sigm": 1}, "'sigm' is not a setting. Did you mean 'sigma'"),
        ({"noise": "low_rank"}, "noise='low_rank' is unknown"),
        ({"staleness": "ignore"}, "staleness='ignore' must be one of 'within'"),
        ({"theta": []}, "theta must be an array of finite numbers"),
        ({"theta": [np.nan]}, "theta must be an array of finite numbers"),
    ],
)
def test_bad_settings(tmp_path: Path, arguments: dict[str, Any], words: str) -> None:
    given = {"theta": np.zeros(3), **arguments}
    with pytest.raises((TypeError, ValueError), match=words):
        evolution.init(tmp_path / "w", given.pop("theta"), **given)
    with pytest.raises(FileNotFoundError, match=r"has no run.json: jaxrl es init"):
        evolution.tell(tmp_path / "w")


def test_a_folder_is_made_once_and_versions_are_named(folder: Path) -> None:
    with pytest.raises(FileExistsError, match="holds an evolution already"):
        evolution.init(folder, np.zeros(3))
    with pytest.raises(ValueError, match="version=7 is not kept: choose one of 0"):
        evolution.export(folder, folder / "x.npy", version=7)
    with pytest.raises(ValueError, match=r"must end with .npy, .npz or .f32"):
        evolution.export(folder, folder / "x.txt")
    with pytest.raises(ValueError, match="members=0 must be an integer >= 1"):
        evolution.ask(folder, 0)


# --------------------------------------------------------------------------------------------------------- other languages


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the example program in C."""
    compiler = shutil.which("cc")
    assert compiler, "this test needs a C compiler, cc"
    place = tmp_path_factory.mktemp("c")
    shutil.copy(EXAMPLE / "writer.sh", place)
    flags = ["-O2", "-ffp-contract=off", "-Wall", "-Werror"]
    subprocess.run([compiler, *flags, "-o", place / "member", EXAMPLE / "member.c"], check=True, timeout=60)
    return place


def test_a_program_in_c_draws_the_same_members(folder: Path, compiled: Path) -> None:
    step(folder)
    asked = evolution.ask(folder, 4)
    for member in (0, 1, 2, 12345, 2**31 - 1):
        words = [*map(str, asked.key), repr(asked.sigma), str(member), asked.theta]
        told = subprocess.run([compiled / "member", *words], check=True, capture_output=True, timeout=60).stdout
        np.testing.assert_array_equal(np.frombuffer(told, "<f4"), evolution.member_parameters(folder, 1, [member])[0])


REWARD = "import sys, struct; d = sys.stdin.buffer.read(); print(-sum((x - 1)**2 for (x,) in struct.iter_unpack('<f', d)))"


def test_a_shell_script_logs_rewards(folder: Path, compiled: Path) -> None:
    asked, path = evolution.ask(folder, 2), folder / "logs" / "shell.jsonl"
    words = [asked.run, asked.version, *asked.key, asked.sigma, asked.theta, asked.first, asked.number, path]
    subprocess.run([compiled / "writer.sh", *map(str, words), sys.executable, "-c", REWARD], check=True, timeout=120)
    told = evolution.tell(folder)
    assert told.accepted == 2 and not told.refused
    expected = [-float(((x - 1) ** 2).sum()) for x in evolution.member_parameters(folder, 0, [0, 1])]
    assert told.fitness == pytest.approx(np.mean(expected), rel=1e-4)


WRITER = """
import json, os, sys, time
folder, name, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
run = json.load(open(f"{folder}/run.json"))["run"]
file = os.open(f"{folder}/logs/shared.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for i in range(number):
    version = json.load(open(f"{folder}/state.json"))["version"]
    line = {"run": run, "version": version, "member": i % 64, "fitness": float(i % 7), "id": f"{name}/{i - (i % 10 == 1)}"}
    text = json.dumps(line if i % 10 != 3 else {**line, "run": "foreign"})
    os.write(file, (text[:-9] if i % 10 == 5 else text).encode() + b"\\n")
    time.sleep(0.002)
"""


@pytest.mark.slow
def test_three_writers_into_one_log_while_tell_runs(folder: Path, compiled: Path) -> None:
    """Of ten lines of a writer one is a duplicate, one foreign and one torn; every count is exact."""
    number = 500
    words = [[sys.executable, "-c", WRITER, str(folder), name, str(number)] for name in ("python", "again")]
    asked = evolution.ask(folder, 20)
    place = [asked.run, asked.version, *asked.key, asked.sigma, asked.theta, 0, 20, folder / "logs" / "shared.jsonl"]
    shell = [compiled / "writer.sh", *map(str, place), sys.executable, "-c", REWARD]
    writers = [subprocess.Popen(each) for each in (*words, shell)]
    refused, accepted = Counter[str](), 0
    while any(writer.poll() is None for writer in writers):
        told = evolution.tell(folder)
        refused, accepted = refused + Counter(told.refused if told.updated else {}), accepted + told.accepted
        time.sleep(0.3)
    told = evolution.tell(folder)
    refused, accepted = refused + Counter(told.refused if told.updated else {}), accepted + told.accepted
    assert all(writer.returncode == 0 for writer in writers)
    found, state = evolution.status(folder), EvolutionFolder.open(folder).state()
    lines, _ = new_lines(folder / "logs", {})
    assert len(lines) == 2 * number + 20 and found.waiting == 0
    assert refused["duplicate"] == 2 * number // 10 and refused["foreign"] == refused["torn"] == 2 * number // 10
    assert accepted + refused.total() == len(lines) and refused.total() - refused["expired"] == 3 * 2 * number // 10
    assert (state["accepted"], state["rejected"]) == (accepted, dict(refused))


TELL = "import sys; from jaxrl.evolution import tell; print('ready', flush=True); sys.stdin.readline(); tell(sys.argv[1])"


@pytest.mark.slow
def test_a_tell_that_is_killed_has_happened_or_not(tmp_path: Path) -> None:
    """Killed 50 times at random moments of 10 generations, the parameters are those of an undisturbed evolution."""
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    for each in (calm, rough):
        evolution.init(each, np.linspace(-1, 1, SIZE), learning_rate=0.1, seed=1)
    chance, kills = random.Random(0), 0
    for _ in range(10):
        lines = records(calm, 16)
        log(calm, lines)
        log(rough, [{**line, "run": EvolutionFolder.open(rough).run} for line in lines])
        before = time.perf_counter()
        version = evolution.tell(calm).version
        seconds = time.perf_counter() - before
        for _ in range(5):
            child = subprocess.Popen(
                [sys.executable, "-c", TELL, rough], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            time.sleep(chance.uniform(0, 2 * seconds + 1))
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
        if EvolutionFolder.open(rough).state()["version"] < version:
            evolution.tell(rough)
        assert EvolutionFolder.open(rough).state()["version"] == version
        np.testing.assert_array_equal(theta(rough), theta(calm))
    assert kills == 50
    evolution.tell(rough)
    assert sorted(os.listdir(rough / "versions")) == sorted(os.listdir(calm / "versions"))
