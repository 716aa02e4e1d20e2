"""What all figures share: claims and their verdicts, tables of many cases, intervals of means."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Figure

Tables = dict[str, pd.DataFrame]
Run = Callable[[Callable[..., Any], list[dict[str, Any]]], list[dict[str, Any]]]


def grid(**axes: Iterable[Any]) -> list[dict[str, Any]]:
    """Return every combination of the axes' values; the last axis varies fastest."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def collect(
    run: Run, case: Callable[..., Any], points: list[dict[str, Any]], **common: Any
) -> Tables:
    """Return the tables of case(**point, **common) at all points, each row with its point.

    A case returns the rows of each table, as a list of dicts or as a dict of columns.
    """
    parts: dict[str, list[pd.DataFrame]] = {}
    results = run(case, [point | common for point in points])
    for point, result in zip(points, results, strict=True):
        for name, rows in result.items():
            parts.setdefault(name, []).append(pd.DataFrame(rows).assign(**point))
    return {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}


def search(
    run: Run, case: Callable[..., Any], choices: list[dict[str, Any]], seeds: list[int],
    **common: Any,
) -> tuple[dict[str, Any], pd.DataFrame]:  # fmt: skip
    """Return the choice with the lowest mean loss over the seeds, and the loss of every choice.

    A choice with a run that diverged, whose loss is None, has an infinite loss.
    """
    results = run(case, [common | x | {"seed": seed} for x in choices for seed in seeds])
    losses = np.array([result["loss"] for result in results], float).reshape(len(choices), -1)
    means = np.nan_to_num(losses.mean(axis=1), nan=np.inf)
    return choices[int(np.argmin(means))], pd.DataFrame(choices).assign(loss=means)


def pick(table: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows of a table that have these values in these columns."""
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def over(case: Callable[..., Any], **axes: str) -> Callable[..., Tables]:
    """Return the `compute` of a figure that is a grid of cases.

    `axes`: by the argument of the case, the setting that holds its values; of `seeds`, how many.
    """

    def compute(run: Run, **settings: Any) -> Tables:
        values = {axis: settings.pop(name) for axis, name in axes.items()}
        points = grid(**{axis: range(x) if axis == "seed" else x for axis, x in values.items()})
        return collect(run, case, points, **settings)

    return compute


def mean_interval(values: Any) -> tuple[Any, Any, Any]:
    """Return means over the first axis and their 95 % intervals (low, high) by Student's t.

    The interval is infinite for a single run, and where some runs are not finite.
    """
    from scipy.stats import t

    runs = np.asarray(values, dtype=float)
    with np.errstate(invalid="ignore"):
        count, mean = len(runs), np.asarray(runs.mean(axis=0))
    known = np.isfinite(mean) & (count > 1)
    error = np.full(mean.shape, np.inf)
    if known.any():
        spread = runs[:, known].std(axis=0, ddof=1) / np.sqrt(count)
        error[known] = t.ppf(0.975, count - 1) * spread
    return mean, np.where(known, mean - error, -np.inf), np.where(known, mean + error, np.inf)


def paired(difference: Any, name: str = "difference") -> dict[str, float]:
    """Return the mean of paired differences and its 95 % interval, as the numbers of a claim."""
    mean, low, high = map(float, mean_interval(difference))
    return {name: mean, "95 % from": low, "to": high}


def plus_minus(values: Any, name: str) -> dict[str, float]:
    """Return a mean and half the width of its 95 % interval, as columns of a table."""
    mean, low, high = map(float, mean_interval(values))
    return {name: mean, f"{name} ±": (high - low) / 2}


def below(difference: Any) -> bool | None:
    """Return whether paired differences are below zero; None where their interval contains zero."""
    _, low, high = mean_interval(difference)
    return True if high < 0 else False if low > 0 else None


@dataclass
class Claim:
    """A statement about results, and in which instances it was true.

    - `statement`: in our words. `criterion`: when it counts as true in one instance.
    - `held` (n,): whether it was true in each instance; None or NaN where that is open.
    - `numbers`: what was measured, by name; one value per instance, or one for all.
    - `over`: what the instances are. `always`: whether the statement says "always".
    - `least`: with fewer instances nothing is decided.
    """

    statement: str
    criterion: str
    held: Any
    numbers: Mapping[str, Any]
    over: str = "initialisation"
    always: bool = False
    least: int = 1

    def __post_init__(self) -> None:
        self.held = [None if pd.isna(x) else bool(x) for x in self.held]
        floats = {name: np.array(x, dtype=float).ravel() for name, x in self.numbers.items()}
        self.numbers = {
            name: [x if np.isfinite(x) else None for x in values.tolist()]
            for name, values in floats.items()
        }

    @property
    def verdict(self) -> str:
        """Say "holds" if it is true in at least 90 % of the instances (`always`: in all).

        "does not hold" if it is false in at least 90 %, otherwise that it depends on the instance;
        "undecided" for a single open instance, and for fewer instances than `least`.
        """
        count, few = len(self.held), len(self.held) // 10
        if count < self.least:
            return "undecided"
        if self.held.count(True) >= count - (0 if self.always else few):
            return "holds"
        if self.held.count(False) >= count - few:
            return "does not hold"
        return "undecided" if count == 1 else f"depends on the {self.over}"

    @property
    def count(self) -> str:
        """In how many instances it was true."""
        return f"{self.held.count(True)} of {len(self.held)}"

    @property
    def found(self) -> str:
        """Every number by name, as its median and its range from 10 to 90 %."""
        return "; ".join(f"{name} {_summary(values)}" for name, values in self.numbers.items())

    def __str__(self) -> str:
        return f"{self.verdict} ({self.count}): {self.statement} ({self.found})"


def page(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a page (Markdown) of claims: for each figure its `command`, `settings`, `claims`."""
    lines = [
        "# The claims in our numbers",
        "",
        "A claim *holds* if it is true in at least 90 % of the instances (in all where the paper",
        "says always), *does not hold* if it is false in at least 90 %, and else *depends* on the",
        "instance. Numbers are medians over instances, with 10-90 % ranges in brackets.",
    ]
    for name, figure in figures.items():
        settings = ", ".join(f"{key} {_short(value)}" for key, value in figure["settings"].items())
        lines += ["", f"## {name}", "", f"`{figure['command']}`: {settings}.", ""]
        lines += [
            "| claim | counts as true if | found | true for | verdict |",
            "|---|---|---|---|---|",
        ]
        for entry in figure["claims"]:
            claim = Claim(**entry)
            cells = (claim.statement, claim.criterion, claim.found, claim.count)
            lines.append(f"| {' | '.join(cells)} | **{claim.verdict}** |")
    return "\n".join(lines) + "\n"


def _summary(values: list[float | None]) -> str:
    finite = [x for x in values if x is not None]
    if not finite:
        return "none"
    low, middle, high = np.quantile(finite, [0.1, 0.5, 0.9])
    return (
        _number(middle) if low == high else f"{_number(middle)} ({_number(low)} … {_number(high)})"
    )


def _number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def _short(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value}"
    words = [x if isinstance(x, str) else f"{x:g}" for x in value]
    return f"{words[0]} … {words[-1]} ({len(words)})" if len(words) > 4 else ", ".join(words)
