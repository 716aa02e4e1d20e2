"""Studies: the table against direct calls, what is computed again and what is not, failures."""

import json
import signal
import subprocess
import sys
import tomllib
import warnings

import numpy as np
import pandas as pd
import pytest

import replan
from replan.models import _registry
from replan.strategies import STRATEGIES
from replan.studies import _cases, _run
from replan.studies._design import Design

FILE = """
[model]
hidden = 2
similarity = [0.1, 0.6]
[start]
pretrain = { task = 1, duration = 20.0, seed = { from = 0, to = 1 } }
[training]
duration = 2.0
steps = 6
[sweep]
strategies = [
    "no-replay",
    { strategy = "interleaved", shares = [0.2, 0.8], name = "one to four" },
    { strategy = "one-task", task = 2 },
]
solvers = [{ method = "relax", starts = 1 }]
simulate = { dimension = 50, seeds = 3 }
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def counted(monkeypatch):
    """How often each function of a case is called, with workers=1."""
    counts = {}

    def count(function):
        def call(**case):
            counts[function.__name__] = counts.get(function.__name__, 0) + 1
            return function(**case)

        call.__module__, call.__qualname__ = function.__module__, function.__qualname__
        return call

    for name in ("make_start", "run_on", "simulate_on"):
        counting = count(getattr(_cases, name))
        for module in (_cases, _run):
            monkeypatch.setattr(module, name, counting)
    return counts


def study(content, out, **settings):
    return replan.study(content, out, workers=1, **settings)


# The table


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.toml").write_text(FILE)
    return folder / "out", study(folder / "study.toml", folder / "out")


def problem(similarity, seed):
    model = replan.TeacherStudent.similar(similarity)
    start = model.pretrain(0, 20.0, seed=seed)
    return replan.Problem(model, start, 2.0, steps=6)


def test_every_run_on_every_problem_has_a_row(made):
    frame = made[1].to_frame()
    assert len(frame) == 2 * 2 * 4 * 2
    assert list(frame)[:5] == ["similarity", "seed", "what", "name", "value"]
    assert frame["status"].isin(["ok", "converged"]).all()
    assert list(frame["name"].unique()) == [
        "no-replay", "one to four", "one-task (task=2)", "relax (starts=1)",
    ]  # fmt: skip
    assert frame["what"].value_counts().to_dict() == {"simulation": 16, "strategy": 12, "solver": 4}


def test_activations_are_an_axis(tmp_path):
    content = {
        "model": {"hidden": 2, "similarity": 0.3, "activation": ["erf", "relu"]},
        "start": {"fresh": {"seed": 0, "weight_variance": 1.0}},
        "training": {"duration": 2.0, "steps": 4},
        "sweep": {"strategies": ["interleaved"]},
    }
    table = study(content, tmp_path).to_frame().set_index("activation")
    for name in ("erf", "relu"):
        model = replan.TeacherStudent.similar(0.3, hidden=2, activation=name)
        problem = replan.Problem(model, model.fresh(weight_variance=1.0), duration=2.0, steps=4)
        direct = replan.evaluate(problem, replan.strategies.interleaved(problem))
        assert table.loc[name, "value"] == pytest.approx(direct.loss, rel=1e-9)
    assert table.loc["relu", "value"] != pytest.approx(table.loc["erf", "value"], rel=0.01)


@pytest.mark.parametrize(
    "ensemble", [None, {"noise": [0.0, 0.5]}, {"noise": [0.0, 0.5], "risk": ["mean", "worst"]}]
)
def test_rows_of_ensembles_are_what_direct_calls_give(ensemble, tmp_path):
    sections = {
        "model": {"hidden": 2, "similarity": 0.3},
        "start": {"pretrain": {"duration": 20.0, "seeds": [1, 2]}},
        "training": {"duration": 2.0, "steps": 6},
    }
    sections |= {} if ensemble is None else {"ensemble": ensemble}
    runs = {"strategies": ["interleaved"], "solvers": ["relax"]}
    frame = study(sections | {"sweep": runs}, tmp_path).to_frame()
    for row in frame.to_dict("records"):
        assert row["status"] in ("ok", "converged"), row["advice"]
        chosen = {"risk": row["risk"]} if "risk" in row else {}
        posed = replan.Problem.from_dict(
            sections | ({} if ensemble is None else {"ensemble": ensemble | chosen})
        )
        assert len(posed.members) == (2 if ensemble is None else 4)
        if row["what"] == "strategy":
            run = replan.evaluate(posed, replan.strategies.interleaved(posed))
        else:
            run = replan.solve(posed)
            assert replan.Plan.load(tmp_path / row["plan"]).problem.names == posed.names
        assert row["value"] == run.loss


def test_a_study_of_members_that_are_listed(tmp_path):
    posed = replan.Ensemble({"a": problem(0.1, 0), "b": problem(0.6, 1)}, [0.25, 0.75])
    sections = posed.to_dict() | {"sweep": {"strategies": ["interleaved"]}}
    [row] = study(sections, tmp_path).to_frame().to_dict("records")
    run = replan.evaluate(posed, replan.strategies.interleaved(posed))
    assert row["value"] == pytest.approx(run.loss, rel=1e-12)


@pytest.mark.parametrize(("similarity", "seed"), [(0.1, 0), (0.6, 1)])
def test_rows_are_what_direct_calls_give(made, similarity, seed):
    one = problem(similarity, seed)
    rows = made[1].to_frame().set_index(["similarity", "seed", "name", "what"]).sort_index()
    rows = rows.loc[(similarity, seed)]
    protocols = {
        "no-replay": replan.strategies.no_replay(one),
        "one to four": replan.strategies.interleaved(one, shares=[0.2, 0.8]),
        "one-task (task=2)": replan.strategies.one_task(one, task=1),
    }
    for name, protocol in protocols.items():
        run, row = replan.evaluate(one, protocol), rows.loc[(name, "strategy")]
        assert (row["value"], row["error"]) == (run.loss, run.error)
        assert [row["loss_1"], row["loss_2"]] == run.final_losses.tolist()
        assert [row["share_1"], row["share_2"]] == protocol.mean_shares.tolist()
        assert [row["lr_first"], row["lr_last"]] == [1.0, 1.0]
    plan, row = replan.solve(one, replan.Relax(starts=1)), rows.loc[("relax (starts=1)", "solver")]
    for name in ("value", "relaxed_value", "integrality_gap", "pmp_residual", "switches", "scope"):
        assert row[name] == getattr(plan.certificate, name)
    assert (row["gradients"], row["status"]) == (plan.statistics["gradients"], plan.status)
    protocols["relax (starts=1)"] = plan.protocol
    for name, protocol in protocols.items():
        run = replan.simulate(one, protocol, dimension=50, seeds=3)
        row, values = rows.loc[(name, "simulation")], run.final_losses.mean(axis=1)
        assert row["value"] == pytest.approx(values.mean(), rel=1e-12)
        assert row["error"] == pytest.approx(values.std(ddof=1) / np.sqrt(3), rel=1e-12)
        assert [row["loss_1"], row["loss_2"]] == pytest.approx(run.final_losses.mean(axis=0))
        assert row["runs"] == 3


def test_the_files_hold_it_all(made):
    folder, result = made
    frame, table = result.to_frame(), pd.read_csv(folder / "table.csv")
    assert list(table) == list(frame)
    np.testing.assert_array_equal(table["value"], frame["value"])
    np.testing.assert_array_equal(table["gradients"], frame["gradients"].astype(float))
    assert (folder / "table.csv").read_text().count("nan") == 0
    plans = frame.dropna(subset=["plan"])
    assert len(plans) == 4
    for row in plans.itertuples():
        plan = replan.Plan.load(folder / row.plan)
        assert plan.loss == row.value
        content = json.loads((folder / row.plan).read_text())["settings"]
        assert content["file"]["start"]["pretrain"]["seed"] == row.seed
        assert (content["method"], content["starts"]) == ("relax", 1)
    assert "plans/similarity=0.1,seed=0,relax_starts=1.json" in set(plans["plan"])
    content = json.loads((folder / "study.json").read_text())
    assert content["replan"] == replan.__version__
    assert content["settings"]["file"]["sweep"]["simulate"] == {"dimension": 50, "seeds": 3}
    assert content["simulate"] == {
        "dimension": 50, "seeds": 3, "seed": 0, "order": "spread", "engine": None
    }  # fmt: skip
    assert content["runs"][3] == {
        "name": "relax (starts=1)", "method": "relax", "starts": 1, "seed": 0, "tolerance": 1e-4
    }  # fmt: skip
    assert content["axes"][1] == {
        "name": "seed", "key": "start.pretrain.seed", "values": [0, 1]
    }  # fmt: skip
    assert {"problems": 4, "results": 32, "failed": 0}.items() <= content.items()
    for name in ("picture.png", "picture.pdf"):
        assert (folder / name).stat().st_size > 1000


def test_a_table_in_parquet_where_pyarrow_is_installed(made):
    pytest.importorskip("pyarrow")
    folder, result = made
    pd.testing.assert_frame_equal(pd.read_parquet(folder / "table.parquet"), result.to_frame())


def test_it_is_shown_in_short(made):
    text = str(made[1])
    assert text.splitlines()[0].split() == ["results", "median", "10", "%", "90", "%"]
    assert [line.rsplit(maxsplit=4)[0] for line in text.splitlines()[1:3]] == [
        "no-replay", "no-replay, SGD"
    ]  # fmt: skip
    assert repr(made[1]) == "Study(32 results, similarity, seed)"


def test_running_costs_and_targets_count_in_simulations(tmp_path):
    content = Design.read(tomllib.loads(FILE)).file
    content["objective"] = {"weights": [1.0, 0.0], "running": [0.3, 0.7], "targets": {"1": 1e-3}}
    content["sweep"] = {"strategies": ["interleaved"], "simulate": {"dimension": 400, "seeds": 4}}
    frame = study(content, tmp_path / "out").to_frame()
    theory, sgd = frame[frame["what"] == "strategy"], frame[frame["what"] == "simulation"]
    np.testing.assert_allclose(sgd["value"], theory["value"], rtol=0.1)
    assert (theory["value"] > 2 * theory["loss_1"]).all()  # penalties and running costs are seen


# What is computed


def test_a_second_run_computes_nothing(file, tmp_path, counted):
    first = study(file, tmp_path / "out")
    assert counted == {"make_start": 4, "run_on": 16, "simulate_on": 16}
    before = {path: path.read_bytes() for path in (tmp_path / "out").glob("*.*")}
    counted.clear()
    second = study(file, tmp_path / "out")
    assert counted == {}
    pd.testing.assert_frame_equal(first.to_frame(), second.to_frame())
    for path, content in before.items():
        if path.suffix != ".pdf":  # has its date in it
            assert path.read_bytes() == content


def test_only_what_is_new_is_computed(file, tmp_path, counted):
    study(file, tmp_path / "out")
    counted.clear()
    file.write_text(FILE.replace("[0.1, 0.6]", "{ from = 0.1, to = 0.6, count = 3 }"))
    study(file, tmp_path / "out")
    assert counted == {"make_start": 2, "run_on": 8, "simulate_on": 8}
    counted.clear()
    file.write_text(FILE.replace('"no-replay",', '"no-replay", "sequential",'))
    study(file, tmp_path / "out")
    assert counted == {"run_on": 4, "simulate_on": 4}
    counted.clear()
    file.write_text(FILE.replace("seeds = 3", "seeds = 4").replace("one to four", "1:4"))
    study(file, tmp_path / "out")
    assert counted == {"simulate_on": 16}


def test_a_start_that_problems_share_is_made_once(tmp_path, counted):
    content = tomllib.loads(FILE)
    content["training"]["lr"] = [0.5, 1.0, 2.0]
    content["sweep"] = {"strategies": ["no-replay"]}
    study(content, tmp_path / "out")
    assert counted == {"make_start": 4, "run_on": 12}


def test_checking_pretrains_nothing(monkeypatch):
    def pretrain(*_, **__):
        raise AssertionError("the work began")

    monkeypatch.setattr(replan.TeacherStudent, "pretrain", pretrain)
    monkeypatch.setattr(replan.TeacherStudent, "roll_out", pretrain)
    content = tomllib.loads(FILE)
    content["sweep"]["strategies"] += ["focus-then-replay", "constant-lr", "shuffled"]
    assert len(Design.read(content).problems) == 4


# Mistakes


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"strategies": ["interleavd"]}, "`sweep.strategies[0]` expects one of one-task, "),
        ({"strategies": []}, "`sweep.strategies` expects a list of words"),
        ({"strategies": [3]}, "`sweep.strategies[0]` expects a word, or a table such as"),
        ({"strategies": [{"shares": [1, 0]}]}, "`sweep.strategies[0]` expects a word, or a table"),
        ({"strategies": ["no-replay", "no-replay"]}, "`sweep.strategies[1]` expects another `name"),
        ({"strategies": [{"strategy": "interleaved", "share": 1}]},
         "`sweep.strategies[0].share` is not a known key, did you mean `shares`?"),
        ({"strategies": [{"strategy": "interleaved", "shares": [0.5, 0.6]}]},
         "`sweep.strategies[0].shares` expects shares that sum to 1, got a sum of 1.1, in the cas"),
        ({"strategies": [{"strategy": "one-task", "task": 3}]},
         "`sweep.strategies[0].task` expects a task from 1 to 2, got 3"),
        ({"strategies": [{"strategy": "focus-then-replay", "focus": 3.0}]},
         "`sweep.strategies[0].focus` expects a finite number of at least 0 and at most 2, got 3"),
        ({"strategies": [{"strategy": "no-replay", "name": 3}]}, "`sweep.strategies[0].name` expe"),
        ({"solvers": ["relaxed"]}, "`sweep.solvers[0]` expects one of relax, "),
        ({"solvers": [{"method": "relax", "stars": 3}]}, "`sweep.solvers[0].stars` is not a known"),
        ({"solvers": [{"method": "relax", "starts": -1}]}, "`sweep.solvers[0].starts` expects an "),
        ({"solvers": [{"method": "sweep", "starts": 1}]}, "`sweep.solvers[0].starts` is not a kno"),
        ({"solvers": [{"method": "relax", "max_gradients": 0}]}, "`sweep.solvers[0].max_gradients"),
        ({"simulate": {"dimension": 3}}, "`sweep.simulate.dimension` expects at least 4, room for"),
        ({"simulate": {"order": "x"}}, "`sweep.simulate.order` expects one of spread, random; got"),
        ({"simulate": {"engine": "x"}}, "`sweep.simulate.engine` expects one of reduced, full; go"),
        ({"simulate": {"sed": 1}}, "`sweep.simulate.sed` is not a known key, did you mean `seed`?"),
        ({"solver": ["relax"]}, "`sweep.solver` is not a known key, did you mean `solvers`?"),
    ],
)  # fmt: skip
def test_mistakes_in_the_section(tmp_path, sweep, message):
    content = tomllib.loads(FILE) | {"sweep": sweep}
    with pytest.raises(ValueError) as caught:
        study(content, tmp_path / "out")
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "out").exists()


def test_nothing_to_control(tmp_path):
    content = tomllib.loads(FILE) | {"control": {"tasks": {"values": [True, False]}}}
    with pytest.raises(ValueError, match=r"^`sweep\.solvers` expects a control .*tasks = False$"):
        study(content, tmp_path / "out")


def test_a_file_without_a_section_is_solved(tmp_path):
    content = tomllib.loads(FILE)
    del content["sweep"]
    assert [run.name for run in Design.read(content).runs] == ["relax"]


@pytest.mark.parametrize("bad", [3, None, [], b"x", {"model": object()}, {1: {}}])
def test_what_is_no_study(tmp_path, bad):
    with pytest.raises(ValueError, match=r"^`(study|model|1|start)` "):
        study(bad, tmp_path / "out")


# Failures


def test_a_case_that_diverges_is_a_row(tmp_path, counted):
    content = tomllib.loads(FILE)
    content["training"]["lr"] = [1.0, 1e9]
    content["model"]["similarity"] = 0.3
    content["start"]["pretrain"]["seed"] = 0
    content["sweep"] = {
        "strategies": ["no-replay"], "solvers": ["relax"],
        "simulate": {"dimension": 50, "seeds": 1},
    }  # fmt: skip
    result = study(content, tmp_path / "out")
    frame = result.to_frame()
    wild = frame[frame["lr"] == 1e9]
    assert wild["value"].isna().all() and len(wild) == 4
    assert frame[frame["lr"] == 1.0]["value"].notna().all()
    status = wild.groupby(["what", "name"])["status"].unique().map(list).to_dict()
    assert status == {
        ("simulation", "no-replay"): ["not run"], ("simulation", "relax"): ["not run"],
        ("solver", "relax"): ["failed"], ("strategy", "no-replay"): ["diverged"],
    }  # fmt: skip
    assert "try a smaller `lr`" in wild["advice"].iloc[0]
    assert "1 of 8 without a value: no-replay diverged: " in str(result)
    assert json.loads((tmp_path / "out" / "study.json").read_text())["failed"] == 4
    assert counted["simulate_on"] == 2


def test_a_start_that_cannot_be_made_fails_its_runs_alone(tmp_path):
    content = tomllib.loads(FILE)
    content["start"]["pretrain"] |= {"lr": [1.0, 1e9], "seed": 0}
    content["sweep"] = {"strategies": ["no-replay", "interleaved"]}
    frame = study(content, tmp_path / "out").to_frame()
    failed = frame[frame["value"].isna()]
    assert (failed["lr"] == 1e9).all() and len(failed) == 4
    assert failed["advice"].str.startswith("pretraining: the trajectory diverged").all()


def test_where_everything_fails_there_is_no_picture(tmp_path):
    content = tomllib.loads(FILE)
    content["training"]["lr"] = 1e9
    content["sweep"] = {"strategies": ["no-replay"]}
    result = study(content, tmp_path / "out")
    assert len(result.failed) == len(result.rows) == 4
    assert not (tmp_path / "out" / "picture.png").exists()
    with pytest.raises(ValueError, match="`plot` expects at least one result with a value"):
        result.plot()


@pytest.mark.parametrize("error", [MemoryError("no room"), OSError("no disk")])
def test_what_is_wrong_with_the_machine_is_no_result(tmp_path, monkeypatch, error, file):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(_cases, "evaluate", fail)
    with pytest.raises(type(error)):
        study(file, tmp_path / "out")


# Code of the user's

DECAY = {
    "model": {"kind": "decay", "speed": [1.0, 2.0, 3.0]},
    "start": {"state": [1.0, 2.0]},
    "training": {"duration": 1.0, "steps": 4},
    "sweep": {"strategies": ["interleaved", "half-way"]},
}


def test_a_model_and_a_strategy_of_the_users(decay, tmp_path):
    frame = study(DECAY, tmp_path / "out").to_frame().set_index(["name", "speed"])
    for name in ("interleaved", "half-way"):
        for speed in (1.0, 2.0):
            assert frame.loc[(name, speed), "value"] == pytest.approx(1.5 * np.exp(-speed / 2))
    failed = frame.loc[("half-way", 3.0)]
    assert (failed["status"], failed["advice"]) == (
        "failed",
        "ZeroDivisionError: three is too much",
    )
    with pytest.raises(ValueError, match=r"^`sweep\.solvers` expects a model that can be differ"):
        study(DECAY | {"sweep": {"solvers": ["relax"]}}, tmp_path / "out")
    with pytest.raises(ValueError, match=r"^`sweep\.simulate` needs a model that can be simulat"):
        study(DECAY | {"sweep": {"strategies": ["interleaved"], "simulate": {}}}, tmp_path / "out")


def test_workers_find_the_users_code(decay, tmp_path):
    alone = study(DECAY, tmp_path / "alone").to_frame()
    both = replan.study(DECAY, tmp_path / "both", workers=2).to_frame()
    pd.testing.assert_frame_equal(alone, both)


def test_an_edit_of_the_users_code_is_noticed(decay, tmp_path, write, counted, monkeypatch):
    study(DECAY, tmp_path / "out")
    counted.clear()
    study(DECAY, tmp_path / "out")
    assert counted == {}
    text = decay.read_text()
    for named in (True, False):  # in REPLAN_IMPORT, or imported by a script
        del STRATEGIES["half-way"], _registry._KINDS["decay"]
        text = text.replace("return states\n", "return 2 * states\n")
        write("decay.py", text)
        if not named:
            monkeypatch.setenv("REPLAN_IMPORT", "")
            monkeypatch.syspath_prepend(tmp_path)
            import decay
        study(DECAY, tmp_path / "out")
        assert counted == {"make_start": 3, "run_on": 6}
        counted.clear()
        text += "# another\n"


def test_what_a_worker_does_not_know_ends_the_study(tmp_path, decay, monkeypatch, counted):
    design = Design.read(DECAY)
    registered = _registry._KINDS.pop("decay")
    monkeypatch.setenv("REPLAN_IMPORT", "")
    monkeypatch.setattr(_run, "find", lambda kind: registered)
    with pytest.raises(ValueError, match=r"^`model\.kind` expects one of .*got 'decay'"):
        _run.compute(design, tmp_path / "out", workers=1, progress=False)
    assert list((tmp_path / "out" / "cache").iterdir()) == []  # no result, and none is kept


# Stopped


def test_ctrl_c_keeps_what_is_finished(file, tmp_path, counted, monkeypatch):
    solve = _cases.solve

    def stop(*args, **settings):
        plan = solve(*args, **settings)
        signal.raise_signal(signal.SIGINT)
        return plan

    with monkeypatch.context() as patch:
        patch.setattr(_cases, "solve", stop)
        with pytest.raises(KeyboardInterrupt):
            study(file, tmp_path / "out")
    assert counted == {"make_start": 4, "run_on": 4}  # three strategies were done by then
    assert not (tmp_path / "out" / "table.csv").exists()
    counted.clear()
    study(file, tmp_path / "out")
    assert counted == {"run_on": 13, "simulate_on": 16}


KILLED = """
import os, signal, sys
import replan
from replan.studies import _cases

