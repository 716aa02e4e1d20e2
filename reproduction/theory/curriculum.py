"""Curriculum (the follow-up): easy and hard samples, equally many, in which order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

import replan
from replan import strategies
from reproduction import drawing
from reproduction.base import Claim, Figure, Tables, over, pick
from reproduction.theory import parts
from reproduction.theory.learning_rate import trained_rate
from reproduction.theory.schedules import by_rate, three_of, wide

FULL = {
    "difficulties": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "steps": 120,
    "duration": 12.0,
    "lr": 3.0,
    "max_lr": 10.0,
}
QUICK = FULL | {"difficulties": [1.0, 3.0], "steps": 24}
EASY_HARD, HARD_EASY, MIXED = "easy to hard", "hard to easy", "interleaved"
OPTIMAL = "optimal"
LINES: dict[str, dict[str, Any]] = {
    EASY_HARD: {"color": "#E69F00", "marker": "^", "linestyle": "--"},
    HARD_EASY: drawing.LOOKS["no replay"],
    MIXED: drawing.LOOKS["interleaved 1:1"],
    OPTIMAL: drawing.LOOKS["optimal"],
}
RATES = {"fixed": "rate fixed", "constant": "best constant rates", "free": "best schedules"}


def _problem(
    difficulty: float, times: dict[str, Any], rate: float, **control: Any
) -> replan.Problem:
    """Return a problem; controlled tasks are half easy and half hard samples, exactly."""
    content: dict[str, Any] = {
        "model": {"kind": "curriculum", "difficulties": [0.0, difficulty], "teacher": 2.0},
        "start": {"q1": 1.0, "q2": 1.0, "m": 0.0},
        "training": times | {"lr": rate},
        "control": {"tasks": True} | control,
        "objective": {"weights": [0.5, 0.5]},
    }
    if content["control"]["tasks"]:
        content["limits"] = {"min_share": [0.5, 0.5], "max_share": [0.5, 0.5]}
    return replan.Problem.from_dict(content)


def case(difficulty: float, lr: float, max_lr: float, **times: Any) -> dict[str, Any]:
    """Return final errors and the optima, with three kinds of learning rates.

    The learning rate is "fixed" at `lr`, the best "constant" one, or "free"; the latter two are at
    most `max_lr`.
    """
    pose = partial(_problem, difficulty, times)
    rates = {"min": 0.0, "max": max_lr}

    def at(log_rate: float) -> replan.Problem:
        return pose(float(np.exp(log_rate)))

    def at_best_rate(value: Callable[[replan.Problem], float]) -> replan.Problem:
        """Return the problem at the constant rate at which its value is smallest."""
        low, high = np.log([0.03 * max_lr, max_lr])
        return at(parts.minimiser(lambda x: value(at(x)), low, high, 9))

    def with_rates(order: replan.Protocol) -> replan.Plan:
        return replan.solve(pose(lr, tasks=False, lr=rates), replan.Relax(0), initial=order)

    problem = pose(lr)
    pairs = {name: partial(_error, order) for name, order in ORDERS.items()}
    errors = {
        "fixed": {name: error(problem) for name, error in pairs.items()},
        "constant": {name: error(at_best_rate(error)) for name, error in pairs.items()},
    }
    annealed = {name: with_rates(order(problem)) for name, order in ORDERS.items()}
    errors["free"] = {name: plan.loss for name, plan in annealed.items()}
    start = min(annealed.values(), key=lambda plan: plan.loss).protocol
    plans = {
        "fixed": replan.solve(problem),
        "constant": replan.solve(at_best_rate(lambda posed: replan.solve(posed).loss)),
        "free": replan.solve(pose(lr, lr=rates), initial=start),
    }
    return by_rate(
        {rate: errors[rate] | {OPTIMAL: plan.loss} for rate, plan in plans.items()},
        {rate: parts.search_row(plan) for rate, plan in plans.items()},
        {rate: parts.protocol_rows({OPTIMAL: plan.protocol}) for rate, plan in plans.items()},
    )


ORDERS: dict[str, Callable[[replan.Problem], replan.Protocol]] = {
    EASY_HARD: strategies.sequential,
    HARD_EASY: partial(strategies.sequential, order=[1, 0]),
    MIXED: strategies.interleaved,
}


def _error(order: Callable[..., replan.Protocol], problem: replan.Problem) -> float:
    return parts.loss(problem, order(problem))


compute = over(case, difficulty="difficulties")


def draw(tables: Tables) -> Figure:
    """Draw how far the orders lie above the optimum, and the optima at three difficulties."""
    picture = drawing.figure(7.2, 5.6)
    above, below = picture.subfigures(2, 1, squeeze=False)[:, 0]
    panels = above.subplots(1, 3, sharey=True)
    for axes, (rate, title) in zip(panels, RATES.items(), strict=True):
        losses = wide(tables, "difficulty", rate)
        for name, look in LINES.items():
            axes.plot(losses.index, 100 * (losses[name] / losses[OPTIMAL] - 1), label=name, **look)
        axes.set(title=title, xlabel="variance Δ of hard inputs")
    panels[0].set(ylabel="error above the optimum, %")
    drawing.legend_above(above, panels[0])
    fixed, free = (wide(tables, "difficulty", rate)[OPTIMAL] for rate in ("fixed", "free"))
    shown = three_of(fixed.index)
    axes = below.subplots(
        3, len(shown), sharex=True, sharey="row", height_ratios=[1, 1, 5], squeeze=False
    )
    for (first, second, curve), at in zip(axes.T, shown, strict=True):
        rows = pick(tables["protocols"], difficulty=at)
        both = parts.protocol_of(pick(rows, rate="free"))
        drawing.draw_protocol(first, parts.protocol_of(pick(rows, rate="fixed")))
        drawing.draw_protocol(second, both)
        first.set_title(f"Δ = {at:g}: rate fixed, error {fixed[at]:.3f}")
        second.set_title(f"rate free, error {free[at]:.3f}")
        drawing.draw_knob(curve, both, "lr")
        curve.set(xlabel="training time α")
    highest = trained_rate(pick(tables["protocols"], rate="free")).max()
    axes[2, 0].set(ylim=(0, 1.05 * highest), ylabel="learning rate, if free")
    drawing.legend_of_tasks(below, ["easy", "hard"])
    return picture


def _hard_shares(tables: Tables, rate: str, parts: int) -> pd.DataFrame:
    """Return the share of hard samples in equal parts of the time: rows by difficulty."""
    plans = pick(tables["protocols"], rate=rate).groupby("difficulty")["share_2"]
    means = {at: [x.mean() for x in np.array_split(share.to_numpy(), parts)] for at, share in plans}
    return pd.DataFrame(means).T


def _drop_at_first_hard(steps: pd.DataFrame) -> float:
    """Return the rate of the first hard step over that of the easy step before, NaN without one."""
    first = int(np.argmax(steps["share_2"].to_numpy() > 0.5))
    rates = trained_rate(steps).to_numpy()
    return float(rates[first] / rates[first - 1]) if first else np.nan


def claims(tables: Tables) -> list[Claim]:
    """Check what is said about curricula, over variances of the hard inputs."""
    judge = partial(Claim, over="difficulty")
    kinds = {rate: wide(tables, "difficulty", rate) for rate in RATES}
    fixed, free = kinds["fixed"], kinds["free"]
    thirds, halves = _hard_shares(tables, "fixed", 3), _hard_shares(tables, "free", 2)
    plans = pick(tables["protocols"], rate="free").groupby("difficulty")
    drop = pd.Series({at: _drop_at_first_hard(steps) for at, steps in plans})
    others = list(ORDERS)
    gain = fixed[others].min(axis=1) / fixed[OPTIMAL]

    def better_than(other: str) -> Claim:
        ratios = {rate: errors[other] / errors[EASY_HARD] for rate, errors in kinds.items()}
        return judge(
            f"Easy to hard is better than {other}.",
            "at the fixed rate, and each at its best constant rate",
            (ratios["fixed"] > 1) & (ratios["constant"] > 1),
            {f"{other} / easy to hard, {rate} rates": ratio for rate, ratio in ratios.items()},
        )

    return [
        judge(
            "At a constant learning rate the optimal curriculum is not monotone: easy, hard, easy.",
            "the share of hard samples is larger in the middle third of the time than in the first "
            "and in the last, by at least 0.1",
            thirds[1] >= thirds[[0, 2]].max(axis=1) + 0.1,
            {
                "share of hard samples in the first third": thirds[0],
                "in the middle": thirds[1],
                "in the last": thirds[2],
            },
        ),
        better_than(HARD_EASY),
        better_than(MIXED),
        judge(
            "The optimal curriculum beats easy to hard, hard to easy and a mixture.",
            "at the fixed rate, by at least 1 %",
            gain >= 1.01,
            {"best of the three / optimal": gain},
        ),
        judge(
            "With the learning rate free as well, the optimum is easy to hard.",
            "at most 5 % of the first half are hard samples",
            halves[0] <= 0.05,
            {
                "share of hard samples in the first half": halves[0],
                "optimal at the fixed rate / at a free one": fixed[OPTIMAL] / free[OPTIMAL],
            },
        ),
        judge(
            "The learning rate drops where hard samples begin.",
            "by at least 20 % from the last easy step to the first hard one",
            drop <= 0.8,
            {"first rate on hard samples / last on easy ones before": drop},
        ),
    ]
