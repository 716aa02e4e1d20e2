"""Strategies side by side on pairs of classes of Fashion-MNIST, learnt one pair after the other.

What `replan train` runs: a PyTorch loop with a small memory, as a practitioner would write it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from replan._common import check, files, plotting
from replan.integrations.torch import LossProbe, ReplayBatchSampler
from replan.networks import _datasets
from replan.policies import FocusThenReplay
from replan.sweeps import sweep

# What the new pair does when it arrives, as settings of FocusThenReplay.
STRATEGIES: dict[str, dict[str, Any]] = {
    "no-replay": {"min_focus": sys.maxsize, "max_focus": sys.maxsize},
    "fixed-replay": {"max_focus": 0, "shares": 0.5},
    "focus-then-replay": {"shares": 0.5},
    "focus-then-loss": {"shares": "loss"},
}
NEEDS_LOSSES = ("focus-then-replay", "focus-then-loss")
LOOKS = 10  # at the test set, for each pair that arrives


@dataclass(frozen=True)
class SplitTraining:
    """How the pairs are learnt.

    pairs: the tasks, two classes each, in the order in which they arrive. samples: trained on for
    each, in whole batches. memory: images kept of the pairs before, those for probing included.
    probe: images kept apart for estimating losses, where the strategy needs them, shared by the
    pairs seen so far. every: batches between estimates.
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
                    f"`pairs` expects pairs of different classes like 01, got {pair!r}"
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


class Network(torch.nn.Module):
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
                    raise ValueError(f"`pairs` expects classes that there are, got {pair!r}")
                where = rng.permutation(where)
                part.append(_batch(pixels[where], labels[where] == int(pair[1]), task))


def _batch(images: np.ndarray, labels: np.ndarray, task: int) -> list[torch.Tensor]:
    pixels = torch.from_numpy(images.reshape(len(images), -1) / np.float32(255))
    return [pixels, torch.from_numpy(labels.astype(np.int64)), torch.full((len(images),), task)]


def learn(
    strategy: str, seed: int, settings: dict[str, Any], root: str | None, board: str | None
) -> dict[str, Any]:
    """Learn one pair after the other; return test losses on the way, samples and decisions.

    board: a folder for TensorBoard's events.
    """
    options = SplitTraining(**settings | {"pairs": tuple(settings["pairs"])})
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    pairs = Pairs(_datasets.fashion_mnist(root), options.pairs, seed)
    run = _Run(options, strategy, seed, pairs, board)
    for task in range(len(options.pairs)):
        run.arrive(task)
    decisions = run.policy.decisions
    return {
        "looks": run.looks,
        "samples": run.samples.tolist(),
        "focus": run.policy.focus_lengths,
        "decisions": [asdict(decision) for decision in decisions],
    }


