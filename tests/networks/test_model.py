"""The image network as a dynamics: its training, its exact reverse, files and the command line."""

import dataclasses
import json
import tomllib
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner

import replan
from replan import Control, IntegrationError, Limits, Problem, networks, strategies
from replan._common.statistics import mean_interval
from replan.cli._app import app
from replan.control import Controls, Objective
from replan.dynamics import Pieces, find
from replan.networks import ImageNetwork, ImageTasks, NetworkWeights, _trainer, image_tasks
from replan.networks._network import train as train_in_order
from replan.networks._realisations import check_distinct

LOSSES = ("squared-error", "cross-entropy")
START = {"steps": 30, "lr": 0.05}


def small_tasks(tasks=2, outputs=1, images=40, pixels=12, seed=0):
    """Tasks of random images, with mixtures in every task but the first."""
    rng = np.random.default_rng(seed)
    rows = np.arange(images)

    def samples(count):
        if outputs == 1:
            targets = rng.choice([-1.0, 1.0], (count, 1))
        else:
            targets = 2 * np.eye(outputs)[rng.integers(outputs, size=count)] - 1
        inputs = rng.uniform(size=(count, pixels)) / np.sqrt(pixels)
        return inputs.astype(np.float32), targets.astype(np.float32)

    return ImageTasks(
        pixels=rng.integers(0, 256, (images, pixels), dtype=np.uint8),
        targets=samples(images)[1],
        pools=[(rows[t::tasks], rows[(t + 1) % tasks :: tasks]) for t in range(tasks)],
        mix=np.linspace(1.0, 0.4, tasks).astype(np.float32),
        scale=1 / 80,
        shift=-0.4,
        held_out=[samples(9) for _ in range(tasks)],
        test=[samples(11) for _ in range(tasks)],
        settings={},
    )


def small_network(tasks=2, outputs=1, **settings):
    given = {"hidden": 5, "realisations": 2, "precision": "double", "memory": 3, "samples": 7}
    return ImageNetwork(small_tasks(tasks, outputs), **given | settings)


def some_pieces(model, lengths=(6.0, 9.4, 5.6), seed=1):
    """Pieces with all shares and knobs different, one task without a share, another at rate 0."""
    rng = np.random.default_rng(seed)
    T = model.tasks
    shares = rng.dirichlet(np.ones(T), len(lengths))
    shares[1] = np.eye(T)[-1]
    knobs = np.hstack(
        [rng.uniform(0.02, 0.2, (len(lengths), T)), rng.uniform(0.5, 2, (len(lengths), 2 * T))]
    )
    knobs[0, T - 1] = 0.0
    return Pieces.whole(shares, knobs, np.array(lengths))


def weighted_loss(model, states, weights):
    """Σ weights × losses at all edges."""
    return float(np.sum(model.losses(states) * weights))


def gradients(model, start, pieces, weights):
    states = model.roll_out(start, pieces)
    return model.pull_back(states, model.pull_losses(states, weights), pieces)


def start_with_a_dead_unit(model):
    """A pretrained start where one unit of the first realisation is off on every input."""
    weights = model.unpack(model.pack(model.pretrain(**START)))
    weights.features[0, 0] = -3.0
    weights.features[1, 2] -= 0.5  # off on most
    state = model.pack(weights)
    inputs = model.data.scale * model.data.pixels.astype(float) + model.data.shift
    assert np.all(inputs @ weights.features[0, 0] + weights.biases[0, 0] < 0)
    return state


# The forward


def plain_training(model, r, start, pieces):
    """One realisation's weights after some pieces, as written down, in float64."""
    own = model.unpack(start)
    W, b, V, c = (np.array(part[r], float) for part in own[:4])
    T = model.tasks
    step = np.floor(np.cumsum([start[-1], *pieces.lengths]) + 0.5).astype(int)
    stream = model._trainer.stream(r, 1, step[-1])
    pixels, targets = model.data.pixels.astype(float), model._trainer.targets(model.data.targets)
    root, mix = np.sqrt(pixels.shape[1]), model.data.mix.astype(float)
    for i, (shares, knobs) in enumerate(zip(pieces.shares, pieces.knobs, strict=True)):
        for n in range(step[i], step[i + 1]):
            moves = [np.zeros_like(part) for part in (W, b, V, c)]
            for t in range(T):
                one, two = stream[t, :, n]
                g = mix[t]
                mixed = g * pixels[one] + (1 - g) * pixels[two]
                x = (model.data.scale * mixed + model.data.shift) / root
                y = g * targets[one] + (1 - g) * targets[two]
                fields = W @ x + b
                z = np.maximum(fields, 0)
                e = V[t] @ z + c[t]
                if model.loss == "cross-entropy":
                    e = np.exp(e) / np.exp(e).sum()
                e = e - y
                push = (V[t].T @ e) * (fields > 0)
                rate = shares[t] * knobs[t]
                features, heads = rate * knobs[T + t], rate * knobs[2 * T + t]
                moves[0] += features * np.outer(push, x)
                moves[1] += features * push * model.biases
                moves[2][t] += heads * np.outer(e, z)
                moves[3][t] += heads * e * model.biases
            for part, move in zip((W, b, V, c), moves, strict=True):
                part -= move
    return W, b, V, c


