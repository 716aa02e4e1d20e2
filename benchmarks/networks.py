"""Online training of the image network against the same loop in PyTorch, both on the CPU.

Needs PyTorch (extra `torch`) and Fashion-MNIST (`replan data fetch fashion-mnist`).
"""

import time

import numpy as np
import torch

from common import save
from replan import networks
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("torch", torch.__version__)
    tasks = networks.mixed_tasks(networks.fashion_mnist(), 0.5)
    save("networks", {"one sample per step, one core": [compare("fashion-mnist", tasks, 5000)]})
