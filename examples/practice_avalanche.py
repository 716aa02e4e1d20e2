"""Focus, then replay in Avalanche, beside replay at a fixed share and equal memory.

It shows how to use policies, not which is better: the learning rate is tuned for neither.

python examples/practice_avalanche.py
"""

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.models import MTSimpleMLP
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from torch.utils.data import TensorDataset

from replan.replay import FixedReplay, FocusThenReplay, Policy
from replan.replay.avalanche import PolicyReplayPlugin
from two_tasks import HIDDEN, INPUTS, TRAIN, data, losses, row, show

MEMORY, BATCH = 400, 10  # as many samples of the memory as of the new task


def stream(tasks: list[TensorDataset]) -> list:
    """Return the tasks as experiences, each with a head and the labels 0 and 1."""
    x, y, task = (torch.cat(parts) for parts in zip(*(t.tensors for t in tasks), strict=True))
    both = TensorDataset(x, y + 2 * task)
    both.targets = both.tensors[1].tolist()
    benchmark = nc_benchmark(
        as_classification_dataset(both),
        as_classification_dataset(both),
        n_experiences=2,
        task_labels=True,
        fixed_class_order=[0, 1, 2, 3],
        class_ids_from_zero_in_each_exp=True,
    )
    return list(benchmark.train_stream)


def train(way: str, policy: Policy, seed: int) -> dict:
    """Train on one experience after another; return the results of the run."""
    torch.manual_seed(seed)
    tasks, held_out, test = data(seed)
    model = MTSimpleMLP(INPUTS, HIDDEN)
    plugin = PolicyReplayPlugin(
        policy, MEMORY, losses=lambda _: losses(model, held_out), every=10, seed=seed
    )
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        plugins=[plugin],
        evaluator=EvaluationPlugin(),
    )
    old, new = stream([TensorDataset(*t[: TRAIN // 4]) for t in tasks])
    strategy.train(old)
    before = losses(model, test[:1])[0]
    learnt = plugin.samples.copy()
    strategy.train(new)
    switch = getattr(policy, "switch_step", learnt[0]) - learnt[0]
    return row(way, switch, plugin.samples - learnt, before, losses(model, test))


def compare(seed: int) -> list[dict]:
    """Train in both ways with the same number of samples."""
    return [
        train("fixed replay", FixedReplay(tasks=2, share=0.5), seed),
        train("focus, then replay", FocusThenReplay(tasks=2), seed),
    ]


if __name__ == "__main__":
    show([row for seed in range(3) for row in compare(seed)])
