"""Descents from several starts, in threads: the results do not depend on how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from threading import Event
from typing import Generic, TypeVar

from replan.control.discretised import Controls, DiscretisedObjective, LimitError
from replan.control.search import Descent, Search
from replan.core.interrupt import interrupted
from replan.core.threads import free_cores

_REPORT_EVERY = 0.1  # seconds

D = TypeVar("D", bound=Descent)


class _Run(Generic[D]):
    """A descent from one start, on an objective that counts its own work."""

    def __init__(
        self,
        objective: DiscretisedObjective,
        start: Controls,
        begin: Callable[[DiscretisedObjective, Controls], D],
    ) -> None:
        self.objective, self._start, self._begin = objective, start, begin
        self.descent: D | None = None

    def begin(self) -> D:
        """Return the descent, begun when it is first asked for."""
        if self.descent is None:
            self.descent = self._begin(self.objective, self._start)
        return self.descent

    def go(self, max_steps: int, stop: Event, report: Callable[[], object]) -> None:
        """Take the descent to its end, or to that of its gradients."""
        try:
            for _ in range(max_steps):
                if stop.is_set():
                    return
                descent = self.begin()
                if descent.terminate():
                    return
                descent.step()
                report()
        except LimitError:
            return


def descend_from(
    starts: Sequence[Controls],
    search: Search,
    begin: Callable[[DiscretisedObjective, Controls], D],
    max_steps: int,
) -> list[D]:
    """Begin a descent on the coarse grid from each start, and take at most `max_steps` in each.

    Each may use an equal part of the remaining gradients, so that none depends on how many the
    others need. With fewer gradients than starts, the first starts have one each.
    """
    remaining = search.counts.max_gradients - search.counts.gradients
    if remaining < 1:
        raise LimitError
    count = int(min(remaining, len(starts)))
    runs = [
        _Run(search.coarse.with_own_counts(remaining // count), start, begin)
        for start in starts[:count]
    ]
    try:
        _go(runs, search, max_steps)
    except BaseException as error:
        if interrupted(error):  # loses nothing
            for run in runs:
                if run.descent is not None:
                    search.submit_rounded(run.descent.controls)
        raise
    finally:
        for run in runs:
            search.counts.add(run.objective.counts)
    return [run.descent for run in runs if run.descent is not None]


def _go(runs: Sequence[_Run[D]], search: Search, max_steps: int) -> None:
    """Take descents to their ends, on all cores."""
    stop = Event()

    def report() -> None:
        done = search.counts.gradients + sum(run.objective.counts.gradients for run in runs)
        values = [run.descent.value for run in runs if run.descent is not None]
        search.report(f"best {min([search.best.value, *values]):.6g}", done)

    # The members of an ensemble use all cores by themselves.
    threads = 1 if len(search.problem.members) > 1 else min(free_cores(), len(runs))
    if threads == 1:
        for run in runs:
            run.go(max_steps, stop, report)
        return
    runs[0].begin()  # compiles, which Ctrl-C can abandon only in this thread
    with ThreadPoolExecutor(threads) as pool:
        pending = {pool.submit(run.go, max_steps, stop, lambda: None) for run in runs}
        try:
            while pending:
                done, pending = wait(pending, timeout=_REPORT_EVERY, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                report()
        finally:
            stop.set()
