"""Random teacher-student models, overlaps and schedules for tests."""

import ctypes

import numpy as np

from replan import TeacherStudent
from replan.core import library
from replan.models import Schedule


def random_model(K, P, T, **settings):
    """A model with correlated teachers, mixed heads with zeros among them, and overlaps of it."""
    rng = np.random.default_rng([K, P, T])
    w, B = rng.normal(size=(K, 9)), rng.normal(size=(P, 9))
    heads = rng.normal(size=(T, P)) * (rng.random((T, P)) < 0.7)
    model = TeacherStudent(B @ B.T / 9, hidden=K, teacher_heads=heads, **settings)
    return model, model.from_weights(w, rng.normal(size=(T, K)), B)


def flat(overlaps):
    return np.concatenate([overlaps.Q.ravel(), overlaps.M.ravel(), overlaps.V.ravel()])


def flat_rate(model, state, shares, knobs):
    """The rate (n,) by the first stage of a long RK4 step: nothing is compiled for it alone."""
    schedule = Schedule.single_steps(shares[None], knobs[None], np.array([2.0**40]))
    _, tape = model.roll_out_with_tape(state, schedule)
    return (tape[0, 1] - tape[0, 0]) / 2.0**39


def rate(model, overlaps, task, lr=1.0):
    """What `model.rate` returns."""
    [knobs] = model.layout.rows({"lr": lr, "feature_lr": 1.0, "head_lr": model.head_lr}, 1)
    shares = np.eye(model.tasks)[task]
    return model.unpack(flat_rate(model, model.pack(overlaps), shares, knobs))


def instance(shape, **settings):
    """A model with noise and a fixed head among trained ones, a schedule with a zero share."""
    K, P, T = shape
    flags = [t != 1 for t in range(T)]
    model, start = random_model(K, P, T, noise=0.6, head_lr=0.7, train_heads=flags, **settings)
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.ones(T), size=4)
    shares[1] = np.eye(T)[T - 1]
    knobs = 0.3 + rng.random((4, 3 * T))  # rates, factors of the features and of the heads
    schedule = Schedule(shares, knobs, 0.05 + 0.1 * rng.random(4), np.array([1, 2, 3, 1]))
    cotangents = symmetric(rng.normal(size=(5, K * K + K * P + T * K)), K)
    return model, model.pack(start), schedule, cotangents


def symmetric(rows, K):
    """Rows (…, n) with the part of Q made symmetric."""
    square = rows[..., : K * K].reshape(*rows.shape[:-1], K, K)
    square += np.swapaxes(square, -1, -2).copy()
    return rows


def rate(model, state, shares, knobs):
    """The rate (n,) at a single state, which need not be one of possible overlaps."""
    out = np.empty_like(state)
    model._call("rate", library.RATE, 1, state, shares, knobs, out)
    return out


def rate_vjp(model, state, cotangent, shares, knobs):
    """The gradient (n,) of cotangent · rate by the state: the kernel alone, without integrator."""
    kernels, pointer = model.kernels(), ctypes.c_void_p
    work, out = np.empty(kernels.room), np.empty_like(state)
    ctypes.CFUNCTYPE(None, pointer, pointer)(kernels.prepare)(
        model.parameters.ctypes.data, work.ctypes.data
    )
    signature = ctypes.CFUNCTYPE(None, *[pointer] * 5, ctypes.c_double, *[pointer] * 4)
    controls = np.zeros_like(shares), np.zeros_like(knobs)
    arrays = (model.parameters, state, cotangent, shares, knobs)
    signature(kernels.rate_vjp)(
        *(array.ctypes.data for array in arrays), 1.0,
        *(array.ctypes.data for array in (out, *controls, work)),
    )  # fmt: skip
    return out
