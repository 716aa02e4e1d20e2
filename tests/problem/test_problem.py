"""Problem, Objective, Control, Limits: what they hold and what they refuse."""

import numpy as np
import pytest

import replan
from replan import ArgumentError, Control, Limits, Objective, Overlaps, Problem, Protocol, Range
from replan.problem.step_limits import replay_on

MODEL = replan.TeacherStudent.similar(0.3)
START = MODEL.fresh(seed=0)


def make(**settings):
    return Problem(MODEL, START, **{"duration": 10.0, "steps": 20} | settings)


def test_defaults():
    problem = Problem(MODEL, START, 10.0)
    assert (problem.steps, problem.knobs["lr"]) == (250, 1.0)
    assert problem.objective.weights.tolist() == [0.5, 0.5]
    assert problem.control == Control()
    assert not problem.step_limits.binding
    assert problem.members == (problem,)


def test_a_knob_is_an_argument():
    problem = make(lr=0.5, head_lr=0.1)
    assert problem.knobs == {"lr": 0.5, "feature_lr": 1.0, "head_lr": 0.1}
    assert problem.settings == {"lr": 0.5, "head_lr": 0.1}
    protocol = problem.accept(Protocol([[0.5, 0.5]], 10.0))
    assert {name: x.tolist() for name, x in protocol.knobs.items()} == {
        "lr": [0.5],
        "head_lr": [0.1],
    }


def test_the_default_of_a_controlled_knob_lies_in_its_range():
    assert make(control=Control(lr=(2.0, 3.0))).knobs["lr"] == 2.0
    low, high = make(control=Control(lr=(2.0, 3.0)), head_lr=0.5).knob_ranges
    assert low.tolist() == [2, 2, 1, 1, 0.5, 0.5]
    assert high.tolist() == [3, 3, 1, 1, 0.5, 0.5]


def test_changed_keeps_everything_else():
    problem = make(lr=0.5, objective=Objective(weights=[0.9, 0.1]), arrivals=[0, 5])
    changed = problem.changed(duration=20.0)
    assert changed.duration == 20.0
    assert changed.knobs["lr"] == 0.5
    assert changed.objective.weights.tolist() == [0.9, 0.1]
    assert changed.availability.arrivals.tolist() == [0, 5]


# Objective


def test_the_value_adds_goal_running_costs_and_penalties():
    final, along = np.array([0.2, 0.4]), 0.05
    plain = make(objective=Objective(weights=[0.75, 0.25])).objective
    assert plain.value(final) == pytest.approx(0.25)
    assert plain.value(final, along) == pytest.approx(0.3)
    target = make(objective=Objective(weights=[0.75, 0.25], targets=[None, 0.1])).objective
    # 30 × the largest weight × (0.4 − 0.1), less the smoothing of the kink
    assert target.value(final) == pytest.approx(0.25 + 30 * 0.75 * (0.3 + 0.1 * 0.03 / 2))
    assert target.value(np.array([0.2, 0.09])) == pytest.approx(plain.value(np.array([0.2, 0.09])))


def test_worst_weights_are_relative_to_the_largest():
    worst = make(objective=Objective("worst", weights=[0.2, 0.1])).objective
    assert worst.value(np.array([0.3, 0.8])) == pytest.approx(0.4)
    assert worst.slopes(np.array([0.3, 0.8]), np.array([0.0, 1.0])).tolist() == [0.0, 0.5]
    ignored = make(objective=Objective("worst", weights=[1.0, 0.0])).objective
    assert ignored.value(np.array([0.3, 0.8])) == pytest.approx(0.3)


def test_seen_counts_tasks_from_their_arrival():
    seen = make(objective=Objective("seen"), arrivals=[0, 5]).objective
    edges = np.array([0.0, 4.0, 6.0, 10.0])
    assert seen.goal_along(edges) == pytest.approx(np.array([[1, 0], [0.75, 0.25], [0.5, 0.5]]))
    losses = np.array([[0.2, 0.6], [0.2, 0.6]])
    assert seen.curve(np.array([0.0, 5.0]), losses) == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize("goal", ["final", "worst"])
