"""Telling Ctrl-C from an error: a compiled kernel that is interrupted raises a SystemError."""

from __future__ import annotations


def interrupted(error: BaseException | None) -> bool:
    """Return whether a KeyboardInterrupt is at the bottom of an exception."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False
