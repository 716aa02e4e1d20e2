"""Projection onto the relaxed controls: rows in the simplex, a box, budgets of both."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.core import library
from replan.core.threads import Pace
from replan.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Domain:
    """Vectors that hold `rows` rows of shares (T each) and then m numbers between 0 and 1.

    available: (rows, T) whether a task can have a share in a row; (0, T) where all always can. The
    mean share of task t over all rows lies between low[t] and high[t]. Of the numbers x, the mean
    weights[g] · x of each of G disjoint groups lies between least[g] and most[g]; weights are
    (G, m), positive on the group.

    old: (rows, T) whether a task counts as replay in a row; the mean of their shares over the rows
    from spans[i, 0] to spans[i, 1], which have none in common, is at most caps[i].
    """

    rows: int
    available: Bools
    low: Floats
    high: Floats
    weights: Floats
    least: Floats
    most: Floats
    old: Bools = field(default_factory=lambda: np.zeros((0, 0), bool))
    spans: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    caps: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        _ = self._table  # refuses arrays that do not fit together

    @cached_property
    def size(self) -> int:
        """The length of a vector."""
        return int(self.rows * self.low.size + self.weights.shape[1])

    @cached_property
    def paces(self) -> defaultdict[str, Pace]:
        """How long the core's loops over this domain take, by name."""
        return defaultdict(Pace)

    @cached_property
    def _table(self) -> Ints:
        """The struct `domain` of projection.c, with the addresses of the arrays here."""
        rows, tasks, known = self.rows, self.low.size, len(self.available)
        if known and known < rows:
            raise ArgumentError("available", f"0 or at least {rows} rows", f"{known}")
        if self.caps.size and self.old.shape != (rows, tasks):
            raise ArgumentError("old", f"an array ({rows}, {tasks})", f"{self.old.shape}")
        first, last = self.spans.T
        if np.any(first < 0) or np.any(first >= last) or np.any(last > rows):
            raise ArgumentError("spans", f"some of {rows} rows each", f"{self.spans.tolist()}")
        table = np.empty(library.DOMAIN_ROOM, np.int64)
        library.SET_DOMAIN(
            rows, self.available, self.low, self.high, self.weights, self.least, self.most,
            self.old, self.spans, self.caps, table,
        )  # fmt: skip
        return table

    @cached_property
    def _as_parameter_(self) -> int:
        """Where the core finds this domain; ctypes asks for it."""
        return self._table.ctypes.data

    @cached_property
    def room(self) -> int:
        """How many numbers of scratch space a projection needs."""
        tasks = self.low.size
        return self.rows * (2 * tasks + 1) + 5 * tasks + self.caps.size

    def __reduce__(self) -> tuple[Any, ...]:  # a copy has other addresses
        return Domain, tuple(getattr(self, each.name) for each in fields(self))


def project(x: Floats, domain: Domain) -> Floats:
    """Return the nearest vector of the domain."""
    check_size("x", x, domain)
    out, work = np.empty_like(x), np.empty(domain.room)
    domain.paces["project"].run(library.PROJECT, 1, domain, x, out, work)
    return out


def check_size(name: str, x: Floats, domain: Domain) -> None:
    """Refuse a vector of another length than those of the domain."""
    if x.size != domain.size:
        raise ArgumentError(name, f"{domain.size} numbers", f"{x.size}")
