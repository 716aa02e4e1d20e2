"""docs/extending.md: what it shows runs, prints what it says, and mistakes are told in a line."""

import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from replan._common import compiled
from replan.dynamics import Dynamics, Pieces, _registry, find, register

import replan
from documented import assert_alike
from replan.control import METHODS, Objective
from replan.replay import Policy
from replan.strategies import STRATEGIES, strategy

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
NAMED = re.compile(r"# (\w+\.(?:py|toml))")  # the first line of a block that is (part of) a file


def file(name):
    """What the page shows of a file."""
    return "\n\n".join(code for _, code in BLOCKS if (m := NAMED.match(code)) and m[1] == name)


def caches(path):
    """The folders with compiled code of a file of the user's."""
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    return [x for p in compiled._parents() for x in p.glob(f"{path.stem}-{place}-*")]


@pytest.fixture
def files(write, tmp_path, monkeypatch):
    """A folder with the files of the page; what they register is forgotten in the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REPLAN_IMPORT", raising=False)
    for name in sorted({m[1] for _, code in BLOCKS if (m := NAMED.match(code))}):
        write(name, file(name))
    registries = [STRATEGIES, METHODS, _registry._KINDS]
    before = [dict(registry) for registry in registries]
    yield tmp_path
    for registry, content in zip(registries, before, strict=True):
        registry.clear()
        registry.update(content)
    for path in tmp_path.glob("*.py"):
        for folder in caches(path):
            shutil.rmtree(folder, ignore_errors=True)


def command_line(*words):
    """Run `replan …` in a process of its own and return what it shows."""
    program = "from replan.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


# The page


def test_the_page_from_top_to_bottom(files):
    """As a reader would go through it: one compilation serves all processes."""
    names, printed, kept = {}, "", None
    for language, code in BLOCKS:
        if language == "text":
            assert_alike(printed, code)
        elif language == "sh":
            for line in code.splitlines():
                status, out, err = command_line(*line.split()[1:])
                assert status == 0, err
                assert out
            assert kept == compiled_files(files / "linear.py")  # all was there already
        elif language == "python" and not NAMED.match(code):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(code, PAGE.name, "exec"), names)
            printed = out.getvalue()
            kept = compiled_files(files / "linear.py")
    compiled_model_is_like_any_other(names, files)
    by_automatic_differentiation_it_is_the_same(names)
    own_figure_is_recorded_after_those_of_the_paper(files)
    edited_rate_is_compiled_anew(files)


def compiled_files(path):
    return {f: f.stat().st_mtime_ns for folder in caches(path) for f in folder.rglob("*.nb?")}


def compiled_model_is_like_any_other(names, folder):
    plan, again = names["plan"], names["again"]
    assert plan.status == "converged"
    assert plan.loss < names["mixed"].loss
    assert names["best"].loss < plan.loss
    assert names["error"] < 1e-6
    np.testing.assert_allclose(again.trajectory.states, plan.trajectory.states, rtol=1e-12)
    end = plan.trajectory
    assert json.loads((folder / "plan.json").read_text())["problem"]["model"]["kind"] == "linear"
    assert {"plan.png", "compare.csv", "problem-compare.png"} <= {x.name for x in folder.iterdir()}
    for call in (lambda: end.cosines, lambda: replan.simulate(plan.problem, plan.protocol)):
        with pytest.raises(ValueError, match=r"needs a model .*, got one of kind 'linear'"):
            call()
    state = plan.problem.model.unpack(end.states[-1])
    np.testing.assert_allclose((state.Q - 2 * state.M + 1) / 2, end.final_losses, rtol=1e-12)


def by_automatic_differentiation_it_is_the_same(names):
    one, other, part = names["plan"], names["whole"], names["part"]
    rng = np.random.default_rng(0)
    shares, lr = rng.dirichlet([1, 1], size=3), rng.uniform(0.1, 0.9, size=(3, 2))
    pieces = Pieces.whole(shares, lr, np.array([1.0, 2.0, 0.5]))
    found = []
    for problem in (one.problem, other.problem):
        model = problem.model
        states = model.roll_out(problem.state, pieces)
        losses = model.losses(states)
        back = model.pull_back(states, model.pull_losses(states, losses), pieces)
        found.append(np.hstack([losses[1:], back.by_shares, back.by_knobs]))
    np.testing.assert_allclose(*found, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(part.trajectory.losses, names["found"].trajectory.losses)
    assert part.certificate == other.certificate
    with pytest.raises(ValueError, match=r"loaded without its model, of kind 'auto'"):
        replan.evaluate(part.problem, part.protocol)


def own_figure_is_recorded_after_those_of_the_paper(folder):
    gain = sys.modules["gain"]
    made = replan.paper.make([gain, "readout"], folder / "out", quick=True, workers=1)
    assert [figure.name for figure in made] == ["gain", "readout"]
    content = json.loads((folder / "out" / "claims.json").read_text())["figures"]
    assert list(content) == ["readout", "gain"]
    assert content["gain"]["command"] == "replan.paper.make([gain], …)"
    assert "all but optimal" in (folder / "out" / "claims.md").read_text()


def edited_rate_is_compiled_anew(folder):
    """In a new process, and after a reload in this one."""
    path, linear = folder / "linear.py", sys.modules["linear"]
    before = caches(path)
    evaluate = ["--import", "linear.py", "evaluate", "problem.toml", "--strategy", "no-replay"]
    losses = [final_loss(linear)]
    path.write_text(path.read_text().replace("2 * (M[t] - Q)", "3 * (M[t] - Q)", 1))
    status, _, err = command_line(*evaluate, "--json", "edited.json")
    assert status == 0, err
    losses.append(json.loads((folder / "edited.json").read_text())["value"])
    importlib.invalidate_caches()
    losses.append(final_loss(importlib.reload(linear)))
    assert abs(losses[1] / losses[0] - 1) > 0.01
    assert losses[2] == pytest.approx(losses[1], rel=1e-12)
    assert len(caches(path)) == 1
    assert caches(path) != before  # the old code is gone


def final_loss(linear):
    problem = linear_problem(linear, duration=10.0)
    return replan.evaluate(problem, replan.strategies.no_replay(problem)).loss


def linear_problem(linear, model=None, duration=1.0, **settings):
    start = linear.Overlaps(1.0, [1.0, 0.3])
    return replan.Problem(model or linear.Linear(0.3), start, duration, lr=0.2, **settings)


def test_a_problem_file_to_start_from(files, write):
    sections = file("problem.toml").partition("[training]")[0]
    write(
        "linear.py",
        file("linear.py").replace("    kind =", f'    example = """{sections}"""\n    kind ='),
    )
    importlib.import_module("linear")
    text = replan.problem.example("linear")
    assert "\n\n[training]" in text
    three = text.replace("similarity = 0.3", "similarity = 0.3\ntasks = 3")
    for tasks, content in {2: text, 3: three.replace("0.3]", "0.3, 0.3]")}.items():
        (files / "new.toml").write_text(content)
        model = replan.Problem.load("new.toml").model
        assert (model.kind, model.tasks) == ("linear", tasks)
    write("linear.py", file("linear.py"))  # without an example
    status, _, err = command_line("--import", "linear.py", "new", "own.toml", "--kind", "linear")
    assert status == 0, err
    assert tomllib.loads((files / "own.toml").read_text())["model"] == {"kind": "linear"}


def test_an_installed_package_needs_no_import(files, write):
    write("own-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    write("own-1.0.dist-info/entry_points.txt", "[replan.models]\nlinear = linear\n")
    assert replan.Problem.load("problem.toml").model.kind == "linear"


# Mistakes in a model


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "linea",
            r"`model.kind` expects one of curriculum, denoising, dropout, linear, network, "
            r"teacher-student; got 'linea', did you mean "
            r"`linear`\? \(a kind of your own: `replan --import FILE …`\)",
        ),
        ("quadratic", r"got 'quadratic' \(a kind of your own: `replan --import FILE …`\)"),
    ],
)
def test_a_kind_that_is_not_registered(files, kind, message):
    importlib.import_module("linear")
    with pytest.raises(ValueError, match=message):
        find(kind)


def test_two_models_of_the_same_kind(files, write):
    importlib.import_module("linear")
    write("other.py", file("linear.py"))
    with pytest.raises(
        ValueError, match=r"new word, got 'linear' in other.Linear, which is linear.Linear"
    ):
        importlib.import_module("other")
    with pytest.raises(ValueError, match=r"`kind` expects a word for files, got None in Nameless"):
        register(type("Nameless", (Dynamics,), {}))


def change(name, old, new):
    """Change one of the functions in linear.py."""
    head, found, tail = file("linear.py").partition(f"def {name}(")
    assert old in found + tail
    return head + (found + tail).replace(old, new, 1)


MISTAKES = {
    change("rate", "state, shares, lr", "state, lr"): (
        r"`rate` expects the arguments \(p, state, shares, knobs, out\), got \(p, state, lr, out\)"
    ),
    change("rate", "p.S[t]", "p.gamma[t]"): (
        r"`rate` expects code that numba can compile, got: Unknown attribute 'gamma' of type "
        r"Parameters\(.*\) \(linear.py, line 19\)"
    ),
    change("rate", "= 0.0", "= zero"): (
        r"`rate` expects code .*, got: NameError: name 'zero' is not defined$"
    ),
    change("rate", "Q, M = state[0]", "Q, M = state"): (
        r"`rate` expects code .*, got: No implementation .*: >>> iadd\(.*\) \(linear.py, line 18\)"
    ),
    file("linear.py").replace("Kernels(Parameters, rate,", "Kernels(Parameters, rate.py_func,"): (
        r"`rate` expects a function made by `compiled`, got <function rate"
    ),
    file("linear.py").replace("Kernels(Parameters,", "Kernels(dict,"): (
        r"`parameters` expects a NamedTuple class, got <class 'dict'>"
    ),
    file("linear.py").replace("return Parameters(", "return tuple("): (
        r"`parameters` expects a Parameters, as the kernels name it, got \("
    ),
    file("linear.py").replace("return Parameters(", "return Parameters(object() if True else "): (
        r"`parameters` expects numbers and arrays, got: .* type of <class 'linear.Parameters'>"
    ),
    file("linear.py").replace("pull_losses)", "pull_losses, compiled(lambda p: p))"): (
        r"`make_work` expects an annotation with the NamedTuple class that it returns, got None"
    ),
    file("linear.py").replace("np.array([start.Q, *start.M])", "[[start.Q, *start.M]]"): (
        r"`start` expects an array of numbers of shape \(n,\), got shape \(1, 3\)"
    ),
    file("linear.py").replace("np.array([start.Q, *start.M])", "np.array([start.Q])"): (
        r"`pack` expects to return a state that `rate` and `losses` can work with, got one of 1 num"
    ),
}


@pytest.mark.parametrize("text", MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_in_the_file_of_a_model(files, write, text):
    assert text != file("linear.py")
    write("linear.py", text)
    linear = importlib.import_module("linear")
    with pytest.raises(ValueError, match=MISTAKES[text]) as raised:
        final_loss(linear)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("similarity", "similarty", "`model.similarty` is not a known key, did you mean `simi"),
        ("similarity = 0.3", "", "`model.similarity` is missing"),
        ("Q = 1.0", "", "`start.Q` is missing"),
        ("M = [1.0, 0.3]", "M = [1.0]", "`start.M` expects 2 numbers, got [1.0]"),
        ("= 0.3", "= 'high'", "`model.similarity` expects a number from 0.0 to 1.0, got 'high'"),
    ],
)
def test_a_mistake_in_a_problem_file(files, old, new, message):
    importlib.import_module("linear")
    path = files / "problem.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=re.escape(f"problem.toml: {message}")):
        replan.Problem.load("problem.toml")


def test_what_cannot_be_imported_is_told_in_a_line(files, write, monkeypatch):
    write("broken.py", "import json\n1 / 0\n")
    write("json.py", "")
    for name, why in {
        "missing.py": "FileNotFoundError: ",
        "no_such_module": "ModuleNotFoundError: No module named 'no_such_module'",
        "broken.py": "ZeroDivisionError: division by zero",
        "json.py": "ImportError: there is another module 'json': give the file another name",
    }.items():
        monkeypatch.setenv("REPLAN_IMPORT", name)
        for _ in range(2):  # the second time as the first
            with pytest.raises(
                ValueError, match=re.escape(f"be imported, got '{name}': {why}")
            ) as e:
                replan.Problem.load("problem.toml")
            assert "problem.toml" not in str(e.value)


def test_modules_beside_an_imported_file_are_found(files, write, monkeypatch):
    write("own/helper.py", "KIND = 'beside'\n")
    write(
        "own/beside.py",
        "from helper import KIND\nfrom linear import Linear\nfrom replan.dynamics import register\n"
        "@register\nclass Beside(Linear):\n    kind = KIND\n",
    )
    path = files / "problem.toml"
    path.write_text(path.read_text().replace('"linear"', '"beside"'))
    monkeypatch.setenv("REPLAN_IMPORT", os.pathsep.join(["linear.py", "own/beside.py"]))
    assert replan.Problem.load("problem.toml").model.kind == "beside"
    results = replan.sweep(kind_in_a_worker, [{"file": "problem.toml"}] * 2, workers=2)
    assert results == [{"kind": "beside"}] * 2


def kind_in_a_worker(file):
    """Return the kind of a problem file's model; worker processes begin with nothing imported."""
    return {"kind": replan.Problem.load(file).model.kind}


