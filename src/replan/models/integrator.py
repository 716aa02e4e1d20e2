"""integrate(model, start, pieces): a roll-out to a required accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan._common.naming import knob_label
from replan.models.base import Model, Schedule, with_ends

Status = Literal["ok", "diverged", "inaccurate"]

RTOL = 1e-9
MAX_STEPS = 2**21
ATOL = 1e-14  # losses are differences of numbers near 1, good to about 1e-15
_ORDER = 4
_LEFT = 2**_ORDER - 1  # step and half step differ by d: the finer one's error is d / 15
_AGAIN = 2**16  # steps with which a divergence is checked once more
_MODERATE = 4.0  # times its first size, or 1: a state that has not begun to diverge
_HALVINGS = 200  # of a piece, to find where in it numbers are no longer finite


class IntegrationError(ArithmeticError):
    """The learning curve could not be computed; the message says when and what to try.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> try:
        ...     replan.evaluate(problem, replan.Protocol([[0.5, 0.5]], duration=20.0, lr=1e9))
        ... except replan.IntegrationError as error:
        ...     print(str(error).partition(":")[0])
        the trajectory diverged after time 0 of 20 at learning rate 1e+09, feature lr 1, head lr 1
    """


class Integration(NamedTuple):
    """A roll-out to a required accuracy.

    states: (pieces + 1, n), fewer rows where it diverged. losses: (pieces + 1, L). errors: the
    estimated discretisation error of each loss, NaN where it is not known. substeps: (pieces,)
    steps taken on each piece.

    Examples:
        >>> model = replan.models.Curriculum([0.0, 3.0])
        >>> shares, rates, length = np.full((1, 2), 0.5), np.ones((1, 2)), np.array([2.0])
        >>> pieces = replan.models.Schedule.single_steps(shares, rates, length)
        >>> found = replan.models.integrate(model, np.array([1.0, 1.0, 0.1]), pieces)
        >>> found.status, found.losses.shape
        ('ok', (2, 2))
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
    pieces: Schedule,
    *,
    ends: Sequence[float] | Floats | None = None,
    rtol: float = RTOL,
    max_steps: int = MAX_STEPS,
) -> Integration:
    """Roll out with ever smaller steps until the losses and states are accurate to `rtol`.

    `ends`: the values of the model's end knobs, if it has any, by default their default values.

    The error is estimated by comparing step with half step; it says how many times smaller the
    steps must be. After the first pair of runs, give up where the next would need more than
    `max_steps` steps in all. If half the steps give the very same states, the model takes no notice
    of them, and the error is not known.

    Examples:
        >>> model = replan.models.Curriculum([0.0, 3.0])
        >>> shares, rates, length = np.full((1, 2), 0.5), np.ones((1, 2)), np.array([2.0])
        >>> pieces = replan.models.Schedule.single_steps(shares, rates, length)
        >>> found = replan.models.integrate(model, np.array([1.0, 1.0, 0.1]), pieces, rtol=1e-6)
        >>> bool(found.errors.max() < 1e-6)
        True
    """
    rtol = check.number("rtol", rtol, at_least=1e-13, at_most=1e-2)
    max_steps = check.integer("max_steps", max_steps, at_least=1)
    ends = [knob.default for knob in model.end_knobs] if ends is None else ends
    lengths, whole = pieces.lengths, pieces.lengths.size + 1
    first = np.ceil(100 * lengths / lengths.sum() - 1e-9).astype(np.int64)
    pieces = pieces._replace(substeps=np.maximum(pieces.substeps, first))
    while True:
        coarse, coarse_losses = _finite_roll_out(model, start, pieces, ends)
        fine = pieces._replace(substeps=2 * pieces.substeps)
        states, losses = _finite_roll_out(model, start, fine, ends)
        errors = np.full_like(losses, np.inf)
        if len(states) == len(coarse) == whole:
            errors = np.abs(losses - coarse_losses) / _LEFT
            state_errors = np.abs(states - coarse) / _LEFT
            excess = max(
                np.max(errors / (rtol * np.abs(losses) + ATOL)),
                np.max(state_errors / (rtol * np.maximum(1.0, np.abs(states)))),
            )
            if np.array_equal(states, coarse) and np.any(states != states[0]):
                errors = np.full_like(losses, np.nan)
            if excess <= 1.0:
                return Integration(states, losses, errors, fine.substeps, "ok", "")
            finer = _finer(_own_errors(model, states, pieces), excess)
        else:  # steps are too long where numbers are no longer finite, or before, where errors grew
            own = _own_errors(model, states[: len(coarse)], pieces)
            sizes = np.maximum(1.0, np.abs(states[1 : own.size + 1]).max(axis=1, initial=0.0))
            good = np.pad(own <= rtol * sizes, (0, lengths.size - own.size))
            finer = np.where(good, 1, 2)
        pieces = pieces._replace(substeps=pieces.substeps * finer)
        if 2 * pieces.substeps.sum() > max_steps:
            break
    status, advice = _explain(model, states, fine, ends, rtol)
    return Integration(states, losses, errors, fine.substeps, status, advice)


