"""Files are all old or all new: with many writers, killed writers, full and read-only disks.

REPLAN_FUZZ=200 pytest tests/common/test_files.py kills 200 writers at random moments.
"""

import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which

import pytest

from replan import files

KILLS = int(os.environ.get("REPLAN_FUZZ", "10"))


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """The temporary folder of a test."""
    place = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def start(program, *args):
    """Start a program that says a line when it is ready, and wait for that."""
    command = [sys.executable, "-c", program, *map(str, args)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    process.stdout.readline()
    return process


def end(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


# Many writers


def test_threads_that_save_one_file_do_not_meet_and_readers_see_whole_files(tmp_path):
    path = tmp_path / "one.json"
    files.write_json(path, {"n": 0, "rows": []})
    seen, over = [], threading.Event()

    def look():
        while not over.is_set():
            seen.append(files.read_json(path))

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(look)
        try:
            list(pool.map(lambda n: files.write_json(path, {"n": n, "rows": [n] * n}), range(300)))
        finally:
            over.set()
        reader.result()
    assert all(content["rows"] == [content["n"]] * content["n"] for content in seen)
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


WRITER = """
import os, sys
from pathlib import Path
from replan import files

folder, count = Path(sys.argv[1]), int(sys.argv[2])
if "container" in sys.argv:
    os.getpid = lambda: 1
print("ready", flush=True)
sys.stdin.readline()
for n in range(count):
    files.write_json(folder / f"{n % 3}.json", {"n": n, "text": "x" * (n * 1009 % 100_000)})
"""


def test_processes_of_one_id_save_the_same_files(tmp_path):
    writers = [start(WRITER, tmp_path, 100, "container") for _ in range(3)]
    try:
        for writer in writers:
            writer.stdin.write("go\n")
        assert [writer.wait() for writer in writers] == [0, 0, 0]
    finally:
        for writer in writers:
            end(writer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json", "2.json"]


def add_one(path, times):
    for _ in range(times):
        with files.locked(path):
            count = files.read_json(path)["count"] if path.exists() else 0
            files.write_json(path, {"count": count + 1})


def test_nothing_is_lost_under_a_lock(tmp_path):
    path = tmp_path / "count.json"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=add_one, args=(path, 25)) for _ in range(2)]
    try:
        for process in processes:
            process.start()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(add_one, [path] * 2, [25] * 2))
        for process in processes:
            process.join()
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
    assert files.read_json(path)["count"] == 100
    assert list(tmp_path.iterdir()) == [path]


# Killed writers