def test_errors_of_ones_own_are_not_blamed_on_replan_alone(files, write):
    write("linear.py", file("linear.py").replace("return from_keys(cls", "return 1 / 0, (cls"))
    status, _, err = command_line(
        "--import", "linear.py", "evaluate", "problem.toml", "--strategy", "no-replay",
        "--json", "out.json",
    )  # fmt: skip
    assert status == 70
    assert err.startswith("replan: internal error, a bug in replan or in linear.py: ZeroDivisionEr")


# A strategy, a solver, a policy, a figure


def test_a_strategy_for_any_number_of_tasks(files):
    spaced = importlib.import_module("spaced").spaced_replay
    assert STRATEGIES["spaced-replay"] is spaced
    for tasks in (1, 3):
        model = replan.TeacherStudent(np.eye(tasks), hidden=2)
        problem = replan.Problem(model, model.fresh(), duration=5.0, steps=30)
        for settings in ({}, {"first": 0.01, "growth": 0.5}, {"first": 9.0}):
            assert problem.accept(spaced(problem, **settings)).steps == 30
    with pytest.raises(ValueError, match=r"`strategy` expects a new name, got 'no-replay', which"):

        @strategy
        def no_replay(problem):
            return None

    assert STRATEGIES["no-replay"] is replan.strategies.no_replay


