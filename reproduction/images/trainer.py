"""The trainer of all networks on images: a hidden layer of ReLU units, a head for each task.

R networks, K hidden units, D pixels, T tasks, C outputs. On an input x of task t: z = max(W x, 0),
outputs V_t z, loss ½ |V_t z − y|². A step of SGD takes samples of some tasks, each with its own
rate: W ← W − Σ_t rate_t ∇_W loss_t, and V_t likewise. One rate that is not 0 is a step on one
sample; shares × learning rates are a weighted batch of all tasks.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from reproduction.images.tasks import ImageTasks, Ints

Reals = NDArray[np.floating]
Weights = tuple[Reals, Reals]  # features (R, K, D) and heads (R, T, C, K) of R networks
Parts = list[tuple[Reals, Reals]]  # inputs (m, D) and targets (m, C) of each task

# Sums may be taken in any order, so that loops are vectorised; but NaN stays NaN.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)


def random_weights(
    tasks: ImageTasks, hidden: int, weight_std: float, head_std: float,
    rngs: list[np.random.Generator],
) -> Weights:  # fmt: skip
    """Return normal random weights of a network for each generator."""
    T, C, D = len(tasks.pools), tasks.targets.shape[1], tasks.pixels.shape[1]
    sizes = {(hidden, D): weight_std, (T, C, hidden): head_std}
    pairs = [[std * rng.standard_normal(x) for x, std in sizes.items()] for rng in rngs]
    features, heads = (np.stack(part).astype(np.float32) for part in zip(*pairs, strict=True))
    return features, heads


def train(weights: Weights, tasks: ImageTasks, streams: Ints, samples: Ints, rates: Reals) -> None:
    """Make a step of SGD for each row of samples (m, T), with rates (m, T), in place.

    streams: (R, T, 2, n), the two images of every sample of a task; samples: which of them.
    """
    real = weights[0].dtype
    data = tasks.pixels, tasks.targets.astype(real, copy=False), tasks.factors.astype(real)
    for features, heads, stream in zip(*weights, streams, strict=True):
        _train(features, heads, *data, stream, samples, rates.astype(real))


def mean_losses(weights: Weights, parts: Parts) -> Reals:
    """Return the mean loss (R, T) of each network and task on inputs and targets."""
    losses = np.empty(weights[1].shape[:2])
    for r, (features, heads) in enumerate(zip(*weights, strict=True)):
        for t, (inputs, targets) in enumerate(parts):
            error = np.maximum(inputs @ features.T, 0) @ heads[t].T - targets
            losses[r, t] = np.sum(error**2, dtype=float) / 2 / len(inputs)
    return losses


@_compiled
def _train(features, heads, pixels, targets, factors, streams, samples, rates):  # type: ignore[no-untyped-def]
    T, zero = len(heads), features.dtype.type(0.0)
    x = np.empty((T, features.shape[1]), features.dtype)
    push = np.empty((T, len(features)), features.dtype)
    for step in range(len(samples)):
        for t in range(T):
            rate, f = rates[step, t], factors[t]
            if rate == 0:
                continue
            i, j = streams[t, 0, samples[step, t]], streams[t, 1, samples[step, t]]
            x[t] = f[0] * pixels[i] + f[1] * pixels[j]
            z = np.maximum(np.dot(features, x[t]), zero)  # NaN stays NaN
            error = np.dot(heads[t], z) - f[2] * targets[i] - f[3] * targets[j]
            push[t] = rate * np.dot(heads[t].T, error) * (z != 0)
            heads[t] -= rate * np.outer(error, z)
        for t in range(T):
            if rates[step, t] != 0:
                for k in range(len(features)):
                    if push[t, k] != 0:
                        features[k] -= push[t, k] * x[t]
