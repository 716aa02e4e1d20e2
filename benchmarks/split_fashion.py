"""Split Fashion-MNIST in Avalanche: no replay, `ReplayPlugin` and a policy's replay.

Five tasks of two classes arrive one after another, with all of their images or a tenth of them
and a head for each task. All ways have the same memory and the same number of samples: 12,000 and
1,200 images and memories of 200 and 1,000 are whole numbers of batches of 25. The learning rate and
the share of the new task are the same for all ways and tuned for none: the table does not say which
way is best when each is tuned on its own.

Needs the environment of `make test-avalanche` and Fashion-MNIST (`replan data fetch`). Takes a
quarter of an hour on two cores; finished runs are kept in .cache.
"""

import math
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integrations"))
import torchvision_operators  # noqa: E402, F401  before Avalanche

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Avalanche's own
    from avalanche.benchmarks import nc_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import MTSimpleMLP
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
    from avalanche.training.supervised import Naive

    from replan.integrations.avalanche import PolicyReplayPlugin

from common import save  # noqa: E402
from replan import networks  # noqa: E402
from replan._common.statistics import mean_interval  # noqa: E402
from replan.policies import FocusThenReplay  # noqa: E402
from replan.sweeps import sweep  # noqa: E402

TASKS, BATCH, HIDDEN, LR = 5, 25, 200, 0.05
SEEDS = range(1, 11)
FOCUS = {  # the longest focus phase, as a fraction of an experience
    "focus, then replay": None,
    "focus of a quarter at most": 0.25,
    "no focus": 0.0,
}
NAMES = ["no replay", "ReplayPlugin", *FOCUS]
MEASURES = {"loss": 4, "accuracy %": 2, "forgetting %": 2, "loss forgotten": 4}


def dataset(images: np.ndarray, labels: np.ndarray, each: int) -> TensorDataset:
    """Return the first images of each class."""
    where = np.sort(np.concatenate([np.flatnonzero(labels == c)[:each] for c in range(10)]))
    pixels = torch.from_numpy(images[where] / np.float32(255))
    data = TensorDataset(pixels, torch.from_numpy(labels[where].astype(np.int64)))
    data.targets = data.tensors[1].tolist()
    return data


