"""The comparison of strategies in Avalanche: its own replay, and a policy's by our plugin."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
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

from reproduction.practice.split import LOOKS, Batch, Split, look, summary, tensors
from reproduction.practice.tuned_replay import make_policy

_BATCH = 40  # shares of replay are whole samples of it


class _Loop(SupervisedPlugin):
    """Decays the rate, counts samples, calls `look` on the way, and ends after `iterations`."""

    def __init__(self, lr: float, decay: str, iterations: int, settings: Split) -> None:
        super().__init__()
        self.lr, self.decay, self.iterations, self.settings = lr, decay, iterations, settings
        self.trained, self.seen = np.zeros(settings.tasks, int), 0
        self.look: Callable[[], None]

    def before_training_exp(self, strategy: Any, **_: Any) -> None:
        """Begin to count the iterations of an experience."""
        self.done, self.seen = 0, self.seen + 1

    def before_training_iteration(self, strategy: Any, **_: Any) -> None:
        """Set the learning rate."""
        if self.decay == "cosine":
            factor = (1 + math.cos(math.pi * self.done / self.iterations)) / 2
            strategy.optimizer.param_groups[0]["lr"] = self.lr * factor

    def after_training_iteration(self, strategy: Any, **_: Any) -> None:
        """Count, look, end."""
        self.done += 1
        task = strategy.mb_task_id if self.settings.heads == "task" else strategy.mb_y // 2
        self.trained += np.bincount(task.numpy(), minlength=self.settings.tasks)
        if self.done * LOOKS % self.iterations == 0:
            self.look()
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
    per_task, apart = settings.heads == "task", settings.probe
    # Images for probes come on top of those that are trained on, and out of the memory's room.
    train, test = tensors(settings.tasks, settings.images + apart, seed, tested)
    sets = []
    for part in ([[x[: settings.images] for x in one] for one in train], test):
        pixels, classes, _ = (torch.cat(column) for column in zip(*part, strict=True))
        sets.append(TensorDataset(pixels, classes))
        sets[-1].targets = classes.tolist()
    stream = nc_benchmark(
        *map(as_classification_dataset, sets), n_experiences=settings.tasks, task_labels=per_task,
        fixed_class_order=list(range(2 * settings.tasks)), class_ids_from_zero_in_each_exp=per_task,
    ).train_stream  # fmt: skip
    model = MTSimpleMLP(hidden_size=200) if per_task else SimpleMLP(6, hidden_size=200)
    loop, looks = _Loop(lr, decay, 2 * settings.images // _BATCH, settings), []

    def measure(parts: list[Batch]) -> dict[str, Any]:
        """Return what `look` does of the tasks so far."""
        shown = [[x, y % 2 if per_task else y, t] for x, y, t in parts[: loop.seen]]
        model.eval()
        found = look(lambda x, t: model(x, t) if per_task else model(x), shown, loop.trained)
        model.train()
        return found

    def losses(_: Any) -> dict[int, float]:
        room = settings.images + apart // loop.seen
        probes = [[x[settings.images : room] for x in part] for part in train]
        return dict(enumerate(measure(probes)["loss"]))

    loop.look = lambda: looks.append(measure(test))
    policy = None
    if strategy == "fixed-replay":
        replayed = round(share * _BATCH)
        plugin = ReplayPlugin(settings.memory, _BATCH - replayed, replayed)
    else:
        policy = make_policy(strategy, settings.tasks, share)
        plugin = PolicyReplayPlugin(
            policy, settings.memory - apart, losses=losses, every=settings.every, seed=seed
        )
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.SGD
    trainer = Naive(
        model=model, optimizer=kind(model.parameters(), lr=lr),
        criterion=torch.nn.CrossEntropyLoss(), train_mb_size=_BATCH // 2, plugins=[plugin, loop],
        evaluator=EvaluationPlugin(),
    )  # fmt: skip
    for number, experience in enumerate(stream):
        trainer.train_epochs = 4 if number and strategy == "fixed-replay" else 1  # the loop ends it
        trainer.train(experience, drop_last=True)
    return summary(looks, policy, 2 * settings.images)
