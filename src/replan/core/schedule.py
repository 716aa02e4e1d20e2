"""What an integrator takes and returns: the steps of a protocol, and gradients of a roll-out.

Notation: T tasks, C columns of knobs, states of length n; a schedule has `pieces` rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from replan.check import Floats, Ints


class Schedule(NamedTuple):
    """The steps of a protocol as an integrator sees them.

    shares: (pieces, T) of the tasks. knobs: (pieces, C) the values of all knobs, in the columns of
    the model's `layout`; if the learning rate is the only knob, (pieces, T), its value for each
    task. lengths: (pieces,) in time. substeps: (pieces,) the number of equal integrator steps of
    each piece. Doubling the substeps must give a more accurate result: errors are estimated so.

    Examples:
        >>> shares = np.array([[0.0, 1.0], [0.5, 0.5]])
        >>> lengths = np.array([1.0, 4.0])
        >>> schedule = replan.models.Schedule.single_steps(shares, np.ones((2, 2)), lengths)
        >>> schedule.substeps
        array([1, 1])
    """

    shares: Floats
    knobs: Floats
    lengths: Floats
    substeps: Ints

    @classmethod
    def single_steps(cls, shares: Floats, knobs: Floats, lengths: Floats) -> Schedule:
        """Return a schedule of one integrator step a piece."""
        return cls(shares, knobs, lengths, np.ones(len(lengths), np.int64))

    def rows(self, first: int, last: int) -> Schedule:
        """Return the pieces `first`, …, `last` − 1."""
        columns: Any = (column[first:last] for column in self)
        return Schedule(*columns)

    def subdivide(self, parts: int) -> Schedule:
        """Return every piece cut into equal parts, each with the substeps of the whole."""
        columns: Any = (np.repeat(column, parts, axis=0) for column in self)
        return Schedule(*columns)._replace(lengths=np.repeat(self.lengths / parts, parts))


class Gradients(NamedTuple):
    """Gradients of Σ_i cotangents[i] · states[i] of a roll-out.

    adjoints: (pieces + 1, n) by the state at every edge, through all that follows from it.
    by_shares: (pieces, T). by_knobs: (pieces, C).

    Examples:
        >>> replan.models.Gradients._fields
        ('adjoints', 'by_shares', 'by_knobs')
    """

    adjoints: Floats
    by_shares: Floats
    by_knobs: Floats