def needs_a_setting(problem, x): ...


def takes_nothing(): ...


def turns_without_progress(problem, *, protocol=None): ...


@pytest.mark.parametrize(
    ("recipe", "turns", "message"),
    [
        (needs_a_setting, (), "called with a problem alone, got needs_a_setting(problem, x): miss"),
        (takes_nothing, (), "called with a problem alone, got takes_nothing(): too many"),
        (turns_without_progress, ("lr",), "with the settings protocol and progress, that can be"),
        (3, (), "`recipe` expects a function, got 3"),
    ],
)
def test_a_function_that_is_no_strategy(files, recipe, turns, message):
    before = dict(STRATEGIES)
    with pytest.raises(ValueError, match=re.escape(message)):
        strategy(turns=turns)(recipe)
    assert before == STRATEGIES


def raises(problem):
    raise KeyError("gamma")


def gives_shares(problem):
    return np.full((problem.steps, 2), 0.5)


def too_short(problem):
    return replan.Protocol([[0.5, 0.5]], duration=1.0)


def another_rate(problem):
    return replan.Protocol([[0.5, 0.5]], problem.duration, lr=0.5)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (raises, "KeyError: 'gamma'"),
        (gives_shares, "ValueError: `result of gives-shares` expects a Protocol, got array("),
        (too_short, "ValueError: `result of too-short` expects a protocol of duration 10, got 1"),
    ],
)
def test_one_bad_strategy_does_not_take_the_others_along(files, problem, recipe, message):
    bad = strategy(recipe)
    compared = replan.compare(problem)
    assert set(compared.runs) == set(STRATEGIES) - {bad.name}
    assert message in compared.failures[bad.name]
    assert len(compared.failures[bad.name]) < 200
    with pytest.warns(UserWarning, match=f"the strategy {bad.name} is left out: ") as warned:
        plan = replan.solve(problem, max_gradients=1)
    assert message.partition(" ")[0] in str(warned[0].message)
    assert warned[0].filename == __file__
    assert plan.loss <= compared.runs["no-replay"].loss