def solve(*args, **settings):
    os.kill(os.getpid(), signal.SIGKILL)

_cases.solve = solve
replan.study("study.toml", "out", workers=1)
"""


def test_a_study_that_was_killed_continues(file, tmp_path, counted):
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    study(file, tmp_path / "out")
    assert counted == {"run_on": 13, "simulate_on": 16}


def test_plans_are_written_again_where_they_are_gone(file, tmp_path, counted):
    study(file, tmp_path / "out")
    counted.clear()
    plans = sorted((tmp_path / "out" / "plans").iterdir())
    times = [path.stat().st_mtime_ns for path in plans]
    plans[0].unlink()
    study(file, tmp_path / "out")
    assert counted == {}
    assert [path.stat().st_mtime_ns for path in plans[1:]] == times[1:]
    assert replan.Plan.load(plans[0]).status == "converged"


def test_names_of_plans_differ_however_long(tmp_path):
    content = tomllib.loads(FILE)
    content["sweep"] = {"solvers": ["relax", {"method": "relax", "name": "RELAX"},
                                    {"method": "relax", "name": "x/" * 200}]}  # fmt: skip
    names = _run._plan_names(Design.read(content))
    assert len({name.lower() for name in names}) == 12
    assert all(len(name) < 120 and "/" not in name for name in names)


def test_progress_counts_everything(file, tmp_path):
    told = []
    study(file, tmp_path / "out", progress=told.append)
    assert (told[0].what, told[0].total) == ("problems checked", 4)
    assert (told[-1].what, told[-1].done, told[-1].total) == ("cases", 36, 36)


def test_a_warning_tells_what_the_cache_cannot_see(decay, tmp_path, write):
    write("decay.py", decay.read_text() + "\nexec('')\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        study(DECAY, tmp_path / "out")
    assert any("cannot see all" in str(one.message) for one in caught)
