"""Registry: models, solvers or strategies by the words that stand for them."""

from __future__ import annotations

from typing import Any, TypeVar

from replan import check
from replan.errors import ArgumentError

_T = TypeVar("_T")


class Registry(dict[str, _T]):
    """Classes or strategies by their words in files and on the command line.

    attribute: where each of them keeps its word, such as `kind`.
    """

    def __init__(self, attribute: str) -> None:
        super().__init__()
        self.attribute = attribute

    def add(self, new: Any) -> Any:
        """Add a class or a strategy, and return it; refuse a word that another one has."""
        word = check.word(self.attribute, getattr(new, self.attribute, None))
        old: Any = self.get(word, new)
        if (old.__module__, old.__qualname__) != (new.__module__, new.__qualname__):
            taken = f"{check.show(word)}, that of {old.__module__}.{old.__qualname__}"
            raise ArgumentError(self.attribute, "a word that is not taken", taken)
        self[word] = new
        return new
