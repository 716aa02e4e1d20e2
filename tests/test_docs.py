"""What the documents show runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from documented import check_notebook
from replan import Problem

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("guide", "levers", "models", "start-control", "start-theorist", "studies")
    ),
]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(page, "python"))
    assert code
    exec(compile(code, page.name, "exec"), {})


@pytest.mark.parametrize("name", ["paper", "own-model"])
def test_a_notebook_runs_and_says_what_is_stored(name):
    check_notebook(name)


def test_the_readme_begins_with_two_commands_and_has_a_picture():
    text = PAGES[0].read_text(encoding="utf-8")
    first = text.split("```sh\n")[1].splitlines()
    assert [line.split()[1] for line in first[:2]] == ["demo", "test"]
    assert "](docs/images/plan.png)" in text


def test_shell_lines_of_the_command_line_run(tmp_path):
    lines = [
        line.partition("#")[0].split()
        for block in blocks(ROOT / "docs" / "command-line.md", "sh")
        for line in block.splitlines()
        if line.startswith("replan ")
    ]
    assert len(lines) == 8
    for _, *words in lines:
        program = "from replan.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, *words], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_the_documented_sweep_runs_as_a_script(tmp_path):
    [code] = blocks(ROOT / "docs" / "sweeps.md", "python")
    (tmp_path / "mine.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == len(list((tmp_path / "cache").iterdir())) == 4


def test_the_documented_problem_file_loads(tmp_path):
    [text] = blocks(ROOT / "docs" / "problem-file.md", "toml")
    (tmp_path / "problem.toml").write_text(text)
    assert Problem.load(tmp_path / "problem.toml").model.tasks == 2


def test_links_lead_somewhere():
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
    for page in [*top, *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
