"""The library of test problems: what is known about each, and how close every solver must come."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np

from problems.models import averaging_model, fishing_model, negative_model, turnpike_model
from replan import (
    Control,
    Exhaustive,
    Flips,
    ForwardBackward,
    Limits,
    Objective,
    Overlaps,
    Problem,
    Protocol,
    Relax,
    TeacherStudent,
    evaluate,
)
from replan.models import Schedule

DATA = Path(__file__).parents[1] / "data"

SOLVERS = {
    "relax": Relax(starts=1),
    "tight": Relax(starts=1, tolerance=1e-4),
    "flips": Flips(starts=0),
    "more flips": Flips(starts=2),
    "forward-backward": ForwardBackward(sweeps=30),
    "printed": ForwardBackward(damping=1.0, sweeps=30),
    "exhaustive": Exhaustive(),
}


@dataclass(frozen=True, eq=False)
class Known:
    """A problem and what is known about it.

    tests: what it is for. make: gives the problem. value: what no protocol can go below; without
    it, the best of all protocols, each tried. within: how far above it each solver may end, as a
    part of it; solvers that are not named cannot take the problem. relaxed: the value of the best
    mixture, met by `Relax` within 2e-4 of it. statuses: of `Relax`.
    """

    name: str
    tests: str
    make: Callable[[], Problem]
    within: dict[str, float]
    value: float | None = None
    relaxed: float | None = None
    statuses: tuple[str, ...] = ("converged",)

    @cached_property
    def problem(self) -> Problem:
        """The problem, made once."""
        return self.make()

    @cached_property
    def best(self) -> float:
        """The value that no protocol can go below."""
        return best_of_all(self.problem) if self.value is None else self.value


@cache
def after_task_one(similarity: float, tasks: int = 2) -> tuple[TeacherStudent, Overlaps]:
    """Return a model and where it is after 300 units on its first task."""
    model = TeacherStudent.similar(similarity, tasks=tasks)
    return model, model.pretrain(seed=1, duration=300.0)


@cache
def reference(name: str) -> dict:
    """Return an instance with values from an independent code."""
    return json.loads((DATA / f"{name}.json").read_text())


def reference_problem(content: dict, **settings) -> Problem:
    """Return the problem of such an instance."""
    model = TeacherStudent(content["teacher_overlaps"], hidden=content["hidden"])
    return Problem(model, Overlaps(**content["start"]), duration=25.0, **settings)


def ten_units(**settings) -> Problem:
    """Return a small problem: two tasks, the first half learned, ten units of time left."""
    model, start = half_learned()
    return Problem(model, start, **{"duration": 10.0, "steps": 40} | settings)


@cache
def half_learned() -> tuple[TeacherStudent, Overlaps]:
    """Return a model and where it is after 60 units on its first task."""
    model = TeacherStudent.similar(0.3)
    return model, model.pretrain(duration=60.0, seed=1)


def stream(steps: int = 60, *, goal: str = "final", **settings) -> Problem:
    """Return three tasks that arrive one after another, unless settings say otherwise."""
    defaults = {"arrivals": [0.0, 7.5, 15.0], "objective": Objective(goal)}
    return Problem(*after_task_one(0.4, 3), duration=30.0, steps=steps, **defaults | settings)


def small(similarity: float, tasks: int = 2, steps: int = 12, **settings) -> Problem:
    """Return a problem with so few steps that every protocol can be tried."""
    return Problem(*after_task_one(similarity, tasks), duration=25.0, steps=steps, **settings)


# The truth


@cache
def _curves(model, start: bytes, duration: float, steps: int):
    """Return every sequence of tasks (n, steps), its mean losses in steps and its final losses."""
    tasks, parts = model.tasks, 2
    knobs = np.ones((steps, model.layout.size))
    sequences = np.array(list(product(range(tasks), repeat=steps)))
    means, finals = [], []
    for sequence in sequences:
        lengths = np.full(steps, duration / steps)
        whole = Schedule.single_steps(np.eye(tasks)[sequence], knobs, lengths)
        losses = model.losses(model.roll_out(np.frombuffer(start), whole.subdivide(parts)))
        means.append((losses[:-2:2] + 4 * losses[1:-1:2] + losses[2::2]) / 6)
        finals.append(losses[-1])
    return sequences, np.array(means), np.array(finals)


def goal_of_all(problem: Problem, means, finals):
    """Return what the goal makes of mean losses (n, steps, T) and final ones (n, T), plainly."""
    goal, weights = problem.objective.goal, problem.objective.weights
    if goal == "final":
        return finals @ weights
    if goal == "worst":
        return (finals * weights / weights.max()).max(axis=1)
    arrivals = problem.availability.arrivals
    middles = (np.arange(problem.steps) + 0.5) * problem.duration / problem.steps
    seen = [[w * (a < time) for w, a in zip(weights, arrivals, strict=True)] for time in middles]
    return np.mean(
        [means[:, i] @ row / max(sum(row), 1e-300) for i, row in enumerate(seen)], axis=0
    )


def keeps(limits: Limits, sequence, tasks: int, duration: float) -> bool:
    """Whether a sequence of tasks keeps limits, written plainly."""
    shares = np.bincount(sequence, minlength=tasks) / len(sequence)
    changes = np.flatnonzero(np.diff(sequence)) + 1
    stays = np.diff([0, *changes, len(sequence)]) * duration / len(sequence)
    low = np.zeros(tasks) if limits.min_share is None else np.asarray(limits.min_share)
    high = np.ones(tasks) if limits.max_share is None else np.asarray(limits.max_share)
    return bool(
        np.all(shares >= low - 1e-9)
        and np.all(shares <= high + 1e-9)
        and stays.min() >= limits.min_dwell - 1e-9
        and (limits.max_switches is None or len(changes) <= limits.max_switches)
    )


def little_replay(most: float | None, first, sequence) -> bool:
    """Whether a sequence of tasks that arrive with the steps `first` replays little, plainly."""
    if most is None:
        return True
    steps = len(sequence)
    begins = sorted({int(x) for x in first if 0 < x < steps})
    for begin, end in zip(begins, [*begins, steps][1:], strict=True):
        old = [task for task in sequence[begin:end] if first[task] < begin]
        if len(old) > most * (end - begin) + 1e-9:
            return False
    return True


def there(problem: Problem, sequence) -> bool:
    """Whether a sequence of tasks trains on each only while it is there, written plainly."""
    arrivals, departures = problem.availability.arrivals, problem.availability.departures
    middles = (np.arange(len(sequence)) + 0.5) * problem.duration / len(sequence)
    return all(
        arrivals[task] < time < departures[task]
        for task, time in zip(sequence, middles, strict=True)
    )


def fits(problem: Problem, sequence) -> bool:
    """Whether a sequence of tasks keeps all limits of a problem, and when tasks are there."""
    tasks, duration = problem.model.tasks, problem.duration
    first = np.rint(problem.availability.arrivals / duration * len(sequence))
    return (
        there(problem, sequence)
        and keeps(problem.limits, sequence, tasks, duration)
        and little_replay(problem.limits.max_replay, first, sequence)
    )


def best_of_all(problem: Problem) -> float:
    """Return the least objective of all protocols within the limits, tried one by one."""
    tasks, duration, steps = problem.model.tasks, problem.duration, problem.steps
    sequences, means, finals = _curves(problem.model, problem.state.tobytes(), duration, steps)
    values = goal_of_all(problem, means, finals)
    values = values + means.mean(axis=1) @ problem.objective.running
    allowed = [fits(problem, sequence) for sequence in sequences]
    best = sequences[allowed][np.argmin(values[allowed])]
    return evaluate(problem, Protocol.from_sequence(best, tasks, duration)).loss


# The library. A sweep is a baseline, and as printed it cycles far off: the bounds are what it did.

TRUTH = {"relax": 2e-3, "flips": 2e-3, "exhaustive": 1e-6}
SWEEPS = {"forward-backward": 0.1, "printed": 6.0}

LIMITS = [
    {"max_share": [0.25, 1.0]},
    {"min_share": [0.25, 0.0], "max_share": [0.25, 1.0]},
    {"min_share": [0.5, 0.5], "max_share": [0.5, 0.5]},
    {"max_share": [0.0, 1.0]},
    {"min_share": [1.0, 0.0]},
    {"min_dwell": 4.0},
    {"min_dwell": 24.0},
    {"max_switches": 0},
    {"max_switches": 1},
    {"max_switches": 2, "min_dwell": 5.0},
    {"max_switches": 3, "min_share": [0.25, 0.0], "max_share": [0.25, 1.0]},
    {"min_dwell": 4.0, "min_share": [0.5, 0.0], "max_share": [0.5, 1.0]},
]

GOALS = [  # tasks, steps, similarity, settings
    (2, 12, 0.1, {}),
    (2, 12, 0.6, {"arrivals": [0.0, 25 / 3], "limits": Limits(max_switches=3)}),
    (2, 12, 0.3, {"weights": [1.0, 3.0], "limits": Limits(max_share=[0.25, 1.0])}),
    (2, 12, 0.3, {"departures": [25 / 2, np.inf], "running": [0.1, 0.0]}),
    (3, 8, 0.1, {}),
    (3, 8, 0.6, {"arrivals": [0.0, 25 / 8, 25 / 4]}),
    (3, 8, 0.3, {"arrivals": [0.0, 25 / 4, np.inf], "limits": Limits(min_dwell=5.0)}),
    (3, 8, 0.3, {"arrivals": [0.0, 0.0, 25 / 4], "departures": [75 / 4, 25 / 2, np.inf],
                 "weights": [0.0, 1.0, 2.0]}),
    (4, 5, 0.3, {}),
    (4, 6, 0.1, {"arrivals": [0.0, 25 / 6, 25 / 3, 25 / 2]}),
]  # fmt: skip

REPLAY = [  # tasks, steps, when tasks are there, limits
    (2, 12, {"arrivals": [0.0, 25 / 3]}, {"max_replay": 0.25}),
    (2, 12, {"arrivals": [0.0, 25 / 3]}, {"max_replay": 0.0}),
    (2, 12, {"arrivals": [0.0, 25 / 3], "departures": [np.inf, 75 / 4]}, {"max_replay": 0.4}),
    (2, 12, {"arrivals": [0.0, 25 / 4]}, {"max_replay": 0.3, "min_dwell": 4.0}),
    (2, 12, {"arrivals": [0.0, 25 / 4]}, {"max_replay": 0.5, "max_switches": 2}),
    (2, 12, {"arrivals": [0.0, 25 / 4]}, {"max_replay": 0.5, "min_share": [0.5, 0.0]}),
    (3, 8, {"arrivals": [0.0, 25 / 4, 25 / 2]}, {"max_replay": 0.5}),
    (3, 8, {"arrivals": [0.0, 25 / 8, 25 / 2]}, {"max_replay": 0.34, "max_switches": 4}),
    (3, 8, {"arrivals": [0.0, 0.0, 25 / 4]}, {"max_replay": 0.2, "max_share": [0.25, 1.0, 1.0]}),
    (3, 8, {"arrivals": [0.0, 25 / 4, 25 / 2], "departures": [75 / 4, 25.0, 25.0]},
     {"max_replay": 0.5, "min_dwell": 6.0}),
    (4, 6, {"arrivals": [0.0, 0.0, 25 / 3, 50 / 3]}, {"max_replay": 0.5}),
]  # fmt: skip

ARRIVALS = [  # tasks, steps, when tasks are there, limits
    (2, 12, {"arrivals": [0.0, 25 / 4]}, {}),
    (2, 12, {"departures": [25 / 2, np.inf]}, {}),
    (2, 12, {"arrivals": [0.0, 25 / 3], "departures": [75 / 4, 25.0]}, {"max_switches": 3}),
    (2, 12, {"arrivals": [0.0, 25 / 4]}, {"min_share": [0.5, 0.0], "min_dwell": 4.0}),
    (2, 12, {"departures": [25 / 2, np.inf]}, {"min_share": [0.25, 0.0], "max_share": [0.25, 1]}),
    (3, 8, {"arrivals": [0.0, 25 / 8, 25 / 2]}, {}),
    (3, 8, {"arrivals": [0.0, 0.0, 25 / 4], "departures": [75 / 4, 25 / 2, np.inf]}, {}),
    (3, 8, {"arrivals": [0.0, 25 / 8, 25 / 2]}, {"max_share": [0.25, 0.375, 1.0]}),
    (3, 8, {"departures": [25 / 2, np.inf, 75 / 4]}, {"max_switches": 2, "min_dwell": 5.0}),
    (4, 6, {"arrivals": [0.0, 25 / 6, 25 / 3, 25 / 2]}, {}),
    (4, 6, {"arrivals": [0.0, 0.0, 25 / 3, np.inf], "departures": [25 / 2, *3 * [25.0]]},
     {"max_switches": 3}),
]  # fmt: skip


def fishing(steps: int, **settings) -> Problem:
    """Return Sager's fishing problem."""
    start = np.array([0.5, 0.7, 0.0])
    return Problem(
        fishing_model(), start, duration=12.0, steps=steps,
        objective=Objective(weights=[1.0, 0.0]), **settings,
    )  # fmt: skip


