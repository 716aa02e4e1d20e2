"""What solve promises. How good its plans are: test_library.py."""

import json

import numpy as np
import pytest

import replan
from problems import reference_problem, small
from replan import (
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
)
from replan.control.flip_descent import FlipDescent
from replan.control.forward_backward_descent import ForwardBackwardDescent
from replan.control.objective import Controls, Counts, Objective
from replan.core.projection import Domain, project
from replan.control.relaxed_descent import RelaxedDescent
from replan.control.search import on_grid
from replan.control.solver import Solver
from replan.problem.discrete import nearest


@pytest.mark.parametrize("seed", range(8))
def test_every_random_start_alone_gets_there(reference, seed):
    problem = reference_problem(reference)
    objective = Objective(problem, problem.steps, counts=Counts(max_gradients=200))
    rng = np.random.default_rng(seed)
    start = Controls(rng.dirichlet(np.ones(2), size=250), np.ones((250, 6)))
    relaxed = RelaxedDescent(objective, start, free_tasks=True, free_knobs=False)
    best = reference["best_known_mean_loss"]
    for _ in range(60):
        if relaxed.value > best["relaxed"] * (1 + 1e-4):
            relaxed.step()
    rounded = relaxed.controls.with_tasks(nearest(relaxed.controls.shares, problem.step_limits))
    flips = FlipDescent(objective, rounded, enough=1e-6 * relaxed.value)
    before = flips.value
    flips.step()
    for _ in range(7):
        if not flips.terminate() and flips.value > best["discrete"] * (1 + 1e-3):
            flips.step()
    assert relaxed.value <= best["relaxed"] * (1 + 1e-4)
    assert flips.value <= min(before, best["discrete"] * (1 + 1e-3))


def test_exhaustive_search_is_every_protocol(problem):
    coarse = Problem(problem.model, problem.start, duration=10.0, steps=4)
    values = [
        evaluate(coarse, Protocol.from_sequence([a, b, c, d], 2, 10.0)).loss
        for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)
    ]  # fmt: skip
    assert solve(coarse, Exhaustive()).loss == pytest.approx(min(values), rel=1e-6)


@pytest.mark.parametrize(
    "solver",
    [Relax(1, seed=0), Relax(1, seed=1), Flips(1, seed=0), Flips(1, seed=1), ForwardBackward()],
    ids=str,
)
def test_no_plan_is_worse_than_a_strategy(solver):
    problem = small(0.5, steps=60)
    plan = solve(problem, solver)
    for name, strategy in replan.strategies.STRATEGIES.items():
        if not strategy.turns:
            protocol = strategy(problem)
            controls = on_grid(problem, protocol, 60)
            tasks = nearest(controls.shares, problem.step_limits)
            rounded = Protocol.from_sequence(tasks, 2, 25.0)
            assert plan.loss <= evaluate(problem, rounded).loss * (1 + 1e-6), name


def test_learning_rate_alone(problem):
    free = Problem(
        problem.model, problem.start, duration=10.0, steps=40,
        control=Control(tasks=False, lr=(0.1, 4.0)),
    )  # fmt: skip
    tasks = replan.strategies.alternating(free)
    plan = solve(free, start=tasks)
    assert plan.protocol.shares.tolist() == tasks.shares.tolist()
    best = replan.strategies.exponential_lr(free, protocol=tasks)
    assert plan.loss <= evaluate(free, best).loss
    assert plan.protocol.lr.min() >= 0.1
    assert plan.protocol.lr.max() <= 4.0


def test_the_rounding_gap_falls_with_the_step(reference):
    """Order at least one in the step, by regression."""
    gaps, steps = [], np.array([25, 50, 100, 200])
    for n in steps:
        problem = reference_problem(reference, steps=int(n))
        certificate = solve(problem, starts=0).certificate
        gaps.append(certificate.integrality_gap)
    assert np.polyfit(np.log(steps), np.log(gaps), 1)[0] < -1


