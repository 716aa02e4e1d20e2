"""Strategies of replay in training loops, each at its own best share, learning rate and decay.

Three tasks of two classes of Fashion-MNIST arrive one after another, with a head for each task or
one for all classes, with SGD or Adam, in PyTorch (1,200 or 12,000 images a task) and in Avalanche
(1,200). All strategies train on equally many samples with a memory of 300 images, including those
on which losses are probed. Each is tuned in the same way on validation images with seeds of its
own (`replan.networks._tuning`), and tested on other images with other seeds.

Needs the environment of `make test-avalanche` and Fashion-MNIST (`replan data fetch`).
`python benchmarks/tuned_replay.py [few] [many] [shares] [avalanche]` makes some of the tables;
finished runs are kept in .cache.
"""

import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
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
    from avalanche.models import MTSimpleMLP, SimpleMLP
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
    from avalanche.training.supervised import Naive

    from replan.integrations.avalanche import PolicyReplayPlugin

from common import save  # noqa: E402
from replan.networks._driver import strategy_policy  # noqa: E402
from replan.networks._experiment import Experiment  # noqa: E402
from replan.networks._practice import (  # noqa: E402
    TUNING_SEEDS,
    Source,
    SplitTraining,
    Tensors,
    Trained,
    learn_tasks,
    read_tasks,
    train_tasks,
)
from replan.networks._tuning import SEARCH, Choice, Tuning, tune  # noqa: E402
from replan.sweeps import sweep  # noqa: E402

PAIRS = ("01", "23", "45")
SETTINGS = {"memory": 300, "probe": 60, "every": 2, "share": 0.25}
SIZES = {"few": (1200, 50), "many": (12_000, 100)}  # images of a task, samples of a batch
TESTING = {"few": range(1, 25), "many": range(1, 13), "avalanche": range(1, 13)}  # seeds
RATES = {"sgd": 0.1, "adam": 0.001}  # where each search begins
STRATEGIES = ["no-replay", "fixed-replay", "focus-until-halved", "focus-then-replay"]
NAMES = {"task": "a head per task", "one": "one head for all classes"}
BATCH = 40  # in Avalanche: shares of replay are whole samples of it
CACHE = ROOT / ".cache" / "tuned-replay"


def strategies(heads: str) -> list[str]:
    """Without replay, one head forgets all but the last task: nothing to tune."""
    return STRATEGIES if heads == "task" else STRATEGIES[1:]


def pytorch_settings(size: str, heads: str, optimizer: str) -> SplitTraining:
    images, batch = SIZES[size]
    return SplitTraining(
        images=images, samples=2 * images, batch_size=batch, heads=heads, optimizer=optimizer,
        lr=RATES[optimizer], **SETTINGS,
    )  # fmt: skip


def pytorch(size: str, heads: str, optimizer: str) -> Trained:
    return train_tasks(
        CACHE / f"{size}-{heads}-{optimizer}", pytorch_settings(size, heads, optimizer),
        pairs=PAIRS, strategies=strategies(heads), tune=True, seeds=len(TESTING[size]), workers=1,
        progress=True,
    )  # fmt: skip


class Loop(SupervisedPlugin):
    """Decays the rate, counts samples, tests at ten moments, and ends after so many iterations."""

    def __init__(
        self, choice: Choice, iterations: int, per_task: bool, test: Callable[[], None] | None
    ) -> None:
        super().__init__()
        self.choice, self.iterations, self.per_task, self.test = choice, iterations, per_task, test
        self.done, self.trained = 0, torch.zeros(len(PAIRS), dtype=torch.int64)

    def before_training_exp(self, strategy: Naive, **kwargs: object) -> None:
        """Begin to count the iterations of an experience."""
        self.done = 0

    def before_training_iteration(self, strategy: Naive, **kwargs: object) -> None:
        """Set the learning rate."""
        if self.choice.decay == "cosine":
            for group in strategy.optimizer.param_groups:
                part = self.done / self.iterations
                group["lr"] = self.choice.lr * (1 + math.cos(math.pi * part)) / 2

    def after_training_iteration(self, strategy: Naive, **kwargs: object) -> None:
        """Count, test, end."""
        self.done += 1
        task = strategy.mb_task_id if self.per_task else strategy.mb_y // 2
        self.trained += torch.bincount(task, minlength=len(PAIRS))
        if self.test and self.done * 10 % self.iterations == 0:
            self.test()
        if self.done == self.iterations:
            strategy.stop_training()


