"""What solve promises. How good its plans are: test_library.py."""

import json
import threading
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

import replan
from problems import fishing, reference, reference_problem, small, ten_units
from replan import (
    ArgumentError,
    Control,
    Exhaustive,
    Flips,
    ForwardBackward,
    Overlaps,
    Plan,
    Problem,
    Protocol,
    Relax,
    SolveError,
    TeacherStudent,
    evaluate,
    solve,
    strategies,
)
from replan.control import Solver
from replan.control.discretised import Controls, Counts, DiscretisedObjective
from replan.control.flips import FlipDescent
from replan.control.grids import on_grid
from replan.control.relaxed_controls import RelaxedControls
from replan.control.relaxed_descent import RelaxedDescent
from replan.problem.discrete import nearest

REFERENCES = ["two_tasks_k2", "two_tasks_k4"]


@cache
def ten_units_plan():
    return solve(ten_units(), Relax(starts=1))


@cache
def learned():
    """The paper's model and start."""
    model = TeacherStudent.similar(0.3)
    return model, model.pretrain(duration=1000.0, seed=1)


def paper(**settings):
    return Problem(*learned(), **settings)


# The search


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("seed", range(3))
def test_every_random_start_alone_gets_there(name, seed):
    problem, best = reference_problem(reference(name)), reference(name)["best_known_mean_loss"]
    objective = DiscretisedObjective(problem, problem.steps, counts=Counts(max_gradients=200))
    rng = np.random.default_rng(seed)
    start = Controls(rng.dirichlet(np.ones(2), size=250), np.ones((250, 6)))
    relaxed = RelaxedDescent(objective, RelaxedControls(problem, start, free_tasks=True), start)
    for _ in range(60):
        if relaxed.value > best["relaxed"] * (1 + 1e-4):
            relaxed.step()
    rounded = relaxed.controls.with_tasks(nearest(relaxed.controls.shares, problem.step_limits))
    flips = FlipDescent(objective, rounded, 1e-6 * relaxed.value)
    before = flips.value
    for _ in range(8):
        if not flips.terminate() and flips.value > best["discrete"] * (1 + 1e-3):
            flips.step()
    assert relaxed.value <= best["relaxed"] * (1 + 1e-4)
    assert flips.value <= min(before, best["discrete"] * (1 + 1e-3))


def test_the_rounding_gap_falls_with_the_step():
    """Order at least one in the step, by regression."""
    steps = np.array([25, 50, 100, 200])
    problems = [reference_problem(reference("two_tasks_k2"), steps=int(n)) for n in steps]
    gaps = [solve(problem, Relax(0)).certificate.integrality_gap for problem in problems]
    assert np.polyfit(np.log(steps), np.log(gaps), 1)[0] < -1


