"""What commands share: `--set`, the choice of a protocol, files of results."""

import json

import pytest

from replan import Problem, evaluate, strategies
from replan.cli._options import parse_settings


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        (".5", 0.5),
        ("1e-3", 1e-3),
        ("0.2,.8", [0.2, 0.8]),
        ("1,3", [1, 3]),
        ("[1, 3]", [1, 3]),
        ("true", True),
        ("null", None),
        ("unit", "unit"),
        ("a,b", "a,b"),
        ("1,", "1,"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_a_value_is_json_or_numbers_or_a_word(text, value):
    parsed = parse_settings([f"new-task={text}"])
    assert parsed == {"new_task": value}
    assert type(parsed["new_task"]) is type(value)


@pytest.mark.parametrize("text", ["seed", "=3", ""])
def test_a_setting_without_key_or_value_is_refused(text):
    with pytest.raises(ValueError, match=f"`--set` expects KEY=VALUE, got '{text}'"):
        parse_settings([text])


@pytest.mark.parametrize(
    ("setting", "build"),
    [
        ("one-task --set task=2", lambda p: strategies.one_task(p, task=1)),
        ("no-replay --set new-task=1", lambda p: strategies.no_replay(p, new_task=0)),
        (
            "interleaved --set shares=0.2,0.8",
            lambda p: strategies.interleaved(p, shares=[0.2, 0.8]),
        ),
        ("sequential --set order=2,1", lambda p: strategies.sequential(p, order=[1, 0])),
        ("alternating --set order=2", lambda p: strategies.one_task(p, task=1)),
        ("focus-then-replay --set focus=3", lambda p: strategies.focus_then_replay(p, focus=3)),
        (
            "exponential-lr --set initial=2 --set scale=5",
            lambda p: strategies.exponential_lr(p, initial=2, scale=5),
        ),
    ],
)
def test_settings_of_strategies_count_tasks_from_one(run, tmp_path, setting, build):
    code, _, err = run(f"evaluate problem.toml --strategy {setting} --json o.json")
    assert (code, err) == (0, "")
    problem = Problem.load("problem.toml")
    value = json.loads((tmp_path / "o.json").read_text())["value"]
    assert value == evaluate(problem, build(problem)).loss


def test_one_number_is_a_list_where_a_list_is_expected(run):
    assert run("evaluate one.toml --strategy interleaved --set shares=1")[0] == 0


OWN = """
from __future__ import annotations

from typing import TYPE_CHECKING

from replan import strategies
from replan.strategies import strategy

if TYPE_CHECKING:
    from nowhere import Thing

@strategy
def own(problem: Thing, *, part=0.2, flag: bool = False, count: int = 3, word="a",
        most: int | None = None, values=(1, 2), free=None):
    print(f"got {part!r} {flag!r} {count!r} {word!r} {most!r} {values!r} {free!r}")
    return strategies.interleaved(problem)

@strategy
def plain(problem, *, part=0.2, flag: bool = False, count: int = 3, task: strategies.Task = 0):
    print(f"got {part!r} {flag!r} {count!r} {task!r}")
    return strategies.interleaved(problem)
"""


@pytest.fixture
def run_own(run, write, monkeypatch):
    """Run `replan evaluate` with a strategy of one's own."""
    known = dict(strategies.STRATEGIES)
    monkeypatch.setenv("REPLAN_IMPORT", "own_strategies")
    write("own_strategies.py", OWN)
    yield lambda options: run(f"evaluate fresh.toml --strategy {options}")
    strategies.STRATEGIES.clear()
    strategies.STRATEGIES.update(known)


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ("own", "0.2 False 3 'a' None (1, 2) None"),
        ("own --set part=0.5 --set flag=true --set count=4", "0.5 True 4 'a' None (1, 2) None"),
        ("own --set part=1 --set word=b --set most=null", "1.0 False 3 'b' None (1, 2) None"),
        ("own --set values=3 --set free=4.5", "0.2 False 3 'a' None [3] 4.5"),
        ("plain --set part=0.5 --set flag=true --set task=2", "0.5 True 3 1"),
    ],
)
def test_settings_of_ones_own_are_converted(run_own, options, got):
    code, out, err = run_own(options)
    assert (code, err) == (0, "")
    assert f"got {got}\n" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("own --set part=x", "`--set part` expects a finite number, got 'x'"),
        ("own --set part=1,2", "`--set part` expects a finite number, got [1, 2]"),
        ("own --set part=NaN", "`--set part` expects a finite number, got nan"),
        ("own --set word=3", "`--set word` expects a word, got 3"),
        ("plain --set flag=1", "`--set flag` expects true or false, got 1"),
        ("plain --set count=abc", "`--set count` expects an integer, got 'abc'"),
        ("plain --set count=4.5", "`--set count` expects an integer, got 4.5"),
        ("plain --set count=true", "`--set count` expects an integer, got True"),
        ("plain --set task=3", "`--set task` expects a task from 1 to 2, got 3"),
    ],
)
def test_settings_of_ones_own_that_do_not_fit_are_refused(run_own, options, message):
    assert run_own(options)[::2] == (2, f"replan: {message}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--strategy interleavd", "did you mean `interleaved`?"),
        ("", "`--strategy` or `--protocol` is missing"),
        (
            "--strategy no-replay --set shares=1,0",
            "`--set` expects KEY=VALUE with a key of no-replay (new_task), got the key 'shares'",
        ),
        ("--strategy shuffled --set protocol=p.json", "a key of shuffled (after, seed), got"),
        ("--strategy one-task --set task=3", "`--set task` expects a task from 1 to 2"),
        (
            "--strategy one-task --set task=0",
            "`--set task` expects an integer of at least 1, got 0",
        ),
        ("--strategy one-task --set task=x", "`--set task` expects an integer"),
        ("--strategy one-task --set task=1,2", "`--set task` expects an integer"),
        (
            "--strategy sequential --set order=1,x",
            "`--set order` expects numbers separated by commas",
        ),
        ("--strategy sequential --set order=1,1.5", "`--set order` expects an integer"),
        (
            "--strategy sequential --set order=1,3",
            "`--set order` expects a task from 1 to 2, got 3",
        ),
        ("--strategy interleaved --set shares=0.2,0.2", "sum to 1, got a sum"),
        (
            "--strategy interleaved --set shares=a",
            "`--set shares` expects numbers separated by commas",
        ),
        ("--strategy interleaved --set shares", "expects KEY=VALUE"),
        ("--strategy focus-then-replay --set focus=x", "`--set focus` expects a finite number"),
        ("--strategy random-order --set seed=1.5", "`--set seed` expects an integer"),
        ("--strategy one-task --set task=1 --set task=2", "each key once"),
        ("--set task=1", "`--set` goes with `--strategy`"),
        ("--strategy no-replay --json no/o.json", "`--json` expects a file in a folder that"),
        ("--strategy no-replay --json o.txt", "ends in .json, got 'o.txt'"),
        ("--strategy no-replay --plot o.xyz", "ends in .png or .pdf or .svg"),
        ("--protocol problem.toml", "`--protocol` expects a file name that ends in .json or .csv"),
        ("--protocol three.json", "`--protocol` expects a protocol of 2 tasks, got 3"),
        ("--protocol nope.json", "nope.json: No such file"),
        (
            "--strategy no-replay --protocol p.json",
            "`--protocol` does not go with `--strategy no-replay`",
        ),
    ],
)
def test_mistakes_are_refused(run, options, message):
    code, out, err = run(f"evaluate problem.toml {options}")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err
