"""PyTorch: batches whose tasks a policy chooses."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replan import check
from replan.check import Ints
from replan.errors import ArgumentError
from replan.replay._policy import Policy, check_state, make_state

try:
    import torch
    import torch.distributed as dist
    from torch.utils.data import Sampler
except ImportError as error:
    raise ImportError("replan.replay.torch needs PyTorch: pip install 'replan[torch]'") from error

__all__ = ["ReplayBatchSampler"]


class ReplayBatchSampler(Sampler[list[int]]):
    """Batches whose tasks a policy chooses, for `DataLoader(batch_sampler=...)`.

    Each task's samples come in shuffled passes: none is drawn again before every other sample of
    its task has been drawn, whatever the batches, epochs, ranks and resumptions. Batches are always
    full. An epoch is a number of batches; an iterator yields those that remain.

    Call `step` once after each batch, even if gradients are accumulated or the batch is skipped:
    batches that worker processes only loaded ahead are drawn again after resuming. `state_dict()`
    includes the policy's; from it, training resumes with the very next sample. The number of ranks
    may change if batch_size × ranks stays the same.

    epoch, steps: the current epoch, and the batches done in all.

    **Main arguments**

    - `sizes`: (T,) samples of each task, one task after the other in the data set, as in a
      `ConcatDataset`. `from_labels` takes samples in any order.
    - `policy`: a policy of T tasks. The shares of tasks without samples go to the others.
    - `batch_size`: samples per batch and rank.

    **Other arguments**

    - `batches`: per epoch; by default enough to hold all samples once.
    - `seed`: of the shuffling, the same on all ranks.
    - `num_replicas`, `rank`: both or neither; by default those of the running group of
      `torch.distributed`. All ranks draw the same batches, and each takes its part of every task.

    Examples:
        >>> import torch
        >>> from torch.utils.data import ConcatDataset, DataLoader, TensorDataset
        >>> from replan.replay.torch import ReplayBatchSampler
        >>> old, new = (TensorDataset(torch.randn(60, 3)) for _ in range(2))
        >>> policy = replan.replay.FixedReplay(tasks=2, share=0.25)
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
        batches: int | None = None,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        counts = [check.integer("sizes", n) for n in check.items("sizes", sizes, "sizes")]
        self.policy = check.instance("policy", policy, Policy, "a policy of replan.replay")
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
        ends = np.cumsum(counts)
        self._members = [np.arange(end - n, end) for n, end in zip(counts, ends, strict=True)]
        self._labels = ""  # a digest, if samples come in any order
        self._present = [task for task, n in enumerate(counts) if n]
        self._total = sum(counts)
        self.epoch, self.steps = 0, 0
        self._begun = 0  # the step at which this epoch began
        self._drawn = [0] * policy.tasks  # samples of each task, over all ranks
        self._passes: dict[int, tuple[int, Ints]] = {}  # number and order of each task's pass
        self._pending: list[dict[str, Any]] = []  # batches over all ranks: drawn, not yet done
        self._given_out = 0  # batches that iterators gave
        self._over = False  # the epoch before has just ended, and nobody has begun this one
        self._loaded = False  # a state was loaded, and no epoch has begun since

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
        return self._batches or -(-self._total // self._global_batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        ended, self._over, self._loaded = self._over and self._loaded, False, False
        if ended:
            over = (
                f"epoch {self.epoch - 1} was over when the state was saved: nothing is left of it"
            )
            warnings.warn(f"{over}, and `set_epoch({self.epoch})` begins the next", stacklevel=2)
            return
        self._warn_of_repeats()
        rank, ranks = self._ranks
        for number in range(self.steps, self._begun + len(self)):
            self._given_out = number + 1
            yield self._batch(number)["indices"][rank::ranks]

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; if it is the current one, continue with it."""
        if check.integer("epoch", epoch) < self.epoch and self._loaded:
            advice = "to continue, loop over `range(sampler.epoch, epochs)`"
            over = f"epoch {epoch} was over when the state was saved, and begins again"
            warnings.warn(f"{over}; {advice}", stacklevel=2)
        self._loaded, self._over = False, False
        if epoch != self.epoch:
            self._warn_of_repeats()
            self.epoch, self._begun = epoch, self.steps

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
        self.steps += 1
        self._pending.pop(0)
        if known:
            self.policy.observe(_mean_over_ranks(known, self.policy.tasks))
        if self.steps == self._begun + len(self):
            self.epoch, self._begun, self._over = self.epoch + 1, self.steps, True

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
        self.policy.epoch_steps = len(self) * size
        rates = self.policy.lr(size)
        tasks = self.policy.next_tasks(size, self._present)
        counts = np.bincount(tasks, minlength=self.policy.tasks).tolist()
        # Ordered by task, so that each rank's stride takes its part of every task.
        indices = [i for task, count in enumerate(counts) for i in self._take(task, count)]
        lr = None if rates is None else float(np.mean(rates[np.arange(size), tasks]))
        return {"indices": indices, "counts": counts, "lr": lr}

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
            "sizes": [len(m) for m in self._members],
            "labels": self._labels,
            "global_batch_size": self._global_batch_size,  # ranks may change
            "batches": len(self),
            "seed": self.seed,
        }
        return make_state(
            self,
            arguments,
            epoch=self.epoch,
            steps=self.steps,
            begun=self._begun,
            over=self._over,
            drawn=self._drawn,
            pending=self._pending,
            policy=self.policy.state_dict(),
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the next sample of a sampler, and a policy, with the same arguments."""
        saved = check_state(state, self.state_dict())
        self.policy.load_state_dict(saved["policy"])
        self.epoch, self.steps = saved["epoch"], saved["steps"]
        self._begun, self._over = saved["begun"], saved["over"]
        self._drawn, self._pending = saved["drawn"], saved["pending"]
        self._given_out, self._loaded = self.steps, True


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
