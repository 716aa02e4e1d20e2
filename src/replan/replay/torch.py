"""PyTorch: batches whose tasks a policy chooses."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Floats, Ints
from replan.errors import ArgumentError
from replan.replay._policy import Policy, check_state, make_state, restrict

try:
    import torch
    import torch.distributed as dist
    from torch.utils.data import ConcatDataset, Sampler
except ImportError as error:
    raise ImportError("replan.replay.torch needs PyTorch: pip install 'replan[torch]'") from error

__all__ = ["ReplayBatchSampler"]


class ReplayBatchSampler(Sampler[list[int]]):
    """Batches whose tasks a policy chooses, for `DataLoader(batch_sampler=...)`.

    Each task's samples come in shuffled passes: none is drawn again before every other sample of
    its task has been drawn, whatever the batches, epochs, ranks and resumptions. Batches are always
    full. An iterator yields the batches that remain of an epoch. By default, an epoch is one pass
    over the new task, at the share that the policy plans for it when the first batch is drawn;
    `print(sampler)` shows how long it is and how often it passes over each task.

    Call `step` once after each batch, even if gradients are accumulated or the batch is skipped:
    batches that worker processes only loaded ahead are drawn again after resuming. `state_dict()`
    includes the policy's; from it, training resumes with the very next sample. The number of ranks
    may change if batch_size × ranks stays the same.

    epoch, steps: the current epoch, and the batches done in all. dataset: of `from_datasets`.

    **Main arguments**

    - `sizes`: (T,) samples of each task, one task after the other in the data set; those of tasks
      that are still to come may be left out. `from_datasets` counts them itself; `from_labels`
      takes samples in any order.
    - `policy`: a policy of T tasks. The shares of tasks without samples go to the others.
    - `batch_size`: samples per batch and rank.

    **Other arguments**

    - `batches`: per epoch, instead of a pass over the new task; for protocols, give their length.
    - `seed`: of the shuffling, the same on all ranks.
    - `num_replicas`, `rank`: both or neither; by default those of the running group of
      `torch.distributed`. All ranks draw the same batches, and each takes its part of every task.

    Examples:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from replan.replay.torch import ReplayBatchSampler
        >>> old, new = (TensorDataset(torch.randn(n, 3)) for n in (15, 90))
        >>> policy = replan.replay.FixedReplay(tasks=2, share=0.25)
        >>> sampler = ReplayBatchSampler.from_datasets([old, new], policy, batch_size=12)
        >>> print(sampler)
        ReplayBatchSampler: an epoch is 10 batches of 12, [2.0, 1.0] passes over the tasks
        >>> for batch in DataLoader(sampler.dataset, batch_sampler=sampler):
        ...     sampler.step()  # after a training step as always
        >>> sampler.samples.tolist()  # of each task
        [30, 90]
    """

    dataset: ConcatDataset[Any]

    def __init__(
        self,
        sizes: Sequence[int],
        policy: Policy,
        batch_size: int,
        *,
        batches: int | None = None,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        counts = [check.integer("sizes", n) for n in check.items("sizes", sizes, "sizes")]
        self.policy = check.instance("policy", policy, Policy, "a policy of replan.replay")
        if policy.new_task < len(counts) < policy.tasks:
            counts += [0] * (policy.tasks - len(counts))  # tasks that are still to come
        if len(counts) != policy.tasks or not sum(counts):
            expected = f"{policy.tasks} sizes, one per task of the policy, not all 0"
            raise ArgumentError("sizes", expected, check.show(counts))
        self.batch_size = check.integer("batch_size", batch_size, at_least=1)
        self.seed = check.integer("seed", seed)
        if batches is not None:
            check.integer("batches", batches, at_least=1)
        if num_replicas is not None:
            check.integer("num_replicas", num_replicas, at_least=1)
            check.integer("rank", rank, at_most=num_replicas - 1)
        elif rank is not None:
            raise ArgumentError("rank", "given together with `num_replicas`", f"{rank} alone")
        self._batches, self._given_ranks = batches, (rank or 0, num_replicas)
        self._sizes, ends = counts, np.cumsum(counts)
        self._members = [np.arange(end - n, end) for n, end in zip(counts, ends, strict=True)]
        self._labels = ""  # a digest, if samples come in any order
        self._present = [task for task, n in enumerate(counts) if n]
        self.epoch, self.steps = 0, 0
        self._begun = 0  # the step at which this epoch began
        self._length: int | None = None  # of this epoch in batches, since the first was given out
        self._drawn = [0] * policy.tasks  # samples of each task, over all ranks
        self._passes: dict[int, tuple[int, Ints]] = {}  # number and order of each task's pass
        self._pending: list[dict[str, Any]] = []  # batches over all ranks: drawn, not yet done
        self._given_out = 0  # batches that iterators gave
        self._over = False  # the epoch before has just ended, and nobody has begun this one
        self._loaded = False  # a state was loaded, and no epoch has begun since
        self._resumed = False  # a state was loaded

    @classmethod
    def from_datasets(
        cls, datasets: Sequence[Any], policy: Policy, batch_size: int, **settings: Any
    ) -> ReplayBatchSampler:
        """Make a sampler for data sets, one per task; the loader takes `sampler.dataset`."""
        parts = check.items("datasets", datasets, "data sets")
        if not all(hasattr(part, "__len__") for part in parts):
            raise ArgumentError("datasets", "data sets with a length", check.show(parts))
        sampler = cls([len(part) for part in parts], policy, batch_size, **settings)
        sampler.dataset = ConcatDataset(parts)
        return sampler

    @classmethod
    def from_labels(
        cls, labels: ArrayLike, policy: Policy, batch_size: int, **settings: Any
    ) -> ReplayBatchSampler:
        """Make a sampler from the task (n,), counted from 0, of each sample of the data set."""
        check.instance("policy", policy, Policy, "a policy of replan.replay")
        listed = labels.tolist() if hasattr(labels, "tolist") else labels  # tensors too
        which = check.task_list("labels", listed, policy.tasks)
        members = [np.flatnonzero(which == task) for task in range(policy.tasks)]
        sampler = cls([len(m) for m in members], policy, batch_size, **settings)
        sampler._members = members
        sampler._labels = hashlib.sha256(which.tobytes()).hexdigest()
        return sampler

    @property
    def _ranks(self) -> tuple[int, int]:
        """The rank of this process, and how many there are: their group may be made late."""
        rank, count = self._given_ranks
        if count is not None:
            return rank, count
        return (dist.get_rank(), dist.get_world_size()) if _distributed() else (0, 1)

    @property
    def _global_batch_size(self) -> int:
        return self.batch_size * self._ranks[1]

    @property
    def samples(self) -> Ints:
        """Samples of each task (T,) trained on, over all ranks."""
        ahead = [batch["counts"] for batch in self._pending]
        return np.array(self._drawn) - np.sum(ahead, axis=0, dtype=np.int64)

    @property
    def drop_last(self) -> bool:
        """False: no batch is dropped. Refuses Accelerate, which asks it before it shards."""
        if self._ranks[1] > 1:
            expected = "left out of `accelerator.prepare`, which would divide its batches once more"
            raise ArgumentError("loader", expected, "one whose sampler divides them among ranks")
        return False

    def __len__(self) -> int:
        return self._batches or self._length or self._one_pass()

    def _one_pass(self) -> int:
        """Return the batches of a pass over the new task, or over all samples if it gets none."""
        new = self.policy.new_task
        size = self.policy.epoch_steps = self._sizes[new]  # of which a focus phase is a part
        drawn = self._planned(size)[new]
        samples = size**2 / drawn if drawn else sum(self._sizes)
        return math.ceil(samples / self._global_batch_size - 1e-9)  # a rounding error

    def _planned(self, count: int) -> Floats:
        """Return how many of the next samples the policy plans to take from each task (T,)."""
        planned = restrict(np.asarray(self.policy.shares(count)), np.array(self._present))
        return np.asarray(planned.sum(axis=0))

    @property
    def passes(self) -> Floats:
        """How often an epoch passes over the samples of each task (T,), as planned now."""
        steps = self.policy.epoch_steps = len(self) * self._global_batch_size
        return self._planned(steps) / np.maximum(1, self._sizes)

    def __repr__(self) -> str:
        epoch = f"{len(self)} batches of {self._global_batch_size}"
        passes = [float(f"{n:.3g}") for n in self.passes]
        return f"{type(self).__name__}: an epoch is {epoch}, {passes} passes over the tasks"

    def check_dataset(self, dataset: Any) -> None:
        """Refuse a data set that the sizes do not fit: its length, and its parts if joined."""
        sizes, parts = self._sizes, [len(part) for part in getattr(dataset, "datasets", [])]
        swapped = not self._labels and len(parts) == len(sizes) and parts != sizes
        if len(dataset) != sum(sizes) or swapped:
            expected = f"those of the data, {parts or len(dataset)}"
            raise ArgumentError("sizes", expected, check.show(sizes))

    def __iter__(self) -> Iterator[list[int]]:
        ended, self._over, self._loaded = self._over and self._loaded, False, False
        if ended:
            over = (
                f"epoch {self.epoch - 1} was over when the state was saved: nothing is left of it"
            )
            warnings.warn(f"{over}, and `set_epoch({self.epoch})` begins the next", stacklevel=2)
            return
        self._warn_of_repeats()
        self._length = len(self)
        rank, ranks = self._ranks
        for number in range(self.steps, self._begun + len(self)):
            self._given_out = number + 1
            yield self._batch(number)["indices"][rank::ranks]

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; if it is the current one, or an earlier one on resuming, continue."""
        if check.integer("epoch", epoch) < self.epoch and self._resumed:
            if self._loaded:
                over = f"epoch {epoch} was over when the state was saved"
                advice = "call `set_epoch` with those of `range(sampler.epoch, epochs)`"
                warnings.warn(f"{over}: epoch {self.epoch} follows; {advice}", stacklevel=2)
            epoch = self.epoch  # Accelerate's loaders count from 0 in each process
        self._loaded, self._over = False, False
        if epoch != self.epoch:
            self._warn_of_repeats()
            self.epoch, self._begun, self._length = epoch, self.steps, None

    def _warn_of_repeats(self) -> None:
        """Warn if all batches of this epoch were given out, and not all reported as done."""
        if self.steps < self._given_out >= self._begun + len(self):
            warnings.warn(
                f"`step` was not called after {self._given_out - self.steps} batches of this "
                "epoch, so they are drawn again; call it once per batch, even where gradients "
                "are accumulated or a batch is skipped",
                stacklevel=3,
            )
            self._given_out = self.steps

    def step(self, losses: Mapping[int, float] | None = None) -> None:
        """Report that a batch is done, and tell the policy losses by task, if there are any.

        Losses are averaged over the ranks; all ranks must bring some at the same steps.
        """
        if not self._pending:
            raise ArgumentError("step", "called once per batch", "one more call than batches")
        known = {} if losses is None else check.losses("losses", losses, self.policy.tasks)
        if known:  # first, because a policy may refuse them
            self.policy.observe(_mean_over_ranks(known, self.policy.tasks))
        self.steps += 1
        self._pending.pop(0)
        if self.steps == self._begun + len(self):
            self.epoch, self._begun, self._over = self.epoch + 1, self.steps, True
            self._length = None

    def lr(self, number: int) -> float:
        """Return the planned factor of the learning rate, the mean over a batch's samples.

        `LambdaLR(optimizer, sampler.lr)` is a scheduler. Batches count from 0 over all epochs; one
        that is done stands for the next, because schedulers step less often than the sampler where
        gradients are accumulated.
        """
        planned = self._batch(max(check.integer("number", number), self.steps))["lr"]
        if planned is None:
            raise ArgumentError("policy", "one that plans learning rates", f"{self.policy}")
        return planned

    def losses_due(self, every: int = 50) -> bool:
        """Return whether `step` should bring losses, from the first batch on after `every` ones."""
        return self.policy.needs_losses and self.steps % every == 0

    def _batch(self, number: int) -> dict[str, Any]:
        """Return a batch that is not done yet; draw it, and all before it, if need be."""
        size = self._global_batch_size
        while self.steps + len(self._pending) <= number:
            self._pending.append(self._draw(size))
        batch = self._pending[number - self.steps]
        if len(batch["indices"]) != size:
            expected = "used after the group of `torch.distributed` is made, not before"
            raise ArgumentError("sampler", expected, f"a batch of {len(batch['indices'])} samples")
        return batch

    def _draw(self, size: int) -> dict[str, Any]:
        """Return a new batch: indices (size,), how many are of each task (T,), the planned rate."""
        if not any(self._drawn):
            self._warn_of_arrivals()
        self.policy.epoch_steps = len(self) * size
        rates = self.policy.lr(size)
        tasks = self.policy.next_tasks(size, self._present)
        counts = np.bincount(tasks, minlength=self.policy.tasks).tolist()
        # Ordered by task, so that each rank's stride takes its part of every task.
        indices = [i for task, count in enumerate(counts) for i in self._take(task, count)]
        lr = None if rates is None else float(np.mean(rates[np.arange(size), tasks]))
        return {"indices": indices, "counts": counts, "lr": lr}

    def _warn_of_arrivals(self) -> None:
        """Warn if it looks as if the policy was not told which task is new."""
        new, present, sizes = self.policy.new_task, self._present, self._sizes
        told = {new, *self.policy.old_tasks}
        # Data sets of tasks to come may be there from the start; a memory is smaller than they are.
        waiting = [task for task in present if task not in told and sizes[task] > sizes[new]]
        if waiting or (new not in present and len(present) > 1):
            task = (waiting or present)[-1]
            fault = f"task {task} is not trained on" if waiting else f"task {new} has no samples"
            advice = f"if task {task} has arrived, call `policy.begin({task})`"
            warnings.warn(f"{fault} while task {new} is new; {advice}", stacklevel=2)

    def _take(self, task: int, count: int) -> list[int]:
        """Return the next samples of a task, and advance in its passes."""
        taken: list[int] = []
        while len(taken) < count:
            number, start = divmod(self._drawn[task], len(self._members[task]))
            if self._passes.get(task, (-1,))[0] != number:
                rng = np.random.default_rng([self.seed, task, number])
                self._passes[task] = number, rng.permutation(self._members[task])
            some = self._passes[task][1][start : start + count - len(taken)].tolist()
            self._drawn[task] += len(some)
            taken += some
        return taken

    def state_dict(self) -> dict[str, Any]:
        """Return where the sampler and its policy are and what they were made with: JSON types."""
        arguments = {
            "sizes": self._sizes,
            "labels": self._labels,
            "global_batch_size": self._global_batch_size,  # ranks may change
            "batches": self._batches,
            "seed": self.seed,
        }
        return make_state(
            self,
            arguments,
            epoch=self.epoch,
            steps=self.steps,
            begun=self._begun,
            length=self._length,
            over=self._over,
            drawn=self._drawn,
            pending=self._pending,
            policy=self.policy.state_dict(),
        )

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> list[str]:
        """Continue with the next sample of a sampler, and a policy, with the same arguments.

        strict: whether data, batches and seed must be the same. If not, the state of the policy,
        `epoch`, `steps` and passes over tasks of the same size are kept; returns what begins anew.
        """
        own = self.state_dict()
        saved = check_state(state, own, strict)
        self.policy.load_state_dict(saved["policy"])
        self.epoch, self.steps = saved["epoch"], saved["steps"]
        self._begun, self._over, self._length = saved["begun"], saved["over"], saved["length"]
        self._drawn, self._pending = saved["drawn"], saved["pending"]
        self._given_out, self._loaded, self._resumed = self.steps, True, True
        same = saved["arguments"] == own["arguments"]
        return [] if same else self._begin_anew(saved["arguments"], own["arguments"])

    def _begin_anew(self, saved: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
        """Begin the epoch anew, and passes over samples that changed; return what began."""
        ahead = sum(len(batch["indices"]) for batch in self._pending)
        self._drawn, self._pending = self.samples.tolist(), []  # taken back
        self.policy.step -= ahead
        begun = [f"epoch {self.epoch}"] if self.steps > self._begun else []
        self._begun, self._length = self.steps, None
        same = saved["seed"] == own["seed"] and saved["labels"] == own["labels"]
        for task, (before, now) in enumerate(zip(saved["sizes"], own["sizes"], strict=True)):
            if not same or before != now:
                self._drawn[task] = 0
                begun.append(f"passes over task {task}")
        return begun


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
