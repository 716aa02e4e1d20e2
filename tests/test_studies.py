"""Studies: the table against direct calls, what is computed again, failures, mistakes, pictures."""

import json
import signal
import tomllib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest

import replan
from replan import studies
from replan.errors import ArgumentError
from replan.problem.axes import span
from replan.studies import Study

FILE = """
[model]
hidden = 2
similarity = 0.3
[start]
pretrain = { task = 1, duration = 20.0 }
[training]
duration = 2.0
steps = 6
[axes]
model.similarity = [0.1, 0.6]
"start.pretrain.seed" = [0, 1]
[run]
strategies = [
    "no-replay",
    { strategy = "interleaved", shares = [0.2, 0.8], name = "one to four" },
    { strategy = "one-task", task = 2 },
]
solve = { starts = 1 }
"""
NAMES = ["no-replay", "one to four", "one-task (task=2)", "plan"]


def content(**changes):
    """The content of a small study, with whole sections changed."""
    made = {
        "model": {"hidden": 2, "similarity": 0.3},
        "start": {"fresh": {"seed": 0}},
        "training": {"duration": 2.0, "steps": 4},
        "axes": {"model.similarity": [0.1, 0.6]},
        "run": {"strategies": ["interleaved"]},
    }
    return {key: value for key, value in (made | changes).items() if value is not None}


def study(*args, **settings):
    return replan.study(*args, workers=1, **settings)


@pytest.fixture
def counted(monkeypatch):
    """The names of the runs that are computed, with workers=1."""
    calls, run_case = [], studies.run_case

    def call(**case):
        calls.append(case["run"].get("strategy", "solve"))
        return run_case(**case)

    call.__module__, call.__qualname__ = run_case.__module__, run_case.__qualname__
    monkeypatch.setattr(studies, "run_case", call)
    return calls


# The table


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.toml").write_text(FILE)
    return folder / "out", study(folder / "study.toml", folder / "out")


def test_every_run_on_every_problem_has_a_row(made):
    frame = made[1].to_frame()
    assert list(frame)[:4] == ["model.similarity", "start.pretrain.seed", "run", "value"]
    assert list(frame["run"]) == NAMES * 4
    assert list(frame["model.similarity"][::4]) == [0.1, 0.1, 0.6, 0.6]
    assert list(frame["start.pretrain.seed"][::4]) == [0, 1, 0, 1]
    assert frame["status"].isin(["ok", "converged"]).all()


@pytest.mark.parametrize(("similarity", "seed"), [(0.1, 0), (0.6, 1)])
def test_rows_are_what_direct_calls_give(made, similarity, seed):
    model = replan.TeacherStudent.similar(similarity)
    problem = replan.Problem(model, model.pretrain(0, 20.0, seed=seed), 2.0, steps=6)
    frame = made[1].to_frame()
    chosen = (frame["model.similarity"] == similarity) & (frame["start.pretrain.seed"] == seed)
    rows = frame[chosen].set_index("run")
    plan = replan.solve(problem, replan.Relax(starts=1))
    protocols = {
        "no-replay": replan.strategies.no_replay(problem),
        "one to four": replan.strategies.interleaved(problem, shares=[0.2, 0.8]),
        "one-task (task=2)": replan.strategies.one_task(problem, task=1),
        "plan": plan.protocol,
    }
    for name, protocol in protocols.items():
        run, row = replan.evaluate(problem, protocol), rows.loc[name]
        assert row["value"] == pytest.approx(run.loss, rel=1e-9)
        assert [row["loss_1"], row["loss_2"]] == pytest.approx(run.final_losses, rel=1e-9)
        assert [row["share_1"], row["share_2"]] == pytest.approx(protocol.mean_shares)
    for name in ("relaxed_value", "integrality_gap", "pmp_residual", "switches"):
        assert rows.loc["plan", name] == pytest.approx(getattr(plan.certificate, name), abs=1e-12)


