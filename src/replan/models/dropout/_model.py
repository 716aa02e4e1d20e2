"""Dropout: a student whose hidden units are kept with a probability that may change over time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats
from replan.problem.sections import from_keys
from replan.models.compiled_model import CompiledModel
from replan.models._dials import Dial
from replan.core.kernels import Kernels
from replan.models.knobs import LR, Knob
from replan.models.registry import register
from replan.models.sampled import Sampled

EXAMPLE = """\
[model]
kind = "dropout"
hidden = 2                        # hidden units of the student; their heads are 1 and stay so
teacher_overlaps = [[1.0]]        # of the teacher units
noise = 0.2                       # standard deviation of the label noise
# teacher_heads = [1.0]           # one for each teacher unit
# heads = [1.0, 1.0]              # of the student
# rescale = 0.7                   # of the heads at test time; by default the best factor up to 10

[start]                           # by default nothing is learned: all overlaps are 0
# Q = [[0.0, 0.0], [0.0, 0.0]]    # overlaps of the hidden units
# M = [[0.0], [0.0]]              # and with the teacher units

[training]
duration = 5.0
steps = 50                        # steps of the protocol
lr = 1.0
keep = 0.7                        # the probability to keep a hidden unit, unless controlled

[control]
keep = { min = 0.0, max = 1.0 }
lr = false                        # or { min = 0.0, max = 5.0 }

