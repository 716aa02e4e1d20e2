"""ImageNetwork: the training of a two-layer network on images, as a differentiable dynamics."""

from __future__ import annotations

import base64
import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan._common import check
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
)
from replan.networks._tasks import ImageTasks
from replan.networks._trainer import CROSS_ENTROPY, PRECISIONS, Course, Tapes, Trainer

LOSSES = ("squared-error", CROSS_ENTROPY)

_RATE = 0.01  # the default learning rate
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

    Examples:
        >>> replan.networks.NetworkStart(steps=2000, lr=0.1, task=0)  # what `pretrain` returns
        NetworkStart(steps=2000, lr=0.1, task=0)
    """

    steps: int = 0
    lr: float = _RATE
    task: int | None = None


class NetworkWeights(NamedTuple):
    """The weights of R realisations; leading axes, such as time, are allowed.

    features: (…, R, K, D). biases: (…, R, K). heads: (…, R, T, C, K). head_biases: (…, R, T, C).
    time: (…), in steps of SGD.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.mixed_tasks(images, similarity=0.5, test_samples=20)
        >>> model = replan.networks.ImageNetwork(tasks, hidden=2, realisations=3)
        >>> model.unpack(model.pack(model.fresh())).features.shape  # realisations, hidden, pixels
        (3, 2, 64)
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

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> pixels = rng.integers(0, 256, (200, 8, 8), dtype=np.uint8)  # noise in place of pictures
        >>> labels = np.arange(200, dtype=np.uint8) % 10
        >>> images = replan.networks.Images(pixels, labels, pixels, labels)
        >>> tasks = replan.networks.mixed_tasks(images, similarity=0.5, test_samples=20)
        >>> model = replan.networks.ImageNetwork(tasks, hidden=2, realisations=2)
        >>> problem = replan.Problem(model, model.fresh(), duration=20, steps=2, lr=0.1)
        >>> replan.evaluate(problem, replan.strategies.interleaved(problem)).final_losses.shape
        (2,)
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
        """Make what trains; losses are of the images `looked_at`."""
        self._trainer = Trainer(
            self.data, looked_at, hidden=self.hidden, loss=self.loss, biases=self.biases,
            distinct=[self.memory] * (self.tasks - 1) + [self.samples],
            realisations=self.realisations, seed=self.seed, precision=self.precision,
            threads=self.threads,
        )  # fmt: skip
        self.outputs = self._trainer.outputs
        self._starts: dict[NetworkStart, Floats] = {}

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
        course = self._course(state, pieces)
        states = self._trainer.train(state, course, PRETRAINING)
        if len(states) < 2:
            losses, _ = self._trainer.ends(state, course, PRETRAINING)
            raise IntegrationError(
                f"pretraining: {self._words(np.isinf(losses[:, 0]))} diverged: try a smaller `lr`"
            )
        return np.append(states[-1, :-1], 0.0)

    def _initial(self, number: int) -> Floats:
        """Return the random weights of a realisation; biases are 0."""
        rng = rng_of(self.seed, number, WEIGHTS)
        features, biases, heads, head_biases = self._trainer.sizes
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
        rows = states[..., :-1].reshape(*lead, R, -1)
        W, b, V, c = np.split(rows, np.cumsum(self._trainer.sizes)[:-1], axis=-1)
        return NetworkWeights(
            W.reshape(*lead, R, K, D), b, V.reshape(*lead, R, T, C, K),
            c.reshape(*lead, R, T, C), states[..., -1],
        )  # fmt: skip

    # The dynamics

    def roll_out(self, start: Floats, pieces: Pieces) -> Floats:
        """Return the states (pieces + 1, n) of SGD; see `Dynamics.roll_out`.

        A piece is the whole steps between its edges, which are rounded.
        """
        return self._roll_out(start, pieces, None)

    def record(self, start: Floats, pieces: Pieces) -> tuple[Floats, tuple[Tapes, ...]]:
        """Roll out and keep what `pull_back` needs of all steps, unless that is too much."""
        tapes = self._trainer.tapes(self._course(start, pieces))
        return self._roll_out(start, pieces, tapes), (() if tapes is None else (tapes,))

    def _roll_out(self, start: Floats, pieces: Pieces, tapes: Tapes | None) -> Floats:
        states = self._trainer.train(start, self._course(start, pieces), TRAINING, tapes)
        states[:, -1] = _times(start, pieces)[: len(states)]
        return states

    def pull_back(
        self, states: Floats, cotangents: Floats, pieces: Pieces, *record: Tapes
    ) -> Pulled:
        """Return the exact gradients of a roll-out; see `DifferentiableDynamics.pull_back`.

        With a = share × lr × feature_lr and h = share × lr × head_lr, the rates of SGD.
        """
        adjoints, by_a, by_h = self._trainer.pull(
            states, cotangents, self._course(states[0], pieces), *record
        )
        adjoints[:, -1] = np.cumsum(cotangents[::-1, -1])[::-1]
        lr, features, heads = np.split(pieces.knobs, 3, axis=1)
        both = features * by_a + heads * by_h
        share = pieces.shares
        by_knobs = np.hstack([share * both, share * lr * by_a, share * lr * by_h])
        return Pulled(adjoints, lr * both, by_knobs)

    def _course(self, start: Floats, pieces: Pieces) -> Course:
        """Return the rates and the steps of SGD of every piece."""
        if pieces.knobs.shape[1:] != (self.panel.size,):
            raise ValueError(
                f"`pieces` expects knobs of shape (pieces, {self.panel.size}), in the columns of "
                f"{', '.join(self.panel.knobs)}, got shape {pieces.knobs.shape}"
            )
        lr, features, heads = np.split(pieces.knobs, 3, axis=1)
        common = pieces.shares * lr
        steps = np.floor(_times(start, pieces) + 0.5 + _SAME).astype(np.int64)
        return Course(common * features, common * heads, steps)

    def losses(self, states: Floats) -> Floats:
        """Return the losses (…, T) at states (…, n): means over realisations and images."""
        return self.losses_of_each(states).mean(axis=-2)

    def losses_of_each(self, states: Floats) -> Floats:
        """Return the losses (…, R, T) of each realisation at states (…, n)."""
        found = self._trainer.losses(states.reshape(-1, states.shape[-1]))
        return found.reshape(*states.shape[:-1], *found.shape[1:])

    def pull_losses(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_l cotangents[…, l] × loss l."""
        rows = states.reshape(-1, states.shape[-1])
        by_losses = cotangents.reshape(len(rows), -1) / len(self.realisations)
        return self._trainer.pull_losses(rows, by_losses).reshape(states.shape)

    def diverging(self, state: Floats, piece: Pieces) -> str:
        """Return which realisations diverge over a piece."""
        return self._words(self.train_each(state, piece).diverged)

    def _words(self, diverged: NDArray[np.bool_]) -> str:
        numbers = [number for number, it in zip(self.realisations, diverged, strict=True) if it]
        return numbers_text(numbers, len(self.realisations)) if numbers else ""

    def train_each(self, start: Floats, pieces: Pieces) -> Outcomes:
        """Return how each realisation ends after some pieces; see `Trainer.ends`."""
        losses, dead = self._trainer.ends(start, self._course(start, pieces), TRAINING)
        return Outcomes(losses, np.isinf(losses[:, 0]), dead)

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
        numbers = len(self.realisations) * self._trainer.size + 1
        try:
            state = np.frombuffer(base64.b64decode(text, validate=True), f"<f{self._real_bytes}")
        except ValueError:
            state = np.zeros(0)
        if state.size != numbers:
            raise ValueError(
                f"`start.weights` expects the {numbers} numbers of a state in base 64, "
                f"got {check.show(text)}"
            )
        return self.unpack(state.astype(np.float64))


def _times(start: Floats, pieces: Pieces) -> Floats:
    """Return the times of the edges of pieces."""
    return np.cumsum([start[-1], *pieces.lengths])
