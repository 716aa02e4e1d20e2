"""PyTorch: a batch sampler that asks a policy, a probe of held-out losses, planned learning rates.

probe = LossProbe([old_held_out, new_held_out], loss, policy)
sampler = ReplayBatchSampler([len(old), len(new)], policy, batch_size=32)
for x, y in DataLoader(ConcatDataset([old, new]), batch_sampler=sampler):
    ...  # a training step as always
    sampler.step(probe.step(model))
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan._common.state import Entries, Stateful
from replan.check import Ints
from replan.policies import Policy

try:
    import torch
    import torch.distributed as dist
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import Dataset, Sampler, default_collate
except ImportError as error:
    raise ImportError(
        "replan.integrations.torch needs PyTorch: pip install 'replan[torch]'"
    ) from error

__all__ = ["LossProbe", "PlannedLR", "ReplayBatchSampler", "WithTask"]

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]

_KEPT_PARTS = 8  # of a task's held-out samples: of larger data sets nothing is kept


@dataclass(frozen=True)
class _Batch:
    """A batch over all ranks: indices of samples, how many of each task, the planned rate."""

    indices: list[int]
    counts: list[int]
    rate: float | None


class ReplayBatchSampler(Stateful, Sampler[list[int]]):
    """Batches whose tasks a policy chooses, for `DataLoader(batch_sampler=...)`.

    Each task's samples come in shuffled passes: none is drawn again before every other sample of
    its task has been drawn, whatever the batches, epochs, ranks and resumptions. Batches are always
    full: a task with few samples begins its next pass where the last one ends. An epoch is a number
    of batches, and its iterator gives those that are left.

    Call `step` after each batch, also one that you skip: it passes losses on to the policy, and
    distinguishes batches that are done with from those that worker processes merely loaded ahead.
    The latter come again.

    epoch, steps: the current epoch, and the batches trained on in all.

    **Main arguments**

    - `sizes`: (T,) samples of each task, one task after the other in the data set, as in a
      `ConcatDataset`. `from_labels` accepts samples in any order.
    - `policy`: a policy of `replan.policies` with as many tasks. The shares of tasks without
      samples go to the others.
    - `batch_size`: samples per batch and rank.

    **Other arguments**

    - `mixed`: if True, each batch is mixed according to the shares, and the policy counts samples;
      if False, each batch is of one task, and the policy counts batches.
    - `batches`: per epoch; by default as many as hold all samples once.
    - `seed`: of the shuffling, the same on all ranks.
    - `num_replicas`, `rank`: both or neither; by default those of the running group of
      `torch.distributed`. All ranks draw the same batches, and each takes its part of every task's
      samples.

    Examples:
        >>> import torch
        >>> from torch.utils.data import ConcatDataset, DataLoader, TensorDataset
        >>> from replan.integrations.torch import ReplayBatchSampler
        >>> old, new = (TensorDataset(torch.randn(60, 3)) for _ in range(2))
        >>> policy = replan.policies.FixedReplay(tasks=2, share=0.25)
        >>> policy.begin(1)  # task 1 arrives
        >>> sampler = ReplayBatchSampler([len(old), len(new)], policy, batch_size=12)
        >>> for batch in DataLoader(ConcatDataset([old, new]), batch_sampler=sampler):
        ...     sampler.step()  # after a training step as always
        >>> sampler.samples.tolist()  # of each task, in 10 batches
        [30, 90]
    """

    def __init__(
        self,
        sizes: Sequence[int],
        policy: Policy,
        batch_size: int,
        *,
        mixed: bool = True,
        batches: int | None = None,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        counts = [check.integer("sizes", n) for n in check.items("sizes", sizes, "sizes")]
        ends = np.cumsum(counts, dtype=np.int64)
        members = [np.arange(end - n, end) for n, end in zip(counts, ends, strict=True)]
        check.instance("policy", policy, Policy, "a policy of replan.policies")
        if len(members) != policy.tasks:
            raise ValueError(
                f"`sizes` expects one size for each of the policy's {policy.tasks} tasks, got "
                f"{len(members)}"
            )
        if not sum(counts):
            raise ValueError(f"`sizes` expects at least one sample, got {check.show(counts)}")
        self.policy, self.mixed = policy, check.boolean("mixed", mixed)
        self.batch_size = check.integer("batch_size", batch_size, at_least=1)
        self.seed = check.integer("seed", seed)
        if batches is not None:
            check.integer("batches", batches, at_least=1)
        if num_replicas is not None:
            check.integer("num_replicas", num_replicas, at_least=1)
            rank = check.integer("rank", rank, at_most=num_replicas - 1)
        elif rank is not None:
            raise ValueError(
                f"`rank` expects `num_replicas` beside it, got {check.show(rank)} alone"
            )
        self._batches, self._given = batches, (num_replicas, rank or 0)
        self.epoch, self.steps, self._begun = 0, 0, 0
        self._members, self._labels = members, ""
        self._total = sum(counts)
        self._among = None if all(counts) else [t for t, n in enumerate(counts) if n]
        self._drawn = [0] * policy.tasks
        self._passes: dict[int, tuple[int, Ints]] = {}
        self._pending: list[_Batch] = []  # drawn, not yet trained on
        self._given_out = 0  # batches that iterators gave
        self._loaded = False
        self._over = False  # the epoch before has just ended, and nobody has begun this one

    @classmethod
    def from_labels(
        cls, labels: ArrayLike, policy: Policy, batch_size: int, **settings: Any
    ) -> ReplayBatchSampler:
        """Make a sampler from the task (n,), counted from 0, of each sample of the data set."""
        check.instance("policy", policy, Policy, "a policy of replan.policies")
        listed = labels.tolist() if hasattr(labels, "tolist") else labels  # of tensors too
        which = check.task_list("labels", listed, policy.tasks)
        members = [np.flatnonzero(which == t) for t in range(policy.tasks)]
        sampler = cls([len(m) for m in members], policy, batch_size, **settings)
        sampler._members = members
        sampler._labels = hashlib.sha256(which.astype(np.int64).tobytes()).hexdigest()
        return sampler

    @property
    def num_replicas(self) -> int:
        """How many ranks there are; their group may be made after the sampler."""
        given, _ = self._given
        return given if given is not None else dist.get_world_size() if _distributed() else 1

    @property
    def rank(self) -> int:
        """Which of the ranks this one is."""
        given, rank = self._given
        return rank if given is not None else dist.get_rank() if _distributed() else 0

    @property
    def samples(self) -> Ints:
        """Samples of each task (T,) trained on, over all ranks."""
        ahead = [batch.counts for batch in self._pending]
        return np.array(self._drawn) - np.sum(ahead, axis=0, dtype=np.int64)

    @property
    def drop_last(self) -> bool:
        """False: no batch is dropped. Refuses Accelerate, which asks it before it shards."""
        if self.num_replicas > 1:
            raise ValueError(
                "`ReplayBatchSampler` gives each process its own part of every batch, and "
                "`accelerator.prepare` would divide these once more: prepare the model and the "
                "optimizer, not the loader, and move batches to `accelerator.device`"
            )
        return False

    def __len__(self) -> int:
        return self._batches or -(-self._total // (self.batch_size * self.num_replicas))

    def __iter__(self) -> Iterator[list[int]]:
        over, self._over = self._over and self._loaded, False
        self._loaded = False
        if over:
            warnings.warn(
                f"epoch {self.epoch - 1} was over when the state was saved: nothing is left of it, "
                f"and `set_epoch({self.epoch})` begins the next",
                stacklevel=2,
            )
            return
        self._warn_of_repeats()
        rank, ranks = self.rank, self.num_replicas
        for number in range(self.steps, self._begun + len(self)):
            self._given_out = number + 1
            yield self._batch(number).indices[rank::ranks]

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; if it is the current one, continue with it."""
        if check.integer("epoch", epoch) < self.epoch and self._loaded:
            warnings.warn(
                f"epoch {epoch} was over when the state was saved, and begins again; "
                "to continue, loop over `range(sampler.epoch, epochs)`",
                stacklevel=2,
            )
        self._loaded, self._over = False, False
        if epoch != self.epoch:
            self._warn_of_repeats()
            self.epoch, self._begun = epoch, self.steps

    def _warn_of_repeats(self) -> None:
        """Warn if all batches of this epoch were given, and not all reported as done with."""
        if self.steps < self._given_out >= self._begun + len(self):
            warnings.warn(
                f"`step` was not called after {self._given_out - self.steps} batches of this "
                "epoch, so they come again; it expects one call per batch, also where gradients "
                "are accumulated or a batch is skipped",
                stacklevel=3,
            )
            self._given_out = self.steps

    def step(self, losses: Mapping[int, float] | None = None) -> None:
        """Tell the sampler that a batch is done with, and the policy losses by task, if any.

        Losses are averaged over the ranks; all ranks must bring some at the same steps.
        """
        if not self._pending:
            raise ValueError(
                f"`step` expects one call per batch, got one more than the {self.steps} batches"
            )
        known = {} if losses is None else check.losses("losses", losses, self.policy.tasks)
        self.steps += 1
        self._pending.pop(0)
        if known:
            late = sum(len(batch.indices) if self.mixed else 1 for batch in self._pending)
            self.policy.observe(_mean_over_ranks(known, self.policy.tasks), late)
        if self.steps == self._begun + len(self):
            self.epoch, self._begun, self._over = self.epoch + 1, self.steps, True
            if self.policy.waiting:
                warnings.warn(self.policy.waiting, stacklevel=2)

    def rate(self, number: int) -> float:
        """Return the planned learning rate of a batch; they count from 0 over all epochs."""
        rate = self._batch(check.integer("number", number)).rate
        if rate is None:
            raise ValueError(
                f"`policy` expects one that plans learning rates, got {check.show(self.policy)}"
            )
        return rate

    def _batch(self, number: int) -> _Batch:
        """Return a batch that is not trained on yet; draw it, and all before it, if need be."""
        if number < self.steps:
            raise ValueError(
                f"`number` expects a batch not yet trained on, from {self.steps} on, got {number}"
            )
        ranks = self.num_replicas
        while self.steps + len(self._pending) <= number:
            self._pending.append(self._draw(self.batch_size * ranks))
        batch = self._pending[number - self.steps]
        if len(batch.indices) != self.batch_size * ranks:
            raise ValueError(
                "a batch was drawn before the group of `torch.distributed` was made: it has "
                f"{len(batch.indices)} samples for {ranks} ranks of {self.batch_size}"
            )
        return batch

    def _draw(self, size: int) -> _Batch:
        """Return a new batch of so many samples over all ranks."""
        asked = size if self.mixed else 1
        self.policy.epoch_steps = len(self) * asked
        tasks, rates = self.policy.next_steps(asked, self._among)
        counts = (np.bincount(tasks, minlength=self.policy.tasks) * (size // asked)).tolist()
        # Ordered by task, so that each rank's stride takes its part of every task.
        indices = [i for task, count in enumerate(counts) for i in self._take(task, count)]
        return _Batch(indices, counts, None if rates is None else float(np.mean(rates)))

    def _take(self, task: int, count: int) -> list[int]:
        """Return the next samples of a task, and advance in its passes."""
        taken: list[int] = []
        while len(taken) < count:
            number, start = divmod(self._drawn[task], len(self._members[task]))
            some = self._pass(task, number)[start : start + count - len(taken)].tolist()
            self._drawn[task] += len(some)
            taken += some
        return taken

    def _pass(self, task: int, number: int) -> Ints:
        """Return the samples of a task in the order of one of its passes."""
        if self._passes.get(task, (-1,))[0] != number:
            rng = np.random.default_rng([self.seed, task, number])
            self._passes[task] = number, rng.permutation(self._members[task])
        return self._passes[task][1]

    def _made_with(self) -> dict[str, Any]:
        return {
            "sizes": [len(m) for m in self._members],
            "labels": self._labels,
            "global_batch_size": self.batch_size * self.num_replicas,  # ranks may change
            "mixed": self.mixed,
            "batches": len(self),
            "seed": self.seed,
        }

    def _saved(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "steps": self.steps,
            "begun": self._begun,
            "over": self._over,
            "drawn": self._drawn,
            "pending": [asdict(batch) for batch in self._pending],
            "policy": self.policy,
        }

    def _restored(self, state: Entries) -> dict[str, Any]:
        steps = state.read("steps", check.integer)
        pending = [
            self._restored_batch(Entries(f"{state.path}.pending[{i}]", batch, _BATCH))
            for i, batch in enumerate(state.read("pending", check.instance, list, "a list"))
        ]
        drawn = state.read("drawn", _integers, self.policy.tasks)
        ahead = np.sum([batch.counts for batch in pending], axis=0, dtype=np.int64)
        total = (steps + len(pending)) * self.batch_size * self.num_replicas
        if sum(drawn) != total or np.any(np.array(drawn) < ahead):
            raise ValueError(
                f"`{state.path}.drawn` expects {total} samples in {steps} batches and "
                f"{len(pending)} pending ones, got {drawn}"
            )
        earliest = max(0, steps - len(self) + 1)
        begun = state.read("begun", check.integer, at_least=earliest, at_most=steps)
        over = state.read("over", check.boolean)
        if over and not 0 < steps == begun:
            raise ValueError(
                f"`{state.path}.over` expects false after {steps - begun} batches of an epoch, "
                f"{steps} in all, got true"
            )
        return {
            "epoch": state.read("epoch", check.integer, at_least=int(over)),
            "steps": steps,
            "_begun": begun,
            "_over": over,
            "_drawn": drawn,
            "_pending": pending,
            "_given_out": steps,
            "_loaded": True,
        }

    def _restored_batch(self, batch: Entries) -> _Batch:
        """Return a batch over all ranks; its samples exist, and it has a rate if one is planned."""
        size = self.batch_size * self.num_replicas
        counts = batch.read("counts", _integers, self.policy.tasks)
        if sum(counts) != size:
            raise ValueError(f"`{batch.path}.counts` expects {size} samples in all, got {counts}")
        rate = None
        if self.policy.plans_lr:
            rate = batch.read("rate", check.number)
        elif batch["rate"] is not None:
            raise ValueError(f"`{batch.path}.rate` expects None, got {check.show(batch['rate'])}")
        return _Batch(batch.read("indices", _integers, size, at_most=self._total - 1), counts, rate)


_BATCH = [part.name for part in fields(_Batch)]


def _integers(name: str, value: Any, count: int, **bounds: int) -> list[int]:
    """Return a list of so many integers of at least 0."""
    if len(check.instance(name, value, list, "a list of integers")) != count:
        raise ValueError(f"`{name}` expects {count} integers, got {len(value)}")
    return [check.integer(name, x, **bounds) for x in value]


class WithTask(Dataset[Any]):
    """A map-style data set whose samples carry the number of their task.

    It follows the parts of a tuple or list, is "task" in a dict, and makes a pair of any other.

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from replan.integrations.torch import WithTask
        >>> inputs, task = WithTask(TensorDataset(torch.zeros(5, 3)), 1)[0]
        >>> task
        1
    """

    def __init__(self, data: Any, task: int) -> None:
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise ValueError(f"`data` expects a map-style data set, got {check.show(data)}")
        self.data, self.task = data, check.integer("task", task)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        sample = self.data[index]
        if isinstance(sample, dict):
            return sample | {"task": self.task}
        return (*sample, self.task) if isinstance(sample, tuple | list) else (sample, self.task)


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _mean_over_ranks(known: dict[int, float], tasks: int) -> dict[int, float]:
    """Return the losses by task, each averaged over the ranks that have it."""
    if not _distributed():
        return known
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"  # NCCL knows no other
    table = torch.zeros(2, tasks, dtype=torch.float64, device=device)
    for task, loss in known.items():
        table[:, task] = torch.tensor([loss, 1.0], dtype=torch.float64)
    dist.all_reduce(table)
    total, count = table.tolist()
    return {t: total[t] / count[t] for t in range(tasks) if count[t]}


class LossProbe(Stateful):
    """Estimates each task's held-out loss every so many steps, and leaves training undisturbed.

    It does so first after the first step, because a policy may ask how far a loss has come down.
    Meanwhile the model is in eval mode, without gradients; its modes and the random states of
    PyTorch, NumPy and Python are restored afterwards. A measurement costs a forward pass over
    `batch_size` samples of each task in the process that trains. Collated batches are kept where a
    task has at most eight, and samples are not loaded again.

    **Main arguments**

    - `data`: a map-style data set of held-out samples for each task, as a list or a dict by task.
    - `loss`: `loss(model, batch)` returns the mean loss of a collated batch, a scalar; it moves the
      batch to the model's device if need be, and leaves the batch itself as it is.
    - `policy`: whom the losses are for. Nothing is measured while it needs none (`needs_losses`);
      by default all is.

    **Other arguments**

    - `every`: steps between measurements.
    - `batch_size`: samples of each task per measurement at most. They come in shuffled order, in as
      many equal parts as that takes, round and round.
    - `collate`: makes a batch of a list of samples.
    - `seed`: of that order. With one of its own on each rank, the mean over ranks has more samples.

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from replan.integrations.torch import LossProbe
        >>> held_out = [TensorDataset(torch.full((8, 1), x)) for x in (1.0, 2.0)]  # of two tasks
        >>> probe = LossProbe(held_out, lambda model, batch: model(batch[0]).square().mean())
        >>> probe.measure(torch.nn.Identity())
        {0: 1.0, 1: 4.0}
    """

    def __init__(
        self,
        data: Sequence[Sequence[Any]] | Mapping[int, Sequence[Any]],
        loss: Loss,
        policy: Policy | None = None,
        *,
        every: int = 50,
        batch_size: int = 256,
        collate: Callable[[list[Any]], Any] = default_collate,
        seed: int = 0,
    ) -> None:
        if not isinstance(data, Mapping | list | tuple):
            raise ValueError(
                f"`data` expects a list of data sets, one per task, got {check.show(data)}"
            )
        self.data = dict(data) if isinstance(data, Mapping) else dict(enumerate(data))
        sizes = {
            check.integer("data", t): len(part) if hasattr(part, "__len__") else None
            for t, part in self.data.items()
        }
        if not sizes or not all(sizes.values()):
            raise ValueError(
                "`data` expects at least one task and samples of each, "
                f"got sizes {check.show(sizes)}"
            )
        if not callable(loss) or isinstance(loss, torch.nn.Module):
            raise ValueError(
                f"`loss` expects a function of a model and a batch, got {check.show(loss)}"
            )
        if policy is not None:
            check.instance("policy", policy, Policy, "a policy of replan.policies or None")
        self.loss, self.policy, self.collate = loss, policy, check.function("collate", collate)
        self.every = check.integer("every", every, at_least=1)
        self.batch_size = check.integer("batch_size", batch_size, at_least=1)
        self.seed = check.integer("seed", seed)
        self.steps = 0
        self._kept: dict[tuple[int, int], Any] = {}  # collated batches by task and part

    def step(self, model: torch.nn.Module) -> dict[int, float]:
        """Count a training step; return the losses by task if they are due, else an empty dict."""
        self.steps += 1
        needed = self.policy is None or self.policy.needs_losses
        return self.measure(model) if needed and (self.steps - 1) % self.every == 0 else {}

    def measure(self, model: torch.nn.Module) -> dict[int, float]:
        """Return the losses by task on the samples whose turn it is."""
        with _undisturbed(model):
            losses = {t: self.loss(model, self._batch(t)) for t in self.data}
        for loss in losses.values():
            if torch.as_tensor(loss).numel() != 1:
                raise ValueError(
                    "`loss` expects a function that returns a scalar, got shape "
                    f"{tuple(loss.shape)}"
                )
        return {task: float(loss) for task, loss in losses.items()}

    def _batch(self, task: int) -> Any:
        data, total = self.data[task], len(self.data[task])
        parts = -(-total // self.batch_size)
        part = self.steps // self.every % parts
        if (task, part) in self._kept:
            return self._kept[task, part]
        order = np.random.default_rng([self.seed, task]).permutation(total)
        some = order[total * part // parts : total * (part + 1) // parts]
        batch = self.collate([data[i] for i in some.tolist()])
        if parts <= _KEPT_PARTS:
            self._kept[task, part] = batch
        return batch

    def _made_with(self) -> dict[str, Any]:
        # A state serves all ranks, and seeds and held-out samples may be a rank's own.
        return {"tasks": list(self.data), "every": self.every, "batch_size": self.batch_size}

    def _saved(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def _restored(self, state: Entries) -> dict[str, Any]:
        return {"steps": state.read("steps", check.integer)}


@contextmanager
def _undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Put the model in eval mode without gradients, and restore everything afterwards."""
    modes = {module: module.training for module in model.modules()}
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=sorted(devices)), torch.no_grad():
            model.eval()
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        random.setstate(python)
        np.random.set_state(legacy)  # noqa: NPY002


class PlannedLR(Stateful, LRScheduler):
    """The learning rates of a plan: the optimizer's own times the plan's, batch by batch.

    The sampler's policy plans them, as `Follow` does. A batch of one task has the rate of that
    task; a mixed one has the mean over its samples. Call `step` after each batch, before or after
    the sampler's; where gradients are accumulated, after each step of the optimizer and after the
    sampler's.

    Examples:
        >>> import torch
        >>> from replan.integrations.torch import PlannedLR, ReplayBatchSampler
        >>> plan = replan.Protocol([[0.0, 1.0], [0.5, 0.5]], duration=2.0, lr=[1.0, 0.1])
        >>> policy = replan.policies.Follow(plan, steps=20)
        >>> sampler = ReplayBatchSampler([10, 10], policy, batch_size=10)
        >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
        >>> scheduler = PlannedLR(optimizer, sampler)
        >>> for batch in sampler:
        ...     print(scheduler.get_last_lr())
        ...     optimizer.step()
        ...     sampler.step()
        ...     scheduler.step()
        [0.5]
        [0.05]
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        sampler: ReplayBatchSampler,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(sampler, ReplayBatchSampler) or not sampler.policy.plans_lr:
            got = getattr(sampler, "policy", sampler)
            raise ValueError(
                "`sampler` expects a ReplayBatchSampler whose policy plans learning rates, got "
                f"{check.show(got)}"
            )
        self.sampler, self.first = sampler, sampler.steps
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the learning rate of each parameter group for the next batch."""
        # There may be fewer steps than batches: gradients may be accumulated.
        number = max(self.first + self.last_epoch, self.sampler.steps)
        rate = self.sampler.rate(number)
        return [base * rate for base in self.base_lrs]

    def _made_with(self) -> dict[str, Any]:
        return {"groups": len(self.optimizer.param_groups)}

    def _saved(self) -> dict[str, Any]:  # the sampler has a state of its own
        return {
            "first": self.first,
            "last_epoch": self.last_epoch,
            "step_count": self._step_count,
            "base_lrs": [float(lr) for lr in self.base_lrs],
            "last_lr": [float(lr) for lr in self._last_lr],
        }

    def _restored(self, state: Entries) -> dict[str, Any]:
        groups = len(self.optimizer.param_groups)
        return {
            "first": state.read("first", check.integer),
            "last_epoch": state.read("last_epoch", check.integer),
            "_step_count": state.read("step_count", check.integer),
            "base_lrs": state.read("base_lrs", _rates, groups),
            "_last_lr": state.read("last_lr", _rates, groups),
        }


def _rates(name: str, value: Any, groups: int) -> list[float]:
    """Return a learning rate for each parameter group."""
    if len(check.instance(name, value, list, "a list of learning rates")) != groups:
        raise ValueError(f"`{name}` expects {groups} learning rates, got {len(value)}")
    return [check.number(name, lr, at_least=0) for lr in value]
