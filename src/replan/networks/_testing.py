"""test(problem, protocols): what protocols do on realisations and images that none has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from replan._common import check, files
from replan._common.check import Floats
from replan._common.statistics import Interval, mean_interval
from replan.dynamics import Outcomes, Pieces, Realised, require
from replan.networks._realisations import numbers_text
from replan.problem import Problem
from replan.protocol import Protocol

if TYPE_CHECKING:
    import pandas as pd

_FURTHEST = 2.0**10  # the stability limit is looked for up to this factor of the rates
_CLOSE = 1.05  # and known to this factor


@dataclass(frozen=True, eq=False, repr=False)
class Tested:
    """What protocols do on the realisations they were planned on, and on unseen ones.

    planned: by protocol, how the realisations of the problem's model end, on held-out images.
    unseen: how further realisations end, on test images. planned_runs, runs: the numbers of both.
    stability: by protocol, the factor by which its learning rates can be multiplied before one of
    the unseen realisations, or of the first few of them, diverges or dies (found to 5 %); infinite
    where a factor of 1,024 did no harm, 0 where 1/1,024 did.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.mixed_tasks(images, similarity=0.5, test_samples=20)
        >>> model = replan.networks.ImageNetwork(tasks, hidden=2, realisations=2)
        >>> problem = replan.Problem(model, model.fresh(), duration=20, steps=2, lr=0.1)
        >>> mixed = replan.strategies.interleaved(problem)
        >>> tested = replan.networks.test(problem, mixed, realisations=2)
        >>> tested.planned_runs, tested.runs  # numbers of the realisations
        ([0, 1], [2, 3])
    """

    problem: Problem
    protocols: dict[str, Protocol]
    planned: dict[str, Outcomes]
    unseen: dict[str, Outcomes]
    planned_runs: list[int]
    runs: list[int]
    stability: dict[str, float]

    def weighted(self, protocol: str) -> Floats:
        """Return the weighted final losses (R,) on unseen realisations, infinite if diverged."""
        return _weighted(self.problem, self.unseen[self._known(protocol)])

    def value(self, protocol: str) -> Interval:
        """Return the mean of the weighted final losses on unseen realisations.

        It is infinite where one diverged.
        """
        return mean_interval(self.weighted(protocol))

    def planned_value(self, protocol: str) -> Interval:
        """Return the same on the realisations, and held-out images, that were planned on."""
        return mean_interval(_weighted(self.problem, self.planned[self._known(protocol)]))

    def difference(self, protocol: str, other: str) -> Interval:
        """Return the mean of paired differences of weighted losses on unseen realisations."""
        with np.errstate(invalid="ignore"):  # where both diverged
            return mean_interval(self.weighted(protocol) - self.weighted(other))

    def broken(self, protocol: str) -> dict[str, list[int]]:
        """Return the numbers of the realisations, of both kinds, that diverged or died."""
        numbers = np.array([*self.planned_runs, *self.runs])
        both = self.planned[self._known(protocol)], self.unseen[protocol]
        return {
            what: numbers[np.concatenate([getattr(x, what) for x in both])].tolist()
            for what in ("diverged", "dead")
        }

    def _known(self, protocol: str) -> str:
        return check.one_of("protocol", protocol, self.protocols)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per protocol and unseen realisation, with the loss of each task."""
        import pandas as pd

        names = [f"loss_{t + 1}" for t in range(len(self.problem.model.loss_names))]
        frames = [
            pd.DataFrame(found.losses, columns=names).assign(
                protocol=name, realisation=self.runs, weighted=self.weighted(name),
                diverged=found.diverged, dead=found.dead,
            )
            for name, found in self.unseen.items()
        ]  # fmt: skip
        return pd.concat(frames, ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """Return everything a reader of the result needs, as JSON types."""
        first = next(iter(self.protocols))
        return {
            "realisations": self.runs,
            "loss_names": list(self.problem.model.loss_names),
            "protocols": {
                name: {
                    "planned": _interval(self.planned_value(name)),
                    "unseen": _interval(self.value(name)),
                    "difference": _interval(self.difference(name, first)),
                    "losses": files.nullable(self.unseen[name].losses),
                    **self.broken(name),
                    "stability": files.nullable(np.array(self.stability[name])),
                    "protocol": protocol.to_dict(),
                }
                for name, protocol in self.protocols.items()
            },
            "problem": self.problem.to_dict(),
        }

    def save(self, path: files.FilePath) -> None:
        """Write a .json file with everything, or `to_frame` as a .csv file."""
        if files.suffix(path, [".json", ".csv"]) == ".json":
            return files.write_json(path, self.to_dict())
        return files.write_frame(path, self.to_frame())

    def __repr__(self) -> str:
        return f"Tested({', '.join(self.protocols)}; {len(self.runs)} realisations)"

    def __str__(self) -> str:
        first = next(iter(self.protocols))
        rows = [["protocol", "planned on", "unseen", f"less {first}", "rates below their limit"]]
        for name in self.protocols:
            parts = [self.planned_value(name), self.value(name), self.difference(name, first)]
            numbers = [f"{x.mean:.5g} ± {x.half_width:.2g}" for x in parts]
            rows.append([name, *numbers[:2], numbers[2] * (name != first), self._limit(name)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"weighted final losses, ± half of a 95 % interval: on {len(self.planned_runs)} "
            f"realisations and held-out images, and on {len(self.runs)} unseen ones and test images"
        ]
        for row in rows:
            cells = zip(row, widths, strict=True)
            lines.append("  ".join(f"{cell:{width}}" for cell, width in cells).rstrip())
        for name in self.protocols:
            for what, which in self.broken(name).items():
                if which:
                    count = len(self.runs) + len(self.planned_runs)
                    lines.append(f"{name}: {what}: {numbers_text(which, count)}")
        return "\n".join(lines)

    def _limit(self, protocol: str) -> str:
        factor = self.stability[protocol]
        if factor == 0:
            return f"under 1/{_FURTHEST:.0f} ×"
        return f"{factor:.3g} ×" if np.isfinite(factor) else f"over {_FURTHEST:.0f} ×"


def test(
    problem: Problem,
    protocols: Protocol | Mapping[str, Protocol],
    *,
    realisations: int = 100,
    stability: int | None = None,
) -> Tested:
    """Train with protocols on realisations of a problem that they were not planned on.

    **Main arguments**

    - `problem`: one whose model has realisations, such as an `ImageNetwork`, and whose start is
      a recipe: `fresh()` or `pretrain(…)`.
    - `protocols`: one, or several by name; a plan's is its `protocol`.

    **Other arguments**

    - `realisations`: how many unseen ones, the same for all protocols.
    - `stability`: on how many of these the limit of the learning rates is looked for, by default
      all; it takes a dozen trainings, and longer than everything else.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.mixed_tasks(images, similarity=0.5, test_samples=20)
        >>> model = replan.networks.ImageNetwork(tasks, hidden=2, realisations=2)
        >>> problem = replan.Problem(model, model.fresh(), duration=20, steps=2, lr=0.1)
        >>> mixed = replan.strategies.interleaved(problem)
        >>> tested = replan.networks.test(problem, mixed, realisations=2)
        >>> tested.runs  # the numbers of realisations that were not planned on
        [2, 3]
    """
    check.instance("problem", problem, Problem, "a Problem")
    model = require(problem.model, Realised, "test")
    targets = np.any(np.isfinite(np.asarray(problem.targets)))
    if problem.goal != "final" or problem.averages_count or targets:
        raise ValueError(
            "`problem` expects an objective of final losses times weights, got another goal, "
            "running or targets"
        )
    if isinstance(protocols, Mapping):
        named = {check.word("protocols", name): p for name, p in protocols.items()}
        if not named:
            raise ValueError("`protocols` expects at least one, got none")
    else:
        named = {"protocol": protocols}
    pieces = {
        name: Pieces.whole(p.shares, problem.knob_rows(p), p.lengths)
        for name, p in named.items()
        if problem.accept(p, "protocols")
    }
    fresh = model.unseen(realisations)
    state = fresh.pack(problem.start)
    few, few_state = fresh, state
    if stability is not None:
        few = model.unseen(check.integer("stability", stability, at_least=1, at_most=realisations))
        few_state = few.pack(problem.start)
    return Tested(
        problem,
        named,
        {name: model.train_each(problem.state, piece) for name, piece in pieces.items()},
        {name: fresh.train_each(state, piece) for name, piece in pieces.items()},
        model.realisations,
        fresh.realisations,
        {name: _stability(problem, few, few_state, piece) for name, piece in pieces.items()},
    )


def _stability(problem: Problem, model: Realised, state: Floats, pieces: Pieces) -> float:
    """Return the factor of all rates up to which every realisation stays alive; 0 if none does."""
    panel = problem.model.panel
    columns = panel.columns["lr"]

    def holds(factor: float) -> bool:
        knobs = pieces.knobs.copy()
        knobs[:, columns] *= factor
        found = model.train_each(state, pieces._replace(knobs=knobs))
        return not (np.any(found.diverged) or np.any(found.dead))

    factor = 1.0
    if holds(factor):
        while holds(2 * factor):
            factor *= 2
            if factor >= _FURTHEST:
                return np.inf
    else:
        while not holds(factor / 2):
            factor /= 2
            if factor <= 1 / _FURTHEST:
                return 0.0
        factor /= 2
    low, high = factor, 2 * factor
    while high / low > _CLOSE:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _weighted(problem: Problem, outcomes: Outcomes) -> Floats:
    weights = np.asarray(problem.weights)
    return outcomes.losses[:, weights > 0] @ weights[weights > 0]


def _interval(found: Interval) -> dict[str, Any]:
    return {name: files.nullable(value) for name, value in found._asdict().items()}
