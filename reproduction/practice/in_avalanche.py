"""The comparison of strategies in Avalanche: its own replay, and a policy's by our plugin."""

from __future__ import annotations

import math
import random
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Avalanche's own
    from avalanche.benchmarks import nc_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import MTSimpleMLP, SimpleMLP
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
    from avalanche.training.supervised import Naive

    from replan.replay.avalanche import PolicyReplayPlugin

from reproduction.practice.split import LOOKS, Batch, Split, look, mean_loss, summary, tensors
from reproduction.practice.tuned_replay import make_policy

_BATCH = 40  # shares of replay are whole samples of it


class _Model(torch.nn.Module):
    """Avalanche's network, called with the tasks of a batch as ours is."""

    def __init__(self, inner: torch.nn.Module, per_task: bool) -> None:
        super().__init__()
        self.inner, self.per_task = inner, per_task

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.inner(x, task) if self.per_task else self.inner(x)
        return outputs


class _Loop(SupervisedPlugin):
    """Decays the rate, counts samples, looks at the test set, and ends after `iterations`."""

    def __init__(self, lr: float, decay: str, iterations: int, settings: Split) -> None:
        super().__init__()
        self.lr, self.decay, self.iterations, self.settings = lr, decay, iterations, settings
        self.trained, self.seen, self.looks = np.zeros(settings.tasks, int), 0, []
        self.test: list[Batch] = []
        self.often = True

    def before_training_exp(self, strategy: Any, **_: Any) -> None:
        """Begin to count the iterations of an experience."""
        self.done, self.seen = 0, self.seen + 1

    def before_training_iteration(self, strategy: Any, **_: Any) -> None:
        """Set the learning rate."""
        if self.decay == "cosine":
            factor = (1 + math.cos(math.pi * self.done / self.iterations)) / 2
            for group in strategy.optimizer.param_groups:
                group["lr"] = self.lr * factor

    def after_training_iteration(self, strategy: Any, **_: Any) -> None:
        """Count, look, end."""
        self.done += 1
        task = strategy.mb_task_id if self.settings.heads == "task" else strategy.mb_y // 2
        self.trained += np.bincount(task.numpy(), minlength=self.settings.tasks)
        if self.done * LOOKS % self.iterations == 0 and (
            self.often or self.done == self.iterations
        ):
            strategy.model.eval()
            model = _Model(strategy.model, self.settings.heads == "task")
            self.looks.append(look(model, self.test[: self.seen], self.trained))
            strategy.model.train()
        if self.done == self.iterations:
            strategy.stop_training()


def learn(
    strategy: str, split: dict[str, Any], choice: list[Any], seed: int, tested: str
) -> dict[str, Any]:
    """Train on the tasks in Avalanche, and return what was measured: see `summary`."""
    warnings.simplefilter("ignore")  # Avalanche's own
    torch.set_num_threads(1)
    random.seed(seed)
    torch.manual_seed(seed)
    lr, decay, share = choice
    settings = Split(**split)
    per_task, apart = settings.heads == "task", settings.probe if "focus" in strategy else 0
    # Images for probes come on top of those that are trained on, and out of the memory's room.
    train, test = tensors(settings.tasks, settings.images + settings.probe, seed, tested)
    held_out = [[x[settings.images :] for x in part] for part in train]
    train = [[x[: settings.images] for x in part] for part in train]
    sets = []
    for part in (train, test):
        pixels, classes, _ = (torch.cat(column) for column in zip(*part, strict=True))
        sets.append(TensorDataset(pixels, classes))
        sets[-1].targets = classes.tolist()
    stream = nc_benchmark(
        *map(as_classification_dataset, sets), n_experiences=settings.tasks, task_labels=per_task,
        fixed_class_order=list(range(2 * settings.tasks)), class_ids_from_zero_in_each_exp=per_task,
    ).train_stream  # fmt: skip
    if per_task:
        for part in (*test, *held_out):
            part[1] = part[1] % 2
    loop = _Loop(lr, decay, 2 * settings.images // _BATCH, settings)
    loop.test, loop.often = test, tested == "test"
    policy = None

    def losses(trainer: Any) -> dict[int, float]:
        trainer.model.eval()
        model, room = _Model(trainer.model, per_task), apart // loop.seen
        with torch.no_grad():
            found = {
                t: mean_loss(model, [x[:room] for x in part]).item()
                for t, part in enumerate(held_out[: loop.seen])
            }
        trainer.model.train()
        return found

    if strategy == "fixed-replay":
        replayed = round(share * _BATCH)
        plugin = ReplayPlugin(settings.memory, _BATCH - replayed, replayed)
    else:
        policy = make_policy(strategy, settings.tasks, share)
        plugin = PolicyReplayPlugin(
            policy, settings.memory - apart, losses=losses, every=settings.every, seed=seed
        )
    model = MTSimpleMLP(hidden_size=200) if per_task else SimpleMLP(6, hidden_size=200)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.SGD
    trainer = Naive(
        model=model, optimizer=kind(model.parameters(), lr=lr),
        criterion=torch.nn.CrossEntropyLoss(), train_mb_size=_BATCH // 2, plugins=[plugin, loop],
        evaluator=EvaluationPlugin(),
    )  # fmt: skip
    for number, experience in enumerate(stream):
        trainer.train_epochs = 4 if number and strategy == "fixed-replay" else 1  # the loop ends it
        trainer.train(experience, drop_last=True)
    return summary(loop.looks, policy, 2 * settings.images)
