"""The mean loss of a network on given images, and its gradient, compiled."""

from __future__ import annotations

import numpy as np

from replan._common.compiled import inlined
from replan.networks._weights import Parts, Reals, fast, parts, to_probabilities


@inlined
def _outputs(w: Parts, t: int, biases: bool, x: Reals, row: int, z: Reals, o: Reals) -> None:
    """Write the hidden units z (K,) and the outputs o (C,) of task t for an input x[row] (D,)."""
    zero = x.dtype.type(0.0)
    for k in range(z.size):
        field = w.biases[k] if biases else zero
        for d in range(x.shape[1]):
            field += w.features[k, d] * x[row, d]
        z[k] = field if not field <= 0 else zero  # NaN stays NaN
    for c in range(o.size):
        total = w.head_biases[t, c] if biases else zero
        for k in range(z.size):
            total += w.heads[t, c, k] * z[k]
        o[c] = total


@fast
def mean_loss(
    weights: Reals,
    hidden: int,
    tasks: int,
    task: int,
    inputs: Reals,
    targets: Reals,
    softmax: bool,
    biases: bool,
) -> tuple[float, bool]:
    """Return the mean loss of one task on inputs (m, D), targets (m, C), and whether it is alive.

    It is if a hidden unit is on for any of them.
    """
    w = parts(weights, hidden, inputs.shape[1], tasks, targets.shape[1])
    z, o = np.empty(hidden, inputs.dtype), np.empty(targets.shape[1], inputs.dtype)
    total, alive = 0.0, False
    for i in range(inputs.shape[0]):
        _outputs(w, task, biases, inputs, i, z, o)
        for k in range(hidden):
            alive |= z[k] > 0
        if softmax:
            for c in range(o.size):
                total -= targets[i, c] * o[c]
            total += to_probabilities(o)
        else:
            for c in range(o.size):
                error = o[c] - targets[i, c]
                total += 0.5 * error * error
    return total / inputs.shape[0], alive


@fast
def pull_mean_loss(
    scale: float,
    out: Reals,
    weights: Reals,
    hidden: int,
    tasks: int,
    task: int,
    inputs: Reals,
    targets: Reals,
    softmax: bool,
    biases: bool,
) -> None:
    """Add scale × the gradient of `mean_loss` by the weights to `out`."""
    K, D, C = hidden, inputs.shape[1], targets.shape[1]
    w, by = parts(weights, K, D, tasks, C), parts(out, K, D, tasks, C)
    z, e = np.empty(K, inputs.dtype), np.empty(C, inputs.dtype)
    factor = inputs.dtype.type(scale / inputs.shape[0])
    for i in range(inputs.shape[0]):
        _outputs(w, task, biases, inputs, i, z, e)
        if softmax:
            to_probabilities(e)
        for c in range(C):
            e[c] = factor * (e[c] - targets[i, c])
            if biases:
                by.head_biases[task, c] += e[c]
        for k in range(K):
            if z[k] != 0:
                push = inputs.dtype.type(0.0)
                for c in range(C):
                    push += e[c] * w.heads[task, c, k]
                    by.heads[task, c, k] += e[c] * z[k]
                for d in range(D):
                    by.features[k, d] += push * inputs[i, d]
                if biases:
                    by.biases[k] += push
