"""Every solver over every problem of the library that it can take."""

import numpy as np
import pytest

from problems import LIBRARY, SOLVERS, fishing, fits, small
from problems.models import Shifted
from replan import ArgumentError, Problem, Relax, evaluate, solve, strategies
from replan.control.discretised import DiscretisedObjective
from replan.control.search import EFFORTS

STATUSES = {
    "flips": {"converged", "inaccurate"},
    "more flips": {"converged", "inaccurate"},
    "forward-backward": {"converged", "stalled", "cycled", "inaccurate"},
    "printed": {"converged", "stalled", "cycled"},
    "exhaustive": {"converged", "inaccurate"},
}
LOCAL = ("flips", "forward-backward", "printed")


def plan_of(problem, name):
    """Return a solver's plan; local searches of long problems have one start, to save time."""
    alone = problem.steps > 100 and name in LOCAL
    return solve(problem, SOLVERS[name], initial=strategies.interleaved(problem) if alone else None)


def most_work(problem, name):
    """Return how many gradients and roll-outs a solver may need."""
    tasks, steps = problem.model.tasks, problem.steps
    if name in ("forward-backward", "printed"):
        turns = 3 * tasks * steps if problem.control.knobs else 0
        return 30, 100 + 30 * (1 + turns)
    if name == "exhaustive":
        return 0, 100 + sum(tasks**i for i in range(1, steps + 1)) + 4 * tasks**4
    many = problem.step_limits.on_stays or problem.step_limits.on_replay or not problem.smooth
    if many:  # moves of whole stays or of pairs too, from many starts
        return {"relax": (2000, 9000), "flips": (150, 4500), "more flips": (600, 6500)}[name]
    few = steps <= 32  # then the polish has many starts
    return {"relax": (300, 2000 if few else 500), "tight": (1300, 2000), "flips": (150, 4500)}[name]


@pytest.mark.parametrize(
    ("known", "name"),
    [(known, name) for known in LIBRARY for name in known.within],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_solvers_over_the_library(known, name, monkeypatch):
    problem = known.problem
    local = EFFORTS["normal"]._replace(all=0)  # it is to search, not to try all protocols
    monkeypatch.setitem(EFFORTS, "normal", local)
    plan = plan_of(problem, name)
    certificate, sequence = plan.certificate, plan.protocol.sequence

    assert known.best - 1e-5 * abs(known.best) <= plan.loss
    assert plan.loss <= known.best + known.within[name] * abs(known.best)
    assert plan.status in STATUSES.get(name, known.statuses)

    assert plan.loss == pytest.approx(evaluate(problem, plan.protocol).loss, rel=1e-12)
    assert np.all(plan.protocol.shares.max(axis=1) == 1.0)
    assert certificate.switches == np.count_nonzero(np.diff(sequence))
    assert fits(problem, sequence)
    for knob, allowed in problem.control.knobs.items():
        values = plan.protocol.knobs[knob]
        assert np.all((values >= allowed.low) & (values <= allowed.high))
    assert certificate.pmp_residual >= -1e-12
    assert 0 <= certificate.discretisation_error <= 2e-3 * abs(plan.loss)
    assert certificate.scope == ("global" if name == "exhaustive" else "local")

    if name in ("relax", "tight"):
        assert certificate.relaxed_value <= plan.loss
        assert certificate.integrality_gap == plan.loss - certificate.relaxed_value
        assert plan.relaxed.by_task("lr").shape == (problem.steps, problem.model.tasks)
        mixed = evaluate(problem, plan.relaxed, rtol=1e-7).loss
        assert certificate.relaxed_value == min(mixed, plan.loss)
        if known.relaxed is not None:  # on the turnpike, the tolerance itself is 3e-4 of the value
            assert certificate.relaxed_value == pytest.approx(known.relaxed, rel=2e-4)
    else:
        assert certificate.relaxed_value is None
        assert certificate.integrality_gap is None

    gradients, roll_outs = most_work(problem, name)
    assert plan.statistics["gradients"] <= gradients
    assert plan.statistics["roll_outs"] <= roll_outs


@pytest.mark.parametrize("known", LIBRARY, ids=lambda known: known.name)
def test_other_solvers_refuse(known):
    if known.problem.control.knobs:
        for name in ("flips", "exhaustive"):
            with pytest.raises(ArgumentError) as caught:
                solve(known.problem, SOLVERS[name])
            assert caught.value.name == "solver"


def test_the_turnpike_is_taken():
    (known,) = (known for known in LIBRARY if known.name == "turnpike")
    relaxed = plan_of(known.problem, "tight").relaxed
    up, edges = relaxed.shares[:, 1], relaxed.edges
    assert np.all(up[edges[1:] < 0.95] < 0.05)
    assert np.all(np.abs(up[(edges[:-1] > 1.05) & (edges[1:] < 1.42)] - 0.5) < 0.08)
    assert np.all(up[edges[:-1] > 1.55] > 0.95)


def test_the_gap_of_fishing_falls_with_the_step():
    gaps = [solve(fishing(n), Relax(1)).certificate.integrality_gap for n in (60, 240)]
    assert gaps[0] > gaps[1] > 0


@pytest.mark.parametrize("constant", [-3e-4, 1e4])
@pytest.mark.parametrize("name", ["relax", "flips", "forward-backward", "exhaustive"])
def test_a_constant_in_the_loss_changes_nothing_but_the_value(name, constant):
    problem = small(0.3, steps=8)
    shifted = Problem(Shifted(problem.model, constant), problem.start, duration=25.0, steps=8)
    plan, other = plan_of(problem, name), plan_of(shifted, name)
    assert other.loss == pytest.approx(plan.loss + constant, abs=1e-8 * (1 + abs(constant)))
    assert other.protocol == plan.protocol
    assert other.status == plan.status
    assert DiscretisedObjective(problem, 8).substeps == DiscretisedObjective(shifted, 8).substeps