@pytest.mark.parametrize(("loss", "biases"), list(product(LOSSES, [False, True])))
def test_training_is_that_of_the_formulas(loss, biases):
    model = small_network(3, 3, loss=loss, biases=biases)
    start, pieces = start_with_a_dead_unit(model), some_pieces(model)
    end = model.unpack(model.roll_out(start, pieces)[-1])
    for r in range(2):
        for found, wanted in zip(end, plain_training(model, r, start, pieces), strict=False):
            np.testing.assert_allclose(found[r], wanted, atol=1e-10)


def test_one_task_at_a_time_is_the_training_of_experiments():
    """In single precision, and with an order of tasks: the compiled training that was there."""
    model = small_network(hidden=4, precision="single", realisations=1)
    start = model.pack(model.fresh())
    order = np.array([0, 1, 1, 0, 1] * 6)
    pieces = Pieces.whole(np.eye(2)[order], np.tile([0.1, 0.1, 1, 1, 1, 1], (30, 1)), np.ones(30))
    found = model.unpack(model.roll_out(start, pieces)[-1])
    own = model.unpack(start)
    weights, heads = (x[0].astype(np.float32) for x in (own.features, own.heads))
    stream, data = model._trainer.stream(0, 1, 30), model.data
    for n, task in enumerate(order):  # where sample n of a task is the one of step n
        train_in_order(
            weights, heads, data.pixels, data.targets, stream.astype(np.int64),
            np.full(2, n), data.mix, np.array([task]), np.full(1, 0.1, np.float32), data.scale,
            data.shift,
        )  # fmt: skip
    np.testing.assert_allclose(found.features[0], weights, atol=2e-6)
    np.testing.assert_allclose(found.heads[0], heads, atol=2e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_are_those_of_the_formulas(loss):
    model = small_network(2, 3, loss=loss, biases=True)
    state = start_with_a_dead_unit(model)
    own = model.unpack(state)
    wanted = np.zeros((2, 2))
    for r, t in product(range(2), range(2)):
        inputs, targets = (part.astype(float) for part in model.data.held_out[t])
        z = np.maximum(inputs @ own.features[r].T + own.biases[r], 0)
        o = z @ own.heads[r, t].T + own.head_biases[r, t]
        if loss == "squared-error":
            wanted[r, t] = 0.5 * np.mean(np.sum((o - targets) ** 2, axis=1))
        else:
            logs = o - np.log(np.exp(o).sum(axis=1, keepdims=True))
            wanted[r, t] = -np.mean(np.sum((1 + targets) / 2 * logs, axis=1))
    np.testing.assert_allclose(model.losses_of_each(state), wanted, rtol=1e-6)
    np.testing.assert_allclose(model.losses(state), wanted.mean(axis=0), rtol=1e-6)


def test_a_run_of_steps_against_torch():
    torch = pytest.importorskip("torch")
    model = small_network(2, 3, loss="cross-entropy", biases=True, precision="single")
    start = start_with_a_dead_unit(model)
    shares, lr, steps = np.array([0.3, 0.7]), 0.1, 40
    pieces = Pieces.whole(shares[None], np.array([[lr, lr, 1, 1, 1, 1]]), np.array([steps * 1.0]))
    found = model.unpack(model.roll_out(start, pieces)[-1])
    own = model.unpack(start)
    parts = [
        torch.tensor(part[0], dtype=torch.float32, requires_grad=True)
        for part in (own.features, own.biases, own.heads, own.head_biases)
    ]
    stream, data = model._trainer.stream(0, 1, steps), model.data
    pixels = torch.tensor(data.pixels, dtype=torch.float32) * data.scale + data.shift
    pixels /= np.sqrt(pixels.shape[1])
    targets = torch.tensor((1 + data.targets) / 2)
    optimiser = torch.optim.SGD(parts, lr=lr)
    for n in range(steps):
        total = 0.0
        for t in range(2):
            one, two = stream[t, :, n]
            g = float(data.mix[t])
            x = g * pixels[one] + (1 - g) * pixels[two]
            y = g * targets[one] + (1 - g) * targets[two]
            hidden = torch.relu(torch.nn.functional.linear(x, parts[0], parts[1]))
            out = torch.nn.functional.linear(hidden, parts[2][t], parts[3][t])
            total = total + shares[t] * torch.nn.functional.cross_entropy(out, y)
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
    for ours, theirs in zip(found, parts, strict=False):
        np.testing.assert_allclose(ours[0], theirs.detach().numpy(), atol=2e-5)


# The reverse


@pytest.mark.parametrize(
    ("loss", "biases", "tasks", "outputs"),
    [(*pair, *size) for pair in product(LOSSES, [False, True]) for size in [(2, 1), (3, 3)]],
)
def test_gradients_against_finite_differences(loss, biases, tasks, outputs):
    model = small_network(tasks, outputs, loss=loss, biases=biases)
    start, pieces = start_with_a_dead_unit(model), some_pieces(model)
    weights = np.random.default_rng(2).uniform(size=(len(pieces.lengths) + 1, tasks))
    found = gradients(model, start, pieces, weights)

    def difference(change):
        ends = [weighted_loss(model, change(sign * 1e-6), weights) for sign in (1, -1)]
        return (ends[0] - ends[1]) / 2e-6

    for name, by in (("shares", found.by_shares), ("knobs", found.by_knobs)):
        given = getattr(pieces, name)
        for index in np.ndindex(given.shape):

            def change(size, name=name, given=given, index=index):
                moved = given.copy()
                moved[index] += size
                return model.roll_out(start, pieces._replace(**{name: moved}))

            assert by[index] == pytest.approx(difference(change), abs=1e-6)
    rng = np.random.default_rng(3)
    for _ in range(5):  # directions of the start
        direction = rng.standard_normal(start.size)
        direction[-1] = 0.0
        if not biases:
            unpacked = model.unpack(direction)
            direction = model.pack(
                unpacked._replace(biases=0 * unpacked.biases, head_biases=0 * unpacked.head_biases)
            )
        wanted = difference(lambda size, d=direction: model.roll_out(start + size * d, pieces))
        assert found.adjoints[0] @ direction == pytest.approx(wanted, abs=1e-6)


def jax_gradients(model, start, pieces, weights, dtype):
    """The same by automatic differentiation of the whole training, in JAX."""
    import jax
    import jax.numpy as jnp

    T, R = model.tasks, len(model.realisations)
    step = np.floor(np.cumsum([0.0, *pieces.lengths]) + 0.5).astype(int)
    piece = np.repeat(np.arange(len(pieces.lengths)), np.diff(step))
    streams = np.stack([model._trainer.stream(r, 1, step[-1])[..., : step[-1]] for r in range(R)])
    mix = np.stack([model.data.mix, 1 - model.data.mix.astype(float)], axis=1)

    def samples(rows):  # (R, steps, T, …)
        return np.einsum("ti,rtin...->rnt...", mix, rows[streams]).astype(dtype)

    pixels = (model.data.scale * model.data.pixels + model.data.shift) / np.sqrt(12)
    inputs, targets = (
        samples(pixels),
        samples(np.asarray(model._trainer.targets(model.data.targets))),
    )
    own = [np.asarray(part, dtype) for part in model.unpack(start)[:4]]

    def loss(w, x, y, t):
        W, b, V, c = w
        o = V[t] @ jax.nn.relu(W @ x + b * model.biases) + c[t] * model.biases
        if model.loss == "cross-entropy":
            return -jnp.sum(y * jax.nn.log_softmax(o))
        return jnp.sum((o - y) ** 2) / 2

    def train(w, inputs, targets, shares, knobs):
        def sgd(w, sample):
            i, x, y = sample
            new = list(w)
            for t in range(T):
                by = jax.grad(loss)(w, x[t], y[t], t)
                rate = shares[i, t] * knobs[i, t]
                for j, factor in enumerate([knobs[i, T + t]] * 2 + [knobs[i, 2 * T + t]] * 2):
                    new[j] = new[j] - rate * factor * by[j]
            return new, new

        _, states = jax.lax.scan(sgd, w, (piece, inputs, targets))
        states = [jnp.concatenate([x[None], later]) for x, later in zip(w, states, strict=True)]
        return [part[step] for part in states]

    def objective(parts, shares, knobs):
        edges = jax.vmap(train, (0, 0, 0, None, None))(parts, inputs, targets, shares, knobs)
        total = 0.0
        for t in range(T):
            of_samples = jax.vmap(loss, (None, 0, 0, None))
            at_edges = jax.vmap(jax.vmap(of_samples, (0, None, None, None)), (0, None, None, None))
            total += jnp.sum(
                weights[:, t] * at_edges(edges, *model._trainer._looked_at[t], t).mean((0, 2))
            )
        return total

    given = own, pieces.shares.astype(dtype), pieces.knobs.astype(dtype)
    by = jax.jit(jax.grad(objective, argnums=(0, 1, 2)))(*given)
    flat = np.concatenate([np.asarray(part, np.float64).reshape(R, -1) for part in by[0]], axis=1)
    return flat.ravel(), np.asarray(by[1], np.float64), np.asarray(by[2], np.float64)


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-10), ("single", 1e-3)])
@pytest.mark.parametrize(("loss", "biases"), list(product(LOSSES, [False, True])))
def test_gradients_against_jax(loss, biases, precision, tolerance):
    jax = pytest.importorskip("jax")
    model = small_network(2, 3, loss=loss, biases=biases, precision=precision)
    start = start_with_a_dead_unit(model)
    pieces = some_pieces(model)
    weights = np.random.default_rng(2).uniform(size=(4, 2))
    found = gradients(model, start, pieces, weights)
    with jax.enable_x64(precision == "double"):
        wanted = jax_gradients(
            model, start, pieces, weights, np.float64 if precision == "double" else np.float32
        )
    for ours, theirs in zip((found.adjoints[0, :-1], *found[1:]), wanted, strict=True):
        assert np.abs(theirs).max() > 1e-3
        np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max(), rtol=0)


