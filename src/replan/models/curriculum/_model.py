"""Curriculum: a student that learns from easy and hard inputs, and which of them when."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats
from replan.problem.sections import from_keys
from replan.models.compiled_model import CompiledModel
from replan.models._dials import Dial
from replan.core.kernels import Kernels
from replan.models.registry import register
from replan.models.sampled import Sampled

EXAMPLE = """\
[model]
kind = "curriculum"
difficulties = [0.0, 2.0]         # variance of the irrelevant inputs: a task each, easy and hard
teacher = 2.0                     # squared norm of the teacher

[start]
q1 = 1.0                          # squared norm of the weights on relevant inputs
q2 = 1.0                          # and on irrelevant ones
m = 0.0                           # overlap with the teacher

[training]
duration = 12.0
steps = 240                       # steps of the protocol
lr = 3.0

[control]
tasks = true                      # which difficulty when
lr = false                        # or { min = 0.0, max = 6.0 }

[objective]
weights = [0.5, 0.5]              # of the errors on easy and on hard inputs

[limits]                          # an exact half of each difficulty
min_share = [0.5, 0.5]
max_share = [0.5, 0.5]
"""


@register
class Curriculum(CompiledModel, Sampled):
    """A student erf(λ/2) of relevant and irrelevant inputs that learns the sign of a teacher's.

    The teacher sees the relevant inputs only. A task is a difficulty: the variance of the
    irrelevant inputs. Its loss is the probability of a wrong sign.

    - `difficulties`: (T,) the variances Δ.
    - `teacher`: the teacher's squared norm, per relevant input.

    A start is (q₁, q₂, m). There are N relevant and N irrelevant inputs; time counts samples over
    N. (Mignacco & Mori 2025)

    Examples:
        >>> model = replan.models.Curriculum([0.0, 3.0])  # easy, then hard inputs
        >>> problem = replan.Problem(model, (1.0, 1.0, 0.1), duration=5.0, lr=3.0, steps=10)
        >>> run = replan.evaluate(problem, replan.strategies.sequential(problem))
        >>> run.final_losses.round(3)
        array([0.179, 0.305])
    """

    kind = "curriculum"
    example = EXAMPLE
    dials = (
        Dial("model.difficulties.0", "difficulty of task 1", 0.0, 5.0),
        Dial("model.difficulties.1", "difficulty of task 2", 0.0, 5.0),
        Dial("model.teacher", "squared norm of the teacher", 0.1, 5.0, default=2.0),
        Dial("start.q1", "weights on relevant inputs q₁", 0.0, 5.0, default=1.0),
        Dial("start.q2", "weights on irrelevant inputs q₂", 0.0, 5.0, default=1.0),
        Dial("start.m", "overlap with the teacher m", -2.0, 2.0, default=0.0),
    )

    def __init__(self, difficulties: ArrayLike = (0.0, 2.0), *, teacher: float = 2.0) -> None:
        self.difficulties = check.array("difficulties", difficulties, ("T",))
        if self.difficulties.size == 0 or self.difficulties.min() < 0:
            raise ValueError(
                "`difficulties` expects at least one variance, of at least 0, got "
                f"{check.show(self.difficulties.tolist())}"
            )
        self.tasks = self.difficulties.size
        if len(set(self.task_names)) < self.tasks:
            raise ValueError(
                "`difficulties` expects different variances, got "
                f"{check.show(self.difficulties.tolist())}"
            )
        self.teacher = check.number("teacher", teacher, above=0)

    def __repr__(self) -> str:
        return f"Curriculum({self.difficulties.tolist()}, teacher={self.teacher:g})"

    @property
    def task_names(self) -> tuple[str, ...]:
        """Easy and hard where there are two difficulties; else their numbers."""
        if self.tasks == 2 and self.difficulties[0] < self.difficulties[1]:
            return ("easy", "hard")
        return tuple(f"difficulty {x:g}" for x in self.difficulties)

    def pack(self, start: Any) -> Floats:
        """Return a start (q₁, q₂, m), checked, as a state."""
        state = check.array("start", start, (3,))
        q1, q2, m = state.tolist()
        if q1 <= 0 or q2 < 0 or m * m > q1 * self.teacher * (1 + 1e-9):
            raise ValueError(
                "`start` expects (q1, q2, m) with q1 > 0, q2 ≥ 0 and m² ≤ q1 × teacher, got "
                f"{check.show(state.tolist())}"
            )
        return state

    @classmethod
    def kernels(cls) -> Kernels:
        """Return the compiled functions; see `Kernels`."""
        from replan.models.curriculum import _kernels as k

        return Kernels(k.Parameters, k.rate, k.losses, k.rate_vjp, k.losses_vjp)

    @cached_property
    def parameters(self) -> Any:
        """What the kernels know about this model."""
        from replan.models.curriculum._kernels import Parameters

        return Parameters(self.difficulties, self.teacher)

    # Simulation at finite size

    def make_weights(self, state: Floats, dimension: int, rng: np.random.Generator) -> Any:
        """Return the weights (2, N) on relevant and irrelevant inputs, along the first axes."""
        q1, q2, m = state.tolist()
        weights = np.zeros((2, dimension))
        along = m / np.sqrt(self.teacher)
        weights[0, :2] = along, np.sqrt(max(q1 - along**2, 0.0))
        weights[1, 0] = np.sqrt(q2)
        return np.sqrt(dimension) * weights

    def sample(self, weights: Any, task: int, knobs: Floats, rng: np.random.Generator) -> Any:
        """Draw inputs (2, N); the teacher points along the first relevant one."""
        inputs = rng.standard_normal(weights.shape)
        inputs[1] *= np.sqrt(self.difficulties[task])
        return inputs

    def update(self, weights: Any, sample: Any, task: int, knobs: Floats) -> Any:
        """Make a step of SGD on the squared error."""
        from math import erf, exp, pi, sqrt

        N = weights.shape[1]
        field = float(np.sum(weights * sample)) / sqrt(N)
        label = 1.0 if sample[0, 0] > 0 else -1.0
        slope = exp(-field * field / 4) / sqrt(pi)
        weights += knobs[0] / sqrt(N) * (label - erf(field / 2)) * slope * sample
        return weights

    def measure(self, weights: Any) -> Floats:
        """Return (q₁, q₂, m) of weights."""
        N = weights.shape[1]
        overlap = weights[0, 0] * np.sqrt(self.teacher) / np.sqrt(N)
        return np.array([*np.sum(weights**2, axis=1) / N, overlap])

    @property
    def least_dimension(self) -> int:
        """Two: along the teacher and across."""
        return 2

    def chain_size(self, engine: str, dimension: int) -> int:
        """Return the number of weights."""
        return 2 * dimension

    # Files

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Curriculum:
        """Return the model that the `[model]` section of a problem file describes."""

        def model(difficulties: Any = (0.0, 2.0), teacher: Any = 2.0) -> Curriculum:
            return cls(difficulties, teacher=teacher)

        return from_keys(model, content, "model")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as the `[model]` section of a problem file."""
        return {"difficulties": self.difficulties.tolist(), "teacher": self.teacher}

    def start_from_dict(self, content: Mapping[str, Any]) -> Any:
        """Return the start that the `[start]` section describes: q1, q2 and m."""

        def start(q1: Any = 1.0, q2: Any = 1.0, m: Any = 0.0) -> Any:
            numbers = {"q1": q1, "q2": q2, "m": m}
            return [check.number(f"start.{name}", value) for name, value in numbers.items()]

        return from_keys(start, content, "start")

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file."""
        return dict(zip(("q1", "q2", "m"), self.pack(start).tolist(), strict=True))
