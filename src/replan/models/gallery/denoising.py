"""Denoising: how noisy the inputs of an autoencoder should be, over time.

Notation: inputs are x = ±μ/√N + σ z in N dimensions, with a = μ·μ/N. Their noisy versions are
x̃ = κ x + √Δ ξ with κ = √(1 − Δ). The autoencoder f(x̃) = b x̃ + (w/√N) (w·x̃/√N) has the state
(m, q, b), m = w·μ/N and q = w·w/N. SGD on ½ |x − f|² has rate η for w, and η/N² for b, whose
gradient is N times as large.

At the noise Δ of the test, the squared error of N dimensions at a state is N R + C: `skip` is R,
and `cluster` is C. In SGD, b differs from its limit by O(1/N), which changes N R by O(1) unless b
is the best skip at the noise of the test.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from replan import check
from replan.check import Floats
from replan.errors import ArgumentError
from replan.models.gallery.base import GalleryModel
from replan.models.knobs import LR, Knob
from replan.models.registry import register

_MOST_NOISE = 0.999  # beyond it nothing is left of the input, and κ has no derivative

EXAMPLE = """\
[model]
kind = "denoising"
mean = 1.0                        # squared distance of the two clusters from 0
variance = 0.1                    # of the clusters, in every dimension
test_noise = 0.3                  # share of noise in the inputs of the test

[start]
m = 0.1                           # overlap of the weights with the direction of the clusters
q = 0.1                           # squared norm of the weights
b = 0.0                           # the skip

[training]
duration = 10.0
steps = 100                       # steps of the protocol
lr = 0.3
noise = 0.3                       # share of noise in the inputs, unless controlled

[control]
noise = { min = 0.0, max = 0.95 }
lr = false                        # or { min = 0.0, max = 2.0 }

[objective]
weights = [1.0, 1.0]              # of the skip's error per dimension, and of the clusters' in all

# [limits]
# mean = { noise = 0.3 }          # a budget of noise: on average over the training, exactly
"""


def _skip(b: Any, noise: Any, variance: Any) -> tuple[Any, Any, Any]:
    """Return the squares of the skip's residual and input per dimension, and their product."""
    kappa = (1 - noise) ** 0.5
    gap = 1 - b * kappa
    residual = gap**2 * variance + b**2 * noise
    return residual, kappa**2 * variance + noise, gap * kappa * variance - b * noise


def rate(
    state: Any, task: Any, lr: Any, noise: Any, *, mean: Any, variance: Any, test_noise: Any
) -> Any:
    """Return d(m, q, b)/dα, averages of polynomials of Gaussian fields."""
    import jax.numpy as jnp

    m, q, b = state
    kappa, total = jnp.sqrt(1 - noise), b + q
    clean = m**2 + variance * q  # square of the weights' field on the input
    noisy = kappa**2 * clean + noise * q
    signal = m * (mean + variance)  # product of the fields of the weights and of the clusters
    noisy_signal = kappa**2 * signal + noise * m
    residual, power, mixed = _skip(b, noise, variance)
    first = kappa * clean - total * noisy
    second = clean - 2 * kappa * total * clean + total**2 * noisy
    spread = noisy * residual + 2 * first * mixed + second * power
    drift = 2 * kappa * signal - (b + total) * noisy_signal - m * noisy
    return lr * jnp.array([drift, 4 * first + lr * spread, mixed])


def losses(state: Any, *, mean: Any, variance: Any, test_noise: Any) -> Any:
    """Return `skip` and `cluster` at the noise of the test."""
    import jax.numpy as jnp

    m, q, b = state
    kappa = jnp.sqrt(1 - test_noise)
    clean = m**2 + variance * q
    noisy = kappa**2 * clean + test_noise * q
    cluster = mean * (1 - b * kappa) ** 2 - 2 * kappa * clean + (2 * b + q) * noisy
    return jnp.array([_skip(b, test_noise, variance)[0], cluster])


