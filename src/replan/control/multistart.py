"""Descents from several starts, in threads; results do not depend on their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from replan.control.discretised import DiscretisedObjective, LimitError
from replan.control.search import Descent, Search
from replan.core.threads import free_cores, in_background, stopped, take_turns

D = TypeVar("D", bound=Descent)
S = TypeVar("S")


def descend_from(
    starts: Sequence[S],
    search: Search,
    begin: Callable[[DiscretisedObjective, S], D],
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
    objectives = [search.coarse.with_own_counts(remaining // count) for _ in range(count)]
    descents: dict[int, D] = {}

    def descend(i: int) -> None:
        with suppress(LimitError):
            descents[i] = begin(objectives[i], starts[i])
            for _ in range(max_steps):
                if stopped() or descents[i].terminate():
                    return
                descents[i].step()

    def report() -> None:
        done = search.counts.gradients + sum(each.counts.gradients for each in objectives)
        values = [descent.value for descent in list(descents.values())]
        search.report(f"best {min([search.best.value, *values]):.6g}", done)

    # The members of an ensemble use all cores by themselves.
    threads = 1 if len(search.problem.members) > 1 else min(free_cores(), count)
    try:
        in_background(take_turns(descend, count), threads, meanwhile=report)
        return [descents[i] for i in sorted(descents)]
    except KeyboardInterrupt:  # loses nothing
        for descent in list(descents.values()):
            search.submit_rounded(descent.controls)
        raise
    finally:
        for objective in objectives:
            search.counts.gradients += objective.counts.gradients
            search.counts.roll_outs += objective.counts.roll_outs
