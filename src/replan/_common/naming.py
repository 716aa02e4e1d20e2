"""The names that people know: of knobs, and in mistakes, of keys of a file or options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def named(names: Mapping[str, str]) -> Iterator[None]:
    """Rename what a mistake is about, the `name` in front, by the other name it has in `names`."""
    try:
        yield
    except ValueError as error:
        found = re.match(r"`([^`]+)`", str(error))
        if found is None or found[1] not in names:
            raise
        raise ValueError(f"`{names[found[1]]}`{str(error)[found.end() :]}") from error


def knob_label(name: str) -> str:
    """Return what a knob is called in print and in pictures."""
    return "learning rate" if name == "lr" else name.replace("_", " ")