def test_the_undamped_sweep_cycles_and_says_so(reference):
    problem = reference_problem(reference)
    objective = Objective(problem, problem.steps, counts=Counts(max_gradients=100))
    start = on_grid(problem, replan.strategies.interleaved(problem), 250)
    sweep = ForwardBackwardDescent(objective, start, free_tasks=True, damping=1.0)
    while not sweep.terminate():
        sweep.step()
    assert sweep.cycled
    assert not sweep.met
    assert objective.counts.gradients < 20
    assert solve(problem, ForwardBackward(damping=1.0)).status == "cycled"
    assert solve(problem, ForwardBackward(sweeps=60)).status == "stalled"


def test_limits_of_work_and_stops_return_the_best_so_far(problem):
    with pytest.raises(SolveError, match="the limit on gradients was reached") as caught:
        solve(problem, max_gradients=3, throw=True)
    short = caught.value.plan
    assert short.status == "limit"
    assert "max_gradients" in short.advice
    assert short.statistics["gradients"] <= 4 + 3

    def stop(progress):
        if progress.done > 20:
            raise KeyboardInterrupt

    stopped = solve(problem, progress=stop)
    assert stopped.status == "stopped"
    best = min(
        evaluate(problem, strategy(problem)).loss
        for strategy in replan.strategies.STRATEGIES.values()
        if not strategy.turns
    )
    assert stopped.loss <= best * 1.05  # fractional strategies are rounded


def test_what_is_solved_already_returns_at_once():
    model = TeacherStudent.similar(0.3)
    S = model.teacher_overlaps
    plan = solve(Problem(model, Overlaps(S, S, np.eye(2)), duration=5.0))
    assert plan.loss < 1e-14
    assert plan.statistics["gradients"] < 10  # one for each start and stage, no step


def test_a_single_task_needs_no_choice():
    model = TeacherStudent([[1.0]], hidden=1)
    plan = solve(Problem(model, model.fresh(), duration=20.0, steps=20))
    assert plan.protocol.mean_shares.tolist() == [1.0]
    assert plan.phases == ["task 1 alone for 20"]


def test_plan_files_text_and_picture(problem, tmp_path):
    plan = solve(problem, starts=1)
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
    assert again.loss == plan.loss
    assert Protocol.load(tmp_path / "plan.json") == plan.protocol
    plan.plot(tmp_path / "plan.png")
    lines = str(plan).splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 101
    assert "focus on task" in str(plan)
    assert plan.hamiltonians.shape == (40, 2)
    assert plan.adjoints.shape == (41, 12)


def test_hamiltonians_pick_the_task_in_the_bang_phases(reference):
    """Pontryagin: where one task is trained for long, its Hamiltonian is the smaller one."""
    plan = solve(reference_problem(reference), starts=0)
    focus = int(np.argmax(plan.protocol.sequence != plan.protocol.sequence[0]))
    inner = slice(0, focus // 2)  # near its end the grid blurs the switch
    assert np.all(np.argmin(plan.hamiltonians[inner], axis=1) == plan.protocol.sequence[0])


def test_projection_on_the_simplex():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(200, 4)) * 3
    domain = Domain(
        200,
        np.ones((0, 4), bool),
        np.zeros(4),
        np.ones(4),
        np.zeros((0, 0)),
        np.zeros(0),
        np.zeros(0),
    )
    found = project(points.ravel(), domain).reshape(200, 4)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert found.min() >= 0
    others = rng.dirichlet(np.ones(4), size=(200, 50))
    inner = np.einsum("nt,nkt->nk", points - found, others - found[:, None])
    assert inner.max() < 1e-9  # the projection's obtuse angles


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "relax"}, r"`solver` expects a solver such as Relax\(\) or .*, got 'relax'"),
        ({"solver": Flips(), "starts": 1}, "`starts` goes into the solver where one is given"),
        ({"starts": -1}, "`starts` expects an integer of at least 0"),
        ({"seed": 1.5}, "`seed` expects an integer"),
        ({"max_gradients": 0}, "`max_gradients` expects an integer of at least 1"),
        ({"solver": Exhaustive()}, "at most 4194304 protocols, got 2\\^40: use fewer `steps`"),
        ({"start": Protocol([[1.0]], 10.0)}, "`start` expects a protocol of 2 tasks, got 1"),
    ],
)
def test_bad_input_is_refused(problem, settings, message):
    with pytest.raises(ValueError, match=message):
        solve(problem, **settings)