def _own_errors(model: Model, states: Floats, pieces: Schedule) -> Floats:
    """Return the errors that pieces make on their own, each from its start (len(states) − 1,).

    `states` come from twice the substeps. Errors show where they have grown, which may be long
    after they were made.
    """
    starts = states[:-1]
    ends = model.roll_out_each(starts, pieces.only(0, len(starts)))
    moved = np.where(np.isfinite(ends), ends, starts)
    return np.abs(moved - states[1:]).max(axis=1)


def _finer(own: Floats, excess: float) -> Ints:
    """Return by what factor (pieces,) the substeps of each piece must grow, given their errors."""
    times = np.clip(1.1 * excess ** (1 / _ORDER), 2, 8)  # where far off, errors mislead
    parts = own / max(own.max(), 1e-300)
    finer = np.ceil(times * parts ** (1 / _ORDER)).astype(np.int64)
    return np.maximum(np.where(parts >= 0.01, np.maximum(finer, 2), finer), 1)


def _finite_roll_out(
    model: Model, start: Floats, pieces: Schedule, ends: Sequence[float] | Floats
) -> tuple[Floats, Floats]:
    """Return states and losses up to the first that is not a finite number."""
    states = model.roll_out(start, pieces)
    most = pieces.lengths.size + 1
    if np.shape(states)[1:] != start.shape or not 1 <= len(states) <= most:
        raise ValueError(
            f"`roll_out` expects to return states of shape ({most}, {start.size}), with fewer rows "
            f"where numbers are no longer finite, got shape {np.shape(states)}"
        )
    with np.errstate(invalid="ignore"):  # a step too large can leave the valid states
        losses = model.losses(with_ends(states, ends))
    count = len(model.loss_names)
    if np.shape(losses) != (len(states), count):
        raise ValueError(
            f"`losses` expects to return shape ({len(states)}, {count}) for states of shape "
            f"{states.shape}, got shape {np.shape(losses)}"
        )
    bad = np.flatnonzero(~np.isfinite(losses).all(axis=1))
    end = bad[0] if bad.size else len(states)
    return states[:end], losses[:end]


