"""What the compiled kernels of the teacher-student model know, and their scratch arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replan._common.check import Floats, Ints
from replan._common.compiled import compiled


class Parameters(NamedTuple):
    """What the kernels know about a model."""

    S: Floats  # (P, P) teacher overlaps
    A: Floats  # (T, P) teacher heads
    noise: float  # σ
    pace: float  # what batch size and momentum make of a learning rate of 1
    trained: Floats  # (T,) 1 where a head is trained, 0 where it is fixed
    K: int  # hidden units


class Bars(NamedTuple):
    """Scratch arrays of the reverse: derivatives by the fields of the same name in `Work`."""

    cov: Floats  # (U, U) C̄
    once: Floats  # (U, U) of C tilted once
    twice: Floats  # (U, U) of C tilted twice
    weights: Floats  # (T, U) w̄
    moment: Floats  # (U, U) I₂ of C tilted twice
    cotangent: Floats  # (U, U) rows k < K: what multiplies E[Δ g′_k λ_h] in H
    row: Floats  # (U,)
    linear: Floats  # (T,) B
    quadratic: Floats  # (T,) A
    heads: Floats  # (T,) D


class Work(NamedTuple):
    """Scratch arrays, made once per roll-out, with all that the kernels know about the model."""

    K: int
    noise: float
    pace: float
    trained: Floats  # (T,)
    rates: Floats  # (T,) η of the features, on each task
    head_rates: Floats  # (T,) of the heads
    cov: Floats  # (U, U) joint covariance C
    once: Floats  # (U, U) C tilted by one unit
    weights: Floats  # (T, U) w
    norms: Floats  # (U,) of C
    norms_once: Floats  # (U,) of C tilted once
    norms_twice: Floats  # (U,) of C tilted twice
    push: Floats  # (U,)
    coefficients: Floats  # (T,)
    units: Ints  # (U,) the units that matter to the tasks trained now
    active: Ints  # (T,) the tasks trained now


class PullWork(NamedTuple):
    """Scratch arrays of the reverse, and those of what it reverses."""

    forward: Work
    bars: Bars


@compiled
def make_work(p: Parameters) -> Work:
    """Allocate the scratch arrays and fill in what the teachers determine."""
    T, P = p.A.shape
    U = p.K + P
    cov = np.zeros((U, U))
    weights = np.zeros((T, U))
    for a in range(P):
        for b in range(P):
            cov[p.K + a, p.K + b] = p.S[a, b]
        for t in range(T):
            weights[t, p.K + a] = -p.A[t, a]
    return Work(
        p.K,
        p.noise,
        p.pace,
        p.trained,
        np.zeros(T),
        np.zeros(T),
        cov,
        np.zeros((U, U)),
        weights,
        np.zeros(U),
        np.zeros(U),
        np.zeros(U),
        np.zeros(U),
        np.zeros(T),
        np.zeros(U, np.int64),
        np.zeros(T, np.int64),
    )


@compiled
def make_pull_work(p: Parameters) -> PullWork:
    """Allocate the scratch arrays of the reverse."""
    T, P = p.A.shape
    U = p.K + P
    bars = Bars(
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros((T, U)),
        np.zeros((U, U)),
        np.zeros((U, U)),
        np.zeros(U),
        np.zeros(T),
        np.zeros(T),
        np.zeros(T),
    )
    return PullWork(make_work(p), bars)
