"""A model of a user's own by compiled functions: SGD on one noisy quadratic per task."""

from typing import NamedTuple

from replan.models import CompiledModel, Kernels, compiled


class Noise(NamedTuple):
    """The variance σ² of the gradients' noise."""

    variance: float


@compiled
def _averaging_rate(p, state, shares, lr, out):
    for t in range(state.size):
        out[t] = shares[t] * (p.variance * lr[t] ** 2 - 2 * lr[t] * state[t])


@compiled
def _averaging_rate_vjp(p, state, cotangent, shares, lr, scale, by_state, by_shares, by_lr):
    for t in range(state.size):
        by_state[t] = -2 * cotangent[t] * shares[t] * lr[t]
        by_shares[t] += scale * cotangent[t] * (p.variance * lr[t] ** 2 - 2 * lr[t] * state[t])
        by_lr[t] += scale * cotangent[t] * shares[t] * 2 * (p.variance * lr[t] - state[t])


@compiled
def _averaging_losses(p, state, out):
    out[:] = state


@compiled
def _averaging_losses_vjp(p, state, cotangent, out):
    out[:] = cotangent


class Averaging(CompiledModel):
    """v_t′ = −2 lr_t v_t + σ² lr_t² while task t is trained; its loss is v_t.

    lr_t = v_t / σ² lowers v_t most at any time: v′ = −v²/σ², so 1/v grows by S/σ² in a time S on
    the task. Tasks do not touch one another: their order does not matter.
    """

    kind = "averaging"

    def __init__(self, tasks, variance=1.0):
        self.tasks = tasks
        self.parameters = Noise(variance)

    parameters = None

    @classmethod
    def kernels(cls):
        return Kernels(
            Noise, _averaging_rate, _averaging_losses, _averaging_rate_vjp, _averaging_losses_vjp
        )
