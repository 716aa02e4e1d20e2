"""Strategies: recipes that make a protocol from a problem without optimising it."""

from replan._common.check import Task
from replan.strategies._strategies import (
    GridSearch,
    alternating,
    constant_lr,
    exponential_lr,
    focus_then_replay,
    grid_search,
    interleaved,
    no_replay,
    one_task,
    power_law_lr,
    random_order,
    sequential,
    shuffled,
)
from replan.strategies._strategy import STRATEGIES, Strategy, UnfitError, strategy

__all__ = [
    "STRATEGIES",
    "GridSearch",
    "Strategy",
    "Task",
    "UnfitError",
    "alternating",
    "constant_lr",
    "exponential_lr",
    "focus_then_replay",
    "grid_search",
    "interleaved",
    "no_replay",
    "one_task",
    "power_law_lr",
    "random_order",
    "sequential",
    "shuffled",
    "strategy",
]