def test_the_files_hold_it_all(made):
    folder, found = made
    table, frame = pd.read_csv(folder / "table.csv"), found.to_frame()
    assert list(table) == list(frame)
    assert list(table["run"]) == list(frame["run"])
    np.testing.assert_array_equal(table["value"], frame["value"])
    np.testing.assert_array_equal(table["pmp_residual"], frame["pmp_residual"])
    kept = json.loads((folder / "study.json").read_text())
    assert kept["replan"] == replan.__version__
    assert kept["axes"] == {"model.similarity": [0.1, 0.6], "start.pretrain.seed": [0, 1]}
    assert kept["runs"]["one to four"] == {"strategy": "interleaved", "shares": [0.2, 0.8]}
    assert kept["rows"] == found.rows
    row = kept["rows"][-1]
    problem = replan.Problem.from_dict(
        kept["problem"]
        | {
            "model": {"hidden": 2, "similarity": 0.6},
            "start": {"pretrain": {"task": 1, "duration": 20.0, "seed": 1}},
        }
    )
    protocol = replan.Protocol.from_dict(row["protocol"])
    assert replan.evaluate(problem, protocol).loss == pytest.approx(row["value"], rel=1e-9)
    assert (folder / "picture.png").stat().st_size > 1000


def test_it_is_shown_in_short(made):
    lines = str(made[1]).splitlines()
    assert lines[0].split() == ["run", "values", "median", "10", "%", "90", "%"]
    assert [line[:18].strip() for line in lines[1:]] == NAMES
    assert repr(made[1]) == "Study(16 rows over model.similarity, start.pretrain.seed)"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("objective.goal", ["final", "worst"]),
        ("objective.weights", [[0.5, 0.5], [0.9, 0.1]]),
        ("control.lr", [False, {"min": 0.0, "max": 2.0}]),
        ("start", [{"fresh": {"seed": 3}}, {"pretrain": {"task": 1, "duration": 3.0}}]),
        ("training.arrivals", [[0.0, 0.5], [0.0, np.inf]]),
    ],
)
def test_any_key_of_a_problem_file_can_be_an_axis(key, values):
    base = content()
    frame = study(content(axes={key: values})).to_frame()
    section, _, last = key.partition(".")
    for value, found in zip(values, frame["value"], strict=True):
        changed = base.get(section, {}) | {last: value} if last else value
        sections = {name: base[name] for name in ("model", "start", "training")}
        problem = replan.Problem.from_dict(
            sections | {section: json.loads(json.dumps(changed).replace("Infinity", '"inf"'))}
        )
        direct = replan.evaluate(problem, replan.strategies.interleaved(problem))
        assert found == pytest.approx(direct.loss, rel=1e-9)
    assert frame[key].map(type).isin([str]).all()  # words, or JSON


def test_an_ensemble(tmp_path):
    start = {"pretrain": {"duration": 20.0}}
    ensemble = {"axes": {"start.pretrain.seed": [1, 2]}}
    sections = content(start=start, ensemble=ensemble)
    frame = study(sections).to_frame()
    assert frame["status"].eq("ok").all()
    posed = replan.Problem.from_dict(
        {
            "model": {"hidden": 2, "similarity": 0.6},
            "start": start,
            "training": sections["training"],
            "ensemble": ensemble,
        }
    )
    run = replan.evaluate(posed, replan.strategies.interleaved(posed))
    assert frame["value"][1] == pytest.approx(run.loss, rel=1e-9)


def test_the_problem_can_be_in_a_file_beside(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(FILE)
    problem, rest = FILE.split("[axes]")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "base.toml").write_text(problem)
    (tmp_path / "folder" / "study.toml").write_text(f'problem = "base.toml"\n[axes]{rest}')
    assert study(tmp_path / "folder" / "study.toml").to_dict() == study(own).to_dict()


def test_without_axes_and_runs_the_problem_is_solved():
    found = study(content(axes=None, run=None))
    assert [row["run"] for row in found.rows] == ["plan"]


