"""Strategies: recipes that make a protocol from a problem without optimising it."""

from replan.strategies._strategies import (
    STRATEGIES,
    GridSearch,
    Strategy,
    alternating,
    constant_lr,
    exponential_lr,
    focus_then_revise,
    grid_search,
    interleaved,
    no_replay,
    one_task,
    power_law_lr,
    random_order,
    sequential,
    shuffled,
)

__all__ = [
    "STRATEGIES",
    "GridSearch",
    "Strategy",
    "alternating",
    "constant_lr",
    "exponential_lr",
    "focus_then_revise",
    "grid_search",
    "interleaved",
    "no_replay",
    "one_task",
    "power_law_lr",
    "random_order",
    "sequential",
    "shuffled",
]