@register
class Denoising(GalleryModel):
    """A linear autoencoder with tied weights and a skip, b x̃ + w (w·x̃)/N, on two clusters.

    Inputs ±μ/√N + σ z become x̃ = √(1 − Δ) x + √Δ ξ, and it learns to give x back. The share Δ of
    noise is the knob `noise`. Needs the extra `jax`.

    - `mean`: μ·μ/N. `variance`: σ². `test_noise`: Δ of the test.

    A start is (m, q, b), with m = w·μ/N and q = w·w/N. The losses at the noise of the test are
    `skip`, the squared error per dimension of the skip alone, and `cluster`, what the clusters and
    w change in the squared error of all dimensions together (negative where w helps).

    Examples:
        >>> model = replan.models.Denoising(test_noise=0.3)
        >>> problem = replan.Problem(model, (0.1, 0.1, 0.0), duration=5.0, noise=0.2)
        >>> run = replan.evaluate(problem, replan.strategies.one_task(problem))
        >>> dict(zip(model.loss_names, run.final_losses.round(3).tolist()))
        {'skip': 0.081, 'cluster': 0.279}
    """

    kind = "denoising"
    example = EXAMPLE
    entries = {"m": None, "q": None, "b": 0.0}  # noqa: RUF012
    least_dimension = 2  # along the clusters and across

    def __init__(
        self, *, mean: float = 1.0, variance: float = 0.1, test_noise: float = 0.3
    ) -> None:
        parameters = {
            "mean": check.number("mean", mean, above=0),
            "variance": check.number("variance", variance, above=0),
            "test_noise": check.number("test_noise", test_noise, at_least=0, at_most=_MOST_NOISE),
        }
        super().__init__(
            rate,
            losses,
            tasks=["inputs"],
            like=np.zeros(3),
            knobs=(LR, Knob("noise", 0.0, _MOST_NOISE, 0.3)),
            parameters=parameters,
            loss_names=["skip", "cluster"],
        )

    def pack(self, start: Any) -> Floats:
        """Return a start (m, q, b), checked, as a state."""
        state = check.array("start", start, (3,))
        m, q, _ = state.tolist()
        if q < 0 or m * m > q * self.parameters["mean"] * (1 + 1e-9):
            expected = "(m, q, b) with q ≥ 0 and m² ≤ q × mean"
            raise ArgumentError("start", expected, check.show(state.tolist()))
        return state

    # Simulation at finite size: the clusters lie along the first axis

    def make_weights(self, state: Floats, dimension: int, rng: np.random.Generator) -> Any:
        """Return the weights (N,) and the skip, as a list."""
        m, q, b = state.tolist()
        weights = np.zeros(dimension)
        along = m / sqrt(self.parameters["mean"])
        weights[:2] = along, sqrt(max(q - along**2, 0.0))
        return [sqrt(dimension) * weights, b]

    def sgd_step(self, weights: Any, task: int, knobs: Floats, rng: np.random.Generator) -> Any:
        """Draw an input (N,) and its noisy version; make a step on half the squared error."""
        w, b = weights
        N, noise = w.size, knobs[1]
        x = sqrt(self.parameters["variance"]) * rng.standard_normal(N)
        x[0] += sqrt(self.parameters["mean"]) * (1.0 if rng.random() < 0.5 else -1.0)
        noisy = sqrt(1 - noise) * x + sqrt(noise) * rng.standard_normal(N)
        field = w @ noisy / sqrt(N)
        residual = x - b * noisy - w * (field / sqrt(N))
        back = w @ residual / sqrt(N)
        weights[1] = b + knobs[0] / N**2 * float(residual @ noisy)
        w += knobs[0] / sqrt(N) * (field * residual + back * noisy)
        return weights

    def measure(self, weights: Any) -> Floats:
        """Return (m, q, b) of weights."""
        w, b = weights
        N = w.size
        return np.array([w[0] * sqrt(self.parameters["mean"]) / sqrt(N), w @ w / N, b])
