"""Files, settings and sizes that once ended as "a bug in replan", or did not end at all."""

import json
import os
import sys

import numpy as np
import pytest

import replan
from replan import cli
from replan import files
from replan.core import memory
from replan.cli import _time

DEEP = "[" * 100_000
PROTOCOL = {"duration": 10, "shares": [[1, 0]], "lr": [1]}


def refused(found, message):
    code, out, err = found
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert len(err) < 500
    assert message in err


@pytest.mark.parametrize("value", ['"x"', "[]", "{}", "true", "1e999", "1" + "0" * 400])
@pytest.mark.parametrize("key", ["duration", "edges", "shares", "lr"])
def test_values_of_a_protocol(run, tmp_path, key, value):
    text = json.dumps(PROTOCOL | {key: "@"}).replace('"@"', value)
    (tmp_path / "p.json").write_text(text)
    refused(run("evaluate problem.toml --protocol p.json"), f"p.json: `{key}` expects")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"protocol": null}', "p.json: `protocol` expects a JSON object, got None"),
        ('{"duration": null, "shares": [[1]], "lr": 1}', "`duration` expects a finite number"),
        (DEEP, "p.json: brackets are nested too deeply"),
        ('{"duration": 1, "shares": [[1, 0], [1]], "lr": 1}', "`shares` expects an array"),
        ('{"duration": 10, "shares": [[1, 0]], "lr": [[1], [1, 2]]}', "`lr` expects an array"),
        ("1" * 5000, "p.json: not a JSON file"),
        ("\udcff", "p.json: expects text in UTF-8"),
    ],
)
def test_json_that_is_no_protocol(run, tmp_path, text, message):
    (tmp_path / "p.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(run("evaluate problem.toml --protocol p.json"), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("share_1," + "x" * 140_000, "p.csv: not a CSV file"),
        ("start,end,share_1,lr\n0,1,1,x\n", "p.csv: line 2: `lr` expects a finite number, got 'x'"),
        ("start,end,share_1,lr\n0,1,1\n", "p.csv: line 2 expects 4 numbers, got 3"),
        (
            "start,end,share_1,lr\n0,1," + "9" * 100_000 + ",1\n",
            "line 2: `share_1` expects a finite number",
        ),
    ],
)
def test_csv_that_is_no_protocol(run, tmp_path, text, message):
    (tmp_path / "p.csv").write_text(text)
    refused(run("evaluate problem.toml --protocol p.csv"), message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden = 2", f"hidden = {DEEP}", "problem.toml: brackets are nested too deeply"),
        ("hidden = 2", "hidden = 10000", "`model.hidden` = 10000 and 2 teacher units need about"),
        (
            "hidden = 2",
            f"hidden = {10**30}",
            "`model.hidden` expects an integer of at least 1 and at",
        ),
        (
            "hidden = 2",
            "hidden = 2\ntasks = 100000",
            "`model.hidden` = 2 and 100000 teacher units need",
        ),
        ("steps = 40", f"steps = {10**30}", "`training.steps` expects an integer"),
        (
            "duration = 60.0",
            "duration = 1e300",
            "`start.pretrain.duration` expects a finite number above 0 and at most",
        ),
        ("seed = 1", f"seed = {10**30}", "seed` expects an integer"),
        ("duration = 10.0", f"duration = 1{'0' * 400}", "training.duration"),
    ],
)
def test_values_of_a_problem(run, tmp_path, old, new, message):
    path = tmp_path / "problem.toml"
    path.write_text(path.read_text().replace(old, new))
    refused(run("evaluate problem.toml --strategy interleaved"), message)


def test_a_byte_order_mark_is_no_mistake(run, tmp_path):
    for name in ("problem.toml", "p.json"):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert run("evaluate problem.toml --protocol p.json")[0] == 0


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/stdin", "pipe.json"])
def test_what_may_never_end_is_not_read(run, tmp_path, name):
    os.mkfifo(tmp_path / "pipe.json")
    if name == "pipe.json":
        found = run("evaluate problem.toml --protocol pipe.json")
    elif name == "/dev/stdin" and os.path.isfile(name):
        pytest.skip("a file here")
    else:
        found = run(f"evaluate {name} --strategy interleaved")
    refused(found, f"{name}: expects a regular file, got a device or a pipe")