def test_slopes_are_derivatives(goal):
    rng = np.random.default_rng(0)
    objective = make(objective=Objective(goal, weights=[0.3, 0.7], targets=[0.2, 0.3])).objective
    # anywhere, and where the targets' kinks are smooth
    for final in [*rng.uniform(0.1, 0.5, (20, 2)), *rng.uniform(0.97, 1.0, (5, 2)) * [0.2, 0.3]]:
        step = 1e-7
        numeric = [
            (objective.value(final + step * e) - objective.value(final - step * e)) / (2 * step)
            for e in np.eye(2)
        ]
        mixture = np.eye(2)[np.argmax(objective.scaled(final))] if goal == "worst" else 1.0
        assert objective.slopes(final, mixture) == pytest.approx(numeric, rel=1e-4, abs=1e-6)


def test_losses_by_name():
    objective = make(objective=Objective(weights={"task 2": 2.0}, targets={"task 1": 0.1}))
    assert objective.objective.weights.tolist() == [0.0, 2.0]
    assert objective.objective.targets.tolist() == [0.1, np.inf]


# Availability


def test_availability():
    available = make(arrivals=[0, 5], departures=[8, np.inf]).availability
    assert available.changes.tolist() == [5, 8]
    edges = np.array([0.0, 5.0, 8.0, 10.0])
    assert available.on(edges).tolist() == [[True, False], [True, True], [False, True]]
    assert available.newest(edges).tolist() == [0, 1, 1]
    shares = np.full((3, 2), 0.5)
    assert available.renormalise(shares, edges).tolist() == [[1, 0], [0.5, 0.5], [0, 1]]
    nothing = np.array([[0.0, 1.0]] * 3)
    assert available.renormalise(nothing, edges)[0].tolist() == [1, 0]


# Limits in steps


def test_limits_in_steps():
    limits = make(
        limits=Limits(min_share=[0.1, 0], max_share=[0.3, 1], min_dwell=1.2, max_switches=4)
    ).step_limits
    assert (limits.low.tolist(), limits.high.tolist()) == ([2, 0], [6, 20])
    assert (limits.dwell, limits.switches) == (3, 4)
    assert limits.binding
    assert limits.on_stays


def test_limits_on_replay():
    limits = make(arrivals=[0, 5], limits=Limits(max_replay=0.2)).step_limits
    assert limits.on_replay
    assert not limits.old[:10].any()
    assert limits.old[10:].tolist() == [[True, False]] * 10
    assert limits.replays[10:].tolist() == [2] * 10


@pytest.mark.parametrize(
    ("arrival", "steps", "span", "cap"),
    [(5, 20, [10, 20], 0.2), (5, 7, [3, 7], 0.3), (9.5, 20, [19, 20], 0.0)],
)
def test_limits_on_replay_on_other_steps(arrival, steps, span, cap):
    """What lies before the arrival, in the step that it cuts, may be replay."""
    limits = make(arrivals=[0, arrival], limits=Limits(max_replay=0.2)).step_limits
    _, spans, caps = replay_on(limits, steps)
    assert spans.tolist() == [span]
    assert caps == pytest.approx([cap])


