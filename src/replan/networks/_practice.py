"""Tasks learnt one after the other, with several strategies, each tuned if one wishes.

What `replan train` runs: a PyTorch loop with a small memory, as a practitioner would write it.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replan._common import check, files
from replan._common.check import Floats
from replan._common.progress import Watch
from replan.dynamics import IntegrationError
from replan.integrations.torch import LossProbe, ReplayBatchSampler
from replan.networks import _tuning
from replan.networks._driver import (
    Network,
    Record,
    check_strategies,
    has_share,
    learn,
    needs_losses,
    strategy_policy,
)
from replan.networks._experiment import FILES, Experiment
from replan.networks._task_data import PAIRS, Samples, TaskData, fashion_pairs, task_folder
from replan.networks._tuning import DECAYS, Choice, Tuning
from replan.policies import Policy
from replan.sweeps import sweep

LOOKS = 10  # at the test set, for each task that arrives
# What docs/how-much-when.md says, unless something else is given
SHARES = {"task": 0.1, "one": 0.5}  # of replay: with a head per task, or one for all classes
RATES = {"sgd": 0.2, "adam": 0.001}  # of each optimizer
TUNING_SEEDS = range(1_000_001, 1_000_009)  # which runs that are reported never have


@dataclass(frozen=True)
class SplitTraining:
    """How the tasks are learnt.

    images: of each task to train on, by default all there are. samples: how many are trained on
    while a task is the newest, in whole batches. memory: images kept of the tasks before it,
    including those for estimates. probe: images kept apart for estimates of the loss, where the
    strategy needs them, shared by the tasks so far. every: batches between estimates. heads: "task"
    for a head per task, "one" for one that tells all classes apart. lr: by default the optimizer's
    in RATES. decay: of the rate, for each task anew: "constant" or "cosine", down to 0. share: of
    replay, for strategies that have one, by default that of the heads in SHARES.
    """

    images: int | None = None
    samples: int = 12_800
    memory: int = 200
    probe: int = 20
    batch_size: int = 64
    every: int = 5
    hidden: int = 200
    heads: str = "task"
    optimizer: str = "sgd"
    lr: float | None = None
    decay: str = "constant"
    share: float | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "every", "hidden"):
            check.integer(name, getattr(self, name), at_least=1)
        check.integer("samples", self.samples, at_least=LOOKS * self.batch_size)
        check.one_of("heads", self.heads, SHARES)
        check.one_of("optimizer", self.optimizer, RATES)
        check.one_of("decay", self.decay, DECAYS)
        check.number("lr", self.choice.lr, above=0)
        check.number("share", self.choice.share, above=0, at_most=1)

    @property
    def choice(self) -> Choice:
        """The learning rate, its decay and the share of replay: those given, or the defaults."""
        return Choice(
            RATES[self.optimizer] if self.lr is None else self.lr,
            self.decay,
            SHARES[self.heads] if self.share is None else self.share,
        )

    def check_data(self, data: TaskData) -> None:
        """Refuse settings that do not fit the data."""
        tasks = len(data.tasks)
        least = min(len(samples.y) for samples in data.train)
        check.integer("probe", self.probe, at_least=tasks, at_most=least - 1)
        check.integer("memory", self.memory, at_least=self.probe + tasks)
        if self.images is not None:
            check.integer("images", self.images, at_least=self.probe + 1)
        for task, name in enumerate(data.tasks):
            if self.heads == "task" and len(data.classes_of(task)) < 2:
                raise ValueError(
                    "`heads` expects 'one' where a task has one class only, got 'task' and "
                    f"the task {name}"
                )

    def ends(self, tasks: int) -> list[int]:
        """Return until when each of the tasks is the newest, in samples, in whole batches."""
        each = self.samples // self.batch_size * self.batch_size
        return [each * (i + 1) for i in range(tasks)]

    def looks(self, tasks: int) -> list[int]:
        """Return when the network is tested, in samples."""
        batches, ends = self.samples // self.batch_size, self.ends(tasks)
        steps = [batches * i // LOOKS * self.batch_size for i in range(1, LOOKS + 1)]
        return [end - ends[0] + step for end in ends for step in steps]


class Classifier(torch.nn.Module):
    """A hidden layer for all tasks; with a head per task, other tasks' outputs do not compete.

    owned: (tasks, outputs) which outputs are a task's; None for one head.
    """

    def __init__(
        self, features: int, hidden: int, outputs: int, owned: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(torch.nn.Linear(features, hidden), torch.nn.ReLU())
        self.heads = torch.nn.Linear(hidden, outputs)
        self.owned = owned

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, outputs) of samples of the given tasks (n,)."""
        outputs: torch.Tensor = self.heads(self.features(x))
        return outputs if self.owned is None else outputs.where(self.owned[task], -math.inf)


