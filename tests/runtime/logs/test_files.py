"""Record files: all digits, and the same rows with and without an interruption."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxrl.runtime.logs.files import Csv, JsonLines, read_records
from tests.helpers.records import SEEDS, record

# ----------------------------------------------------------------------------------------------------------------------- records


def test_records_come_back_with_every_digit(tmp_path: Path) -> None:
    records = [record(i) for i in (1, 2, 3)]
    sink = JsonLines(tmp_path, [])
    for one in records:
        sink.log(one)
    sink.close()
    back = read_records(tmp_path, 2)
    assert len(back) == 2
    for one, other in zip(records, back, strict=False):
        assert one.keys() == other.keys()
        for key, value in one.items():
            np.testing.assert_array_equal(value, other[key], strict=isinstance(value, np.ndarray))
    assert "NaN" not in (tmp_path / "records.jsonl").read_text()


def test_old_records_are_written_anew_in_one_piece(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("what a later part of the run left\n")
    JsonLines(tmp_path, [record(1)]).close()
    assert [r["iteration"] for r in read_records(tmp_path, 99)] == [1]
    assert not list(tmp_path.glob("*.tmp"))


def test_csv_says_the_same_whether_it_was_interrupted_or_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = Csv(tmp_path / "a", SEEDS, [])
    for i in (1, 2, 3):
        whole.log(record(i, **({"charts/new": np.array([1.0, 2.0])} if i == 3 else {})))
    whole.close()
    resumed = Csv(tmp_path / "b", SEEDS, [record(1), record(2)])
    resumed.log(record(3, **{"charts/new": np.array([1.0, 2.0])}))
    resumed.close()
    text = (tmp_path / "a" / "progress.csv").read_text()
    assert text == (tmp_path / "b" / "progress.csv").read_text()
    assert text.splitlines()[0].endswith(",charts/new") and text.splitlines()[1].endswith(",")
    assert len(text.splitlines()) == 1 + 3 * 2


def test_a_record_is_in_the_files_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    """A kill loses no record, and ``flush`` only writes them to disk."""
    sinks = JsonLines(tmp_path, []), Csv(tmp_path, SEEDS, [])
    for sink in sinks:
        sink.log(record(1))
        sink.log(record(2))
    assert [r["iteration"] for r in read_records(tmp_path, 99)] == [1, 2]
    assert len((tmp_path / "progress.csv").read_text().splitlines()) == 1 + 2 * 2
    for sink in sinks:
        sink.close()