def averaging(start: list[float], steps: int, **settings) -> Problem:
    """Return noisy quadratics, to be averaged for four units of time."""
    return Problem(
        averaging_model(len(start)), np.array(start), duration=4.0, lr=0.5, steps=steps, **settings
    )


def limited(limits: dict) -> Problem:
    """Return a small problem with limits."""
    return Problem(*after_task_one(0.4), duration=24.0, steps=12, limits=Limits(**limits))


def with_goal(goal: str, tasks: int, steps: int, similarity: float, settings: dict) -> Problem:
    """Return a small problem with a goal; settings are those of the objective and others."""
    parts = {name: settings[name] for name in ("weights", "running") if name in settings}
    rest = {name: value for name, value in settings.items() if name not in parts}
    return small(similarity, tasks, steps, objective=Objective(goal, **parts), **rest)


def _two_in_any_order(lr: float, steps: int) -> float:
    """Return the least mean of v = lr/2 + (v₀ − lr/2) exp(−2 lr S) with n steps on the first."""
    first = 4.0 / steps * np.arange(steps + 1)
    ends = [
        lr / 2 + (v - lr / 2) * np.exp(-2 * lr * time)
        for v, time in ((1.0, first), (0.5, 4.0 - first))
    ]
    return float(np.mean(ends, axis=0).min())


