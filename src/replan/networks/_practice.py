"""Pairs of classes of Fashion-MNIST learnt one after the other, with several strategies.

What `replan train` runs: a PyTorch loop with a small memory, as a practitioner would write it.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replan._common import check, files
from replan._common.progress import Watch
from replan.integrations.torch import LossProbe, ReplayBatchSampler
from replan.networks import _datasets
from replan.networks._driver import (
    Network,
    Record,
    check_strategies,
    learn,
    needs_losses,
    strategy_policy,
)
from replan.networks._experiment import FILES, Experiment
from replan.policies import Policy
from replan.sweeps import sweep

LOOKS = 10  # at the test set, for each pair that arrives


@dataclass(frozen=True)
class SplitTraining:
    """How the pairs are learnt.

    pairs: the tasks, two classes each, in the order in which they arrive. samples: how many are
    trained on while a pair is the newest, in whole batches. memory: images kept of the pairs before
    it, including those for estimates. probe: images kept apart for estimates of the loss, where the
    strategy needs them, shared by the pairs so far. every: batches between estimates.
    """

    pairs: tuple[str, ...] = ("01", "23", "45", "67", "89")
    samples: int = 12_800
    memory: int = 200
    probe: int = 20
    batch_size: int = 64
    every: int = 5
    hidden: int = 200
    lr: float = 0.05

    def __post_init__(self) -> None:
        for pair in self.pairs:
            if not isinstance(pair, str) or len(set(pair)) != 2 or not pair.isdecimal():
                raise ValueError(
                    f"`pairs` expects pairs of different classes like 01, got {check.show(pair)}"
                )
        classes = "".join(self.pairs)
        if len(set(classes)) != len(classes) or not classes:
            raise ValueError(f"`pairs` expects each class once, got {', '.join(self.pairs)}")
        for name in ("batch_size", "every", "hidden"):
            check.integer(name, getattr(self, name), at_least=1)
        check.integer("samples", self.samples, at_least=LOOKS * self.batch_size)
        check.integer("probe", self.probe, at_least=len(self.pairs))
        check.integer("memory", self.memory, at_least=self.probe + len(self.pairs))
        check.number("lr", self.lr, above=0)

    @property
    def ends(self) -> list[int]:
        """Until when each pair is the newest, in samples, in whole batches."""
        each = self.samples // self.batch_size * self.batch_size
        return [each * (i + 1) for i in range(len(self.pairs))]

    @property
    def looks(self) -> list[int]:
        """When the network is tested, in samples."""
        batches = self.samples // self.batch_size
        steps = [batches * i // LOOKS * self.batch_size for i in range(1, LOOKS + 1)]
        return [end - self.ends[0] + step for end in self.ends for step in steps]


class Heads(torch.nn.Module):
    """A hidden layer for all tasks, with a head for each."""

    def __init__(self, pixels: int, hidden: int, tasks: int) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Linear(pixels, hidden), torch.nn.ReLU())
        self.heads = torch.nn.Linear(hidden, 2 * tasks)

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        """Return the two outputs (n, 2) of each sample's own task."""
        outputs = self.heads(self.features(x)).unflatten(1, (-1, 2))
        return outputs[torch.arange(len(x)), task]


class Pairs:
    """Images of each pair of classes as batches (pixels, label 0 or 1, task)."""

    def __init__(self, images: _datasets.Images, pairs: Sequence[str], seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.train: list[list[torch.Tensor]] = []
        self.test: list[list[torch.Tensor]] = []
        for task, pair in enumerate(pairs):
            for part, pixels, labels in (
                (self.train, images.train_images, images.train_labels),
                (self.test, images.test_images, images.test_labels),
            ):
                where = np.flatnonzero(np.isin(labels, [int(c) for c in pair]))
                if set(labels[where].tolist()) != {int(c) for c in pair}:
                    raise ValueError(
                        f"`pairs` expects classes that the data set has, got {check.show(pair)}"
                    )
                where = rng.permutation(where)
                part.append(_batch(pixels[where], labels[where] == int(pair[1]), task))


def _batch(images: np.ndarray, labels: np.ndarray, task: int) -> list[torch.Tensor]:
    pixels = torch.from_numpy(images.reshape(len(images), -1) / np.float32(255))
    return [pixels, torch.from_numpy(labels.astype(np.int64)), torch.full((len(images),), task)]


class PairNetwork(Network):
    """A network on its way through the pairs.

    apart: images kept apart for estimating losses, shared by the pairs so far. writer: of
    TensorBoard's events, if any.
    """

    def __init__(
        self, options: SplitTraining, seed: int, pairs: Pairs, *, apart: int, writer: Any
    ) -> None:
        self.options, self.seed, self.pairs, self.apart = options, seed, pairs, apart
        self.time, self.looks = 0, []
        self.newest, self.tasks = 0, len(options.pairs)
        self._writer = writer
        self._model = Heads(pairs.train[0][0].shape[1], options.hidden, self.tasks)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=options.lr)
        self._trained = np.zeros(self.tasks, dtype=np.int64)  # before the newest pair arrived
        self._sampler: ReplayBatchSampler

    def begin(self, task: int, policy: Policy) -> None:
        """Let a pair arrive; of earlier pairs, only the memory is left."""
        options, sizes, parts = self.options, [0] * self.tasks, []
        if task > 0:
            self._trained += self._sampler.samples
        for t in range(task + 1):
            first = self.apart // (t + 1)  # what was ever kept apart is never trained on
            room = (options.memory - self.apart) // task if t < task else None
            part = [x[first:][:room] for x in self.pairs.train[t]]
            sizes[t] = len(part[0])
            parts.append(part)
        self.newest = task
        self._data = [torch.cat(column) for column in zip(*parts, strict=True)]
        self._sampler = ReplayBatchSampler(
            sizes, policy, options.batch_size, batches=options.samples // options.batch_size,
            seed=self.tasks * self.seed + task,
        )  # fmt: skip
        self._batches = iter(self._sampler)
        if self.apart:
            room = self.apart // (task + 1)
            held_out = [
                list(zip(*(x[:room] for x in pair), strict=True))
                for pair in self.pairs.train[: task + 1]
            ]
            self._probe = LossProbe(held_out, _loss, every=1)

    def train(self, end: int) -> None:
        """Train in batches up to the time `end`."""
        while self.time < end:
            indices = next(self._batches)
            self._optimizer.zero_grad()
            _loss(self._model, [x[indices] for x in self._data]).backward()
            self._optimizer.step()
            self._sampler.step()
            self.time += len(indices)

    def test(self) -> dict[str, list[Any]]:
        """Return loss, accuracy and samples trained on, of the pairs so far."""
        found: dict[str, list[Any]] = {name: [None] * self.tasks for name in ("loss", "accuracy")}
        for task, (x, y, which) in enumerate(self.pairs.test[: self.newest + 1]):
            with torch.no_grad():
                output = self._model(x, which)
            found["loss"][task] = torch.nn.functional.cross_entropy(output, y).item()
            found["accuracy"][task] = (output.argmax(1) == y).double().mean().item()
        return found | {"trained": (self._trained + self._sampler.samples).tolist()}

    def estimate(self) -> dict[int, float]:
        """Return the loss of each pair so far on the images kept apart."""
        return self._probe.step(self._model)

    def look(self) -> None:
        """Test the network, keep what comes out, and show it on the board."""
        super().look()
        if self._writer is not None:
            for name in ("loss", "accuracy"):
                for pair, value in zip(self.options.pairs, self.looks[-1][name], strict=True):
                    if value is not None:
                        self._writer.add_scalar(f"{name}/{pair}", value, self.time)


