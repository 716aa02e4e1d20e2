"""Split Fashion-MNIST in Avalanche: no replay, `ReplayPlugin` and a policy's replay.

Five tasks of two classes one after the other, a head for each, equal memory for all, and equal
samples: batches of 25 go into 12,000 images and into a memory of 200 or 1,000. Needs the
environment of `make test-avalanche` and Fashion-MNIST (`replan data fetch`). Takes half an hour on
two cores; finished runs are kept in .cache.
"""

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
from replan import vision  # noqa: E402
from replan.figures.images import interval  # noqa: E402
from replan.online import FocusThenReplay, focus_lengths  # noqa: E402
from replan.sweep import sweep  # noqa: E402

TASKS, BATCH, HIDDEN = 5, 25, 200
SEEDS = range(1, 11)
FOCUS = {  # focus in samples, of 24,000 in an experience
    "focus, then replay": None,
    "focus of 6,000 at most": 6000,
    "no focus": 0,
}
NAMES = ["no replay", "ReplayPlugin", *FOCUS]
MEASURES = {"loss": 4, "accuracy %": 2, "forgetting %": 2, "loss forgotten": 4}


def tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(images / np.float32(255)), torch.from_numpy(labels.astype(np.int64))


class Counter(SupervisedPlugin):
    """Counts samples."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = 0

    def after_training_iteration(self, strategy: Naive, **kwargs: object) -> None:
        """Count those of the batch."""
        self.samples += len(strategy.mb_x)


def plugins(name: str, memory: int, seed: int) -> list:
    if name == "no replay":
        return []
    if name == "ReplayPlugin":
        return [ReplayPlugin(memory)]
    # Half of a batch is of the new task, as with ReplayPlugin.
    policy = FocusThenReplay(0, [], tasks=TASKS, shares=0.5, max_focus=FOCUS[name])
    # Without focus there is no need of losses, and all of the memory is replayed.
    return [
        PolicyReplayPlugin(policy, memory, probe_size=0 if name == "no focus" else None, seed=seed)
    ]


def evaluate(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, task: int) -> dict:
    model.eval()
    with torch.no_grad():
        output = model(x, torch.full((len(y),), task))
    loss = torch.nn.functional.cross_entropy(output, y).item()
    return {"loss": loss, "accuracy": (output.argmax(1) == y).double().mean().item()}


def case(name: str, memory: int, lr: float, seed: int) -> dict:
    """Train on the five tasks; return each one's test loss and accuracy after every task."""
    warnings.simplefilter("ignore")  # Avalanche's own
    torch.set_num_threads(1)
    random.seed(seed)
    torch.manual_seed(seed)
    images = vision.fashion_mnist()
    train = TensorDataset(*tensors(images.train_images, images.train_labels))
    test = TensorDataset(*tensors(images.test_images, images.test_labels))
    for data in (train, test):
        data.targets = data.tensors[1].tolist()
    stream = nc_benchmark(
        as_classification_dataset(train), as_classification_dataset(test), n_experiences=TASKS,
        task_labels=True, fixed_class_order=list(range(10)), class_ids_from_zero_in_each_exp=True,
    ).train_stream  # fmt: skip
    model = MTSimpleMLP(hidden_size=HIDDEN)
    strategy = Naive(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        criterion=torch.nn.CrossEntropyLoss(), train_mb_size=BATCH, train_epochs=1,
        plugins=plugins(name, memory, seed), evaluator=EvaluationPlugin(),
    )  # fmt: skip
    x, y = test.tensors
    counter = Counter()
    strategy.plugins.append(counter)
    after = []
    for number, experience in enumerate(stream):
        if name == "no replay" and number:  # as many samples as the others have with memory
            strategy.train_mb_size, strategy.train_epochs = 2 * BATCH, 2
        strategy.train(experience)
        seen = range(number + 1)
        after.append([evaluate(model, x[y // 2 == t], y[y // 2 == t] % 2, t) for t in seen])
    if counter.samples != 12_000 + 24_000 * (TASKS - 1):
        raise ValueError(f"{name} trained on {counter.samples} samples")
    policy = getattr(strategy.plugins[0], "policy", None)
    lengths = focus_lengths(policy.decisions, policy.step)[1:] if policy else []
    return {"after": after, "focus": lengths}


def measures(result: dict) -> list[float]:
    """Return what MEASURES names: of the end, and what went lost of all tasks but the last."""
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
    mean, low, _ = interval(values)
    return f"{mean:.{digits}f} ± {mean - low:.{digits}f}"


def focus(results: list[dict]) -> str:
    """Return how long the focus phases were, in per cent of an experience, one a task."""
    lengths = np.array([result["focus"] for result in results]) / 240
    return " ".join(f"{x:.0f}" for x in lengths.mean(axis=0))


def table(found: dict[str, list[dict]]) -> list[dict]:
    """Return a row for each way to train; `difference` is that of losses, seed by seed."""
    values = {name: np.array([measures(r) for r in results]) for name, results in found.items()}
    rows = []
    for name, results in found.items():
        row = {"": name}
        for i, (measure, digits) in enumerate(MEASURES.items()):
            row[measure] = shown(values[name][:, i], digits)
        gap = values[name][:, 0] - values["ReplayPlugin"][:, 0]
        row["loss − ReplayPlugin"] = "" if name == "ReplayPlugin" else shown(gap, 4)
        rows.append(row | {"focus %": focus(results)})
    return rows


if __name__ == "__main__":
    groups = [(memory, lr) for lr in (0.05, 0.2) for memory in (200, 1000)]
    # Without replay there is no memory: the same runs for both sizes.
    cases = {
        (name, memory, lr, seed): {
            "name": name, "memory": 0 if name == "no replay" else memory, "lr": lr, "seed": seed
        }
        for memory, lr in groups
        for name in NAMES
        for seed in SEEDS
    }  # fmt: skip
    unique = [dict(case) for case in dict.fromkeys(tuple(c.items()) for c in cases.values())]
    results = sweep(case, unique, cache=ROOT / ".cache" / "split-fashion", progress="runs")
    found = {tuple(key.values()): result for key, result in zip(unique, results, strict=True)}
    tables = {}
    for memory, lr in groups:
        runs = {
            name: [found[tuple(cases[name, memory, lr, seed].values())] for seed in SEEDS]
            for name in NAMES
        }
        tables[f"memory {memory}, learning rate {lr}"] = table(runs)
    save("split_fashion", tables)
