"""Flips: local search among protocols with one task per step, which never makes a plan worse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from replan import check
from replan.check import Floats, Ints
from replan.control.discretised import Controls, DiscretisedObjective, Gradient
from replan.control.exhaustive import check_only_tasks
from replan.control.plan import Status
from replan.control.search import Descent, Search, Solver
from replan.control.smoothing import Smoothing
from replan.problem.discrete import allows, cheapest
from replan.problem.risk import ONE, Risk

_ROUNDS = 100  # of one descent; a few are usual
_NEAR = 1.0  # temperature of the mixture that stands for the worst, in units of the spread
_CUT = 8  # most by which one failure lowers the number of changes made together
# Which moves are listed, and which of them are tried.
_SPAN = 8  # steps apart at most, for an exchange whose gain is computed by its own roll-out
_PAIRED_STAYS = 60  # best changes of stays that are combined in pairs
_PAIRED_STEPS = 300  # best changes of single steps that are
_MOST_PAIRS = 2000  # that are listed
_FEW_STEPS = 16  # with which linear models are so poor that all pairs are tried
_KNOWN = 5  # moves of a kind that must have been tried before others are passed over
_TRUST = 0.7  # of a kind's smallest miss, which its other moves are assumed to repeat


@dataclass(frozen=True)
class Flips(Solver):
    """Change the task of single steps, one after another, as long as the objective falls.

    - `starts`, `seed`: random starts besides all strategies, as in `Relax`.
    - `tolerance`: the search ends with a round that gains less than this fraction of what the
      controls can change.

    Examples:
        >>> f"{replan.solve(problem, replan.Flips(starts=0)).loss:.5f}"
        '0.00086'
    """

    starts: int = 2
    seed: int = 0
    tolerance: float = 5e-7
    method: ClassVar[str] = "flips"

    def __post_init__(self) -> None:
        check.integer("starts", self.starts)
        check.integer("seed", self.seed)
        check.number("tolerance", self.tolerance, above=0, at_most=1)

    def run(self, search: Search) -> Status:
        """Polish every start."""
        check_only_tasks(self, search)
        search.seed(self.starts, self.seed)
        for start in search.starts:
            threshold = search.threshold(self.tolerance)
            descent = FlipDescent(search.fine, start.candidate.controls, threshold)
            search.descend(descent, _ROUNDS)
            search.values.append(descent.value)
        return "converged"


class _Move(NamedTuple):
    """Other tasks in some steps; gain: the predicted change of the objective, below 0 if good."""

    gain: float
    kind: str
    steps: list[int]
    tasks: list[int]


class _LinearModel(NamedTuple):
    """How changes of tasks change the objective, to first order.

    The objective is the risk, over M members, of the largest of R numbers: one number, but one per
    loss where the goal is "worst". A smooth objective counts as one member with one number.

    offsets: (M × R,) the numbers relative to the objective. gains: (M × R, steps, T) their changes
    when one step is given another task; infinite where the task is unavailable.
    """

    offsets: Floats
    gains: Floats
    risk: Risk

    def objective(self, numbers: Floats) -> Floats:
        """Return the objective (…) from the numbers (M × R, …)."""
        members = numbers.reshape(self.risk.weights.size, -1, *numbers.shape[1:])
        return self.risk.of(members.max(axis=1))

    def change(self, steps: list[int], tasks: list[int]) -> float:
        """Return the change of the objective by other tasks in some steps."""
        return float(self.objective(self.offsets + self.gains[:, steps, tasks].sum(axis=1)))

    @property
    def mixed_gains(self) -> Floats:
        """The gains (steps, T) of a mixture of the numbers, mainly of those near the largest."""
        numbers = self.offsets.reshape(self.risk.weights.size, -1)
        temperature = max(_NEAR * np.ptp(self.offsets), 1e-300)
        smoothing = Smoothing(temperature, np.ones_like(numbers), self.risk.weights, self.risk)
        (members, losses), _ = smoothing.smoothed(numbers.max(axis=1), numbers)
        assert losses is not None
        weights = (members[:, None] * losses).ravel()
        return np.asarray(np.einsum("l,lit->it", weights, self.gains))


class FlipDescent(Descent):
    """A descent by changing tasks within the limits.

    The change of the objective that the Hamiltonians predict, (Φ_t′ − Φ_t) × step, ranks the moves.
    While many of them pay off at once the best ones are made together, as many as a trust region
    allows; then all promising exchanges of tasks; finally moves are tried one by one, each kept
    only if the objective falls. A round ends after `failures` moves in a row that fail; the
    descent, after a round that gains less than `threshold`.
    """

    def __init__(
        self, objective: DiscretisedObjective, start: Controls, threshold: float, failures: int = 25
    ) -> None:
        self._objective, self._threshold, self._failures = objective, threshold, failures
        self._limits = objective.problem.step_limits
        self.controls, self._gradients = start, _gradients(objective, start)
        self.value = self._gradients[0].value
        self._radius = max(1, objective.steps // 4)
        self._stalled = not np.isfinite(self.value)

    def terminate(self) -> bool:
        """Whether no move is worth trying any longer."""
        return self._stalled

    def step(self) -> None:
        """Make one round of moves."""
        before, model = self.controls, self._linear_model()
        if self._radius > 0:
            self._move_together(model)
        else:
            self._stalled = not self._move_one_by_one(model)
        if self.controls is not before and not self._stalled:
            self._gradients = _gradients(self._objective, self.controls)

    def _linear_model(self) -> _LinearModel:
        """Return the linear model around the present controls."""
        problem, gradients = self._objective.problem, self._gradients
        if problem.smooth:
            risk, numbers = ONE, np.array([gradients[0].surrogate.value])
            slopes = gradients[0].by_shares[None]
        else:
            risk = problem.risk
            numbers = np.stack([x.surrogate.member_values for x in gradients], axis=1).ravel()
            slopes = np.stack([gradient.member_by_shares for gradient in gradients], axis=1)
            slopes = slopes.reshape(numbers.size, *slopes.shape[2:])
        present = np.take_along_axis(slopes, self.controls.sequence[None, :, None], axis=2)
        gains = np.where(self._limits.available, slopes - present, np.inf)
        model = _LinearModel(numbers, gains, risk)
        return model._replace(offsets=numbers - float(model.objective(numbers)))

    # Many changes at once

    def _move_together(self, model: _LinearModel) -> None:
        """Move to the best protocol of the linear model, where each changed step has a price."""
        sequence, states = self.controls.sequence, self._gradients[0].states
        gains = model.mixed_gains
        ranked = np.sort(gains.min(axis=1))
        self._radius = min(self._radius, int(np.sum(ranked < 0)))
        while self._radius > 0:
            price = -ranked[self._radius] if self._radius < len(ranked) else 0.0
            prices = np.where(np.arange(gains.shape[1]) == sequence[:, None], 0.0, max(price, 0.0))
            controls = self.controls.with_tasks(cheapest(gains + prices, self._limits))
            changed = np.flatnonzero(controls.sequence != sequence)
            value = np.inf
            if changed.size:
                value, _ = self._objective.value_after(states, int(changed[0]), controls)
                if value < self.value:
                    self.controls, self.value = controls, value
                    return
            gain = gains[changed, controls.sequence[changed]].sum()
            if gain >= 0:
                self._radius = 0
                return
            # The miss of the predicted gain grows like the square of the number of changes.
            fewer = int(self._radius * -gain / (value - self.value - gain))
            self._radius = min(self._radius // 2, max(self._radius // _CUT, fewer))

    # Single moves

    def _move_one_by_one(self, model: _LinearModel) -> bool:
        """Exchange tasks, then try moves one by one; return whether it was worth it."""
        before, moves = self.value, self._moves(model)
        states = self._exchange([move for move in moves if move.kind == "exchange"])
        self._try_moves(moves, states)
        needed = self._limits.on_replay or not self._objective.problem.smooth
        if self.value == before and needed and not self._limits.on_stays:
            # Pairs may gain together although each loses alone. The linear model still holds.
            sequence = self.controls.sequence
            moves = sorted(_flips(sequence, model) + _exchanges(sequence, model))
            pairs = _combined([m for m in moves if m.gain < np.inf][:_PAIRED_STEPS], model)
            self._try_moves(pairs, states, every=self._objective.steps <= _FEW_STEPS)
        return before - self.value > self._threshold

    def _exchange(self, moves: list[_Move]) -> Floats:
        """Make all exchanges that promise a gain together, or the best half of them, and so on.

        Of those with a step in common, the best. Returns the states (steps + 1, n) then.
        """
        states = self._gradients[0].states
        chosen: list[_Move] = []
        taken: set[int] = set()
        for move in moves:
            if move.gain < 0 and taken.isdisjoint(move.steps):
                chosen.append(move)
                taken.update(move.steps)
        while chosen:
            sequence = self.controls.sequence
            for move in chosen:
                sequence[move.steps] = move.tasks
            if allows(self._limits, sequence):
                controls = self.controls.with_tasks(sequence)
                first = min(move.steps[0] for move in chosen)
                value, after = self._objective.value_after(states, first, controls)
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
        failures, present = 0, self.controls.sequence
        misses: dict[str, list[float]] = {}
        for gain, kind, steps, tasks in moves:
            missed = misses.setdefault(kind, [])
            hopeless = len(missed) >= _KNOWN and gain + _TRUST * min(missed) >= 0
            if (hopeless and not every) or present[steps].tolist() == tasks:
                continue
            sequence = present.copy()
            sequence[steps] = tasks
            if not allows(self._limits, sequence):
                continue
            controls = self.controls.with_tasks(sequence)
            value, after = self._objective.value_after(states, min(steps), controls)
            missed.append(value - self.value - gain)
            if value < self.value:
                self.controls, self.value, states, failures = controls, value, after, -1
                present = sequence
            failures += 1
            if failures == self._failures and not every:
                break

    # Lists of moves

    def _moves(self, model: _LinearModel) -> list[_Move]:
        """List moves, the most promising first."""
        sequence = self.controls.sequence
        moves = _flips(sequence, model) + self._exact(_exchanges(sequence, model))
        if self._limits.on_stays:
            shifts = sorted(
                _shifts(sequence, model) + _insertions(sequence, model, self._limits.dwell)
            )
            moves += shifts + _combined(shifts[:_PAIRED_STAYS], model)
        return sorted(move for move in moves if move.gain < np.inf)

    def _exact(self, moves: list[_Move]) -> list[_Move]:
        """Return exchanges; the gains of nearby ones come from the states they lead to.

        An exchange gains by the order of two steps alone, which the Hamiltonians do not see.
        """
        smooth = self._objective.problem.smooth and not self._objective.averages
        near = [m for m in moves if m.gain < np.inf and m.steps[1] - m.steps[0] <= _SPAN]
        if not smooth or self._limits.on_stays or not near:
            return moves
        gradient, sequence = self._gradients[0], self.controls.sequence
        first, last = np.array([move.steps for move in near]).T
        tasks = np.array([move.tasks for move in near])
        ends = np.array(gradient.states[first])
        self._objective.counts.roll_outs += 1  # a few steps from each place: about as much work
        for after in range(int(np.max(last - first)) + 1):
            active = np.flatnonzero(first + after <= last)
            steps = first[active] + after
            chosen = sequence[steps] if after else tasks[:, 0]
            chosen = np.where(steps == last[active], tasks[active, 1], chosen)
            ends[active] = self._objective.step_each(self.controls, steps, chosen, ends[active])
        changes = np.sum(gradient.adjoints[last + 1] * (ends - gradient.states[last + 1]), axis=1)
        far = [move for move in moves if move.steps[1] - move.steps[0] > _SPAN]
        return far + [
            move._replace(gain=float(gain), kind="exchange")
            for gain, move in zip(changes, near, strict=True)
            if np.isfinite(gain)
        ]


def _gradients(objective: DiscretisedObjective, controls: Controls) -> list[Gradient]:
    """Return the gradient, or where the goal is "worst" one with each loss as the largest."""
    goal, risk = objective.problem.objective, objective.problem.risk
    if goal.goal != "worst":
        return [objective.gradient(controls)]
    priors = [
        np.tile(row, (risk.weights.size, 1)) for row in np.eye(goal.weights.size)[goal.weights > 0]
    ]
    smoothings = [Smoothing(1.0, prior, risk.weights, risk) for prior in priors]
    return [objective.gradient(controls, smoothing) for smoothing in smoothings]


def _combined(moves: list[_Move], model: _LinearModel) -> list[_Move]:
    """Combine moves in pairs, the most promising first."""
    if len(moves) < 2:
        return []
    each = np.array([model.gains[:, move.steps, move.tasks].sum(axis=1) for move in moves])
    first, second = np.triu_indices(len(moves), 1)
    gains = model.objective((model.offsets + each[first] + each[second]).T)
    pairs = []
    for i in np.argsort(gains, kind="stable")[:_MOST_PAIRS].tolist():
        a, b = moves[first[i]], moves[second[i]]
        if not set(a.steps) & set(b.steps):
            steps, tasks = a.steps + b.steps, a.tasks + b.tasks
            pairs.append(_Move(float(gains[i]), f"{a.kind}, {b.kind}", steps, tasks))
    return pairs


def _flips(sequence: Ints, model: _LinearModel) -> list[_Move]:
    """Change the task of one step."""
    changes = model.objective(model.offsets[:, None, None] + model.gains)
    return [
        _Move(gain, "flip", [i], [t])
        for i, (task, row) in enumerate(zip(sequence.tolist(), changes.tolist(), strict=True))
        for t, gain in enumerate(row)
        if t != task
    ]


def _exchanges(sequence: Ints, model: _LinearModel) -> list[_Move]:
    """Exchange the tasks of a step and the next one with another task."""
    ends = np.flatnonzero(np.diff(sequence)) + 1  # of stays
    if not ends.size:
        return []
    first = np.arange(ends[-1])
    last = ends[np.searchsorted(ends, first, side="right")]
    gains = model.gains[:, first, sequence[last]] + model.gains[:, last, sequence[first]]
    changes = model.objective(model.offsets[:, None] + gains)
    rows = zip(first.tolist(), last.tolist(), changes.tolist(), strict=True)
    tasks = sequence.tolist()
    return [_Move(gain, f"exchange {j - i}", [i, j], [tasks[j], tasks[i]]) for i, j, gain in rows]


def _shifts(sequence: Ints, model: _LinearModel) -> list[_Move]:
    """Move the end of a stay by 1, 2, 4, … steps, at most until one of the two stays is gone."""
    edges = [0, *(np.flatnonzero(np.diff(sequence)) + 1).tolist(), len(sequence)]
    moves = []
    for before, edge, after in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
        for stop, task in ((after, sequence[edge - 1]), (before, sequence[edge])):
            longest = abs(stop - edge)
            for length in sorted({*(2**j for j in range(longest.bit_length())), longest}):
                start = edge if stop > edge else edge - length
                steps, tasks = list(range(start, start + length)), [int(task)] * length
                moves.append(_Move(model.change(steps, tasks), f"shift {length}", steps, tasks))
    return moves


def _insertions(sequence: Ints, model: _LinearModel, dwell: int) -> list[_Move]:
    """Put a new stay of 1, 2, 4, … times the least length where it gains most in each stay."""
    count, steps, tasks = model.gains.shape
    away = np.isinf(model.gains)
    sums, away_sums = (
        np.concatenate([np.zeros((count, 1, tasks)), np.cumsum(rows, axis=1)], axis=1)
        for rows in (np.where(away, 0.0, model.gains), away)
    )
    ends = [*(np.flatnonzero(np.diff(sequence)) + 1).tolist(), steps]
    moves, start = [], 0
    for end in ends:
        length = dwell
        while length < end - start:
            for task in set(range(tasks)) - {int(sequence[start])}:
                first, last = slice(start, end + 1 - length), slice(start + length, end + 1)
                numbers = model.offsets[:, None] + sums[:, last, task] - sums[:, first, task]
                unavailable = away_sums[0, last, task] > away_sums[0, first, task]
                gains = np.where(unavailable, np.inf, model.objective(numbers))
                at = start + int(np.argmin(gains))
                where = list(range(at, at + length))
                moves.append(
                    _Move(float(gains.min()), f"insertion {length}", where, [task] * length)
                )
            length *= 2
        start = end
    return moves