def _loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, y, task = batch
    return torch.nn.functional.cross_entropy(model(x, task), y)


def _writer(folder: str) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    for old in Path(folder).glob("events.*"):  # of a run that was stopped
        old.unlink()
    return SummaryWriter(folder)


def learn_pairs(
    strategy: str, seed: int, settings: dict[str, Any], root: str | None, board: str | None
) -> Record:
    """Learn one pair after another, and return what was measured.

    board: a folder for TensorBoard's events.
    """
    options = SplitTraining(**settings | {"pairs": tuple(settings["pairs"])})
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    pairs = Pairs(_datasets.fashion_mnist(root), options.pairs, seed)
    writer = None if board is None else _writer(board)

    def log(values: dict[str, float], step: int) -> None:
        if writer is not None:
            for name, value in values.items():
                writer.add_scalar(f"policy/{name}", value, step)

    policy = strategy_policy(strategy, len(options.pairs), log=log)
    apart = options.probe if needs_losses(strategy) else 0
    return learn(
        f"{strategy} with seed {seed}",
        PairNetwork(options, seed, pairs, apart=apart, writer=writer),
        policy,
        list(enumerate(options.ends)),
        options.looks,
        options.every * options.batch_size,
    )


def train_pairs(
    out: files.FilePath,
    settings: SplitTraining | None = None,
    *,
    strategies: Sequence[str] = ("no-replay", "fixed-replay", "focus-then-replay"),
    seeds: int = 3,
    seed: int = 1,
    root: files.FilePath | None = None,
    workers: int | None = None,
    progress: Watch = False,
) -> Experiment:
    """Learn the pairs with each strategy, with `seeds` seeds from `seed` on; write a run folder.

    The folder has what `Experiment.write` writes, and TensorBoard's events where it is installed.
    Finished runs are kept in its cache.
    """
    settings = settings or SplitTraining()
    names = check_strategies(strategies)
    check.integer("seeds", seeds, at_least=1)
    check.integer("seed", seed)
    _datasets.fashion_mnist(root)  # is it there?
    folder = files.folder("out", out)
    for file in FILES:
        files.output("out", folder / file)
    given = {
        **asdict(settings), "pairs": list(settings.pairs), "strategies": names, "seeds": seeds,
        "seed": seed, "torch": torch.__version__, "numpy": np.__version__,
        "python": platform.python_version(),
    }  # fmt: skip
    files.write_json(folder / "settings.json", given)
    board = find_spec("tensorboard") is not None
    runs = range(seed, seed + seeds)
    cases = [
        {
            "strategy": strategy,
            "seed": run,
            "settings": asdict(settings) | {"pairs": list(settings.pairs)},
            "root": None if root is None else str(root),
            "board": str(folder / "tensorboard" / f"{strategy}-{run}") if board else None,
        }
        for strategy in names
        for run in runs
    ]
    records = iter(
        sweep(
            learn_pairs,
            cases,
            cache=folder / "cache",
            workers=workers,
            progress=progress,
        )
    )
    found = Experiment.gather(
        {strategy: [next(records) for _ in runs] for strategy in names},
        runs=list(runs),
        tasks=list(settings.pairs),
        arrivals=[0, *settings.ends[:-1]],
        settings=given,
    )
    found.write(folder)
    return found
