"""tune(train, rates) → Tuned: the share of replay, rate and decay that suit your own training.

Each share gets the same search, successive halving: all its rates and decays are run on the same
first seeds, and the better half goes on to further ones. What is left is tested on fresh seeds. The
best of many noisy losses is low by luck, too, so the seeds of the search do not say how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeVar

from replan import check, files
from replan.errors import ArgumentError, renamed
from replan.replay.tuned import TEST, Choice, Run, Tuned
from replan.sweeps import SweepError, sweep

_T = TypeVar("_T")
Todo = list[tuple[Choice, int]]  # choices and seeds

_AROUND, _MORE = 2, 4  # rates by factors of 2: on each side of the given one, and added at most
_LEAST = 2  # choices that a halving leaves
_BESIDE = 3  # choices that are tested at the share of the best


def tune(
    train: Callable[..., Any],
    rates: float | Iterable[float],
    *,
    shares: Iterable[float] = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75),
    decays: Iterable[str] = ("constant", "cosine"),
    seeds: int | Iterable[int] = 4,
    test_seeds: int = 8,
    weights: Sequence[float] | Mapping[str, float] | None = None,
    cache: files.FilePath | None = None,
    key: Any = None,
    workers: int = 1,
    executor: Any = None,
    progress: bool = False,
) -> Tuned:
    """Find the share of replay, the learning rate and its decay that suit a training of yours.

    **Main arguments**

    - `train`: is called as `train(share=…, lr=…, decay=…, seed=…)`, trains from the start, and
      returns a loss per task on validation data: a list, a dict by name, or a single number. All
      that is random follows `seed`, so that choices are compared on equal terms. Losses that are
      not finite are a result: it diverged.
    - `rates`: learning rates; or one, for five by factors of 2 around it, and up to four more at
      each share while the best is the largest or smallest.
    - `shares`, `decays`: the other axes of the grid. Decays are words that `train` understands.

    **Other arguments**

    - `seeds`: of the search, how many or which. All choices get the first, the better half of each
      share's the second, half of these the next two, and so on.
    - `test_seeds`: fresh ones, for the best choice of each share and two more at the share of the
      best.
    - `weights`: of the tasks in the mean of their losses; equal by default.
    - `cache`: a folder that keeps each finished run: called again, `tune` goes on where it was.
    - `key`, `workers`, `executor`, `progress`: as for `sweep`; `workers` is 1 by default.

    A run that fails does not stop the others; its choice is out, and the result says why.

    The result prints as a table. `choice`: share, lr and decay; `loss`: its mean and 90 % interval
    on test seeds, which had no part in the choice. `runners_up`: choices that cannot be told from
    it; `differences`: of all that were tested, paired by seed. `shares`: what the best choice at
    each share costs. `cliff`: the next rate that diverges or is far worse, if any was tried.
    `warnings`: such as a best rate at the end of the grid. `to_frame()` returns all runs,
    `plot(path)` draws losses over rates and the costs of shares, `save(path)` writes .json or .csv.

    Examples:
        >>> def train(share, lr, decay, seed):
        ...     noise = np.random.default_rng(seed).normal(0, 0.01, 2)
        ...     return noise + [0.3 + (share - 0.5) ** 2, 0.2 + np.log2(lr / 0.1) ** 2 / 10]
        >>> replan.replay.tune(train, 0.05, shares=[0, 0.25, 0.5], decays=["constant"]).choice
        Choice(share=0.5, lr=0.1, decay='constant')
    """
    check.function("train", train)
    folder = None if cache is None else check.path("cache", cache)
    options = {"cache": folder, "key": key, "workers": workers, "executor": executor}
    work = partial(sweep, partial(_run, train), **options, progress=progress)
    listed = range(check.integer("seeds", seeds, at_least=1)) if isinstance(seeds, Real) else seeds
    own = partial(check.integer, "seeds", at_most=TEST - 1)
    numbers = _distinct("seeds", [*map(own, _items("seeds", listed))])
    fresh = check.integer("test_seeds", test_seeds, at_least=2)
    words = _distinct("decays", [check.word("decays", x) for x in _items("decays", decays)])
    checked = partial(check.number, "shares", at_least=0.0, at_most=1.0)
    each = _distinct("shares", sorted(map(checked, _items("shares", shares))))
    rate_grid = _rates(rates)
    grid = {share: [*rate_grid] for share in each}
    search = _Search(work, grid, words, numbers, _weights(weights))
    left = search.run(extend=isinstance(rates, Real))
    tested = _finalists(left)
    if not tested:
        tried = sorted({lr for own in grid.values() for lr in own})
        expected = "low enough for a training that ends with finite losses"
        raise ArgumentError("rates", expected, f"none among {check.show(tried)}")
    search.compute([(choice, TEST + i) for choice in tested for i in range(fresh)])
    return Tuned(tuple(search.runs.values()), tuple(tested), search.rates)


class _Search:
    """Successive halving within each share.

    work: `sweep` of the training. rates: by share. rounds: their seeds. runs: all so
    far. tasks: the names of the losses.
    """

    def __init__(
        self,
        work: Callable[..., list[Any]],
        rates: dict[float, list[float]],
        decays: list[str],
        seeds: list[int],
        weights: list[float] | dict[str, float] | None,
    ) -> None:
        self.work, self.rates, self.decays, self.weights = work, rates, decays, weights
        count = len(seeds)
        self.rounds = [seeds[:n] for n in sorted({min(2**k, count) for k in range(count + 1)})]
        self.runs: dict[tuple[Choice, int], Run] = {}
        self.tasks: list[str] = []

    def run(self, extend: bool) -> dict[float, dict[Choice, float]]:
        """Return the choices that are left at each share, best first, with their mean losses.

        extend: add rates where the best is at the end. Rounds of all shares run together.
        """
        while True:
            todo: Todo = []
            for share, rates in self.rates.items():
                left, missing = self.halve(share)
                if extend and not missing and len(rates) < 2 * _AROUND + 1 + _MORE:
                    best = next(iter(left)).lr
                    if best == rates[0]:
                        rates.insert(0, best / 2)
                    elif best == rates[-1]:
                        rates.append(best * 2)
                    missing = self.halve(share)[1]
                todo += missing
            if not todo:
                return {share: self.halve(share)[0] for share in self.rates}
            self.compute(todo)

    def halve(self, share: float) -> tuple[dict[Choice, float], Todo]:
        """Return what the last round leaves, best first, or the runs of a round that are missing.

        In a round, all choices have the same seeds. What diverged goes no further.
        """
        left = {Choice(share, lr, x): 0.0 for lr in self.rates[share] for x in self.decays}
        for seeds in self.rounds:
            kept = max(_LEAST, math.ceil(len(left) / 2)) if len(seeds) > 1 else len(left)
            entered = [x for x, loss in left.items() if math.isfinite(loss)][:kept]
            if not entered:
                break
            missing = [(x, i) for x in entered for i in seeds if (x, i) not in self.runs]
            if missing:
                return {}, missing
            means = {x: sum(self.runs[x, i].loss for i in seeds) / len(seeds) for x in entered}
            left = dict(sorted(means.items(), key=lambda item: item[1]))
        return left, []

    def compute(self, todo: Todo) -> None:
        """Run choices on seeds."""
        cases = [choice._asdict() | {"seed": seed} for choice, seed in todo]
        failures: dict[int, str] = {}
        try:
            with renamed({"function": "train"}):
                results = self.work(cases)
        except SweepError as error:
            if not self.runs and len(error.failures) == len(cases):
                raise  # it is not the choice that fails
            results, failures = error.results, error.failures
        for i, (choice, seed) in enumerate(todo):
            losses = {k: math.inf if x is None else x for k, x in (results[i] or {}).items()}
            loss = math.inf if i in failures else self.mean(losses)
            self.runs[choice, seed] = Run(choice, seed, losses, loss, failures.get(i, ""))

    def mean(self, losses: dict[str, float]) -> float:
        """Return the weighted mean of the losses of the tasks; infinite if one of them is."""
        if math.inf in losses.values():
            return math.inf
        self.tasks = self.tasks or list(losses)
        if losses.keys() != {*self.tasks}:
            expected = f"a function that always returns losses of {', '.join(self.tasks)}"
            raise ArgumentError("train", expected, check.show(losses))
        weights = self.weights or [1.0] * len(losses)
        if not isinstance(weights, dict) and len(weights) == len(losses):
            weights = dict(zip(self.tasks, weights, strict=True))
        if not isinstance(weights, dict) or weights.keys() != losses.keys():
            expected = f"a number for each loss ({', '.join(losses)})"
            raise ArgumentError("weights", expected, check.show(self.weights))
        return sum(w * losses[x] for x, w in weights.items()) / sum(weights.values())


def _run(train: Callable[..., Any], **case: Any) -> dict[str, float | None]:
    """Return the losses of a training by task, None where they are not finite."""
    found = train(**case)
    found = found.tolist() if hasattr(found, "tolist") else found
    if not isinstance(found, Mapping):
        listed = [*found] if isinstance(found, Iterable) else [found]
        found = {f"{t}": loss for t, loss in enumerate(listed, 1)}
    if not found:
        raise ArgumentError("train(…)", "at least one loss", "none")
    losses = check.losses("train(…)", dict(enumerate(found.values())), len(found))
    finite = (x if math.isfinite(x) else None for x in losses.values())
    return dict(zip(map(str, found), finite, strict=True))


def _finalists(left: dict[float, dict[Choice, float]]) -> list[Choice]:
    """Return the best choice, that of every share, and the next ones at the share of the best.

    Those that diverged on a seed of the search are out.
    """
    best = [next(iter(choices.items())) for choices in left.values()]
    ranked = [x for x, loss in sorted(best, key=lambda item: item[1]) if math.isfinite(loss)]
    beside = list(left[ranked[0].share].items())[:_BESIDE] if ranked else []
    return list(dict.fromkeys([*ranked, *(x for x, loss in beside if math.isfinite(loss))]))


def _rates(rates: float | Iterable[float]) -> list[float]:
    """Return the rates of the grid, from the smallest."""
    if isinstance(rates, Real):
        middle = check.number("rates", rates, above=0.0)
        return [middle * 2.0**k for k in range(-_AROUND, _AROUND + 1)]
    return _distinct(
        "rates", sorted(check.number("rates", x, above=0.0) for x in _items("rates", rates))
    )


def _weights(weights: Any) -> list[float] | dict[str, float] | None:
    """Return the weights of the losses, by place or by name."""
    if weights is None:
        return None
    named = isinstance(weights, Mapping)
    listed = weights.values() if named else check.items("weights", weights, "numbers")
    numbers = [check.number("weights", x, at_least=0.0) for x in listed]
    if not sum(numbers):
        raise ArgumentError("weights", "above 0 for at least one task", check.show(weights))
    return dict(zip(map(str, weights), numbers, strict=True)) if named else numbers


def _items(name: str, values: Any) -> list[Any]:
    return check.items(name, values, "values to try")


def _distinct(name: str, values: list[_T]) -> list[_T]:
    if not values or len({*values}) < len(values):
        raise ArgumentError(name, "different values, at least one", check.show(values))
    return values
