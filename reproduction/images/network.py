"""ImageNetwork: the training of networks on images as a model that replan can plan.

A step of SGD takes the next sample of every task with its share as its weight. Roll-outs are the
trainer's; JAX (extra `jax`) differentiates them, segment by segment.
"""

from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replan.models import DifferentiableModel, Gradients, Schedule
from reproduction.images.tasks import ImageTasks, Ints
from reproduction.images.trainer import Weights, mean_losses, random_weights, train

Floats = NDArray[np.float64]

_SEGMENT = 32  # steps that JAX keeps at once; the last segment is padded with rates of 0
_LOST = 10.0  # times the loss of outputs of 0, or at the start: training that ends above diverged
_WEIGHTS, _TRAINING, _PRETRAINING = range(3)  # what random numbers are for


class ImageNetwork(DifferentiableModel):
    """Networks of `hidden` units, one for each realisation: weights, a memory, orders of samples.

    A state holds the weights of all realisations and the time, in steps of SGD. Losses are means
    over realisations. The last task is the new one.

    - `memory`, `samples`: different samples of old tasks and of the new one, which come in passes;
      None, or more than there are, for all.
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
        self._orders = np.zeros((len(realisations), self.tasks, 2, 0), np.int64)

    # States

    def pretrained(self, steps: int, lr: float) -> Floats:
        """Return the state after SGD on all images of task 1, from random weights."""
        rngs = [np.random.default_rng([0, number, _WEIGHTS]) for number in self.realisations]
        weights = random_weights(self.data, self.hidden, 1.0, 0.5, rngs)
        orders = np.stack([self._order(n, _PRETRAINING, steps) for n in self.realisations])
        self._train(weights, orders, 0, np.tile(lr * np.eye(1, self.tasks), (steps, 1)))
        return np.append(self._joined(*weights), 0.0)

    def _split(self, state: Floats) -> Weights:
        """Return features (R, K, D) and heads (R, T, C, K) of a state."""
        K, D, C = self.hidden, self.data.pixels.shape[1], self.data.targets.shape[1]
        rows = state[:-1].reshape(len(self.realisations), -1)
        features, heads = np.split(rows, [K * D], axis=1)
        return features.reshape(-1, K, D), heads.reshape(-1, self.tasks, C, K)

    def _joined(self, features: Any, heads: Any) -> Floats:
        rows = [np.reshape(x, (len(self.realisations), -1)) for x in (features, heads)]
        return np.concatenate(rows, axis=1).ravel().astype(np.float64)

    def weights(self, state: Floats) -> Weights:
        """Return the weights of all realisations in a state, to be trained."""
        features, heads = (np.array(x, self.real) for x in self._split(state))
        return features, heads

    def _order(self, number: int, use: int, length: int) -> Ints:
        """Return the two images (T, 2, length) of the samples of every task of a realisation."""
        streams = []
        for t, distinct in enumerate(self.distinct):
            rng = np.random.default_rng([0, number, use, t])
            pools = [rng.permutation(pool) for pool in self.data.pools[t]]
            sizes = [len(pool) for pool in pools]
            most = min([*sizes, distinct] if distinct and use == _TRAINING else sizes)
            passes = [rng.permutation(most) for _ in range(-(-length // most))]
            pairs = np.stack([pool[:most] for pool in pools])
            streams.append(pairs[:, np.concatenate(passes)[:length]])
        return np.stack(streams)

    def orders(self, length: int) -> Ints:
        """Return the images (R, T, 2, …) of at least `length` samples of every task."""
        if self._orders.shape[3] < length:
            self._orders = np.stack([self._order(n, _TRAINING, length) for n in self.realisations])
        return self._orders

    # The model

    def roll_out(self, start: Floats, schedule: Schedule) -> Floats:
        """Return the states (pieces + 1, n) of SGD, up to the last that is finite."""
        edges, times = _edges(start, schedule.lengths)
        weights, states = self.weights(start), [start]
        for i, rates in enumerate(schedule.shares * schedule.knobs):
            count = edges[i + 1] - edges[i]
            self._train(weights, self.orders(edges[-1]), edges[i], np.tile(rates, (count, 1)))
            state = np.append(self._joined(*weights), times[i + 1])
            if not np.all(np.isfinite(state)):
                break
            states.append(state)
        return np.stack(states)

    def _train(self, weights: Weights, orders: Ints, first: int, rates: Floats) -> None:
        """Train on the samples from `first` on, with rates (m, T), in place."""
        samples = np.arange(first, first + len(rates))
        train(weights, self.data, orders, np.tile(samples[:, None], self.tasks), rates)

    def losses(self, states: Floats) -> Floats:
        """Return the losses (…, T) at states (…, n): means over realisations and images."""
        rows = states.reshape(-1, states.shape[-1])
        means = [mean_losses(self.weights(row), self.images).mean(axis=0) for row in rows]
        return np.reshape(means, (*states.shape[:-1], self.tasks))

    def final_losses(self, start: Floats, rates: Floats, lengths: Floats) -> Floats:
        """Return the losses (R, T) after training with rates (pieces, T); infinite if it diverged.

        That is where a loss is not finite, or more than ten times that of outputs of 0 and that at
        the start.
        """
        (edges, _), weights = _edges(start, lengths), self.weights(start)
        first = mean_losses(weights, self.images)
        all_rates = np.repeat(rates, np.diff(edges), axis=0)
        self._train(weights, self.orders(edges[-1]), edges[0], all_rates)
        losses = mean_losses(weights, self.images)
        nothing = np.array([np.mean(np.sum(y**2, axis=1)) / 2 for _, y in self.images])
        good = np.all(losses <= _LOST * np.maximum(nothing, first), axis=1, keepdims=True)
        return np.where(good, losses, np.inf)

    # Gradients

    @cached_property
    def _arrays(self) -> tuple[Any, ...]:
        """What JAX's steps read: pixels, targets and the factors of both."""
        return self.data.pixels, self.data.targets.astype(float), self.data.factors.astype(float)

    def losses_vjp(self, states: Floats, cotangents: Floats) -> Floats:
        """Return the gradients by the states of Σ_t cotangents[…, t] × loss t."""
        pulled = np.zeros_like(states)
        for i in np.ndindex(states.shape[:-1]):
            if np.any(cotangents[i]):
                by = _in_jax("losses", self.images, *self._split(states[i]), cotangents[i])
                pulled[i][:-1] = self._joined(*by) / len(self.realisations)
        return pulled

    def roll_out_vjp(
        self, states: Floats, cotangents: Floats, schedule: Schedule, tape: Any = None
    ) -> Gradients:
        """Return the gradients of a roll-out; JAX trains each piece again."""
        (edges, _), rates = _edges(states[0], schedule.lengths), schedule.shares * schedule.knobs
        orders = self.orders(edges[-1])
        adjoints, by_rates = cotangents.copy(), np.zeros_like(rates)
        for i in range(len(rates) - 1, -1, -1):
            samples = np.moveaxis(orders[..., edges[i] : edges[i + 1]], 3, 0)
            after = self._split(adjoints[i + 1])
            given = *self._split(states[i]), rates[i]
            *by, by_rates[i] = _in_jax("pull", self._arrays, samples, *given, *after)
            adjoints[i, :-1] += self._joined(*by)
            adjoints[i, -1] += adjoints[i + 1, -1]
        return Gradients(adjoints, by_rates * schedule.knobs, by_rates * schedule.shares)


