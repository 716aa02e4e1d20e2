"""One pass over the first layer's weights: the last step's change, and this one's fields.

Nearly all time of training, and of its reverse, goes into reading and writing W (K, D). So a step's
change of W waits until the next step, which makes it and multiplies what it finds by its own inputs
in one go.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replan._common.compiled import index, inlined
from replan.networks._weights import Reals, part


class Work(NamedTuple):
    """Room for one step, and the change of W that waits for the next one: −Σ_t paces_t x_tᵀ.

    inputs: (2T, D), in turn those of a step in the first T rows and those of the next in the rest.
    first: (2,), the first row of the step before and of this one. fields: W x (T, K).
    paces: (T, K). waiting, looked: (T,) tasks of the change and of this step; counts: (2,) of both.
    needed: (K,) whether a unit's fields are needed. back: (C,).
    """

    inputs: Reals
    first: NDArray[np.uint64]
    fields: Reals
    paces: Reals
    waiting: NDArray[np.uint64]
    looked: NDArray[np.uint64]
    counts: NDArray[np.uint64]
    needed: NDArray[np.bool_]
    back: Reals


@inlined
def room(K: int, D: int, T: int, C: int, real: Any) -> Work:
    return Work(
        np.zeros((2 * T, D), real),
        np.array([0, T], np.uint64),
        np.zeros((T, K), real),
        np.zeros((T, K), real),
        np.zeros(T, np.uint64),
        np.zeros(T, np.uint64),
        np.zeros(2, np.uint64),
        np.ones(K, np.bool_),
        np.zeros(C, real),
    )


@inlined
def _change(W: Reals, k: Any, p: Any, q: Any, x: Reals, i: Any, j: Any) -> None:
    """Take p x_i + q x_j from row k of W."""
    for d in range(index(x.shape[1])):
        W[k, d] -= p * x[i, d] + q * x[j, d]


@inlined
def _multiply(W: Reals, k: Any, x: Reals, m: Any, n: Any) -> tuple[Any, Any]:
    """Return the products of row k of W with x_m and x_n."""
    f = g = x.dtype.type(0.0)
    for d in range(index(x.shape[1])):
        f += W[k, d] * x[m, d]
        g += W[k, d] * x[n, d]
    return f, g


@inlined
def _multiply_one(W: Reals, k: Any, x: Reals, m: Any) -> Any:
    """Return the product of row k of W with x_m."""
    f = x.dtype.type(0.0)
    for d in range(index(x.shape[1])):
        f += W[k, d] * x[m, d]
    return f


@inlined
def _change_and_multiply(
    W: Reals, k: Any, p: Any, q: Any, x: Reals, i: Any, j: Any, m: Any, n: Any
) -> tuple[Any, Any]:
    """Do both at once."""
    f = g = x.dtype.type(0.0)
    for d in range(index(x.shape[1])):
        new = W[k, d] - (p * x[i, d] + q * x[j, d])
        W[k, d] = new
        f += new * x[m, d]
        g += new * x[n, d]
    return f, g


@inlined
def _change_one_and_multiply(
    W: Reals, k: Any, p: Any, x: Reals, i: Any, m: Any, n: Any
) -> tuple[Any, Any]:
    """Do the same where there is only p x_i."""
    f = g = x.dtype.type(0.0)
    for d in range(index(x.shape[1])):
        new = W[k, d] - p * x[i, d]
        W[k, d] = new
        f += new * x[m, d]
        g += new * x[n, d]
    return f, g


@inlined
def _change_and_multiply_one(W: Reals, k: Any, p: Any, x: Reals, i: Any, m: Any) -> Any:
    """Do the same with one input each."""
    f = x.dtype.type(0.0)
    for d in range(index(x.shape[1])):
        new = W[k, d] - p * x[i, d]
        W[k, d] = new
        f += new * x[m, d]
    return f


@part
def one_pass(W: Reals, work: Work) -> None:
    """Make the change of W that waits, and write the fields of the tasks that are looked at.

    Tasks are taken in pairs. What is left for the last pass over a row of W is p x_i + q x_j.
    """
    x, old, new = work.inputs, work.first[0], work.first[1]
    for k in range(index(W.shape[0])):
        p = q = x.dtype.type(0.0)
        i = j = old
        for at in range(work.counts[0]):
            t = work.waiting[at]
            if work.paces[t, k] != 0:
                if q != 0:
                    _change(W, k, p, q, x, i, j)
                    p = q = x.dtype.type(0.0)
                if p == 0:
                    i, p = old + t, work.paces[t, k]
                else:
                    j, q = old + t, work.paces[t, k]
        if p != 0 and not (work.needed[k] and work.counts[1] > 0):
            _change(W, k, p, q, x, i, j)
        elif work.needed[k]:
            for at in range(index(0), work.counts[1], index(2)):
                t = u = work.looked[at]
                if at + index(1) < work.counts[1]:
                    u = work.looked[at + index(1)]
                if p == 0 and t == u:
                    f = g = _multiply_one(W, k, x, new + t)
                elif p == 0:
                    f, g = _multiply(W, k, x, new + t, new + u)
                elif q == 0 and t == u:
                    f = g = _change_and_multiply_one(W, k, p, x, i, new + t)
                elif q == 0:
                    f, g = _change_one_and_multiply(W, k, p, x, i, new + t, new + u)
                else:
                    f, g = _change_and_multiply(W, k, p, q, x, i, j, new + t, new + u)
                p = q = x.dtype.type(0.0)
                work.fields[t, k] = f
                work.fields[u, k] = g
    work.counts[0] = index(0)


@part
def settle(W: Reals, work: Work) -> None:
    """Make the change of W that waits, without a next step."""
    work.first[0], work.first[1] = work.first[1], work.first[0]
    work.counts[1] = index(0)
    one_pass(W, work)
