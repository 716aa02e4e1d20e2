"""The group of commands: help, errors and their exit codes, Ctrl-C, imports."""

import os
import subprocess
import sys
import warnings

import pytest

import replan

HELP = (
    "",
    "new",
    "compare",
    "solve",
    "levers",
    "evaluate",
    "simulate",
    "study",
    "figure",
    "data fetch",
    "train",
)


@pytest.mark.parametrize("command", HELP)
def test_help(run, command):
    code, out, err = run(f"{command} --help")
    assert (code, err) == (0, "")
    assert "Example" in out
    assert "\\b" not in out
    assert "\n    replan " in out  # an example has a line of its own
    assert max(len(text) for text in out.splitlines()) <= 80


def test_without_a_command_there_is_help(run):
    assert run("") == run("--help")
    assert "..." not in run("")[1].partition("Commands:")[2]  # every summary is whole


def test_help_lists_the_words_that_the_library_knows(run):
    for line, words in {
        "evaluate": replan.strategies.STRATEGIES,
        "solve": replan.control.METHODS,
    }.items():
        assert f"One of {', '.join(words)}." in " ".join(run(f"{line} --help")[1].split())
    paper = replan.paper
    names = ", ".join([*paper.FIGURES, *paper.IMAGE_FIGURES, *paper.LONG_FIGURES])
    text = " ".join(run("figure --help")[1].split()).replace("- ", "-")  # across lines
    assert f"NAME is one of {names}." in text


def test_version(run):
    assert run("--version")[1] == f"replan {replan.__version__}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("evaluate nope.toml --strategy no-replay", "nope.toml: No such file"),
        ("compare .", "directory"),
        ("conpare problem.toml", "conpare"),
        ("evaluate problem.toml --strategi x", "--strategi"),
        ("--import one:two new", "`--import` expects a module or a file without ':' in its name"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(run, line, message):
    code, _, err = run(line.replace(":", os.pathsep))
    assert code == 2
    assert len(err.splitlines()) == 1
    assert err.startswith("replan: ")
    assert message.replace(":", os.pathsep, "--import" in line) in err


def test_a_mistake_in_the_file_names_the_key(run, tmp_path):
    path = tmp_path / "problem.toml"
    path.write_text(path.read_text().replace("hidden", "hiden"))
    code, _, err = run("evaluate problem.toml --strategy no-replay")
    assert code == 2
    assert err == "replan: problem.toml: `model.hiden` is not a known key, did you mean `hidden`?\n"


def test_an_internal_error_shows_no_traceback(run, monkeypatch):
    monkeypatch.setattr(replan, "evaluate", lambda *args, **settings: 1 / 0)
    monkeypatch.delenv("REPLAN_DEBUG", raising=False)
    code, _, err = run("evaluate problem.toml --strategy no-replay")
    assert code == 70
    assert err.startswith("replan: internal error, a bug in replan: ZeroDivisionError")


def test_imports_are_left_to_the_environment(run, write, monkeypatch):
    for name in ("mine.py", "models/own.py", "more.py"):
        write(name, "")
    monkeypatch.setenv("REPLAN_IMPORT", "")
    assert run("--import mine --import models/own.py new a.toml")[0] == 0
    assert os.environ["REPLAN_IMPORT"] == os.pathsep.join(["mine", "models/own.py"])
    assert run("--import more new b.toml")[0] == 0
    assert os.environ["REPLAN_IMPORT"] == os.pathsep.join(["mine", "models/own.py", "more"])
    assert run("new c.toml")[0] == 0
    assert os.environ["REPLAN_IMPORT"].endswith("more")
    for line in ("new d.toml", "compare nope.toml", "data fetch nothing", "figure readout"):
        code, _, err = run(f"--import none.py {line}")
        assert code == 2
        assert err.startswith("replan: `--import`, or REPLAN_IMPORT, expects modules and .py file")


def test_imports_go_before_the_command(run):
    for line in ("compare --import own.py problem.toml", "new --import=own.py"):
        code, out, err = run(line)
        name = line.split()[0]
        assert (code, out) == (2, "")
        expected = f"`--import` goes before the command: replan --import FILE {name} …"
        assert err == f"replan: {expected}\n"


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line(run, monkeypatch):
    monkeypatch.setattr(
        replan, "compare", lambda *_, **__: warnings.warn("look\nout", stacklevel=1)
    )
    assert "replan: look out\n" in run("compare fresh.toml")[2]


def test_stopping_a_compiled_kernel_is_stopping(run, monkeypatch):
    def interrupted(*args, **settings):
        inner = SystemError("returned a result with an exception set")
        inner.__cause__ = KeyboardInterrupt()
        raise SystemError("returned a result with an exception set") from inner

    monkeypatch.setattr(replan, "evaluate", interrupted)
    assert run("evaluate problem.toml --strategy no-replay")[::2] == (130, "replan: stopped\n")


STOPPED_AT = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
from replan.cli import main
main()
"""


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("replan.cli._app", "new"),
        ("click", "new"),
        ("replan.cli.train", "new"),
        ("numpy", "compare fresh.toml"),
        ("pydantic", "compare fresh.toml"),
        ("numba", "evaluate fresh.toml --strategy no-replay"),
        ("replan.control._search", "solve fresh.toml"),
        ("scipy", "solve fresh.toml"),
        ("matplotlib", "evaluate fresh.toml --strategy no-replay --plot o.png"),
    ],
)
def test_ctrl_c_while_python_imports_ends_in_one_line(run, tmp_path, module, line):
    """The signal comes at the moment when the module is about to be imported."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED_AT.format(module=module), *line.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    lines = [text for text in done.stderr.splitlines() if text]
    assert (done.returncode, lines) == (130, ["replan: stopped"])


def test_the_command_line_is_light():
    """Until `main` runs, Ctrl-C ends in a traceback; help and `new` need no library."""
    program = (
        "import sys; before = set(sys.modules); from replan.cli import main; "
        "print(sorted(set(sys.modules) - before)); import replan.cli._app; "
        "print([name for name in ('numpy', 'pydantic', 'pandas', 'tqdm') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "['replan', 'replan.cli']\n[]\n", done.stderr
