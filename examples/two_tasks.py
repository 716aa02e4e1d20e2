"""What the practice examples share: two tasks, a network with two heads, a table.

Inputs are Gaussian. The label of a task says on which side of a hidden curved surface they lie; the
surfaces of the two tasks are similar, but not the same. Samples are (input, label, task).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch.utils.data import TensorDataset

INPUTS, HIDDEN, SIMILARITY = 100, 50, 0.3
TRAIN, HELD_OUT, TEST = 8000, 500, 4000  # samples of each task


def data(seed: int) -> tuple[list[TensorDataset], list[TensorDataset], list[TensorDataset]]:
    """Return samples of the two tasks for training, held out, and for the final test."""
    rng = np.random.default_rng(0)  # the same tasks whatever the seed
    old, other = (rng.standard_normal((3, INPUTS)) / np.sqrt(INPUTS) for _ in range(2))
    new = SIMILARITY * old + np.sqrt(1 - SIMILARITY**2) * other
    rng = np.random.default_rng([1, seed])

    def samples(count: int, teacher: np.ndarray, task: int) -> TensorDataset:
        x = rng.standard_normal((count, INPUTS), dtype=np.float32)
        y = np.tanh(x @ teacher.T).sum(axis=1) > 0
        labels = torch.from_numpy(y.astype(np.int64))
        return TensorDataset(torch.from_numpy(x), labels, torch.full((count,), task))

    train, held_out, test = (
        [samples(count, teacher, task) for task, teacher in enumerate((old, new))]
        for count in (TRAIN, HELD_OUT, TEST)
    )
    return train, held_out, test


class Network(torch.nn.Module):
    """A hidden layer for both tasks, with a head for each."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.ReLU())
        self.heads = torch.nn.Linear(HIDDEN, 4)

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        """Return the two outputs (n, 2) of each sample's own task."""
        outputs = self.heads(self.features(x)).view(-1, 2, 2)
        return outputs[torch.arange(len(x)), task]


def loss(model: torch.nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of a batch."""
    x, y, task = batch
    return torch.nn.functional.cross_entropy(model(x, task), y)


def losses(model: torch.nn.Module, samples: list[TensorDataset]) -> dict[int, float]:
    """Return the loss of each task on samples that are not trained on."""
    with torch.no_grad():
        return {task: loss(model, part.tensors).item() for task, part in enumerate(samples)}


def row(way: str, switch: int, samples: np.ndarray, before: float, after: dict) -> dict:
    """Return the results of a run: its samples by task, losses before (old) and after (both)."""
    return {
        "way": way,
        "switch": samples.sum() if switch < 0 else switch,  # not before the end
        "replayed": samples[0] / samples.sum(),
        "old loss": after[0],
        "new loss": after[1],
        "mean loss": (after[0] + after[1]) / 2,
        "forgetting": after[0] - before,
    }


def show(rows: list[dict]) -> None:
    """Print the mean over the rows of each way to train."""
    table = pd.DataFrame(rows).groupby("way", sort=False).mean()
    layout = {"switch": "{:,.0f}".format, "replayed": "{:.0%}".format}
    print(
        table.to_string(
            formatters=layout, float_format="{:.3f}".format, index_names=False, col_space=10
        )
    )
    print(
        f"\nMeans of {len(rows) // len(table)} runs. switch: samples after which replay began; "
        "forgetting: by how much\nthe old task's loss rose; mean loss: of the two tasks."
    )