def test_an_executor_and_models_of_the_user(decay):
    sections = {
        "model": {"kind": "decay", "speed": 1.0},
        "start": {"state": [1.0, 2.0]},
        "training": {"duration": 1.0, "steps": 3},
        "axes": {"model.speed": [1.0, 3.0]},
        "run": {"strategies": ["half-way", "interleaved"]},
    }
    with ThreadPoolExecutor(2) as executor:
        found = replan.study(sections, executor=executor)
    assert [row["value"] is None for row in found.rows] == [False, False, True, False]
    assert found.rows[2]["advice"] == "ZeroDivisionError: three is too much"
    assert found.rows[1]["value"] == pytest.approx(1.5 * np.exp(-0.5))


# What is computed


def test_only_what_is_new_is_computed(tmp_path, counted):
    def calls(text):
        counted.clear()
        study(tomllib.loads(text), tmp_path)
        return sorted(counted)

    assert len(calls(FILE)) == 16
    assert calls(FILE) == []
    assert len(calls(FILE.replace("[0.1, 0.6]", "[0.1, 0.6, 0.9]"))) == 8
    assert calls(FILE.replace('"no-replay",', '"no-replay", "sequential",')) == ["sequential"] * 4
    assert calls(FILE.replace("one to four", "1:4")) == []  # only its name
    assert len(calls(FILE.replace("[run]", '[run]\nkey = "my model, version 2"'))) == 16


def test_ctrl_c_keeps_what_is_finished(tmp_path, counted, monkeypatch):
    solve = studies.solve

    def stop(*args, **settings):
        plan = solve(*args, **settings)
        signal.raise_signal(signal.SIGINT)
        return plan

    with monkeypatch.context() as patch:
        patch.setattr(studies, "solve", stop)
        with pytest.raises(KeyboardInterrupt):
            study(tomllib.loads(FILE), tmp_path)
    assert len(counted) == 4  # three strategies were finished
    assert not (tmp_path / "table.csv").exists()
    counted.clear()
    study(tomllib.loads(FILE), tmp_path)
    assert len(counted) == 13


def test_failures_are_listed_and_the_study_continues(tmp_path):
    runs = {"strategies": ["interleaved", {"strategy": "focus-then-replay", "focus": 3.0}]}
    axes = {"training.duration": [2.0, 4.0], "training.lr": [1.0, 1e9]}
    found = study(content(axes=axes, run=runs), tmp_path)
    bad = [(row["training.duration"], row["training.lr"], row["run"]) for row in found.failed]
    focus = "focus-then-replay (focus=3.0)"
    assert bad == [
        (2.0, 1.0, focus), (2.0, 1e9, "interleaved"), (2.0, 1e9, focus),
        (4.0, 1e9, "interleaved"), (4.0, 1e9, focus),
    ]  # fmt: skip
    assert "focus" in found.failed[0]["advice"]
    frame = pd.read_csv(tmp_path / "table.csv")
    assert frame["value"].isna().sum() == 5
    assert frame["status"].tolist().count("ok") == 3
    text = str(found)
    assert all(row["advice"] in text for row in found.failed)
    assert "inf" in text.splitlines()[1]  # a failed run counts as worse than any


# Mistakes


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"axes": 3}, "axes"),
        ({"axes": {"model.similarity": 0.3}}, "axes.model.similarity"),
        ({"axes": {"model.similarity": []}}, "axes.model.similarity"),
        ({"axes": {"model": {"similarity": [1, 1]}}}, "axes.model.similarity"),
        ({"axes": {"model.hidden.units": [1]}}, "axes.model.hidden.units"),
        ({"run": []}, "run"),
        ({"run": {"strategy": ["interleaved"]}}, "run.strategy"),
        ({"run": {"strategies": ["interleavd"]}}, "run.strategies[0]"),
        ({"run": {"strategies": ["no-replay", 3]}}, "run.strategies[1]"),
        ({"run": {"strategies": [{"shares": [1, 0]}]}}, "run.strategies[0]"),
        ({"run": {"strategies": ["no-replay", "no-replay"]}}, "run.strategies[1].name"),
        (
            {"run": {"strategies": [{"strategy": "interleaved", "share": 1}]}},
            "run.strategies[0].share",
        ),
        ({"run": {"solve": {"stars": 3}}}, "run.solve.stars"),
        ({"run": {"solve": 3}}, "run.solve"),
        ({"run": {"strategies": [], "solve": False}}, "run"),
        ({"problem": "fig2.toml"}, "problem"),
        ({"model": {"hidden": object(), "similarity": 0.3}}, "model.hidden"),
    ],
)
def test_mistakes_are_told_before_any_work(tmp_path, changes, name):
    with pytest.raises(ArgumentError) as caught:
        study(content(**changes), tmp_path / "out")
    assert caught.value.name == name
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("axes", [{"model.simlarity": [0.1]}, {"model.similarity": ["x"]}])
def test_axes_that_the_problem_does_not_know(axes):
    with pytest.raises(ValueError, match=r"`model\.sim"):
        study(content(axes=axes))


