"""Claims: statements about results, checked on many initialisations, with the numbers behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

Verdict = Literal["holds", "does not hold", "depends on the initialisation"]


@dataclass(frozen=True, eq=False)
class Claim:
    """A statement and what we found.

    statement: the paper's, in our words. criterion: when it counts as true for one initialisation.
    held: whether it was, for each initialisation. numbers: what was measured, by name, one value
    for each initialisation or one for all.
    """

    statement: str
    criterion: str
    held: Sequence[bool]
    numbers: Mapping[str, ArrayLike]

    @property
    def verdict(self) -> Verdict:
        """Whether it holds in at least 90 % of the initialisations, in at most 10 %, or between."""
        true, few = sum(map(bool, self.held)), len(self.held) // 10
        if true >= len(self.held) - few:
            return "holds"
        return "does not hold" if true <= few else "depends on the initialisation"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {
            "statement": self.statement,
            "criterion": self.criterion,
            "verdict": self.verdict,
            "held": [bool(x) for x in self.held],
            "numbers": {
                name: [x if np.isfinite(x) else None for x in np.ravel(values).tolist()]
                for name, values in self.numbers.items()
            },
        }

    def __str__(self) -> str:
        return f"{self.verdict}: {self.statement} ({'; '.join(self.number_texts())})"

    def number_texts(self) -> list[str]:
        """Return every number by name, as its median and the range from 10 to 90 %."""
        return [f"{name} {_summary(x)}" for name, x in self.numbers.items()]


def page(content: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a page (Markdown) of the claims of all figures, as `claims.json` holds them."""
    lines = [
        "# The paper's claims in our numbers",
        "",
        "Made by `replan figure`. A claim is checked for every initialisation by itself: it",
        "*holds* if it is true for at least 90 % of them, *does not hold* if for at most 10 %, and",
        "else *depends on the initialisation*. Numbers are medians over the initialisations, with",
        "10 to 90 % in brackets.",
    ]
    for name, figure in content.items():
        settings = ", ".join(f"{key} {_short(value)}" for key, value in figure["settings"].items())
        lines += ["", f"## {name}", "", f"`{figure['command']}`: {settings}.", ""]
        lines += [
            "| claim | counts as true if | found | true for | verdict |",
            "|---|---|---|---|---|",
        ]
        for entry in figure["claims"]:
            claim = Claim(entry["statement"], entry["criterion"], entry["held"], entry["numbers"])
            found = "; ".join(claim.number_texts())
            count = f"{sum(claim.held)} of {len(claim.held)}"
            lines.append(
                f"| {claim.statement} | {claim.criterion} | {found} | {count} "
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
        return f"{middle:.3g}"
    return f"{middle:.3g} ({low:.3g} … {high:.3g})"


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"{value[0]:g} … {value[-1]:g} ({len(value)})"
    return ", ".join(f"{x:g}" for x in value) if isinstance(value, list) else f"{value}"
