"""What the compiled kernels of the teacher-student model know, and their scratch arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan.check import Floats, Ints
from replan.core.compiled import compiled, inlined
from replan.core.teacher_student.layout import with_teachers


class Parameters(NamedTuple):
    """What the kernels know about a model."""

    S: Floats  # (P, P) teacher overlaps
    A: Floats  # (T, P) teacher heads
    noise: float  # σ
    pace: float  # what batch size and momentum make of a learning rate of 1
    trained: Floats  # (T,) 1 where a head is trained, 0 where it is fixed
    K: int  # hidden units


class Work(NamedTuple):
    """Scratch arrays, made once per roll-out, with all that the kernels know about the model.

    Flat arrays of each unit's numbers with every hidden unit have room for a whole number of
    vectors, and so have the lanes: the pairs of hidden units k ≤ h, side by side. Lanes beyond the
    pairs stay 0 in `first`, `second` and the reverse's `scales`, and so count for nothing.
    """

    K: int
    noise: float
    pace: float
    trained: Floats  # (T,)
    rates: Floats  # (T,) η of the features, on each task
    head_rates: Floats  # (T,) of the heads
    cov: Floats  # (U, U) joint covariance C
    weights: Floats  # (T, U) w
    norms: Floats  # (U,) of C
    sides: Floats  # (U K,) C_nk norm_k
    moments: Floats  # (U K,) I₂(n, k)
    norms_once: Floats  # (U K,) of C tilted by k
    push: Floats  # (U,) what multiplies C^k_nh in the drift of k
    drift: Floats  # (K, U) Σ_t s_t η_t V_tk E[Δ_t g′_k λ_h]
    first: Floats  # (U, lanes) what tilting by k takes from C
    second: Floats  # (U, lanes) what tilting by h takes next
    norms_twice: Floats  # (U, lanes) of C tilted by k and h
    angles: Floats  # (lanes,) arcsines of the correlations of two units
    squares: Floats  # (T, lanes) E[Δ²] of C tilted twice
    units: Ints  # (U,) the units that matter to the tasks trained now
    active: Ints  # (T,) the tasks trained now


class Bars(NamedTuple):
    """Scratch arrays of the reverse.

    The first ones are derivatives by the fields of the same name in `Work`.
    """

    cov: Floats  # (U, U) C̄
    weights: Floats  # (T, U) w̄
    sides: Floats  # (U K,)
    first: Floats  # (U, lanes)
    second: Floats  # (U, lanes)
    linear: Floats  # (T,) B
    quadratic: Floats  # (T,) A
    heads: Floats  # (T,) D
    cotangent: Floats  # (K, U) what multiplies E[Δ g′_k λ_h] in H
    row: Floats  # (U,) Σ_h R_kh C^k_nh norm_nk
    both: Floats  # (lanes,) what multiplies w_tk w_th E[Δ_t²] of C tilted twice
    scales: Floats  # (T, lanes) what multiplies E[Δ_t²] there
    slopes: Floats  # (lanes,) derivatives by the correlations of two units
    turns: Floats  # (lanes,) these correlations, then derivatives by the logarithms of norms
    stretch: Floats  # (U, lanes) derivatives by the logarithms of norms_twice


class VjpWork(NamedTuple):
    """Scratch arrays of the reverse, and those of what it reverses."""

    forward: Work
    bars: Bars


@inlined
def _lanes(K: int) -> int:
    """Return room for the pairs of hidden units: whole vectors."""
    return 4 * ((K * (K + 1) // 2 + 3) // 4)


@compiled
def make_work(p: Parameters) -> Work:
    """Allocate the scratch arrays and fill in what the teachers determine."""
    cov, weights = with_teachers(p)
    T, U = weights.shape
    flat = p.K * U + 3
    lanes = _lanes(p.K)
    return Work(
        p.K,
        p.noise,
        p.pace,
        p.trained,
        np.zeros(T),
        np.zeros(T),
        cov,
        weights,
        np.zeros(U),
        np.zeros(flat),
        np.zeros(flat),
        np.zeros(flat),
        np.zeros(U),
        np.zeros((p.K, U)),
        np.zeros((U, lanes)),
        np.zeros((U, lanes)),
        np.zeros((U, lanes)),
        np.zeros(lanes),
        np.zeros((T, lanes)),
        np.arange(U),
        np.arange(T),
    )


@compiled
def make_vjp_work(p: Parameters) -> VjpWork:
    """Allocate the scratch arrays of the reverse.

    It takes all units into account: those listed in its own `Work` stay 0 … U − 1.
    """
    T, P = p.A.shape
    U = p.K + P
    lanes = _lanes(p.K)
    bars = Bars(
        np.zeros((U, U)),
        np.zeros((T, U)),
        np.zeros(p.K * U),
        np.zeros((U, lanes)),
        np.zeros((U, lanes)),
        np.zeros(T),
        np.zeros(T),
        np.zeros(T),
        np.zeros((p.K, U)),
        np.zeros(U),
        np.zeros(lanes),
        np.zeros((T, lanes)),
        np.zeros(lanes),
        np.zeros(lanes),
        np.zeros((U, lanes)),
    )
    return VjpWork(make_work(p), bars)