def test_a_large_file_is_not_read(run, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST", 1_000_000)
    with (tmp_path / "problem.toml").open("wb") as file:
        file.truncate(10**12)  # no bytes on the disk
    found = run("evaluate problem.toml --strategy interleaved")
    refused(found, "problem.toml: expects a file of at most 1 MB, got 1000000 MB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"--seeds {10**9}", "`--seeds` = 1000000000 and `dimension` = 20000 need about"),
        (
            f"--dimension {10**18}",
            "`--dimension` expects fewer than 2^53 samples, duration × dimension, got 1e+19",
        ),
        (f"--dimension {10**9} --engine full", "`dimension` = 1000000000 need about"),
        (f"--seed {10**30}", "seed` expects an integer"),
        (f"--dimension {10**30}", "`--dimension` expects an integer"),
    ],
)
def test_sizes_of_a_simulation(run, monkeypatch, options, message):
    monkeypatch.setattr(memory, "free", lambda: 2e10)
    refused(run(f"simulate fresh.toml --strategy interleaved {options}"), message)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ChildProcessError("a worker process was killed: is there enough memory?"), "was killed"),
        (MemoryError("Unable to allocate 14.6 TiB"), "not enough memory: Unable to allocate 14.6"),
        (MemoryError(), "not enough memory: try smaller sizes"),
    ],
)
def test_what_the_machine_cannot_do_is_no_bug(run, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(replan, "evaluate", fail)
    code, _, err = run("evaluate fresh.toml --strategy interleaved")
    assert code == 1
    assert message in err
    assert len(err.splitlines()) == 1


def test_messages_are_short(run):
    code, _, err = run(f"evaluate {'x' * 200}/{'y' * 3000}.toml --strategy interleaved")
    assert code == 2
    assert len(err) < 500
    assert err.startswith("replan: xxx")
    assert err.endswith(".toml: No such file or directory\n")


def test_names_that_are_not_text(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["replan", "new", "\udcff.toml"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "compare �.toml" in capsys.readouterr().out


# What takes long is told


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, ""), (100, "100 s"), (430, "7 minutes"), (9000, "2 hours"), (1e6, "10 days"),
     (1e12, "30,000 years")],
)  # fmt: skip
def test_durations_are_rough(capsys, seconds, text):
    _time._tell(seconds)
    expected = f"replan: this takes very roughly {text}; Ctrl-C ends it\n" if text else ""
    assert capsys.readouterr().err == expected


def test_long_work_is_told_before_it_begins(run, monkeypatch):
    def begin(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(_time, "_LONG", 0.0)
    for name in ("evaluate", "simulate", "solve", "compare"):
        monkeypatch.setattr(replan, name, begin)
    for line in ("evaluate {} --strategy no-replay", "simulate {} --strategy no-replay",
                 "solve {}", "compare {}"):  # fmt: skip
        monkeypatch.setattr(_time, "_measure", lambda call: call() is None or 1.0)
        code, _, err = run(line.format("fresh.toml"))
        assert code == 130
        assert "this takes very roughly" in err


def test_of_many_slow_tasks_one_is_measured(problem, monkeypatch):
    """All of them may take minutes, in which nothing would be told."""
    rolled, each, roll_out = [], [0.9], type(problem.model).roll_out

    def noted(self, start, pieces):
        rolled.append(int(np.count_nonzero(pieces.shares)))
        return roll_out(self, start, pieces)

    monkeypatch.setattr(type(problem.model), "roll_out", noted)
    monkeypatch.setattr(_time, "_measure", lambda call: call() is None or each[0])
    assert _time._integration(problem, 1) == pytest.approx(2 * 0.9 * problem.steps)
    assert rolled == [1]
    each[0] = 0.01
    assert _time._integration(problem, 1) == pytest.approx(0.01 * problem.steps)
    assert rolled == [1, 1, 2]
