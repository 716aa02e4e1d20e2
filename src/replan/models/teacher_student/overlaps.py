"""Overlaps: the state of the teacher-student model, and checks of overlap matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError


@dataclass(frozen=True, eq=False)
class Overlaps:
    """The state of the teacher-student model; leading axes, such as time, are allowed.

    Q: (…, K, K) student-student overlaps. M: (…, K, P) student-teacher overlaps.
    V: (…, T, K) the student's head of every task.

    Examples:
        >>> start = replan.Overlaps(Q=np.eye(2), M=np.zeros((2, 2)), V=[[0.1, 0.2], [0.3, 0.4]])
        >>> model = replan.TeacherStudent.similar(0.3)
        >>> print(model.losses(start).round(4))
        [0.175  0.2083]
    """

    Q: Floats
    M: Floats
    V: Floats

    def __post_init__(self) -> None:
        for name in ("Q", "M", "V"):
            object.__setattr__(self, name, check.array(name, getattr(self, name)))

    def __getitem__(self, index: Any) -> Overlaps:
        """Select along the leading axes: `overlaps[-1]` is the last moment of a trajectory."""
        return Overlaps(self.Q[index], self.M[index], self.V[index])

    def __str__(self) -> str:
        return "\n".join(
            f"{name} = {np.array2string(value, precision=4, suppress_small=True, prefix='    ')}"
            for name, value in (("Q", self.Q), ("M", self.M), ("V", self.V))
        )


def check_teachers(value: ArrayLike) -> Floats:
    """Return `teacher_overlaps` S (P, P) if they are those of vectors."""
    S = check.array("teacher_overlaps", value, ("P", "P"))
    if S.shape[0] != S.shape[1] or S.shape[0] == 0:
        raise ArgumentError("teacher_overlaps", "a square matrix", f"shape {S.shape}")
    S = check.symmetric("teacher_overlaps", S)
    check.positive_semidefinite("teacher_overlaps", S)
    return S


def check_students(Q: ArrayLike, M: ArrayLike, S: Floats, hidden: int) -> tuple[Floats, Floats]:
    """Return Q (K, K) and M (K, P) if they are overlaps of vectors with teachers of overlaps S."""
    Q = check.symmetric("Q", check.array("Q", Q, (hidden, hidden)))
    M = check.array("M", M, (hidden, len(S)))
    check.positive_semidefinite("Q", Q)
    joint = np.block([[Q, M], [M.T, S]])
    check.positive_semidefinite("Q, M and teacher_overlaps [[Q, M], [Mᵀ, S]]", joint)
    return Q, M
