"""Rules: policies by name, with the settings that can be tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from replan.policies._fixed_replay import FixedReplay
from replan.policies._focus_then_replay import FocusThenReplay
from replan.policies._policy import Policy


class Span(NamedTuple):
    """The values that a setting may have, from `low` to `high`; rate: of a learning rate.

    What is a rate, or tells how one falls, is tuned only where the learning rate may be controlled.

    Examples:
        >>> from replan.policies import RULES
        >>> RULES["fixed-replay"].spans["share"]
        Span(low=0.0, high=1.0, rate=False)
    """

    low: float
    high: float
    rate: bool = False


class Rule(NamedTuple):
    """A policy whose settings can be tuned.

    make: returns the policy for a new task and old ones, of so many, with settings by name. spans:
    of the settings, by name. defaults: their values in the rule as it is. choices: of other
    settings, all of which are tried. fixed: the names of further settings, which are not tuned.

    Examples:
        >>> from replan.policies import RULES
        >>> RULES["focus-then-replay"].choices
        {'until': ('met', 'halved')}
    """

    make: Callable[..., Policy]
    spans: Mapping[str, Span]
    defaults: Mapping[str, Any]
    choices: Mapping[str, tuple[Any, ...]] = {}
    fixed: tuple[str, ...] = ()

    @property
    def settings(self) -> list[str]:
        """The names of all settings."""
        return [*{**self.defaults, **self.spans, **self.choices}, *self.fixed]


def _fixed_replay(new_task: int, old_tasks: list[int], tasks: int, **settings: Any) -> Policy:
    policy = FixedReplay(tasks, **settings)
    for task in (*old_tasks, new_task):
        policy.begin(task)
    return policy


def _focus_then_replay(new_task: int, old_tasks: list[int], tasks: int, **settings: Any) -> Policy:
    return FocusThenReplay(new_task, old_tasks, tasks=tasks, **settings)


RULES = {
    "focus-then-replay": Rule(
        _focus_then_replay,
        {
            "margin": Span(-0.95, 4.0),
            "shares": Span(0.0, 1.0),
            "focus_lr": Span(0.0, 1.0, rate=True),
            "replay_lr": Span(0.0, 1.0, rate=True),
            "decay": Span(0.0, 8.0, rate=True),
        },
        {"until": "met", "margin": 0.0, "shares": None, "max_focus": float("inf")},
        {"until": ("met", "halved")},
        ("patience", "smoothing", "weights", "min_focus"),
    ),
    "fixed-replay": Rule(_fixed_replay, {"share": Span(0.0, 1.0)}, {"share": 0.5}),
}
"""The rules that `tune` knows, by name.

Examples:
    >>> list(replan.policies.RULES)
    ['focus-then-replay', 'fixed-replay']
"""
