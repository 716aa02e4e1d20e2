"""A two-layer ReLU network with a readout for each task, trained sample by sample, compiled.

K hidden units, D pixels, T tasks, C outputs. Hidden units h_k = Σ_d w_kd x_d / √D, outputs
Σ_k v_tck max(h_k, 0), loss ½ Σ_c (output_c − target_c)². All in float32.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from replan.check import Ints
from replan.core.compiled import compiled

Singles = NDArray[np.float32]
Pixels = NDArray[np.uint8]

# Sums may be taken in any order, so that they are vectorised; but NaN stays NaN.
_fast = compiled(fastmath={"reassoc", "contract", "nsz", "arcp"})


@_fast
def train(
    weights: Singles,
    heads: Singles,
    pixels: Pixels,
    targets: Singles,
    streams: Ints,
    position: Ints,
    mix: Singles,
    tasks: Ints,
    lr: Singles,
    scale: float,
    shift: float,
) -> None:
    """Make one SGD step for every entry of `tasks` (m,) with rates `lr` (m,), in place.

    weights: (K, D). heads: (T, C, K). pixels: (n, D). targets: (n, C). streams: (T, 2, …) two
    images for every sample of a task; the sample is mix[t] × the first + (1 − mix[t]) × the second,
    in pixels and in targets. position: (T,) the next sample of each stream. Inputs are
    scale × pixel + shift.
    """
    K, D = weights.shape
    C = heads.shape[1]
    root = np.float32(1.0 / math.sqrt(D))
    x, active = np.empty(D, np.float32), np.empty(K, np.float32)
    error, back = np.empty(C, np.float32), np.empty(K, np.float32)
    for step in range(tasks.size):
        t = tasks[step]
        i, j = streams[t, 0, position[t]], streams[t, 1, position[t]]
        position[t] += 1
        one = mix[t]
        two = np.float32(1.0) - one
        a, b = np.float32(scale) * root * one, np.float32(scale) * root * two
        c = np.float32(shift) * root
        for d in range(D):
            x[d] = a * pixels[i, d] + b * pixels[j, d] + c
        for k in range(K):
            field = np.float32(0.0)
            for d in range(D):
                field += weights[k, d] * x[d]
            active[k] = max(field, np.float32(0.0))
            back[k] = np.float32(0.0)
        for out in range(C):
            total = np.float32(0.0)
            for k in range(K):
                total += heads[t, out, k] * active[k]
            error[out] = total - (one * targets[i, out] + two * targets[j, out])
        for out in range(C):
            for k in range(K):
                back[k] += error[out] * heads[t, out, k]
                heads[t, out, k] -= lr[step] * error[out] * active[k]
        for k in range(K):
            if active[k] > 0.0:
                pace = lr[step] * back[k]
                for d in range(D):
                    weights[k, d] -= pace * x[d]


@_fast
def mean_loss(weights: Singles, head: Singles, inputs: Singles, targets: Singles) -> float:
    """Return the mean loss of one task: head (C, K), inputs / √D (n, D), targets (n, C)."""
    K, D = weights.shape
    C = head.shape[0]
    active = np.empty(K, np.float32)
    total = 0.0
    for i in range(inputs.shape[0]):
        for k in range(K):
            field = np.float32(0.0)
            for d in range(D):
                field += weights[k, d] * inputs[i, d]
            active[k] = max(field, np.float32(0.0))
        for out in range(C):
            error = -targets[i, out]
            for k in range(K):
                error += head[out, k] * active[k]
            total += 0.5 * error * error
    return total / inputs.shape[0]