def test_a_strategy_with_a_learning_rate_that_the_problem_has_not(files, problem):
    strategy(another_rate)
    assert "another-rate" in replan.compare(problem).runs
    with pytest.warns(
        UserWarning, match=r"another-rate is left out: .* rates from 1 to 1, got 0.5"
    ):
        replan.solve(problem, max_gradients=1)


def test_ctrl_c_in_a_strategy_stops(files, problem):
    @strategy
    def stopped(problem):
        raise SystemError("compiled code") from KeyboardInterrupt()

    with pytest.raises(SystemError):
        replan.compare(problem)
    assert replan.solve(problem).status == "stopped"


def test_a_strategy_on_the_command_line_with_a_model_of_replan(files, monkeypatch):
    """`--import` counts even where the kind of the model is known."""
    (files / "fresh.toml").write_text(
        "[model]\nhidden = 2\nsimilarity = 0.3\n[start]\nfresh = {}\n"
        "[training]\nduration = 5.0\nsteps = 20\n"
    )
    monkeypatch.setenv("REPLAN_IMPORT", "spaced.py")
    replan.Problem.load("fresh.toml")
    assert "spaced-replay" in STRATEGIES


def test_a_solver_is_never_worse_than_its_best_start(files, problem, monkeypatch):
    solver = importlib.import_module("frank_wolfe").FrankWolfe()
    assert METHODS["frank-wolfe"] is type(solver)
    runs = [run for run in replan.compare(problem).runs.values() if np.ptp(run.protocol.lr) == 0]
    best = min(run.loss for run in runs if np.all(run.protocol.shares.max(axis=1) == 1))
    plan = replan.solve(problem, solver)
    assert plan.status == "converged"
    assert plan.certificate.pmp_residual <= 1e-2 * best
    assert plan.loss <= replan.solve(problem).loss * 1.01

    patient = type(solver)(tolerance=1e-9)
    short = replan.solve(problem, patient, max_gradients=2)
    assert short.status == "limit"
    gradient, calls = Objective.gradient, []

    def interrupted(self, controls):
        calls.append(controls)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return gradient(self, controls)

    monkeypatch.setattr(Objective, "gradient", interrupted)
    stopped = replan.solve(problem, patient)
    assert stopped.status == "stopped"
    for found in (plan, short, stopped):
        assert found.loss <= best * (1 + 1e-6)
        assert np.all(found.protocol.shares.max(axis=1) == 1)


