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
ATOL = 1e-14  # losses are differences of numbers near 1, good to about 1e-15
_SOUND = 1e-6  # errors of a piece that cannot make a later one diverge, whatever the accuracy
_STIFF = 8  # times the steps with which a piece diverges: what it needs at least to be accurate
_ORDER = 4
_RICHARDSON = 2**_ORDER - 1  # step and half step differ by d: the finer one's error is d / 15


class Integration(NamedTuple):
    """A roll-out to a required accuracy.

    states: (pieces + 1, n), fewer rows where it diverged. losses: (pieces + 1, L). errors: the
    estimated discretisation error of each loss, NaN where it is not known. substeps: (pieces,)
    steps taken on each piece. status: "ok", "diverged" or "inaccurate". advice: what to try then.
    """

    states: Floats
    losses: Floats
    errors: Floats
    substeps: Ints
    status: Status
    advice: str


def integrate(
    model: Model,
    start: Floats,
    schedule: Schedule,
    *,
    rtol: float = RTOL,
    max_steps: int = MAX_STEPS,
) -> Integration:
    """Roll out with ever smaller steps until the losses and states are accurate to `rtol`.

    The error is estimated by comparing step with half step; it says how many times smaller the
    steps must be. After the first pair of runs, give up where the next would need more than
    `max_steps` steps in all. If half the steps give the very same states, the model ignores
    substeps, and the error is not known.
    """
    rtol = check.number("rtol", rtol, at_least=1e-13, at_most=1e-2)
    max_steps = check.integer("max_steps", max_steps, at_least=1)
    lengths, whole = schedule.lengths, schedule.lengths.size + 1
    first = np.ceil(100 * lengths / lengths.sum() - 1e-9).astype(np.int64)
    schedule = schedule._replace(substeps=np.maximum(schedule.substeps, first))
    while True:
        coarse, coarse_losses = _finite_roll_out(model, start, schedule)
        fine = schedule._replace(substeps=2 * schedule.substeps)
        states, losses = _finite_roll_out(model, start, fine)
        errors = np.full_like(losses, np.inf)
        if len(states) == len(coarse) == whole:
            errors = np.abs(losses - coarse_losses) / _RICHARDSON
            state_errors = np.abs(states - coarse) / _RICHARDSON
            excess = max(
                np.max(errors / (rtol * np.abs(losses) + ATOL)),
                np.max(state_errors / (rtol * np.maximum(1.0, np.abs(states)))),
            )
            if np.array_equal(states, coarse) and np.any(states != states[0]):
                errors = np.full_like(losses, np.nan)
            if excess <= 1.0:
                return Integration(states, losses, errors, fine.substeps, "ok", "")
            factors = _refinement(_local_errors(model, states, schedule), excess)
        else:  # steps are too long where numbers are no longer finite, or before, where errors grew
            local = _local_errors(model, states[: len(coarse)], schedule)
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
        advice = f"accuracy {rtol:g} was not reached with {fine.substeps.sum()} steps"
    advice += f": try {f'a smaller `{rate}` or ' if rate else ''}a shorter `duration`"
    if status == "inaccurate" or max_steps < MAX_STEPS:
        advice += ", or a larger `max_steps`"
    return Integration(states, losses, errors, fine.substeps, status, advice)


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
    times = np.clip(1.1 * excess ** (1 / _ORDER), 2, 8)  # where far off, errors mislead
    parts = local / max(local.max(), 1e-300)
    factors = np.ceil(times * parts ** (1 / _ORDER)).astype(np.int64)
    return np.maximum(np.where(parts >= 0.01, np.maximum(factors, 2), factors), 1)


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
    bad = np.flatnonzero(~np.isfinite(losses).all(axis=1))
    end = bad[0] if bad.size else len(states)
    return states[:end], losses[:end]
