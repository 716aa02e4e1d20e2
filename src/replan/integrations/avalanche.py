"""Avalanche 0.6: a plugin like `ReplayPlugin`, in which a policy says when to replay.

policy = FixedReplay(tasks=5, share=0.5)  # or FocusThenReplay(0, [], tasks=5), which needs losses
strategy = Naive(..., plugins=[PolicyReplayPlugin(policy, mem_size=200, probe_size=0)])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

try:
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
    from avalanche.models.utils import avalanche_forward
    from avalanche.training.plugins import SupervisedPlugin
    from avalanche.training.storage_policy import ExemplarsBuffer, ExperienceBalancedBuffer
except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit torch
    raise ImportError(
        "replan.integrations.avalanche needs Avalanche 0.6: pip install 'replan[avalanche]', with "
        f"a torchvision that fits your PyTorch, see docs/practice.md ({error})"
    ) from error

import torch
from torch.utils.data import ConcatDataset, DataLoader

from replan import check
from replan.integrations.torch import LossProbe, ReplayBatchSampler
from replan.policies import Decision, Policy

__all__ = ["PolicyReplayPlugin"]

TASK = "replan_task"  # the attribute that holds the experience of each sample in memory


class PolicyReplayPlugin(SupervisedPlugin):
    """Experience replay at the times and with the shares that a policy chooses.

    The tasks of the policy are the experiences, in order of arrival. The losses it is told are
    computed here, on samples kept apart: a few of each experience, which are never trained on and
    count as memory.

    samples, decisions: samples of each task (T,) trained on in all, and what the policy decided.

    **Main arguments**

    - `policy`: with as many tasks as there will be experiences, such as `FixedReplay(5, 0.5)` or
      `FocusThenReplay(0, [], tasks=5)`.
    - `mem_size`: samples kept of earlier experiences, including those kept apart.
    - `batch_size`, `batch_size_mem`: once there is a memory, a batch has as many samples as both
      together, and the policy chooses the shares; without a memory it has `batch_size`. Each is by
      default the strategy's. An epoch has as many batches as hold the experience in parts of
      `batch_size`. Batches are full and shuffled, whatever `train` is told.

    **Other arguments**

    - `storage_policy`: chooses what is kept for replay, of size `mem_size - probe_size`; by default
      balanced over experiences. It is updated through `post_adapt`.
    - `probe_size`: samples kept apart, divided equally among the experiences so far; by default a
      tenth of `mem_size`, at least one per experience. Use 0 for policies that need no losses.
    - `every`: training iterations between measurements of the losses.
    - `seed`: of the choice of samples kept apart and of the order of samples.

    Examples:
        >>> import torch
        >>> from avalanche.benchmarks import nc_benchmark
        >>> from avalanche.benchmarks.utils import as_classification_dataset
        >>> from avalanche.training.supervised import Naive
        >>> from torch.utils.data import TensorDataset
        >>> from replan.integrations.avalanche import PolicyReplayPlugin
        >>> data = TensorDataset(torch.rand(80, 3), torch.arange(80) % 4)  # of four classes
        >>> data.targets = data.tensors[1].tolist()
        >>> data = as_classification_dataset(data)
        >>> benchmark = nc_benchmark(data, data, n_experiences=2, task_labels=False)
        >>> policy = replan.policies.FixedReplay(tasks=2, share=0.5)
        >>> plugin = PolicyReplayPlugin(policy, mem_size=20, probe_size=0)
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
        probe_size: int | None = None,
        every: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check.instance("policy", policy, Policy, "a policy of replan.policies")
        if policy.seen not in (None, [0]):
            raise ValueError(
                "`policy` expects one for which experience 0 is new and the others are still to "
                "come, such as FocusThenReplay(0, [], tasks=...), got one that has seen tasks "
                f"{policy.seen}"
            )
        if not isinstance(storage_policy, ExemplarsBuffer | None):
            raise ValueError(
                "`storage_policy` expects a buffer of Avalanche or None, "
                f"got {check.show(storage_policy)}"
            )
        self.policy = policy
        self.mem_size = check.integer("mem_size", mem_size, at_least=2 * policy.tasks)
        self.probe_size = check.integer(
            "probe_size",
            max(policy.tasks, self.mem_size // 10) if probe_size is None else probe_size,
            at_least=0 if probe_size == 0 else policy.tasks,
            at_most=self.mem_size - 1,
        )
        for name, size in (("batch_size", batch_size), ("batch_size_mem", batch_size_mem)):
            if size is not None:
                check.integer(name, size, at_least=1)
        self.batch_size, self.batch_size_mem = batch_size, batch_size_mem
        replayed = self.mem_size - self.probe_size
        if storage_policy is not None and storage_policy.max_size != replayed:
            raise ValueError(
                f"`storage_policy` expects a buffer of size {replayed}, what `mem_size` {mem_size} "
                f"and `probe_size` {self.probe_size} leave, got size {storage_policy.max_size}"
            )
        self.storage_policy = storage_policy or ExperienceBalancedBuffer(replayed)
        self.every = check.integer("every", every, at_least=1)
        self.seed = check.integer("seed", seed)
        self.samples = np.zeros(policy.tasks, dtype=np.int64)
        self.held_out: list[AvalancheDataset] = []

    @property
    def decisions(self) -> list[Decision]:
        """What the policy has decided so far."""
        return self.policy.decisions

    def after_train_dataset_adaptation(self, strategy: Any, **kwargs: Any) -> None:
        """Keep samples of the new experience apart, and divide the room for them anew."""
        data, task = strategy.adapted_dataset, len(self.held_out)
        if task == self.policy.tasks:
            raise ValueError(
                "`policy` expects one with as many tasks as there are experiences (`tasks=`), got "
                f"{check.show(self.policy)} and one more experience"
            )
        room = self.probe_size // (task + 1)
        if len(data) <= room:
            raise ValueError(
                "`probe_size` expects fewer samples than an experience has, got "
                f"{room} of {len(data)}"
            )
        order = np.random.default_rng([self.seed, task]).permutation(len(data)).tolist()
        self.held_out = [
            apart.subset(range(min(room, len(apart))))
            for apart in (*self.held_out, data.subset(order[:room]).eval())
        ]
        rest = data.subset(order[room:])
        strategy.adapted_dataset = rest.update_data_attribute(
            TASK, DataAttribute([task] * len(rest), TASK)
        )
        self._iterations = -(-len(data) // (self.batch_size or strategy.train_mb_size))

    def before_training_exp(
        self, strategy: Any, num_workers: int = 0, persistent_workers: bool = False, **kwargs: Any
    ) -> None:
        """Load batches of the new experience and of the memory as the policy decides."""
        task = len(self.held_out) - 1
        parts = [*self._memory(task), strategy.adapted_dataset]
        sizes = [len(part) for part in parts] + [0] * (self.policy.tasks - len(parts))
        size = self.batch_size or strategy.train_mb_size
        if any(sizes[:task]):
            size += self.batch_size_mem or strategy.train_mb_size
        self.policy.begin(task)
        self._sampler = ReplayBatchSampler(
            sizes,
            self.policy,
            size,
            batches=self._iterations,
            seed=self.policy.tasks * self.seed + task,
        )
        self._probe = None
        if self.probe_size:
            self._probe = LossProbe(
                self.held_out,
                self._loss(strategy),
                self.policy,
                every=self.every,
                batch_size=self.probe_size,
                collate=strategy.adapted_dataset.collate_fn,
            )
        strategy.dataloader = DataLoader(
            ConcatDataset([part for part in parts if len(part)]),
            batch_sampler=self._sampler,
            num_workers=num_workers,
            persistent_workers=persistent_workers and num_workers > 0,
            collate_fn=strategy.adapted_dataset.collate_fn,
        )

    def _memory(self, tasks: int) -> list[AvalancheDataset]:
        """Return what there is to replay of each earlier task."""
        memory = self.storage_policy.buffer
        if not len(memory):
            return [memory] * tasks
        where = getattr(memory, TASK).val_to_idx
        return [memory.subset(where.get(task, [])) for task in range(tasks)]

    def _loss(self, strategy: Any) -> Callable[[torch.nn.Module, Any], torch.Tensor]:
        def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            parts = [part.to(strategy.device) for part in batch]
            if hasattr(strategy.experience, "task_labels"):
                output = avalanche_forward(model, parts[0], parts[-1])
            else:
                output = model(parts[0])
            return strategy._criterion(output, parts[1])

        return loss

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Count the batch, and tell the policy the losses if they are due."""
        self._sampler.step(self._probe.step(strategy.model) if self._probe else None)

    def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
        """Let the storage policy choose what is kept of the experience."""
        self.samples += self._sampler.samples
        self.storage_policy.post_adapt(
            strategy, _Trained(strategy.experience, strategy.adapted_dataset)
        )


class _Trained:
    """An experience without what was kept apart of it."""

    def __init__(self, experience: Any, dataset: AvalancheDataset) -> None:
        self.experience, self.dataset = experience, dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["experience"], name)