def test_a_file_that_is_no_toml(tmp_path):
    (tmp_path / "study.toml").write_text("[model")
    with pytest.raises(ValueError, match="not a TOML file"):
        study(tmp_path / "study.toml")
    with pytest.raises(FileNotFoundError):
        study(tmp_path / "gone.toml")
    with pytest.raises(ValueError, match="study"):
        replan.Problem.from_dict(content())


# The picture


def drawn(value, axes, x=None, runs=("interleaved", "plan")):
    """The picture of a study whose values follow a formula of the point and the run."""
    rows = [
        {**values, "run": name, "value": value(values, k), "status": "ok", "advice": ""}
        for values, _ in span({}, axes)
        for k, name in enumerate(runs)
    ]
    [found] = Study({}, axes, {name: {} for name in runs}, rows).plot(x=x).axes
    return found


AXES = {"model.similarity": [0.9, 0.1, 0.5], "start.fresh.seed": list(range(11))}


def test_medians_and_bands_over_the_other_axes():
    axes = drawn(lambda p, k: (k + 1) * (p["model.similarity"] + p["start.fresh.seed"]), AXES)
    lines = axes.get_lines()
    assert [line.get_label() for line in lines] == ["interleaved", "plan"]
    np.testing.assert_allclose(lines[0].get_xdata(), [0.1, 0.5, 0.9])  # in order
    np.testing.assert_allclose(lines[1].get_ydata(), [10.2, 11.0, 11.8])
    low, high = (f(axes.collections[0].get_paths()[0].vertices[:, 1]) for f in (np.min, np.max))
    assert (low, high) == pytest.approx((1.1, 9.9))
    assert axes.get_xlabel() == "model.similarity"
    assert axes.get_legend().get_title().get_text().endswith("over start.fresh.seed")
    assert axes.get_yscale() == "log"


def test_the_axis_can_be_chosen(tmp_path):
    axes = drawn(lambda p, k: p["start.fresh.seed"] - 2.0, AXES, x="start.fresh.seed")
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), np.arange(11) - 2.0)
    assert axes.get_yscale() == "linear"
    with pytest.raises(ArgumentError) as caught:
        drawn(lambda p, k: 1.0, AXES, x="seed")
    assert caught.value.name == "x"


def test_failed_runs_are_worse_than_any():
    """The luckiest third of the seeds survives at one point: no median there, not a good one."""

    def value(point, k):
        survives = point["model.similarity"] < 0.9 or point["start.fresh.seed"] % 3 == 0
        return 0.1 if survives else None

    y = drawn(value, AXES).get_lines()[0].get_ydata()
    np.testing.assert_array_equal(np.isnan(y), [False, False, True])


def test_words_and_rates_have_their_scales():
    axes = drawn(lambda p, k: 1.0, {"model.activation": ["relu", "erf"]})
    assert [text.get_text() for text in axes.get_xticklabels()] == ["relu", "erf"]
    assert not axes.collections  # nothing to spread over
    assert drawn(lambda p, k: 1.0, {"training.lr": [0.1, 1.0, 10.0]}).get_xscale() == "log"
