"""Claims: statements about results, checked on many initialisations, with their evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, eq=False)
class Claim:
    """A statement and what we found.

    statement: the paper's, in our words. criterion: when it counts as true in one instance. held:
    whether it was, in each instance; None where the noise leaves it open. numbers: what was
    measured, by name, one value for each instance or one for all. over: what the instances are.
    always: whether the statement says "always". least: with fewer instances nothing is decided.

    Examples:
        >>> held, numbers = [True, False], {"gain": [2, 0.9]}
        >>> claim = replan.paper.Claim("Replay helps.", "a gain above 1", held, numbers)
        >>> claim.verdict, claim.count
        ('depends on the initialisation', '1 of 2')
    """

    statement: str
    criterion: str
    held: Sequence[bool | None]
    numbers: Mapping[str, ArrayLike]
    over: str = "initialisation"
    always: bool = False
    least: int = 1

    @property
    def verdict(self) -> str:
        """Return "holds" if it is true in at least 90 % of the instances (`always`: in all).

        "does not hold" if it is false in at least 90 %, otherwise that it depends on the instance;
        "undecided" if there is a single one and it is open, or if there are fewer than `least`.
        """
        if len(self.held) < self.least:
            return "undecided"
        known = [x for x in self.held if x is not None]
        true, count = sum(map(bool, known)), len(self.held)
        few = count // 10
        if true >= count - (0 if self.always else few):
            return "holds"
        if len(known) - true >= count - few:
            return "does not hold"
        return "undecided" if count == 1 else f"depends on the {self.over}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {
            "statement": self.statement,
            "criterion": self.criterion,
            "verdict": self.verdict,
            "over": self.over,
            "always": self.always,
            "least": self.least,
            "held": [None if x is None else bool(x) for x in self.held],
            "numbers": {
                name: [x if np.isfinite(x) else None for x in np.ravel(values).tolist()]
                for name, values in self.numbers.items()
            },
        }

    def __str__(self) -> str:
        numbers = "; ".join(self.number_texts())
        return f"{self.verdict} ({self.count}): {self.statement} ({numbers})"

    @property
    def count(self) -> str:
        """In how many instances it was true."""
        return f"{sum(map(bool, self.held))} of {len(self.held)}"

    def number_texts(self) -> list[str]:
        """Return every number by name, as its median and the range from 10 to 90 %."""
        return [f"{name} {_summary(x)}" for name, x in self.numbers.items()]


def page(content: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a page (Markdown) of the claims of all figures, as `claims.json` holds them."""
    lines = [
        "# The paper's claims in our numbers",
        "",
        "Made by `replan figure`. A claim is checked in many instances, mostly initialisations:",
        "it *holds* if it is true in at least 90 % of them (in all where the paper says always),",
        "*does not hold* if it is false in at least 90 %, and otherwise *depends on the",
        "initialisation* (or the like); it is *undecided* if noise leaves a single instance open,",
        "or if there are too few instances for a verdict.",
        "Numbers are medians over the instances, with 10-90 % ranges in brackets. Verdicts on few",
        "instances, as with `--quick`, say little.",
    ]
    for name, figure in content.items():
        settings = ", ".join(f"{key} {_short(value)}" for key, value in figure["settings"].items())
        lines += ["", f"## {name}", "", f"`{figure['command']}`: {settings}.", ""]
        lines += [
            "| claim | counts as true if | found | true for | verdict |",
            "|---|---|---|---|---|",
        ]
        for entry in figure["claims"]:
            fields = Claim.__dataclass_fields__.keys() & entry.keys()  # older files have fewer
            claim = Claim(**{key: entry[key] for key in fields})
            found = "; ".join(claim.number_texts())
            lines.append(
                f"| {claim.statement} | {claim.criterion} | {found} | {claim.count} "
                f"| **{claim.verdict}** |"
            )
    return "\n".join(lines) + "\n"


def _summary(values: ArrayLike) -> str:
    floats = np.array(values, dtype=float).ravel()  # None in a file is NaN
    finite = floats[np.isfinite(floats)]
    if finite.size == 0:
        return "none"
    low, middle, high = np.quantile(finite, [0.1, 0.5, 0.9])
    if low == high:
        return _number(middle)
    return f"{_number(middle)} ({_number(low)} … {_number(high)})"


def _number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def _short(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value}"
    words = [x if isinstance(x, str) else f"{x:g}" for x in value]
    return f"{words[0]} … {words[-1]} ({len(words)})" if len(words) > 4 else ", ".join(words)