# [limits]
# mean = { keep = 0.5 }           # on average over the training, exactly
"""


@register
class Dropout(CompiledModel, Sampled):
    """A two-layer student with fixed heads that learns from one teacher, with dropout.

    In training, every hidden unit is kept with probability `keep`, a knob. At test time all are
    there, with their heads multiplied by a factor, by default the best one.

    - `teacher_overlaps`: S (P×P), symmetric and positive semi-definite.
    - `hidden`: K.
    - `teacher_heads`: (P,), by default 1. `heads`: (K,) the student's, by default 1.
    - `noise`: standard deviation of the label noise. The loss is that of noise-free labels.
    - `rescale`: the factor at test time, where it is not to be chosen.

    A start is the pair (Q, M) of overlaps, (K, K) and (K, P). (Mignacco & Mori 2025)

    Examples:
        >>> model = replan.models.Dropout([[1.0]], hidden=2, noise=0.2)
        >>> start = (np.zeros((2, 2)), np.zeros((2, 1)))  # overlaps Q and M
        >>> problem = replan.Problem(model, start, duration=5.0, knobs={"keep": 0.7})
        >>> f"{replan.evaluate(problem, replan.strategies.one_task(problem)).loss:.4f}"
        '0.0254'
    """

    kind = "dropout"
    knobs = (LR, Knob("keep", 0.0, 1.0, 1.0))  # and the probability to keep a unit
    example = EXAMPLE
    dials = (
        Dial("model.hidden", "hidden units", 1, 6, 1),
        Dial("model.noise", "label noise", 0.0, 1.0, default=0.0),
    )
    tasks = 1

    def __init__(
        self,
        teacher_overlaps: ArrayLike,
        *,
        hidden: int,
        teacher_heads: ArrayLike | None = None,
        heads: ArrayLike | None = None,
        noise: float = 0.0,
        rescale: float | None = None,
    ) -> None:
        S = check.array("teacher_overlaps", teacher_overlaps, ("P", "P"))
        if S.shape[0] != S.shape[1] or S.shape[0] == 0:
            raise ValueError(f"`teacher_overlaps` expects a square matrix, got shape {S.shape}")
        S = check.symmetric("teacher_overlaps", S)
        check.positive_semidefinite("teacher_overlaps", S)
        self.teacher_overlaps = S
        self.hidden = check.integer("hidden", hidden, at_least=1, at_most=200)
        ones = np.ones(len(S)), np.ones(self.hidden)
        given = ones[0] if teacher_heads is None else teacher_heads
        self.teacher_heads = check.array("teacher_heads", given, (len(S),))
        given = ones[1] if heads is None else heads
        self.heads = check.array("heads", given, (self.hidden,))
        self.noise = check.number("noise", noise, at_least=0)
        self.rescale = None if rescale is None else check.number("rescale", rescale, at_least=0)

    def __repr__(self) -> str:
        return f"Dropout(hidden={self.hidden}, teacher_units={len(self.teacher_overlaps)})"

    @property
    def end_knobs(self) -> tuple[Knob, ...]:  # type: ignore[override]
        """The factor of the heads at test time, unless it is given."""
        return (Knob("rescale", 0.0, 10.0, 1.0),) if self.rescale is None else ()

    @property
    def task_names(self) -> tuple[str, ...]:
        """The teacher is the only task."""
        return ("teacher",)

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Half the mean squared error at test time."""
        return ("error",)

    # The dynamics

    def pack(self, start: Any) -> Floats:
        """Return a pair (Q, M), checked, as a state [Q, M]."""
        pair = start if isinstance(start, tuple | list) and len(start) == 2 else None
        if pair is None:
            raise ValueError(f"`start` expects a pair (Q, M), got {check.show(start)}")
        K, P = self.hidden, len(self.teacher_overlaps)
        Q = check.symmetric("Q", check.array("Q", pair[0], (K, K)))
        M = check.array("M", pair[1], (K, P))
        joint = np.block([[Q, M], [M.T, self.teacher_overlaps]])
        check.positive_semidefinite("Q, M and teacher_overlaps [[Q, M], [Mᵀ, S]]", joint)
        return np.concatenate([Q.ravel(), M.ravel()])

    def unpack(self, states: Floats) -> tuple[Floats, Floats]:
        """Return states (…, n) as Q (…, K, K) and M (…, K, P)."""
        K, lead = self.hidden, states.shape[:-1]
        Q, M = np.split(states, [K * K], axis=-1)
        return Q.reshape(*lead, K, K), M.reshape(*lead, K, -1)

    @classmethod
    def kernels(cls) -> Kernels:
        """Return the compiled functions; see `Kernels`."""
        from replan.models.dropout import _kernels as k

        return Kernels(
            k.Parameters, k.rate, k.losses, k.rate_vjp, k.losses_vjp, k.make_work,
            k.make_vjp_work,
        )  # fmt: skip

    @cached_property
    def parameters(self) -> Any:
        """What the kernels know about this model."""
        from replan.models.dropout._kernels import Parameters

        weights = np.concatenate([self.heads, -self.teacher_heads])
        rescale = 1.0 if self.rescale is None else self.rescale
        return Parameters(self.teacher_overlaps, weights, self.noise, rescale, self.hidden)

    # Simulation at finite size

    def make_weights(self, state: Floats, dimension: int, rng: np.random.Generator) -> Any:
        """Return weights (K, N) and teachers (P, N) with these overlaps, along the first axes."""
        Q, M = self.unpack(state)
        joint = np.block([[self.teacher_overlaps, M.T], [M, Q]])
        values, vectors = np.linalg.eigh(joint)
        rows = np.zeros((len(joint), dimension))
        rows[:, : len(joint)] = vectors * np.sqrt(values.clip(min=0.0))
        rows *= sqrt(dimension)
        P = len(self.teacher_overlaps)
        return rows[P:], rows[:P]

    def sample(self, weights: Any, task: int, knobs: Floats, rng: np.random.Generator) -> Any:
        """Draw an input (N,), label noise and the units that are kept (K,)."""
        x = rng.standard_normal(weights[0].shape[1])
        return x, self.noise * rng.standard_normal(), rng.random(self.hidden) < knobs[1]

    def update(self, weights: Any, sample: Any, task: int, knobs: Floats) -> Any:
        """Make a step of SGD on the squared error of the units that are kept."""
        from scipy.special import erf

        (student, teachers), (x, noise, kept) = weights, sample
        N = x.size
        fields = student @ x / sqrt(N)
        label = self.teacher_heads @ erf(teachers @ x / sqrt(2 * N)) + noise
        active = kept * self.heads
        error = active @ erf(fields / sqrt(2)) - label
        slopes = sqrt(2 / np.pi) * np.exp(-(fields**2) / 2)
        student -= (knobs[0] / sqrt(N) * error * active * slopes)[:, None] * x
        return weights

    def measure(self, weights: Any) -> Floats:
        """Return the overlaps of weights as a state."""
        student, teachers = weights
        N = student.shape[1]
        return np.concatenate(
            [(student @ student.T / N).ravel(), (student @ teachers.T / N).ravel()]
        )

    @property
    def least_dimension(self) -> int:
        """K + P: room for all units."""
        return self.hidden + len(self.teacher_overlaps)

    def chain_size(self, engine: str, dimension: int) -> int:
        """Return the number of weights."""
        return dimension * self.least_dimension

    # Files

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Dropout:
        """Return the model that the `[model]` section of a problem file describes."""
        return from_keys(cls, content, "model")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as the `[model]` section of a problem file."""
        content = {
            "hidden": self.hidden,
            "teacher_overlaps": self.teacher_overlaps.tolist(),
            "teacher_heads": self.teacher_heads.tolist(),
            "heads": self.heads.tolist(),
            "noise": self.noise,
        }
        return content if self.rescale is None else content | {"rescale": self.rescale}

    def start_from_dict(self, content: Mapping[str, Any]) -> Any:
        """Return the start that the `[start]` section describes: Q and M, by default 0."""
        K, P = self.hidden, len(self.teacher_overlaps)

        def start(Q: Any = None, M: Any = None) -> Any:
            return np.zeros((K, K)) if Q is None else Q, np.zeros((K, P)) if M is None else M

        return from_keys(start, content, "start")

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file."""
        Q, M = self.unpack(self.pack(start))
        return {"Q": Q.tolist(), "M": M.tolist()}