def avalanche_case(
    strategy: str, heads: str, optimizer: str, choice: list, seed: int, tested: str
) -> dict:
    """Train on the tasks in Avalanche; return what was measured on the way, as `learn` does.

    tested: "test", or "validation" for the mean loss at the end alone, None if it diverged.
    """
    warnings.simplefilter("ignore")  # Avalanche's own
    torch.set_num_threads(1)
    random.seed(seed)
    torch.manual_seed(seed)
    images, _ = SIZES["few"]
    tensors = Tensors(read_tasks(Source(PAIRS)), SplitTraining(images=images), seed, tested)
    data = []
    for part in (tensors.train, tensors.test):
        pixels, classes, _ = (torch.cat(column) for column in zip(*part, strict=True))
        data.append(TensorDataset(pixels, classes))
        data[-1].targets = classes.tolist()
    per_task = heads == "task"
    stream = nc_benchmark(
        *map(as_classification_dataset, data), n_experiences=len(PAIRS), task_labels=per_task,
        fixed_class_order=list(range(2 * len(PAIRS))), class_ids_from_zero_in_each_exp=per_task,
    ).train_stream  # fmt: skip
    model = MTSimpleMLP(hidden_size=200) if per_task else SimpleMLP(6, hidden_size=200)
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    choice = Choice(*choice)
    plugin = avalanche_plugin(strategy, choice, seed)
    looks = []

    def test() -> None:
        model.eval()
        found = {"time": int(loop.trained.sum()), "loss": [None] * 3, "accuracy": [None] * 3}
        for task, (x, y, which) in enumerate(tensors.test[: len(seen)]):
            with torch.no_grad():
                output = model(x, which) if per_task else model(x)
            y = y % 2 if per_task else y
            found["loss"][task] = torch.nn.functional.cross_entropy(output, y).item()
            found["accuracy"][task] = (output.argmax(1) == y).double().mean().item()
        model.train()
        looks.append(found | {"trained": loop.trained.tolist()})

    loop = Loop(choice, 2 * images // BATCH, per_task, test if tested == "test" else None)
    trainer = Naive(
        model=model, optimizer=kind(model.parameters(), lr=choice.lr),
        criterion=torch.nn.CrossEntropyLoss(), train_mb_size=BATCH // 2, plugins=[plugin, loop],
        evaluator=EvaluationPlugin(),
    )  # fmt: skip
    seen = []
    for experience in stream:
        # With our plugin an epoch is what the loop ends after; else it ends one of these.
        trainer.train_epochs = 4 if seen and strategy == "fixed-replay" else 1
        seen.append(experience)
        trainer.train(experience, drop_last=True)
    if loop.trained.sum() != images * (2 * len(PAIRS) - 1):
        raise ValueError(f"{strategy} trained on {loop.trained.sum()} samples")
    if tested != "test":
        test()
        value = float(np.mean(looks[-1]["loss"]))
        return {"loss": value if math.isfinite(value) else None}
    decisions = [vars(decision) for decision in getattr(plugin, "decisions", [])]
    return {key: [look[key] for look in looks] for key in looks[0]} | {"decisions": decisions}


def avalanche_plugin(strategy: str, choice: Choice, seed: int) -> SupervisedPlugin:
    memory, probe = SETTINGS["memory"], SETTINGS["probe"]
    if strategy == "fixed-replay":
        replayed = round(choice.share * BATCH)
        return ReplayPlugin(memory, BATCH - replayed, replayed)
    policy = strategy_policy(strategy, len(PAIRS), choice.share)
    return PolicyReplayPlugin(policy, memory, probe_size=probe, every=SETTINGS["every"], seed=seed)


def avalanche(heads: str, optimizer: str) -> Trained:
    """Tune and test in the way of `train_tasks`."""

    def run(wanted: list[tuple[str, Choice]], seeds: range, tested: str) -> list[dict]:
        cases = [
            {"strategy": name, "heads": heads, "optimizer": optimizer, "choice": list(choice),
             "seed": seed, "tested": tested}
            for name, choice in wanted
            for seed in seeds
        ]  # fmt: skip
        return sweep(avalanche_case, cases, cache=CACHE / "avalanche", workers=1, progress=True)

    def losses(wanted: list[tuple[str, Choice]], seeds: range) -> np.ndarray:
        found = [one["loss"] for one in run(wanted, seeds, "validation")]
        return np.array(found, dtype=float).reshape(len(wanted), -1)

    start = Choice(RATES[optimizer], "constant", SETTINGS["share"])
    names, runs = ["fixed-replay", "focus-until-halved"], TESTING["avalanche"]
    tuning = tune(dict.fromkeys(names, start), losses, TUNING_SEEDS)
    records = iter(run(list(tuning.best.items()), runs, "test"))
    images, _ = SIZES["few"]
    experiment = Experiment.gather(
        {name: [next(records) for _ in runs] for name in names}, runs=list(runs),
        tasks=list(PAIRS), arrivals=[0, images, 3 * images], settings={},
    )  # fmt: skip
    return Trained(experiment, tuning)


def shares(size: str, heads: str) -> Trained:
    """Test fixed replay at each share that its search came to, at the best rate and decay there."""
    tried = pytorch(size, heads, "sgd").tuning.tried["fixed-replay"]
    by_share: dict[float, dict[Choice, float]] = {}
    for choice, loss in sorted(tried.items(), key=lambda item: item[0].share):
        by_share.setdefault(choice.share, {})[choice] = loss
    tuning = Tuning(
        tried={f"{100 * share:.0f} %": found for share, found in by_share.items()},
        finals={f"{100 * share:.0f} %": found for share, found in by_share.items()},
        seeds=list(TUNING_SEEDS[:SEARCH]),
    )
    settings, runs = asdict(pytorch_settings(size, heads, "sgd")), TESTING[size]
    cases = [
        {"strategy": "fixed-replay", "seed": seed, "settings": settings | choice._asdict(),
         "source": asdict(Source(PAIRS))}
        for choice in tuning.best.values()
        for seed in runs
    ]  # fmt: skip
    records = iter(sweep(learn_tasks, cases, cache=CACHE / "shares", workers=1, progress=True))
    experiment = Experiment.gather(
        {name: [next(records) for _ in runs] for name in tuning.best}, runs=list(runs),
        tasks=list(PAIRS), arrivals=[0, *(settings["samples"] * np.arange(1, 3)).tolist()],
        settings={},
    )  # fmt: skip
    return Trained(experiment, tuning)


def rows(found: Trained, other: str) -> list[dict]:
    """Return a row for each strategy: its choice, means at the end, and paired differences."""
    summary, gaps = found.experiment.summary(), found.experiment.differences(other)

    def cell(row: dict, key: str, scale: float, digits: int, sign: str = "") -> str:
        half = row[f"{key} half width"]
        return f"{scale * row[key]:{sign}.{digits}f} ± {scale * half:.{digits}f}"

    listed = []
    for name, row in summary.iterrows():
        choice, tried = found.tuning.best[name], found.tuning.tried[name]
        one = {
            "strategy": name,
            "share %": "–" if choice.share is None else f"{100 * choice.share:.0f}",
            "lr": f"{choice.lr:.4g}",
            "decay": choice.decay,
            "tried": len(tried),
            "settled": "yes" if found.tuning.settled(name) else "no",
            "loss": cell(row, "loss", 1, 4),
            "accuracy %": cell(row, "accuracy", 100, 2),
            "forgetting %": cell(row, "forgetting", 100, 2),
            "focus %": "–" if np.isnan(row["focus"]) else f"{100 * row['focus']:.0f}",
        }
        for key, scale, digits in (
            ("loss", 1, 4), ("on the way", 1, 4), ("accuracy", 100, 2), ("forgetting", 100, 2)
        ):  # fmt: skip
            title = f"{key}{' %' if scale > 1 else ''} − {other}"
            one[title] = "–" if name == other else cell(gaps.loc[name], key, scale, digits, "+")
        listed.append(one)
    return listed


def tried(found: Trained) -> list[dict]:
    """Return the validation loss, over the first seeds, of every choice that fixed replay tried."""
    listed = found.tuning.tried["fixed-replay"].items()
    rows = [{"share %": 100 * c.share, "decay": c.decay, "lr": c.lr, "loss": x} for c, x in listed]
    return sorted(rows, key=lambda row: list(row.values()))


def part_of(part: str) -> Iterator[tuple[str, Trained, str]]:
    """Yield the title of each table of a part, what it is made from, and the opponent in it."""
    if part == "shares":
        for size, heads in product(SIZES, NAMES):
            title = (
                f"fixed replay at several shares, {SIZES[size][0]} images a task, {NAMES[heads]}"
            )
            yield f"{title}, sgd", shares(size, heads), "50 %"
    else:
        for heads, optimizer in product(NAMES, RATES):
            where, images = ("Avalanche", "few") if part == "avalanche" else ("PyTorch", part)
            found = (
                avalanche(heads, optimizer)
                if part == "avalanche"
                else pytorch(part, heads, optimizer)
            )
            title = f"{where}, {SIZES[images][0]} images a task, {NAMES[heads]}, {optimizer}"
            yield title, found, "fixed-replay"


if __name__ == "__main__":
    for part in sys.argv[1:] or [*SIZES, "shares", "avalanche"]:
        for title, found, other in part_of(part):
            tuned = f"tuned with seeds {TUNING_SEEDS[0]}–{TUNING_SEEDS[-1]}"
            runs = found.experiment.runs
            title += f"; {tuned}, tested with {runs[0]}–{runs[-1]}"
            tables = {title: rows(found, other)}
            if part == "shares":  # none of them is a search of its own
                for row in tables[title]:
                    del row["settled"]
            if part in SIZES:
                tables[f"tried by fixed replay: {title}"] = tried(found)
            save("tuned_replay", tables)
