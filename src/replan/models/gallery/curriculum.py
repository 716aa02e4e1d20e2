"""Curriculum: when to learn from easy inputs and when from hard ones.

Notation: the state is (q₁, q₂, m): the squared norms of the student's weights on relevant and on
irrelevant inputs, and the overlap with the teacher. On inputs of difficulty Δ the student's field
has variance s = q₁ + Δ q₂; T is the teacher's squared norm; η is the learning rate.
(Mignacco & Mori 2025, after Saglietti et al. 2022)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models.gallery.base import GalleryModel
from replan.models.registry import register

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


def rate(state: Any, task: Any, lr: Any, *, difficulties: Any, teacher: Any) -> Any:
    """Return d(q₁, q₂, m)/dα on inputs of one difficulty."""
    import jax.numpy as jnp

    q1, q2, m = state
    delta = difficulties[task]
    s = q1 + delta * q2
    narrow, root = 1 / jnp.sqrt(1 + s), jnp.sqrt((2 + s) * teacher - m**2)
    angle = jnp.pi / 2 + jnp.arcsin(s / (2 + 3 * s))
    angle -= 2 * jnp.arcsin(m / jnp.sqrt((2 + 3 * s) * ((1 + s) * teacher - m**2)))
    spread = 2 * lr**2 / jnp.pi**2 * narrow * angle
    drift = 4 * lr / (jnp.pi * (2 + s))
    return jnp.array(
        [
            drift * (-q1 * narrow + m * (2 + delta * q2) / root) + spread,
            -drift * delta * q2 * (narrow + m / root) + delta * spread,
            drift / 2 * (-m * narrow + root),
        ]
    )


def losses(state: Any, *, difficulties: Any, teacher: Any) -> Any:
    """Return the probability of a wrong sign on each difficulty, acos(m / √(s T)) / π."""
    import jax.numpy as jnp

    q1, q2, m = state
    cosines = m / jnp.sqrt((q1 + difficulties * q2) * teacher)
    return jnp.arccos(jnp.clip(cosines, -1.0, 1.0)) / jnp.pi  # above 1 by rounding


@register
class Curriculum(GalleryModel):
    """A student erf(λ/2) of relevant and irrelevant inputs that learns the sign of a teacher's.

    The teacher sees the relevant inputs only. A task is a difficulty: the variance of the
    irrelevant inputs. Its loss is the probability of a wrong sign. Needs the extra `jax`.

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
    entries = {"q1": 1.0, "q2": 1.0, "m": 0.0}  # noqa: RUF012
    least_dimension = 2  # along the teacher and across

    def __init__(self, difficulties: ArrayLike = (0.0, 2.0), *, teacher: float = 2.0) -> None:
        variances = check.array("difficulties", difficulties, ("T",))
        names = [f"difficulty {x:g}" for x in variances]
        if not names or len(set(names)) < len(names) or variances.min() < 0:
            got = check.show(variances.tolist())
            raise ArgumentError("difficulties", "different variances of at least 0", got)
        if len(names) == 2 and variances[0] < variances[1]:
            names = ["easy", "hard"]
        norm = check.number("teacher", teacher, above=0)
        parameters = {"difficulties": variances, "teacher": norm}
        super().__init__(rate, losses, tasks=names, like=np.zeros(3), parameters=parameters)

    def pack(self, start: Any) -> Floats:
        """Return a start (q₁, q₂, m), checked, as a state."""
        state = check.array("start", start, (3,))
        q1, q2, m = state.tolist()
        if q1 <= 0 or q2 < 0 or m * m > q1 * self.parameters["teacher"] * (1 + 1e-9):
            expected = "(q1, q2, m) with q1 > 0, q2 ≥ 0 and m² ≤ q1 × teacher"
            raise ArgumentError("start", expected, check.show(state.tolist()))
        return state

    # Simulation at finite size

    def make_weights(self, state: Floats, dimension: int, rng: np.random.Generator) -> Any:
        """Return the weights (2, N) on relevant and irrelevant inputs, along the first axes."""
        q1, q2, m = state.tolist()
        weights = np.zeros((2, dimension))
        along = m / np.sqrt(self.parameters["teacher"])
        weights[0, :2] = along, np.sqrt(max(q1 - along**2, 0.0))
        weights[1, 0] = np.sqrt(q2)
        return np.sqrt(dimension) * weights

    def sgd_step(self, weights: Any, task: int, knobs: Floats, rng: np.random.Generator) -> Any:
        """Draw inputs (2, N) and make a step on the squared error of the label."""
        N = weights.shape[1]
        inputs = rng.standard_normal(weights.shape)
        inputs[1] *= np.sqrt(self.parameters["difficulties"][task])
        field = float(np.sum(weights * inputs)) / math.sqrt(N)
        label = 1.0 if inputs[0, 0] > 0 else -1.0
        slope = math.exp(-field * field / 4) / math.sqrt(math.pi)
        weights += knobs[0] / math.sqrt(N) * (label - math.erf(field / 2)) * slope * inputs
        return weights

    def measure(self, weights: Any) -> Floats:
        """Return (q₁, q₂, m) of weights."""
        N = weights.shape[1]
        overlap = weights[0, 0] * np.sqrt(self.parameters["teacher"]) / np.sqrt(N)
        return np.array([*np.sum(weights**2, axis=1) / N, overlap])
