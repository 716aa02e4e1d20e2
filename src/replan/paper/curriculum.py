"""Curriculum: easy and hard samples, as many of each, in which order (the follow-up)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.patches import Patch

from replan import strategies
from replan._common import plotting
from replan.control import Plan, solve
from replan.paper._parts import LOOKS, Run, Tables, minimiser, protocol_of, protocol_rows
from replan.paper.claims import Claim
from replan.problem import Problem
from replan.protocol import Protocol
from replan.trajectory import evaluate

FULL = {
    "difficulties": [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "steps": 120, "duration": 12.0, "lr": 3.0, "max_lr": 10.0,
}  # fmt: skip
QUICK = FULL | {"difficulties": [1.0, 3.0], "steps": 24}
EASY_HARD, HARD_EASY, MIXED = "easy to hard", "hard to easy", "interleaved"
EASY_HARD_EASY, OPTIMAL = "best easy-hard-easy", "optimal"
LINES: dict[str, dict[str, Any]] = {
    EASY_HARD: {"color": "#E69F00", "marker": "^", "linestyle": "--"},
    HARD_EASY: LOOKS["no replay"],
    MIXED: LOOKS["interleaved 1:1"],
    EASY_HARD_EASY: {"color": "#009E73", "marker": "v", "linestyle": "-."},
    OPTIMAL: LOOKS["optimal"],
}


def case(problem: dict[str, Any], max_lr: float) -> dict[str, Any]:
    """Return final errors and the optima, with three kinds of learning rates.

    `problem` controls the tasks alone. The learning rate is "fixed" as there, the best "constant"
    one, or "free"; the latter two are at most `max_lr`.
    """
    posed = Problem.from_dict(problem)

    def at(rate: float) -> Problem:
        return Problem.from_dict(problem | {"training": problem["training"] | {"lr": rate}})

    def best(loss: Callable[[Problem], float]) -> Problem:
        """Return the problem at the rate at which this loss is smallest."""
        low, high = np.log([0.03 * max_lr, max_lr])
        return at(float(np.exp(minimiser(lambda x: loss(at(float(np.exp(x)))), low, high, 9))))

    def with_rates(order: Protocol) -> Plan:
        free = {"control": {"tasks": False, "lr": {"min": 0.0, "max": max_lr}}, "limits": {}}
        return solve(Problem.from_dict(problem | free), start=order, starts=0)

    def loss(posed: Problem, order: Callable[[Problem], Protocol]) -> float:
        return evaluate(posed, order(posed)).loss

    found: dict[str, dict[str, float]] = {"fixed": {}, "constant": {}, "free": {}}
    for name, order in ORDERS.items():
        found["fixed"][name] = loss(posed, order)
        found["constant"][name] = loss(best(partial(loss, order=order)), order)
    annealed = {name: with_rates(ORDERS[name](posed)) for name in (EASY_HARD, HARD_EASY, MIXED)}
    found["free"] = {name: plan.loss for name, plan in annealed.items()}
    opening = minimiser(
        lambda time: with_rates(_easy_hard_easy(posed, time)).loss, 0.0, posed.duration / 2, 5
    )
    found["free"][EASY_HARD_EASY] = with_rates(_easy_hard_easy(posed, opening)).loss
    both = problem["control"] | {"lr": {"min": 0.0, "max": max_lr}}
    start = min(annealed.values(), key=lambda plan: plan.loss).protocol
    plans = {
        "fixed": solve(posed),
        "constant": solve(best(lambda posed: solve(posed).loss)),
        "free": solve(Problem.from_dict(problem | {"control": both}), start=start),
    }
    return {
        rate: {
            "losses": found[rate] | {OPTIMAL: plan.loss},
            "protocol": plan.protocol.to_dict(),
            "plan": {"gradients": plan.statistics["gradients"], "status": plan.status},
        }
        for rate, plan in plans.items()
    }


def _easy_hard_easy(problem: Problem, opening: float) -> Protocol:
    """Return all hard samples in one block, after easy ones for the time `opening`."""
    half = problem.duration / 2
    parts = [(opening, 0), (half, 1), (half - opening, 0)]
    kept = [(length, task) for length, task in parts if length > 1e-9 * half]
    return Protocol.from_segments(kept, 2, knobs=problem.settings).split(problem.edges)


def _best_easy_hard_easy(problem: Problem) -> Protocol:
    def loss(opening: float) -> float:
        return evaluate(problem, _easy_hard_easy(problem, opening), rtol=1e-6).loss

    return _easy_hard_easy(problem, minimiser(loss, 0.0, problem.duration / 2, 7))


ORDERS: dict[str, Callable[[Problem], Protocol]] = {
    EASY_HARD: strategies.sequential,
    HARD_EASY: partial(strategies.sequential, order=[1, 0]),
    MIXED: strategies.interleaved,
    EASY_HARD_EASY: _best_easy_hard_easy,
}


def compute(
    run: Run,
    *,
    difficulties: list[float],
    steps: int,
    duration: float,
    lr: float,
    max_lr: float,
) -> Tables:
    """Return the tables `losses`, `plans` and `protocols`."""
    results = run(
        case,
        [
            {"problem": _problem(difficulty, steps, duration, lr), "max_lr": max_lr}
            for difficulty in difficulties
        ],
    )
    parts = [
        ({"difficulty": difficulty, "rate": rate}, part)
        for difficulty, result in zip(difficulties, results, strict=True)
        for rate, part in result.items()
    ]
    return {
        "losses": pd.DataFrame(
            [
                at | {"strategy": name, "loss": loss}
                for at, part in parts
                for name, loss in part["losses"].items()
            ]
        ),
        "plans": pd.DataFrame([at | part["plan"] for at, part in parts]),
        "protocols": pd.concat(protocol_rows(part["protocol"]).assign(**at) for at, part in parts),
    }


def _problem(difficulty: float, steps: int, duration: float, lr: float) -> dict[str, Any]:
    """Return the content of a problem file: an exact half of easy and of hard samples."""
    return {
        "model": {"kind": "curriculum", "difficulties": [0.0, difficulty], "teacher": 2.0},
        "start": {"q1": 1.0, "q2": 1.0, "m": 0.0},
        "training": {"duration": duration, "steps": steps, "lr": lr},
        "control": {"tasks": True},
        "objective": {"weights": [0.5, 0.5]},
        "limits": {"min_share": [0.5, 0.5], "max_share": [0.5, 0.5]},
    }


def draw(tables: Tables) -> plotting.Picture:
    """Draw how far the orders lie above the optimum, and the optima at three difficulties."""
    with plotting.figure(width=7.2, height=5.6) as figure:
        above, below = figure.subfigures(2, 1, squeeze=False)[:, 0]
        titles = {
            "fixed": "learning rate fixed",
            "constant": "each at its best constant rate",
            "free": "each with its best schedule",
        }
        panels = above.subplots(1, 3, sharey=True)
        for axes, (rate, title) in zip(panels, titles.items(), strict=True):
            losses = _by_strategy(tables, rate)
            for name, look in LINES.items():
                excess = 100 * (losses[name] / losses[OPTIMAL] - 1)
                axes.plot(losses.index, excess, markersize=4.5, label=name, **look)
            axes.set_title(title, fontsize=9)
            axes.set(xlabel="variance Δ of hard inputs")
        panels[0].set(ylabel="error above the optimum, %")
        handles = panels[0].get_legend_handles_labels()
        above.legend(*handles, loc="outside upper center", ncols=5, fontsize=8)
        _draw_optima(below, tables)
    return figure


def _draw_optima(figure: Any, tables: Tables) -> None:
    """Draw the optimal order at the fixed rate; then order and rate where both are free."""
    fixed, free = (_by_strategy(tables, rate)[OPTIMAL] for rate in ("fixed", "free"))
    shown = fixed.index[np.unique(np.linspace(0, len(fixed) - 1, 3).round().astype(int))]
    axes = figure.subplots(
        3, len(shown), sharex=True, sharey="row", height_ratios=[1, 1, 5], squeeze=False
    )
    protocols = tables["protocols"].set_index(["difficulty", "rate"])
    for (first, second, curve), at in zip(axes.T, shown, strict=True):
        both = protocol_of(protocols.loc[(at, "free")])
        plotting.draw_protocol(first, protocol_of(protocols.loc[(at, "fixed")]))
        plotting.draw_protocol(second, both)
        for bar in (first, second):
            bar.tick_params(bottom=False)
        first.set_title(f"Δ = {at:g}, errors {fixed[at]:.3f} and {free[at]:.3f}", fontsize=9)
        plotting.draw_knob(curve, both, "lr")
        curve.set(xlabel="training time α", ylabel="")
    trained = tables["protocols"].query("rate == 'free'")
    axes[2, 0].set_ylim(0, 1.05 * _trained_rate(trained).max())
    axes[0, 0].set_ylabel("rate fixed", rotation=0, ha="right", va="center")
    axes[1, 0].set_ylabel("rate free", rotation=0, ha="right", va="center")
    axes[2, 0].set_ylabel("learning rate")
    patches = [
        Patch(color=plotting.task_colour(t), label=name) for t, name in enumerate(("easy", "hard"))
    ]
    figure.legend(handles=patches, loc="outside upper center", ncols=2, fontsize=8)


def _trained_rate(steps: pd.DataFrame) -> pd.Series:
    """Return the learning rate of the difficulty that is trained in each step."""
    return steps["lr_2"].where(steps["share_2"] > 0.5, steps["lr_1"])


def _by_strategy(tables: Tables, rate: str) -> pd.DataFrame:
    """Return final errors with a learning rate of one kind: rows by difficulty, a column each."""
    losses = tables["losses"]
    chosen = losses[losses["rate"] == rate]
    return chosen.pivot(index="difficulty", columns="strategy", values="loss")


def _parts(tables: Tables, rate: str, parts: int) -> pd.DataFrame:
    """Return the share of hard samples in equal parts of the time: rows by difficulty."""
    chosen = tables["protocols"].query("rate == @rate")
    return pd.DataFrame(
        {
            at: [part.mean() for part in np.array_split(steps["share_2"].to_numpy(), parts)]
            for at, steps in chosen.groupby("difficulty")
        }
    ).T


def claims(tables: Tables) -> list[Claim]:
    """Check what is said about curricula, over variances of the hard inputs."""
    fixed, constant, free = (_by_strategy(tables, rate) for rate in ("fixed", "constant", "free"))
    thirds, halves = _parts(tables, "fixed", 3), _parts(tables, "free", 2)
    rates = tables["protocols"].query("rate == 'free'").groupby("difficulty")
    drop = pd.Series({at: _drop_at_first_hard(steps) for at, steps in rates})
    others = [EASY_HARD, HARD_EASY, MIXED]
    gain = fixed[others].min(axis=1) / fixed[OPTIMAL]
    spread, free_spread = (
        one[others].max(axis=1) / one[others].min(axis=1) for one in (constant, free)
    )
    over = "difficulty"
    return [
        Claim(
            "At a constant learning rate the optimal curriculum is not monotone: easy, hard, easy.",
            "the share of hard samples is larger in the middle third of the time than in the first "
            "and in the last, by at least 0.1",
            list(thirds[1] >= thirds[[0, 2]].max(axis=1) + 0.1),
            {
                "share of hard samples in the first third": thirds[0],
                "in the middle": thirds[1],
                "in the last": thirds[2],
            },
            over=over,
        ),
        Claim(
            "Easy to hard is better than hard to easy.",
            "at the fixed rate, and each at its best constant rate",
            list(
                (fixed[EASY_HARD] < fixed[HARD_EASY]) & (constant[EASY_HARD] < constant[HARD_EASY])
            ),
            {
                "hard to easy / easy to hard, fixed rate": fixed[HARD_EASY] / fixed[EASY_HARD],
                "best constant rates": constant[HARD_EASY] / constant[EASY_HARD],
                "free rates": free[HARD_EASY] / free[EASY_HARD],
            },
            over=over,
        ),
        Claim(
            "Easy to hard is better than a mixture.",
            "at the fixed rate, and each at its best constant rate",
            list((fixed[EASY_HARD] < fixed[MIXED]) & (constant[EASY_HARD] < constant[MIXED])),
            {
                "interleaved / easy to hard, fixed rate": fixed[MIXED] / fixed[EASY_HARD],
                "best constant rates": constant[MIXED] / constant[EASY_HARD],
                "free rates": free[MIXED] / free[EASY_HARD],
            },
            over=over,
        ),
        Claim(
            "The optimal curriculum beats easy to hard, hard to easy and a mixture.",
            "at the fixed rate, by at least 1 %",
            list(gain >= 1.01),
            {
                "best of the three / optimal": gain,
                "best easy-hard-easy / optimal": fixed[EASY_HARD_EASY] / fixed[OPTIMAL],
            },
            over=over,
        ),
        Claim(
            "With the learning rate free as well, the optimum is easy to hard.",
            "at most 5 % of the first half are hard samples",
            list(halves[0] <= 0.05),
            {
                "share of hard samples in the first half": halves[0],
                "optimal at the fixed rate / at a free one": fixed[OPTIMAL] / free[OPTIMAL],
            },
            over=over,
        ),
        Claim(
            "The learning rate drops where hard samples begin.",
            "by at least 20 % from the last easy step to the first hard one",
            list(drop <= 0.8),
            {"first rate on hard samples / last on easy ones before": drop},
            over=over,
        ),
        Claim(
            "With learning rates of their own, the orders differ more (our question).",
            "worst / best of the three orders is larger with free rates than with constant ones",
            list(free_spread > spread),
            {"worst / best with free rates": free_spread, "with constant ones": spread},
            over=over,
        ),
    ]


def _drop_at_first_hard(steps: pd.DataFrame) -> float:
    """Return the rate of the first hard step over that of the easy step before, NaN without one."""
    first = int(np.argmax(steps["share_2"].to_numpy() > 0.5))
    rates = _trained_rate(steps).to_numpy()
    return float(rates[first] / rates[first - 1]) if first else np.nan
