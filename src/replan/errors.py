"""Errors that name what is wrong."""

from __future__ import annotations


class ArgumentError(ValueError):
    """An argument that cannot be used; `name`, `expected` and `got` say which and why.

    Examples:
        >>> from replan.errors import ArgumentError
        >>> str(ArgumentError("share", "at most 1", 1.5))
        '`share` must be at most 1, got 1.5'
    """

    def __init__(self, name: str, expected: str, got: object) -> None:
        super().__init__(f"`{name}` must be {expected}, got {got}")
        self.name, self.expected, self.got = name, expected, got
