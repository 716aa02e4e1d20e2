"""Avalanche 0.6: a plugin like `ReplayPlugin`, in which a policy says how much to replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

try:
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
    from avalanche.training.plugins import SupervisedPlugin
    from avalanche.training.storage_policy import ExemplarsBuffer, ExperienceBalancedBuffer
except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit torch
    raise ImportError(
        "replan.replay.avalanche needs Avalanche 0.6: pip install 'replan[avalanche]', with a "
        f"torchvision that fits your PyTorch, see docs/training-loops.md ({error})"
    ) from error

from torch.utils.data import ConcatDataset, DataLoader

from replan import check
from replan.errors import ArgumentError
from replan.replay._policy import Policy
from replan.replay.torch import ReplayBatchSampler

__all__ = ["PolicyReplayPlugin"]

_TASK = "replan_task"  # the attribute that holds the experience of each sample in memory


class PolicyReplayPlugin(SupervisedPlugin):
    """Experience replay at the times and with the shares that a policy chooses.

    The policy's tasks are the experiences, in order; its `decisions` say what it decided.

    samples: of each task (T,) trained on in all.

    **Main arguments**

    - `policy`: with one task per experience, such as `FixedReplay(tasks=5, share=0.5)`.
    - `mem_size`, `storage_policy`: how many samples of earlier experiences are kept, and what
      chooses them; by default balanced over experiences. It is updated through `post_adapt`.
    - `batch_size`, `batch_size_mem`: a batch has `batch_size` samples, and `batch_size_mem` more
      once there is a memory; the policy chooses the shares. Each is by default the strategy's. An
      epoch has one batch for every `batch_size` samples of the experience. Batches are full and
      shuffled, whatever the arguments of `train`.

    **Other arguments**

    - `losses`: `losses(strategy)` returns held-out losses by task, such as on a validation
      stream; None for policies that need none.
    - `every`: iterations between calls of `losses`; none is made while the policy needs no losses.
    - `seed`: of the order of samples.

    Examples:
        >>> import torch
        >>> from avalanche.benchmarks import nc_benchmark
        >>> from avalanche.benchmarks.utils import as_classification_dataset
        >>> from avalanche.training.supervised import Naive
        >>> from torch.utils.data import TensorDataset
        >>> from replan.replay.avalanche import PolicyReplayPlugin
        >>> data = TensorDataset(torch.rand(80, 3), torch.arange(80) % 4)  # of four classes
        >>> data.targets = data.tensors[1].tolist()
        >>> data = as_classification_dataset(data)
        >>> benchmark = nc_benchmark(data, data, n_experiences=2, task_labels=False)
        >>> policy = replan.replay.FixedReplay(tasks=2, share=0.5)
        >>> plugin = PolicyReplayPlugin(policy, mem_size=20)
        >>> model = torch.nn.Linear(3, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> strategy = Naive(
        ...     model=model, optimizer=optimizer, train_mb_size=10, plugins=[plugin], evaluator=None
        ... )
        >>> for experience in benchmark.train_stream:
        ...     _ = strategy.train(experience)
        >>> plugin.samples.tolist()  # of each experience
        [80, 40]
    """

    def __init__(
        self,
        policy: Policy,
        mem_size: int = 200,
        batch_size: int | None = None,
        batch_size_mem: int | None = None,
        storage_policy: ExemplarsBuffer | None = None,
        *,
        losses: Callable[[Any], Mapping[int, float]] | None = None,
        every: int = 50,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.policy = check.instance("policy", policy, Policy, "a policy of replan.replay")
        self.mem_size = check.integer("mem_size", mem_size, at_least=policy.tasks)
        self.batch_size, self.batch_size_mem = batch_size, batch_size_mem
        self.storage_policy = storage_policy or ExperienceBalancedBuffer(self.mem_size)
        if self.storage_policy.max_size != self.mem_size:
            expected = f"of size `mem_size`, {mem_size}"
            raise ArgumentError("storage_policy", expected, f"size {self.storage_policy.max_size}")
        self.losses = None if losses is None else check.function("losses", losses)
        self.every = check.integer("every", every, at_least=1)
        self.seed = check.integer("seed", seed)
        self.samples = np.zeros(policy.tasks, dtype=np.int64)
        self._experiences = 0

    def before_training_exp(
        self, strategy: Any, num_workers: int = 0, persistent_workers: bool = False, **kwargs: Any
    ) -> None:
        """Load batches of the new experience and of the memory as the policy decides."""
        task, data = self._experiences, strategy.adapted_dataset
        if task == self.policy.tasks:
            expected = "one with a task for each experience (`tasks=`)"
            raise ArgumentError("policy", expected, f"{self.policy} and one more experience")
        self._experiences += 1
        self._data = data.update_data_attribute(_TASK, DataAttribute([task] * len(data), _TASK))
        parts = [*self._memory(task), self._data]
        sizes = [len(part) for part in parts] + [0] * (self.policy.tasks - len(parts))
        new = self.batch_size or strategy.train_mb_size
        old = (self.batch_size_mem or strategy.train_mb_size) if any(sizes[:task]) else 0
        self.policy.begin(task)
        seed, batches = self.policy.tasks * self.seed + task, -(-len(data) // new)
        self._sampler = ReplayBatchSampler(
            sizes, self.policy, new + old, batches=batches, seed=seed
        )
        strategy.dataloader = DataLoader(
            ConcatDataset([part for part in parts if len(part)]),
            batch_sampler=self._sampler,
            num_workers=num_workers,
            persistent_workers=persistent_workers and num_workers > 0,
            collate_fn=data.collate_fn,
        )

    def _memory(self, tasks: int) -> list[AvalancheDataset]:
        """Return the samples to replay of each earlier task."""
        memory = self.storage_policy.buffer
        if not len(memory):
            return [memory] * tasks
        where = getattr(memory, _TASK).val_to_idx
        return [memory.subset(where.get(task, [])) for task in range(tasks)]

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Report the batch, with losses if they are due."""
        due = self._sampler.losses_due(self.every)
        self._sampler.step(self.losses(strategy) if self.losses and due else None)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Let the storage policy choose what is kept of the experience."""
        self.samples += self._sampler.samples
        self.storage_policy.post_adapt(strategy, _Labelled(strategy.experience, self._data))


class _Labelled:
    """An experience whose samples say which task they are of."""

    def __init__(self, experience: Any, dataset: AvalancheDataset) -> None:
        self.experience, self.dataset = experience, dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["experience"], name)
