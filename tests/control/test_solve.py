"""solve against the reference, exhaustive truth, problems with known answers, and its promises."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

import replan
from replan import Control, Overlaps, Plan, Problem, Protocol, TeacherStudent, evaluate, solve
from replan.control._objective import Controls, Objective
from replan.control._projection import Domain, project
from replan.control._search import on_grid
from replan.control.flips import Flips
from replan.control.forward_backward import Sweep
from replan.control.relax import Relax
from replan.dynamics.auto import AutoDynamics
from replan.protocol._rounding import sum_up


def reference_problem(reference, **settings):
    model = TeacherStudent(reference["teacher_overlaps"], hidden=reference["hidden"])
    return Problem(model, Overlaps(**reference["start"]), duration=25.0, **settings)


def small_problem(similarity, *, tasks=2, steps=12, **settings):
    model = TeacherStudent.similar(similarity, tasks=tasks)
    start = model.pretrain(seed=1, duration=300.0)
    return Problem(model, start, duration=25.0, steps=steps, **settings)


def test_reference_values_are_reached(reference):
    plan = solve(reference_problem(reference))
    best = reference["best_known_mean_loss"]
    assert plan.loss <= best["discrete"] * (1 + 2e-4)
    assert plan.certificate.relaxed_value <= best["relaxed"] * (1 + 1e-4)
    assert plan.certificate.relaxed_value <= plan.loss
    assert plan.status == "converged"
    assert plan.statistics["gradients"] < 200  # work, not seconds
    assert plan.statistics["roll_outs"] < 500
    assert plan.loss == pytest.approx(evaluate(plan.problem, plan.protocol).loss, rel=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_every_random_start_alone_gets_there(reference, seed):
    problem = reference_problem(reference)
    objective = Objective(problem, problem.steps, 200)
    rng = np.random.default_rng(seed)
    start = Controls(rng.dirichlet(np.ones(2), size=250), np.ones((250, 2)))
    relaxed = Relax(objective, start, free_tasks=True, free_lr=False)
    for _ in range(60):
        relaxed.step()
    rounded = relaxed.controls.with_tasks(sum_up(relaxed.controls.shares, objective.lengths))
    flips = Flips(objective, rounded)
    before = flips.value
    for _ in range(8):
        if not flips.terminate():
            flips.step()
    best = reference["best_known_mean_loss"]
    assert relaxed.value <= best["relaxed"] * (1 + 1e-4)
    assert flips.value <= min(before, best["discrete"] * (1 + 1e-3))


@pytest.mark.parametrize("reference", ["two_tasks_k2"], indirect=True)  # the one with such values
def test_joint_control_of_tasks_and_learning_rate(reference):
    problem = reference_problem(reference, control=Control(lr=(0.0, 5.0)))
    plan = solve(problem, starts=2)
    best = reference["best_known_mean_loss_joint"]
    assert plan.loss <= best["discrete_value"] * (1 + 2e-4)
    assert plan.certificate.relaxed_value <= best["relaxed_value"] * (1 + 1e-4)
    assert plan.loss < reference["best_known_mean_loss"]["discrete"] / 5
    assert plan.protocol.lr.min() >= 0
    assert plan.protocol.lr.max() <= 5
    assert plan.relaxed.lr.shape == (250, 2)  # one curve a task


@pytest.mark.parametrize("similarity", [0.1, 0.3, 0.6, 0.9])
def test_exhaustive_truth(similarity):
    problem = small_problem(similarity)
    truth = solve(problem, method="exhaustive")
    assert truth.certificate.scope == "global"
    plan = solve(problem)
    assert truth.loss * (1 - 1e-6) <= plan.loss <= truth.loss * 1.002


def test_exhaustive_truth_of_three_tasks():
    problem = small_problem(0.4, tasks=3, steps=12)
    truth, plan = solve(problem, method="exhaustive"), solve(problem)
    assert truth.loss * (1 - 1e-6) <= plan.loss <= truth.loss * 1.002


def test_exhaustive_search_is_every_protocol(problem):
    coarse = Problem(problem.model, problem.start, duration=10.0, steps=4)
    values = [
        evaluate(coarse, Protocol.from_sequence([a, b, c, d], 2, 10.0)).loss
        for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)
    ]  # fmt: skip
    assert solve(coarse, method="exhaustive").loss == pytest.approx(min(values), rel=1e-6)


@pytest.mark.parametrize("method", ["relax", "flips", "sweep"])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_plan_is_worse_than_a_strategy(method, seed):
    problem = small_problem(0.5, steps=60)
    plan = solve(problem, method=method, seed=seed, starts=1)
    for name, strategy in replan.strategies.STRATEGIES.items():
        if not name.endswith("-lr"):
            protocol = strategy(problem)
            controls = on_grid(protocol, 60)
            tasks = sum_up(controls.shares, np.full(60, 25 / 60))
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


def lotka_volterra(steps):
    """Fishing (Sager 2005): x′ = x − xy − 0.4xw, y′ = −y + xy − 0.2yw, min ∫ (x−1)² + (y−1)²."""

    def rate(state, task, knob):
        x, y, _ = state
        return jnp.array(
            [
                x - x * y - 0.4 * x * task,
                -y + x * y - 0.2 * y * task,
                (x - 1) ** 2 + (y - 1) ** 2,
            ]
        )

    def losses(state):
        return jnp.array([state[2], 0.0])

    start = np.array([0.5, 0.7, 0.0])
    model = AutoDynamics(rate, losses, tasks=2, like=start)
    return Problem(model, start, duration=12.0, steps=steps, weights=[1.0, 0.0])


def test_lotka_volterra_fishing():
    plan = solve(lotka_volterra(240), starts=1)
    assert plan.certificate.relaxed_value == pytest.approx(1.34408, abs=2e-4)
    assert plan.loss == pytest.approx(1.34408, abs=5e-3)
    coarse = solve(lotka_volterra(60), starts=1)
    assert coarse.certificate.integrality_gap > plan.certificate.integrality_gap > 0


def test_scalar_turnpike():
    """x′ = ±1, x(0) = 1, x(2) = ½, min ∫ x²: 3/8, down until 1, rest, up from 3/2.

    The end is held by a steep loss w (x − ½)², which lets it miss by λ/2w and saves λ²/4w, with the
    price λ = x(2)² = ¼ of the end.
    """

    def rate(state, task, knob):
        return jnp.array([2.0 * task - 1.0, state[0] ** 2])

    def losses(state):
        return jnp.array([state[1], (state[0] - 0.5) ** 2])

    start = np.array([1.0, 0.0])
    model = AutoDynamics(rate, losses, tasks=2, like=start)
    problem = Problem(model, start, duration=2.0, steps=80, weights=[1.0, 500.0])
    plan = solve(problem, starts=1)
    assert plan.certificate.relaxed_value == pytest.approx(3 / 8 - 1 / 32000, abs=5e-5)
    up = plan.relaxed.shares[:, 1]
    edges = plan.relaxed.edges
    assert np.all(up[edges[1:] < 0.95] < 0.05)
    assert np.all(np.abs(up[(edges[:-1] > 1.05) & (edges[1:] < 1.42)] - 0.5) < 0.08)
    assert np.all(up[edges[:-1] > 1.55] > 0.95)


def test_the_undamped_sweep_cycles_and_says_so(reference):
    problem = reference_problem(reference)
    objective = Objective(problem, problem.steps, 100)
    start = on_grid(replan.strategies.interleaved(problem), 250)
    sweep = Sweep(objective, start, damping=1.0)
    while not sweep.terminate():
        sweep.step()
    assert sweep.cycled
    assert not sweep.met
    assert objective.gradients < 20
    assert solve(problem, method="sweep").status == "stalled"


def test_limits_of_work_and_stops_return_the_best_so_far(problem):
    short = solve(problem, max_gradients=3)
    assert short.status == "limit"
    assert "max_gradients" in short.advice
    assert short.statistics["gradients"] <= 4 + 3

    def stop(value, gradients):
        if gradients > 20:
            raise KeyboardInterrupt

    stopped = solve(problem, watch=stop)
    assert stopped.status == "stopped"
    best = min(
        evaluate(problem, strategy(problem)).loss
        for name, strategy in replan.strategies.STRATEGIES.items()
        if not name.endswith("-lr")
    )
    assert stopped.loss <= best * 1.05  # fractional strategies are rounded


def test_what_is_solved_already_returns_at_once():
    model = TeacherStudent.similar(0.3)
    S = model.teacher_overlaps
    plan = solve(Problem(model, Overlaps(S, S, np.eye(2)), duration=5.0))
    assert plan.loss < 1e-14
    assert plan.statistics["gradients"] <= 1


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
    assert max(map(len, lines)) <= 100
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
    domain = Domain(200, np.zeros(4), np.ones(4))
    found = project(points.ravel(), domain).reshape(200, 4)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    assert found.min() >= 0
    others = rng.dirichlet(np.ones(4), size=(200, 50))
    inner = np.einsum("nt,nkt->nk", points - found, others - found[:, None])
    assert inner.max() < 1e-9  # the projection's obtuse angles


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "magic"}, "`method` expects one of relax, flips, sweep, exhaustive"),
        ({"starts": -1}, "`starts` expects an integer of at least 0"),
        ({"seed": 1.5}, "`seed` expects an integer"),
        ({"max_gradients": 0}, "`max_gradients` expects an integer of at least 1"),
        ({"method": "exhaustive"}, "at most 4194304 protocols, got 2\\^40: use fewer `steps`"),
        ({"start": Protocol([[1.0]], 10.0)}, "`start` expects a protocol of 2 tasks, got 1"),
    ],
)
def test_bad_input_is_refused(problem, settings, message):
    with pytest.raises(ValueError, match=message):
        solve(problem, **settings)


def test_every_start_diverging_is_an_error(problem):
    wild = Problem(problem.model, problem.start, duration=10.0, lr=1e9)
    with pytest.raises(replan.IntegrationError, match="every start diverges"):
        solve(wild)


def test_objectives_below_zero_are_minimised_too():
    """x′ = ±1 and the objective (x − 0.35)² − 1 at the end: 25 of 40 steps up reach it exactly."""
    model = AutoDynamics(
        lambda state, task, knob: jnp.array([2.0 * task - 1.0]),
        lambda state: jnp.array([(state[0] - 0.35) ** 2 - 1.0, 0.0]),
        tasks=2,
        like=np.array([0.1]),
    )
    problem = Problem(model, np.array([0.1]), duration=1.0, steps=40, weights=[1.0, 0.0])
    plan = solve(problem, starts=1)
    assert plan.loss == pytest.approx(-1.0, rel=1e-6)
    assert np.sum(plan.protocol.sequence) == 25
    assert "loss -1" in str(plan)
