"""The errors that replan raises, besides Python's own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replan.control import Plan


class ArgumentError(ValueError):
    """An argument, or a key in a file, with a value that cannot be used.

    name: of the argument. expected: what it must be. got: what it was, in words.

    Examples:
        >>> try:
        ...     replan.TeacherStudent.similar(0.3, hidden=0)
        ... except replan.ArgumentError as error:
        ...     print(error.name, "|", error)
        hidden | `hidden` must be an integer of at least 1, got 0
    """

    source = ""  # the file with the mistake

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(name, expected, got)
        self.name, self.expected, self.got = name, expected, got

    def __str__(self) -> str:
        where = f"{self.source}: " if self.source else ""
        return f"{where}`{self.name}` must be {self.expected}, got {self.got}"


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Rename arguments in errors, to the keys of a file or the options of a command."""
    try:
        yield
    except ArgumentError as error:
        if error.name not in names:
            raise
        other = type(error)(names[error.name], error.expected, error.got)
        other.source = error.source
        raise other from error


@contextmanager
def in_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file to errors about its content."""
    try:
        yield
    except ArgumentError as error:
        error.source = os.fspath(path)
        raise


class IntegrationError(RuntimeError):
    """Learning curves that cannot be computed, mostly because a learning rate is too large.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> try:
        ...     replan.evaluate(problem, replan.Protocol([[0.5, 0.5]], duration=20.0, lr=1e9))
        ... except replan.IntegrationError as error:
        ...     print(str(error).partition(":")[0])
        the trajectory diverged after time 0 of 20
    """


class SolveError(RuntimeError):
    """A search that did not converge; `plan` is the best plan it found.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> try:
        ...     replan.solve(problem, max_gradients=1, throw=True)
        ... except replan.SolveError as error:
        ...     print(error.plan.status)
        limit
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(f"{plan.status}: {plan.advice}")
        self.plan = plan
