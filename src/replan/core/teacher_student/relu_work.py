"""What the compiled kernels of ReLU networks know, and their scratch arrays.

Positions count the units that matter now, hidden ones first; `units` says which they are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from replan.check import Bools, Floats, Ints
from replan.core.compiled import compiled, index, inlined
from replan.core.moments.quadruples import Quadruples, make_quadruples
from replan.core.moments.relu import inverse
from replan.core.teacher_student.layout import with_teachers
from replan.core.teacher_student.work import Parameters


class ReluParameters(Parameters):
    """`Parameters` of a type that stands for ReLU."""


class ReluWork(NamedTuple):
    """Scratch arrays, made once per roll-out, with all that the kernels know about the model."""

    K: int
    noise: float
    pace: float
    trained: Floats  # (T,)
    rates: Floats  # (T,) η of the features, on each task
    head_rates: Floats  # (T,) of the heads
    cov: Floats  # (U, U) joint covariance C
    weights: Floats  # (T, U) w
    moving: Floats  # (T, K) V_tk, or 0 for a unit without weights: nothing moves it
    lengths: Floats  # (U,) σ, by unit
    inverses: Floats  # (U,) 1/σ, or 0
    rho: Floats  # (U, U) correlations, by position, as all that follows
    sines: Floats  # (U, U) √(1 − ρ²)
    inverse_sines: Floats  # (U, U)
    angles: Floats  # (U, U) asin ρ
    scaled: Floats  # (T, U) v = w σ, by the position of the task too
    push: Floats  # (U,) what multiplies C_nh in the drift of k
    drift: Floats  # (K, U) Σ_t s_t η_t V_tk E[Δ_t g′_k λ_h], by unit
    squares: Floats  # (T, U, U) E[Δ_t² g′_k g′_h], k ≤ h
    meets: Bools  # (U, U) whether a task has both units in its error, at ab with a < b
    fours: Quadruples
    units: Ints  # (U,) the units that matter to the tasks trained now
    active: Ints  # (T,) the tasks trained now


class ReluBars(NamedTuple):
    """Scratch arrays of the reverse: derivatives by the fields of the same name, and others."""

    cov: Floats  # (U, U) C̄
    weights: Floats  # (T, U) w̄
    lengths: Floats  # (U,)
    rho: Floats  # (U, U), at ab with a < b
    scaled: Floats  # (T, U)
    linear: Floats  # (T,) B
    quadratic: Floats  # (T,) A
    heads: Floats  # (T,) D
    cotangent: Floats  # (K, U) what multiplies E[Δ g′_k λ_h] in H
    row: Floats  # (U,) Σ_h R_kh C_hn
    scales: Floats  # (T, U, U) what multiplies E[Δ_t² g′_k g′_h] in H; 0 but for k ≤ h < K


class ReluVjpWork(NamedTuple):
    """Scratch arrays of the reverse, and those of what it reverses."""

    forward: ReluWork
    bars: ReluBars


@inlined
def set_lengths(first: int, last: int, work: ReluWork) -> None:
    """Fill in the lengths of some units from the covariance."""
    for a in range(index(first), index(last)):
        work.lengths[a] = math.sqrt(max(work.cov[a, a], 0.0))
        work.inverses[a] = inverse(work.lengths[a])


@compiled
def make_work(p: ReluParameters) -> ReluWork:
    """Allocate the scratch arrays and fill in what the teachers determine."""
    cov, weights = with_teachers(p)
    T, U = weights.shape
    work = ReluWork(
        p.K,
        p.noise,
        p.pace,
        p.trained,
        np.zeros(T),
        np.zeros(T),
        cov,
        weights,
        np.zeros((T, p.K)),
        np.zeros(U),
        np.zeros(U),
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros((T, U)),
        np.zeros(U),
        np.zeros((p.K, U)),
        np.zeros((T, U, U)),
        np.ones((U, U), np.bool_),
        make_quadruples(),
        np.arange(U),
        np.arange(T),
    )
    set_lengths(p.K, U, work)
    return work


@compiled
def make_vjp_work(p: ReluParameters) -> ReluVjpWork:
    """Allocate the scratch arrays of the reverse.

    It takes all units and tasks into account: positions in its own `ReluWork` are theirs.
    """
    T, P = p.A.shape
    U = p.K + P
    bars = ReluBars(
        np.zeros((U, U)),
        np.zeros((T, U)),
        np.zeros(U),
        np.zeros((U, U)),
        np.zeros((T, U)),
        np.zeros(T),
        np.zeros(T),
        np.zeros(T),
        np.zeros((p.K, U)),
        np.zeros(U),
        np.zeros((T, U, U)),
    )
    return ReluVjpWork(make_work(p), bars)
