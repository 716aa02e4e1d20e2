"""Means over a training, by Simpson's rule."""

from __future__ import annotations

import numpy as np

from replan.check import Floats


def simpson_weights(lengths: Floats, counts: Floats) -> Floats:
    """Return the weights (2n + 1, L) of losses at edges and middles in a mean over n steps.

    counts: (n, L) what each loss counts in each step. Simpson's rule: an error of order 4 in the
    step, like the integrator's.
    """
    each = lengths[:, None] * counts / (6 * lengths.sum())
    weights = np.zeros((2 * lengths.size + 1, counts.shape[1]))
    weights[:-1:2] += each
    weights[1::2] = 4 * each
    weights[2::2] += each
    return weights


def averages(losses: Floats, lengths: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Return averages and their errors (L,) of losses at the middles or quarters of n steps.

    losses: (2n + 1, L), and then the errors are not known (NaN), or (4n + 1, L). counts: (n, L)
    what each loss counts in each step.
    """
    if lengths.size == 0:
        return losses[0], np.zeros(losses.shape[1])
    middles = slice(None, None, (len(losses) - 1) // (2 * lengths.size))
    coarse = np.sum(simpson_weights(lengths, counts) * losses[middles], axis=0)
    if len(losses) == 2 * lengths.size + 1:
        return coarse, np.full(losses.shape[1], np.nan)
    halves, twice = np.repeat(lengths / 2, 2), np.repeat(counts, 2, axis=0)
    fine = np.sum(simpson_weights(halves, twice) * losses, axis=0)
    return fine, np.abs(fine - coarse) / 15