def _explain(
    model: Model, states: Floats, pieces: Schedule, ends: Sequence[float] | Floats, rtol: float
) -> tuple[Status, str]:
    """Return why a roll-out did not reach its accuracy, and what to try.

    One that becomes infinite diverges only if it still does so with much smaller steps, from
    where it was still moderate; otherwise its steps were too long to be stable.
    """
    steps, done = int(pieces.substeps.sum()), len(states) - 1
    if done < pieces.lengths.size:
        sizes = np.abs(states).max(axis=1)
        most = _MODERATE * max(1.0, sizes[0])
        moderate = int(np.flatnonzero(sizes <= most)[-1])
        again = pieces.only(moderate, done + 1)
        again = again._replace(
            substeps=np.maximum(8 * again.substeps, _AGAIN // again.lengths.size)
        )
        after, _ = _finite_roll_out(model, states[moderate], again, ends)
        if len(after) <= again.lengths.size:
            if moderate == 0:
                _check_rate(model, states[0], pieces.only(0, 1))
            i = moderate + len(after) - 1
            edge = _undefined_at(model, after[-1], pieces.only(i, i + 1), ends, most)
            if edge is not None:
                return "diverged", (
                    "`model` expects rates and losses of finite numbers, got others after time "
                    f"{pieces.lengths[:i].sum():g} of {pieces.lengths.sum():g}, near the state "
                    f"{check.show(edge.round(6).tolist())}: change its functions there, or "
                    f"{_smaller_rates(model)}"
                )
            return "diverged", _diverged(model, states, pieces)
    return "inaccurate", (
        f"accuracy {rtol:g} was not reached with {steps} steps: {_smaller_rates(model)}, or a "
        "larger `max_steps`"
    )


def _diverged(model: Model, states: Floats, pieces: Schedule) -> str:
    """Return when, and at which rates, a roll-out that ends with `states` diverged."""
    done = len(states) - 1
    piece = pieces.only(done, done + 1)
    part = model.diverging(states[-1], piece)
    return (
        f"the trajectory{part and f' of {part}'} diverged after time "
        f"{pieces.lengths[:done].sum():g} of {pieces.lengths.sum():g}"
        f"{_rates_in_force(model, piece)}: {_smaller_rates(model)}"
    )


def _undefined_at(
    model: Model, state: Floats, piece: Schedule, ends: Sequence[float] | Floats, most: float
) -> Floats | None:
    """Return where in a piece from `state` on the model is no longer defined, None where it is.

    A roll-out that ends there comes ever closer and stays moderate, below `most`, and not even the
    shortest step leads on; one that diverges grows.
    """
    piece = piece._replace(substeps=np.array([16]))
    short = piece._replace(lengths=1e-9 * piece.lengths)
    for _ in range(_HALVINGS):
        piece = piece._replace(lengths=piece.lengths / 2)
        state = _finite_roll_out(model, state, piece, ends)[0][-1]
        if np.abs(state).max() > most:
            return None
    return state if len(_finite_roll_out(model, state, short, ends)[0]) < 2 else None


def _rates_in_force(model: Model, piece: Schedule) -> str:
    """Return the rates on a piece in words, the largest of those of the tasks that are trained."""
    trained = np.flatnonzero(piece.shares[0] > 0)
    values = model.layout.of_task(np.repeat(piece.knobs, trained.size, axis=0), trained)
    words = [
        f"{knob_label(knob.name)} {value:g}"
        for knob, value in zip(model.knobs, values.max(axis=0), strict=True)
        if knob.rate
    ]
    return f" at {', '.join(words)}" if words else ""


def _smaller_rates(model: Model) -> str:
    rates = [f"a smaller `{knob.name}` or " for knob in model.knobs if knob.rate]
    return f"try {''.join(rates[:1])}a shorter `duration`"


def _check_rate(model: Model, state: Floats, piece: Schedule) -> None:
    """Refuse a model whose rate is not finite at a state, however small the learning rate."""
    panel, knobs = model.layout, piece.knobs.copy()
    for name, columns in panel.columns.items():
        if panel.knobs[name].rate:
            knobs[:, columns] = np.minimum(knobs[:, columns], 1e-3)
    short = piece._replace(lengths=1e-9 * piece.lengths, knobs=knobs)
    if len(model.roll_out(state, short)) < 2:
        raise ValueError(
            "`model` expects a rate of finite numbers, got NaN or infinity at the state "
            f"{check.show(state)}"
        )