class Counter(SupervisedPlugin):
    """Counts samples."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0

    def after_training_iteration(self, strategy: Naive, **kwargs: object) -> None:
        """Count those of the batch."""
        self.samples += len(strategy.mb_x)


def plugins(name: str, memory: int, samples: int, seed: int) -> list:
    if name == "no replay":
        return []
    if name == "ReplayPlugin":
        return [ReplayPlugin(memory)]
    longest = math.inf if FOCUS[name] is None else int(FOCUS[name] * samples)
    # Half of each batch is of the new task, as with ReplayPlugin.
    policy = FocusThenReplay(0, [], tasks=TASKS, until="met", shares=0.5, max_focus=longest)
    probe_size = None if longest else 0  # then all of the memory is replayed
    return [PolicyReplayPlugin(policy, memory, probe_size=probe_size, seed=seed)]


def evaluate(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, task: int) -> dict:
    model.eval()
    with torch.no_grad():
        output = model(x, torch.full((len(y),), task))
    loss = torch.nn.functional.cross_entropy(output, y).item()
    return {"loss": loss, "accuracy": (output.argmax(1) == y).double().mean().item()}


def case(name: str, memory: int, count: int, seed: int) -> dict:
    """Train on tasks of `count` images; return the test loss and accuracy of all after each."""
    warnings.simplefilter("ignore")  # Avalanche's own
    torch.set_num_threads(1)
    random.seed(seed)
    torch.manual_seed(seed)
    images = networks.fashion_mnist()
    train = dataset(images.train_images, images.train_labels, count // 2)
    test = dataset(images.test_images, images.test_labels, 1000)
    stream = nc_benchmark(
        as_classification_dataset(train), as_classification_dataset(test), n_experiences=TASKS,
        task_labels=True, fixed_class_order=list(range(10)), class_ids_from_zero_in_each_exp=True,
    ).train_stream  # fmt: skip
    model = MTSimpleMLP(hidden_size=HIDDEN)
    strategy = Naive(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=LR),
        criterion=torch.nn.CrossEntropyLoss(), train_mb_size=BATCH, train_epochs=1,
        plugins=plugins(name, memory, 2 * count, seed), evaluator=EvaluationPlugin(),
    )  # fmt: skip
    x, y = test.tensors
    counter = Counter()
    strategy.plugins.append(counter)
    after = []
    for number, experience in enumerate(stream):
        if name == "no replay" and number:  # as many samples as the others have with a memory
            strategy.train_mb_size, strategy.train_epochs = 2 * BATCH, 2
        strategy.train(experience)
        seen = range(number + 1)
        after.append([evaluate(model, x[y // 2 == t], y[y // 2 == t] % 2, t) for t in seen])
    if counter.samples != count * (2 * TASKS - 1):
        raise ValueError(f"{name} trained on {counter.samples} samples")
    policy = getattr(strategy.plugins[0], "policy", None)
    lengths = policy.focus_lengths[1:] if policy else []
    return {"after": after, "focus": [length / (2 * count) for length in lengths]}


def measures(result: dict) -> list[float]:
    """Return what MEASURES names: values at the end, and what all tasks but the last lost."""
    after = result["after"]
    end = {key: np.array([task[key] for task in after[-1]]) for key in ("loss", "accuracy")}
    best = {key: np.array([row[-1][key] for row in after]) for key in ("loss", "accuracy")}
    return [
        float(np.mean(end["loss"])),
        100 * float(np.mean(end["accuracy"])),
        100 * float(np.mean((best["accuracy"] - end["accuracy"])[:-1])),
        float(np.mean((end["loss"] - best["loss"])[:-1])),
    ]


def shown(values: np.ndarray, digits: int) -> str:
    """Return the mean and the half width of its 95 % interval (Student's t)."""
    found = mean_interval(values)
    return f"{found.mean:.{digits}f} ± {found.half_width:.{digits}f}"


def focus(results: list[dict]) -> str:
    """Return how long the focus phases were, in per cent of an experience, one per task."""
    lengths = np.array([result["focus"] for result in results])
    return " ".join(f"{100 * x:.0f}" for x in lengths.mean(axis=0))


def table(found: dict[str, list[dict]]) -> list[dict]:
    """Return a row for each way to train; the difference of losses is paired by seed."""
    values = {name: np.array([measures(r) for r in results]) for name, results in found.items()}
    rows = []
    for name, results in found.items():
        row = {"": name}
        for i, (measure, digits) in enumerate(MEASURES.items()):
            row[measure] = shown(values[name][:, i], digits)
        gap = values[name][:, 0] - values["ReplayPlugin"][:, 0]
        row["loss − ReplayPlugin"] = "" if name == "ReplayPlugin" else shown(gap, 4)
        end = np.mean([[task["loss"] for task in r["after"][-1]] for r in results], axis=0)
        row["loss by task"] = " ".join(f"{x:.3f}" for x in end)
        rows.append(row | {"focus %": focus(results)})
    return rows


if __name__ == "__main__":
    groups = [(memory, count) for count in (1200, 12_000) for memory in (200, 1000)]
    # Without replay there is no memory: the same runs for both sizes.
    cases = {
        (name, memory, count, seed): {
            "name": name,
            "memory": 0 if name == "no replay" else memory,
            "count": count,
            "seed": seed,
        }
        for memory, count in groups
        for name in NAMES
        for seed in SEEDS
    }
    unique = [dict(items) for items in dict.fromkeys(tuple(c.items()) for c in cases.values())]
    results = sweep(case, unique, cache=ROOT / ".cache" / "split-fashion", progress=True)
    found = {tuple(c.values()): result for c, result in zip(unique, results, strict=True)}
    tables = {}
    for memory, count in groups:
        runs = {
            name: [found[tuple(cases[name, memory, count, seed].values())] for seed in SEEDS]
            for name in NAMES
        }
        tables[
            f"memory {memory}, {count} images per task; one learning rate and share for all, "
            "tuned for none"
        ] = table(runs)
    save("split_fashion", tables)
