"""RateLaw: the loss of a training under a schedule of learning rates, by a law fitted to pilots.

Notation: P laws side by side, R runs, n pieces of constant rate, Z noise modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replan import check
from replan.check import Floats
from replan.core.schedule import Gradients, Schedule
from replan.errors import ArgumentError
from replan.models.base import DifferentiableModel
from replan.models.knobs import Knob
from replan.models.registry import register
from replan.models.relaxation import relax, relax_vjp
from replan.schema import from_keys

NAMES = ("floor", "signal", "exponent", "noise", "pace", "spread", "power")
MODES = np.geomspace(0.003, 10.0, 6)  # the modes' relaxation rates, times `pace`
KAPPA = 2.0  # noise grows with the loss that is left to learn: times 1 + κ s
_SLOWING = 0.25  # modes relax at the rate η^(1 + 1/4): decays end in a freeze
_LEAST = 1e-9  # of the peak: rates below count as this one


class Pieces(NamedTuple):
    """Runs as pieces of constant rate: (R, n) each but `progress`, (R, n + 1).

    pace: η/η_peak. drive: the same, over the batch size. lengths: in units of the law.
    progress: S, the sum of pace × length up to each edge.
    """

    pace: Floats
    drive: Floats
    lengths: Floats
    progress: Floats


def weights(laws: NDArray[Any]) -> NDArray[Any]:
    """Return the weights (P, Z) of the modes, w ∝ x^spread e^(−x) of sum 1, of laws (P, 7)."""
    shape = np.exp(laws[:, 5, None] * np.log(MODES) - MODES)
    return shape / shape.sum(axis=1, keepdims=True)


def noise_of(laws: NDArray[Any], runs: Pieces) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the exponents and targets (n, P, R, Z) of the modes, for `relax`."""
    pace, drive = np.maximum(runs.pace, _LEAST), np.maximum(runs.drive, _LEAST)
    rate, power = laws[:, 4, None], laws[:, 6, None]
    relaxed = (runs.lengths * pace ** (1.0 + _SLOWING)).T  # (n, R)
    force = np.exp(power * np.log(drive.T)[:, None])  # (n, P, R)
    exponents = (rate * relaxed[:, None])[..., None] * MODES
    return exponents, force[..., None] * weights(laws)[:, None, :]


def curves(laws: NDArray[Any], runs: Pieces) -> NDArray[Any]:
    """Return the losses (P, R, n + 1) at the edges of runs that begin without noise."""
    noise = relax(np.zeros(1), *noise_of(laws, runs)).sum(axis=3).transpose(1, 2, 0)
    floor, signal, exponent, scale = (x[:, None, None] for x in laws.T[:4])
    rest = signal * np.exp(-exponent * np.log(runs.progress))
    return floor + rest + scale * (1.0 + KAPPA * rest) * noise


