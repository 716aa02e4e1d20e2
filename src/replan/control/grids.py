"""Controls and protocols on finer and coarser grids of equal steps."""

from __future__ import annotations

import numpy as np

from replan.check import Floats
from replan.control.discretised import Controls
from replan.problem import Problem
from replan.protocol import Protocol


def fewer_steps(problem: Problem, about: int) -> int:
    """Return about `about` steps, at most twice that, with tasks arriving and departing at edges.

    A task that arrives within a step would be available too early or too late: another problem.
    """
    fractions = problem.availability.changes / problem.duration
    for steps in range(about, min(2 * about, problem.steps)):
        if np.all(np.abs(steps * fractions - np.round(steps * fractions)) <= 1e-6):
            return steps
    return about


def on_grid(problem: Problem, protocol: Protocol, steps: int) -> Controls:
    """Return the mean shares and knobs of a protocol on equal steps, of available tasks."""
    edges = np.linspace(0.0, protocol.duration, steps + 1)
    knobs = problem.knob_rows(protocol)
    if protocol.steps == steps and np.allclose(protocol.edges, edges, rtol=1e-12):
        return Controls(protocol.shares, knobs)

    def means(rows: Floats) -> Floats:
        sums = np.vstack([np.zeros(rows.shape[1]), np.cumsum(rows.T * protocol.lengths, axis=1).T])
        at = np.empty((steps + 1, rows.shape[1]))
        for j, column in enumerate(sums.T):
            at[:, j] = np.interp(edges, protocol.edges, column)
        averages = np.diff(at, axis=0) / np.diff(edges)[:, None]
        return np.where(np.ptp(rows, axis=0) == 0, rows[0], averages)  # without rounding errors

    shares = problem.availability.renormalise(means(protocol.shares), edges)
    return Controls(shares / shares.sum(axis=1, keepdims=True), means(knobs))


def as_protocol(problem: Problem, controls: Controls, *, one_task: bool = False) -> Protocol:
    """Return controls on equal steps as a protocol.

    A knob with a value for each task gets one per step where that is enough: where all are equal
    and, with `one_task`, where every step trains on one task.
    """
    shares = controls.shares if one_task else None
    knobs = problem.model.layout.by_name(controls.knobs, shares)
    return Protocol(
        controls.shares, problem.duration, **{name: knobs[name] for name in problem.settings}
    )


def interpolated(rows: Floats, steps: int) -> Floats:
    """Return rows (old, m), one for each step, as (steps, m), linear between middles of steps."""
    if len(rows) == steps:
        return rows
    old = (np.arange(len(rows)) + 0.5) / len(rows)
    new = (np.arange(steps) + 0.5) / steps
    finer = np.empty((steps, rows.shape[1]))
    for j, column in enumerate(rows.T):
        finer[:, j] = np.interp(new, old, column)
    return finer


def refined(controls: Controls, steps: int) -> Controls:
    """Return controls interpolated to more steps."""
    return Controls(*(interpolated(rows, steps) for rows in controls))
