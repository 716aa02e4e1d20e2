"""Any input ends in an answer or in one clear line: exit code 70, a bug by definition, never.

A few hundred tries here; `REPLAN_FUZZ=10000 pytest -n 0 -s -o faulthandler_timeout=0
tests/cli/test_fuzz.py` makes that many, with the seed in `REPLAN_FUZZ_SEED` (by default a random
one), and prints both.
"""

import json
import os
import random
import re
import shutil
import string
import sys
import tomllib
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from replan import cli
from replan.problem import example

ASKED = "REPLAN_FUZZ" in os.environ  # else the same few tries each time
TRIES = int(os.environ.get("REPLAN_FUZZ", "200"))
SEED = int(os.environ.get("REPLAN_FUZZ_SEED", random.randrange(2**32) if ASKED else 0))

# Values that a person or a program gets wrong, most of them small: work must stay short.
words = st.text(string.printable + "äγ∞\u2028\udcff\0", max_size=12)
numbers = st.one_of(
    st.integers(-2, 5),
    st.sampled_from([10**3, 10**6, 10**9, 10**12, 2**63, 2**64, 10**30, 10**400, -(10**30)]),
    st.floats(-2, 6),
    st.sampled_from([float("nan"), float("inf"), -0.0, 1e-300, 1e300, 1e4, 0.1, 0.5]),
)
leaves = st.one_of(numbers, words, st.booleans(), st.none())
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)
deep = st.integers(1, 100_000).map("<{}>".format)  # so many brackets in the text of a file


PROBLEM = {
    "model": {"kind": "teacher-student", "hidden": 2, "similarity": 0.3, "tasks": 2,
              "noise": 0.0, "train_heads": True, "head_lr": 1.0, "activation": "erf",
              "teacher_activation": "erf",
              "teacher_heads": [[1.0, 0.0], [0.0, 1.0]]},
    "start": {"fresh": {"seed": 0, "dimension": 500, "weight_variance": 0.1,
                        "head_variance": 0.1, "heads": [[0.1, 0.2], [0.2, 0.1]]}},
    "training": {"duration": 1.0, "steps": 3, "lr": 0.5},
    "control": {"tasks": True, "lr": False},
    "objective": {"weights": [0.5, 0.5], "running": [0.1, 0.0], "targets": {"1": 0.1}},
    "limits": {"min_share": [0.0, 0.0], "max_share": [1.0, 1.0], "min_dwell": 0.0,
               "max_switches": 2},
}  # fmt: skip
STARTS = [
    {"pretrain": {"task": 1, "duration": 2.0, "lr": 1.0, "seed": 1}},
    {"Q": [[1.0, 0.1], [0.1, 1.0]], "M": [[0.1, 0.0], [0.0, 0.1]], "V": [[0.1, 0.2], [0.3, 0.1]]},
    {"fresh": {}},
]
KINDS = ["curriculum", "dropout", "denoising"]
PROTOCOL = {
    "duration": 1.0, "edges": [0.0, 0.5, 1.0], "shares": [[1.0, 0.0], [0.5, 0.5]], "lr": [0.5, 1.0]
}  # fmt: skip
STUDY = {
    "model": {"hidden": 2, "similarity": 0.3},
    "start": {"fresh": {"seed": 0}},
    "training": {"duration": 1.0, "steps": 3, "lr": 1.0},
    "axes": {"model.similarity": [0.1, 0.3], "training.lr": [0.5, 1.0], "start.fresh.seed": [0]},
    "run": {"strategies": ["no-replay", {"strategy": "one-task", "task": 2, "name": "x"}]},
}
CLAIM = {
    "statement": "s", "criterion": "c", "held": [True, None], "numbers": {"x": [1.0, None]},
    "over": "seed", "always": False, "verdict": "holds",
}  # fmt: skip
CLAIMS = {"figures": {"readout": {"command": "c", "settings": {"a": [1]}, "unconverged": 0,
                                  "claims": [CLAIM]}}}  # fmt: skip
HEADER = ["start", "end", "share_1", "share_2", "lr"]
ROWS = [[0, 0.5, 1, 0, 0.5], [0.5, 1, 0.5, 0.5, 1]]


# Mutations of a valid file


def places(content, path=()):
    """Yield the path of everything in nested lists and dicts."""
    inner = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in inner:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def changed(content, path, change):
    """Return a copy in which the thing at a path is changed: change(container, key)."""
    copy = json.loads(json.dumps(content))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    change(inside, path[-1])
    return copy


@st.composite
def mutated(draw, content):
    """Give a valid content with a few things replaced, left out, renamed, doubled or added."""
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 1, 1, 2]))):
        found = list(places(content))
        if not found:
            break
        path = draw(st.sampled_from(found))
        what = draw(
            st.sampled_from(["replace", "replace", "replace", "remove", "rename", "repeat"])
        )
        new = draw(st.one_of(values, values, values, deep))
        name = draw(words)

        def change(inside, key, what=what, new=new, name=name):
            if what == "replace":
                inside[key] = new
            elif what == "remove":
                del inside[key]
            elif what == "repeat":
                inside[key] = [inside[key]] * 2
            elif isinstance(inside, dict):
                inside[name] = inside.pop(key)
            else:
                inside.append(new)

        content = changed(content, path, change)
    return content


