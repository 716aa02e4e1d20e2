"""ShareLaw: the losses of a training under a schedule of data shares, by a law fitted to pilots.

Notation: P laws side by side, L losses, D domains of the data, R runs, n pieces of constant shares,
Z signal modes. A law has 5 + 3D numbers, in the order of `names`.
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

MODES = np.geomspace(1e-4, 3000.0, 16)  # λ, the rates at which signal modes are learnt
_OVERFIT = 3  # the loss grows with this power of what is memorised
_LEAST = 1e-12  # a rate of relaxation


class Mixtures(NamedTuple):
    """Runs as pieces of constant shares.

    progress: (R, n) the integral of the learning rate over each piece, in units of the law. shares:
    (R, n, D). repeats: (D,) passes over each domain's data in a unit of progress at a share of 1.
    """

    progress: Floats
    shares: NDArray[Any]
    repeats: Floats


class Numbers(NamedTuple):
    """The numbers of laws by name: (P, 1) each, those of the domains (P, D)."""

    floor: NDArray[Any]
    signal: NDArray[Any]
    exponent: NDArray[Any]
    memorising: NDArray[Any]
    fading: NDArray[Any]
    transfer: NDArray[Any]
    forgetting: NDArray[Any]
    overfit: NDArray[Any]


def names(domains: Sequence[str]) -> list[str]:
    """Return the names of a law's 5 + 3D numbers."""
    return [*Numbers._fields[:5], *(f"{x} {d}" for x in Numbers._fields[5:] for d in domains)]


def numbers(laws: NDArray[Any]) -> Numbers:
    """Return laws (P, 5 + 3D) by name."""
    return Numbers(*np.split(laws[:, :5], 5, axis=1), *np.split(laws[:, 5:], 3, axis=1))


def moves(laws: NDArray[Any], runs: Mixtures) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the exponents and targets (n, P, R, Z + D) of signal modes and memories, for `relax`.

    z′ = −λ (transfer · c) z + (forgetting · c) (1 − z), with the shares c,
    y_d′ = memorising repeats_d c_d (1 − y_d) − fading (1 − c_d) y_d.
    """
    x = numbers(laws)
    shares = runs.shares.transpose(1, 0, 2)[:, None]  # (n, 1, R, D)
    learnt = (shares * x.transfer[:, None]).sum(axis=-1, keepdims=True) * MODES
    lost = (shares * x.forgetting[:, None]).sum(axis=-1, keepdims=True)
    seen = x.memorising[:, None] * runs.repeats * shares
    faded = x.fading[:, None] * (1.0 - shares)
    rates = np.concatenate([learnt + lost, seen + faded], axis=-1) + _LEAST
    gains = np.concatenate([np.broadcast_to(lost, learnt.shape), seen], axis=-1)
    return runs.progress.T[:, None, :, None] * rates, gains / rates


def spectrum(x: Numbers) -> NDArray[Any]:
    """Return the weights (P, Z) of the signal modes in the loss."""
    shape = np.exp(x.exponent * np.log(MODES))
    return x.signal * shape / shape.sum(axis=1, keepdims=True)


def parts(laws: NDArray[Any], states: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the signal and the overfit (…, P, R), both in the loss, at states (…, P, R, Z + D)."""
    x = numbers(laws)
    signal = (spectrum(x)[:, None] * states[..., : len(MODES)]).sum(axis=-1)
    return signal, (x.overfit[:, None] * states[..., len(MODES) :] ** _OVERFIT).sum(axis=-1)


def untrained(laws: int, runs: int, domains: int) -> Floats:
    """Return the first state (P, R, Z + D) of a training from scratch."""
    first = np.zeros((laws, runs, len(MODES) + domains))
    first[..., : len(MODES)] = 1.0
    return first


