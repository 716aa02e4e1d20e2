"""Curriculum: easy and hard samples, as many of each, in which order (the follow-up)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

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
QUICK = FULL | {"difficulties": [1.0, 2.0, 4.0], "steps": 24}
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
