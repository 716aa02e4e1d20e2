"""Transfer: what training on tasks that arrive one after another does to one another's losses."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from replan import files
from replan.check import Floats
from replan.problem import Problem

_SAME = 1e-9  # times closer than this fraction of the duration count as one


class Transfer(NamedTuple):
    """Forgetting, backward and forward transfer of every task (…, T), NaN where they mean nothing.

    - forgetting: how far the final loss lies above the least since the task arrived. (Chaudhry et
      al. 2018, with losses in place of accuracies)
    - backward: how much lower the final loss is than that at the first arrival after the task's
      own: what training on later tasks, and replay, have gained. None of the last to arrive.
    - forward: how much lower the loss is at the task's arrival than at the start: what training on
      earlier tasks has gained. None of tasks that are there at the start. (Both: Lopez-Paz &
      Ranzato 2017)

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> start = model.pretrain(seed=1)
        >>> problem = replan.Problem(model, start, duration=20.0, steps=20, arrivals=[0, 5])
        >>> run = replan.evaluate(problem, replan.strategies.no_replay(problem))
        >>> run.transfer.forgetting.round(3)
        array([0.022, 0.   ])
    """

    forgetting: Floats
    backward: Floats
    forward: Floats

    @property
    def means(self) -> dict[str, Any]:
        """The means (…) over the tasks that have one, by name."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of no task at all
            return {name: np.nanmean(x, axis=-1) for name, x in self._asdict().items()}

    @property
    def text(self) -> str:
        """The means over tasks, and runs where there are several, in a line."""
        names = {"backward": "backward transfer", "forward": "forward transfer"}
        means = {name: float(np.mean(x)) for name, x in self.means.items()}
        parts = [f"{names.get(name, name)} {x:.4g}" for name, x in means.items() if x == x]
        return f"means over tasks: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON types, with null for NaN."""
        return {name: files.nullable(x) for name, x in self._asdict().items()}


def transfer(problem: Problem, times: Floats, losses: Floats) -> Transfer | None:
    """Return the transfer in losses (…, m, L) at times (m,), from 0 to the end.

    None where all tasks are there throughout, or losses are not those of the tasks.
    """
    presence, model = problem.availability, problem.model
    if presence.always or model.loss_names != model.task_names:
        return None
    arrivals, end = presence.arrivals, problem.duration
    unknown = np.full(losses.shape[:-2], np.nan)
    columns = []
    for task, arrival in enumerate(arrivals.tolist()):
        curve, later = losses[..., task], arrivals[arrivals > arrival].min(initial=end)
        then, after = (_at(time, times, curve) for time in (arrival, later))
        least = curve[..., times >= arrival - _SAME * end].min(axis=-1)
        last = curve[..., -1]
        columns.append(
            [
                last - least if arrival < end else unknown,
                after - last if later < end else unknown,
                curve[..., 0] - then if arrival > 0 else unknown,
            ]
        )
    return Transfer(*(np.stack(rows, axis=-1) for rows in zip(*columns, strict=True)))


def _at(time: float, times: Floats, curve: Floats) -> Floats:
    """Return the values (…) of curves (…, m) at a time, interpolated between those known."""
    after = int(np.clip(np.searchsorted(times, time), 1, times.size - 1))
    part = (time - times[after - 1]) / (times[after] - times[after - 1])
    return np.asarray((1 - part) * curve[..., after - 1] + part * curve[..., after])