class Tensors:
    """The data of a run: batches (x, output, task) for each task, in the order of its seed.

    outputs: how many the network needs; owned: (tasks, outputs) by whom, None for one head.
    """

    def __init__(self, data: TaskData, settings: SplitTraining, seed: int, tested: str) -> None:
        counts = [len(data.classes_of(task)) for task in range(len(data.tasks))]
        one = settings.heads == "one"
        self.outputs = len(data.classes) if one else sum(counts)
        self.owned = None
        if not one:
            owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
            self.owned = owner == torch.arange(len(counts))[:, None]

        def batch(samples: Samples, task: int) -> list[torch.Tensor]:
            output = samples.y
            if not one:
                output = sum(counts[:task]) + np.searchsorted(data.classes_of(task), samples.y)
            which = torch.full((len(output),), task)
            return [torch.from_numpy(samples.x), torch.from_numpy(output), which]

        self.train, rng = [], np.random.default_rng([seed, 0])
        for task, samples in enumerate(data.train):
            some = rng.permutation(len(samples.y))[: settings.images]
            self.train.append(batch(Samples(samples.x[some], samples.y[some]), task))
        self.test = [batch(s, task) for task, s in enumerate(getattr(data, tested))]


class TaskNetwork(Network):
    """A network on its way through the tasks.

    apart: images kept apart for estimating losses, shared by the tasks so far. writer: of
    TensorBoard's events, if any; names: of the tasks there.
    """

    def __init__(
        self,
        settings: SplitTraining,
        seed: int,
        tensors: Tensors,
        *,
        apart: int,
        writer: Any,
        names: list[str],
    ) -> None:
        self.settings, self.seed, self.tensors, self.apart = settings, seed, tensors, apart
        self.time, self.looks = 0, []
        self.newest, self.tasks = 0, len(names)
        self._names, self._writer = names, writer
        features = tensors.train[0][0].shape[1]
        self._model = Classifier(features, settings.hidden, tensors.outputs, tensors.owned)
        kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.SGD
        self._optimizer = kind(self._model.parameters(), lr=settings.choice.lr)
        self._trained = np.zeros(self.tasks, dtype=np.int64)  # before the newest task arrived
        self._sampler: ReplayBatchSampler

    def begin(self, task: int, policy: Policy) -> None:
        """Let a task arrive; of earlier tasks, only the memory is left."""
        settings, sizes, parts = self.settings, [0] * self.tasks, []
        if task > 0:
            self._trained += self._sampler.samples
        for t in range(task + 1):
            first = self.apart // (t + 1)  # what was ever kept apart is never trained on
            room = (settings.memory - self.apart) // task if t < task else None
            part = [x[first:][:room] for x in self.tensors.train[t]]
            sizes[t] = len(part[0])
            parts.append(part)
        self.newest = task
        self._data = [torch.cat(column) for column in zip(*parts, strict=True)]
        self._sampler = ReplayBatchSampler(
            sizes, policy, settings.batch_size, batches=settings.samples // settings.batch_size,
            seed=self.tasks * self.seed + task,
        )  # fmt: skip
        self._batches = iter(self._sampler)
        if self.apart:
            room = self.apart // (task + 1)
            held_out = [
                list(zip(*(x[:room] for x in part), strict=True))
                for part in self.tensors.train[: task + 1]
            ]
            self._probe = LossProbe(held_out, _loss, every=1)

    def train(self, end: int) -> None:
        """Train in batches up to the time `end`."""
        while self.time < end:
            if self.settings.decay == "cosine":
                done = self._sampler.steps / len(self._sampler)
                for group in self._optimizer.param_groups:
                    group["lr"] = self.settings.choice.lr * (1 + math.cos(math.pi * done)) / 2
            indices = next(self._batches)
            self._optimizer.zero_grad()
            _loss(self._model, [x[indices] for x in self._data]).backward()
            self._optimizer.step()
            self._sampler.step()
            self.time += len(indices)

    def test(self) -> dict[str, list[Any]]:
        """Return loss, accuracy and samples trained on, of the tasks so far."""
        found: dict[str, list[Any]] = {name: [None] * self.tasks for name in ("loss", "accuracy")}
        for task, (x, y, which) in enumerate(self.tensors.test[: self.newest + 1]):
            with torch.no_grad():
                output = self._model(x, which)
            found["loss"][task] = torch.nn.functional.cross_entropy(output, y).item()
            found["accuracy"][task] = (output.argmax(1) == y).double().mean().item()
        return found | {"trained": (self._trained + self._sampler.samples).tolist()}

    def estimate(self) -> dict[int, float]:
        """Return the loss of each task so far on the images kept apart."""
        return self._probe.step(self._model)

    def look(self) -> None:
        """Test the network, keep what comes out, and show it on the board."""
        super().look()
        if self._writer is not None:
            for name in ("loss", "accuracy"):
                for task, value in zip(self._names, self.looks[-1][name], strict=True):
                    if value is not None:
                        self._writer.add_scalar(f"{name}/{task}", value, self.time)


