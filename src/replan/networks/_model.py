"""ImageNetwork: the training of a two-layer network on images, as a differentiable dynamics."""

from __future__ import annotations

import base64
import copy
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan._common import check, memory
from replan._common.check import Floats
from replan.dynamics import (
    LR,
    DifferentiableDynamics,
    IntegrationError,
    Outcomes,
    Pieces,
    Pulled,
    Realised,
    register,
)
from replan.networks._realisations import (
    PRETRAINING,
    TRAINING,
    WEIGHTS,
    check_distinct,
    checked_realisations,
    numbers_text,
    rng_of,
    sample_order,
)
from replan.networks._tasks import ImageTasks

LOSSES = ("squared-error", "cross-entropy")
PRECISIONS = {"single": np.float32, "double": np.float64}

_RATE = 0.01  # the default learning rate
_AT_ONCE = 100_000_000  # weights changed, step by step, in one compiled call: Ctrl-C waits for it
_TAPE = 2**24  # numbers on a tape: steps that are pulled back at once
_LOST = (
    10.0  # times the loss of outputs of 0, or at the start: training that ends above it diverged
)
_SAME = 1e-6  # of a step: a time that is so close below the middle of a step counts as behind it

EXAMPLE = """\
[model]
kind = "network"
data = "fashion-mnist"            # get it with `replan data fetch fashion-mnist`; or FILE.npz
similarity = 0.5                  # of the tasks; or classes = [[0, 5], [2, 7]], one list per task
hidden = 8                        # hidden units
# loss = "cross-entropy"          # instead of "squared-error"
# biases = true
memory = 200                      # images kept of each old task; by default all of them
samples = 2000                    # images of the new task, the last; by default all of them
realisations = 20                 # weights, memories and orders that a plan is made for
seed = 0                          # of all of them

[start]
pretrain = { steps = 10000, lr = 0.01 }   # on the old tasks; or fresh = {}, nothing learned yet

[training]
duration = 2000.0                 # steps of SGD
steps = 20                        # steps of the protocol
lr = 0.01

[control]
tasks = true
lr = false                        # or { min = 0.0, max = 0.1 }

[objective]
# weights = [0.5, 0.5]            # of the tasks' final losses; by default equal
"""


@dataclass(frozen=True)
class NetworkStart:
    """How realisations come to their start: `steps` of SGD at rate `lr` from random weights.

    task: the one that is trained on, or None for all old ones in equal shares.
    """

    steps: int = 0
    lr: float = _RATE
    task: int | None = None


class NetworkWeights(NamedTuple):
    """The weights of R realisations; leading axes, such as time, are allowed.

    features: (…, R, K, D). biases: (…, R, K). heads: (…, R, T, C, K). head_biases: (…, R, T, C).
    time: (…), in steps of SGD.
    """

    features: Floats
    biases: Floats
    heads: Floats
    head_biases: Floats
    time: Any = 0.0


