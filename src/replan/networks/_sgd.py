"""SGD of a two-layer ReLU network on several tasks at once, and its exact reverse, compiled.

K hidden units, D inputs, T tasks, C outputs for each. On sample n of task t, with input x:

    z_k = max(Σ_d W_kd x_d + b_k, 0),  o_c = Σ_k V_tck z_k + c_tc,  p_k = [z_k > 0] Σ_c V_tck e_c,

and e = o − y for the loss ½ |o − y|², e = softmax(o) − y for the cross-entropy −y · log softmax(o).
A step with rates a_t of the features and h_t of the heads takes sample n of every task:

    W ← W − Σ_t a_t p_t x_tᵀ,  b ← b − Σ_t a_t p_t,  V_t ← V_t − h_t e_t z_tᵀ,  c_t ← c_t − h_t e_t.

The reverse of a step needs x, z, e and V_t, but not W: these are taped, which takes little room.
Units that are off cost nothing in it: ReLU has no second derivative.

Weights are one vector [W, b, V, c] of single or double precision, which is that of all work.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan._common.check import Floats
from replan._common.compiled import compiled, inlined

Reals = NDArray[Any]  # float32 or float64

# Sums may be taken in any order, so that they are vectorised; but NaN stays NaN.
_fast = compiled(fastmath={"reassoc", "contract", "nsz", "arcp"})

# Arrays are read by index below, never by row: a view of an array that threads share makes them
# wait for each other, as all of them count who uses it.


class Samples(NamedTuple):
    """What one realisation is trained on.

    pixels: (n, D) uint8. targets: (n, C). streams: (T, 2, …) int32, two images for every sample of
    a task; its target is mix[t, 0] × that of the first + mix[t, 1] × that of the second, its input
    inputs[t, 0] × the first + inputs[t, 1] × the second + inputs[t, 2]. softmax: whether the loss
    is the cross-entropy. biases: whether there are any.
    """

    pixels: NDArray[np.uint8]
    targets: Reals
    streams: NDArray[np.int32]
    mix: Reals
    inputs: Reals
    softmax: bool
    biases: bool


class Tape(NamedTuple):
    """What the reverse needs of steps: z (steps, T, K), e (steps, T, C), V (steps, T, C, K)."""

    units: Reals
    errors: Reals
    heads: Reals


class Parts(NamedTuple):
    """Weights W (K, D), b (K,), V (T, C, K), c (T, C)."""

    features: Reals
    biases: Reals
    heads: Reals
    head_biases: Reals


@inlined
def _parts(weights: Reals, K: int, D: int, T: int, C: int) -> Parts:
    i, j, k = K * D, K * D + K, K * D + K + T * C * K
    return Parts(
        weights[:i].reshape((K, D)),
        weights[i:j],
        weights[j:k].reshape((T, C, K)),
        weights[k : k + T * C].reshape((T, C)),
    )


@inlined
def _input(s: Samples, t: int, n: int, x: Reals) -> None:
    """Write the input of sample n of task t to x[t] (D,)."""
    i, j = s.streams[t, 0, n], s.streams[t, 1, n]
    a, b, c = s.inputs[t, 0], s.inputs[t, 1], s.inputs[t, 2]
    if b == 0:
        for d in range(x.shape[1]):
            x[t, d] = a * s.pixels[i, d] + c
    else:
        for d in range(x.shape[1]):
            x[t, d] = a * s.pixels[i, d] + b * s.pixels[j, d] + c


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


@inlined
def _to_probabilities(o: Reals) -> Any:
    """Replace outputs by their softmax; return the logarithm of Σ_c exp(o_c)."""
    most = o[0]
    for c in range(1, o.size):
        most = max(most, o[c])
    total = o.dtype.type(0.0)
    for c in range(o.size):
        o[c] = np.exp(o[c] - most)
        total += o[c]
    for c in range(o.size):
        o[c] /= total
    return most + np.log(total)


@inlined
def _target(s: Samples, t: int, n: int, c: int) -> Any:
    i, j = s.streams[t, 0, n], s.streams[t, 1, n]
    return s.mix[t, 0] * s.targets[i, c] + s.mix[t, 1] * s.targets[j, c]


@inlined
def _look(s: Samples, w: Parts, t: int, n: int, x: Reals, z: Reals, e: Reals) -> None:
    """Write the input x[t] (D,), the hidden units z (K,) and the errors e (C,) of a sample."""
    _input(s, t, n, x)
    _outputs(w, t, s.biases, x, t, z, e)
    if s.softmax:
        _to_probabilities(e)
    for c in range(e.size):
        e[c] -= _target(s, t, n, c)


@inlined
def _update(s: Samples, w: Parts, t: int, a: Any, h: Any, x: Reals, z: Reals, e: Reals) -> None:
    """Make the step of one task, with rates a and h, from what was seen before any task's."""
    for k in range(z.size):
        push = x.dtype.type(0.0)
        for c in range(e.size):
            push += e[c] * w.heads[t, c, k]
            w.heads[t, c, k] -= h * e[c] * z[k]
        if z[k] != 0:
            pace = a * push
            for d in range(x.shape[1]):
                w.features[k, d] -= pace * x[t, d]
            if s.biases:
                w.biases[k] -= pace
    if s.biases:
        for c in range(e.size):
            w.head_biases[t, c] -= h * e[c]