def test_segments_change_nothing(monkeypatch):
    """Memory is bounded by segments; only roundings differ."""
    model = small_network(2, 3, loss="cross-entropy", biases=True)
    start, pieces = start_with_a_dead_unit(model), some_pieces(model, (1.0, 20.0, 0.3, 13.0))
    weights = np.ones((5, 2))
    whole = gradients(model, start, pieces, weights)
    assert model._trainer.at_once(10_000) == 10_000
    per_step = 2 * (5 + 3 + 15)
    for steps in (1, 3, 7):
        monkeypatch.setattr(_trainer, "_TAPE", steps * per_step)
        assert model._trainer.at_once(10_000) == steps
        for one, other in zip(whole, gradients(model, start, pieces, weights), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * np.abs(one).max())


@pytest.mark.parametrize(("loss", "biases"), list(product(LOSSES, [False, True])))
def test_a_recorded_training_is_pulled_back_without_another(loss, biases, monkeypatch):
    model = small_network(3, 2, loss=loss, biases=biases)
    start, pieces = start_with_a_dead_unit(model), some_pieces(model)
    states, record = model.record(start, pieces)
    np.testing.assert_allclose(states, model.roll_out(start, pieces), rtol=0, atol=1e-13)
    cotangents = model.pull_losses(states, np.ones((4, 3)))
    wanted = model.pull_back(states, cotangents, pieces)
    unknown = np.full_like(states[1:], np.nan)  # nothing is trained again from them
    found = model.pull_back(np.concatenate([states[:1], unknown]), cotangents, pieces, *record)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * np.abs(other).max())
    steps = 2 * 21  # of both realisations
    monkeypatch.setattr(_trainer, "_TAPE", steps * 3 * (5 + 2 + 10))
    assert len(model.record(start, pieces)[1]) == 1
    monkeypatch.setattr(_trainer, "_TAPE", (steps - 1) * 3 * (5 + 2 + 10))
    assert model.record(start, pieces)[1] == ()  # too much to keep


