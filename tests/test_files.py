"""Files of results: all old or all new; what cannot be written is refused before the work."""

import json
import os
import threading

import numpy as np
import pandas as pd
import pytest

import replan
from replan import ArgumentError, files


def test_a_reader_finds_whole_files_while_many_write(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"rows": [0] * 1000})
    stop = threading.Event()

    def write(number):
        while not stop.is_set():
            files.write_json(path, {"rows": [number] * 1000})

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(300):
            rows = files.read_json(path)["rows"]
            assert len(rows) == 1000
            assert len(set(rows)) == 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space") as caught:
        files.write(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_says_the_version_and_refuses_nan(tmp_path):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"replan": replan.__version__, "a": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"a": np.nan})
    assert files.nullable(np.array([[1.0, np.nan], [np.inf, 2.0]])) == [[1.0, None], [None, 2.0]]


def test_tables_keep_all_digits(tmp_path):
    frame = pd.DataFrame({"name": ["a", "b"], "value": [0.1 + 0.2, np.nan], "count": [1, 2]})
    files.write_frame(tmp_path / "x.csv", frame)
    assert (tmp_path / "x.csv").read_text() == "name,value,count\na,0.30000000000000004,1\nb,,2\n"


def test_a_byte_order_mark_is_skipped(tmp_path):
    (tmp_path / "x.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert files.read_json(tmp_path / "x.json") == {"a": 1}


@pytest.mark.parametrize("data", [b"\xff\xfe", b"{", b"[1]", b"[" * 100_000])
def test_bad_json_is_refused(tmp_path, data):
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(ArgumentError) as caught:
        files.read_json(tmp_path / "x.json")
    assert caught.value.name == "path"


def test_what_may_never_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(ArgumentError):
            files.read_text(path)
    with pytest.raises(FileNotFoundError):
        files.read_text(tmp_path / "missing")


@pytest.mark.parametrize(
    "name", ["missing/x.json", "x.txt", "folder.json", "x.json/y.json", "a\0.json"]
)
def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, name):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "x.json").write_text("old")
    with pytest.raises(ArgumentError) as caught:
        files.output("--json", f"{tmp_path}/{name}", [".json"])
    assert caught.value.name == "--json"
    with pytest.raises(ArgumentError):
        files.write("/dev/null", b"")  # would replace the device


def test_what_is_read_only_is_refused_before_the_work(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    for exists in (False, True):
        monkeypatch.setattr(os, "access", lambda target, _: target not in (path, tmp_path))
        with pytest.raises(ArgumentError) as caught:
            files.output("--json", path)
        assert caught.value.name == "--json", exists
        path.write_text("old")
    monkeypatch.undo()
    assert files.output("--json", path) == path
