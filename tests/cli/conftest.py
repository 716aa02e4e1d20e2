import sys

import numpy as np
import pytest

from replan import cli
from replan.cli import _time

PROBLEM = """
[model]
hidden = 2
similarity = 0.3
[start]
pretrain = { task = 1, duration = 60.0, seed = 1 }
[training]
duration = 10.0
steps = 40
"""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run `replan …` in a folder with some files; give the exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_time, "_LONG", np.inf)  # whether work is long depends on the machine
    (tmp_path / "problem.toml").write_text(PROBLEM)
    (tmp_path / "wild.toml").write_text(PROBLEM + "lr = 1e9\n")
    (tmp_path / "fresh.toml").write_text(
        PROBLEM.replace("pretrain = { task = 1, duration = 60.0, seed = 1 }", "fresh = {}")
    )
    (tmp_path / "one.toml").write_text(
        PROBLEM.replace("similarity = 0.3", "teacher_overlaps = [[1.0]]")
    )
    (tmp_path / "p.json").write_text('{"duration": 10, "shares": [[1, 0]], "lr": [1]}')
    (tmp_path / "three.json").write_text('{"duration": 10, "shares": [[1, 0, 0]], "lr": [1]}')

    def run(line):
        monkeypatch.setattr(sys, "argv", ["replan", *line.split()])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr()
        return stopped.value.code, shown.out, shown.err

    return run
