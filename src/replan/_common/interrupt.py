"""Telling Ctrl-C from an error: a compiled kernel that is interrupted raises a SystemError."""

from __future__ import annotations


def interrupted(error: BaseException | None) -> bool:
    """Return whether an exception is a KeyboardInterrupt, or the SystemError that hides one."""
    while isinstance(error, SystemError):
        error = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt)