def test_what_does_not_fit_the_pieces_is_refused():
    """Compiled code would read beyond its arrays."""
    model = small_network()
    start, pieces = model.pack(model.fresh()), some_pieces(model)
    states, record = model.record(start, pieces)
    with pytest.raises(ValueError, match=r"`states` expects shape \(4, .*got \(3, "):
        model.pull_back(states[:3], states, pieces)
    with pytest.raises(ValueError, match=r"`cotangents` expects shape \(4, .*got \(3, "):
        model.pull_back(states, states[:3], pieces)
    shorter = pieces._replace(lengths=pieces.lengths - 1)
    with pytest.raises(ValueError, match="`record` expects tapes of 18 steps"):
        model.pull_back(states, states, shorter, *record)
    for call in (model.roll_out, model.record):
        with pytest.raises(ValueError, match="`pieces` expects knobs of shape"):
            call(start, pieces._replace(knobs=np.ones((3, 5))))


def test_threads_and_realisations_change_nothing():
    found = []
    for threads in (1, 3):
        model = small_network(precision="single", realisations=5, threads=threads)
        start, pieces = model.pack(model.pretrain(**START)), some_pieces(model)
        found.append(
            (model.roll_out(start, pieces), *gradients(model, start, pieces, np.ones((4, 2))))
        )
    for one, other in zip(*found, strict=True):
        assert np.array_equal(one, other)
    alone = small_network(precision="single", realisations=[3])
    one = alone.roll_out(alone.pack(alone.pretrain(**START)), pieces)
    size = alone._trainer.size
    assert np.array_equal(one[:, :-1], found[0][0][:, 3 * size : 4 * size])


# Time, samples, realisations


def test_a_roll_out_can_begin_in_the_middle_and_be_cut_anywhere():
    model = small_network()
    start = model.pack(model.fresh())
    pieces = some_pieces(model, (5.5, 2.2, 7.3))
    whole = model.roll_out(start, pieces)
    assert whole[:, -1] == pytest.approx([0, 5.5, 7.7, 15])
    rest = model.roll_out(whole[1], pieces.only(1, 3))
    np.testing.assert_allclose(rest, whole[1:], atol=1e-13)
    assert np.array_equal(model.roll_out(start, pieces.cut(7))[::7][:, :-1], whole[:, :-1])
    more = pieces._replace(substeps=np.full(3, 64))
    assert np.array_equal(model.roll_out(start, more), whole)
    still = pieces._replace(lengths=np.array([0.2, 0.2, 0.05]))  # no whole step
    assert np.array_equal(model.roll_out(start, still)[-1, :-1], start[:-1])
    pulled = gradients(model, start, still, np.ones((4, 2)))
    assert not pulled.by_shares.any()


