"""SGD of a two-layer ReLU network on several tasks at once, and its exact reverse, compiled.

K hidden units, D inputs, T tasks, C outputs for each. On sample n of task t, with input x:

    z_k = max(Σ_d W_kd x_d + b_k, 0),  o_c = Σ_k V_tck z_k + c_tc,  p_k = [z_k > 0] Σ_c V_tck e_c,

and e = o − y for the loss ½ |o − y|², e = softmax(o) − y for the cross-entropy −y · log softmax(o).
A step with rates a_t of the features and h_t of the heads takes sample n of every task:

    W ← W − Σ_t a_t p_t x_tᵀ,  b ← b − Σ_t a_t p_t,  V_t ← V_t − h_t e_t z_tᵀ,  c_t ← c_t − h_t e_t.

The reverse of a step needs x, z, e and V_t, but not W: these are taped, which takes little room.
Units that are off cost nothing in it: ReLU has no second derivative.

The change of W waits for the next step, in both directions: see `_passes`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan._common.check import Floats
from replan._common.compiled import index, inlined, prefetch
from replan.networks._passes import Work, one_pass, room, settle
from replan.networks._weights import Parts, Reals, fast, part, parts, to_probabilities

Steps = NDArray[np.int64]
Flag = NDArray[np.bool_]  # (1,): whether to stop, which another thread may say


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


# Samples


@inlined
def _look(
    s: Samples, work: Work, n: int, next_: int, all_tasks: bool, a: Reals, h: Reals, piece: int
) -> None:
    """Take sample n of the tasks that piece trains, or of all, as inputs of the next pass.

    The images of sample `next_` begin their way from the memory meanwhile.
    """
    work.first[0], work.first[1] = work.first[1], work.first[0]
    work.counts[1] = index(0)
    for t in range(index(a.shape[1])):
        if all_tasks or a[piece, t] != 0 or h[piece, t] != 0:
            _input(s, t, n, work.inputs, work.first[1] + t)
            prefetch(s.pixels, index(s.streams[t, 0, next_]))
            if s.inputs[t, 1] != 0:
                prefetch(s.pixels, index(s.streams[t, 1, next_]))
            work.looked[work.counts[1]] = t
            work.counts[1] += index(1)


@inlined
def _input(s: Samples, t: Any, n: int, x: Reals, row: Any) -> None:
    """Write the input of sample n of task t to x[row] (D,)."""
    i, j = index(s.streams[t, 0, n]), index(s.streams[t, 1, n])
    a, b, c = s.inputs[t, 0], s.inputs[t, 1], s.inputs[t, 2]
    if b == 0:
        for d in range(index(x.shape[1])):
            x[row, d] = a * s.pixels[i, d] + c
    else:
        for d in range(index(x.shape[1])):
            x[row, d] = a * s.pixels[i, d] + b * s.pixels[j, d] + c


@inlined
def _target(s: Samples, t: Any, n: int, c: int) -> Any:
    i, j = s.streams[t, 0, n], s.streams[t, 1, n]
    return s.mix[t, 0] * s.targets[i, c] + s.mix[t, 1] * s.targets[j, c]


# Training


@inlined
def _units_and_errors(
    s: Samples, w: Parts, t: Any, n: int, work: Work, tape: Tape, row: int
) -> None:
    """Write the hidden units and the errors of sample n of task t to a row of the tape."""
    zero = work.fields.dtype.type(0.0)
    for k in range(work.fields.shape[1]):
        field = work.fields[t, k]
        if s.biases:
            field += w.biases[k]
        tape.units[row, t, k] = field if not field <= 0 else zero  # NaN stays NaN
    for c in range(work.back.size):
        total = w.head_biases[t, c] if s.biases else zero
        for k in range(work.fields.shape[1]):
            total += w.heads[t, c, k] * tape.units[row, t, k]
        work.back[c] = total
    if s.softmax:
        to_probabilities(work.back)
    for c in range(work.back.size):
        tape.errors[row, t, c] = work.back[c] - _target(s, t, n, c)


@inlined
def _update(s: Samples, w: Parts, t: Any, a: Any, h: Any, work: Work, tape: Tape, row: int) -> None:
    """Make the step of one task, with rates a and h; the change of W has to wait."""
    for k in range(work.fields.shape[1]):
        push = work.fields.dtype.type(0.0)
        for c in range(work.back.size):
            push += tape.errors[row, t, c] * w.heads[t, c, k]
            w.heads[t, c, k] -= h * tape.errors[row, t, c] * tape.units[row, t, k]
        work.paces[t, k] = a * push if tape.units[row, t, k] != 0 else work.fields.dtype.type(0.0)
        if s.biases:
            w.biases[k] -= work.paces[t, k]
    if s.biases:
        for c in range(work.back.size):
            w.head_biases[t, c] -= h * tape.errors[row, t, c]
    work.waiting[work.counts[0]] = t
    work.counts[0] += index(1)


@part
def _train(
    s: Samples,
    w: Parts,
    a: Reals,
    h: Reals,
    piece: int,
    first: int,
    last: int,
    work: Work,
    tape: Tape,
    taped: int,
    stop: Flag,
) -> None:
    """Make the steps from `first` to the one before `last`; taped, all tasks are looked at.

    The last change of W waits. taped: the row of the tape for the first step; if it is −1, nothing
    is taped, and each step overwrites the first row.
    """
    for n in range(first, last):
        if stop[0]:
            break
        taping = taped >= 0
        row = taped + n - first if taping else 0
        _look(s, work, n, min(n + 1, last - 1), taping, a, h, piece)
        one_pass(w.features, work)
        for at in range(work.counts[1]):
            t = work.looked[at]
            if taping:
                for c in range(work.back.size):
                    for k in range(work.fields.shape[1]):
                        tape.heads[row, t, c, k] = w.heads[t, c, k]
            _units_and_errors(s, w, t, n, work, tape, row)
        for at in range(work.counts[1]):
            t = work.looked[at]
            if a[piece, t] != 0 or h[piece, t] != 0:
                _update(s, w, t, a[piece, t], h[piece, t], work, tape, row)


@fast
def train(
    s: Samples,
    weights: Reals,
    hidden: int,
    a: Reals,
    h: Reals,
    edges: Steps,
    tape: Tape,
    taping: bool,
    states: Floats,
    column: int,
    stop: Flag,
) -> int:
    """Train through pieces, in place, with rates a and h (pieces, T); return how many were made.

    edges: (pieces + 1,) steps. taping: whether all steps go to the tape. The weights after each
    piece go to states[1:, column:], if that has any rows, and pieces after which they are not
    finite are not made.
    """
    K, D, T, C = hidden, s.pixels.shape[1], a.shape[1], s.targets.shape[1]
    w, work = parts(weights, K, D, T, C), room(K, D, T, C, weights.dtype)
    now = np.empty_like(weights)
    ended = parts(now, K, D, T, C)
    for i in range(a.shape[0]):
        row = edges[i] - edges[0] if taping else -1
        _train(s, w, a, h, i, edges[i], edges[i + 1], work, tape, row, stop)
        if stop[0]:
            return i
        if states.shape[0] > 0:  # a copy is settled: where pieces end does not change any sum
            for m in range(weights.size):
                now[m] = weights[m]
            waiting = work.counts[0]
            settle(ended.features, work)
            work.first[0], work.first[1] = work.first[1], work.first[0]
            work.counts[0] = waiting
            for m in range(weights.size):
                if not np.isfinite(now[m]):
                    return i
                states[i + 1, column + m] = now[m]
    settle(w.features, work)
    return a.shape[0]


# The reverse


@fast
def pull(
    s: Samples,
    hidden: int,
    a: Reals,
    h: Reals,
    edges: Steps,
    tape: Tape,
    taped: bool,
    states: Floats,
    cotangents: Floats,
    column: int,
    adjoints: Floats,
    by_a: Floats,
    by_h: Floats,
    stop: Flag,
) -> None:
    """Pull cotangents of the states at all edges back through the pieces.

    states, cotangents: (pieces + 1, …), the weights from `column` on; the gradients by these go to
    adjoints, those by the rates are added to by_a and by_h (pieces, T). Unless all steps are taped,
    each piece is trained again and taped, in segments as long as the tape.
    """
    K, D, T, C = hidden, s.pixels.shape[1], a.shape[1], s.targets.shape[1]
    size = K * D + K + T * C * (K + 1)
    adjoint, weights = np.zeros(size, a.dtype), np.empty(size, a.dtype)
    g, w = parts(adjoint, K, D, T, C), parts(weights, K, D, T, C)
    forth, back = room(K, D, T, C, a.dtype), room(K, D, T, C, a.dtype)
    length, segments = tape.units.shape[0], 1
    if not taped:
        for i in range(a.shape[0]):
            segments = max(segments, -((edges[i] - edges[i + 1]) // length))
    begins = np.empty((segments, size), a.dtype)
    for m in range(size):
        adjoint[m] = cotangents[a.shape[0], column + m]
        adjoints[a.shape[0], column + m] = adjoint[m]
    for i in range(a.shape[0] - 1, -1, -1):
        if taped:
            row = edges[i] - edges[0]
            _pull(s, g, a, h, i, edges[i], edges[i + 1], back, tape, row, by_a, by_h, stop)
        else:
            for m in range(size):
                weights[m] = states[i, column + m]
            count = -((edges[i] - edges[i + 1]) // length)
            for j in range(count):  # all but the last are trained to find where the next begins
                for m in range(size):
                    begins[j, m] = weights[m]
                if j < count - 1:
                    first = edges[i] + j * length
                    _train(s, w, a, h, i, first, first + length, forth, tape, -1, stop)
                    settle(w.features, forth)
            for j in range(count - 1, -1, -1):
                for m in range(size):
                    weights[m] = begins[j, m]
                first = edges[i] + j * length
                last = min(first + length, edges[i + 1])
                _train(s, w, a, h, i, first, last, forth, tape, 0, stop)
                forth.counts[0] = index(0)
                _pull(s, g, a, h, i, first, last, back, tape, 0, by_a, by_h, stop)
        settle(g.features, back)
        if stop[0]:
            return
        for m in range(size):
            adjoint[m] += cotangents[i, column + m]
            adjoints[i, column + m] = adjoint[m]


@part
def _pull(
    s: Samples,
    g: Parts,
    a: Reals,
    h: Reals,
    piece: int,
    first: int,
    last: int,
    work: Work,
    tape: Tape,
    taped: int,
    by_a: Floats,
    by_h: Floats,
    stop: Flag,
) -> None:
    """Turn gradients g by the weights after steps into those before them, in place.

    taped: the row of the tape of the first step. The last change of the features' has to wait.
    """
    K, T = work.fields.shape[1], a.shape[1]
    for n in range(last - 1, first - 1, -1):
        if stop[0]:
            break
        i = taped + n - first
        for k in range(K):
            work.needed[k] = False
            for t in range(T):
                work.needed[k] |= tape.units[i, t, k] != 0
        _look(s, work, n, max(n - 1, first), True, a, h, piece)
        one_pass(g.features, work)
        for t in range(T):
            _pull_rates(s, g, t, i, piece, a, h, work, tape, by_a, by_h)
            if a[piece, t] != 0 or h[piece, t] != 0:
                _pull_task(s, g, t, i, n, h[piece, t], work, tape)
        if s.biases:
            for at in range(work.counts[0]):
                for k in range(K):
                    g.biases[k] -= work.paces[work.waiting[at], k]


@inlined
def _pull_rates(
    s: Samples,
    g: Parts,
    t: int,
    i: int,
    piece: int,
    a: Reals,
    h: Reals,
    work: Work,
    tape: Tape,
    by_a: Floats,
    by_h: Floats,
) -> None:
    """Pull one task's part of taped step i back to its rates, pushes and errors.

    g: gradients after the step. Those by the pushes p go to work.fields[t] (K,), those by the
    errors e to work.back (C,).
    """
    zero = work.fields.dtype.type(0.0)
    for c in range(work.back.size):
        along = g.head_biases[t, c] if s.biases else zero
        for k in range(work.fields.shape[1]):
            along += g.heads[t, c, k] * tape.units[i, t, k]
        by_h[piece, t] -= tape.errors[i, t, c] * along
        work.back[c] = -h[piece, t] * along
    for k in range(work.fields.shape[1]):
        if tape.units[i, t, k] != 0:
            along, push = work.fields[t, k], zero
            if s.biases:
                along += g.biases[k]
            work.fields[t, k] = -a[piece, t] * along
            for c in range(work.back.size):
                push += tape.errors[i, t, c] * tape.heads[i, t, c, k]
                work.back[c] -= a[piece, t] * along * tape.heads[i, t, c, k]
            by_a[piece, t] -= push * along


@inlined
def _pull_task(
    s: Samples, g: Parts, t: int, i: int, n: int, h: Any, work: Work, tape: Tape
) -> None:
    """Pull one task's part of taped step i, of sample n, back to its heads and its features.

    The heads' gradients change in place, those of the features have to wait.
    """
    zero = work.fields.dtype.type(0.0)
    back = work.back
    if s.softmax:  # from the errors to the outputs
        mean = zero
        for c in range(back.size):
            mean += (tape.errors[i, t, c] + _target(s, t, n, c)) * back[c]
        for c in range(back.size):
            back[c] = (tape.errors[i, t, c] + _target(s, t, n, c)) * (back[c] - mean)
    for k in range(work.fields.shape[1]):
        by_unit = zero
        if tape.units[i, t, k] != 0:
            by_push = work.fields[t, k]
            for c in range(back.size):
                e = tape.errors[i, t, c]
                by_unit += back[c] * tape.heads[i, t, c, k] - h * e * g.heads[t, c, k]
                g.heads[t, c, k] += e * by_push + back[c] * tape.units[i, t, k]
        work.paces[t, k] = -by_unit
    if s.biases:
        for c in range(back.size):
            g.head_biases[t, c] += back[c]
    work.waiting[work.counts[0]] = index(t)
    work.counts[0] += index(1)