def toml(value):
    """Return a value in TOML, or text that is nearly so where TOML has no such value."""
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "null"
        case str():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            pairs = (f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items())
            return f"{{ {', '.join(pairs)} }}"
    return str(value) if not isinstance(value, int) or abs(value) < 10**4000 else "1" * 5000


def problem_text(content):
    if not all(isinstance(section, dict) for section in content.values()):
        return "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in content.items())
    return "\n".join(
        f"[{json.dumps(name)}]\n"
        + "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in section.items())
        for name, section in content.items()
    )


@st.composite
def spoiled(draw, text):
    """Give a file's bytes, now and then cut, with a byte order mark, or with other bytes in it."""
    text = re.sub('"?<([0-9]+)>"?', lambda found: "[" * int(found[1]) + "]" * int(found[1]), text)
    data = text.encode("utf-8", "surrogatepass")
    what = draw(st.integers(0, 49))
    if what == 0:
        data = data[: draw(st.integers(0, len(data)))]
    elif what == 1:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=8)) + data[at:]
    elif what == 2:
        data = b"\xef\xbb\xbf" + data
    elif what == 3:
        data = draw(st.binary(max_size=64))
    return data


def short_example(kind):
    """Give the example of a kind of model, trained for a short time."""
    content = tomllib.loads(example(kind))
    return content | {"training": content["training"] | {"duration": 1.0, "steps": 4}}


@st.composite
def problem_files(draw):
    kind = draw(st.sampled_from([None] * 6 + KINDS))
    if kind is not None:
        return draw(mutated(short_example(kind)).map(problem_text).flatmap(spoiled))
    content = {name: dict(section) for name, section in PROBLEM.items()}
    if draw(st.booleans()):  # in full, or the shortest that there is
        content = {name: content[name] for name in ("model", "start", "training")}
        content["model"] = {"hidden": 2, "similarity": 0.3}
    content["start"] = draw(st.sampled_from([content["start"], *STARTS]))
    if draw(st.booleans()) and "control" in content:
        content["control"] = {"tasks": True, "lr": {"min": 0.1, "max": 2.0}}
    return draw(mutated(content).map(problem_text).flatmap(spoiled))


@st.composite
def protocol_files(draw):
    """Give the ending and the bytes of a protocol or of a result with one."""
    if draw(st.booleans()):
        knobs = PROTOCOL | {"knobs": {"noise": [0.1, 0.3], "keep": 0.5}}
        wrapped = draw(st.sampled_from([PROTOCOL, {"protocol": PROTOCOL}, knobs]))
        return ".json", draw(mutated(wrapped).map(json.dumps).flatmap(spoiled))
    rows = draw(mutated([HEADER, *ROWS]))
    long = "x" * draw(st.sampled_from([0, 0, 0, 140_000]))
    cells = [row if isinstance(row, list) else [row] for row in rows]
    text = "\n".join(",".join(map(_cell, row)) for row in cells) + long
    return ".csv", draw(spoiled(text))


def _cell(value):
    return str(value) if not isinstance(value, int) else json.dumps(value)[:4000]


# Options

small = st.one_of(st.integers(-1, 3).map(str), values.map(json.dumps), words)
strategy_names = st.sampled_from([
    "interleaved", "no-replay", "one-task", "alternating", "random-order", "sequential",
    "focus-then-replay", "shuffled", "constant-lr", "interleavd",
])  # fmt: skip
keys = st.sampled_from(["shares", "focus", "seed", "task", "order", "new-task", "after", "x", ""])
assignments = st.one_of(st.tuples(keys, small).map("=".join), words)


def maybe(name, value):
    """Give an option with a value, or nothing."""
    return st.integers(0, 5).flatmap(
        lambda which: st.just([]) if which else value.map(lambda given: [name, given])
    )


def options(*parts):
    return st.tuples(*parts).map(lambda found: [word for part in found for word in part])


JSONS = ["o.json", "o.json", "o.json", "no/o.json", "o.txt", ".", "a" * 300 + ".json"]
OUT = [
    maybe("--json", st.sampled_from(JSONS)),
    maybe("--csv", st.sampled_from(["o.csv", "o.csv", "o", "/dev/null/o.csv"])),
]
CHOICE = [
    st.one_of(strategy_names.map(lambda name: ["--strategy", name]), st.just([])),
    maybe("--set", assignments),
]
PROTOCOL_FILE = st.sampled_from([[], ["--protocol", "p"]])  # its ending is added
BAD = st.sampled_from(["0", "-1", "1.5", '"x"', "[]", "{}", "null", "true", "1e400", "1" * 30, ""])
FILE = st.sampled_from([["problem.toml"]] * 30 + [["."], ["/dev/zero"], ["nope.toml"], ["pipe"]])