def test_old_tasks_replay_their_memory_and_the_new_one_its_samples():
    model = small_network(3, memory=4, samples=6, realisations=2)
    for r in range(2):
        stream = model._trainer.stream(r, 1, 40)
        for task, most in ((0, 4), (1, 4), (2, 6)):
            pairs = list(zip(*stream[task][:, :40].tolist(), strict=True))
            assert len(set(pairs)) == most
            assert len(set(pairs[:most])) == most  # a pass has them all
            assert {one for one, _ in pairs} <= set(model.data.pools[task][0].tolist())
            assert {two for _, two in pairs} <= set(model.data.pools[task][1].tolist())
    first, second = model._trainer.stream(0, 1, 40), model._trainer.stream(1, 1, 40)
    assert not np.array_equal(first, second)
    assert np.array_equal(small_network(3, memory=4, samples=6)._trainer.stream(0, 1, 5)[..., :5],
                          first[..., :5])  # fmt: skip
    everything = small_network(2, memory=None, samples=None)._trainer.stream(0, 1, 40)
    assert len(set(everything[0, 0].tolist())) == 20


def test_unseen_realisations_and_images_are_others():
    model = small_network(realisations=[0, 4])
    other = model.unseen(3)
    assert other.realisations == [5, 6, 7]
    states = [x.pack(x.pretrain(**START)) for x in (model, other)]
    assert states[1].size == 3 * model._trainer.size + 1
    inputs = model.data.test[0][0]
    assert np.array_equal(other._trainer._looked_at[0][0], inputs.astype(float))
    same = small_network(realisations=[5])  # on held-out images
    assert np.array_equal(same.pack(same.pretrain(**START))[:-1], states[1][: model._trainer.size])


# As any other model


@pytest.fixture(scope="module")
def problem():
    model = small_network(hidden=4, realisations=3, precision="single", memory=None, samples=None)
    return Problem(model, model.pretrain(100, lr=0.1), duration=60.0, steps=6, lr=0.1)


@pytest.fixture(scope="module")
def plan(problem):
    return replan.solve(problem, starts=0, throw=False)


def test_evaluate_rolls_out_once_and_has_no_error(problem, monkeypatch):
    calls = []
    roll_out = ImageNetwork.roll_out
    monkeypatch.setattr(
        ImageNetwork, "roll_out", lambda *given: calls.append(1) or roll_out(*given)
    )
    run = replan.evaluate(problem, strategies.interleaved(problem))
    assert len(calls) == 1
    assert run.error == 0.0
    assert run.losses.shape == (7, 2)
    assert run.loss == pytest.approx(run.losses[-1].mean())
    assert isinstance(run.unpacked, NetworkWeights)
    assert run.unpacked.features.shape == (7, 3, 4, 12)
    calls.clear()
    Objective(problem, 6)
    assert not calls  # no integrator to choose


def test_the_objective_has_the_gradient_of_its_value():
    model = small_network(realisations=2)
    problem = Problem(
        model, model.pretrain(**START), 20.0, steps=4, lr=0.1, running=[0.5, 0.2],
        control=Control(lr=(0.0, 1.0), knobs={"head_lr": (0.0, 3.0)}),
    )  # fmt: skip
    objective = Objective(problem, 4)
    rng = np.random.default_rng(0)
    shares, knobs = rng.dirichlet([1, 1], 4), rng.uniform(0.2, 0.9, (4, 6))
    found = objective.gradient(Controls(shares, knobs))
    for index in np.ndindex(knobs.shape):
        ends = []
        for sign in (1, -1):
            moved = knobs.copy()
            moved[index] += sign * 1e-6
            ends.append(objective.value(Controls(shares, moved)))
        assert found.by_knobs[index] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-6)


def test_a_plan_is_not_worse_than_the_strategies_it_begins_from(problem, plan):
    """Steps are not rounded to one task, so that mixtures count as they are."""
    assert plan.certificate.discretisation_error == 0
    assert plan.certificate.integrality_gap == pytest.approx(0, abs=1e-12)
    for name in ("interleaved", "no-replay", "sequential", "alternating", "random-order"):
        protocol = strategies.STRATEGIES[name](problem)
        assert plan.loss <= replan.evaluate(problem, protocol).loss
    for shares in ([0.3, 0.7], [0.55, 0.45]):
        given = strategies.interleaved(problem, shares=shares)
        begun = replan.solve(problem, start=given, starts=0, max_gradients=3, throw=False)
        assert begun.loss <= replan.evaluate(problem, given).loss


def test_a_step_has_one_task_where_stays_are_limited(problem):
    limited = dataclasses.replace(problem, limits=Limits(max_switches=1))
    found = replan.solve(limited, starts=0, max_gradients=20, throw=False)
    assert np.all(found.protocol.shares.max(axis=1) == 1)
    assert found.certificate.switches <= 1


def test_rates_and_layers_can_be_planned(problem):
    control = Control(tasks=False, lr=(0.0, 1.0), knobs={"head_lr": (0.0, 2.0)})
    free = dataclasses.replace(problem, control=control, knobs={})
    plan = replan.solve(free, starts=1, max_gradients=30, throw=False)
    base = replan.evaluate(problem, strategies.interleaved(problem))
    assert plan.loss < base.loss
    assert plan.protocol.knobs["head_lr"].min() >= 0


