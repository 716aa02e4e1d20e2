"""Trainer: the compiled training of many realisations of a network, side by side in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan._common import memory
from replan._common.check import Floats
from replan.networks._realisations import TRAINING, Order, rng_of, sample_order
from replan.networks._tasks import ImageTasks

CROSS_ENTROPY = "cross-entropy"
PRECISIONS = {"single": np.float32, "double": np.float64}

_TAPE = 2**24  # numbers on a tape: steps that are pulled back at once
_SHORT = 2e8  # weights changed, step by step: Ctrl-C can wait for that
_LOST = (
    10.0  # times the loss of outputs of 0, or at the start: training that ends above it diverged
)

# Does the work of one realisation, and returns early once the flag is set.
Job = Callable[[int, NDArray[np.bool_]], None]
Tapes = list[Any]  # a `Tape` for each realisation


class Course(NamedTuple):
    """What all realisations go through: rates of features and heads (pieces, T), edges in steps."""

    features: Floats
    heads: Floats
    edges: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """Of all pieces together."""
        return int(self.edges[-1] - self.edges[0])


class Trainer:
    """The training of R realisations of a network with n weights each, in single or double.

    States are (…, R n + 1), the last number is the time. distinct: different samples of each task,
    None for all. looked_at: the inputs and targets that losses are of, by task.
    """

    def __init__(
        self,
        data: ImageTasks,
        looked_at: Sequence[tuple[Any, Any]],
        *,
        hidden: int,
        loss: str,
        biases: bool,
        distinct: Sequence[int | None],
        realisations: Sequence[int],
        seed: int,
        precision: str,
        threads: int,
    ) -> None:
        self.data, self.hidden, self.biases, self.seed = data, hidden, biases, seed
        self.distinct, self.realisations = distinct, realisations
        self.real: Any = PRECISIONS[precision]
        self.threads = min(threads, len(realisations))
        self.softmax = loss == CROSS_ENTROPY
        outputs = data.targets.shape[1]
        self.outputs = 2 if self.softmax and outputs == 1 else outputs
        K, D, T, C = hidden, data.pixels.shape[1], data.tasks, self.outputs
        self.sizes = np.array([K * D, K, T * C * K, T * C])
        self.size = int(self.sizes.sum())
        memory.require(
            f"`hidden` = {hidden} and {len(realisations)} realisations",
            float(memory.COPIES) * self.size * len(realisations),
        )
        self._looked_at = [
            (np.ascontiguousarray(x, self.real), self.targets(y)) for x, y in looked_at
        ]
        self._images = sum(len(x) for x, _ in looked_at)
        self._targets = self.targets(data.targets)
        first = data.mix.astype(np.float64)
        mix = np.stack([first, 1 - first], axis=1)
        factors = np.column_stack([data.scale * mix, np.full(T, data.shift)]) / np.sqrt(D)
        self._mix, self._inputs = mix.astype(self.real), factors.astype(self.real)
        self._streams: dict[int, Order] = {}

    def targets(self, targets: Any) -> Any:
        """Return targets (n, C) as the loss needs them."""
        y = np.asarray(targets, np.float64)
        if self.softmax:
            y = np.concatenate([1 + y, 1 - y], axis=1) / 2 if y.shape[1] == 1 else (1 + y) / 2
        return np.ascontiguousarray(y, self.real)

    def train(self, start: Floats, course: Course, use: int, tapes: Tapes | None = None) -> Floats:
        """Return the states (pieces + 1, …) up to the last piece after which all are finite.

        use: what the samples are for, `TRAINING` or `PRETRAINING`. tapes: room for all steps, which
        are kept there for `pull`.
        """
        from replan.networks._sgd import train

        states = np.empty((len(course.edges), start.size))
        states[0] = start
        done = np.zeros(len(self.realisations), np.int64)

        def one(r: int, stop: NDArray[np.bool_]) -> None:
            tape = self._tape(1) if tapes is None else tapes[r]
            done[r] = train(
                self._samples(r, use, course), self._weights(start, r), self.hidden,
                *self._rates(course), course.edges, tape, tapes is not None, states,
                r * self.size, stop,
            )  # fmt: skip

        self._each(one, course.steps)
        return states[: done.min() + 1]

    def pull(
        self, states: Floats, cotangents: Floats, course: Course, tapes: Tapes | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Return the gradients by states, and by the rates of features and heads (pieces, T).

        tapes: of all steps, as `train` kept them. Without them each piece is trained again.
        """
        from replan.networks._sgd import pull

        wanted = len(course.edges), len(self.realisations) * self.size + 1
        for name, given in (("states", states), ("cotangents", cotangents)):
            if given.shape != wanted:  # compiled code does not look
                raise ValueError(f"`{name}` expects shape {wanted}, got {given.shape}")
        if tapes is not None and any(len(tape.units) != max(1, course.steps) for tape in tapes):
            raise ValueError(
                f"`record` expects tapes of {course.steps} steps, as these pieces have"
            )
        adjoints = np.empty_like(states)
        by_rates = np.zeros((len(self.realisations), 2, *course.features.shape))
        longest = int(np.diff(course.edges).max(initial=0))

        def one(r: int, stop: NDArray[np.bool_]) -> None:
            tape = self._tape(self.at_once(longest)) if tapes is None else tapes[r]
            pull(
                self._samples(r, TRAINING, course), self.hidden, *self._rates(course),
                course.edges, tape, tapes is not None, states, cotangents, r * self.size,
                adjoints, by_rates[r, 0], by_rates[r, 1], stop,
            )  # fmt: skip

        self._each(one, 3 * course.steps)
        by_a, by_h = by_rates.sum(axis=0)
        return adjoints, by_a, by_h

    def ends(self, start: Floats, course: Course, use: int) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the losses (R, T) after training, infinite where it diverged, and which are dead.

        It has diverged where weights are not finite, or a loss is more than ten times that of
        outputs of 0 and that at the start. It is dead where no hidden unit is on for any of the
        images of some task.
        """
        from replan.networks._sgd import train

        losses = np.full((len(self.realisations), self.data.tasks), np.inf)
        dead = np.zeros(len(losses), bool)
        nowhere = np.empty((0, 0))

        def one(r: int, stop: NDArray[np.bool_]) -> None:
            weights = self._weights(start, r)
            train(
                self._samples(r, use, course), weights, self.hidden, *self._rates(course),
                course.edges, self._tape(1), False, nowhere, 0, stop,
            )  # fmt: skip
            found, alive = self._losses(weights)
            most = _LOST * self._empty_losses
            if not np.all(found <= most):
                most = np.maximum(most, _LOST * self._losses(self._weights(start, r))[0])
            if np.all(np.isfinite(weights)) and np.all(found <= most):
                losses[r], dead[r] = found, not alive

        self._each(one, course.steps)
        return losses, dead

    def losses(self, rows: Floats) -> Floats:
        """Return the losses (m, R, T) at states (m, …)."""
        found = np.empty((len(rows), len(self.realisations), self.data.tasks))

        def one(r: int, stop: NDArray[np.bool_]) -> None:
            for i, row in enumerate(rows):
                if stop[0]:
                    return
                found[i, r], _ = self._losses(self._weights(row, r))

        self._each(one, self._images * len(rows))
        return found

    def pull_losses(self, rows: Floats, by_losses: Floats) -> Floats:
        """Return the gradients by states (m, …) of Σ by_losses (m, T) × the sums of losses."""
        from replan.networks._mean_loss import pull_mean_loss

        found = np.zeros_like(rows)

        def one(r: int, stop: NDArray[np.bool_]) -> None:
            for i in np.flatnonzero(by_losses.any(axis=1)):
                if stop[0]:
                    return
                weights, out = self._weights(rows[i], r), np.zeros(self.size, self.real)
                for t, by in enumerate(by_losses[i]):
                    pull_mean_loss(by, out, weights, *self._look(t))
                found[i, self._own(r)] = out

        self._each(one, 2 * self._images * len(rows))
        return found

    def tapes(self, course: Course) -> Tapes | None:
        """Return room for all steps of all realisations; None where it would be too much."""
        everything = course.steps * len(self.realisations)
        if self.at_once(everything) < everything:
            return None
        return [self._tape(course.steps) for _ in self.realisations]

    def at_once(self, steps: int) -> int:
        """Return how many of some steps a tape has room for; at least one."""
        T, K, C = self.data.tasks, self.hidden, self.outputs
        return max(1, min(steps, _TAPE // (T * (K + C + C * K))))

    def _tape(self, steps: int) -> Any:
        from replan.networks._sgd import Tape

        T, K, C = self.data.tasks, self.hidden, self.outputs
        shapes = (K,), (C,), (C, K)
        return Tape(*(np.empty((max(1, steps), T, *shape), self.real) for shape in shapes))

    def stream(self, r: int, use: int, end: int) -> Order:
        """Return the images (T, 2, …) of at least `end` samples of every task."""
        found = self._streams.get(r) if use == TRAINING else None
        if found is None or found.shape[2] < end:
            length = 1 << max(0, end - 1).bit_length()
            found = np.stack(
                [
                    sample_order(
                        self.data, t, distinct if use == TRAINING else None, length,
                        rng_of(self.seed, self.realisations[r], use, t),
                    )
                    for t, distinct in enumerate(self.distinct)
                ]
            )  # fmt: skip
            if use == TRAINING:  # a start is made once
                self._streams[r] = found
        return found

    # Parts

    def _each(self, work: Job, steps: float) -> None:
        """Do the work of every realisation, about as long as so many steps, in threads.

        So Ctrl-C reaches this one. Short work that one thread does is done here, as starting that
        thread takes long beside it.
        """
        stop = np.zeros(1, bool)
        if self.threads == 1 and steps * self.size <= _SHORT:
            for r in range(len(self.realisations)):
                work(r, stop)
            return
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                list(pool.map(lambda r: work(r, stop), range(len(self.realisations))))
            except BaseException:
                stop[0] = True
                raise

    def _own(self, r: int) -> slice:
        return slice(r * self.size, (r + 1) * self.size)

    def _weights(self, state: Floats, r: int) -> Any:
        return state[self._own(r)].astype(self.real)

    def _rates(self, course: Course) -> tuple[Any, Any]:
        return course.features.astype(self.real), course.heads.astype(self.real)

    def _samples(self, r: int, use: int, course: Course) -> Any:
        """Return what a realisation is trained on."""
        from replan.networks._sgd import Samples

        return Samples(
            self.data.pixels, self._targets, self.stream(r, use, int(course.edges[-1])), self._mix,
            self._inputs, self.softmax, self.biases,
        )  # fmt: skip

    def _look(self, task: int) -> Any:
        """Return what the compiled losses need besides weights."""
        return (
            self.hidden, self.data.tasks, task, *self._looked_at[task], self.softmax, self.biases
        )  # fmt: skip

    def _losses(self, weights: Any) -> tuple[Floats, bool]:
        """Return the losses (T,) of one realisation, and whether it is alive on every task."""
        from replan.networks._mean_loss import mean_loss

        found = [mean_loss(weights, *self._look(t)) for t in range(self.data.tasks)]
        return np.array([loss for loss, _ in found]), all(alive for _, alive in found)

    @property
    def _empty_losses(self) -> Floats:
        """The losses (T,) of outputs of 0."""
        if self.softmax:
            return np.full(self.data.tasks, np.log(self.outputs))
        return np.array(
            [np.sum(y.astype(np.float64) ** 2) / 2 / len(y) for _, y in self._looked_at]
        )