def _loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, y, task = batch
    return torch.nn.functional.cross_entropy(model(x, task), y)


def _writer(folder: str) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    for old in Path(folder).glob("events.*"):  # of a run that was stopped
        old.unlink()
    return SummaryWriter(folder)


@dataclass(frozen=True)
class Source:
    """Where tasks come from: pairs of classes of Fashion-MNIST (in `root`), or the folder `data`.

    digest: of the folder's content, so that finished runs on another one do not count.
    """

    pairs: tuple[str, ...] = PAIRS
    root: str | None = None
    data: str | None = None
    digest: str = ""


@lru_cache(maxsize=1)
def read_tasks(source: Source) -> TaskData:
    """Return the tasks of a source; a process that trains many times reads them once."""
    if source.data is None:
        return fashion_pairs(source.pairs, source.root)
    return task_folder(source.data)


def learn_tasks(
    strategy: str,
    seed: int,
    settings: dict[str, Any],
    source: dict[str, Any],
    board: str | None = None,
) -> Record:
    """Learn one task after another, and return what was measured on the test set.

    board: a folder for TensorBoard's events.
    """
    return _learn(strategy, seed, settings, source, "test", board)


def validate_tasks(
    strategy: str, seed: int, settings: dict[str, Any], source: dict[str, Any]
) -> dict[str, float | None]:
    """Learn one task after another; return the mean loss on validation data at the end.

    It is None if training diverges.
    """
    try:
        found = _learn(strategy, seed, settings, source, "validation", None)
    except IntegrationError:
        return {"loss": None}
    return {"loss": float(np.mean(found["loss"][-1]))}


def _learn(
    strategy: str,
    seed: int,
    given: dict[str, Any],
    source: dict[str, Any],
    tested: str,
    board: str | None,
) -> Record:
    """Learn one task after another; test on the test set all the way, on others at the end."""
    settings = SplitTraining(**given)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data = read_tasks(Source(**source | {"pairs": tuple(source["pairs"])}))
    count = len(data.tasks)
    writer = None if board is None else _writer(board)

    def log(values: dict[str, float], step: int) -> None:
        if writer is not None:
            for name, value in values.items():
                writer.add_scalar(f"policy/{name}", value, step)

    network = TaskNetwork(
        settings,
        seed,
        Tensors(data, settings, seed, tested),
        apart=settings.probe if needs_losses(strategy) else 0,
        writer=writer,
        names=data.tasks,
    )
    ends = settings.ends(count)
    return learn(
        f"{strategy} with seed {seed}",
        network,
        strategy_policy(strategy, count, settings.choice.share, log=log),
        list(enumerate(ends)),
        settings.looks(count) if tested == "test" else ends[-1:],
        settings.every * settings.batch_size,
        first=settings.batch_size,  # as `LossProbe` does: how far has a loss come down since?
    )


