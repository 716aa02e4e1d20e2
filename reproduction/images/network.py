"""ImageNetwork: the training of networks on images as a model that replan can plan.

A step of SGD takes the next sample of every task with its share as its weight. Roll-outs are the
trainer's; JAX (extra `jax`) differentiates them, piece by piece.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replan.models import DifferentiableModel, Gradients, Schedule
from reproduction.images.tasks import ImageTasks, Ints
from reproduction.images.trainer import Weights

Floats = NDArray[np.float64]

_SEGMENT = 32  # steps that JAX differentiates at once; shorter segments are padded with rates of 0
_LOST = 10.0  # times the loss of outputs of 0, or at the start: training that ends above diverged
_WEIGHTS, _TRAINING, _PRETRAINING = range(3)  # what random numbers are for


class ImageNetwork(DifferentiableModel):
    """Networks of `hidden` units, one for each realisation: weights, a memory, orders of samples.

    A state holds the weights of all realisations and the time, in steps of SGD. Losses are means
    over realisations. The second task is the new one.

    - `memory`, `samples`: different samples of the old and of the new task, which come in passes;
      None for all there are.
    - `realisations`: their numbers. `images`: "held_out" or "test", which losses are of.
    - `real`: precision of the training.
    """

    kind = "image-network"

    def __init__(
        self,
        tasks: ImageTasks,
        *,
        hidden: int = 8,
        memory: int | None = None,
        samples: int | None = None,
        realisations: range = range(10),
        images: str = "held_out",
        real: type = np.float32,
    ) -> None:
        self.data, self.hidden, self.real, self.realisations = tasks, hidden, real, realisations
        self.tasks = len(tasks.pools)
        self.distinct = [memory] * (self.tasks - 1) + [samples]
        self.images = [tuple(x.astype(real) for x in part) for part in getattr(tasks, images)]
        self._orders: dict[int, Ints] = {}

    # States

    def pretrained(self, steps: int, lr: float) -> Floats:
        """Return the state after SGD on all images of task 1, from random weights."""
        rates = np.tile(lr * np.eye(1, self.tasks), (steps, 1))
        state = []
        for number in self.realisations:
            rng = np.random.default_rng([0, number, _WEIGHTS])
            weights = Weights.random(self.data, self.hidden, 1.0, 0.5, rng)
            orders = self._order(number, _PRETRAINING, steps)
            self._train(weights, orders, 0, rates)
            state += [weights.features.ravel(), weights.heads.ravel()]
        return np.concatenate([*state, [0.0]]).astype(np.float64)

    def weights(self, state: Floats) -> list[Weights]:
        """Return the weights of every realisation in a state."""
        features, heads = self._split(state)
        real = self.real
        return [
            Weights(f.astype(real), h.astype(real)) for f, h in zip(features, heads, strict=True)
        ]

    def _split(self, state: Floats) -> tuple[Floats, Floats]:
        """Return features (R, K, D) and heads (R, T, C, K) of a state."""
        rows = state[:-1].reshape(len(self.realisations), -1)
        K, D, C = self.hidden, self.data.pixels.shape[1], self.data.targets.shape[1]
        features, heads = np.split(rows, [K * D], axis=1)
        return features.reshape(-1, K, D), heads.reshape(-1, self.tasks, C, K)

    def _order(self, number: int, use: int, length: int) -> Ints:
        """Return the two images (T, 2, length) of the samples of every task of a realisation."""
        streams = []
        for t in range(self.tasks):
            rng = np.random.default_rng([0, number, use, t])
            first, second = (rng.permutation(pool) for pool in self.data.pools[t])
            most = self.distinct[t] if use == _TRAINING else None
            most = min(len(first), len(second)) if most is None else most
            passes = [rng.permutation(most) for _ in range(-(-length // most))]
            streams.append(
                np.stack([first[:most], second[:most]])[:, np.concatenate(passes)[:length]]
            )
        return np.stack(streams)

    def orders(self, length: int) -> list[Ints]:
        """Return the images of at least `length` samples of each realisation's tasks."""
        for number in self.realisations:
            if number not in self._orders or self._orders[number].shape[2] < length:
                self._orders[number] = self._order(number, _TRAINING, length)
        return [self._orders[number] for number in self.realisations]

    # The model

    def roll_out(self, start: Floats, pieces: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of SGD, up to the last that is finite."""
        edges, rates = _edges(start, pieces), pieces.shares * pieces.knobs
        orders, networks = self.orders(edges[-1]), self.weights(start)
        states, times = [start], np.cumsum([start[-1], *pieces.lengths])
        for i, row in enumerate(rates):
            for weights, order in zip(networks, orders, strict=True):
                self._train(weights, order, edges[i], np.tile(row, (edges[i + 1] - edges[i], 1)))
            parts = [x.ravel() for w in networks for x in (w.features, w.heads)]
            states.append(np.concatenate([*parts, times[i + 1 : i + 2]]).astype(np.float64))
            if not np.all(np.isfinite(states[-1])):
                return np.stack(states[:-1])
        return np.stack(states)

    def _train(self, weights: Weights, order: Ints, first: int, rates: Floats) -> None:
        samples = np.arange(first, first + len(rates))
        weights.train(self.data, order, np.tile(samples[:, None], self.tasks), rates)

    def losses(self, states: Floats) -> Floats:
        """Return the losses (…, T) at states (…, n): means over realisations and images."""
        rows = states.reshape(-1, states.shape[-1])
        return np.reshape(
            [self.losses_each(row).mean(axis=0) for row in rows], (*states.shape[:-1], -1)
        )

    def losses_each(self, state: Floats) -> Floats:
        """Return the losses (R, T) of each realisation at one state."""
        return np.stack([weights.losses(self.images) for weights in self.weights(state)])

    def final_losses(self, start: Floats, rates: Floats, lengths: Floats) -> Floats:
        """Return the losses (R, T) after training with rates (pieces, T); infinite if it diverged.

        It has where a loss is not finite, or more than ten times that of outputs of 0 and that at
        the start.
        """
        pieces = Schedule.single_steps(np.ones_like(rates), rates, lengths)
        edges = _edges(start, pieces)
        all_rates = np.repeat(rates, np.diff(edges), axis=0)
        networks = self.weights(start)
        for weights, order in zip(networks, self.orders(edges[-1]), strict=True):
            self._train(weights, order, edges[0], all_rates)
        losses = np.stack([weights.losses(self.images) for weights in networks])
        nothing = np.array([np.mean(np.sum(y**2, axis=1)) / 2 for _, y in self.images])
        most = _LOST * np.maximum(nothing, self.losses_each(start))
        return np.where(np.all(losses <= most, axis=1, keepdims=True), losses, np.inf)

    # Gradients

    @cached_property
    def _gradients(self) -> Any:
        return _Gradients(self.data, self.images)

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_t cotangents[…, t] × loss t."""
        pulled = np.zeros_like(states)
        for i in np.ndindex(states.shape[:-1]):
            if np.any(cotangents[i]):
                by = self._gradients.losses(*self._split(states[i]), cotangents[i])
                pulled[i][:-1] = self._joined(*by) / len(self.realisations)
        return pulled

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, pieces: Schedule, *_: Any
    ) -> Gradients:
        """Return the gradients of a roll-out; each piece is trained again, segment by segment."""
        edges, rates = _edges(states[0], pieces), pieces.shares * pieces.knobs
        orders = np.stack(self.orders(edges[-1]))
        adjoints, by_rates = cotangents.copy(), np.zeros_like(rates)
        for i in range(len(rates) - 1, -1, -1):
            segments = []  # where each begins, its images (m, R, T, 2) and its rates (m, T)
            weights = self._split(states[i])
            for first in range(edges[i], edges[i + 1], _SEGMENT):
                count = min(_SEGMENT, edges[i + 1] - first)
                images = np.zeros((_SEGMENT, *orders.shape[:3]), np.int64)
                images[:count] = np.moveaxis(orders[..., first : first + count], 3, 0)
                given = np.zeros((_SEGMENT, self.tasks))
                given[:count] = rates[i]
                segments.append((weights, images, given, count))
                if first + count < edges[i + 1]:
                    weights = self._gradients.train(*weights, images, given)
            by = self._split(adjoints[i + 1])
            for weights, images, given, count in reversed(segments):
                *by, by_given = self._gradients.pull(*weights, images, given, *by)
                by_rates[i] += np.asarray(by_given)[:count].sum(axis=0)
            adjoints[i, :-1] += self._joined(*by)
            adjoints[i, -1] += adjoints[i + 1, -1]
        return Gradients(adjoints, by_rates * pieces.knobs, by_rates * pieces.shares)

    def _joined(self, features: Any, heads: Any) -> Floats:
        R = len(self.realisations)
        parts = np.reshape(features, (R, -1)), np.reshape(heads, (R, -1))
        return np.concatenate(parts, axis=1).ravel()