@_fast
def train(
    s: Samples, weights: Reals, hidden: int, a: Reals, h: Reals, first: int, last: int
) -> None:
    """Make the steps from `first` to the one before `last`, in place, with rates a and h (T,)."""
    K, D, T, C = hidden, s.pixels.shape[1], a.size, s.targets.shape[1]
    w = _parts(weights, K, D, T, C)
    x, z, e = np.empty((T, D), a.dtype), np.empty((T, K), a.dtype), np.empty((T, C), a.dtype)
    for n in range(first, last):
        for t in range(T):
            if a[t] != 0 or h[t] != 0:
                _look(s, w, t, n, x, z[t], e[t])
        for t in range(T):
            if a[t] != 0 or h[t] != 0:
                _update(s, w, t, a[t], h[t], x, z[t], e[t])


@_fast
def record(
    s: Samples,
    weights: Reals,
    hidden: int,
    a: Reals,
    h: Reals,
    first: int,
    last: int,
    tape: Tape,
) -> None:
    """Make the same steps as `train` and tape them; tasks that are not trained are taped too."""
    K, D, T, C = hidden, s.pixels.shape[1], a.size, s.targets.shape[1]
    w = _parts(weights, K, D, T, C)
    x = np.empty((T, D), a.dtype)
    for n in range(first, last):
        i = n - first
        for t in range(T):
            for c in range(C):
                for k in range(K):
                    tape.heads[i, t, c, k] = w.heads[t, c, k]
            _look(s, w, t, n, x, tape.units[i, t], tape.errors[i, t])
        for t in range(T):
            if a[t] != 0 or h[t] != 0:
                _update(s, w, t, a[t], h[t], x, tape.units[i, t], tape.errors[i, t])


@_fast
def pull(
    s: Samples,
    adjoint: Reals,
    hidden: int,
    a: Reals,
    h: Reals,
    first: int,
    last: int,
    tape: Tape,
    by_a: Floats,
    by_h: Floats,
) -> None:
    """Turn the gradient by the weights after taped steps into that before them, in place.

    by_a, by_h: (T,), to which the gradients by the rates are added.
    """
    K, D, T, C = hidden, s.pixels.shape[1], a.size, s.targets.shape[1]
    w = _parts(adjoint, K, D, T, C)
    x, fields, back = np.empty((T, D), a.dtype), np.empty((T, K), a.dtype), np.empty(C, a.dtype)
    for i in range(last - first - 1, -1, -1):
        for t in range(T):
            _input(s, t, first + i, x)
            _pull_rates(s, w, t, i, a[t], h[t], x, tape, fields, back, by_a, by_h)
            if a[t] != 0 or h[t] != 0:
                _pull_task(s, w, t, i, first + i, h[t], tape, fields, back)
        for t in range(T):
            if a[t] != 0 or h[t] != 0:
                for k in range(K):
                    pace = fields[t, k]
                    if pace != 0:
                        for d in range(D):
                            w.features[k, d] += pace * x[t, d]
                        if s.biases:
                            w.biases[k] += pace