K2, K4 = (reference(name)["best_known_mean_loss"] for name in ("two_tasks_k2", "two_tasks_k4"))
JOINT = reference("two_tasks_k2")["best_known_mean_loss_joint"]

LIBRARY = [
    Known(
        "fishing",
        "a singular arc, published: relaxed 1.34408, with 56 switches 1.34416",
        partial(fishing, 600),
        {"relax": 1e-4, "flips": 2e-3, "forward-backward": 0.2, "printed": 3.0},
        value=1.34408,
        relaxed=1.34408,
    ),
    Known(
        "fishing with 56 switches",
        "a limit of switches on a fine grid",
        partial(fishing, 600, limits=Limits(max_switches=56)),
        {"relax": 5e-4, "flips": 1e-2, "forward-backward": 1.0, "printed": 3.0},
        value=1.34408,
        relaxed=1.34408,
    ),
    Known(
        "fishing on 12 steps",
        "a compiled model that is no teacher-student, all protocols tried",
        partial(fishing, 12),
        TRUTH | {"forward-backward": 2.0, "printed": 3.0},
    ),
    Known(
        "turnpike",
        """x′ = ±1, x(0) = 1, x(2) = ½, min ∫ x²: 3/8, down until 1, rest, up from 3/2. The end is
        held by a steep loss w (x − ½)², which lets it miss by λ/2w and saves λ²/4w, with the price
        λ = x(2)² = ¼ of the end. What controls can change is mostly that steep loss: a small part
        of it is much of ∫ x².""",
        lambda: Problem(
            turnpike_model(), np.array([1.0, 0.0]), duration=2.0, steps=80,
            objective=Objective(weights=[1.0, 500.0]),
        ),
        {"tight": 1e-3, "flips": 1e-3, "forward-backward": 20.0, "printed": 2000.0},
        value=3 / 8 - 1 / 32000,
        relaxed=3 / 8 - 1 / 32000,
    ),
    Known(
        "below zero",
        "an objective (x − 0.35)² − 1 at the end, where 25 of 40 steps up reach it exactly",
        lambda: Problem(
            negative_model(), np.array([0.1]), duration=1.0, steps=40,
            objective=Objective(weights=[1.0, 0.0]),
        ),
        {"relax": 1e-6, "flips": 1e-6, "forward-backward": 1e-2, "printed": 0.1},
        value=-1.0,
        relaxed=-1.0,
    ),
    Known(
        "one rate",
        "the learning rate alone: v′ = −v²/σ² at best, so 1/v grows from 1 to 5",
        partial(averaging, [1.0], 80, control=Control(tasks=False, lr=(0.0, 2.0))),
        {"relax": 2e-4, "forward-backward": 5e-3, "printed": 1e-2},
        value=1 / 5,
        relaxed=1 / 5,
    ),
    Known(
        "tasks and rates",
        "joint control: 1/v grows by the time on a task, best to (1 + 2 + 4)/2 for both",
        partial(averaging, [1.0, 0.5], 40, control=Control(lr=(0.0, 2.0))),
        {"relax": 2e-4, "forward-backward": 5e-3, "printed": 0.2},
        value=2 / 7,
        relaxed=2 / 7,
        statuses=("converged", "stalled"),  # all orders are alike: flat to second order
    ),
    Known(
        "any order",
        "tasks that do not touch one another: any order of the best counts will do",
        partial(averaging, [1.0, 0.5], 40),
        {"relax": 1e-4, "flips": 1e-4, "forward-backward": 5e-3, "printed": 0.2},
        value=_two_in_any_order(0.5, 40),
    ),
    Known(
        "reference, K = 2",
        "the paper's problem, from an independent code",
        lambda: reference_problem(reference("two_tasks_k2")),
        {"relax": 2e-4, "flips": 1e-3, "forward-backward": 0.1, "printed": 10.0},
        value=K2["relaxed"],
        relaxed=K2["relaxed"],
    ),
    Known(
        "reference, K = 4",
        "the same with four hidden units",
        lambda: reference_problem(reference("two_tasks_k4")),
        {"relax": 2e-4, "flips": 1e-3, "forward-backward": 0.1, "printed": 10.0},
        value=K4["relaxed"],
        relaxed=K4["relaxed"],
    ),
    Known(
        "reference, tasks and rates",
        "joint control of the paper's problem, from an independent code",
        lambda: reference_problem(reference("two_tasks_k2"), control=Control(lr=(0.0, 5.0))),
        {"relax": 5e-4, "forward-backward": 0.2, "printed": 50.0},
        value=JOINT["relaxed_value"],
        relaxed=JOINT["relaxed_value"],
    ),
    *(
        Known(
            f"similarity {similarity}",
            "the best of all protocols with two tasks",
            partial(small, similarity),
            TRUTH | SWEEPS,
        )
        for similarity in (0.1, 0.3, 0.6, 0.9)
    ),
    Known(
        "three tasks",
        "the best of all protocols with three tasks",
        partial(small, 0.4, tasks=3, steps=8),
        TRUTH | SWEEPS,
        statuses=("converged", "inaccurate"),  # steps of three units are long
    ),
    Known(
        "running costs",
        "average losses count: pairs of RK4 steps for Simpson's rule",
        partial(small, 0.4, objective=Objective(weights=[0.0, 0.0], running=[0.5, 0.5])),
        TRUTH | SWEEPS,
    ),
    *(
        Known(f"arrivals, {tasks} tasks {i}", "the best of all protocols while tasks are there",
              partial(small, 0.4, tasks, steps, limits=Limits(**limits), **windows),
              TRUTH | {"forward-backward": 4.0, "printed": 20.0},
              statuses=("converged", "inaccurate"))
        for i, (tasks, steps, windows, limits) in enumerate(ARRIVALS)
    ),
    *(
        Known(str(limits), "the best of all protocols within limits", partial(limited, limits),
              TRUTH | {"forward-backward": 4.0, "printed": 20.0},
              # where one protocol alone keeps them, there is nothing to gain
              statuses=("converged", "inaccurate"))
        for limits in LIMITS
    ),
    *(
        Known(f"{goal} {i}", "the best of all protocols for other goals",
              partial(with_goal, goal, *case), {"relax": 2e-3, "exhaustive": 1e-6},
              statuses=("converged", "inaccurate"))
        for goal in ("seen", "worst") for i, case in enumerate(GOALS)
    ),
    *(
        Known(f"replay {i}, {goal}", "the best of all protocols with little replay",
              partial(with_goal, goal, tasks, steps, 0.3, windows | {"limits": Limits(**limits)}),
              {"relax": 2e-3, "more flips": 6e-2, "exhaustive": 1e-6},
              statuses=("converged", "inaccurate"))
        for goal in ("final", "seen", "worst")
        for i, (tasks, steps, windows, limits) in enumerate(REPLAY)
    ),
]  # fmt: skip