def test_every_start_diverging_is_an_error(problem):
    wild = Problem(problem.model, problem.start, duration=10.0, lr=1e9)
    with pytest.raises(replan.IntegrationError, match="every start diverges: the trajectory"):
        solve(wild)


def test_advice_fits_the_solver(problem, monkeypatch, tmp_path):
    monkeypatch.setattr(Relax, "_relax_from_plan", lambda self, search: "stalled")
    plan = solve(problem, starts=0)
    assert plan.advice.endswith("try more `starts`, or a larger `tolerance`")
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").advice == plan.advice
    sweep = solve(problem, ForwardBackward(sweeps=3))
    assert sweep.advice == "the sweep did not settle: try more `sweeps`, or the solver Relax"


class Idle(Solver):
    method = "idle"

    def run(self, search):
        return "converged"


class Silent(Solver):
    method = "silent"

    def run(self, search):
        search.begin(starts=0, seed=0)


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (Idle(), "`run` of a solver expects to call `search.begin`"),
        (Silent(), "`run` of Silent expects to return one of converged, stalled, .*; got None"),
    ],
)
def test_a_solver_that_does_not_keep_to_the_interface(problem, solver, message):
    with pytest.raises(ValueError, match=message):
        solve(problem, solver)


class Mixing(Solver):
    method = "mixing"
    tolerance = 1e-4

    def run(self, search):
        search.begin(0, 0)
        shares = np.full_like(search.best.controls.shares, 0.5)
        search.offer(search.best.controls._replace(shares=shares))
        return "converged"


def test_a_solver_cannot_offer_what_is_no_plan(problem):
    with pytest.raises(ValueError, match=r"`controls` expects one task per step.*search\.rounded"):
        solve(problem, Mixing())


def test_flips_do_not_claim_to_have_chosen_learning_rates(problem):
    both = Problem(problem.model, problem.start, duration=10.0, control=Control(lr=(0.1, 2.0)))
    with pytest.raises(ValueError, match="`Flips` expects a problem in which only the tasks"):
        solve(both, Flips())


def test_the_residual_counts_learning_rates_too(problem):
    rates = Problem(
        problem.model, problem.start, duration=10.0, control=Control(tasks=False, lr=(0.1, 2.0))
    )
    plan = solve(rates, ForwardBackward(sweeps=2))
    assert plan.status == "stalled"
    assert plan.certificate.pmp_residual > 0.1 * (plan.loss - solve(rates).loss) > 0


def test_the_sweep_alone_is_what_the_baseline_returns(problem):
    """Not the best strategy, should that be better."""
    first = solve(problem, ForwardBackward(damping=1.0, sweeps=1))
    rounded = replan.strategies.interleaved(problem).round()
    assert first.loss == pytest.approx(evaluate(problem, rounded).loss)
    assert first.loss > evaluate(problem, replan.strategies.focus_then_replay(problem)).loss


@pytest.mark.parametrize("damping", [0.1, 0.5, 1.0])
def test_a_sweep_that_settles_has_converged(problem, damping):
    second = Problem(problem.model, problem.start, duration=10.0, weights=[0.0, 1.0], steps=20)
    plan = solve(second, ForwardBackward(damping=damping))
    assert plan.status == "converged"
    assert set(plan.protocol.sequence) == {1}


@pytest.mark.parametrize("solver", [Relax(starts=0), ForwardBackward()])
def test_the_limit_on_gradients_keeps_what_was_found(problem, solver):
    start = replan.strategies.interleaved(problem)
    few, none = (solve(problem, solver, start=start, max_gradients=n) for n in (8, 1))
    assert few.status == none.status == "limit"
    assert few.loss < none.loss
