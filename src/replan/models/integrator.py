"""integrate(model, start, schedule): a roll-out to a required accuracy."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.core.schedule import Schedule
from replan.errors import ArgumentError
from replan.models.base import Model

Status = Literal["ok", "diverged", "inaccurate"]

RTOL = 1e-9
MAX_STEPS = 2**21
ATOL, _ROUNDING = 1e-14, 1e-15  # losses are differences of numbers near 1
_SOUND = 1e-6  # errors of a piece that cannot make a later one diverge, whatever the accuracy
_STIFF = 8  # times the steps with which a piece diverges: what it needs at least to be accurate
_ORDER = 4
_RICHARDSON = 2**_ORDER - 1  # step and half step differ by d: the finer one's error is d / 15
_EXACT = 1e-14  # relative: states that differ by less do not depend on the steps
_KEPT = 2**18  # numbers in the states of all steps that are looked at together


class Integration(NamedTuple):
    """A roll-out to a required accuracy.

    states: (pieces + 1, n), fewer rows where it diverged. losses: (pieces + 1, L). integrals:
    (pieces, L) of the losses over each piece. errors, integral_errors: bounds on discretisation
    errors of the two. substeps: (pieces,) steps taken on each piece. status: "ok", "diverged" or
    "inaccurate". advice: what to try then.
    """

    states: Floats
    losses: Floats
    integrals: Floats
    errors: Floats
    integral_errors: Floats
    substeps: Ints
    status: Status
    advice: str


def integrate(
    model: Model,
    start: Floats,
    schedule: Schedule,
    weights: Floats = np.ones((1, 1, 1)),  # noqa: B008
    *,
    rtol: float = RTOL,
    max_steps: int = MAX_STEPS,
) -> Integration:
    """Roll out with ever smaller steps until states, losses and their averages have `rtol`.

    weights: (k, pieces, L) of the losses in k averages, by default one over the whole time.

    The error is estimated by comparing step with half step; it says how many times smaller the
    steps must be. Reported is all of the difference: the estimate relies on order 4, a bound must
    not. After the first pair of runs, give up where the next would need more than `max_steps` steps
    in all. The schedule's own substeps do not matter. Averages of a model whose states do not
    depend on the steps are as accurate as their reported error.
    """
    rtol = check.number("rtol", rtol, at_least=1e-13, at_most=1e-2)
    max_steps = check.integer("max_steps", max_steps, at_least=1)
    lengths, whole = schedule.lengths, schedule.lengths.size + 1
    pairs = np.ceil(50 * lengths / lengths.sum() - 1e-9).astype(np.int64)
    schedule = schedule._replace(substeps=2 * np.maximum(pairs, 1))
    while True:
        coarse, fine = (_roll_out(model, start, schedule, parts) for parts in (1, 2))
        states, losses, integrals, rule_errors = fine
        substeps = 2 * schedule.substeps
        errors, integral_errors = np.full_like(losses, np.inf), np.full_like(integrals, np.inf)
        if len(states) == len(coarse.states) == whole:
            errors = np.abs(losses - coarse.losses)
            integral_errors = np.abs(integrals - coarse.integrals)
            state_errors = np.abs(states - coarse.states)
            excess = max(
                np.max(errors / (rtol * np.abs(losses) + ATOL)) / _RICHARDSON,
                np.max(state_errors / (rtol * np.maximum(1.0, np.abs(states)))) / _RICHARDSON,
            )
            allowed = np.abs(integrals) * rtol + lengths[:, None] * ATOL
            parts = weights / np.maximum(np.sum(weights * allowed, axis=1, keepdims=True), 1e-300)
            along = np.max(np.sum(parts * integral_errors, axis=1)) / _RICHARDSON
            rule = np.max(parts * rule_errors, axis=(0, 2)) / _RICHARDSON
            errors += _ROUNDING * np.maximum(1.0, np.abs(losses))
            integral_errors += _ROUNDING * np.maximum(lengths[:, None], np.abs(integrals))
            # Shorter steps of training with single samples change nothing but the rule's error.
            if max(excess, along) <= 1.0 or excess * rtol <= _EXACT:
                run = states, losses, integrals, errors, integral_errors
                return Integration(*run, substeps, "ok", "")
            # Averages are wrong by Simpson's rule or by the states: one of them is more than half.
            by_rule = 2 * rule.sum() if along > 1.0 else 0.0
            by_states = max(excess, 2 * along - by_rule if along > 1.0 else 0.0)
            local = _local_errors(model, states, schedule)
            factors = np.maximum(_refinement(rule, by_rule), _refinement(local, by_states))
        else:  # steps are too long where numbers are no longer finite, or before, where errors grew
            local = _local_errors(model, states[: len(coarse.states)], schedule)
            sizes = np.maximum(1.0, np.abs(states[1 : local.size + 1]).max(axis=1, initial=0.0))
            good = np.pad(local <= min(rtol, _SOUND) * sizes, (0, lengths.size - local.size))
            factors = np.where(good, 1, 2)
            needed = 2 * schedule.substeps @ np.where(good, 1, _STIFF)
            if len(states) < whole and needed > max_steps:
                break
        schedule = schedule._replace(substeps=schedule.substeps * factors)
        if 2 * schedule.substeps.sum() > max_steps:
            break
    done, rate = len(states) - 1, model.layout.rate
    status: Status = "inaccurate" if done == lengths.size else "diverged"
    advice = f"the trajectory diverged after time {lengths[:done].sum():g} of {lengths.sum():g}"
    if status == "inaccurate":
        advice = f"accuracy {rtol:g} was not reached with {substeps.sum()} steps"
    advice += f": try {f'a smaller `{rate}` or ' if rate else ''}a shorter `duration`"
    if status == "inaccurate" or max_steps < MAX_STEPS:
        advice += ", or a larger `max_steps`"
    run = states, losses, integrals, errors, integral_errors
    return Integration(*run, substeps, status, advice)


def _local_errors(model: Model, states: Floats, schedule: Schedule) -> Floats:
    """Return the error that each piece makes by itself, from an exact start (len(states) − 1,).

    `states` come from twice the substeps. The error of a whole roll-out shows where it has grown,
    which may be long after it was made.
    """
    starts = states[:-1]
    ends = model.roll_out_each(starts, schedule.rows(0, len(starts)))
    moved = np.where(np.isfinite(ends), ends, starts)
    return np.abs(moved - states[1:]).max(axis=1)


def _refinement(local: Floats, excess: float) -> Ints:
    """Return by what factor (pieces,) the substeps of each piece must grow, given local errors."""
    if excess <= 1.0:
        return np.ones(local.size, np.int64)
    times = np.clip(1.1 * excess ** (1 / _ORDER), 2, 8)  # where far off, errors mislead
    parts = (local + 1e-300) / (local.max() + 1e-300)
    factors = np.ceil(times * parts ** (1 / _ORDER)).astype(np.int64)
    return np.maximum(np.where(parts >= 0.01, np.maximum(factors, 2), factors), 1)


class _RollOut(NamedTuple):
    """See `Integration`; rule_errors: (pieces, L) what twice the steps change in the integrals."""

    states: Floats
    losses: Floats
    integrals: Floats
    rule_errors: Floats


def _roll_out(model: Model, start: Floats, schedule: Schedule, parts: int) -> _RollOut:
    """Roll out with each of the schedule's substeps, an even number, cut into 1 or 2 parts.

    The integrals are those of Simpson's rule on pairs of steps.
    """
    edges = np.append(0, np.cumsum(schedule.substeps // 2))  # of pieces, in pairs of substeps
    owners = np.repeat(np.arange(edges.size - 1), schedule.substeps // 2)
    lengths = schedule.lengths / (parts * schedule.substeps)
    together, size = max(1, _KEPT // (2 * parts * start.size)), len(model.loss_names)
    states, losses, integrals = [], [], np.zeros((2, edges.size - 1, size))
    for first in range(0, owners.size, together):
        own = owners[first : first + together]
        rows = np.repeat(own, 2 * parts)
        controls = schedule.shares.take(rows, axis=0), schedule.knobs.take(rows, axis=0)
        steps = Schedule.single_steps(*controls, lengths.take(rows))
        x, y = _finite_roll_out(model, start, steps)
        done = (len(x) - 1) // (2 * parts)
        a, b = own[0], own[done - 1] + 1 if done else own[0]  # it reached pieces a, …, b − 1
        ends = edges[a + (first > 0) : b + 1] - first
        ends = 2 * parts * ends[ends <= done]
        states.append(x[ends])
        losses.append(y[ends])
        y, starts = y[: 2 * parts * done + 1], parts * np.maximum(edges[a:b] - first, 0)
        for i in range(parts):  # all losses, then every second one
            z = y[:: i + 1]
            sums = np.add.reduceat(z[:-1:2] + 4 * z[1::2] + z[2::2], starts // (i + 1))
            integrals[i, a:b] += sums * lengths[a:b, None] * ((i + 1) / 3)
        if done < len(rows) // (2 * parts):
            break
        start = x[-1]
    total, coarser = integrals[:, : sum(map(len, states)) - 1]
    return _RollOut(np.concatenate(states), np.concatenate(losses), total, np.abs(total - coarser))


def _finite_roll_out(model: Model, start: Floats, schedule: Schedule) -> tuple[Floats, Floats]:
    """Return states and losses up to the first that is not a finite number."""
    states = model.roll_out(start, schedule)
    most = schedule.lengths.size + 1
    if np.shape(states)[1:] != start.shape or not 1 <= len(states) <= most:
        raise ArgumentError(
            "roll_out of the model",
            f"a function that returns states of shape ({most}, {start.size}), or the first rows "
            "where the rest is not finite",
            f"shape {np.shape(states)}",
        )
    with np.errstate(invalid="ignore"):  # a step too large can leave the valid states
        losses = model.losses(states)
    count = len(model.loss_names)
    if np.shape(losses) != (len(states), count):
        raise ArgumentError(
            "losses of the model",
            f"a function that returns shape ({len(states)}, {count}) for states {states.shape}",
            f"shape {np.shape(losses)}",
        )
    finite = np.isfinite(losses).all(axis=1)
    end = len(states) if finite.all() else int(np.argmin(finite))
    return states[:end], losses[:end]
