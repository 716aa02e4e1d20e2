"""Pairs of classes of Fashion-MNIST that arrive one after another, learnt with a small memory.

A PyTorch loop as a practitioner would write it: what is kept of old tasks, images for probes of
the loss included, is one memory.
"""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from replan.replay import Policy
from replan.replay.torch import ReplayBatchSampler
from reproduction.images.data import load

LOOKS = 10  # at the test set, for each task that arrives
Batch = list[torch.Tensor]  # pixels (n, 784), classes (n,), tasks (n,)


@dataclass(frozen=True)
class Split:
    """How the tasks are learnt.

    images: of each task to train on. batches: while a task is the newest. memory: images kept of
    the tasks before it, of which `probe` are for estimates of the loss where a policy needs them,
    every so many batches. heads: "task" for a head per task, "one" for one for all classes.
    """

    tasks: int = 3
    images: int = 1200
    batches: int = 48
    batch_size: int = 50
    memory: int = 300
    probe: int = 60
    every: int = 2
    hidden: int = 200
    heads: str = "task"
    optimizer: str = "sgd"


class Classifier(torch.nn.Module):
    """One hidden layer for all tasks; with a head per task, other tasks' outputs do not compete."""

    def __init__(self, features: int, settings: Split) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Linear(features, settings.hidden), torch.nn.ReLU()
        )
        self.heads = torch.nn.Linear(settings.hidden, 2 * settings.tasks)
        self.per_task = settings.heads == "task"

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, classes) of samples of the given tasks (n,)."""
        outputs: torch.Tensor = self.heads(self.features(x))
        own = torch.arange(outputs.shape[1]) // 2 == task[:, None]
        return outputs.where(own, -math.inf) if self.per_task else outputs


def tensors(tasks: int, images: int, seed: int, tested: str) -> tuple[list[Batch], list[Batch]]:
    """Return the samples of each task to train on, in the seed's order, and to test on.

    tested: "test" or "validation", every other one of the test images.
    """
    found, rng = load("fashion-mnist"), np.random.default_rng([seed, 0])
    first = 1 if tested == "test" else 0

    def part(pixels: Any, labels: Any, task: int, shuffled: bool) -> Batch:
        where = np.flatnonzero(labels // 2 == task)
        where = rng.permutation(where)[:images] if shuffled else where
        x = (pixels[where].reshape(len(where), -1) / np.float32(255)).astype(np.float32)
        y = torch.from_numpy(labels[where].astype(np.int64))
        return [torch.from_numpy(x), y, torch.full((len(where),), task)]

    train = [part(found.train_images, found.train_labels, t, True) for t in range(tasks)]
    rows = found.test_images[first::2], found.test_labels[first::2]
    return train, [part(*rows, t, False) for t in range(tasks)]


def learn(
    policy: Policy, settings: Split, *, lr: float, seed: int, probed: bool,
    decay: str = "constant", tested: str = "test",
) -> dict[str, Any]:  # fmt: skip
    """Learn one task after another, and return what was measured: see `summary`.

    decay: of the learning rate, for each task anew: "constant" or "cosine", down to 0. probed:
    whether images are kept apart for estimates of the losses.
    """
    warnings.simplefilter("ignore")  # of focus phases that never end
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    train, test = tensors(settings.tasks, settings.images, seed, tested)
    model = Classifier(train[0][0].shape[1], settings)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=lr)
    apart, looks, trained = settings.probe if probed else 0, [], np.zeros(settings.tasks, int)
    for task in range(settings.tasks):
        policy.begin(task)
        parts = []
        for t in range(task + 1):
            kept = apart // (t + 1)  # what was ever kept apart is never trained on
            room = (settings.memory - apart) // task if t < task else None
            parts.append([x[kept:][:room] for x in train[t]])
        sizes = [len(part[0]) for part in parts] + [0] * (settings.tasks - task - 1)
        joined = [torch.cat(column) for column in zip(*parts, strict=True)]
        held_out = [[x[: apart // (task + 1)] for x in part] for part in train[: task + 1]]
        sampler = ReplayBatchSampler(
            sizes, policy, settings.batch_size, batches=settings.batches,
            seed=settings.tasks * seed + task,
        )  # fmt: skip
        for indices in sampler:
            if decay == "cosine":
                part = sampler.steps / settings.batches
                optimizer.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * part)) / 2
            optimizer.zero_grad()
            x, y, tasks = (column[indices] for column in joined)
            torch.nn.functional.cross_entropy(model(x, tasks), y).backward()
            optimizer.step()
            due = probed and sampler.losses_due(settings.every)
            losses = dict(enumerate(look(model, held_out, trained)["loss"])) if due else None
            sampler.step(losses)
            if sampler.steps in {settings.batches * i // LOOKS for i in range(1, LOOKS + 1)}:
                looks.append(look(model, test[: task + 1], trained + sampler.samples))
        trained += sampler.samples
    return summary(looks, policy, settings.batches * settings.batch_size)


def look(model: torch.nn.Module, test: list[Batch], trained: Any) -> dict[str, Any]:
    """Return loss and accuracy of the tasks so far, and the samples trained on of each."""
    found: dict[str, Any] = {"loss": [], "accuracy": [], "trained": trained.tolist()}
    for x, y, task in test:
        with torch.no_grad():
            outputs = model(x, task)
        found["loss"].append(torch.nn.functional.cross_entropy(outputs, y).item())
        found["accuracy"].append((outputs.argmax(1) == y).double().mean().item())
    return found


def summary(looks: list[dict[str, Any]], policy: Policy, turn: int) -> dict[str, Any]:
    """Return the numbers of one run; None where training diverged.

    loss, accuracy: means over the tasks at the end. way: the mean loss of the tasks so far, over
    all looks since the second task arrived. forgetting: what the accuracy of a task has fallen by
    since it was the newest, mean of all but the last. replayed: the share of samples of old tasks.
    focus: of the samples in the turns of new tasks, the part before replay began.
    """
    last = looks[-1]
    if not np.isfinite(last["loss"]).all():
        return {"loss": None}
    newest = {len(one["loss"]) - 1: one for one in looks}  # the last look while each is the newest
    ends = [newest[t]["accuracy"][t] for t in sorted(newest)]
    after = [last["trained"][t] - newest[t]["trained"][t] for t in sorted(newest)]
    found = {
        "loss": float(np.mean(last["loss"])),
        "way": float(np.mean([np.mean(one["loss"]) for one in looks if len(one["loss"]) > 1])),
        "accuracy": float(np.mean(last["accuracy"])),
        "forgetting": float(np.mean(np.subtract(ends, last["accuracy"])[:-1])),
        "replayed": sum(after) / sum(last["trained"]),
    }
    begun = [d.step for d in policy.decisions if d.what == "focus"][1:]  # when later tasks arrived
    if begun:
        replays = [d.step for d in policy.decisions if d.what == "replay"]
        lengths = [
            min([x - step for x in replays if 0 <= x - step < turn] + [turn]) for step in begun
        ]
        found["focus"] = float(np.mean(lengths)) / turn
    return found