@inlined
def _pull_rates(
    s: Samples,
    w: Parts,
    t: int,
    i: int,
    a: Any,
    h: Any,
    x: Reals,
    tape: Tape,
    fields: Reals,
    back: Reals,
    by_a: Floats,
    by_h: Floats,
) -> None:
    """Pull one task's part of taped step i back to its rates, pushes and errors.

    w: gradients after the step. Those by the pushes p go to fields[t] (K,), those by the errors e
    to `back` (C,).
    """
    zero = x.dtype.type(0.0)
    for c in range(back.size):
        along = w.head_biases[t, c] if s.biases else zero
        for k in range(fields.shape[1]):
            along += w.heads[t, c, k] * tape.units[i, t, k]
        by_h[t] -= tape.errors[i, t, c] * along
        back[c] = -h * along
    for k in range(fields.shape[1]):
        fields[t, k] = zero
        if tape.units[i, t, k] != 0:
            along, push = w.biases[k] if s.biases else zero, zero
            for d in range(x.shape[1]):
                along += w.features[k, d] * x[t, d]
            fields[t, k] = -a * along
            for c in range(back.size):
                push += tape.errors[i, t, c] * tape.heads[i, t, c, k]
                back[c] -= a * along * tape.heads[i, t, c, k]
            by_a[t] -= push * along


@inlined
def _pull_task(
    s: Samples, w: Parts, t: int, i: int, n: int, h: Any, tape: Tape, fields: Reals, back: Reals
) -> None:
    """Pull one task's part of taped step i, of sample n, back to its heads and its fields.

    The heads' gradients in w change in place. Those of W x + b replace those by the pushes in
    fields[t], to be added once all tasks have seen the features' gradients.
    """
    zero = back.dtype.type(0.0)
    if s.softmax:  # from the errors to the outputs
        mean = zero
        for c in range(back.size):
            mean += (tape.errors[i, t, c] + _target(s, t, n, c)) * back[c]
        for c in range(back.size):
            back[c] = (tape.errors[i, t, c] + _target(s, t, n, c)) * (back[c] - mean)
    for k in range(fields.shape[1]):
        if tape.units[i, t, k] != 0:
            by_push, by_unit = fields[t, k], zero
            for c in range(back.size):
                e = tape.errors[i, t, c]
                by_unit += back[c] * tape.heads[i, t, c, k] - h * e * w.heads[t, c, k]
                w.heads[t, c, k] += e * by_push + back[c] * tape.units[i, t, k]
            fields[t, k] = by_unit
    if s.biases:
        for c in range(back.size):
            w.head_biases[t, c] += back[c]


@_fast
def mean_loss(
    weights: Reals,
    hidden: int,
    tasks: int,
    task: int,
    inputs: Reals,
    targets: Reals,
    softmax: bool,
    biases: bool,
) -> float:
    """Return the mean loss of one task on inputs (m, D), targets (m, C)."""
    w = _parts(weights, hidden, inputs.shape[1], tasks, targets.shape[1])
    z, o = np.empty(hidden, inputs.dtype), np.empty(targets.shape[1], inputs.dtype)
    total = 0.0
    for i in range(inputs.shape[0]):
        _outputs(w, task, biases, inputs, i, z, o)
        if softmax:
            for c in range(o.size):
                total -= targets[i, c] * o[c]
            total += _to_probabilities(o)
        else:
            for c in range(o.size):
                error = o[c] - targets[i, c]
                total += 0.5 * error * error
    return total / inputs.shape[0]


@_fast
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
    w, by = _parts(weights, K, D, tasks, C), _parts(out, K, D, tasks, C)
    z, e = np.empty(K, inputs.dtype), np.empty(C, inputs.dtype)
    factor = inputs.dtype.type(scale / inputs.shape[0])
    for i in range(inputs.shape[0]):
        _outputs(w, task, biases, inputs, i, z, e)
        if softmax:
            _to_probabilities(e)
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