def test_limits_hold(problem):
    limited = dataclasses.replace(problem, limits=Limits(max_share=[0.34, 1.0]))
    plan = replan.solve(limited, starts=0, max_gradients=20, throw=False)
    assert plan.protocol.shares[:, 0].mean() <= 0.34 + 1e-9


def test_compare_lists_all_strategies(problem):
    table = replan.compare(problem, strategies=["interleaved", "no-replay", "constant-lr"])
    assert len(table.to_frame()) == 3


def test_a_saved_plan_comes_back(problem, plan, tmp_path):
    plan.plot(tmp_path / "plan.png")
    plan.save(tmp_path / "plan.json")
    again = replan.Plan.load(tmp_path / "plan.json", model=problem.model)
    assert again.loss == plan.loss
    end = json.loads((tmp_path / "plan.json").read_text())["end"]
    weights = problem.model.start_from_dict(end)
    assert np.array_equal(problem.model.pack(weights), plan.trajectory.states[-1])


def test_adjoints_of_large_states_are_left_out_of_files(problem, plan, tmp_path, monkeypatch):
    monkeypatch.setattr("replan.control.plan._MOST", plan.adjoints.size - 1)
    plan.save(tmp_path / "plan.json")
    again = replan.Plan.load(tmp_path / "plan.json", model=problem.model)
    assert again.adjoints.shape == (0, plan.adjoints.shape[1])


# Divergence


def exploding(**settings):
    """A problem whose second realisation alone diverges."""
    model = small_network(realisations=3, precision="single", biases=True, **settings)
    weights = model.unpack(model.pack(model.fresh()))
    weights.heads[1] = 1e30
    return Problem(model, weights, 40.0, steps=4, lr=0.5)


def test_a_realisation_that_diverges_is_named():
    problem = exploding()
    run = replan.evaluate(problem, strategies.interleaved(problem), throw=False)
    assert run.status == "diverged"
    assert "1 of 3 realisations (1) diverged after time" in run.advice
    assert "learning rate 0.5" in run.advice
    with pytest.raises(IntegrationError, match=r"1 of 3 realisations \(1\) diverged"):
        replan.solve(problem)
    objective = Objective(problem, 4)
    controls = Controls(np.full((4, 2), 0.5), np.tile([0.5, 0.5, 1, 1, 1, 1], (4, 1)))
    assert objective.value(controls) == np.inf


def test_a_pretraining_that_diverges_says_which_realisations():
    model = small_network(realisations=3, precision="single", biases=True, head_std=1e9)
    with pytest.raises(IntegrationError, match=r"pretraining: .* of 3 realisations \(.*diverged"):
        Problem(model, model.pretrain(50, lr=10.0), 40.0)


# On unseen realisations


def test_tests_are_on_unseen_realisations_and_paired(problem):
    named = {name: strategies.STRATEGIES[name](problem) for name in ("no-replay", "interleaved")}
    found = networks.test(problem, named, realisations=6)
    assert found.runs == [3, 4, 5, 6, 7, 8]
    fresh = problem.model.unseen(6)
    again = Problem(fresh, problem.start, 60.0, steps=6, lr=0.1)
    for name, protocol in named.items():
        inside, outside = (replan.evaluate(x, protocol) for x in (problem, again))
        assert found.planned_value(name).mean == pytest.approx(inside.loss, rel=1e-6)
        assert found.value(name).mean == pytest.approx(outside.loss, rel=1e-6)
        assert np.allclose(found.unseen[name].losses.mean(axis=0), outside.final_losses)
    paired = found.weighted("interleaved") - found.weighted("no-replay")
    assert found.difference("interleaved", "no-replay") == mean_interval(paired)
    text = str(found)
    assert "3 realisations" in text
    assert "less no-replay" in text
    assert not any(found.broken("no-replay").values())


def test_the_stability_limit_is_where_realisations_break(problem):
    protocol = strategies.interleaved(problem)
    found = networks.test(problem, protocol, realisations=8)
    factor = found.stability["protocol"]
    assert 1 < factor < 1000
    below, above = (
        networks.test(problem, protocol.with_knobs(lr=0.1 * factor * x), realisations=8)
        for x in (1.0, 1.06)
    )
    unseen = [np.any(x.unseen["protocol"].diverged | x.unseen["protocol"].dead)
              for x in (below, above)]  # fmt: skip
    assert unseen == [False, True]
    assert above.stability["protocol"] < 1


def test_the_stability_limit_of_the_first_few_realisations(problem):
    protocol = strategies.interleaved(problem)
    few = networks.test(problem, protocol, realisations=8, stability=3)
    alone = networks.test(problem, protocol, realisations=3)
    assert len(few.runs) == 8
    assert few.stability == alone.stability
    with pytest.raises(ValueError, match="`stability` expects"):
        networks.test(problem, protocol, realisations=3, stability=4)


