import os
import sys

import pytest

from replan import cli

PROBLEM = """
[model]
hidden = 2
similarity = 0.3
[start]
pretrain = { task = 1, duration = 60.0, seed = 1 }
[training]
duration = 2.0
steps = 8
"""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `replan …` in a folder with some files; give the exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPLAN_IMPORT", os.environ.get("REPLAN_IMPORT", ""))  # undone in the end
    start = "pretrain = { task = 1, duration = 60.0, seed = 1 }"
    for name, text in {
        "problem.toml": PROBLEM,
        "wild.toml": PROBLEM + "lr = 1e9\n",
        "fresh.toml": PROBLEM.replace(start, "fresh = {}"),
        "one.toml": PROBLEM.replace("similarity = 0.3", "teacher_overlaps = [[1.0]]"),
        "ensemble.toml": PROBLEM
        + '[ensemble]\nrisk = "worst"\naxes = { "start.pretrain.seed" = [1, 2] }\n',
        "p.json": '{"duration": 2, "shares": [[1, 0]], "lr": [1]}',
        "three.json": '{"duration": 2, "shares": [[1, 0, 0]], "lr": [1]}',
    }.items():
        (tmp_path / name).write_text(text)

    def run(line):
        monkeypatch.setattr(sys, "argv", ["replan", *line.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run


@pytest.fixture
def refused(run):
    """Assert that a line is refused, in one short line that names an option or a key."""

    def refused(line, name):
        code, out, err = run(line)
        assert (code, out) == (2, ""), err
        assert len(err.splitlines()) == 1
        assert len(err) < 500
        assert f"`{name}` " in err, err

    return refused