def test_a_solver_keeps_to_limits(files, problem):
    limits = replan.Limits(max_switches=1, max_share=[0.05, 1.0])
    limited = replan.Problem(problem.model, problem.start, 10.0, steps=40, limits=limits)
    plan = replan.solve(limited, importlib.import_module("frank_wolfe").FrankWolfe())
    assert plan.certificate.switches <= 1
    assert plan.protocol.mean_shares[0] <= 0.05 + 1e-12


def test_a_policy_goes_on_from_its_state(files):
    worst = importlib.import_module("worst").Worst
    assert issubclass(worst, Policy)
    policy = worst(3)
    policy.observe({0: 0.1, 1: 0.3, 2: 0.2})
    assert policy.next_tasks(4).tolist() == [1, 1, 1, 1]
    again = worst(3)
    again.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert again.next_counts(5).tolist() == [0, 5, 0]


class _Figure(NamedTuple):
    name: str
    without: str
    message: str


@pytest.mark.parametrize(
    "figure",
    [
        _Figure("gain.py", "claims", "FULL, QUICK, compute, draw, claims, got 'gain' without clai"),
        _Figure("readout.py", "", "`figures` expects modules with names of their own, got 'readou"),
    ],
    ids=lambda figure: figure.name,
)
def test_a_module_that_is_no_figure(files, write, figure):
    write(figure.name, file("gain.py").replace(f"def {figure.without}(", "def something("))
    module = importlib.import_module(figure.name.removesuffix(".py"))
    with pytest.raises(ValueError, match=re.escape(figure.message)):
        replan.paper.make([module], files / "out")
    assert not (files / "out").exists()
