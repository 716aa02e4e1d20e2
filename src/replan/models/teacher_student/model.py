"""Online SGD of a two-layer student on several teachers, in the high-dimensional limit.

Notation: K hidden units, P teacher units, T tasks. Task t's label is y = Σ_p A_tp g(λ*_p) + ζ with
noise ζ of standard deviation σ, its prediction Σ_k V_tk g(λ_k), where g(z) is erf(z/√2), max(z, 0)
or z. The overlaps are Q = E[λλᵀ] (K×K), M = E[λλ*ᵀ] (K×P) and the teachers' S = E[λ*λ*ᵀ] (P×P).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats
from replan.core import library
from replan.core.kernels import Kernels, shipped
from replan.core.schedule import Schedule
from replan.errors import ArgumentError, IntegrationError
from replan.models.base import first_state
from replan.models.capabilities import Chain, Simulable
from replan.models.compiled_model import CompiledModel
from replan.models.integrator import MAX_STEPS, RTOL, integrate
from replan.models.knobs import LR
from replan.models.registry import register
from replan.models.teacher_student.example import EXAMPLE
from replan.models.teacher_student.overlaps import Overlaps, check_students, check_teachers

_LONGEST = 1000.0  # piece of a pretraining


@register
class TeacherStudent(CompiledModel, Simulable):
    """A two-layer student with K hidden units that learns T tasks set by P teacher units.

    **Main arguments**

    - `teacher_overlaps`: S (P×P), symmetric and positive semi-definite.
    - `hidden`: K.

    **Other arguments**

    - `teacher_heads`: A (T×P), or P numbers for a single task; by default each teacher unit sets a
      task (A = 1).
    - `noise`: standard deviation σ of the label noise. Losses are those of noise-free labels.
    - `train_heads`: whether SGD trains the student's heads; one bool, or one per task.
    - `head_lr`: the heads learn at `head_lr` × the learning rate, unless a protocol says otherwise.
    - `batch`, `momentum`: of SGD that steps along the mean gradient of `batch` fresh samples, with
      momentum β. Training time counts samples, and the learning rate acts as lr / (batch (1 − β)).
    - `activation`: of students and teachers: "erf", g(z) = erf(z/√2), "relu", max(z, 0), or
      "linear", z.

    Equations: paper, appendix A, with the index order of I₃ corrected; noise and teacher heads as
    in Goldt et al. 2019. Averages over ReLU units: core/relu.c.

    The knobs are `lr`, and `feature_lr` and `head_lr`, which multiply the rates of the features and
    of the heads.

    Examples:
        >>> model = replan.TeacherStudent.similar(0.3, tasks=2, hidden=2)  # overlap 0.3
        >>> model.teacher_overlaps
        array([[1. , 0.3],
               [0.3, 1. ]])
        >>> start = model.pretrain(task=0, duration=100.0, seed=1)
        >>> model.losses(start).round(3)  # task 1 is learnt
        array([0.  , 0.18])
    """

    kind = "teacher-student"
    engines = ("reduced", "full")
    example = EXAMPLE

    def __init__(
        self,
        teacher_overlaps: ArrayLike,
        *,
        hidden: int,
        teacher_heads: ArrayLike | None = None,
        noise: float = 0.0,
        train_heads: bool | Sequence[bool] = True,
        head_lr: float = 1.0,
        batch: int = 1,
        momentum: float = 0.0,
        activation: str = "erf",
    ) -> None:
        self.hidden = check.integer("hidden", hidden, at_least=1)
        self.teacher_overlaps = check_teachers(teacher_overlaps)
        self.teacher_units = P = len(self.teacher_overlaps)
        heads = np.eye(P) if teacher_heads is None else check.array("teacher_heads", teacher_heads)
        self.teacher_heads = check.array("teacher_heads", np.atleast_2d(heads), ("T", P))
        self.tasks = len(self.teacher_heads)
        if self.tasks == 0:
            raise ArgumentError("teacher_heads", "those of at least one task", "none")
        self.noise = check.number("noise", noise, at_least=0)
        self.train_heads = _flags("train_heads", train_heads, self.tasks)
        self.head_lr = check.number("head_lr", head_lr, at_least=0)
        self.batch = check.integer("batch", batch, at_least=1)
        self.momentum = check.number("momentum", momentum, at_least=0, at_most=0.999999)
        self.pace = 1 / (self.batch * (1 - self.momentum))  # what a learning rate of 1 acts as
        self.online = self.batch == 1 and self.momentum == 0  # a step for every sample
        self.activation = check.one_of("activation", activation, library.ACTIVATIONS)
        head_factor = replace(LR, name="head_lr", default=self.head_lr)
        self.knobs = LR, replace(LR, name="feature_lr"), head_factor
        self.least_dimension = self.hidden + P

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse changes: the compiled kernels would not know of them."""
        if name in self.__dict__:
            raise AttributeError(f"a model is not changed: make another with another `{name}`")
        super().__setattr__(name, value)

    @classmethod
    def similar(
        cls, similarity: float, tasks: int = 2, hidden: int | None = None, **settings: Any
    ) -> TeacherStudent:
        """Return the paper's model: unit teachers with the same overlap γ between any two.

        `hidden` defaults to the number of tasks; `settings` are `TeacherStudent`'s other arguments.
        """
        tasks = check.integer("tasks", tasks, at_least=1)
        least = -1 / max(1, tasks - 1)  # more than two vectors cannot all be opposite
        gamma = check.number("similarity", similarity, at_least=least, at_most=1)
        S = np.full((tasks, tasks), gamma)
        np.fill_diagonal(S, 1.0)
        return cls(S, hidden=tasks if hidden is None else hidden, **settings)

    @classmethod
    def stream(
        cls,
        tasks: int,
        similarity: float,
        *,
        teachers: str = "drift",
        seed: int = 0,
        blocks: int = 2,
        between: float = 0.0,
        hidden: int | None = None,
        **settings: Any,
    ) -> TeacherStudent:
        """Return a model of many unit teachers, with `similarity` γ from 0 to 1.

        `teachers`: "drift", with the overlap γ^|i−j| of teachers i and j; "random", drawn with
        `seed` so that their mean overlap is γ; or "blocks" of successive tasks, with overlap γ
        within each of the `blocks` and `between`, at most γ, elsewhere. `hidden` and `settings`:
        as in `similar`.
        """
        tasks = check.integer("tasks", tasks, at_least=1)
        gamma = check.number("similarity", similarity, at_least=0, at_most=1)
        numbers = np.arange(tasks)
        if check.one_of("teachers", teachers, ("drift", "random", "blocks")) == "drift":
            S = gamma ** np.abs(np.subtract.outer(numbers, numbers))
        elif teachers == "random":
            S = _random_overlaps(tasks, gamma, check.integer("seed", seed))
        else:
            block = numbers * check.integer("blocks", blocks, at_least=1, at_most=tasks) // tasks
            between = check.number("between", between, at_least=0, at_most=gamma)
            S = np.where(block[:, None] == block, gamma, between)
            np.fill_diagonal(S, 1.0)
        return cls(S, hidden=tasks if hidden is None else hidden, **settings)

    def __repr__(self) -> str:
        activation = "" if self.activation == "erf" else f", activation={self.activation!r}"
        return (
            f"TeacherStudent(hidden={self.hidden}, teacher_units={self.teacher_units}, "
            f"tasks={self.tasks}{activation})"
        )

    @cached_property
    def teacher_frame(self) -> Floats:
        """Coordinates (P, r) of the teachers in the space they span, S = frame frameᵀ."""
        values, vectors = np.linalg.eigh(self.teacher_overlaps)
        kept = values > 1e-12 * values[-1]
        return np.ascontiguousarray(vectors[:, kept] * np.sqrt(values[kept]))

    # Starts

    def fresh(
        self,
        seed: int = 0,
        *,
        dimension: int = 20_000,
        weight_variance: float = 1e-3,
        head_variance: float = 1e-2,
        heads: ArrayLike | None = None,
    ) -> Overlaps:
        """Return the overlaps of random weights: nothing learned yet.

        First-layer weights are N(0, `weight_variance`) in `dimension` input dimensions. Heads are
        N(0, `head_variance`) where they are trained and 1 where they are fixed, or `heads` (T×K).
        The overlaps are drawn from their exact law at that dimension (Bartlett's decomposition
        for Q) without making the weights.
        """
        K, P, T = self.hidden, self.teacher_units, self.tasks
        N = check.integer("dimension", dimension, at_least=K + P)
        scale = np.sqrt(check.number("weight_variance", weight_variance, at_least=0) / N)
        spread = np.sqrt(check.number("head_variance", head_variance, at_least=0))
        rng = np.random.default_rng(check.integer("seed", seed))
        V = np.where(np.array(self.train_heads)[:, None], spread * rng.standard_normal((T, K)), 1.0)
        if heads is not None:
            V = check.array("heads", heads, (T, K))
        frame = self.teacher_frame
        along = rng.standard_normal((K, frame.shape[1]))
        freedom = N - frame.shape[1] - np.arange(K)
        rest = np.tril(rng.standard_normal((K, K)), -1) + np.diag(np.sqrt(rng.chisquare(freedom)))
        Q = scale**2 * (along @ along.T + rest @ rest.T)
        return Overlaps(Q=(Q + Q.T) / 2, M=scale * along @ frame.T, V=V)

    def pretrain(
        self,
        task: int = 0,
        duration: float = 1000.0,
        *,
        lr: float = 1.0,
        seed: int | None = None,
        start: Overlaps | None = None,
        rtol: float = RTOL,
        max_steps: int = MAX_STEPS,
    ) -> Overlaps:
        """Return the overlaps after training on one task alone.

        Training begins from `start` or from `fresh(seed)`; the seed is 0 if neither is given.
        `rtol` and `max_steps` are those of `evaluate`.
        """
        if seed is not None and start is not None:
            raise ArgumentError("seed", "left out where `start` is given", "both")
        task = check.task("task", task, self.tasks)
        duration = check.number("duration", duration, above=0, at_most=1e9)
        knobs = self._knobs_at(check.number("lr", lr, at_least=0))
        state = first_state(self, self.fresh(seed or 0) if start is None else start)
        lengths = np.diff(_edges(duration))
        schedule = Schedule.single_steps(
            np.tile(np.eye(self.tasks)[task], (len(lengths), 1)),
            np.tile(knobs, (len(lengths), 1)),
            lengths,
        )
        run = integrate(self, state, schedule, rtol=rtol, max_steps=max_steps)
        if run.status != "ok":
            raise IntegrationError(f"pretraining: {run.advice}")
        return self.unpack(run.states[-1])

    def from_weights(
        self, weights: ArrayLike, heads: ArrayLike, teacher_weights: ArrayLike
    ) -> Overlaps:
        """Return the overlaps of given weights, w·w/N.

        weights: (K, N). heads: (T, K). teacher_weights: (P, N); their overlaps must be the model's.
        """
        w = check.array("weights", weights, (self.hidden, "N"))
        N = w.shape[1]
        B = check.array("teacher_weights", teacher_weights, (self.teacher_units, N))
        gap = float(np.max(np.abs(B @ B.T / N - self.teacher_overlaps)))
        if gap > 1e-6 * max(1.0, float(np.max(np.abs(self.teacher_overlaps)))):  # float32's
            raise ArgumentError(
                "teacher_weights",
                "teachers with the model's `teacher_overlaps` (wᵀw/N)",
                f"overlaps that differ by {gap:.3g}",
            )
        V = check.array("heads", heads, (self.tasks, self.hidden))
        return Overlaps(Q=w @ w.T / N, M=w @ B.T / N, V=V)

    # States and rates

    def pack(self, start: Overlaps) -> Floats:
        """Return checked overlaps as a state [Q, M, V] of length K² + KP + TK."""
        check.instance("start", start, Overlaps, "Overlaps(Q=…, M=…, V=…)")
        Q, M = check_students(start.Q, start.M, self.teacher_overlaps, self.hidden)
        V = check.array("V", start.V, (self.tasks, self.hidden))
        return np.concatenate([Q.ravel(), M.ravel(), V.ravel()])

    def unpack(self, states: Floats) -> Overlaps:
        """Return states (…, n) as overlaps with the same leading axes."""
        K, P, T = self.hidden, self.teacher_units, self.tasks
        if not isinstance(states, np.ndarray) or states.shape[-1:] != (self.state_size,):
            raise ArgumentError("states", f"an array (…, {self.state_size})", check.show(states))
        Q, M, V = np.split(states, [K * K, K * K + K * P], axis=-1)
        lead = states.shape[:-1]
        return Overlaps(Q.reshape(*lead, K, K), M.reshape(*lead, K, P), V.reshape(*lead, T, K))

    @cached_property
    def state_size(self) -> int:
        """K² + KP + TK."""
        return self.hidden * (self.hidden + self.teacher_units + self.tasks)

    def kernels(self) -> Kernels:
        """Return the compiled functions for the activation; see `Kernels`."""
        return shipped(self.activation, self.hidden, self.teacher_units, self.tasks)

    @cached_property
    def parameters(self) -> Floats:
        """What the kernels know about this model: [K, P, T, σ, pace, trained heads, A, S]."""
        S, A = self.teacher_overlaps, self.teacher_heads
        numbers = [self.hidden, self.teacher_units, self.tasks, self.noise, self.pace]
        known = np.concatenate([numbers, self.train_heads, A.ravel(), S.ravel()], dtype=np.float64)
        known.flags.writeable = False
        return known

    @cached_property
    def _loss_count(self) -> int:
        return self.tasks  # as many as the kernels write, whatever a subclass calls them

    def _knobs_at(self, lr: float) -> Floats:
        """Return a row of knobs (C,) with a learning rate, and the others at their defaults."""
        values = {knob.name: knob.default for knob in self.knobs} | {"lr": lr}
        return self.layout.rows(values, 1)[0]

    def rate(self, overlaps: Overlaps, task: int, lr: float = 1.0) -> Overlaps:
        """Return d(overlaps)/dα while training on `task` at learning rate `lr`."""
        check.instance("overlaps", overlaps, Overlaps, "Overlaps(Q=…, M=…, V=…)")
        state = self.pack(overlaps)
        shares = np.eye(self.tasks)[check.task("task", task, self.tasks)]
        knobs = self._knobs_at(check.number("lr", lr, at_least=0))
        out = np.empty_like(state)
        self._call("rate", library.RATE, 1, state, shares, knobs, out)
        return self.unpack(out)

    def cosines(self, overlaps: Overlaps) -> Floats:
        """Return |M_kp| / √(Q_kk S_pp) (…, K, P), how well hidden unit k aligns with teacher p.

        A unit or teacher of length zero aligns with nothing: 0.
        """
        check.instance("overlaps", overlaps, Overlaps, "Overlaps(Q=…, M=…, V=…)")
        squares = np.diagonal(overlaps.Q, axis1=-2, axis2=-1)[..., :, None]
        lengths = np.sqrt(squares * np.diagonal(self.teacher_overlaps))
        cosines = np.zeros_like(overlaps.M)
        np.divide(np.abs(overlaps.M), lengths, out=cosines, where=lengths > 0)
        return np.minimum(cosines, 1.0)

    # Simulation at finite size

    def choose_engine(self, engine: str | None) -> str:
        """Return an engine if it can simulate this model; batches and momentum need "full"."""
        chosen = super().choose_engine("full" if engine is None and not self.online else engine)
        if chosen == "reduced" and not self.online:
            raise ArgumentError(
                "engine",
                "'full' for a model with batches or momentum",
                f"'reduced' and batch {self.batch}, momentum {self.momentum:g}",
            )
        return chosen

    def chain_size(self, engine: str, dimension: int) -> int:
        """Return the numbers in the vectors that the engine "full" holds."""
        vectors = self.hidden * (1 if self.online else 2) + self.teacher_units
        return dimension * vectors if engine == "full" else 0

    def begin_chain(self, engine: str, state: Floats, dimension: int) -> Chain:
        """Return a run of SGD at its start, by one of the `engines`."""
        from replan.models.teacher_student.sgd import Full, Reduced

        chain = Reduced if engine == "reduced" else Full
        return chain(self, self.unpack(state), dimension)

    # Files

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> TeacherStudent:
        """Return the model that the `[model]` section of a problem file describes."""
        from replan.models.teacher_student.file import read_model

        settings = read_model(content)
        if "teachers" in settings:
            return cls.stream(**settings)
        return cls.similar(**settings) if "similarity" in settings else cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as the `[model]` section of a problem file."""
        return {
            "hidden": self.hidden,
            "teacher_overlaps": self.teacher_overlaps.tolist(),
            "teacher_heads": self.teacher_heads.tolist(),
            "noise": self.noise,
            "train_heads": list(self.train_heads),
            "head_lr": self.head_lr,
            "batch": self.batch,
            "momentum": self.momentum,
            "activation": self.activation,
        }

    def start_from_dict(self, content: Mapping[str, Any]) -> Overlaps:
        """Return the start that the `[start]` section describes: overlaps, fresh or pretrained."""
        from replan.models.teacher_student.file import read_start

        return read_start(self, content)

    def start_to_dict(self, start: Overlaps) -> dict[str, Any]:
        """Return the overlaps as the `[start]` section of a problem file."""
        return {"Q": start.Q.tolist(), "M": start.M.tolist(), "V": start.V.tolist()}


def _random_overlaps(tasks: int, gamma: float, seed: int) -> Floats:
    """Return overlaps (T, T) of random teachers whose mean is γ: √a c + √(1−a) u_i.

    The directions u_i, orthogonal to c, are drawn in T dimensions around their mean, which makes
    their mean overlap negative; a makes up for that.
    """
    if tasks == 1:
        return np.ones((1, 1))
    directions = np.random.default_rng(seed).standard_normal((tasks, tasks))
    directions -= directions.mean(axis=0)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    overlaps = directions @ directions.T
    np.fill_diagonal(overlaps, 1.0)
    mean = (overlaps.sum() - tasks) / (tasks * (tasks - 1))
    common = max(0.0, (gamma - mean) / (1 - mean))
    return np.asarray(common + (1 - common) * overlaps)


def _edges(duration: float) -> Floats:
    """Return times from 0 to `duration`, further and further apart: learning slows down."""
    edges = [0.0, 1.0]
    while edges[-1] < duration:
        edges.append(edges[-1] + min(0.25 * edges[-1], _LONGEST))
    return np.append([edge for edge in edges if edge < duration], duration)


def _flags(name: str, value: bool | Sequence[bool], tasks: int) -> tuple[bool, ...]:
    single = isinstance(value, bool | np.bool_)
    flags = [value] * tasks if single else check.items(name, value, "bools")
    if len(flags) != tasks or not all(isinstance(flag, bool | np.bool_) for flag in flags):
        raise ArgumentError(
            name, f"true, false or one of these for each of {tasks} tasks", check.show(value)
        )
    return tuple(bool(flag) for flag in flags)
