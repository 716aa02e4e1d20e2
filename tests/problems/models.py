"""Small models whose best protocols are known, compiled and by automatic differentiation."""

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from replan import check
from replan.models import (
    AutoModel,
    CompiledModel,
    DifferentiableModel,
    Kernels,
    compiled,
)


class Vectors:
    """States that users write as lists of numbers, `size` of them."""

    size: int

    def pack(self, start):
        return check.array("start", start, (self.size,))


# Fishing: x prey, y predators, task 2 is to fish (Lotka-Volterra; Sager 2005)


class Catch(NamedTuple):
    """What a fleet takes of prey and predators."""

    prey: float
    predators: float


@compiled
def _fishing_rate(p, state, shares, lr, out):
    x, y = state[0], state[1]
    whole, fished = shares[0] + shares[1], shares[1]
    out[0] = whole * (x - x * y) - fished * p.prey * x
    out[1] = whole * (x * y - y) - fished * p.predators * y
    out[2] = whole * ((x - 1) ** 2 + (y - 1) ** 2)


@compiled
def _pull_fishing_rate(p, state, cotangent, shares, lr, scale, by_state, by_shares, by_lr):
    x, y = state[0], state[1]
    a, b, c = cotangent[0], cotangent[1], cotangent[2]
    whole, fished = shares[0] + shares[1], shares[1]
    by_state[0] = whole * (a * (1 - y) + b * y + 2 * c * (x - 1)) - fished * p.prey * a
    by_state[1] = whole * (b * (x - 1) - a * x + 2 * c * (y - 1)) - fished * p.predators * b
    by_state[2] = 0.0
    either = a * (x - x * y) + b * (x * y - y) + c * ((x - 1) ** 2 + (y - 1) ** 2)
    by_shares[0] += scale * either
    by_shares[1] += scale * (either - a * p.prey * x - b * p.predators * y)


@compiled
def _fishing_losses(p, state, out):
    out[0], out[1] = state[2], 0.0


@compiled
def _pull_fishing_losses(p, state, cotangent, out):
    out[0], out[1], out[2] = 0.0, 0.0, cotangent[0]


class Fishing(Vectors, CompiledModel):
    """x′ = x − xy − 0.4xw, y′ = −y + xy − 0.2yw; the loss is ∫ (x − 1)² + (y − 1)²."""

    kind = "fishing"
    tasks = 2
    size = 3
    parameters = Catch(0.4, 0.2)

    @classmethod
    def kernels(cls):
        return Kernels(
            Catch, _fishing_rate, _fishing_losses, _pull_fishing_rate, _pull_fishing_losses
        )


@cache
def auto_fishing():
    """Return the same by automatic differentiation."""

    def rate(state, task, lr):
        x, y, _ = state
        return jnp.array(
            [
                x - x * y - 0.4 * x * task,
                -y + x * y - 0.2 * y * task,
                (x - 1) ** 2 + (y - 1) ** 2,
            ]
        )

    return AutoModel(
        rate, lambda state: jnp.array([state[2], 0.0]), tasks=2, like=np.array([0.5, 0.7, 0.0])
    )


# Averaging: SGD on one noisy quadratic per task


class Noise(NamedTuple):
    """The variance σ² of the gradients' noise."""

    variance: float


@compiled
def _averaging_rate(p, state, shares, lr, out):
    for t in range(state.size):
        out[t] = shares[t] * (p.variance * lr[t] ** 2 - 2 * lr[t] * state[t])


@compiled
def _pull_averaging_rate(p, state, cotangent, shares, lr, scale, by_state, by_shares, by_lr):
    for t in range(state.size):
        by_state[t] = -2 * cotangent[t] * shares[t] * lr[t]
        by_shares[t] += scale * cotangent[t] * (p.variance * lr[t] ** 2 - 2 * lr[t] * state[t])
        by_lr[t] += scale * cotangent[t] * shares[t] * 2 * (p.variance * lr[t] - state[t])


@compiled
def _averaging_losses(p, state, out):
    out[:] = state


@compiled
def _pull_averaging_losses(p, state, cotangent, out):
    out[:] = cotangent


class Averaging(Vectors, CompiledModel):
    """v_t′ = −2 lr_t v_t + σ² lr_t² while task t is trained; its loss is v_t.

    lr_t = v_t / σ² lowers v_t most at any time: v′ = −v²/σ², so 1/v grows by S/σ² in a time S on
    the task. Tasks do not touch one another: their order does not matter.
    """

    kind = "averaging"

    def __init__(self, tasks, variance=1.0):
        self.tasks = self.size = tasks
        self.parameters = Noise(variance)

    parameters = None

    @classmethod
    def kernels(cls):
        return Kernels(
            Noise, _averaging_rate, _averaging_losses, _pull_averaging_rate, _pull_averaging_losses
        )


@cache
def auto_averaging(tasks):
    """Return the same, with σ² = 1, by automatic differentiation."""

    def rate(state, task, lr):
        return jnp.zeros(tasks).at[task].set(lr**2 - 2 * lr * state[task])

    return AutoModel(rate, lambda state: state, tasks=tasks, like=np.ones(tasks))


# On a line: x′ = ±1


@cache
def turnpike():
    """Return x′ = −1 or 1, with the losses ∫ x² and (x(T) − ½)²."""
    return AutoModel(
        lambda state, task, lr: jnp.array([2.0 * task - 1.0, state[0] ** 2]),
        lambda state: jnp.array([state[1], (state[0] - 0.5) ** 2]),
        tasks=2,
        like=np.array([1.0, 0.0]),
    )


@cache
def below_zero():
    """Return x′ = −1 or 1, with the losses (x(T) − 0.35)² − 1 and 0."""
    return AutoModel(
        lambda state, task, lr: jnp.array([2.0 * task - 1.0]),
        lambda state: jnp.array([(state[0] - 0.35) ** 2 - 1.0, 0.0]),
        tasks=2,
        like=np.array([0.1]),
    )


class Shifted(Vectors, DifferentiableModel):
    """Another model with a constant added to every loss."""

    kind = "shifted"

    def __init__(self, model, constant):
        self.model, self.constant, self.tasks = model, constant, model.tasks
        self.knobs = model.knobs

    def pack(self, start):
        return self.model.pack(start)

    def unpack(self, states):
        return self.model.unpack(states)

    def losses(self, states):
        return self.model.losses(states) + self.constant

    def roll_out(self, start, pieces):
        return self.model.roll_out(start, pieces)

    def losses_vjp(self, states, cotangents):
        return self.model.losses_vjp(states, cotangents)

    def roll_out_vjp(self, states, cotangents, pieces):
        return self.model.roll_out_vjp(states, cotangents, pieces)
