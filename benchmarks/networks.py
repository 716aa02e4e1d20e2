"""The image network on the CPU: its training against PyTorch's, its gradients against JAX's.

Needs Fashion-MNIST (`replan data fetch fashion-mnist`), and PyTorch or JAX (extras `torch` and
`jax`) or both: what one of them is needed for is left out without it.
"""

import time
from importlib.util import find_spec

import numpy as np

from common import best_times, save
from replan import networks
from replan.models import Schedule
from replan.networks._network import mean_loss, train

SETTINGS = networks.Training()


def streams(tasks: networks.ImageTasks, steps: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.stack([[rng.choice(pool, steps) for pool in pools] for pools in tasks.pools])


def begin(tasks: networks.ImageTasks) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = (SETTINGS.hidden, tasks.pixels.shape[1]), (2, tasks.targets.shape[1], SETTINGS.hidden)
    weights, heads = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return weights, SETTINGS.head_std * heads


def ours(tasks: networks.ImageTasks, order: np.ndarray, images: np.ndarray) -> tuple:
    weights, heads = begin(tasks)
    rates = np.full(order.size, SETTINGS.lr, np.float32)
    train(
        weights, heads, tasks.pixels, tasks.targets, images, np.zeros(2, np.int64), tasks.mix,
        order, rates, tasks.scale, tasks.shift,
    )  # fmt: skip
    return weights, heads


def theirs(tasks: networks.ImageTasks, order: np.ndarray, images: np.ndarray) -> tuple:
    """Return the weights after the same steps, written as one would in PyTorch."""
    import torch

    start, start_heads = begin(tasks)
    weights = torch.nn.Linear(*start.shape[::-1], bias=False)
    heads = [torch.nn.Linear(SETTINGS.hidden, 1, bias=False) for _ in range(2)]
    with torch.no_grad():
        weights.weight.copy_(torch.tensor(start))
        for head, first in zip(heads, start_heads, strict=True):
            head.weight.copy_(torch.tensor(first))
    parameters = [weights.weight, *(head.weight for head in heads)]
    optimiser = torch.optim.SGD(parameters, lr=SETTINGS.lr)
    pixels = torch.tensor(tasks.pixels, dtype=torch.float32) * tasks.scale + tasks.shift
    pixels /= np.sqrt(pixels.shape[1])
    targets, mix = torch.tensor(tasks.targets), tasks.mix.tolist()
    rows, count = images.tolist(), [0, 0]
    for task in order.tolist():
        i, j = (rows[task][part][count[task]] for part in (0, 1))
        count[task] += 1
        x = mix[task] * pixels[i] + (1 - mix[task]) * pixels[j]
        y = mix[task] * targets[i] + (1 - mix[task]) * targets[j]
        loss = 0.5 * torch.sum((heads[task](torch.relu(weights(x))) - y) ** 2)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return weights.weight.detach().numpy(), np.stack([h.weight.detach().numpy() for h in heads])


def compare(name: str, tasks: networks.ImageTasks, steps: int) -> dict:
    """Time a number of steps of both alternately, and compare their final losses."""
    order, images = np.arange(steps) % 2, streams(tasks, steps)
    ours(tasks, order[:10], images)  # compiles
    best = {"ours": np.inf, "theirs": np.inf}
    for _ in range(3):
        for way, call in (("ours", ours), ("theirs", theirs)):
            start = time.perf_counter()
            end = call(tasks, order, images)
            best[way] = min(best[way], time.perf_counter() - start)
            losses = [mean_loss(end[0], end[1][t], *tasks.test[t]) for t in range(2)]
            if way == "ours":
                wanted = losses
    gap = max(abs(a / b - 1) for a, b in zip(wanted, losses, strict=True))
    return {
        "data": name, "steps": steps, "µs per step": 1e6 * best["ours"] / steps,
        "PyTorch µs": 1e6 * best["theirs"] / steps, "times faster": best["theirs"] / best["ours"],
        "losses differ by": gap,
    }  # fmt: skip


# Gradients through training


PIECES = 20
WEIGHTS = np.array([0.5, 0.5])


def pieces_of(shares: list[float], steps: int) -> Schedule:
    knobs = np.tile([SETTINGS.lr, SETTINGS.lr, 1.0, 1.0, 1.0, 1.0], (PIECES, 1))
    return Schedule.single_steps(np.tile(shares, (PIECES, 1)), knobs, np.full(PIECES, steps / PIECES))


def network(tasks: networks.ImageTasks, realisations: int, threads: int) -> tuple:
    model = networks.ImageNetwork(tasks, realisations=realisations, threads=threads)
    return model, model.pack(model.pretrain(5000))


def value_and_gradient(model: networks.ImageNetwork, start: np.ndarray, pieces: Schedule) -> tuple:
    states, record = model.record(start, pieces)
    value = model.losses(states[-1]) @ WEIGHTS
    cotangents = np.zeros_like(states)
    cotangents[-1] = model.losses_vjp(states[-1], WEIGHTS)
    return value, model.roll_out_vjp(states, cotangents, pieces, *record)


def gradient_row(tasks: networks.ImageTasks, shares: list[float], steps: int) -> dict:
    """Time training alone, and with the value and the gradient by all shares and rates.

    In time of the processor, which other work on the machine does not change.
    """
    model, start = network(tasks, 1, 1)
    pieces = pieces_of(shares, steps)
    value_and_gradient(model, start, pieces)  # compiles
    alone, both = best_times(
        lambda: model.roll_out(start, pieces),
        lambda: value_and_gradient(model, start, pieces),
        clock=time.process_time,
    )
    _, (tapes,) = model.record(start, pieces)
    tape = sum(part.nbytes for part in tapes[0])
    return {
        "steps": steps, "shares": shares, "training ms": 1e3 * alone,
        "value and gradient ms": 1e3 * both, "times training": both / alone,
        "tape MB": tape / 1e6, "states and adjoints MB": 16 * start.size * (PIECES + 1) / 1e6,
        "all weights of all steps MB": 4 * start.size * steps / 1e6,
    }  # fmt: skip


def threads_row(tasks: networks.ImageTasks, realisations: int, steps: int) -> dict:
    """Time value and gradient with one and with two threads.

    On a machine that is busy with other work, the speed-up is what is left of it. "Expected" is
    that of two free cores: by the processor's time with both threads, and by what the main thread,
    which does what is not shared, takes of it.
    """
    made = [network(tasks, realisations, threads) for threads in (1, 2)]
    pieces = pieces_of([0.5, 0.5], steps)
    calls = [lambda m=m: value_and_gradient(*m, pieces) for m in made]
    one, two = best_times(*calls)
    cpu_one, cpu_two = best_times(*calls, clock=time.process_time)
    _, main = best_times(*calls, clock=time.thread_time)
    return {
        "realisations": realisations, "steps": steps, "one thread s": one, "two threads s": two,
        "speed-up": one / two, "one thread CPU s": cpu_one, "two threads CPU s": cpu_two,
        "main thread CPU s": main, "expected": cpu_one / (main + (cpu_two - main) / 2),
    }  # fmt: skip


def jax_row(tasks: networks.ImageTasks, steps: int) -> dict:
    """Time value and gradient against JAX: a scan over pieces, each a checkpoint of a scan."""
    import jax
    import jax.numpy as jnp

    model, start = network(tasks, 1, 1)
    pieces = pieces_of([0.5, 0.5], steps)
    stream = model._trainer.stream(0, 1, steps)[..., :steps]
    order = jnp.asarray(np.moveaxis(stream, 2, 0).reshape(PIECES, steps // PIECES, 2, 2))
    pixels, targets = jnp.asarray(tasks.pixels), jnp.asarray(tasks.targets)
    mix = jnp.asarray(np.stack([tasks.mix, 1 - tasks.mix], axis=1))
    own = model.unpack(start.astype(np.float32))
    given = own.features[0], own.heads[0]
    root = np.float32(np.sqrt(tasks.pixels.shape[1]))
    held_out = [tuple(map(jnp.asarray, part)) for part in tasks.held_out]

    def loss(weights, x, y, task):
        features, heads = weights
        return jnp.sum((heads[task] @ jax.nn.relu(features @ x) - y) ** 2) / 2

    def piece(weights, controls):
        shares, lr, rows = controls

        def step(weights, images):
            new = weights
            for t in range(2):
                x = (tasks.scale * (mix[t] @ pixels[images[t]]) + tasks.shift) / root
                by = jax.grad(loss)(weights, x, mix[t] @ targets[images[t]], t)
                new = tuple(w - shares[t] * lr[t] * g for w, g in zip(new, by, strict=True))
            return new, None

        return jax.lax.scan(step, weights, rows)[0], None

    def objective(shares, lr):
        end, _ = jax.lax.scan(jax.checkpoint(piece), given, (shares, lr, order))
        means = [
            jnp.mean(jax.vmap(loss, (None, 0, 0, None))(end, *held_out[t], t)) for t in range(2)
        ]
        return WEIGHTS[0] * means[0] + WEIGHTS[1] * means[1]

    both = jax.jit(jax.value_and_grad(objective, argnums=(0, 1)))
    controls = [jnp.asarray(x, jnp.float32) for x in (pieces.shares, pieces.knobs[:, :2])]
    value, by = jax.block_until_ready(both(*controls))  # compiles
    found = value_and_gradient(model, start, pieces)
    ours, theirs = best_times(
        lambda: value_and_gradient(model, start, pieces),
        lambda: jax.block_until_ready(both(*controls)),
        repeats=5,
    )
    gaps = [
        np.abs(np.asarray(a) - b).max() / np.abs(b).max()
        for a, b in zip(by, (found[1].by_shares, found[1].by_knobs[:, :2]), strict=True)
    ]
    return {
        "steps": steps, "ms": 1e3 * ours, "JAX ms": 1e3 * theirs, "times faster": theirs / ours,
        "values differ by": abs(float(value) / found[0] - 1), "gradients by": float(max(gaps)),
    }  # fmt: skip


if __name__ == "__main__":
    tasks = networks.mixed_tasks(networks.fashion_mnist(), 0.5)
    tables = {
        "value and gradient, one realisation of 784 × 8, one thread": [
            gradient_row(tasks, shares, 10_000) for shares in ([0.5, 0.5], [0.0, 1.0])
        ],
        "threads over realisations": [threads_row(tasks, 8, 2000)],
    }
    if find_spec("jax"):
        title = "value and gradient against JAX (jax.checkpoint in scan), in the same run"
        tables[title] = [jax_row(tasks, 10_000)]
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        print("torch", torch.__version__)
        tables["one sample per step, one core"] = [compare("fashion-mnist", tasks, 5000)]
    save("networks", tables)