@register
class ImageNetwork(DifferentiableDynamics, Realised):
    """A two-layer ReLU network with a head for each task, trained by SGD on images.

    Time is in steps of SGD. A step takes the next sample of every task, with its share as its
    weight: w ← w − Σ_t share_t lr_t ∇ loss_t. That is a weighted batch of T samples: on average
    what a stream of mixed samples does, with less noise. A *realisation* is random weights, a
    memory and an order of samples; a state holds the weights of all realisations, and losses are
    means over them, on held-out images.

    **Main arguments**

    - `tasks`: what is learned, such as `mixed_tasks(…)`. The last task is the new one.
    - `hidden`: units K.

    **Other arguments**

    - `loss`: "squared-error", or "cross-entropy", for which targets of +1 and -1 are
      probabilities 1 and 0 (a single output is that of two classes).
    - `biases`: whether hidden units and outputs have any.
    - `memory`: samples kept of each old task, None for all.
    - `samples`: different samples of the new task, None for all. Both come in passes.
    - `realisations`: how many, or which. `seed`: of all together.
    - `weight_std`, `head_std`: standard deviations of the initial weights and heads.
    - `precision`: "single" or "double".
    - `threads`: realisations at a time, by default one per core; nothing depends on it.

    Its knobs are `lr`, and `feature_lr` and `head_lr`, by which the rates of the first layer and of
    the heads are multiplied.
    """

    kind = "network"
    example = EXAMPLE
    discrete = True
    knobs = (
        replace(LR, default=_RATE),
        replace(LR, name="feature_lr"),
        replace(LR, name="head_lr"),
    )

    def __init__(
        self,
        tasks: ImageTasks,
        *,
        hidden: int = 8,
        loss: str = LOSSES[0],
        biases: bool = False,
        memory: int | None = None,
        samples: int | None = None,
        realisations: int | Sequence[int] = 20,
        seed: int = 0,
        weight_std: float = 1.0,
        head_std: float = 0.5,
        precision: str = "single",
        threads: int | None = None,
    ) -> None:
        self.data = check.instance("tasks", tasks, ImageTasks, "ImageTasks such as `mixed_tasks`")
        self.tasks = tasks.tasks
        self.hidden = check.integer("hidden", hidden, at_least=1)
        self.loss = check.one_of("loss", loss, LOSSES)
        self.biases = check.boolean("biases", biases)
        self.memory = check_distinct("memory", memory, tasks, range(self.tasks - 1))
        self.samples = check_distinct("samples", samples, tasks, [self.tasks - 1])
        self.realisations = checked_realisations(realisations)
        self.seed = check.integer("seed", seed)
        self.weight_std = check.number("weight_std", weight_std, at_least=0)
        self.head_std = check.number("head_std", head_std, at_least=0)
        self.precision = check.one_of("precision", precision, PRECISIONS)
        threads = (os.cpu_count() or 1) if threads is None else threads
        self.threads = check.integer("threads", threads, at_least=1)
        self._prepare(tasks.held_out)

    def _prepare(self, looked_at: list[tuple[Any, Any]]) -> None:
        """Make the arrays that compiled code reads; losses are of the images `looked_at`."""
        tasks, real = self.data, PRECISIONS[self.precision]
        outputs = tasks.targets.shape[1]
        self.outputs = 2 if self.loss == "cross-entropy" and outputs == 1 else outputs
        K, D, T, C = self.hidden, tasks.pixels.shape[1], self.tasks, self.outputs
        self.sizes = np.array([K * D, K, T * C * K, T * C])
        self._size = int(self.sizes.sum())
        self._check_memory()
        self._looked_at = [(np.ascontiguousarray(x, real), self._targets(y)) for x, y in looked_at]
        self._train_targets = self._targets(tasks.targets)
        first = tasks.mix.astype(np.float64)
        mix = np.stack([first, 1 - first], axis=1)
        factors = np.column_stack([tasks.scale * mix, np.full(T, tasks.shift)]) / np.sqrt(D)
        self._mix, self._inputs = mix.astype(real), factors.astype(real)
        self._streams: dict[tuple[int, int], NDArray[np.int32]] = {}
        self._starts: dict[NetworkStart, Floats] = {}

    def _check_memory(self) -> None:
        memory.require(
            f"`hidden` = {self.hidden} and {len(self.realisations)} realisations",
            float(memory.COPIES) * self._size * len(self.realisations),
        )

    def _targets(self, targets: Any) -> Any:
        """Return targets (n, C) as the loss needs them."""
        y = np.asarray(targets, np.float64)
        if self.loss == "cross-entropy":
            y = np.concatenate([1 + y, 1 - y], axis=1) / 2 if y.shape[1] == 1 else (1 + y) / 2
        return np.ascontiguousarray(y, PRECISIONS[self.precision])

    def __repr__(self) -> str:
        return (
            f"ImageNetwork(hidden={self.hidden}, tasks={self.tasks}, loss={self.loss!r}, "
            f"realisations={len(self.realisations)})"
        )

    def unseen(self, count: int) -> ImageNetwork:
        """Return the same network with `count` further realisations, its losses on test images.

        No realisation, and no image that losses are of, is one of this model's.
        """
        count = check.integer("realisations", count, at_least=1)
        other = copy.copy(self)
        first = max(self.realisations) + 1
        other.realisations = list(range(first, first + count))
        other._prepare(self.data.test)
        return other

    # Starts

    def fresh(self) -> NetworkStart:
        """Return a start with random weights: nothing learned yet."""
        return NetworkStart()

    def pretrain(
        self, steps: int = 10_000, *, lr: float = _RATE, task: int | None = None
    ) -> NetworkStart:
        """Return a start after SGD on old tasks, all of whose images are used.

        task: the one that is trained on, by default all old ones in equal shares. (A single task
        has no old ones: it is trained on itself.)
        """
        return NetworkStart(
            check.integer("steps", steps, at_least=1),
            check.number("lr", lr, at_least=0),
            None if task is None else check.task("task", task, self.tasks),
        )

    def pack(self, start: Any) -> Floats:
        """Return a start as a state [weights of every realisation, time]."""
        if isinstance(start, NetworkWeights):
            return self._from_weights(start)
        check.instance("start", start, NetworkStart, "`fresh()` or `pretrain(…)` of the model")
        if start not in self._starts:
            self._starts = {start: self._trained(start)}
        return self._starts[start].copy()

    def _from_weights(self, start: NetworkWeights) -> Floats:
        K, D, T, C = self.hidden, self.data.pixels.shape[1], self.tasks, self.outputs
        R = len(self.realisations)
        shapes = [(R, K, D), (R, K), (R, T, C, K), (R, T, C)]
        parts = [
            check.array(name, part, shape).reshape(R, -1)
            for name, part, shape in zip(NetworkWeights._fields, start, shapes, strict=False)
        ]
        time = check.number("time", float(start.time), at_least=0)
        return np.append(np.concatenate(parts, axis=1).ravel(), time)

    def _trained(self, start: NetworkStart) -> Floats:
        """Return the state after the training that leads to a start."""
        state = np.append(np.concatenate([self._initial(r) for r in self.realisations]), 0.0)
        if start.steps == 0:
            return state
        old = [start.task] if start.task is not None else list(range(max(1, self.tasks - 1)))
        shares = np.isin(np.arange(self.tasks), old) / len(old)
        knobs = self.panel.rows({"lr": start.lr, "feature_lr": 1.0, "head_lr": 1.0}, 1)
        pieces = Pieces.whole(shares[None], knobs, np.array([float(start.steps)]))
        states = self._roll_out(state, pieces, PRETRAINING)
        if len(states) < 2:
            which = self._words(self._train_each(state, pieces, PRETRAINING).diverged)
            raise IntegrationError(f"pretraining: {which} diverged: try a smaller `lr`")
        return np.append(states[-1, :-1], 0.0)

    def _initial(self, number: int) -> Floats:
        """Return the random weights of a realisation; biases are 0."""
        rng = rng_of(self.seed, number, WEIGHTS)
        features, biases, heads, head_biases = self.sizes
        return np.concatenate(
            [
                self.weight_std * rng.standard_normal(features),
                np.zeros(biases),
                self.head_std * rng.standard_normal(heads),
                np.zeros(head_biases),
            ]
        ).astype(PRECISIONS[self.precision])

    def unpack(self, states: Floats) -> NetworkWeights:
        """Return states (…, n) as the weights of all realisations."""
        lead, R = states.shape[:-1], len(self.realisations)
        K, D, T, C = self.hidden, self.data.pixels.shape[1], self.tasks, self.outputs
        rows = states[..., :-1].reshape(*lead, R, self._size)
        W, b, V, c = np.split(rows, np.cumsum(self.sizes)[:-1], axis=-1)
        return NetworkWeights(
            W.reshape(*lead, R, K, D), b, V.reshape(*lead, R, T, C, K),
            c.reshape(*lead, R, T, C), states[..., -1],
        )  # fmt: skip

    # The dynamics

    def roll_out(self, start: Floats, pieces: Pieces) -> Floats:
        """Return the states (pieces + 1, n) of SGD; see `Dynamics.roll_out`.

        A piece is the whole steps between its edges, which are rounded.
        """
        if pieces.knobs.shape[1:] != (self.panel.size,):
            raise ValueError(
                f"`pieces` expects knobs of shape (pieces, {self.panel.size}), in the columns of "
                f"{', '.join(self.panel.knobs)}, got shape {pieces.knobs.shape}"
            )
        return self._roll_out(start, pieces, TRAINING)

    def _roll_out(self, start: Floats, pieces: Pieces, use: int) -> Floats:
        from replan.networks._sgd import train

        times, steps = _edges(start, pieces)
        rates = self._rates(pieces)
        states = np.empty((len(times), start.size))
        states[:, -1], states[0] = times, start
        done = np.zeros(len(self.realisations), np.int64)
        at_once = self._at_once()

        def one(r: int, stopped: Callable[[], bool]) -> None:
            own, samples = self._slice(r), self._samples(r, use, steps[-1])
            weights = start[own].astype(PRECISIONS[self.precision])
            for i, (a, h) in enumerate(rates):
                for first in range(steps[i], steps[i + 1], at_once):
                    if stopped():
                        return
                    last = min(first + at_once, steps[i + 1])
                    train(samples, weights, self.hidden, a, h, first, last)
                if not np.all(np.isfinite(weights)):
                    return
                states[i + 1, own] = weights
                done[r] = i + 1

        self._each(one)
        return states[: done.min() + 1]

    def pull_back(self, states: Floats, cotangents: Floats, pieces: Pieces) -> Pulled:
        """Return the exact gradients of a roll-out; see `DifferentiableDynamics.pull_back`.

        Every piece is trained again and taped, in segments if it is long.
        """
        from replan.networks._sgd import pull, record, train

        _, steps = _edges(states[0], pieces)
        rates = self._rates(pieces)
        adjoints = np.zeros_like(states)
        adjoints[:, -1] = np.cumsum(cotangents[::-1, -1])[::-1]
        by_rates = np.zeros((len(self.realisations), len(rates), 2, self.tasks))
        real = PRECISIONS[self.precision]

        def one(r: int, stopped: Callable[[], bool]) -> None:
            own, samples = self._slice(r), self._samples(r, TRAINING, steps[-1])
            tape = self._make_tape(int(np.diff(steps).max(initial=0)))
            length = len(tape.units)
            adjoint = cotangents[-1, own].astype(real)
            adjoints[-1, own] = adjoint
            for i in range(len(rates) - 1, -1, -1):
                a, h = rates[i]
                cuts = [*range(steps[i], steps[i + 1], length), steps[i + 1]]
                segments = list(pairwise(cuts))
                weights = states[i, own].astype(real)
                begins = []
                for first, last in segments[:-1]:
                    if stopped():
                        return
                    begins.append(weights.copy())
                    train(samples, weights, self.hidden, a, h, first, last)
                for (first, last), begin in zip(
                    reversed(segments), reversed([*begins, weights]), strict=False
                ):
                    if stopped():
                        return
                    record(samples, begin, self.hidden, a, h, first, last, tape)
                    pull(samples, adjoint, self.hidden, a, h, first, last, tape, *by_rates[r, i])
                adjoint += cotangents[i, own].astype(real)
                adjoints[i, own] = adjoint

        self._each(one)
        return Pulled(adjoints, *self._by_controls(pieces, by_rates.sum(axis=0)))

    def _by_controls(self, pieces: Pieces, by_rates: Floats) -> tuple[Floats, Floats]:
        """Return the gradients by shares and knobs, given those (pieces, 2, T) by a and h.

        a = share × lr × feature_lr, h = share × lr × head_lr.
        """
        lr, features, heads = np.split(pieces.knobs, 3, axis=1)
        by_a, by_h = by_rates[:, 0], by_rates[:, 1]
        both = features * by_a + heads * by_h
        share = pieces.shares
        return lr * both, np.hstack([share * both, share * lr * by_a, share * lr * by_h])

    def losses(self, states: Floats) -> Floats:
        """Return the losses (…, T) at states (…, n): means over realisations and images."""
        return self.losses_of_each(states).mean(axis=-2)

    def losses_of_each(self, states: Floats) -> Floats:
        """Return the losses (…, R, T) of each realisation at states (…, n)."""
        from replan.networks._sgd import mean_loss

        rows = states.reshape(-1, states.shape[-1])
        found = np.empty((len(rows), len(self.realisations), self.tasks))

        def one(r: int, stopped: Callable[[], bool]) -> None:
            for i, row in enumerate(rows):
                if stopped():
                    return
                weights = row[self._slice(r)].astype(PRECISIONS[self.precision])
                for t in range(self.tasks):
                    found[i, r, t] = mean_loss(weights, *self._look(t))

        self._each(one)
        return found.reshape(*states.shape[:-1], *found.shape[1:])

    def pull_losses(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_l cotangents[…, l] × loss l."""
        from replan.networks._sgd import pull_mean_loss

        rows = states.reshape(-1, states.shape[-1])
        by_losses = cotangents.reshape(len(rows), -1) / len(self.realisations)
        found = np.zeros_like(rows)
        real = PRECISIONS[self.precision]

        def one(r: int, stopped: Callable[[], bool]) -> None:
            own = self._slice(r)
            for i in np.flatnonzero(by_losses.any(axis=1)):
                if stopped():
                    return
                weights, out = rows[i, own].astype(real), np.zeros(self._size, real)
                for t in range(self.tasks):
                    pull_mean_loss(by_losses[i, t], out, weights, *self._look(t))
                found[i, own] = out

        self._each(one)
        return found.reshape(states.shape)

    def diverging(self, state: Floats, piece: Pieces) -> str:
        """Return which realisations diverge over a piece."""
        return self._words(self.train_each(state, piece).diverged)

    def _words(self, diverged: NDArray[np.bool_]) -> str:
        numbers = [number for number, it in zip(self.realisations, diverged, strict=True) if it]
        return numbers_text(numbers, len(self.realisations)) if numbers else ""

    def train_each(self, start: Floats, pieces: Pieces) -> Outcomes:
        """Return how each realisation ends after some pieces.

        It has diverged where weights are not finite, or a loss is more than ten times that of
        outputs of 0 and that at the start. It is dead where no hidden unit is on for any
        of the images of some task.
        """
        return self._train_each(start, pieces, TRAINING)

    def _train_each(self, start: Floats, pieces: Pieces, use: int) -> Outcomes:
        from replan.networks._sgd import mean_loss, train

        _, steps = _edges(start, pieces)
        rates = self._rates(pieces)
        losses = np.full((len(self.realisations), self.tasks), np.inf)
        dead = np.zeros(len(losses), bool)

        def losses_of(weights: Any) -> Floats:
            return np.array([mean_loss(weights, *self._look(t)) for t in range(self.tasks)])

        def one(r: int, stopped: Callable[[], bool]) -> None:
            weights = start[self._slice(r)].astype(PRECISIONS[self.precision])
            samples = self._samples(r, use, steps[-1])
            most = _LOST * np.maximum(self._empty_losses, losses_of(weights))
            for i, (a, h) in enumerate(rates):
                if stopped():
                    return
                train(samples, weights, self.hidden, a, h, steps[i], steps[i + 1])
            found = losses_of(weights)
            if np.all(np.isfinite(weights)) and np.all(found <= most):
                losses[r] = found
                dead[r] = self._is_dead(weights)

        self._each(one)
        return Outcomes(losses, np.isinf(losses[:, 0]), dead)

    def _is_dead(self, weights: Any) -> bool:
        K, D = self.hidden, self.data.pixels.shape[1]
        features, biases = weights[: K * D].reshape(K, D), weights[K * D : K * D + K]
        shift = biases if self.biases else 0.0
        return not all(np.any(x @ features.T + shift > 0) for x, _ in self._looked_at)

    @property
    def _empty_losses(self) -> Floats:
        """The losses (T,) of outputs of 0."""
        if self.loss == "cross-entropy":
            return np.full(self.tasks, np.log(self.outputs))
        return np.array(
            [np.sum(y.astype(np.float64) ** 2) / 2 / len(y) for _, y in self._looked_at]
        )

    # Parts

    def _each(self, work: Callable[[int, Callable[[], bool]], None]) -> None:
        """Do work(r, stopped) for every realisation r; it ends early where stopped() is true."""
        stop = threading.Event()
        count = len(self.realisations)
        if min(self.threads, count) == 1:
            for r in range(count):
                work(r, stop.is_set)
            return
        with ThreadPoolExecutor(min(self.threads, count)) as pool:
            try:
                list(pool.map(lambda r: work(r, stop.is_set), range(count)))
            except BaseException:
                stop.set()
                raise

    def _slice(self, r: int) -> slice:
        return slice(r * self._size, (r + 1) * self._size)

    def _at_once(self) -> int:
        return max(1, _AT_ONCE // self._size)

    def _make_tape(self, longest: int) -> Any:
        """Return room for as many steps as are pulled back at once."""
        from replan.networks._sgd import Tape

        T, K, C = self.tasks, self.hidden, self.outputs
        most = max(1, min(_TAPE // (T * (K + C + C * K)), self._at_once()))
        steps = max(1, min(longest, most))
        real = PRECISIONS[self.precision]
        return Tape(*(np.empty((steps, T, *rest), real) for rest in ((K,), (C,), (C, K))))

    def _rates(self, pieces: Pieces) -> list[tuple[Any, Any]]:
        """Return the rates of features and heads (T,) of every piece."""
        real = PRECISIONS[self.precision]
        lr, features, heads = np.split(pieces.knobs, 3, axis=1)
        common = pieces.shares * lr
        return list(
            zip((common * features).astype(real), (common * heads).astype(real), strict=True)
        )

    def _samples(self, r: int, use: int, end: int) -> Any:
        """Return what a realisation is trained on up to a step."""
        from replan.networks._sgd import Samples

        return Samples(
            self.data.pixels, self._train_targets, self._stream(r, use, int(end)), self._mix,
            self._inputs, self.loss == "cross-entropy", self.biases,
        )  # fmt: skip

    def _stream(self, r: int, use: int, end: int) -> NDArray[np.int32]:
        """Return the images (T, 2, …) of at least `end` samples of every task."""
        found = self._streams.get((r, use))
        if found is None or found.shape[2] < end:
            length = 1 << max(0, end - 1).bit_length()
            distinct = [self.memory] * (self.tasks - 1) + [self.samples]
            found = np.stack(
                [
                    sample_order(
                        self.data, t, distinct[t] if use == TRAINING else None, length,
                        rng_of(self.seed, self.realisations[r], use, t),
                    )
                    for t in range(self.tasks)
                ]
            )  # fmt: skip
            if use == TRAINING:  # a start is made once
                self._streams[r, use] = found
        return found

    def _look(self, task: int) -> Any:
        """Return what the compiled losses need besides weights."""
        return (
            self.hidden, self.tasks, task, *self._looked_at[task], self.loss == "cross-entropy",
            self.biases,
        )  # fmt: skip

    # Files

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> ImageNetwork:
        """Return the model that the `[model]` section of a problem file describes."""
        from replan.networks import _file

        tasks, settings = _file.read_model(content)
        return cls(tasks, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as the `[model]` section of a problem file.

        Tasks that were not made by `image_tasks` are left out: files cannot name their data.
        """
        from replan.networks import _file

        count = len(self.realisations)
        which = self.realisations
        settings = {
            "hidden": self.hidden,
            "loss": self.loss,
            "biases": self.biases,
            "memory": self.memory,
            "samples": self.samples,
            "realisations": count if which == list(range(count)) else which,
            "seed": self.seed,
            "weight_std": self.weight_std,
            "head_std": self.head_std,
            "precision": self.precision,
        }
        given = {key: value for key, value in settings.items() if value is not None}
        return _file.task_keys(self.data) | given

    def start_from_dict(self, content: Mapping[str, Any]) -> NetworkStart | NetworkWeights:
        """Return the start that the `[start]` section describes: fresh, pretrained or weights."""
        from replan.networks import _file

        way, given = _file.read_start(content, self.tasks)
        if way == "weights":
            return self._decoded(given)
        return self.fresh() if way == "fresh" else self.pretrain(**given)

    def sketch_start(self, content: Mapping[str, Any]) -> NetworkStart | NetworkWeights:
        """Return the start that the `[start]` section describes, but without pretraining."""
        start = self.start_from_dict(content)
        return start if isinstance(start, NetworkWeights) else self.fresh()

    def start_to_dict(self, start: NetworkStart | NetworkWeights) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file.

        Weights are bytes of the model's precision, in base 64, the time behind them.
        """
        if isinstance(start, NetworkWeights):
            state = self._from_weights(start).astype(f"<f{self._real_bytes}")
            return {"weights": base64.b64encode(state.tobytes()).decode()}
        check.instance("start", start, NetworkStart, "`fresh()` or `pretrain(…)` of the model")
        if start.steps == 0:
            return {"fresh": {}}
        task = {} if start.task is None else {"task": start.task + 1}
        return {"pretrain": {"steps": start.steps, "lr": start.lr} | task}

    @property
    def _real_bytes(self) -> int:
        return np.dtype(PRECISIONS[self.precision]).itemsize

    def _decoded(self, text: str) -> NetworkWeights:
        expects = f"the {len(self.realisations) * self._size + 1} numbers of a state in base 64"
        try:
            state = np.frombuffer(base64.b64decode(text, validate=True), f"<f{self._real_bytes}")
        except ValueError:
            state = np.zeros(0)
        if state.size != len(self.realisations) * self._size + 1:
            raise ValueError(f"`start.weights` expects {expects}, got {check.show(text)}")
        return self.unpack(state.astype(np.float64))


def _edges(start: Floats, pieces: Pieces) -> tuple[Floats, list[int]]:
    """Return the times of the edges of pieces, and the steps of SGD that lie before each."""
    times = np.cumsum([start[-1], *pieces.lengths])
    return times, np.floor(times + 0.5 + _SAME).astype(np.int64).tolist()
