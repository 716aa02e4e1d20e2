"""Dropout: with what probability to keep a hidden unit, over time.

Notation: K hidden units, P teacher units, U = K + P, weights w = (v, −A) of all units; the state is
(Q (K×K), M (K×P)). In training, each hidden unit is kept with probability p, so that a term of the
teacher-student equations with j distinct hidden units in it (those whose activation or gradient it
has) is multiplied by p^j (Mignacco & Mori 2025). With learning rate η and label noise σ:

    Q′_kh = −η v_k Σ_n w_n p^|k,n| E[g_n g′_k λ_h] − (k ↔ h)
            + η² v_k v_h (Σ_nm w_n w_m p^|k,h,n,m| E[g_n g_m g′_k g′_h] + σ² p^|k,h| E[g′_k g′_h])
    M′_kp = −η v_k Σ_n w_n p^|k,n| E[g_n g′_k λ*_p]

where |…| counts distinct hidden units; teacher units do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models.gallery.base import GalleryModel
from replan.models.knobs import LR, Knob
from replan.models.registry import register
from replan.models.teacher_student.overlaps import check_students, check_teachers
from replan.schema import check_keys

_MOST_RESCALE = 10.0  # the largest factor of the heads at test time, where it is chosen

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


def _units(state: Any, p: dict[str, Any]) -> tuple[Any, Any]:
    """Return the joint covariance (U, U) and the weights (U,) of student and teacher units."""
    import jax.numpy as jnp

    Q, M = state
    covariance = jnp.block([[(Q + Q.T) / 2, M], [M.T, p["teacher_overlaps"]]])
    return covariance, jnp.concatenate([p["heads"], -p["teacher_heads"]])


def rate(state: Any, task: Any, lr: Any, keep: Any, **p: Any) -> Any:
    """Return d(Q, M)/dα."""
    import jax.numpy as jnp

    from replan.models.gallery.erf_moments import i3, i4, slopes

    (cov, weights), heads, K = _units(state, p), p["heads"], len(state[0])
    powers = jnp.stack([keep**j for j in range(5)])
    is_unit = np.eye(len(cov), K, dtype=int)  # [n, k]: whether unit n is hidden unit k
    pairs = is_unit[:, None] | is_unit[:K]
    fours = pairs[:, None, :, None] | pairs[None, :, None, :]
    kept_pairs, kept_fours = powers[pairs.sum(axis=-1)], powers[fours.sum(axis=-1)]
    drift = heads[:, None] * jnp.einsum("n,nk,nkh->kh", weights, kept_pairs, i3(cov, K))
    square = jnp.einsum("n,m,nmkh,nmkh->kh", weights, weights, kept_fours, i4(cov, K))
    square += p["noise"] ** 2 * kept_pairs[:K] * slopes(cov, K)
    along, across = drift[:, :K], drift[:, K:]
    return -lr * (along + along.T) + lr**2 * jnp.outer(heads, heads) * square, -lr * across


def losses(state: Any, **p: Any) -> Any:
    """Return ½ E[(r Σ_k v_k g_k − Σ_p A_p g_p)²] with r = `rescale`, or else its minimum over r.

    It is ½ (A r² − 2 B r + C), least at r = B / A. There its derivative by r is 0, so that r may
    be held fixed in the gradient.
    """
    import jax
    import jax.numpy as jnp

    from replan.models.gallery.erf_moments import i2

    (cov, weights), K = _units(state, p), len(state[0])
    terms = jnp.outer(weights, weights) * i2(cov)
    A, B, C = terms[:K, :K].sum(), -terms[:K, K:].sum(), terms[K:, K:].sum()
    best = jnp.clip(B / jnp.where(A > 0, A, 1.0), 0.0, _MOST_RESCALE)
    rescale = p.get("rescale", jax.lax.stop_gradient(best))
    return jnp.array([0.5 * (A * rescale**2 - 2 * B * rescale + C)])


@register
class Dropout(GalleryModel):
    """A two-layer student with fixed heads that learns from one teacher, with dropout.

    In training, every hidden unit is kept with probability `keep`, a knob. At test time all are
    there, with their heads multiplied by a factor, by default the best one up to 10. Needs the
    extra `jax`.

    - `teacher_overlaps`: S (P×P), symmetric and positive semi-definite.
    - `hidden`: K.
    - `teacher_heads`: (P,), by default 1. `heads`: (K,) the student's, by default 1.
    - `noise`: standard deviation of the label noise. The loss is that of noise-free labels.
    - `rescale`: the factor at test time, if it is not to be the best one.

    A start is the pair (Q, M) of overlaps, (K, K) and (K, P). (Mignacco & Mori 2025)

    Examples:
        >>> model = replan.models.Dropout([[1.0]], hidden=2, noise=0.2)
        >>> start = (np.zeros((2, 2)), np.zeros((2, 1)))  # overlaps Q and M
        >>> problem = replan.Problem(model, start, duration=5.0, keep=0.7)
        >>> f"{replan.evaluate(problem, replan.strategies.one_task(problem)).loss:.4f}"
        '0.0254'
    """

    kind = "dropout"
    example = EXAMPLE

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
        S = check_teachers(teacher_overlaps)
        P, K = len(S), check.integer("hidden", hidden, at_least=1)
        self.hidden, self.least_dimension = K, K + P
        parameters = {
            "teacher_overlaps": S,
            "teacher_heads": np.ones(P) if teacher_heads is None else teacher_heads,
            "heads": np.ones(K) if heads is None else heads,
            "noise": check.number("noise", noise, at_least=0),
        }
        for name, units in (("teacher_heads", P), ("heads", K)):
            parameters[name] = check.array(name, parameters[name], (units,))
        if rescale is not None:
            parameters["rescale"] = check.number("rescale", rescale, at_least=0)
        super().__init__(
            rate,
            losses,
            tasks=["teacher"],
            like=(np.zeros((K, K)), np.zeros((K, P))),
            knobs=(LR, Knob("keep", 0.0, 1.0, 1.0)),
            parameters=parameters,
            loss_names=["error"],
        )

    def pack(self, start: Any) -> Floats:
        """Return a pair (Q, M), checked, as a state [Q, M]."""
        if not isinstance(start, tuple | list) or len(start) != 2:
            raise ArgumentError("start", "a pair (Q, M)", check.show(start))
        Q, M = check_students(start[0], start[1], self.parameters["teacher_overlaps"], self.hidden)
        return np.concatenate([Q.ravel(), M.ravel()])

    # Simulation at finite size

    def make_weights(self, state: Floats, dimension: int, rng: np.random.Generator) -> Any:
        """Return weights (K, N) and teachers (P, N) with these overlaps, along the first axes."""
        (Q, M), S = self.unpack(state), self.parameters["teacher_overlaps"]
        joint = np.block([[S, M.T], [M, Q]])
        values, vectors = np.linalg.eigh(joint)
        rows = np.zeros((len(joint), dimension))
        rows[:, : len(joint)] = vectors * np.sqrt(values.clip(min=0.0))
        rows *= sqrt(dimension)
        P = len(S)
        return rows[P:], rows[:P]

    def sgd_step(self, weights: Any, task: int, knobs: Floats, rng: np.random.Generator) -> Any:
        """Draw an input (N,), label noise and the units kept (K,); make a step with these alone."""
        (student, teachers), p = weights, self.parameters
        N = student.shape[1]
        x = rng.standard_normal(N)
        noise, kept = p["noise"] * rng.standard_normal(), rng.random(self.hidden) < knobs[1]
        fields = student @ x / sqrt(N)
        label = p["teacher_heads"] @ _erfs(teachers @ x / sqrt(2 * N)) + noise
        active = kept * p["heads"]
        error = active @ _erfs(fields / sqrt(2)) - label
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

    # Files

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as the `[model]` section of a problem file."""
        return {"hidden": self.hidden} | super().to_dict()

    def start_from_dict(self, content: Mapping[str, Any]) -> Any:
        """Return the start that the `[start]` section describes: Q and M, by default 0."""
        check_keys(content, ["Q", "M"], "start")
        K, P = self.hidden, len(self.parameters["teacher_heads"])
        return content.get("Q", np.zeros((K, K))), content.get("M", np.zeros((K, P)))

    def start_to_dict(self, start: Any) -> dict[str, Any]:
        """Return a start as the `[start]` section of a problem file."""
        Q, M = self.unpack(self.pack(start))
        return {"Q": Q.tolist(), "M": M.tolist()}


def _erfs(values: Floats) -> Floats:
    return np.array([erf(value) for value in values.tolist()])
