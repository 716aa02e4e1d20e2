"""Any input ends in an answer or in one clear line: exit code 70, a bug by definition, never."""

import json
import os
import shutil
import string
import sys
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from replan import cli

# Values that a person or a program gets wrong, most of them small: work must stay short.
words = st.text(string.printable + "äγ∞\u2028\udcff\0", max_size=12)
leaves = st.one_of(
    st.integers(-2, 5),
    st.sampled_from([10**9, 2**64, 10**400, -(10**30), 1e-300, 1e300, float("nan"), float("inf")]),
    st.floats(-2, 6),
    words,
    st.booleans(),
    st.none(),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)
PROBLEM = {
    "model": {"hidden": 2, "similarity": 0.3, "tasks": 2, "noise": 0.0, "activation": "erf"},
    "start": {"fresh": {"seed": 0, "dimension": 500, "weight_variance": 0.1}},
    "training": {"duration": 1.0, "steps": 3, "lr": 0.5, "arrivals": [0.0, 0.0]},
    "control": {"tasks": True, "lr": False},
    "objective": {"weights": [0.5, 0.5], "running": [0.1, 0.0], "targets": {"1": 0.1}},
    "limits": {"max_share": [1.0, 1.0], "max_switches": 2},
}
PROTOCOL = {"duration": 1.0, "shares": [[1.0, 0.0], [0.5, 0.5]], "lr": [0.5, 1.0]}
COMMANDS = [
    "evaluate problem.toml --strategy interleaved --set shares={} --json o.json",
    "evaluate problem.toml --strategy one-task --set task={} --csv o.csv",
    "evaluate problem.toml --protocol p.json --at {}",
    "evaluate problem.toml --strategy {}",
    "compare problem.toml --strategy no-replay --json {}",
    "simulate problem.toml --strategy shuffled --dimension 20 --runs 1 --seed {}",
    "simulate problem.toml --protocol p.json --dimension {} --runs 1",
    "solve problem.toml --max-gradients 3 --starts {}",
    "solve problem.toml --max-gradients {} --method flips",
    "new {}",
    "{}",
]


def places(content, path=()):
    """Yield the path of everything in nested lists and dicts."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


@st.composite
def mutated(draw, content):
    """Give a valid content with a few things replaced, left out or repeated."""
    content = json.loads(json.dumps(content))
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
        *path, key = draw(st.sampled_from(list(places(content)) or [()]))
        inside = content
        for step in path:
            inside = inside[step]
        change = draw(st.sampled_from(["replace", "replace", "remove", "repeat"]))
        if change == "remove":
            del inside[key]
        else:
            inside[key] = draw(values) if change == "replace" else [inside[key]] * 2
    return content


def toml(value):
    """Return a value in TOML, or text that is nearly so where TOML has no such value."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value) if isinstance(value, str | bool | None) else str(value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.slow
@settings(
    max_examples=200,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],  # a failure is reported as it is: shrinking takes long
    suppress_health_check=list(HealthCheck),
)
@given(
    command=st.sampled_from(COMMANDS),
    word=st.one_of(st.integers(-1, 3).map(str), values.map(json.dumps), words),
    problem=mutated(PROBLEM),
    protocol=mutated(PROTOCOL),
    cut=st.sampled_from([None] * 9 + [0.5]),
)
def test_any_input(folder, monkeypatch, capsys, command, word, problem, protocol, cut):
    shutil.rmtree(folder)
    folder.mkdir()
    text = "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in problem.items())
    for name, content in (("problem.toml", text), ("p.json", json.dumps(protocol))):
        data = content.encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(data if cut is None else data[: int(cut * len(data))])
    before = set(os.listdir(folder))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("REPLAN_IMPORT", "")
    options = [part.format(word.replace("/", "")) for part in command.split()]
    monkeypatch.setattr(sys, "argv", ["replan", *options])
    with pytest.raises(SystemExit) as stopped, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of numbers out of range
        cli.main()
    code, err = stopped.value.code, capsys.readouterr().err
    lines = err.splitlines()
    where = f"replan {options!r}: {code}\n{err}\n{problem!r}\n{protocol!r}"
    assert code in (0, 1, 2), where
    assert len(lines) <= 3, where
    assert all(len(line) <= 500 for line in lines), where
    assert not code or lines[-1].startswith("replan: "), where
    for name in set(os.listdir(folder)) - before:
        assert not name.endswith(".part"), where