@dataclass(frozen=True)
class Trained:
    """What strategies did, and at which settings: tuned for each, or the same for all."""

    experiment: Experiment
    tuning: Tuning | None = None

    @property
    def opponent(self) -> str | None:
        """The strategy that others are compared with, None if there are no others."""
        names = self.experiment.strategies
        if len(names) == 1:
            return None
        return "fixed-replay" if "fixed-replay" in names else names[0]

    def __str__(self) -> str:
        parts = [str(self.experiment)]
        if self.tuning is not None:
            parts.insert(0, str(self.tuning))
        if self.opponent is not None:
            parts.append(self._differences(self.opponent))
        return "\n\n".join(parts)

    def _differences(self, other: str) -> str:
        table = self.experiment.differences(other)
        width = max(17, *(len(name) + 1 for name in table.index))
        # what to multiply by, how many digits to show, and how wide
        shown = {
            "loss": (1, 4, 17), "on the way": (1, 4, 17), "accuracy": (100, 2, 14),
            "forgetting": (100, 2, 13),
        }  # fmt: skip
        heads = [
            f"{key}{' %' if form[0] > 1 else ''}".rjust(form[2]) for key, form in shown.items()
        ]
        lines = [
            f"differences to {other}, paired by seed, ± half of a 95 % interval",
            f"{'':{width}}{''.join(heads)}",
        ]
        for name, row in table.iterrows():
            line = f"{name:{width}}"
            for key, (scale, digits, space) in shown.items():
                half = row[f"{key} half width"]
                cell = f"{scale * row[key]:+.{digits}f}"
                cell += "" if np.isnan(half) else f" ± {scale * half:.{digits}f}"
                line += f" {cell:>{space - 1}}"
            lines.append(line)
        return "\n".join(lines)


def train_tasks(
    out: files.FilePath,
    settings: SplitTraining | None = None,
    *,
    pairs: Sequence[str] = PAIRS,
    root: files.FilePath | None = None,
    data: files.FilePath | None = None,
    strategies: Sequence[str] = ("no-replay", "fixed-replay", "focus-then-replay"),
    tune: bool = False,
    seeds: int = 3,
    seed: int = 1,
    workers: int | None = None,
    progress: Watch = False,
) -> Trained:
    """Learn the tasks with each strategy, with `seeds` seeds from `seed` on; write a run folder.

    pairs, root, data: the tasks, as in `Source`. tune: whether each strategy first searches for its
    own learning rate, decay and share, with other seeds and on validation data.

    The folder has what `Experiment.write` writes, tuning.csv if that was asked for, and
    TensorBoard's events where it is installed. Finished runs are kept in its cache.
    """
    settings = settings or SplitTraining()
    names = check_strategies(strategies)
    check.boolean("tune", tune)
    check.integer("seeds", seeds, at_least=1)
    check.integer("seed", seed, at_most=TUNING_SEEDS[0] - seeds)
    source = Source(tuple(pairs), None if root is None else str(root))
    if data is None:
        tasks = read_tasks(source)
    else:
        tasks = task_folder(data)
        source = Source((), data=str(data), digest=tasks.digest)
    settings.check_data(tasks)
    folder = files.folder("out", out)
    for file in FILES:
        files.output("out", folder / file)
    given = {
        **asdict(settings), **settings.choice._asdict(), **asdict(source), "tasks": tasks.tasks,
        "strategies": names, "seeds": seeds, "seed": seed, "torch": torch.__version__,
        "numpy": np.__version__, "python": platform.python_version(),
    }  # fmt: skip
    files.write_json(folder / "settings.json", given)

    def case(name: str, run: int, choice: Choice) -> dict[str, Any]:
        return {
            "strategy": name,
            "seed": run,
            "settings": asdict(settings) | choice._asdict(),
            "source": asdict(source),
        }

    def losses(wanted: list[tuple[str, Choice]], runs: Sequence[int]) -> Floats:
        cases = [case(name, run, choice) for name, choice in wanted for run in runs]
        found = [one["loss"] for one in run_cases(validate_tasks, cases)]
        return np.array(found, dtype=np.float64).reshape(len(wanted), -1)

    choice = settings.choice
    choices = {n: choice if has_share(n) else choice._replace(share=None) for n in names}
    board = find_spec("tensorboard") is not None
    runs = range(seed, seed + seeds)
    tuning = None
    run_cases = partial(
        sweep, cache=folder / "cache", workers=workers, progress=progress is not False
    )
    if tune:
        tuning = _tuning.tune(choices, losses, TUNING_SEEDS)
        choices = tuning.best
        files.write_frame(folder / "tuning.csv", tuning.to_frame())
        given["tuned"] = {name: choice._asdict() for name, choice in choices.items()}
    cases = [
        case(name, run, choices[name])
        | {"board": str(folder / "tensorboard" / f"{name}-{run}") if board else None}
        for name in names
        for run in runs
    ]
    records = iter(run_cases(learn_tasks, cases))
    found = Experiment.gather(
        {name: [next(records) for _ in runs] for name in names},
        runs=list(runs),
        tasks=tasks.tasks,
        arrivals=[0, *settings.ends(len(tasks.tasks))[:-1]],
        settings=given,
    )
    found.write(folder)
    return Trained(found, tuning)