STUCK = """
import os, sys, time
from replan import files

def stuck(file):
    print("ready", flush=True)
    time.sleep(1e6)

os.fsync = stuck
files.write_json(sys.argv[1], {"text": "half"})
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_and_what_is_written_is_not(tmp_path):
    files.write_json(tmp_path / "a.json", {"text": "old"})
    writer = start(STUCK, tmp_path / "a.json")
    try:
        [part] = tmp_path.glob(".replan-*.part")
        files._remove_leftovers.cache_clear()
        files.write_json(tmp_path / "b.json", {})
        assert part.exists()
    finally:
        end(writer)
    assert part.exists()
    files._remove_leftovers.cache_clear()
    files.write_json(tmp_path / "b.json", {})
    assert not part.exists()
    assert files.read_json(tmp_path / "a.json")["text"] == "old"


def test_kills_at_random_moments_break_no_file_and_leave_nothing(tmp_path):
    chance = random.Random(0)
    for _ in range(KILLS):
        writer = start(WRITER, tmp_path, 1_000_000)
        try:
            writer.stdin.write("go\n")
            time.sleep(chance.uniform(0.0, 0.05))
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        finally:
            end(writer)
        for path in tmp_path.glob("[!.]*"):
            content = files.read_json(path)
            assert len(content["text"]) == content["n"] * 1009 % 100_000
    writer = start(WRITER, tmp_path, 3)
    try:
        writer.stdin.write("go\n")
        assert writer.wait() == 0
    finally:
        end(writer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json", "2.json"]


def test_a_part_that_is_taken_for_a_leftover_before_it_is_locked_is_made_again(
    tmp_path, monkeypatch
):
    removed = []
    lock = files._lock

    def late(file, **options):
        if not removed:
            removed.extend(tmp_path.glob(".replan-*.part"))
            removed[0].unlink()
        return lock(file, **options)

    monkeypatch.setattr(files, "_lock", late)
    files.write_json(tmp_path / "a.json", {})
    assert removed
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_without_locks_a_leftover_is_known_by_its_age(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_lock", lambda *_, **__: False)
    young, old = tmp_path / ".replan-1.part", tmp_path / ".replan-2.part"
    for part in (young, old):
        part.touch()
    os.utime(old, (0, 0))
    files.write_json(tmp_path / "a.json", {})
    assert young.exists()
    assert not old.exists()


# New files


def test_of_many_who_make_a_new_file_one_wins(tmp_path):
    def make(n):
        try:
            files.create(tmp_path / "new", f"{n}".encode())
        except FileExistsError:
            return None
        return n

    with ThreadPoolExecutor(8) as pool:
        [winner] = [n for n in pool.map(make, range(40)) if n is not None]
    assert (tmp_path / "new").read_text() == f"{winner}"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_new_file_on_a_disk_without_links(tmp_path, monkeypatch):
    def no_links(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(files.os, "link", no_links)
    files.create(tmp_path / "new", b"first")
    with pytest.raises(FileExistsError):
        files.create(tmp_path / "new", b"second")
    assert (tmp_path / "new").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_no_new_file_is_left_on_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*new'"):
        files.create(tmp_path / "new", b"text")
    assert list(tmp_path.iterdir()) == []


# Disks that refuse


def test_a_file_that_cannot_be_finished_leaves_the_old_one_and_is_kept_elsewhere(
    tmp_path, monkeypatch, elsewhere
):
    path = tmp_path / "old.json"
    path.write_text("old")
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device; the result is kept in") as error:
        files.write_json(path, {"text": "new"})
    assert error.value.filename == str(path)
    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])
    [kept] = elsewhere.iterdir()
    assert str(kept) in str(error.value)
    assert json.loads(kept.read_text())["text"] == "new"


def test_a_folder_that_does_not_exist_is_named_and_the_file_kept_elsewhere(tmp_path, elsewhere):
    with pytest.raises(FileNotFoundError, match=r"the result is kept in .*: '.*gone'$"):
        files.write_json(tmp_path / "gone" / "a.json", {"text": "new"})
    [kept] = elsewhere.iterdir()
    assert json.loads(kept.read_text())["text"] == "new"


def test_where_nothing_can_be_kept_nothing_is_promised(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    for place in ("home", "cwd"):
        monkeypatch.setattr(Path, place, lambda: tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*gone'$"):
        files.write_json(tmp_path / "gone" / "a.json", {})


def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path):
    name = "x" * 250 + ".json"
    files.write_json(files.output("path", tmp_path / name, [".json"]), {})
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.txt", r"`--json` expects a file name that ends in \.json, got '.*a\.txt'"),
        ("gone/a.json", "expects a file in a folder that exists, got '.*gone/a.json'"),
        ("file/a.json", "expects a file in a folder that exists, got '.*file/a.json'"),
        ("folder.json", r"expects a file that can be written, got .* \(Is a directory\)"),
        ("device.json", r"got .* \(Not a regular file\)"),
        ("loop.json", r"got .* \(Too many levels of symbolic links\)"),
        ("x" * 300 + ".json", r"got .* \(File name too long\)"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, name, message):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "device.json").symlink_to("/dev/full")
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match=message):
        files.output("--json", tmp_path / name, [".json"])
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ValueError, match=r"`--json` expects .* \(No space left on device\)"):
        files.output("--json", tmp_path / "a.json", [".json"])
    with pytest.raises(ValueError, match=r"`out` expects a folder .* \(No space left on device\)"):
        files.folder("out", tmp_path / "made")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"`out` expects a folder that can be written to, got "):
        files.folder("out", tmp_path / "file")


REFUSED = """
import sys
from replan import files

for path in sys.argv[1:]:
    for check in (files.output, files.folder):
        try:
            check("path", path)
        except ValueError as error:
            print(error)
"""
# Permissions do not stop root, unless it gives its powers up.
MORTAL = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []


@pytest.mark.skipif(bool(MORTAL) and not which("setpriv"), reason="root, and no `setpriv`")
def test_what_is_read_only_is_refused_before_the_work(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file.json").write_text("{}")
    (folder / "file.json").chmod(0o444)
    folder.chmod(0o555)
    try:
        command = [*MORTAL, sys.executable, "-c", REFUSED, folder / "new.json", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout.count("(Permission denied)") == 3, done.stderr
        folder.chmod(0o755)
        command = [*MORTAL, sys.executable, "-c", REFUSED, folder / "file.json"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert "expects a file that can be written, got " in done.stdout, done.stderr
    finally:
        folder.chmod(0o755)
    assert [path.name for path in folder.iterdir()] == ["file.json"]


def test_a_disk_that_takes_no_byte_is_refused_before_the_work(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, tmp_path / "a.json", tmp_path],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("(File too large)") == 3, done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]  # a folder