def _edges(start: Floats, lengths: Floats) -> tuple[Ints, Floats]:
    """Return the steps of SGD at which pieces begin and end, and their times before rounding."""
    times = np.cumsum([start[-1], *lengths])
    return np.floor(times + 0.5 + 1e-6).astype(np.int64), times


def _in_jax(name: str, *arguments: Any) -> Any:
    import jax

    with jax.enable_x64(True):
        return _compiled()[name](*arguments)


@cache
def _compiled() -> dict[str, Any]:
    """Return the step of SGD, its vjp and that of the losses, for all realisations at once."""
    import jax
    import jax.numpy as jnp

    def train(arrays: Any, samples: Any, features: Any, heads: Any, rates: Any) -> Any:
        pixels, targets, factors = arrays
        f = factors[..., None]

        def step(weights: Any, sample: Any) -> Any:
            (W, V), (rows, rate) = weights, sample
            i, j = rows[..., 0], rows[..., 1]
            x = f[:, 0] * pixels[i] + f[:, 1] * pixels[j]
            y = f[:, 2] * targets[i] + f[:, 3] * targets[j]
            z = jax.nn.relu(jnp.einsum("rkd,rtd->rtk", W, x))
            error = jnp.einsum("rtck,rtk->rtc", V, z) - y
            push = jnp.where(z > 0, jnp.einsum("rtc,rtck->rtk", error, V), 0.0)
            W = W - jnp.einsum("t,rtk,rtd->rkd", rate, push, x)
            return (W, V - jnp.einsum("t,rtc,rtk->rtck", rate, error, z)), None

        @jax.checkpoint
        def segment(weights: Any, part: Any) -> Any:
            return jax.lax.scan(step, weights, part)

        count = -(-len(samples) // _SEGMENT) * _SEGMENT
        rows = jnp.resize(samples, (count, *samples.shape[1:]))
        steps = jnp.where(jnp.arange(count)[:, None] < len(samples), rates, 0.0)
        parts = [x.reshape(-1, _SEGMENT, *x.shape[1:]) for x in (rows, steps)]
        return jax.lax.scan(segment, (features, heads), tuple(parts))[0]

    def pull(arrays: Any, samples: Any, features: Any, heads: Any, rates: Any, *by: Any) -> Any:
        return jax.vjp(partial(train, arrays, samples), features, heads, rates)[1](by)

    def losses(parts: Any, features: Any, heads: Any, weights: Any) -> Any:
        total = 0.0
        for t, (x, y) in enumerate(parts):
            z = jax.nn.relu(jnp.einsum("rkd,nd->rnk", features, x))
            error = jnp.einsum("rck,rnk->rnc", heads[:, t], z) - y
            total += weights[t] * jnp.sum(error**2) / 2 / len(x)
        return total

    pull_losses = jax.grad(losses, argnums=(1, 2))
    return {"pull": jax.jit(pull), "losses": jax.jit(pull_losses)}