def test_broken_realisations_are_counted_and_not_averaged_away(problem, tmp_path):
    wild = networks.test(
        problem, {"wild": strategies.interleaved(problem).with_knobs(lr=40.0)}, realisations=5
    )
    broken = wild.broken("wild")
    assert broken["diverged"] or broken["dead"]
    for what, numbers in broken.items():
        if numbers:
            assert f"wild: {what}: {len(numbers)} of 8 realisations ({numbers[0]}" in str(wild)
    if broken["diverged"]:
        assert wild.value("wild").mean == np.inf
    wild.save(tmp_path / "test.json")
    wild.save(tmp_path / "test.csv")
    content = json.loads((tmp_path / "test.json").read_text())["protocols"]["wild"]
    assert content["diverged"] == broken["diverged"]
    model = small_network(biases=True, precision="single", realisations=2)
    gone = Problem(model, model.fresh(), 40.0, steps=4, lr=0.05)
    found = networks.test(gone, strategies.interleaved(gone).with_knobs(lr=1e6), realisations=2)
    assert found.broken("protocol")["diverged"] == [0, 1, 2, 3]
    assert found.value("protocol").mean == np.inf
    found.save(tmp_path / "gone.json")


def test_a_protocol_that_survives_is_not_worse_than_one_that_diverges():
    model = small_network(biases=True, precision="single", realisations=2)
    problem = Problem(model, model.fresh(), 40.0, steps=4, lr=0.05)
    good = strategies.interleaved(problem)
    named = {"wild": good.with_knobs(lr=1e6), "good": good, "mad": good.with_knobs(lr=2e6)}
    found = networks.test(problem, named, realisations=2)
    assert found.difference("good", "wild").mean == -np.inf
    assert found.difference("wild", "good").mean == np.inf
    assert np.isnan(found.difference("mad", "wild").mean)
    assert found.stability["mad"] == 0
    assert "under 1/1024 ×" in str(found)


def test_large_losses_of_wide_networks_at_the_start_are_no_divergence():
    model = small_network(hidden=1000, realisations=6, precision="single")
    problem = Problem(model, model.fresh(), 5.0, steps=1, lr=1e-6)
    piece = strategies.interleaved(problem)
    ends = model.train_each(
        problem.state, Pieces.whole(piece.shares, problem.knob_rows(piece), piece.lengths)
    )
    assert np.any(ends.losses > 10 * model._trainer._empty_losses)
    assert not ends.diverged.any()


@pytest.mark.parametrize("settings", [{"running": [0.5, 0.5]}, {"targets": [0.1, None]}])
def test_only_final_losses_are_tested(problem, settings):
    other = dataclasses.replace(problem, **settings)
    with pytest.raises(ValueError, match="`problem` expects an objective of final losses"):
        networks.test(other, strategies.interleaved(other))


def test_one_task_has_no_memory():
    with pytest.raises(ValueError, match="`memory` expects None where there are no old tasks"):
        check_distinct("memory", 5, small_network().data, range(0))


def test_only_models_with_realisations_are_tested():
    model = replan.TeacherStudent.similar(0.3)
    other = Problem(model, model.fresh(), 5.0)
    with pytest.raises(ValueError, match="`test` needs a model with realisations, got one of kind"):
        networks.test(other, strategies.interleaved(other))


def test_a_start_of_weights_has_no_unseen_realisations(problem):
    weights = problem.model.unpack(problem.state)
    fixed = dataclasses.replace(problem, start=weights)
    with pytest.raises(ValueError, match="`features` expects"):
        networks.test(fixed, strategies.interleaved(fixed), realisations=4)


# Files and the command line


TOML = """\
[model]
kind = "network"
data = "{data}"
similarity = 0.5
hidden = 3
memory = 20
samples = 40
realisations = 2

[start]
pretrain = {{ steps = 50, lr = 0.02 }}

[training]
duration = 40.0
steps = 4
lr = 0.02
"""


@pytest.fixture
def file(tmp_path, request):
    data = request.config.rootpath / "tests" / "data" / "fashion_subset.npz"
    path = tmp_path / "problem.toml"
    path.write_text(TOML.format(data=data))
    return path


def test_a_problem_file_and_back(file, tmp_path):
    problem = Problem.load(file)
    assert problem.model.kind == "network"
    assert problem.model.data.pixels.shape[1] == 784
    problem.save(tmp_path / "again.toml")
    again = Problem.load(tmp_path / "again.toml")
    assert again.to_dict() == problem.to_dict()
    assert np.array_equal(again.state, problem.state)
    other = ImageNetwork(
        image_tasks(problem.model.data.settings["data"], classes=[[0, 5], [2, 7]], test_samples=9),
        loss="cross-entropy", biases=True, realisations=[1, 3], precision="double",
    )  # fmt: skip
    assert other.outputs == 2
    assert ImageNetwork.from_dict(other.to_dict()).to_dict() == other.to_dict()
    for start in (other.fresh(), other.pretrain(5, lr=0.1, task=1)):
        assert other.start_from_dict(other.start_to_dict(start)) == start
    weights = other.unpack(other.pack(other.pretrain(5)))
    back = other.start_from_dict(other.start_to_dict(weights))
    assert np.array_equal(other.pack(back), other.pack(weights))
    assert other.sketch_start({"pretrain": {"steps": 10**9}}) == other.fresh()


