"""Outputs that cannot be written are refused before the work; what is finished is never lost."""

import errno
import json
import os
import tempfile

import pytest

import replan
from replan import files


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def work(*_, **__):
    raise AssertionError("the work began")


@pytest.fixture
def idle(monkeypatch):
    """Make every computation fail."""
    for name in ("solve", "evaluate", "simulate", "compare", "levers"):
        monkeypatch.setattr(replan, name, work)


COMMANDS = {
    "solve problem.toml": ["json", "plot"],
    "evaluate problem.toml --strategy no-replay": ["json", "csv", "plot"],
    "simulate problem.toml --strategy no-replay": ["json", "csv", "plot"],
    "compare problem.toml": ["json", "csv", "plot"],
    "levers problem.toml": ["json", "csv", "plot"],
}
OPTIONS = [(command, option) for command, options in COMMANDS.items() for option in options]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_every_output_is_checked_before_the_work(run, tmp_path, idle, monkeypatch, command, option):
    ending = {"plot": "png"}.get(option, option)
    (tmp_path / f"folder.{ending}").mkdir()
    (tmp_path / f"device.{ending}").symlink_to("/dev/full")
    bad = ["a.xyz", f"gone/a.{ending}", f"folder.{ending}", f"device.{ending}", "x" * 300]
    bad[-1] += f".{ending}"
    for path in bad:
        code, out, err = run(f"{command} --{option} {path}")
        assert (code, out) == (2, "")
        assert err.startswith(f"replan: `--{option}` expects a file ")
        assert len(err.splitlines()) == 1
    monkeypatch.setattr(files.os, "fsync", full)
    code, _, err = run(f"{command} --{option} a.{ending}")
    assert (code, "(No space left on device)" in err) == (2, True)
    assert not list(tmp_path.glob(".replan-*"))


def test_the_picture_of_a_comparison_is_checked_before_the_work(run, tmp_path, idle):
    (tmp_path / "problem-compare.png").mkdir()
    code, _, err = run("compare problem.toml")
    assert (code, err) == (
        2,
        "replan: `--plot` expects a file that can be written, got 'problem-compare.png' "
        "(Is a directory)\n",
    )


def test_a_plan_is_kept_elsewhere_if_the_disk_fills_up_meanwhile(
    run, tmp_path, monkeypatch, tmp_path_factory
):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    solve = replan.solve

    def solve_and_fill(*args, **kwargs):
        monkeypatch.setattr(files.os, "fsync", full)
        return solve(*args, **kwargs)

    monkeypatch.setattr(replan, "solve", solve_and_fill)
    code, _, err = run("solve fresh.toml --max-gradients 5 --json plan.json")
    [kept] = elsewhere.iterdir()
    assert (code, err) == (
        2,
        f"replan: plan.json: No space left on device; the result is kept in {kept}\n",
    )
    assert replan.Plan.load(kept).protocol.tasks == 2
    assert not (tmp_path / "plan.json").exists()


def test_a_plan_is_written_even_if_its_file_is_gone_and_nothing_can_be_shown(
    run, tmp_path, monkeypatch
):
    solve = replan.solve

    def solve_and_remove(*args, **kwargs):
        (tmp_path / "fresh.toml").unlink()
        return solve(*args, **kwargs)

    monkeypatch.setattr(replan, "solve", solve_and_remove)
    monkeypatch.setattr("replan.cli.solve.click.echo", full)
    with pytest.raises(OSError, match="No space left"):  # shown by the same `echo`
        run("solve fresh.toml --max-gradients 5 --json plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["settings"]["file"]["training"]["steps"] == 40


def test_a_new_problem_file_is_whole_or_not_there(run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        assert run("new mine.toml") == (2, "", "replan: mine.toml: No space left on device\n")
    assert run("new mine.toml")[0] == 0
    assert replan.Problem.load(tmp_path / "mine.toml").duration == 25.0
