"""What should end the focus phase? Rules for it on split Fashion-MNIST, each at its best rate.

Five tasks of two classes arrive one after another, 1,200 images each, one epoch, with a head for
each task or one for all classes. A memory of 300 images includes the 60 on which losses are probed.
After the focus phase half of each batch is of the new task. The learning rate of each rule is the
best of three on seeds that are not tested on.

Needs the environment of `make test-torch` and Fashion-MNIST (`replan data fetch`). Takes 20
minutes on a busy core; finished runs are kept in .cache.
"""

import math
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from common import save
from replan import networks
from replan.statistics import mean_interval
from replan.integrations.torch import LossProbe, ReplayBatchSampler
from replan.policies import FocusThenReplay
from replan.sweeps import sweep

TASKS, IMAGES, MEMORY, PROBE, TEST = 5, 1200, 300, 60, 500
BATCH, BATCHES, EVERY = 50, 48, 2
RATES = (0.1, 0.2, 0.4)
TUNING, TESTING = range(1, 4), range(101, 113)
EPOCH = BATCH * BATCHES
MET = {"until": "met"}
RULES = {  # settings of FocusThenReplay; see `told` for what losses it is told
    "no focus": {"max_focus": 0},
    "a quarter": {"min_focus": EPOCH // 4, "max_focus": EPOCH // 4},
    "half": {"min_focus": EPOCH // 2, "max_focus": EPOCH // 2},
    "met": MET | {"max_focus": math.inf},
    "met, at most half": MET,
    "met, each by its start, at most half": MET,
    "three quarters of its start, at most half": {"margin": 0.5},
    "halved, at most half": {},
    "a quarter of its start, at most half": {"margin": -0.5},
    "plateau": MET | {"max_focus": math.inf},
    "plateau, at most half": MET,
}


def tensors(images: np.ndarray, labels: np.ndarray, seed: int) -> list[TensorDataset]:
    """Return the images of each pair of classes, shuffled: (pixels, class, task)."""
    parts = []
    for task in range(TASKS):
        rng = np.random.default_rng([seed, task])
        where = rng.permutation(np.flatnonzero(labels // 2 == task))[: IMAGES + PROBE]
        pixels = torch.from_numpy(images[where].reshape(len(where), -1) / np.float32(255))
        classes = torch.from_numpy(labels[where].astype(np.int64))
        parts.append(TensorDataset(pixels, classes, torch.full((len(where),), task)))
    return parts


@cache
def load() -> networks.Images:
    return networks.fashion_mnist()


def part(data: TensorDataset, first: int, last: int) -> TensorDataset:
    return TensorDataset(*data[first:last])


class Network(torch.nn.Module):
    """One hidden layer; with a head per task, classes of other tasks do not compete."""

    def __init__(self, heads: bool) -> None:
        super().__init__()
        self.heads = heads
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(784, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2 * TASKS)
        )

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, classes)."""
        outputs = self.layers(x)
        if self.heads:
            others = torch.arange(2 * TASKS) // 2 != task[:, None]
            outputs = outputs.masked_fill(others, -1e9)
        return outputs


def loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, y, task = batch
    return torch.nn.functional.cross_entropy(model(x, task), y)


def case(rule: str, heads: bool, lr: float, seed: int) -> dict:
    """Return losses on the way and at the end, and how the focus phases ended."""
    warnings.simplefilter("ignore")  # of focus phases that never end
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    images = load()
    train = tensors(images.train_images, images.train_labels, seed)
    test = [part(t, 0, TEST) for t in tensors(images.test_images, images.test_labels, 0)]
    model = Network(heads)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    policy = FocusThenReplay(0, [], tasks=TASKS, shares=0.5, **RULES[rule])
    way, starts = [], {}
    for number in range(TASKS):
        policy.begin(number)
        kept = (MEMORY - PROBE) // max(1, number)
        parts = [part(t, PROBE, PROBE + kept) for t in train[:number]]
        parts.append(part(train[number], PROBE, PROBE + IMAGES))
        sizes = [len(p) for p in parts] + [0] * (TASKS - number - 1)
        sampler = ReplayBatchSampler(sizes, policy, BATCH, batches=BATCHES, seed=number)
        room = PROBE // (number + 1)
        probe = LossProbe([part(t, 0, room) for t in train[: number + 1]], loss, every=EVERY)
        starts[number] = probe.measure(model)[number]
        past = [starts]
        columns = [torch.cat([p.tensors[i] for p in parts]) for i in range(3)]
        for indices in sampler:
            optimizer.zero_grad()
            loss(model, [column[indices] for column in columns]).backward()
            optimizer.step()
            losses = probe.step(model) if number else {}
            sampler.step(told(rule, losses, past))
            past += [losses] if losses else []
            if sampler.steps % (BATCHES // 4) == 0 and number:
                way.append(float(np.mean(measure(model, test[: number + 1]))))
    ends = [d.reason for d in policy.decisions if d.what == "replay"]
    return {
        "way": float(np.mean(way)),
        "end": way[-1],
        "never": 1 - len(ends) / (TASKS - 1),
        "bound": sum("longest" in reason for reason in ends) / (TASKS - 1),
        "focus": float(np.mean(policy.focus_lengths[1:])) / EPOCH,
    }


def told(rule: str, losses: dict[int, float], past: list[dict[int, float]]) -> dict[int, float]:
    """Return what the policy is told: the losses, or what makes other rules of "met".

    past: the losses of this arrival so far, after those at the arrival of each task.
    """
    if not losses:
        return {}
    starts, *since = past
    if "each by its start" in rule:
        return {task: value / starts[task] for task, value in losses.items()}
    if "plateau" in rule:  # no new low for two measurements
        new = [one[max(losses)] for one in [*since, losses]]
        over = len(new) > 2 and min(new[-2:]) >= min(new[:-2])
        return {task: float(over == (task < max(losses))) for task in losses}
    return losses


def measure(model: torch.nn.Module, test: list[TensorDataset]) -> list[float]:
    with torch.no_grad():
        return [loss(model, list(t.tensors)).item() for t in test]


def shown(values: list[float]) -> str:
    found = mean_interval(np.array(values))
    return f"{found.mean:+.4f} ± {found.half_width:.4f}"


def run(keys: list[tuple]) -> dict[tuple, dict]:
    names = ("rule", "heads", "lr", "seed")
    cases = [dict(zip(names, key, strict=True)) for key in keys]
    found = sweep(case, cases, cache=Path(__file__).parents[1] / ".cache" / "focus-end", workers=1)
    return dict(zip(keys, found, strict=True))


if __name__ == "__main__":
    tables = {}
    for heads in (True, False):
        tuned = run([(r, heads, lr, s) for r in RULES for lr in RATES for s in TUNING])
        best = {
            r: min(RATES, key=lambda lr: sum(tuned[r, heads, lr, s]["end"] for s in TUNING))
            for r in RULES
        }
        found = run([(r, heads, best[r], s) for r in RULES for s in TESTING])
        rows = []
        for r in RULES:
            runs = [found[r, heads, best[r], s] for s in TESTING]
            base = [found["no focus", heads, best["no focus"], s] for s in TESTING]
            mean = {key: np.mean([one[key] for one in runs]) for key in runs[0]}
            row = {"rule": r, "lr": best[r], "end": f"{mean['end']:.4f}"}
            for key in ("end", "way"):
                gap = [one[key] - other[key] for one, other in zip(runs, base, strict=True)]
                row[f"{key} − no focus"] = shown(gap)
            row |= {f"{key} %": f"{100 * mean[key]:.0f}" for key in ("focus", "never", "bound")}
            rows.append(row)
        tables["a head per task" if heads else "one head for all classes"] = rows
    save("focus_end", tables)
