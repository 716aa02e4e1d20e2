"""Rules: policies by name, with the settings that can be tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, NamedTuple

from replan.policies._fixed_replay import FixedReplay
from replan.policies._focus_then_replay import FocusThenReplay
from replan.policies._policy import Policy


class Span(NamedTuple):
    """The values that a setting may have, from `low` to `high`.

    rate: whether it is a learning rate, or tells how one falls: such settings are tuned only where
    the learning rate may be controlled. factor: of training's own learning rate; its values are
    then those that keep to the range of that, whatever `low` and `high`.

    Examples:
        >>> from replan.policies import RULES
        >>> RULES["fixed-replay"].spans["share"]
        Span(low=0.0, high=1.0, rate=False, factor=False)
    """

    low: float
    high: float
    rate: bool = False
    factor: bool = False


class Rule(NamedTuple):
    """A policy whose settings can be tuned.

    make: returns the policy for a new task and old ones, of so many, with settings by name. spans:
    of the settings, by name. defaults: their values in the rule as it is. choices: of other
    settings, all of which are tried. fixed: the names of further settings, which are not tuned.
    listening: settings that mean nothing where a number stands for one of the choices. in_loops:
    what to give instead, in a loop, for settings whose numbers are in units of an epoch: in theory
    that is the whole training.

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
    listening: tuple[str, ...] = ()
    in_loops: Mapping[str, str] = {}

    @property
    def settings(self) -> list[str]:
        """The names of all settings."""
        return [*{**self.defaults, **self.spans, **self.choices}, *self.fixed]

    def beside(self, kept: Mapping[str, Any]) -> Rule:
        """Return the rule with some settings kept as they are: what is left to tune."""
        numbers = any(isinstance(kept.get(name), Real) for name in self.choices)
        idle = {*kept, *(self.listening if numbers else ())}
        return self._replace(
            spans={name: x for name, x in self.spans.items() if name not in idle},
            choices={name: x for name, x in self.choices.items() if name not in idle},
            defaults={**{n: x for n, x in self.defaults.items() if n not in idle}, **kept},
        )


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
            "focus_lr": Span(0.0, 1.0, rate=True, factor=True),
            "replay_lr": Span(0.0, 1.0, rate=True, factor=True),
            "decay": Span(0.0, 8.0, rate=True),
        },
        {"until": "met", "margin": 0.0, "shares": None, "max_focus": float("inf")},
        {"until": ("met", "halved")},
        ("patience", "smoothing", "weights", "min_focus"),
        ("margin", "max_focus"),
        {
            "until": "max_focus = {value:g} × the loop's steps",
            "decay": "decay = {value:g} / the loop's epochs (without a sampler, its steps / 20000)",
        },
    ),
    "fixed-replay": Rule(_fixed_replay, {"share": Span(0.0, 1.0)}, {"share": 0.5}),
}
"""The rules that `tune` knows, by name.

Examples:
    >>> list(replan.policies.RULES)
    ['focus-then-replay', 'fixed-replay']
"""