@register
class ShareLaw(DifferentiableModel):
    """The losses of a training by the shares of its data: a law fitted to pilots (`replan.fit`).

    Time is the progress of a training whose learning rate follows the pilots'. For each loss,

        z_m′ = −λ_m (transfer · c) z_m + (forgetting · c) (1 − z_m),
        y_d′ = memorising repeats_d c_d (1 − y_d) − fading (1 − c_d) y_d,
        loss = floor + signal Σ_m a_m z_m + Σ_d overfit_d y_d³,

    with the shares c of the domains and a_m ∝ λ_m^exponent on a logarithmic grid of λ: constant
    shares give a power law. A state holds z and y of all laws. The tasks are mixtures of domains.

    - `laws`: (P, L, 5 + 3D) floor, signal, exponent, memorising, fading, then transfer, forgetting
      and overfit for each domain. Several that fit nearly equally well; losses are their means.
    - `domains`, `losses`: names. `unit`: the steps that count as 1.
    - `repeats`: (D,) passes over a domain's data in a unit at a share of 1; 0 for endless data.
    - `mixtures`: (T, D) that plans may combine, by default each domain alone.
    - `covered`: what the pilots cover, see `replan.fit`.

    Examples:
        >>> numbers = [0.7, 1.0, 0.3, 0.1, 2.4, 0.001, 1.0, 2.7, 0.01, 0.0, 2.3]
        >>> model = replan.models.ShareLaw([[numbers]], ["web", "code"], ["code"], 1000.0, [0, 26])
        >>> problem = replan.Problem(model, model.fresh(), duration=1000.0, steps=20)
        >>> plan = replan.solve(problem)
        >>> mixed = replan.evaluate(problem, replan.strategies.interleaved(problem)).loss
        >>> f"{mixed:.3f} {plan.loss:.3f}"
        '1.069 0.861'
    """

    kind = "share-law"
    knobs: Sequence[Knob] = ()
    loss_names: tuple[str, ...] = ()

    def __init__(
        self,
        laws: ArrayLike,
        domains: Sequence[str],
        losses: Sequence[str],
        unit: float,
        repeats: ArrayLike,
        mixtures: ArrayLike | None = None,
        covered: Mapping[str, Any] | None = None,
    ) -> None:
        self.domains = tuple(check.word("domains", x) for x in domains)
        self.loss_names = tuple(check.word("losses", x) for x in losses)
        count = len(self.domains)
        self.laws = check.array("laws", laws, ("P", len(self.loss_names), 5 + 3 * count))
        if self.laws[..., 1:].min() < 0:
            raise ArgumentError("laws", "numbers of at least 0", f"{self.laws[..., 1:].min():g}")
        self.unit = check.number("unit", unit, above=0)
        self.repeats = check.array("repeats", repeats, (count,))
        rows = np.eye(count) if mixtures is None else mixtures
        self.mixtures = check.simplex_rows("mixtures", rows, ("T", count))
        self.covered = dict(covered or {})
        self.tasks = len(self.mixtures)
        self._laws = self.laws.reshape(-1, self.laws.shape[2])

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the mixtures: a domain, or shares in percent."""
        return tuple(
            self.domains[int(row.argmax())]
            if row.max() == 1
            else " + ".join(
                f"{100 * x:.3g} % {name}"
                for name, x in zip(self.domains, row, strict=True)
                if x > 0
            )
            for row in self.mixtures
        )

    def fresh(self) -> Floats:
        """Return the state before any training."""
        return untrained(len(self._laws), 1, len(self.domains)).ravel()

    def pack(self, start: Any) -> Floats:
        """Check a start, and return it."""
        return check.array("start", start, (self.fresh().size,))

    def to_dict(self) -> dict[str, Any]:
        """Return the `[model]` section."""
        content = {
            "laws": self.laws.tolist(),
            "domains": list(self.domains),
            "losses": list(self.loss_names),
            "unit": self.unit,
            "repeats": self.repeats.tolist(),
            "mixtures": self.mixtures.tolist(),
        }
        return content | ({"covered": self.covered} if self.covered else {})

    def table(self, duration: float, shares: Floats) -> dict[str, Floats]:
        """Return shares (n, D) over equal progress as what trainers execute, from step to step.

        Progress follows the best pilot's learning rate, stretched to the duration.
        """
        run = self.covered["best"]
        done = np.interp(np.linspace(0.0, 1.0, len(shares) + 1), run["progress"], run["steps"])
        rows = np.vstack([shares, shares[-1:]])
        shown = {f"share_{name}": rows[:, d] for d, name in enumerate(self.domains)}
        return {"step": np.round(duration * done), **shown}

    # Losses

    def _by_law(self, states: Floats) -> Floats:
        """Return states (…, n) as (…, PL, 1, Z + D)."""
        return states.reshape(*states.shape[:-1], len(self._laws), 1, -1)

    def losses_each(self, states: Floats) -> Floats:
        """Return the losses (P, …, L) by each of the laws at states (…, n)."""
        signal, overfit = parts(self._laws, self._by_law(states))
        values = (self._laws[:, :1] + signal + overfit)[..., 0]
        values = values.reshape(*states.shape[:-1], *self.laws.shape[:2])
        return np.moveaxis(values, -2, 0)

    def losses(self, states: Any) -> Floats:
        """Return the mean losses (…, L) of the laws at states (…, n)."""
        return self.losses_each(np.asarray(states, float)).mean(axis=0)

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradient by the states of cotangents · losses."""
        x = numbers(self._laws)
        memory = self._by_law(states)[..., 0, len(MODES) :]
        by_memory = _OVERFIT * x.overfit * memory ** (_OVERFIT - 1)
        by_signal = np.broadcast_to(spectrum(x), (*by_memory.shape[:-1], len(MODES)))
        slopes = np.concatenate([by_signal, by_memory], axis=-1)
        weights = np.tile(cotangents, len(self.laws)) / len(self.laws)  # (…, PL)
        return (weights[..., None] * slopes).reshape(states.shape)

    # Roll-outs

    def _runs(self, schedule: Schedule) -> Mixtures:
        shares = schedule.shares @ self.mixtures
        return Mixtures(schedule.lengths[None] / self.unit, shares[None], self.repeats)

    def roll_out(self, start: Floats, schedule: Schedule) -> Floats:
        """Return the states (pieces + 1, n), in closed form."""
        states = relax(self._by_law(start), *moves(self._laws, self._runs(schedule)))
        return states.reshape(len(states), -1)

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, schedule: Schedule, tape: Any = None
    ) -> Gradients:
        """Return the exact gradients of a roll-out."""
        runs, x = self._runs(schedule), numbers(self._laws)
        exponents, targets = moves(self._laws, runs)
        by_states, by_exponents, by_targets = relax_vjp(
            self._by_law(states), self._by_law(cotangents), exponents, targets
        )
        progress = runs.progress.T[:, None, :, None]
        by_gains = by_targets * progress / exponents  # exponents = progress × rates
        by_rates = (by_exponents * progress - by_gains * targets)[:, :, 0]
        by_gains = by_gains[:, :, 0]  # (pieces, PL, Z + D)
        signal, memory = slice(None, len(MODES)), slice(len(MODES), None)
        learnt = (by_rates[..., signal] * MODES).sum(axis=-1)  # (pieces, PL)
        lost = (by_rates + by_gains)[..., signal].sum(axis=-1)
        by_shares = learnt @ x.transfer + lost @ x.forgetting
        seen = x.memorising * self.repeats  # (PL, D)
        by_shares += (by_gains[..., memory] * seen).sum(axis=1)
        by_shares += (by_rates[..., memory] * (seen - x.fading)).sum(axis=1)
        count = len(schedule.lengths)
        return Gradients(
            by_states.reshape(count + 1, -1), by_shares @ self.mixtures.T, np.zeros((count, 0))
        )
