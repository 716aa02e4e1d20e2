"""Dials: numbers in a problem file that stay as they are in training, and that a page may turn."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from replan._common import check


@dataclass(frozen=True)
class Dial:
    """A number in a problem file with a range in which a slider may move it.

    - `key`: its full path, such as "model.noise"; an entry of a list by its index from 0, as in
      "model.difficulties.1".
    - `label`: what people call it.
    - `low`, `high`: the range. `step`: between values of a slider; an integer for whole numbers.
    - `default`: its value where the file does not give it; None for a dial that is only there
      where the file gives it.
    - `beside`: the path of a key without which the dial means nothing.
    - `main`: whether it is among those that people look for first.

    Examples:
        >>> from replan.dynamics import Dial
        >>> noise = Dial("model.noise", "label noise", 0.0, 1.0, default=0.0)
        >>> noise.set({"model": {"hidden": 2}}, 0.3)
        {'model': {'hidden': 2, 'noise': 0.3}}
    """

    key: str
    label: str
    low: float
    high: float
    step: float = 0.01
    default: float | None = None
    beside: str = ""
    main: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or "." not in self.key:
            raise ValueError(
                f"`key` expects a path such as 'model.noise', got {check.show(self.key)}"
            )
        low, high = (check.number(f"{end} of {self.key}", getattr(self, end)) for end in _ENDS)
        if not low < high:
            raise ValueError(
                f"`low` and `high` of {self.key} expect a range, got {low:g}, {high:g}"
            )
        check.number(f"step of {self.key}", self.step, above=0)
        if self.default is not None:
            self.check(self.default)

    @property
    def whole(self) -> bool:
        """Whether its values are integers."""
        return isinstance(self.step, int)

    def check(self, value: Any) -> float:
        """Return a value in the range, named by the key in a message if it is not."""
        if self.whole:
            return check.integer(self.key, value, at_least=int(self.low), at_most=int(self.high))
        return check.number(self.key, value, at_least=self.low, at_most=self.high)

    def get(self, content: Mapping[str, Any]) -> Any:
        """Return what the sections of a file give, or the default; None where it means nothing."""
        if self.beside and _at(content, self.beside) is None:
            return None
        found = _at(content, self.key)
        return self.default if found is None else found

    def set(self, content: Mapping[str, Any], value: float) -> dict[str, Any]:
        """Return the sections of a file with a value in the range, checked."""
        turned: Any = deepcopy(dict(content))
        *way, last = self.key.split(".")
        table = turned
        for part in way:
            table = table[_place(table, part)] if part.isdecimal() else table.setdefault(part, {})
        table[_place(table, last)] = self.check(value)
        return turned


_ENDS = ("low", "high")


def _place(table: Any, part: str) -> Any:
    return int(part) if isinstance(table, list) else part


def _at(content: Any, key: str) -> Any:
    """Return what stands at a path, None where nothing does."""
    for part in key.split("."):
        inside = isinstance(content, Mapping) and part in content
        listed = isinstance(content, list) and part.isdecimal() and int(part) < len(content)
        if not inside and not listed:
            return None
        content = content[_place(content, part)]
    return content
