"""The errors that replan raises, besides those of Python and of the libraries below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replan.control import Plan


class ArgumentError(ValueError):
    """An argument, or a key of a file, that cannot be used.

    name: of the argument. expected: what it must be. got: what it was, in words.

    Examples:
        >>> try:
        ...     replan.TeacherStudent.similar(0.3, hidden=0)
        ... except replan.ArgumentError as error:
        ...     print(error.name, "|", error)
        hidden | `hidden` must be an integer of at least 1, got 0
    """

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(name, expected, got)
        self.name, self.expected, self.got = name, expected, got

    def __str__(self) -> str:
        return f"`{self.name}` must be {self.expected}, got {self.got}"


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Call arguments by other names in errors: those of a file's keys, or of options."""
    try:
        yield
    except ArgumentError as error:
        if error.name not in names:
            raise
        raise type(error)(names[error.name], error.expected, error.got) from error


class IntegrationError(RuntimeError):
    """Learning curves that cannot be computed, mostly because a learning rate is too large."""


class SolveError(RuntimeError):
    """A search that did not converge; `plan` is the best that it found.

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
