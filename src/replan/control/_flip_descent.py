"""Local search among protocols with one task per step: moves that never make a plan worse."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from replan._common.check import Floats, Ints
from replan.control._objective import Controls, Gradient, Objective
from replan.control._solver import Descent
from replan.problem._discrete import allows, cheapest

_PAIRED = 60  # changes of stays that are combined in pairs
_KNOWN = 5  # moves of a kind after which others of that kind may be passed over
_TRUST = 0.7  # fraction of a kind's smallest miss that its other moves are assumed to repeat


class _Move(NamedTuple):
    gain: float  # predicted change of the objective
    kind: str
    where: list[int]
    tasks: list[int]


class FlipDescent(Descent):
    """A descent by changing tasks within the limits.

    The change of the objective that the Hamiltonians predict, (Φ_t′ − Φ_t) × step, ranks the moves.
    While many of them pay off at once the best ones are made together, as many as a trust region
    allows; then moves are tried one by one, each kept only if the objective falls. A round ends
    after `failures` moves in a row that fail; the descent, after a round that gains less than
    `enough`.
    """

    def __init__(
        self, objective: Objective, start: Controls, *, enough: float, failures: int = 25
    ) -> None:
        self.objective, self.enough, self.failures = objective, enough, failures
        self.limits = objective.problem.step_limits
        self.controls = start
        self.value = objective.value(start)
        self.radius = max(1, objective.steps // 4)
        self.stalled = not np.isfinite(self.value)

    def terminate(self) -> bool:
        """Whether no move is worth trying any longer."""
        return self.stalled

    def step(self) -> None:
        """Make one round of moves."""
        found = self.objective.gradient(self.controls)
        if self.radius > 0:
            self._move_many(found)
        else:
            self.stalled = not self._try_single_moves(found)

    def _move_many(self, found: Gradient) -> None:
        """Move to the best protocol of the linear model, where each changed step has a price."""
        sequence = self.controls.sequence
        gains = self._gains(found.by_shares)
        ranked = np.sort(gains.min(axis=1))
        self.radius = min(self.radius, int(np.sum(ranked < 0)))
        while self.radius > 0:
            price = -ranked[self.radius] if self.radius < len(ranked) else 0.0
            prices = np.where(np.arange(gains.shape[1]) == sequence[:, None], 0.0, max(price, 0.0))
            controls = self.controls.with_tasks(cheapest(gains + prices, self.limits))
            changed = np.flatnonzero(controls.sequence != sequence)
            if changed.size:
                value, _ = self.objective.value_after(found.states, int(changed[0]), controls)
                if value < self.value:
                    self.controls, self.value = controls, value
                    return
            self.radius //= 2

    def _try_single_moves(self, found: Gradient) -> bool:
        """Try the most promising moves one by one; return whether it was worth it.

        A move misses its prediction by about as much as others of its kind did: those that would
        then not pay off are passed over.
        """
        before, states, failures = self.value, found.states, 0
        misses: dict[str, list[float]] = {}
        for gain, kind, where, tasks in self._moves(found.by_shares):
            sequence = self.controls.sequence
            missed = misses.setdefault(kind, [])
            hopeless = len(missed) >= _KNOWN and gain + _TRUST * min(missed) >= 0
            if hopeless or np.array_equal(sequence[where], tasks):
                continue
            sequence[where] = tasks
            if self.limits.binding and not allows(self.limits, sequence):
                continue
            controls = self.controls.with_tasks(sequence)
            value, after = self.objective.value_after(states, min(where), controls)
            missed.append(value - self.value - gain)
            if value < self.value:
                self.controls, self.value, states, failures = controls, value, after, -1
            failures += 1
            if failures == self.failures:
                break
        return before - self.value > self.enough

    def _moves(self, by_shares: Floats) -> list[_Move]:
        """List moves, the most promising first."""
        sequence = self.controls.sequence
        gains = self._gains(by_shares)
        moves = _flips(sequence, gains) + _exchanges(sequence, gains)
        if self.limits.on_stays:
            shifts = sorted(
                _shifts(sequence, gains) + _insertions(sequence, gains, self.limits.dwell)
            )
            pairs = [
                _Move(a.gain + b.gain, f"{a.kind}, {b.kind}", a.where + b.where, a.tasks + b.tasks)
                for a, b in combinations(shifts[:_PAIRED], 2)
                if not set(a.where) & set(b.where)
            ]
            moves += shifts + pairs
        return sorted(move for move in moves if move.gain < np.inf)

    def _gains(self, by_shares: Floats) -> Floats:
        """Return the predicted change (steps, T) of the objective by each change of a step's task.

        It is infinite where the task is away.
        """
        now = by_shares[np.arange(len(by_shares)), self.controls.sequence]
        return np.where(self.limits.there, by_shares - now[:, None], np.inf)


def _flips(sequence: Ints, gains: Floats) -> list[_Move]:
    """Change the task of one step."""
    return [
        _Move(float(gains[i, t]), "flip", [i], [t])
        for i in range(len(sequence))
        for t in range(gains.shape[1])
        if t != sequence[i]
    ]


def _exchanges(sequence: Ints, gains: Floats) -> list[_Move]:
    """Exchange the tasks of a step and the next one with another task."""
    moves = []
    following = len(sequence)
    for i in range(len(sequence) - 2, -1, -1):
        if sequence[i + 1] != sequence[i]:
            following = i + 1
        if following < len(sequence):
            tasks = [int(sequence[following]), int(sequence[i])]
            gain = gains[i, tasks[0]] + gains[following, tasks[1]]
            moves.append(_Move(float(gain), f"exchange {following - i}", [i, following], tasks))
    return moves


def _shifts(sequence: Ints, gains: Floats) -> list[_Move]:
    """Move the end of a stay by 1, 2, 4, … steps, at most until one of the two stays is gone."""
    edges = [0, *(np.flatnonzero(np.diff(sequence)) + 1).tolist(), len(sequence)]
    moves = []
    for before, edge, after in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
        for stop, task in ((after, sequence[edge - 1]), (before, sequence[edge])):
            most = abs(stop - edge)
            for length in sorted({*(2**j for j in range(most.bit_length())), most}):
                start = edge if stop > edge else edge - length
                where = list(range(start, start + length))
                gain = float(gains[where, task].sum())
                moves.append(_Move(gain, f"shift {length}", where, [int(task)] * length))
    return moves


def _insertions(sequence: Ints, gains: Floats, dwell: int) -> list[_Move]:
    """Put a new stay of 1, 2, 4, … times the least length into another stay, or at an end of it."""
    steps, tasks = gains.shape
    away = np.isinf(gains)
    sums, gone = (
        np.vstack([np.zeros(tasks), np.cumsum(rows, axis=0)])
        for rows in (np.where(away, 0.0, gains), away)
    )
    ends = [*(np.flatnonzero(np.diff(sequence)) + 1).tolist(), steps]
    moves, start = [], 0
    for end in ends:
        length = dwell
        while length < end - start:
            for task in set(range(tasks)) - {int(sequence[start])}:
                first, last = slice(start, end + 1 - length), slice(start + length, end + 1)
                gain = np.where(
                    gone[last, task] > gone[first, task],
                    np.inf,
                    sums[last, task] - sums[first, task],
                )
                at = start + int(np.argmin(gain))
                where = list(range(at, at + length))
                name = f"insertion {length}"
                moves.append(_Move(float(gain.min()), name, where, [task] * length))
            length *= 2
        start = end
    return moves
