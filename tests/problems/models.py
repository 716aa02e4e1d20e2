"""Small models whose best protocols are known, by automatic differentiation."""

from functools import cache

import jax.numpy as jnp
import numpy as np

from replan.models import AutoModel, DifferentiableModel, Knob

LR = Knob("lr", per_task=True, rate=True)


@cache
def fishing_model():
    """Return x′ = x − xy − 0.4xw, y′ = −y + xy − 0.2yw; task 2 is to fish (w = 1).

    x are prey and y predators (Lotka-Volterra; Sager 2005); the loss is ∫ (x − 1)² + (y − 1)².
    """

    def rate(state, task, lr):
        x, y, _ = state
        growth = jnp.array([x - x * y - 0.4 * x * task, -y + x * y - 0.2 * y * task])
        return jnp.append(growth, (x - 1) ** 2 + (y - 1) ** 2)

    return AutoModel(
        rate, lambda state: jnp.array([state[2], 0.0]), tasks=2, like=np.array([0.5, 0.7, 0.0])
    )


@cache
def averaging_model(tasks):
    """Return SGD on one noisy quadratic per task: v_t′ = lr_t² − 2 lr_t v_t while t is trained.

    The loss is v_t. lr_t = v_t lowers it most at any time: v′ = −v², so 1/v grows by S in a time S
    on the task. Tasks do not touch one another: their order does not matter.
    """

    def rate(state, task, lr):
        return jnp.zeros(tasks).at[task].set(lr**2 - 2 * lr * state[task])

    return AutoModel(rate, lambda state: state, tasks=tasks, like=np.ones(tasks))


@cache
def turnpike_model():
    """Return x′ = −1 or 1, with the losses ∫ x² and (x(T) − ½)²."""
    return AutoModel(
        lambda state, task, lr: jnp.array([2.0 * task - 1.0, state[0] ** 2]),
        lambda state: jnp.array([state[1], (state[0] - 0.5) ** 2]),
        tasks=2,
        like=np.array([1.0, 0.0]),
    )


@cache
def negative_model():
    """Return x′ = −1 or 1, with the losses (x(T) − 0.35)² − 1 and 0."""
    return AutoModel(
        lambda state, task, lr: jnp.array([2.0 * task - 1.0]),
        lambda state: jnp.array([(state[0] - 0.35) ** 2 - 1.0, 0.0]),
        tasks=2,
        like=np.array([0.1]),
    )


def noisy(x, lr, keep):
    """Return the rate of SGD on a noisy quadratic whose gradient is kept with a probability."""
    return -2 * lr * keep * x + lr**2 * (0.3 * keep**2 + 0.2 * x)


@cache
def noisy_model():
    """Return that model, with one task and two knobs."""
    return AutoModel(
        lambda x, task, lr, keep: noisy(x, lr, keep), lambda x: x, tasks=1, like=np.ones(1),
        knobs=[LR, Knob("keep", 0.0, 1.0, default=1.0)],
    )  # fmt: skip


@cache
def skills_model():
    """Return two skills that fade, with a cost of the effort; losses are not those of tasks."""

    def rate(x, task, lr, effort, *, fading):
        skills = x[:2]
        slope = lr * jnp.where(jnp.arange(2) == task, effort * (1 - skills), 0.0) - fading * skills
        return jnp.append(slope, effort**2 * (1 + x[0] * lr))

    def losses(x, *, fading):
        return jnp.array([jnp.sum((1 - x[:2]) ** 2), fading * x[0], x[2]])

    return AutoModel(
        rate, losses, tasks=2, like=np.zeros(3), knobs=[LR, Knob("effort", 0.0, 1.0, default=0.5)],
        parameters={"fading": 0.2}, loss_names=["gap", "praise", "cost"],
    )  # fmt: skip


class Shifted(DifferentiableModel):
    """Another model with a constant added to every loss."""

    kind = "shifted"

    def __init__(self, model, constant):
        self.model, self.constant, self.tasks = model, constant, model.tasks
        self.knobs = model.knobs
        self.pack, self.unpack = model.pack, model.unpack
        self.roll_out, self.roll_out_vjp = model.roll_out, model.roll_out_vjp
        self.losses_vjp = model.losses_vjp

    # These are abstract; the instance has the other model's.
    def roll_out(self, start, pieces): ...
    def roll_out_vjp(self, states, cotangents, pieces, tape=None): ...
    def losses_vjp(self, states, cotangents): ...

    def losses(self, states):
        return self.model.losses(states) + self.constant
