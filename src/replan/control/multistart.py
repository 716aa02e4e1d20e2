"""Descents from several starts, on all cores: what they find does not depend on how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from threading import Event
from typing import TYPE_CHECKING, Generic, TypeVar

from replan.control.objective import Controls, DiscretisedObjective, LimitError
from replan.control.solver import Descent
from replan.core.interrupt import interrupted

if TYPE_CHECKING:
    from replan.control.search import Search

_TOLD = 0.1  # seconds between reports of progress

D = TypeVar("D", bound=Descent)


class _Run(Generic[D]):
    """A descent from one start, on an objective that counts its work alone."""

    def __init__(
        self,
        objective: DiscretisedObjective,
        start: Controls,
        begin: Callable[[DiscretisedObjective, Controls], D],
    ) -> None:
        self.objective, self.start, self._begin = objective, start, begin
        self.descent: D | None = None

    def begin(self) -> None:
        if self.descent is None:
            self.descent = self._begin(self.objective, self.start)

    def go(self, most: int, stop: Event, tell: Callable[[], object]) -> None:
        """Take the descent to its end, or to that of its gradients."""
        try:
            for _ in range(most):
                if stop.is_set():
                    return
                self.begin()
                assert self.descent is not None
                if self.descent.terminate():
                    return
                self.descent.step()
                tell()
        except LimitError:
            return


def descend_from(
    starts: Sequence[Controls],
    search: Search,
    begin: Callable[[DiscretisedObjective, Controls], D],
    most: int,
) -> list[D]:
    """Begin a descent on the coarse grid from each start, and make at most `most` steps of each.

    Each may use an equal part of the gradients that are left: none depends on how many others need.
    Where there are fewer than starts, the first ones have one each.
    """
    left = search.counts.max_gradients - search.counts.gradients
    if left < 1:
        raise LimitError
    count = int(min(left, len(starts)))
    runs = [_Run(search.coarse.apart(left // count), start, begin) for start in starts[:count]]
    try:
        _go(runs, search, most)
    except BaseException as error:
        if interrupted(error):  # loses nothing
            for run in runs:
                if run.descent is not None:
                    search.offer_rounded(run.descent.controls)
        raise
    finally:
        for run in runs:
            search.counts.add(run.objective.counts)
    return [run.descent for run in runs if run.descent is not None]


def _go(runs: Sequence[_Run[D]], search: Search, most: int) -> None:
    """Take descents to their ends, in as many threads as there are workers."""
    stop = Event()

    def tell() -> None:
        done = search.counts.gradients + sum(run.objective.counts.gradients for run in runs)
        values = [run.descent.value for run in runs if run.descent is not None]
        note = f"best {min([search.best.value, *values]):.6g}"
        search.meter.advance(done - search.meter.done, note=note)

    workers = min(search.workers, len(runs))
    if workers == 1:
        for run in runs:
            run.go(most, stop, tell)
        return
    runs[0].begin()  # what has to be compiled is compiled once
    with ThreadPoolExecutor(workers) as pool:
        pending = {pool.submit(run.go, most, stop, lambda: None) for run in runs}
        try:
            while pending:
                done, pending = wait(pending, timeout=_TOLD, return_when=FIRST_COMPLETED)
                for one in done:
                    one.result()
                tell()
        finally:
            stop.set()