# What is refused, and under which name


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("duration", {"duration": 0.0}),
        ("duration", {"duration": np.nan}),
        ("duration", {"duration": "long"}),
        ("steps", {"steps": 0}),
        ("steps", {"steps": 2.5}),
        ("lr", {"lr": -1.0}),
        ("lr", {"lr": True}),
        ("lr", {"lr": 1.0, "control": Control(lr=(2.0, 3.0))}),
        ("learning_rate", {"learning_rate": 1.0}),
        ("control", {"control": 3}),
        ("control", {"control": Control(dropout=(0, 1))}),
        ("control.tasks", {"control": Control("constant"), "arrivals": [0, 5]}),
        ("objective", {"objective": "final"}),
        ("weights", {"objective": Objective(weights=[1.0])}),
        ("weights", {"objective": Objective(weights=[-1.0, 1.0])}),
        ("weights", {"objective": Objective(weights=[0.0, 0.0])}),
        ("weights", {"objective": Objective(weights={"task 3": 1.0})}),
        ("weights", {"objective": Objective("seen", weights=[0, 1]), "arrivals": [0, np.inf]}),
        ("running", {"objective": Objective(running=[1.0, np.inf])}),
        ("targets", {"objective": Objective(targets=[0.1])}),
        ("targets", {"objective": Objective(targets=[0.1, -1.0])}),
        ("arrivals", {"arrivals": [0.0, 5.03]}),
        ("arrivals", {"arrivals": [1.0, 1.0]}),
        ("arrivals", {"arrivals": [0.0]}),
        ("departures", {"departures": [1.0, np.nan]}),
        ("departures", {"arrivals": [0, 5], "departures": [10, 5]}),
        ("limits", {"limits": 3}),
        ("limits", {"limits": Limits(max_switches=2), "control": Control(False, lr=(0, 1))}),
        ("limits", {"limits": Limits(max_switches=2), "control": Control("constant")}),
        ("limits", {"limits": Limits(min_share=[0.5, 0.5], max_switches=0)}),
        ("min_share", {"limits": Limits(min_share=[0.7, 0.7])}),
        ("min_share", {"limits": Limits(min_share=[0.7, 0.0], max_share=[0.5, 1.0])}),
        ("min_share", {"limits": Limits(min_share=[0.41, 0], max_share=[0.44, 1])}),
        ("min_share", {"limits": Limits(min_share=[0, 0.9]), "arrivals": [0, 5]}),
        ("max_share", {"limits": Limits(max_share=[0.2, 0.2])}),
        ("min_dwell", {"limits": Limits(min_dwell=30.0)}),
        ("max_replay", {"limits": Limits(max_replay=0.2)}),
        ("mean", {"limits": Limits(mean={"lr": 1.0})}),
        ("mean of lr", {"limits": Limits(mean={"lr": 9.0}), "control": Control(lr=(0, 5))}),
        ("mean of lr", {"limits": Limits(mean={"lr": 1.0}), "control": Control(lr=(0, 5))}),
    ],
)
def test_bad_arguments_are_refused_by_name(name, settings):
    with pytest.raises(ArgumentError) as caught:
        make(**settings)
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("model", lambda: Problem("model", START, 1.0)),
        ("start", lambda: Problem(MODEL, None, 1.0)),
        ("duration", lambda: Problem(MODEL, START)),
        ("duraton", lambda: Problem(MODEL, START, duraton=1.0)),
        ("Q", lambda: Problem(MODEL, Overlaps([[1.0]], [[0, 0]], [[1.0], [1.0]]), 1.0)),
        ("goal", lambda: Objective("last")),
        ("tasks", lambda: Control("often")),
        ("lr", lambda: Control(lr=(3.0, 1.0))),
        ("lr", lambda: Control(lr=(-1.0, 1.0))),
        ("lr", lambda: Control(lr=3.0)),
        ("low", lambda: Range(2.0, 1.0)),
        ("constant", lambda: Range(0.0, 1.0, constant="yes")),
        ("min_dwell", lambda: Limits(min_dwell=-1)),
        ("max_switches", lambda: Limits(max_switches=1.5)),
        ("max_share", lambda: Limits(max_share=[0.5, 1.5])),
        ("max_replay", lambda: Limits(max_replay=2)),
        ("mean of lr", lambda: Limits(mean={"lr": (2, 1)})),
        ("control.feature_lr", lambda: make(control=Control(feature_lr=Range(-1, 1)))),
    ],
)
def test_bad_parts_are_refused_by_name(name, call):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("protocol", "interleaved"),
        ("protocol", Protocol([[1.0]], 10.0)),
        ("protocol", Protocol([[0.5, 0.5]], 5.0)),
        ("knobs of protocol", Protocol([[0.5, 0.5]], 10.0, dropout=0.1)),
    ],
)
def test_protocols_that_do_not_fit_are_refused(name, protocol):
    with pytest.raises(ArgumentError) as caught:
        make().accept(protocol)
    assert caught.value.name == name


def test_shares_of_unavailable_tasks_are_refused():
    with pytest.raises(ArgumentError) as caught:
        make(arrivals=[0, 5]).accept(Protocol([[0.5, 0.5]], 10.0))
    assert caught.value.name == "protocol"
