"""problem_template(kind): a commented problem file to start from."""

from __future__ import annotations

from replan.models.registry import DEFAULT, find

_HEAD = "# A training problem for replan. Times are in samples per input dimension.\n"
_EXAMPLE = """\
[training]
duration = 25.0
steps = 250                       # steps of the protocol
lr = 1.0
# arrivals = [0.0, 5.0]           # when each task becomes available: edges of steps
# departures = [20.0, inf]

[control]
tasks = true
lr = false                        # or { min = 0.0, max = 5.0 }

[objective]
# goal = "final"                  # or "seen": tasks so far, over time; or "worst": the worst task
# weights = [0.5, 0.5]            # of the tasks' final losses; by default equal
# running = [0.0, 0.0]            # of their averages over the training
# targets = { 1 = 0.01 }          # the loss of task 1 should end below 0.01

# [limits]                        # what a plan must keep to
# min_share = [0.0, 0.0]          # of each task in the whole training
# max_share = [0.2, 1.0]
# min_dwell = 0.5                 # shortest time on a task before it changes
# max_switches = 10
# max_replay = 0.2                # of tasks that arrived before, between one arrival and the next
"""


def problem_template(kind: str = DEFAULT) -> str:
    """Return a commented problem file for a kind of model.

    Where the model has no example, its own keys are left to fill in.
    """
    own = find(kind).example or f'[model]\nkind = "{kind}"\n\n[start]'
    rest = "" if "[training]" in own else f"\n{_EXAMPLE}"
    return f"{_HEAD}\n{own.strip()}\n{rest}"