class _Run:
    """A network on its way through the pairs."""

    def __init__(
        self, options: SplitTraining, strategy: str, seed: int, pairs: Pairs, board: str | None
    ) -> None:
        self.options, self.seed, self.pairs = options, seed, pairs
        self.tasks = len(options.pairs)
        self.apart = options.probe if strategy in NEEDS_LOSSES else 0
        self.writer = None if board is None else _writer(board)
        self.policy = FocusThenReplay(
            0, [], tasks=self.tasks, log=self._log, **STRATEGIES[strategy]
        )
        self.network = Network(pairs.train[0][0].shape[1], options.hidden, self.tasks)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=options.lr)
        self.samples = np.zeros(self.tasks, dtype=np.int64)
        self.looks: list[dict[str, Any]] = []

    def arrive(self, task: int) -> None:
        """Train on a new pair, and on the memory of those before as the policy says."""
        options, sizes, parts = self.options, [0] * self.tasks, []
        for t in range(task + 1):
            first = self.apart // (t + 1)  # what was ever kept apart is never trained on
            room = (options.memory - self.apart) // task if t < task else None
            part = [x[first:][:room] for x in self.pairs.train[t]]
            sizes[t] = len(part[0])
            parts.append(part)
        x, y, which = (torch.cat(column) for column in zip(*parts, strict=True))
        batches = options.samples // options.batch_size
        looks = {batches * i // LOOKS for i in range(1, LOOKS + 1)}
        self.policy.begin(task)
        sampler = ReplayBatchSampler(
            sizes, self.policy, options.batch_size, batches=batches,
            seed=self.tasks * self.seed + task,
        )  # fmt: skip
        probe = self._probe(task) if self.apart else None
        for indices in sampler:
            self.optimizer.zero_grad()
            _loss(self.network, [x[indices], y[indices], which[indices]]).backward()
            self.optimizer.step()
            sampler.step(None if probe is None else probe.step(self.network))
            if sampler.steps in looks:
                self._look(task, self.samples + sampler.samples)
        self.samples += sampler.samples

    def _probe(self, newest: int) -> LossProbe:
        """Return a probe on what is kept apart of the pairs so far."""
        room = self.apart // (newest + 1)
        held_out = [
            list(zip(*(x[:room] for x in pair), strict=True))
            for pair in self.pairs.train[: newest + 1]
        ]
        return LossProbe(held_out, _loss, every=self.options.every)

    def _look(self, newest: int, samples: np.ndarray) -> None:
        """Test the network on all pairs so far."""
        for task in range(newest + 1):
            x, y, which = self.pairs.test[task]
            with torch.no_grad():
                output = self.network(x, which)
            loss = torch.nn.functional.cross_entropy(output, y).item()
            if not np.isfinite(loss):
                raise ValueError(f"`lr` expects a smaller number: at {self.options.lr} it diverges")
            look = {
                "newest": self.options.pairs[newest],
                "samples": int(samples.sum()),
                "task": self.options.pairs[task],
                "loss": loss,
                "accuracy": (output.argmax(1) == y).double().mean().item(),
                "trained": int(samples[task]),
            }
            self.looks.append(look)
            if self.writer is not None:
                for name in ("loss", "accuracy"):
                    self.writer.add_scalar(f"{name}/{look['task']}", look[name], look["samples"])

    def _log(self, values: dict[str, float], step: int) -> None:
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(f"policy/{name}", value, step)


def _loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, y, task = batch
    return torch.nn.functional.cross_entropy(model(x, task), y)


def _writer(folder: str) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    for old in Path(folder).glob("events.*"):  # of a run that was stopped
        old.unlink()
    return SummaryWriter(folder)


def side_by_side(
    out: files.FilePath,
    settings: SplitTraining | None = None,
    *,
    strategies: Sequence[str] = ("no-replay", "fixed-replay", "focus-then-replay"),
    seeds: int = 3,
    seed: int = 1,
    root: files.FilePath | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> pd.DataFrame:
    """Learn the pairs with each strategy, `seeds` times; write a run folder, return its summary.

    The folder has settings.json, metrics.csv, decisions.json, summary.json and losses.png, and
    TensorBoard's events where it is installed. Runs that are finished are kept in its cache.
    """
    settings = settings or SplitTraining()
    for strategy in check.items("strategies", strategies, "strategies"):
        check.one_of("strategies", strategy, STRATEGIES)
    if len(set(strategies)) != len(strategies) or not strategies:
        raise ValueError(f"`strategies` expects each once, got {', '.join(strategies)}")
    check.integer("seeds", seeds, at_least=1)
    check.integer("seed", seed)
    _datasets.fashion_mnist(root)  # is it there?
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        **asdict(settings), "strategies": list(strategies), "seeds": seeds, "seed": seed,
        "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version(),
    }  # fmt: skip
    files.write_json(folder / "settings.json", given)
    board = find_spec("tensorboard") is not None
    runs = [(strategy, seed + i) for strategy in strategies for i in range(seeds)]
    cases = [
        {
            "strategy": strategy,
            "seed": number,
            "settings": asdict(settings) | {"pairs": list(settings.pairs)},
            "root": None if root is None else str(root),
            "board": str(folder / "tensorboard" / f"{strategy}-{number}") if board else None,
        }
        for strategy, number in runs
    ]
    results = sweep(
        learn,
        cases,
        cache=folder / "cache",
        workers=workers,
        progress=progress,
    )
    found = dict(zip(runs, results, strict=True))
    metrics = _metrics(found)
    files.write_csv(folder / "metrics.csv", list(metrics), metrics.to_numpy().tolist())
    decisions = {f"{name}-{number}": r["decisions"] for (name, number), r in found.items()}
    files.write_json(folder / "decisions.json", {"settings": given, "decisions": decisions})
    summary = summarise(metrics, found)
    rows = summary.astype(object).where(summary.notna(), None).reset_index().to_dict("records")
    files.write_json(folder / "summary.json", {"settings": given, "summary": rows})
    _draw(folder / "losses.png", metrics, settings)
    return summary


def _metrics(found: dict[tuple[str, int], dict[str, Any]]) -> pd.DataFrame:
    """Return a row for each look at each task."""
    return pd.concat(
        pd.DataFrame(result["looks"]).assign(strategy=strategy, seed=number)
        for (strategy, number), result in found.items()
    )[["strategy", "seed", "newest", "samples", "task", "loss", "accuracy", "trained"]]


def summarise(metrics: pd.DataFrame, found: dict[tuple[str, int], dict[str, Any]]) -> pd.DataFrame:
    """Return, by strategy, means over tasks and seeds, with half widths of 95 % intervals.

    on the way: the loss averaged over the pairs so far and over all looks since the second arrived.
    forgetting: what a task's accuracy fell by since it was the newest, over all but the last.
    replayed: the share of samples of old tasks. focus: the part of the samples of a pair that the
    focus phase took, over all pairs but the first.
    """
    rows = []
    samples = metrics["samples"].max() / metrics["task"].nunique()
    for (strategy, number), group in metrics.groupby(["strategy", "seed"], sort=False):
        end = group[group["samples"] == group["samples"].max()].set_index("task")
        learnt = group[group["newest"] == group["task"]].groupby("task", sort=False).last()
        lost = (learnt["accuracy"] - end["accuracy"])[learnt.index[:-1]]
        later = group[group["newest"] != group["newest"].iloc[0]] if len(end) > 1 else group
        rows.append({
            "strategy": strategy,
            "loss": end["loss"].mean(),
            "on the way": later.groupby("samples")["loss"].mean().mean(),
            "accuracy": end["accuracy"].mean(),
            "forgetting": lost.mean() if len(lost) else 0.0,
            "replayed": _replayed(learnt, end),
            "focus": np.mean(found[strategy, number]["focus"][1:] or [samples]) / samples,
        })  # fmt: skip
    table = pd.DataFrame(rows).groupby("strategy", sort=False)
    means = table.mean()
    student = stats.t.ppf(
        0.975, metrics["seed"].nunique() - 1
    )  # NaN for one, which tells no spread
    for name in ("loss", "on the way", "accuracy", "forgetting"):
        half = student * table[name].sem()
        means.insert(means.columns.get_loc(name) + 1, f"{name} half width", half)
    return means


def _replayed(learnt: pd.DataFrame, end: pd.DataFrame) -> float:
    """Return the share of samples trained on after their pair was the newest."""
    return float((end["trained"] - learnt["trained"]).sum() / end["trained"].sum())


def _draw(path: Path, metrics: pd.DataFrame, settings: SplitTraining) -> None:
    """Draw mean losses over seeds: of the pairs so far as they arrive, and of each at the end."""
    strategies = metrics["strategy"].unique().tolist()
    pairs = list(settings.pairs)
    with plotting.figure(path, width=8.0, height=3.4) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[3, 2])
        for i, strategy in enumerate(strategies):
            look = {"color": plotting.TASK_COLOURS[i], "label": strategy}
            mine = metrics[metrics["strategy"] == strategy]
            curves = mine.groupby(["seed", "samples"])["loss"].mean().unstack()
            band = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
            left.fill_between(curves.columns, curves.min(), curves.max(), **band)
            left.plot(curves.columns, curves.mean(), **look)
            end = mine[mine["samples"] == mine["samples"].max()]
            ends = end.pivot(index="seed", columns="task", values="loss")[pairs]
            where = np.arange(len(pairs)) + 0.15 * (i - (len(strategies) - 1) / 2)
            right.vlines(where, ends.min(), ends.max(), color=look["color"], linewidth=1.2)
            right.plot(where, ends.mean(), "o", markersize=4, **look)
        for samples in metrics.groupby("newest", sort=False)["samples"].max().iloc[:-1]:
            left.axvline(samples, color="0.8", linewidth=0.8, zorder=0)
        left.set(xlabel="samples", ylabel="test loss, mean of pairs so far", yscale="log")
        left.xaxis.set_major_formatter(lambda n, _: f"{n / 1000:g}k" if n else "0")
        right.set(xlabel="classes of the pair", ylabel="test loss at the end", yscale="log")
        right.set_xticks(range(len(pairs)), pairs)
        for panel in (left, right):
            plotting.plain_ticks(panel)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(strategies))