commands = st.one_of(
    options(st.just(["evaluate"]), FILE, *CHOICE, PROTOCOL_FILE, maybe("--at", small),
            maybe("--rtol", small), *OUT),
    options(st.just(["evaluate"]), FILE, st.just(["--protocol", "p"])),
    options(st.sampled_from([["compare"], ["evaluate"], ["solve"]]), FILE, OUT[0]),
    options(st.just(["simulate"]), FILE, *CHOICE, PROTOCOL_FILE,
            st.sampled_from(["20", "20", "20", "50", "4", "-3", "x", "1e3", "1" * 40]).map(
                lambda n: ["--dimension", n]),
            st.sampled_from(["1", "2", "0", "1" * 12, "1" * 5000]).map(lambda n: ["--seeds", n]),
            maybe("--seed", small), maybe("--order", words),
            maybe("--engine", st.sampled_from(["full", "reduced", "x", ""])), *OUT),
    options(st.just(["solve"]), FILE,
            st.sampled_from(["flips", "relax", "sweep", "exhaustive", "x"]).map(
                lambda name: ["--method", name]),
            maybe("--starts", st.sampled_from(["0", "1", "-1", "x", "1" * 5000])),
            maybe("--seed", small), maybe("--tolerance", small), PROTOCOL_FILE,
            st.sampled_from(["3", "1", "9", "-1", "x"]).map(lambda n: ["--max-gradients", n]),
            OUT[0]),
    options(st.just(["figure", "readout", "--quick", "--out", "made", "--workers", "1", "--set"]),
            values.map(json.dumps).map(lambda text: [f"similarities={text}"])),
    options(st.just(["figure"]), st.sampled_from([["similarity"], ["multitask"], ["x"]]),
            st.just(["--quick", "--out", "made", "--set"]),
            st.tuples(st.sampled_from(["seeds", "steps", "lr", "x", "similarities"]), BAD).map(
                lambda pair: ["=".join(pair)])),
    options(st.just(["figure", "readout", "--quick", "--out", "made"]),
            maybe("--seeds", BAD), maybe("--workers", BAD), st.just(["--set", "similarities=2"])),
    options(st.just(["study", "study.toml", "--workers", "1"]),
            maybe("--x", st.sampled_from(["lr", "start.fresh.seed", "training.lr", ""]))),
    options(st.just(["study"]), FILE, maybe("--workers", BAD), st.just(["--out", "pipe"])),
    options(st.just(["new"]), words.map(lambda name: [name.replace("/", "")])),
    options(st.just(["data", "fetch"]), words.map(lambda name: [f"x{name}"])),
    options(st.just(["train"]), maybe("--pairs", words), maybe("--data", words),
            maybe("--seeds", small),
            st.just(["--root", "nowhere", "--out", "trained"])),
    st.lists(words, min_size=1, max_size=4),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module", autouse=True)
def counted():
    """Say which seed it was, and how many tries, where the tries were asked for."""
    tries = {}
    yield tries
    if ASKED:
        print(f"\nseed {SEED}: {tries}")


def run(folder, monkeypatch, capsys, words):
    """Run `replan …` in a folder; give the exit code, the output and the errors."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("REPLAN_IMPORT", "")
    monkeypatch.setattr(sys, "argv", ["replan", *words])
    with pytest.raises(SystemExit) as stopped, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's of numbers out of range are shown, no more
        cli.main()
    shown = capsys.readouterr()
    return stopped.value.code, shown.out, shown.err


@seed(SEED)
@settings(
    max_examples=TRIES,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a failure is reported as it is: shrinking takes long
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(command=commands, problem=problem_files(), protocol=protocol_files(),
       claims=mutated(CLAIMS).map(json.dumps).flatmap(spoiled),
       study=mutated(STUDY).map(problem_text).flatmap(spoiled))  # fmt: skip
def test_any_input(folder, monkeypatch, capsys, counted, command, problem, protocol, claims, study):
    shutil.rmtree(folder)
    (folder / "made").mkdir(parents=True)
    (folder / "problem.toml").write_bytes(problem)
    (folder / "study.toml").write_bytes(study)
    (folder / f"p{protocol[0]}").write_bytes(protocol[1])
    os.mkfifo(folder / "pipe")
    if claims:
        (folder / "made" / "claims.json").write_bytes(claims)
    before = {path for path in folder.rglob("*") if path.is_file()}
    command = [f"p{protocol[0]}" if word == "p" else word for word in command]
    code, out, err = run(folder, monkeypatch, capsys, command)
    counted[code] = counted.get(code, 0) + 1
    where = f"replan {command!r}: {code}\n{err}\n{problem!r}\n{protocol!r}\n{claims!r}\n{study!r}"
    assert code in (0, 1, 2), where
    lines = err.splitlines()
    assert len(lines) <= 3, where
    assert all(len(line) <= 500 for line in lines), where
    assert "Traceback" not in err, where
    assert "bug" not in err, where
    if code:
        assert lines, where
        assert lines[-1].startswith("replan: "), where
        assert len(lines[-1]) > len("replan: ") + 3, where
    for path in {path for path in folder.rglob("*") if path.is_file()} - before:
        assert not path.name.endswith(".part"), where
        assert path.stat().st_size, where
        if path.suffix == ".json":
            json.loads(path.read_text())
    assert (code == 0) or "Traceback" not in out, where
