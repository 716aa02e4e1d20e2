"""Study: the results of a study as a table and a picture."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from replan import files
from replan.statistics import quantile
from replan.studies._axes import Axis, check_chosen
from replan.studies._cases import CERTIFICATE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_BEFORE, _AFTER = ("what", "name", "value"), ("status", "advice", "error")
_PLAN = (*CERTIFICATE, "gradients", "plan")
_WHOLE = ("switches", "gradients", "runs")
# Columns of the table that axes must leave free
RESERVED = re.compile(
    rf"{'|'.join((*_BEFORE, *_AFTER, *_PLAN, 'runs'))}|(loss|share)_\d+|\w+_(first|last)"
)
_FINE = ("ok", "converged")  # statuses that say nothing is wrong


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """The results of a study.

    axes: what varied. rows: for each problem what each run gave, with a row of its own for the
    simulation of a run.

    Examples:
        >>> sections = {
        ...     "model": {"hidden": 2, "similarity": [0.3, 0.6]},
        ...     "start": {"fresh": {}},
        ...     "training": {"duration": 5.0, "steps": 10},
        ...     "sweep": {"strategies": ["interleaved"]},
        ... }
        >>> found = replan.study(sections, out="results", workers=1)
        >>> found.to_frame()[["similarity", "name", "value"]].round(3)
           similarity         name  value
        0         0.3  interleaved  0.164
        1         0.6  interleaved  0.163
    """

    axes: Sequence[Axis]
    rows: Sequence[dict[str, Any]]

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas table with a row for each problem and run, and for each simulation.

        Columns: the axes; what ran ("strategy", "solver" or "simulation") and its name; value,
        loss_1, …; mean share_1, …; lr_first and lr_last, and so for other knobs; status, advice and
        the error of value (of a simulation, the standard error); for plans the certificate,
        gradients, and where the plan is; for simulations the number of runs that finished. Failed
        runs have no value.
        """
        import pandas as pd

        losses, tasks = (
            range(max((len(row.get(key, [])) for row in self.rows), default=0))
            for key in ("losses", "shares")
        )
        ends = ("_first", "_last")  # of knobs
        knobs = dict.fromkeys(key for row in self.rows for key in row if key.endswith(ends))
        plans = _PLAN if any(row["what"] == "solver" for row in self.rows) else ()
        runs = ("runs",) if any(row["what"] == "simulation" for row in self.rows) else ()
        header = [axis.name for axis in self.axes]
        header += [*_BEFORE, *(f"loss_{i + 1}" for i in losses)]
        header += [*(f"share_{t + 1}" for t in tasks), *knobs, *_AFTER, *plans, *runs]
        frame = pd.DataFrame([_flat(row) for row in self.rows], columns=header)
        words = {"what", "name", "status", "advice", "scope", "plan", *header[: len(self.axes)]}
        types = {name: "Int64" if name in _WHOLE else "float64" for name in header}
        return frame.astype({name: kind for name, kind in types.items() if name not in words})

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The rows without a value."""
        return [row for row in self.rows if row.get("value") is None]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows there are, how many have no value, and how many plans did not converge."""
        return {
            "results": len(self.rows),
            "failed": len(self.failed),
            "unconverged": sum(_unconverged(row) for row in self.rows),
        }

    def plot(
        self, path: files.FilePath | None = None, *, x: str | None = None, y: str | None = None
    ) -> Figure:
        """Draw the values of the runs: medians over an axis, with bands from 10 to 90 %.

        `x`, `y`: the names of axes; with `y`, draw a map over both for each run. By default these
        are chosen: numbers before words, many values before few, seeds last. Return the figure, and
        write it if a `path` (.png, .pdf, .svg) is given.
        """
        from replan.studies._picture import draw

        check_chosen(self.axes, x, y)
        return draw(self.to_frame(), self.axes, path, x, y)

    def __repr__(self) -> str:
        return f"Study({len(self.rows)} results, {', '.join(axis.name for axis in self.axes)})"

    def __str__(self) -> str:
        labels = np.array([_label(row) for row in self.rows])
        groups = self.to_frame()["value"].groupby(labels, sort=False)
        width = max(9, *(len(name) for name in groups.groups))
        lines = [f"{'':{width}} {'results':>8} {'median':>9} {'10 %':>9} {'90 %':>9}"]
        for name, values in groups:
            levels = [quantile(values, level) for level in (0.5, 0.1, 0.9)]
            numbers = " ".join(f"{x:9.3g}" if x < np.inf else f"{'–':>9}" for x in levels)
            lines.append(f"{name:{width}} {values.count():>8} {numbers}")
        return "\n".join([*lines, *self.notes])

    @property
    def notes(self) -> list[str]:
        """What a reader of the values must know: which have none, and which are no optima."""
        total = len(self.rows)
        failed = Counter((_label(row), row["status"], row["advice"]) for row in self.failed)
        lines = [
            f"{number} of {total} without a value: {name} {status}: {advice}"
            for (name, status, advice), number in failed.most_common(3)
        ]
        if len(failed) > 3:
            lines.append(f"{len(self.failed)} of {total} without a value in all")
        loose = Counter((row["name"], row["status"]) for row in self.rows if _unconverged(row))
        return lines + [
            f"{number} plan{'s'[: number - 1]} of {name} did not converge: {status}"
            for (name, status), number in loose.most_common()
        ]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a column for each task."""
    flat = {f"loss_{t + 1}": x for t, x in enumerate(row.get("losses", []))}
    flat |= {f"share_{t + 1}": x for t, x in enumerate(row.get("shares", []))}
    return row | flat


def _label(row: dict[str, Any]) -> str:
    return f"{row['name']}, SGD" if row["what"] == "simulation" else row["name"]


def _unconverged(row: dict[str, Any]) -> bool:
    return row["what"] == "solver" and row.get("value") is not None and row["status"] not in _FINE
