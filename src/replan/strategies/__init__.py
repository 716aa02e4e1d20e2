"""Strategies: recipes that make a protocol from a problem without optimising it.

Examples:
    >>> model = replan.TeacherStudent.similar(0.3)
    >>> problem = replan.Problem(model, model.pretrain(seed=1), duration=20.0, steps=50)
    >>> protocol = replan.strategies.focus_then_replay(problem)
    >>> print(protocol)
    Protocol: 20 units in 51 steps, task 1 26.3%, task 2 73.7%, learning rate 1
             0 to 9.464    task 2
         9.464 to 20       0.5 task 1 + 0.5 task 2
"""

from replan._common.check import Task
from replan.strategies._arguments import arguments, settings_of
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
    "arguments",
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
    "settings_of",
    "shuffled",
    "strategy",
]