@register
class RateLaw(DifferentiableModel):
    """The loss of a training by its learning rate alone: a law fitted to pilots (`replan.fit`).

    With η the rate over its peak and time in `unit` steps,

        S′ = η,  n_z′ = pace x_z η^(5/4) (w_z η^power − n_z),
        loss = floor + s + noise (1 + 2 s) Σ_z n_z  with  s = signal S^−exponent,

    with w_z ∝ x_z^spread e^(−x_z) on a logarithmic grid of x. Several laws that fit nearly equally
    well stand side by side; the loss is their mean.

    - `laws`: (P, 7) floor, signal, exponent, noise, pace, spread, power.
    - `peak`: the learning rate that counts as 1. `unit`: the steps that count as 1.
    - `covered`: what the pilots cover, see `replan.fit`.

    Examples:
        >>> model = replan.models.RateLaw([[2.5, 1.0, 0.5, 0.1, 50.0, 0.3, 0.6]], 3e-4, 1000.0)
        >>> start = model.warmed_up(2000)
        >>> problem = replan.Problem(model, start, duration=20000, lr=3e-4)
        >>> run = replan.evaluate(problem, replan.strategies.interleaved(problem))
        >>> f"{run.loss:.3f}"
        '2.861'
    """

    kind = "rate-law"
    tasks = 1
    knobs: Sequence[Knob] = (Knob("lr", default=0.0, rate=True),)

    def __init__(
        self,
        laws: ArrayLike,
        peak: float,
        unit: float,
        covered: Mapping[str, Any] | None = None,
    ) -> None:
        self.laws = check.array("laws", laws, ("P", len(NAMES)))
        self.peak = check.number("peak", peak, above=0)
        self.unit = check.number("unit", unit, above=0)
        self.covered = dict(covered or {})
        for name, column in zip(NAMES, self.laws.T, strict=True):
            if name not in ("floor", "spread") and column.min() < 0:
                raise ArgumentError("laws", f"laws with a {name} of at least 0", f"{column.min()}")

    task_names = ("training",)
    loss_names = ("loss",)

    @property
    def state_size(self) -> int:
        """The length of a state: S and the modes of all laws."""
        return 1 + self.laws.shape[0] * len(MODES)

    # Starts

    def warmed_up(self, steps: float, peak: float | None = None) -> Floats:
        """Return the state after a linear warm-up to the peak over `steps` steps."""
        rates = np.linspace(0.0, self.peak if peak is None else peak, 21)
        return self.after(np.linspace(0.0, max(steps, 1e-3 * self.unit), 21), rates)

    def after(self, steps: ArrayLike, rates: ArrayLike, batch: ArrayLike | None = None) -> Floats:
        """Return the state after a training from scratch, with rates (n,) logged at steps (n,).

        `batch`: (n,) over the batch size of what follows, by default the same.
        """
        runs = self._logged(steps, rates, np.ones_like(rates) if batch is None else batch)
        modes = relax(np.zeros(1), *noise_of(self.laws, runs))[-1, :, 0]
        return np.concatenate([runs.progress[0, -1:], modes.ravel()])

    def curve(self, steps: ArrayLike, rates: ArrayLike) -> Floats:
        """Return the mean losses (n,) of a training from scratch with rates (n,) at steps (n,)."""
        runs = self._logged(steps, rates, np.ones_like(rates))
        return curves(self.laws, runs).mean(axis=0)[0]

    def _logged(self, steps: ArrayLike, rates: ArrayLike, batch: ArrayLike) -> Pieces:
        rows = {"steps": steps, "rates": rates, "batch": batch}
        times, values, sizes = (check.array(x, y, ("n",))[None] for x, y in rows.items())
        return pieces(times, values, self.peak, self.unit, sizes)

    def pack(self, start: Any) -> Floats:
        """Check a start, and return it."""
        state = check.array("start", start, (self.state_size,))
        if state[0] <= 0:
            raise ArgumentError("start", "after some training: S above 0", f"{state[0]:g}")
        return state

    def start_from_dict(self, content: Mapping[str, Any]) -> Any:
        """Return the start of a `[start]` section: a `state`, or the steps of a `warmup`."""

        def start(state: list[float] | None = None, warmup: float | None = None) -> Any:
            if (state is None) == (warmup is None):
                raise ArgumentError("start", "either `state` or `warmup`", "both or neither")
            if warmup is not None:
                return self.warmed_up(check.number("start.warmup", warmup, above=0))
            return self.pack(state)

        return from_keys(start, content, "start")

    def to_dict(self) -> dict[str, Any]:
        """Return the `[model]` section."""
        content = {"laws": self.laws.tolist(), "peak": self.peak, "unit": self.unit}
        return content | ({"covered": self.covered} if self.covered else {})

    def table(self, duration: float, rates: Floats) -> dict[str, Floats]:
        """Return rates (n,) of equal pieces as what trainers execute: `step` and `lr` (n + 1,)."""
        begin = self.covered.get("starts_at", 0.0)
        steps = begin + np.linspace(0.0, duration, len(rates) + 1)
        return {"step": steps, "lr": np.append(rates, rates[-1])}

    # Losses

    def losses_each(self, states: Floats) -> Floats:
        """Return the loss (P, …) by each of the laws at states (…, n)."""
        modes = states[..., 1:].reshape(*states.shape[:-1], len(self.laws), len(MODES))
        noise = np.moveaxis(modes.sum(axis=-1), -1, 0)
        ahead = (slice(None), *(None,) * (states.ndim - 1))
        floor, signal, exponent, scale = (x[ahead] for x in self.laws.T[:4])
        rest = signal * states[..., 0] ** -exponent
        return floor + rest + scale * (1.0 + KAPPA * rest) * noise

    def losses(self, states: Any) -> Floats:
        """Return the mean loss (…, 1) of the laws at states (…, n)."""
        return self.losses_each(np.asarray(states, float)).mean(axis=0)[..., None]

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradient by the states of cotangents × loss."""
        _, signal, exponent, scale = self.laws.T[:4]
        modes = states[..., 1:].reshape(*states.shape[:-1], len(self.laws), len(MODES))
        rest = signal * states[..., :1] ** -exponent  # (…, P)
        by_rest = (1.0 + KAPPA * scale * modes.sum(axis=-1)) / len(self.laws)
        by_mode = scale * (1.0 + KAPPA * rest) / len(self.laws)
        slope = (-exponent * rest * by_rest).sum(axis=-1, keepdims=True) / states[..., :1]
        return cotangents * np.concatenate(
            [slope, np.repeat(by_mode, len(MODES), axis=-1)], axis=-1
        )

    # Roll-outs

    def _runs(self, start: Floats, schedule: Schedule) -> Pieces:
        pace = schedule.knobs[None, :, 0] / self.peak
        lengths = schedule.lengths[None] / self.unit
        progress = start[0] + np.concatenate([[0.0], np.cumsum(pace[0] * lengths[0])])
        return Pieces(pace, pace, lengths, progress[None])

    def roll_out(self, start: Floats, schedule: Schedule) -> Floats:
        """Return the states (pieces + 1, n), in closed form."""
        runs = self._runs(start, schedule)
        first = start[1:].reshape(len(self.laws), 1, len(MODES))
        modes = relax(first, *noise_of(self.laws, runs))
        states = np.column_stack([runs.progress[0], modes.reshape(len(modes), -1)])
        finite = np.isfinite(states).all(axis=1)
        return states if finite.all() else states[: int(np.argmin(finite))]

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, schedule: Schedule, tape: Any = None
    ) -> Gradients:
        """Return the exact gradients of a roll-out."""
        runs = self._runs(states[0], schedule)
        count, shape = len(schedule.lengths), (-1, len(self.laws), 1, len(MODES))
        modes, by_modes = (x[:, 1:].reshape(shape) for x in (states, cotangents))
        exponents, targets = noise_of(self.laws, runs)
        adjoints, by_exponents, by_targets = relax_vjp(modes, by_modes, exponents, targets)
        power = self.laws[:, 6, None, None]
        by_log = (1.0 + _SLOWING) * by_exponents * exponents + power * by_targets * targets
        pace = np.maximum(runs.pace[0], _LEAST)
        by_progress = np.cumsum(cotangents[::-1, 0])[::-1]
        by_pace = by_log.sum(axis=(1, 2, 3)) / pace * (runs.pace[0] > _LEAST)
        by_pace += by_progress[1:] * runs.lengths[0]
        by_states = np.column_stack([by_progress, adjoints.reshape(count + 1, -1)])
        return Gradients(by_states, np.zeros((count, 1)), by_pace[:, None] / self.peak)


def pieces(steps: Floats, rates: Floats, peak: float, unit: float, batch: Floats) -> Pieces:
    """Return logged runs, steps, rates and batch (R, n) each, as pieces between their rows.

    A rate changes linearly between rows, but for a drop between two stretches of constant rate: it
    happens at the second row, from which on the new rate was logged. The first row is no stretch:
    a rate that changes from there is a warm-up.
    """
    before = np.concatenate([rates[:, :1], rates[:, :-2]], axis=1)
    after = np.concatenate([rates[:, 2:], rates[:, -1:]], axis=1)
    left, right = rates[:, :-1], rates[:, 1:]
    jump = (before == left) & (after == right) & (left != right)
    jump[:, :1] = False
    pace = np.where(jump, left, 0.5 * (left + right)) / peak
    lengths = np.diff(steps, axis=1) / unit
    progress = np.cumsum(pace * lengths, axis=1)
    progress = np.concatenate([np.zeros((len(steps), 1)), progress], axis=1) + 1e-3
    return Pieces(pace, pace / batch[:, :-1], lengths, progress)