def test_the_example_is_a_problem(monkeypatch, images):
    content = tomllib.loads(replan.problem.example("network"))
    monkeypatch.setattr("replan.networks._tasks.read_images", lambda _: images)
    content["model"] |= {"memory": 20, "samples": 40, "realisations": 2}
    content["start"] = {"fresh": {}}
    problem = Problem.from_dict(content)
    assert problem.duration == 2000
    assert problem.lr == 0.01


def run(*arguments):
    found = CliRunner().invoke(app, [str(x) for x in arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_the_command_line(file, tmp_path):
    plan, out = tmp_path / "plan.json", tmp_path / "out.json"
    assert "loss" in run("evaluate", file, "--strategy", "no-replay", "--json", out)
    run("solve", file, "--starts", 0, "--json", plan, "--plot", tmp_path / "plan.png")
    text = run(
        "test", file, "--protocol", plan, "--strategy", "interleaved", "--realisations", 3,
        "--json", out, "--csv", tmp_path / "out.csv",
    )  # fmt: skip
    assert "interleaved" in text
    content = json.loads(out.read_text())
    assert content["realisations"] == [2, 3, 4]
    assert set(content["protocols"]) == {str(plan), "interleaved"}
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 7
    run("new", tmp_path / "new.toml", "--kind", "network")
    assert 'kind = "network"' in (tmp_path / "new.toml").read_text()


def test_the_kind_is_found_by_its_word():
    assert find("network") is ImageNetwork
    with pytest.raises(ValueError, match="did you mean `network`"):
        find("netwrok")


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 0}, "`hidden` expects an integer of at least 1"),
        ({"loss": "hinge"}, "`loss` expects"),
        ({"biases": 1}, "`biases` expects true or false"),
        ({"memory": 0}, "`memory` expects an integer of at least 1 and at most 20"),
        ({"memory": 21}, "`memory` expects an integer of at least 1 and at most 20"),
        ({"samples": 10**6}, "`samples` expects"),
        ({"realisations": 0}, "`realisations` expects"),
        ({"realisations": [1, 1]}, "`realisations` expects at least one, none twice"),
        ({"seed": -1}, "`seed` expects"),
        ({"weight_std": -1.0}, "`weight_std` expects"),
        ({"head_std": np.nan}, "`head_std` expects"),
        ({"precision": "half"}, "`precision` expects"),
        ({"threads": 0}, "`threads` expects"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        small_network(**settings)


def test_bad_starts_and_pieces_are_refused(problem):
    model = problem.model
    with pytest.raises(ValueError, match="`tasks` expects ImageTasks"):
        ImageNetwork([1, 2])
    with pytest.raises(ValueError, match="`start` expects `fresh"):
        Problem(model, 3, 10.0)
    with pytest.raises(ValueError, match="`steps` expects an integer of at least 1"):
        model.pretrain(0)
    with pytest.raises(ValueError, match="`task` expects a task index from 0 to 1"):
        model.pretrain(5, task=2)
    with pytest.raises(ValueError, match=r"`pieces` expects knobs of shape \(pieces, 6\)"):
        model.roll_out(problem.state, Pieces.whole(np.eye(2), np.ones((2, 2)), np.ones(2)))
    with pytest.raises(ValueError, match=r"`start.weights` expects the \d+ numbers of a state"):
        model.start_from_dict({"weights": "AAAA"})
    with pytest.raises(ValueError, match="`start` expects one of `pretrain`, `fresh`"):
        model.start_from_dict({})
    with pytest.raises(ValueError, match="`protocols` expects at least one"):
        networks.test(problem, {})
    with pytest.raises(ValueError, match="`protocols` expects a Protocol"):
        networks.test(problem, {"a": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "similarity = 0.5\nclasses = [[0, 5], [2, 7]]",
            "`model.similarity` or `classes`: expects one",
        ),
        ("classes = [[0, 5], [5, 7]]", "`model.classes` expects lists of at least two classes"),
        ("classes = [[0, 5], [2, 7]]\nupstream = [0, 5]", "`model.upstream` goes with"),
        ("similarity = 0.5\nhiden = 3", "`model.hiden` is not a known key, did you mean"),
        ('similarity = 0.5\nloss = "hinge"', "`model.loss` expects"),
    ],
)
def test_mistakes_in_files_name_the_key(file, change, message):
    text = file.read_text().replace("similarity = 0.5", change)
    file.write_text(text)
    found = CliRunner().invoke(app, ["evaluate", str(file), "--strategy", "interleaved"])
    assert isinstance(found.exception, ValueError)
    assert message in str(found.exception)


def test_data_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`data` expects"):
        image_tasks("mnist", similarity=0.5)
    with pytest.raises(FileNotFoundError):
        image_tasks(str(tmp_path / "none.npz"), similarity=0.5)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match=r"`data` expects an \.npz file with train_images"):
        image_tasks(str(tmp_path / "other.npz"), similarity=0.5)
    wrong = {name: np.zeros((3, 4)) for name in networks.Images._fields}
    np.savez(tmp_path / "wrong.npz", **wrong)
    with pytest.raises(ValueError, match="`data` expects uint8 images"):
        image_tasks(str(tmp_path / "wrong.npz"), similarity=0.5)
