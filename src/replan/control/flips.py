"""Local search among protocols with one task a step: moves that never make a plan worse."""

from __future__ import annotations

import numpy as np

from replan.check import Floats, Ints
from replan.control.objective import Controls, Gradient, Objective


class Flips:
    """A descent by changing the task of single steps, or exchanging those of two.

    The change of the objective that the Hamiltonians predict, (Φ_t′ − Φ_t) × step, ranks the moves.
    While many of them pay off at once the best ones are made together, as many as a trust region
    allows; then moves are tried one by one, each kept only if the objective falls.
    """

    def __init__(self, objective: Objective, start: Controls) -> None:
        self.objective = objective
        self.controls = start
        self.value = objective.value(start)
        self.radius = max(1, objective.steps // 4)
        self.stalled = not np.isfinite(self.value)

    @property
    def sequence(self) -> Ints:
        """The task of every step."""
        return np.argmax(self.controls.shares, axis=1)

    def step(self) -> None:
        """Make one round of moves."""
        found = self.objective.gradient(self.controls)
        if self.radius > 0:
            self._flip_many(found)
        else:
            self.stalled = not self._try_single_moves(found)

    def _flip_many(self, found: Gradient) -> None:
        sequence = self.sequence
        gains = found.by_shares - found.by_shares[np.arange(len(sequence)), sequence][:, None]
        best = np.argmin(gains, axis=1)
        gain = gains.min(axis=1)
        ranked = np.argsort(gain)
        promising = int(np.sum(gain < 0))
        self.radius = min(self.radius, promising)
        while self.radius > 0:
            chosen = ranked[: self.radius]
            flipped = sequence.copy()
            flipped[chosen] = best[chosen]
            controls = self.controls.with_tasks(flipped)
            value, _ = self.objective.value_after(found.states, int(chosen.min()), controls)
            if value < self.value:
                self.controls, self.value = controls, value
                return
            self.radius //= 2

    def _try_single_moves(self, found: Gradient) -> bool:
        """Try the most promising moves one by one; return whether it was worth it."""
        before, states = self.value, found.states
        for where, tasks in self._moves(found.by_shares)[: self.objective.steps]:
            sequence = self.sequence
            if np.array_equal(sequence[where], tasks):
                continue
            sequence[where] = tasks
            controls = self.controls.with_tasks(sequence)
            value, after = self.objective.value_after(states, min(where), controls)
            if value < self.value:
                self.controls, self.value, states = controls, value, after
        return before - self.value > 1e-7 * abs(before)

    def _moves(self, by_shares: Floats) -> list[tuple[list[int], list[int]]]:
        """List flips of each step and exchanges with the next step of another task, best first."""
        sequence = self.sequence
        steps, tasks = by_shares.shape
        gains = by_shares - by_shares[np.arange(steps), sequence][:, None]
        moves = [
            (gains[i, t], [i], [t]) for i in range(steps) for t in range(tasks) if t != sequence[i]
        ]
        following = _next_change(sequence)
        for i in np.flatnonzero(following < steps):
            j = following[i]
            gain = gains[i, sequence[j]] + gains[j, sequence[i]]
            moves.append((gain, [int(i), int(j)], [int(sequence[j]), int(sequence[i])]))
        return [(where, tasks) for _, where, tasks in sorted(moves, key=lambda move: move[0])]


def _next_change(sequence: Ints) -> Ints:
    """Return for every step the next one with another task, or the number of steps."""
    following = np.full(len(sequence), len(sequence))
    for i in range(len(sequence) - 2, -1, -1):
        following[i] = i + 1 if sequence[i + 1] != sequence[i] else following[i + 1]
    return following