@pytest.mark.parametrize("name", REFERENCES)
def test_hamiltonians_pick_the_task_in_the_focus_phase(name):
    """Pontryagin: where one task is trained for long, its Hamiltonian is the smaller one."""
    plan = solve(reference_problem(reference(name)), Relax(0))
    focus = int(np.argmax(plan.protocol.sequence != plan.protocol.sequence[0]))
    inner = slice(0, focus // 2)  # near its end the grid blurs the switch
    assert np.all(np.argmin(plan.hamiltonians[inner], axis=1) == plan.protocol.sequence[0])


def test_what_is_solved_already_returns_at_once():
    model = TeacherStudent.similar(0.3)
    S = model.teacher_overlaps
    plan = solve(Problem(model, Overlaps(S, S, np.eye(2)), duration=5.0))
    assert plan.loss < 1e-14
    assert plan.statistics["gradients"] < 20  # one for each start and stage, no step


def test_a_single_task_needs_no_choice():
    model = TeacherStudent([[1.0]], hidden=1)
    plan = solve(Problem(model, model.fresh(), duration=20.0, steps=20))
    assert plan.protocol.mean_shares.tolist() == [1.0]
    assert plan.status == "converged"


# The paper's sweep


@pytest.mark.parametrize("name", REFERENCES)
def test_the_undamped_sweep_cycles_and_says_so(name):
    problem = reference_problem(reference(name))
    plan = solve(problem, ForwardBackward(damping=1.0))
    assert plan.status == "cycled"
    assert "damping" in plan.advice
    assert plan.statistics["gradients"] < 20
    assert solve(problem, ForwardBackward(sweeps=60)).status == "stalled"


@pytest.mark.parametrize("damping", [0.1, 1.0])
def test_a_sweep_that_settles_has_converged(damping):
    problem = ten_units(steps=20, objective=replan.Objective(weights=[0.0, 1.0]))
    plan = solve(problem, ForwardBackward(damping=damping))
    assert plan.status == "converged"
    assert set(plan.protocol.sequence) == {1}


def test_the_sweep_alone_is_what_the_baseline_returns():
    """Not the best strategy, should that be better."""
    problem = ten_units()
    first = solve(problem, ForwardBackward(damping=1.0, sweeps=1))
    rounded = strategies.interleaved(problem).round()
    assert first.loss == pytest.approx(evaluate(problem, rounded).loss)
    assert first.loss > evaluate(problem, strategies.focus_then_replay(problem)).loss


# When it ends


@pytest.mark.parametrize("solver", [Relax(starts=0), ForwardBackward()], ids=str)
def test_the_limit_on_gradients_keeps_the_best_so_far(solver):
    problem = ten_units()
    initial = strategies.interleaved(problem)
    few, one = (solve(problem, solver, initial=initial, max_gradients=n) for n in (8, 1))
    assert few.status == one.status == "limit"
    assert few.loss < one.loss
    with pytest.raises(SolveError) as caught:
        solve(problem, max_gradients=3, throw=True)
    assert caught.value.plan.statistics["gradients"] <= 3
    assert "max_gradients" in caught.value.plan.advice


def test_the_integrator_follows_a_learning_rate_that_is_too_large_for_it():
    """At lr = 30 the error of the first integrator is a fifth of the loss."""
    plan = solve(paper(duration=5.0, steps=50, lr=30.0))
    assert plan.certificate.discretisation_error < 1e-3 * plan.loss
    assert np.isfinite(plan.certificate.multistart_spread)
    assert plan.status == "converged"


def test_a_plan_that_the_integrator_limits_says_so(monkeypatch):
    monkeypatch.setattr("replan.control.discretised._MOST_SUBSTEPS", 1)
    problem = paper(duration=5.0, steps=10, lr=10.0)
    plan = solve(problem)
    assert plan.status == "inaccurate"
    with pytest.raises(SolveError) as caught:
        solve(problem, throw=True)
    assert caught.value.plan.loss == plan.loss


def test_a_plan_is_kept_where_the_integrator_cannot_reach_its_accuracy(monkeypatch, tmp_path):
    monkeypatch.setattr("replan.control._solve.evaluate", partial(evaluate, max_steps=300))
    plan = solve(paper(duration=5.0, steps=10))
    assert plan.trajectory.rtol == 1e-5
    assert (plan.status, plan.trajectory.status) == ("inaccurate", "ok")
    assert plan.certificate.discretisation_error >= plan.trajectory.error
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").trajectory.rtol == 1e-5


def test_losses_at_the_rounding_are_not_worth_a_search():
    """After 1,000 units the losses are about 1e-11, a billionth of what the controls change."""
    plan = solve(paper(duration=1000.0))
    assert plan.loss < 1e-10
    assert plan.status == "converged"
    assert plan.statistics["gradients"] < 400


def test_a_smaller_tolerance_leaves_less_to_gain():
    problem = paper(duration=10.0, steps=40)
    rough, fine = (solve(problem, Relax(tolerance=x)) for x in (1e-1, 1e-7))
    assert fine.certificate.pmp_residual < 0.1 * rough.certificate.pmp_residual
    assert fine.certificate.relaxed_value <= rough.certificate.relaxed_value
    assert fine.statistics["gradients"] > rough.statistics["gradients"]


def test_every_start_diverging_is_an_error():
    with pytest.raises(replan.IntegrationError, match="every start diverges"):
        solve(ten_units(lr=1e9))


# Initial protocols


def test_initial_protocols_without_random_starts_are_alone():
    problem = ten_units()
    initial = strategies.sequential(problem)
    plan = solve(problem, Relax(starts=0), initial=initial)
    assert plan.certificate.starts == 1
    assert plan.loss <= evaluate(problem, initial).loss
    others = [strategies.no_replay(problem), ten_units_plan().relaxed]
    plan = solve(problem, Relax(starts=0), initial=others)
    assert plan.certificate.starts == 2
    best = ten_units_plan().certificate.relaxed_value
    assert plan.certificate.relaxed_value <= best * (1 + 1e-9)


def test_a_users_strategy_that_fails_is_left_out(monkeypatch):
    def broken(problem):
        raise ZeroDivisionError

    def interrupting(problem):
        raise KeyboardInterrupt

    problem = ten_units(steps=8)
    monkeypatch.setitem(strategies.STRATEGIES, "broken", strategies.Strategy(broken))
    with pytest.warns(UserWarning, match="broken is left out") as caught:
        assert solve(problem).status == "converged"
    assert caught[0].filename == __file__
    # Ctrl-C while starts are gathered keeps the best of them, if there is one.
    monkeypatch.setitem(strategies.STRATEGIES, "broken", strategies.Strategy(interrupting))
    assert solve(problem).status == "stopped"
    monkeypatch.setattr("replan.control.search.start_protocols", lambda *_: interrupting(None))
    with pytest.raises(KeyboardInterrupt):
        solve(problem, Exhaustive())


# Threads, progress and Ctrl-C

THREADED = {
    "reference": lambda: reference_problem(reference("two_tasks_k2"), steps=100),
    "tasks and rates": lambda: small(0.3, steps=40, control=Control(lr=(0.0, 2.0))),
    "arrivals": lambda: small(0.4, tasks=3, steps=50, arrivals=[0.0, 5.0, 12.5]),
    "fishing": lambda: fishing(100),
}


def same(plan):
    work = [plan.statistics[name] for name in ("gradients", "roll_outs")]
    return plan.certificate, plan.status, work, plan.trajectory.losses.tobytes()


@pytest.mark.parametrize("name", THREADED)
@pytest.mark.parametrize("most", [17, 5000])
def test_the_plan_does_not_depend_on_the_number_of_threads(name, most, monkeypatch):
    plans = []
    for cores in (1, 2, 3):
        monkeypatch.setattr("replan.control.multistart.free_cores", lambda cores=cores: cores)
        plans.append(solve(THREADED[name](), Relax(starts=4), max_gradients=most))
    assert plans[0].statistics["gradients"] <= most
    for other in plans[1:]:
        assert same(other) == same(plans[0])
        assert (other.protocol, other.relaxed) == (plans[0].protocol, plans[0].relaxed)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_stop_in_mid_search_keeps_the_best_and_leaves_no_thread_behind(cores, monkeypatch):
    monkeypatch.setattr("replan.control.multistart.free_cores", lambda: cores)
    problem = THREADED["reference"]()
    begun = solve(problem, Relax(starts=4), max_gradients=1).loss
    reported = []

    def stop(progress):
        reported.append(progress.done)
        if progress.done > 10:
            raise KeyboardInterrupt

    before = threading.active_count()
    plan = solve(problem, Relax(starts=4), progress=stop)
    assert plan.status == "stopped"
    assert plan.loss <= begun
    assert reported == sorted(reported)
    assert threading.active_count() == before


def test_an_error_in_a_thread_is_raised(monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("replan.control.multistart.free_cores", lambda: 2)
    monkeypatch.setattr("replan.control.relaxed_descent.RelaxedDescent.step", fail)
    with pytest.raises(ZeroDivisionError):
        solve(THREADED["reference"]())


def test_progress_is_reported_from_the_beginning():
    problem = paper(duration=2.0, steps=4, control=Control(lr=(0.0, 2.0)))
    reports = []
    solve(problem, progress=reports.append, max_gradients=30)
    notes = [progress.note for progress in reports]
    assert any("exponential-lr: 5 of" in note for note in notes)
    assert any(note.startswith("best ") for note in notes)


# Plans as files and in words


def test_plans_are_saved_and_loaded(tmp_path):
    plan = ten_units_plan()
    plan.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    for key in ("value", "losses", "duration", "shares", "lr", "tasks", "relaxed_value",
                "integrality_gap", "pmp_residual", "status"):  # fmt: skip
        assert key in content
    assert content["value"] == plan.loss
    assert min(content["tasks"]) >= 1
    again = Plan.load(tmp_path / "plan.json")
    assert again.protocol == plan.protocol
    assert again.certificate == plan.certificate
    assert (again.status, again.advice, again.statistics) == (
        plan.status, plan.advice, plan.statistics,
    )  # fmt: skip
    np.testing.assert_array_equal(again.hamiltonians, plan.hamiltonians)
    np.testing.assert_array_equal(again.adjoints, plan.adjoints)
    assert plan.hamiltonians.shape == (40, 2)
    assert plan.adjoints.shape == (41, plan.problem.state.size)
    assert Protocol.load(tmp_path / "plan.json") == plan.protocol
    with pytest.raises(ArgumentError) as caught:
        Plan.load(tmp_path / "plan.json", model=TeacherStudent.similar(0.3, noise=0.5))
    assert caught.value.name == "model"
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json"):
        Plan.load(tmp_path / "other.json")


def phases(rows, **settings):
    problem = ten_units(steps=100, **settings)
    protocol = Protocol(np.eye(2)[rows], problem.duration)
    return replace(solve(problem, max_gradients=1), protocol=protocol).phases


def test_phases_name_long_stays_among_many_short_ones():
    rows = [1] * 20 + [0, 1] * 15 + [0] * 10 + [1, 0] * 15 + [1] * 10
    assert phases(rows) == [
        "focus on task 2 for 2",
        "revision for 3 (task 1 50%, task 2 50%)",
        "task 1 alone for 1",
        "revision for 3 (task 1 50%, task 2 50%)",
        "task 2 alone for 1",
    ]
    rows = [0] * 50 + [1, 0] * 25
    first, *rest = phases(rows, arrivals=[0.0, 5.0])
    assert first == "task 1 alone for 5"  # not by choice
    assert rest == ["revision for 4.9 (task 1 49%, task 2 51%)", "task 1 alone for 0.1"]


# Own solvers, and mistakes


class Own(Solver):
    """Do something with a search, and return a status."""

    method = "own"

    def __init__(self, act, status="converged"):
        self.act, self.status = act, status

    def run(self, search):
        self.act(search)
        return self.status


def test_the_best_of_all_strategies_is_a_solver():
    problem = ten_units()
    plan = solve(problem, Own(lambda search: search.seed()))
    assert plan.status in ("converged", "inaccurate")
    assert plan.protocol.is_discrete
    made = [x(problem) for x in strategies.STRATEGIES.values() if not x.turns]
    rounded = [nearest(on_grid(problem, x, 40).shares, problem.step_limits) for x in made]
    protocols = [Protocol.from_sequence(x, 2, problem.duration) for x in rounded]
    assert plan.loss == pytest.approx(min(evaluate(problem, x).loss for x in protocols), rel=1e-9)


def mix(search):
    search.seed()
    controls = search.best.controls
    search.submit(controls._replace(shares=np.full_like(controls.shares, 0.5)))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"solver": "relax"}, "solver"),
        ({"max_gradients": 0}, "max_gradients"),
        ({"throw": 1}, "throw"),
        ({"progress": 1}, "progress"),
        ({"solver": Exhaustive()}, "steps"),
        ({"initial": Protocol([[1.0]], 10.0)}, "initial"),
        ({"initial": []}, "initial"),
        ({"initial": ["a"]}, "initial"),
        ({"initial": Protocol([[0.5, 0.5]], 10.0, lr=2.0)}, "initial"),
        ({"solver": Own(lambda search: None)}, "solver"),
        ({"solver": Own(lambda search: search.seed(), None)}, "status"),
        ({"solver": Own(mix)}, "controls"),
    ],
)
def test_mistakes_are_named(settings, name):
    with pytest.raises(ArgumentError) as caught:
        solve(ten_units(), **settings)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("solver", "control"),
    [
        (Flips(), Control(lr=(0.1, 2.0))),
        (Flips(), Control("constant")),
        (Exhaustive(), Control("constant")),
        (ForwardBackward(), Control("constant")),
        (ForwardBackward(), Control(lr=replan.Range(0.1, 2.0, shared=True))),
    ],
)
def test_solvers_refuse_what_they_cannot_control(solver, control):
    with pytest.raises(ArgumentError) as caught:
        solve(ten_units(control=control), solver)
    assert caught.value.name == "solver"


def test_problems_that_cannot_be_solved():
    problem = ten_units(control=Control(tasks=False, lr=(0.1, 2.0)))
    shares = [strategies.no_replay(problem), strategies.interleaved(problem)]
    with pytest.raises(ArgumentError) as caught:
        solve(problem, initial=shares)
    assert caught.value.name == "initial"
    for unsolvable in (3, ten_units(control=Control(tasks=False))):
        with pytest.raises(ArgumentError) as caught:
            solve(unsolvable)
        assert caught.value.name == "problem"


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Relax, {"tolerance": 0}),
        (Relax, {"starts": -1}),
        (Relax, {"seed": 1.5}),
        (ForwardBackward, {"damping": 1.5}),
        (ForwardBackward, {"sweeps": 0}),
    ],
)
def test_settings_of_solvers_are_checked(make, settings):
    with pytest.raises(ArgumentError) as caught:
        make(**settings)
    assert caught.value.name == next(iter(settings))


def test_advice_fits_the_solver(monkeypatch):
    monkeypatch.setattr(RelaxedDescent, "residual", 1.0)
    assert "`starts`" in solve(ten_units(), Relax(0)).advice
    assert "`sweeps`" in solve(ten_units(), ForwardBackward(sweeps=3)).advice
