"""Strategy: a recipe by its name, and what it turns."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, overload

from replan import check
from replan.errors import ArgumentError
from replan.problem import Problem
from replan.protocol import Protocol

Recipe = Callable[..., Protocol]

STRATEGIES: dict[str, Strategy] = {}
"""The strategies by name: those that `compare` and `solve` try.

Examples:
    >>> sorted(replan.strategies.STRATEGIES)[:4]
    ['alternating', 'constant-lr', 'exponential-lr', 'focus-then-replay']
"""


class UnfitError(ValueError):
    """The strategy means nothing for this problem, such as an order of tasks where there is one.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.fresh(), duration=5.0, steps=20, arrivals=[0, 2])
        >>> try:
        ...     replan.strategies.one_task(problem, task=1)
        ... except replan.strategies.UnfitError as error:
        ...     print(error)
        `task` expects one that is there throughout, got task 2
    """


class Strategy:
    """A recipe that makes a protocol for a problem; called with a problem and its own settings.

    name: its name on the command line. turns: the knobs that it sets, such as ("lr",); the others
    stay as the problem has them. "rate" stands for the first rate of the model. A strategy that
    turns a knob has the arguments `protocol`, whose tasks it keeps, and `progress`.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> recipe = replan.strategies.STRATEGIES["no-replay"]
        >>> recipe.name, recipe.turns
        ('no-replay', ())
        >>> recipe(problem).mean_shares
        array([0., 1.])
    """

    def __init__(self, recipe: Recipe, turns: tuple[str, ...] = ()) -> None:
        check.items("turns", turns, "names")
        _check(recipe, ("protocol", "progress") if turns else ())
        update_wrapper(self, recipe)
        self.recipe, self.turns = recipe, turns
        self.name = recipe.__name__.replace("_", "-")

    @property
    def foreign(self) -> bool:
        """Whether it is a user's own: a mistake in it is then no mistake of the model or replan."""
        return not self.recipe.__module__.startswith("replan.")

    def turned(self, problem: Problem) -> set[str]:
        """Return the names of the problem's knobs that it sets."""
        return {main_rate(problem) or name if name == "rate" else name for name in self.turns}

    def __call__(self, problem: Any, **settings: Any) -> Protocol:
        """Return the protocol for a problem; refuse what the recipe makes if it does not fit."""
        check.instance("problem", problem, Problem, "a Problem")
        return problem.accept(self.recipe(problem, **settings), f"result of {self.name}")

    def __repr__(self) -> str:
        return f"Strategy({self.name})"


def main_rate(problem: Problem) -> str | None:
    """Return the name of the first of the model's knobs that is a rate, if any is."""
    return next((knob.name for knob in problem.model.knobs if knob.rate), None)


@overload
def strategy(recipe: Recipe) -> Strategy: ...


@overload
def strategy(*, turns: tuple[str, ...]) -> Callable[[Recipe], Strategy]: ...


def strategy(recipe: Recipe | None = None, *, turns: tuple[str, ...] = ()) -> Any:
    """Make a function a strategy and add it to `STRATEGIES`; used as a decorator.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
        >>> @replan.strategies.strategy
        ... def halves(problem, *, part: float = 0.5):
        ...     return replan.Protocol.from_segments(
        ...         [(part * problem.duration, 1), ((1 - part) * problem.duration, 0)], tasks=2
        ...     )
        >>> list(replan.compare(problem, strategies=["halves"]).runs)
        ['halves']
    """
    if recipe is None:
        return lambda found: _add(Strategy(found, turns))
    return _add(Strategy(recipe, turns))


def _check(recipe: Any, needs: tuple[str, ...]) -> None:
    """Refuse a recipe that cannot be called with a problem alone, or lacks what it needs."""
    if not inspect.isfunction(recipe):
        raise ArgumentError("recipe", "a function", check.show(recipe))
    signature = inspect.signature(recipe)
    try:
        signature.bind("a problem", **dict.fromkeys(needs))
    except TypeError as error:
        also = f", with the settings {' and '.join(needs)}," if needs else ""
        raise ArgumentError(
            "recipe",
            f"a function{also} that can be called with a problem alone",
            f"{recipe.__name__}{signature}: {error}",
        ) from None


def _add(made: Strategy) -> Strategy:
    known = STRATEGIES.get(made.name, made).recipe
    if (known.__module__, known.__qualname__) != (made.recipe.__module__, made.recipe.__qualname__):
        raise ArgumentError(
            "strategy", "a new name", f"{check.show(made.name)}, which is one of {known.__module__}"
        )
    STRATEGIES[made.name] = made
    return made
