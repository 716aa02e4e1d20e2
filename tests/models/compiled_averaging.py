"""A model of a user's own by compiled functions: SGD on one noisy quadratic per task.

The functions are Python's own, behind addresses that C can call: slow, but no compiler is needed.
"""

import ctypes

import numpy as np

from replan.models import CompiledModel, Kernels

POINTER = ctypes.POINTER(ctypes.c_double)


def _c_function(*kinds):
    return ctypes.CFUNCTYPE(None, *kinds)


@_c_function(*[POINTER] * 6)
def _rate(p, state, shares, lr, out, work):
    for t in range(int(p[0])):
        out[t] = shares[t] * (p[1] * lr[t] ** 2 - 2 * lr[t] * state[t])


@_c_function(*[POINTER] * 5, ctypes.c_double, *[POINTER] * 4)
def _rate_vjp(p, state, cotangent, shares, lr, scale, by_state, by_shares, by_lr, work):
    for t in range(int(p[0])):
        by_state[t] = -2 * cotangent[t] * shares[t] * lr[t]
        by_shares[t] += scale * cotangent[t] * (p[1] * lr[t] ** 2 - 2 * lr[t] * state[t])
        by_lr[t] += scale * cotangent[t] * shares[t] * 2 * (p[1] * lr[t] - state[t])


@_c_function(*[POINTER] * 4)
def _losses(p, state, out, work):
    for t in range(int(p[0])):
        out[t] = state[t]


@_c_function(*[POINTER] * 5)
def _losses_vjp(p, state, cotangent, out, work):
    for t in range(int(p[0])):
        out[t] = cotangent[t]


def _address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


class Averaging(CompiledModel):
    """v_t′ = −2 lr_t v_t + σ² lr_t² while task t is trained; its loss is v_t.

    lr_t = v_t / σ² lowers v_t most at any time: v′ = −v²/σ², so 1/v grows by S/σ² in a time S on
    the task. Tasks do not touch one another: their order does not matter.
    """

    kind = "averaging"

    def __init__(self, tasks, variance=1.0):
        self.tasks = self.state_size = tasks
        self.parameters = np.array([tasks, variance])

    parameters = state_size = None

    def kernels(self):
        return Kernels(*map(_address, (_rate, _rate_vjp, _losses, _losses_vjp)))
