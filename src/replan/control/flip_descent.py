"""Local search among protocols with one task per step: moves that never make a plan worse."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan.check import Floats, Ints
from replan.control.objective import Controls, DiscretisedObjective, Gradient
from replan.control.smoothing import Smoothing
from replan.control.solver import Descent
from replan.problem.discrete import allows, cheapest
from replan.problem.risk import ONE, Risk

_EXCHANGE = "exchange"
_PAIRED = 60  # changes of stays that are combined in pairs
_WIDER = 300  # changes of single steps that are
_LISTED = 2000  # most pairs that are tried
_FEW = 16  # steps on which all pairs are tried
_NEAR = 1.0  # of how far losses lie apart: those closer to the largest count most in a mixture
_KNOWN = 5  # moves of a kind after which others of that kind may be passed over
_TRUST = 0.7  # fraction of a kind's smallest miss that its other moves are assumed to repeat
_SPAN = 8  # steps apart at which tasks are exchanged with an exact look at what lies between
_CUT = 8  # most by which one failure lowers the number of changes made together


class _Linear(NamedTuple):
    """What changes of tasks do to the objective, to first order.

    It is what `risk` makes of the largest of R numbers of each of M members: one number, but for
    the goal "worst", which has one for each task. There is one member where that is linear. below:
    (M × R,) how the numbers lie to the objective. gains: (M × R, steps, T) how each change of a
    step's task changes them, infinite where the task is away.
    """

    below: Floats
    gains: Floats
    risk: Risk

    def of(self, numbers: Floats) -> Floats:
        """Return the objective (…) from the numbers (M × R, …)."""
        each = numbers.reshape(self.risk.weights.size, -1, *numbers.shape[1:])
        return self.risk.of(each.max(axis=1))

    def change(self, where: list[int], tasks: list[int]) -> float:
        """Return the change of the objective by other tasks in some steps."""
        return float(self.of(self.below + self.gains[:, where, tasks].sum(axis=1)))

    @property
    def changes(self) -> Floats:
        """The change (steps, T) of the objective by another task in one step."""
        return np.asarray(self.of(self.below[:, None, None] + self.gains))

    @property
    def mixed(self) -> Floats:
        """The gains (steps, T) of a mixture of the numbers, mainly of those near the largest."""
        each = self.below.reshape(self.risk.weights.size, -1)
        temperature = max(_NEAR * np.ptp(self.below), 1e-300)
        soft = Smoothing(temperature, np.ones_like(each), self.risk.weights, self.risk)
        members, losses = soft.mixture(each.max(axis=1), each)
        assert losses is not None
        parts = (members[:, None] * losses).ravel()
        return np.asarray(np.einsum("l,lit->it", parts, self.gains))


class _Move(NamedTuple):
    gain: float  # predicted change of the objective
    kind: str
    where: list[int]
    tasks: list[int]


class FlipDescent(Descent):
    """A descent by changing tasks within the limits.

    The change of the objective that the Hamiltonians predict, (Φ_t′ − Φ_t) × step, ranks the moves.
    While many of them pay off at once the best ones are made together, as many as a trust region
    allows; then all exchanges of tasks that promise something, and at last moves are tried one by
    one, each kept only if the objective falls. A round ends after `failures` moves in a row that
    fail; the descent, after a round that gains less than `enough`.
    """

    def __init__(
        self, objective: DiscretisedObjective, start: Controls, *, enough: float, failures: int = 25
    ) -> None:
        self.objective, self.enough, self.failures = objective, enough, failures
        self.limits = objective.problem.step_limits
        self.controls, self._found = start, objective.gradients(start)
        self.value = self._found[0].value
        self.radius = max(1, objective.steps // 4)
        self.stalled = not np.isfinite(self.value)

    def terminate(self) -> bool:
        """Whether no move is worth trying any longer."""
        return self.stalled

    def step(self) -> None:
        """Make one round of moves."""
        before, linear = self.controls, self._linear(self._found)
        if self.radius > 0:
            self._move_many(linear, self._found[0].states)
        else:
            self.stalled = not self._move_few(linear)
        if self.controls is not before and not self.stalled:
            self._found = self.objective.gradients(self.controls)

    def _move_many(self, linear: _Linear, states: Floats) -> None:
        """Move to the best protocol of the linear model, where each changed step has a price."""
        sequence = self.controls.sequence
        gains = linear.mixed
        ranked = np.sort(gains.min(axis=1))
        self.radius = min(self.radius, int(np.sum(ranked < 0)))
        while self.radius > 0:
            price = -ranked[self.radius] if self.radius < len(ranked) else 0.0
            prices = np.where(np.arange(gains.shape[1]) == sequence[:, None], 0.0, max(price, 0.0))
            controls = self.controls.with_tasks(cheapest(gains + prices, self.limits))
            changed = np.flatnonzero(controls.sequence != sequence)
            value = np.inf
            if changed.size:
                value, _ = self.objective.value_after(states, int(changed[0]), controls)
                if value < self.value:
                    self.controls, self.value = controls, value
                    return
            self.radius = self._smaller(gains[changed, controls.sequence[changed]].sum(), value)

    def _smaller(self, gain: float, value: float) -> int:
        """Return how many changes may pay off where these have missed their predicted gain.

        What they miss grows like the square of their number. None may where none was predicted.
        """
        if gain >= 0:
            return 0
        part = -gain / (value - self.value - gain)
        return min(self.radius // 2, max(self.radius // _CUT, int(self.radius * part)))

    def _move_few(self, linear: _Linear) -> bool:
        """Exchange tasks, then try moves one by one; return whether it was worth it."""
        before, moves = self.value, self._moves(linear)
        exchanges = [move for move in moves if move.kind == _EXCHANGE]
        states = self._exchange(self._found[0].states, exchanges)
        self._try_moves(moves, states)
        if self.value == before:  # so that the linear model still holds
            few = self.objective.steps <= _FEW  # on which linear models are poor
            self._try_moves(self._pairs(linear), states, every=few)
        return before - self.value > self.enough

    def _exchange(self, states: Floats, moves: list[_Move]) -> Floats:
        """Make all exchanges that promise a gain together, or the best half of them, and so on.

        Of those that have a step in common, the best. Returns the states (steps + 1, n) then.
        """
        chosen: list[_Move] = []
        taken: set[int] = set()
        for move in moves:
            if move.gain < 0 and taken.isdisjoint(move.where):
                chosen.append(move)
                taken.update(move.where)
        while chosen:
            sequence = self.controls.sequence
            for move in chosen:
                sequence[move.where] = move.tasks
            if not self.limits.binding or allows(self.limits, sequence):
                controls = self.controls.with_tasks(sequence)
                first = min(move.where[0] for move in chosen)
                value, after = self.objective.value_after(states, first, controls)
                if value < self.value:
                    self.controls, self.value = controls, value
                    return after
            chosen = chosen[: len(chosen) // 2]
        return states

    def _try_moves(self, moves: list[_Move], states: Floats, *, every: bool = False) -> None:
        """Try the most promising moves one by one.

        A move misses its prediction by about as much as others of its kind did: those that would
        then not pay off are passed over, unless `every` one is to be tried.
        """
        failures = 0
        misses: dict[str, list[float]] = {}
        for gain, kind, where, tasks in moves:
            sequence = self.controls.sequence
            missed = misses.setdefault(kind, [])
            hopeless = len(missed) >= _KNOWN and gain + _TRUST * min(missed) >= 0
            if (hopeless and not every) or np.array_equal(sequence[where], tasks):
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
            if failures == self.failures and not every:
                break

    def _moves(self, linear: _Linear) -> list[_Move]:
        """List moves, the most promising first."""
        sequence = self.controls.sequence
        moves = _flips(sequence, linear) + self._exact(_exchanges(sequence, linear))
        if self.limits.on_stays:
            shifts = sorted(
                _shifts(sequence, linear) + _insertions(sequence, linear, self.limits.dwell)
            )
            moves += shifts + _both(shifts[:_PAIRED], linear)
        return sorted(move for move in moves if move.gain < np.inf)

    def _exact(self, moves: list[_Move]) -> list[_Move]:
        """Return exchanges, of those nearby with the gain by the states that they lead to.

        An exchange gains by the order of two steps alone, which the Hamiltonians do not see.
        """
        found = self._found[0]
        near = [m for m in moves if m.gain < np.inf and m.where[1] - m.where[0] <= _SPAN]
        mixed = not self.objective.problem.smooth
        if mixed or self.objective.pieces > 1 or self.limits.on_stays or not near:
            return moves
        first, last = np.array([move.where for move in near]).T
        tasks = np.array([move.tasks for move in near])
        ends = np.empty((len(near), found.states.shape[1]))
        ends[:] = found.states[first]
        sequence = self.controls.sequence
        self.objective.counts.roll_outs += 1  # a few steps from each place are about as many
        for after in range(int(np.max(last - first)) + 1):
            some = np.flatnonzero(first + after <= last)
            steps = first[some] + after
            chosen = sequence[steps] if after else tasks[:, 0]
            chosen = np.where(steps == last[some], tasks[some, 1], chosen)
            ends[some] = self.objective.step_each(self.controls, steps, chosen, ends[some])
        changes = np.sum(found.adjoints[last + 1] * (ends - found.states[last + 1]), axis=1)
        far = [move for move in moves if move.where[1] - move.where[0] > _SPAN]
        return far + [
            move._replace(gain=float(gain), kind=_EXCHANGE)
            for gain, move in zip(changes, near, strict=True)
            if np.isfinite(gain)
        ]

    def _pairs(self, linear: _Linear) -> list[_Move]:
        """List pairs of moves that may gain together what each of them loses.

        So it is where little replay is allowed, or where what one loss gains another one loses.
        """
        needed = self.limits.on_replay or not self.objective.problem.smooth
        if self.limits.on_stays or not needed:
            return []
        sequence = self.controls.sequence
        moves = _flips(sequence, linear) + _exchanges(sequence, linear)
        return _both(sorted(move for move in moves if move.gain < np.inf)[:_WIDER], linear)

    def _linear(self, found: list[Gradient]) -> _Linear:
        """Return the linear model around the controls."""
        problem = self.objective.problem
        if problem.smooth:
            risk, levels = ONE, np.array([found[0].smooth])
            slopes = found[0].by_shares[None]
        else:
            risk, size = problem.risk, problem.risk.weights.size * len(found)
            levels = np.stack([gradient.levels for gradient in found], axis=1).ravel()
            slopes = np.stack([gradient.each_by_shares for gradient in found], axis=1)
            slopes = slopes.reshape(size, *slopes.shape[2:])
        now = np.take_along_axis(slopes, self.controls.sequence[None, :, None], axis=2)
        gains = np.where(self.limits.available, slopes - now, np.inf)
        linear = _Linear(levels, gains, risk)
        return linear._replace(below=levels - float(linear.of(levels)))


def _both(moves: list[_Move], linear: _Linear) -> list[_Move]:
    """Combine moves in pairs, the most promising first."""
    if len(moves) < 2:
        return []
    each = np.array([linear.gains[:, move.where, move.tasks].sum(axis=1) for move in moves])
    first, second = np.triu_indices(len(moves), 1)
    gains = linear.of((linear.below + each[first] + each[second]).T)
    pairs = []
    for i in np.argsort(gains, kind="stable")[:_LISTED].tolist():
        a, b = moves[first[i]], moves[second[i]]
        if not set(a.where) & set(b.where):
            where, tasks = a.where + b.where, a.tasks + b.tasks
            pairs.append(_Move(float(gains[i]), f"{a.kind}, {b.kind}", where, tasks))
    return pairs


def _flips(sequence: Ints, linear: _Linear) -> list[_Move]:
    """Change the task of one step."""
    changes = linear.changes
    return [
        _Move(float(changes[i, t]), "flip", [i], [t])
        for i in range(len(sequence))
        for t in range(changes.shape[1])
        if t != sequence[i]
    ]


def _exchanges(sequence: Ints, linear: _Linear) -> list[_Move]:
    """Exchange the tasks of a step and the next one with another task."""
    moves = []
    following = len(sequence)
    for i in range(len(sequence) - 2, -1, -1):
        if sequence[i + 1] != sequence[i]:
            following = i + 1
        if following < len(sequence):
            where, tasks = [i, following], [int(sequence[following]), int(sequence[i])]
            kind = f"{_EXCHANGE} {following - i}"
            moves.append(_Move(linear.change(where, tasks), kind, where, tasks))
    return moves


def _shifts(sequence: Ints, linear: _Linear) -> list[_Move]:
    """Move the end of a stay by 1, 2, 4, … steps, at most until one of the two stays is gone."""
    edges = [0, *(np.flatnonzero(np.diff(sequence)) + 1).tolist(), len(sequence)]
    moves = []
    for before, edge, after in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
        for stop, task in ((after, sequence[edge - 1]), (before, sequence[edge])):
            most = abs(stop - edge)
            for length in sorted({*(2**j for j in range(most.bit_length())), most}):
                start = edge if stop > edge else edge - length
                where, tasks = list(range(start, start + length)), [int(task)] * length
                moves.append(_Move(linear.change(where, tasks), f"shift {length}", where, tasks))
    return moves


def _insertions(sequence: Ints, linear: _Linear, dwell: int) -> list[_Move]:
    """Put a new stay of 1, 2, 4, … times the least length into another stay, or at an end of it."""
    L, steps, tasks = linear.gains.shape
    away = np.isinf(linear.gains)
    sums, gone = (
        np.concatenate([np.zeros((L, 1, tasks)), np.cumsum(rows, axis=1)], axis=1)
        for rows in (np.where(away, 0.0, linear.gains), away)
    )
    ends = [*(np.flatnonzero(np.diff(sequence)) + 1).tolist(), steps]
    moves, start = [], 0
    for end in ends:
        length = dwell
        while length < end - start:
            for task in set(range(tasks)) - {int(sequence[start])}:
                first, last = slice(start, end + 1 - length), slice(start + length, end + 1)
                change = linear.below[:, None] + sums[:, last, task] - sums[:, first, task]
                left = gone[0, last, task] > gone[0, first, task]
                gain = np.where(left, np.inf, linear.of(change))
                at = start + int(np.argmin(gain))
                where = list(range(at, at + length))
                name = f"insertion {length}"
                moves.append(_Move(float(gain.min()), name, where, [task] * length))
            length *= 2
        start = end
    return moves
