"""The group of commands: help, errors and their exit codes, Ctrl-C, imports."""

import json
import os
import subprocess
import sys
import warnings

import pytest

import replan
from replan import cli

HELP = ("", "new", "compare", "solve", "levers", "evaluate", "simulate", "export")


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


def test_version(run):
    assert run("--version")[1] == f"replan {replan.__version__}\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evaluate nope.toml --strategy no-replay", "nope.toml: No such file"),
        ("compare .", "`FILE` must be a file"),
        ("conpare problem.toml", "conpare"),
        ("evaluate problem.toml --strategi x", "--strategi"),
        (f"--import one{os.pathsep}two new", "`--import` must be"),
        ("compare --import own.py problem.toml", "`--import` goes before the command"),
        ("--import none.py new a.toml", "`--import` must be"),
        (f"evaluate {'x' * 200}/{'y' * 3000}.toml", "No such file or directory"),
    ],
)
def test_mistakes_are_one_short_line_and_exit_code_2(run, line, words):
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert len(err) < 500
    assert err.startswith("replan: ")
    assert words in err


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("hidden = 2", "hiden = 2", "model.hiden"),
        ("hidden = 2", f"hidden = {10**30}", "model.hidden"),
        ("steps = 8", f"steps = {10**30}", "training.steps"),
        ("duration = 2.0", f"duration = 1{'0' * 400}", "training.duration"),
        ("seed = 1", f"seed = {10**30}", "start.pretrain.seed"),
    ],
)
def test_a_mistake_in_a_file_names_the_key(refused, tmp_path, old, new, name):
    path = tmp_path / "problem.toml"
    path.write_text(path.read_text().replace(old, new))
    refused("evaluate problem.toml --strategy no-replay", name)


@pytest.mark.parametrize("text", ["\xff", "hidden = " + "[" * 100_000, "x"])
def test_files_that_are_not_toml(run, tmp_path, text):
    (tmp_path / "problem.toml").write_bytes(text.encode("latin-1"))
    code, _, err = run("evaluate problem.toml --strategy no-replay")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "problem.toml" in err


OUTPUTS = {
    "solve problem.toml": ["json", "plot"],
    "evaluate problem.toml --strategy no-replay": ["json", "csv", "plot"],
    "simulate problem.toml --strategy no-replay": ["json", "csv", "plot"],
    "compare problem.toml": ["json", "csv", "plot"],
    "levers problem.toml": ["json", "csv", "plot"],
}


@pytest.mark.parametrize("command", OUTPUTS)
def test_outputs_are_checked_before_the_work(run, refused, tmp_path, monkeypatch, command):
    def work(*_, **__):
        raise AssertionError("the work began")

    monkeypatch.setattr(replan, command.split()[0], work)
    for option in OUTPUTS[command]:
        ending = {"plot": "png"}.get(option, option)
        (tmp_path / f"folder.{ending}").mkdir(exist_ok=True)
        for path in ("a.xyz", f"gone/a.{ending}", f"folder.{ending}", "/dev/null"):
            refused(f"{command} --{option} {path}", f"--{option}")
    for name in ("compare", "levers"):
        (tmp_path / f"problem-{name}.png").mkdir(exist_ok=True)
    if command.split()[0] in ("compare", "levers"):
        refused(command, "--plot")


def test_a_plan_is_written_before_it_is_shown(run, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left")

    monkeypatch.setattr("replan.cli._options.click.echo", full)
    with pytest.raises(OSError, match="No space left"):  # shown by the same `echo`
        run("solve fresh.toml --max-gradients 5 --json plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["settings"]["file"]["training"]["steps"] == 8


def test_what_the_machine_cannot_do_is_no_bug(run, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(replan, "evaluate", fail)
    code, _, err = run("evaluate fresh.toml --strategy interleaved")
    assert (code, len(err.splitlines())) == (1, 1)


def test_names_that_are_not_text(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["replan", "new", "\udcff.toml"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "compare \ufffd.toml" in capsys.readouterr().out


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


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line(run, monkeypatch):
    monkeypatch.setattr(
        replan, "compare", lambda *_, **__: warnings.warn("look\nout", stacklevel=1)
    )
    err = run("compare fresh.toml")[2]  # with the place of the code, which is not replan's
    assert "replan: warning: UserWarning in " in err
    assert f"{os.path.basename(__file__)}:" in err
    assert "look out\n" in err


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("replan.cli._app", "new"),
        ("click", "new"),
        ("numpy", "compare fresh.toml"),
        ("replan.control.search", "solve fresh.toml"),
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
    """Until `main` runs, Ctrl-C ends in a traceback; help needs no library."""
    program = (
        "import sys; before = set(sys.modules); from replan.cli import main; "
        "print(sorted(set(sys.modules) - before)); import replan.cli._app; "
        "slow = ('numpy', 'pandas', 'tqdm', 'importlib.metadata', 'concurrent.futures'); "
        "print([name for name in slow if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "['replan', 'replan.cli']\n[]\n", done.stderr


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("solve fresh.toml --json o.json", []),
        ("evaluate fresh.toml --strategy focus-then-replay", []),
        ("compare fresh.toml --strategy shuffled", ["matplotlib"]),  # which draws
        ("evaluate fresh.toml --strategy no-replay --csv o.csv", ["pandas"]),
    ],
)
def test_commands_load_what_they_need(run, tmp_path, line, needed):
    program = (
        "import sys; from replan.cli._app import run; code = run(); "
        "heavy = ('matplotlib', 'pandas', 'scipy.optimize', 'scipy.stats', 'jax', 'tqdm'); "
        "print([name for name in heavy if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *line.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == str(needed), done.stderr
