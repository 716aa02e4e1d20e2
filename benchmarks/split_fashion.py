"""Split Fashion-MNIST in Avalanche: no replay, `ReplayPlugin` and a policy's replay.

Five tasks of two classes one after the other, a head for each, equal samples and equal memory for
all. Needs the environment of `make test-avalanche` and Fashion-MNIST (`replan data fetch`). Takes
half an hour on two cores; finished runs are kept in .cache.
"""

import random
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integrations"))
import torchvision_operators  # noqa: E402, F401  before Avalanche

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Avalanche's own
    from avalanche.benchmarks import nc_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import MTSimpleMLP
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.supervised import Naive

    from replan.integrations.avalanche import PolicyReplayPlugin

from common import save  # noqa: E402
from replan import vision  # noqa: E402
from replan.online import FocusThenReplay  # noqa: E402
from replan.sweep import sweep  # noqa: E402

TASKS, BATCH, HIDDEN = 5, 32, 200
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


def plugins(name: str, memory: int, seed: int) -> list:
    if name == "no replay":
        return []
    if name == "ReplayPlugin":
        return [ReplayPlugin(memory)]
    # Half of a batch is of the new task, as with ReplayPlugin.
    policy = FocusThenReplay(0, [], tasks=TASKS, shares=0.5, max_focus=FOCUS[name])
    return [PolicyReplayPlugin(policy, memory, seed=seed)]


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
    after = []
    for number, experience in enumerate(stream):
        if name == "no replay" and number:  # as many samples as the others have with memory
            strategy.train_mb_size, strategy.train_epochs = 2 * BATCH, 2
        strategy.train(experience)
        seen = range(number + 1)
        after.append([evaluate(model, x[y // 2 == t], y[y // 2 == t] % 2, t) for t in seen])
    policy = getattr(next(iter(strategy.plugins)), "policy", None)
    phases = [[d.step, d.what] for d in policy.decisions] if policy else []
    return {"after": after, "phases": phases}


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


def interval(values: np.ndarray, digits: int) -> str:
    """Return the mean and the half width of its 95 % interval (Student's t)."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.{digits}f} ± {half:.{digits}f}"


def focus(results: list[dict]) -> str:
    """Return how long the focus phases were, in per cent of an experience, one a task."""
    if not results[0]["phases"]:
        return ""
    end = [12_000 + 24_000 * (TASKS - 1), "end"]
    lengths = [
        [
            100 * (after - step) / 24_000
            for (step, what), (after, _) in pairwise([*result["phases"], end])
            if what == "focus" and step >= 12_000
        ]
        for result in results
    ]
    return " ".join(f"{x:.0f}" for x in np.mean(lengths, axis=0))


def table(found: dict[str, list[dict]]) -> list[dict]:
    """Return a row for each way to train; `difference` is that of losses, seed by seed."""
    values = {name: np.array([measures(r) for r in results]) for name, results in found.items()}
    rows = []
    for name, results in found.items():
        row = {"": name}
        for i, (measure, digits) in enumerate(MEASURES.items()):
            row[measure] = interval(values[name][:, i], digits)
        gap = values[name][:, 0] - values["ReplayPlugin"][:, 0]
        row["loss − ReplayPlugin"] = "" if name == "ReplayPlugin" else interval(gap, 4)
        rows.append(row | {"focus %": focus(results)})
    return rows


if __name__ == "__main__":
    groups = [(memory, lr) for lr in (0.05, 0.2) for memory in (200, 1000)]
    cases = [
        # Without replay there is no memory: the same runs for both sizes.
        {"name": name, "memory": 0 if name == "no replay" else memory, "lr": lr, "seed": seed}
        for memory, lr in groups
        for name in NAMES
        for seed in SEEDS
    ]
    results = sweep(case, cases, cache=ROOT / ".cache" / "split-fashion", progress="split_fashion")
    rows, tables = iter(results), {}
    for memory, lr in groups:
        found = {name: [next(rows) for _ in SEEDS] for name in NAMES}
        tables[f"memory {memory}, learning rate {lr}"] = table(found)
    save("split_fashion", tables)