class _Gradients:
    """The step of SGD and the losses in JAX, for all realisations at once, and their gradients."""

    def __init__(self, data: ImageTasks, images: Any) -> None:
        import jax
        import jax.numpy as jnp

        self._doubles = jax.enable_x64
        with self._doubles(True):
            pixels, targets = jnp.asarray(data.pixels), jnp.asarray(data.targets, float)
            f = jnp.asarray(data.factors, float)[..., None]
            parts = [tuple(jnp.asarray(x, float) for x in part) for part in images]

        def train(features: Any, heads: Any, samples: Any, rates: Any) -> Any:
            def step(weights: Any, sample: Any) -> Any:
                (W, V), (rows, rate) = weights, sample
                i, j = rows[..., 0], rows[..., 1]
                x = f[:, 0] * pixels[i] + f[:, 1] * pixels[j] + f[:, 2]
                y = f[:, 3] * targets[i] + f[:, 4] * targets[j]
                z = jax.nn.relu(jnp.einsum("rkd,rtd->rtk", W, x))
                error = jnp.einsum("rtck,rtk->rtc", V, z) - y
                push = jnp.where(z > 0, jnp.einsum("rtc,rtck->rtk", error, V), 0.0)
                W = W - jnp.einsum("t,rtk,rtd->rkd", rate, push, x)
                return (W, V - jnp.einsum("t,rtc,rtk->rtck", rate, error, z)), None

            return jax.lax.scan(step, (features, heads), (samples, rates))[0]

        def pull(features: Any, heads: Any, samples: Any, rates: Any, *by: Any) -> Any:
            _, back = jax.vjp(lambda W, V, r: train(W, V, samples, r), features, heads, rates)
            return back(by)

        def losses(features: Any, heads: Any, weights: Any) -> Any:
            total = 0.0
            for t, (x, y) in enumerate(parts):
                z = jax.nn.relu(jnp.einsum("rkd,nd->rnk", features, x))
                error = jnp.einsum("rck,rnk->rnc", heads[:, t], z) - y
                total += weights[t] * jnp.sum(error**2) / 2 / len(x)
            return total

        self._train, self._pull = jax.jit(train), jax.jit(pull)
        self._losses = jax.jit(jax.grad(losses, argnums=(0, 1)))

    def train(self, *arguments: Any) -> Any:
        """Return the weights after a segment."""
        with self._doubles(True):
            return self._train(*arguments)

    def pull(self, *arguments: Any) -> Any:
        """Return the gradients by features, heads and rates, given those by the weights after."""
        with self._doubles(True):
            return self._pull(*arguments)

    def losses(self, *arguments: Any) -> Any:
        """Return the gradients by features and heads of weighted losses, summed over networks."""
        with self._doubles(True):
            return self._losses(*arguments)


def _edges(start: Floats, pieces: Schedule) -> Ints:
    """Return the steps of SGD at which pieces begin and end; their times are rounded."""
    times = np.cumsum([start[-1], *pieces.lengths])
    return np.floor(times + 0.5 + 1e-6).astype(np.int64)
