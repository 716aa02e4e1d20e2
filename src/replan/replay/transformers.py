"""Hugging Face: a `Trainer` whose batches a policy chooses, exact to the sample on resuming."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise ImportError(
        "replan.replay.transformers needs transformers: pip install 'replan[transformers]'"
    ) from error

from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import ConcatDataset, DataLoader

from replan import check
from replan.errors import ArgumentError
from replan.replay._policy import Policy
from replan.replay.torch import ReplayBatchSampler

__all__ = ["ReplayTrainer"]

_FILE = "replay.json"  # in each checkpoint
_LOADER = (
    "collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn",
    "multiprocessing_context", "prefetch_factor", "persistent_workers",
)  # fmt: skip


class ReplayTrainer(Trainer):
    """A `Trainer` that replays: a policy chooses the task of every sample.

    For the trainers of trl: `class ReplaySFTTrainer(ReplayTrainer, SFTTrainer): pass`. With
    `packing=True` a row holds samples of one task alone.

    The sampler's and the policy's state is in each checkpoint, as `replay.json`.
    `train(resume_from_checkpoint=True)` resumes with the very next sample and loads none of those
    before it, whatever `ignore_data_skip` says. The sampler decides how long an epoch is.

    An evaluation while training tells the policy the losses `eval_<name>_loss`, if it needs any:
    give `eval_dataset` as a dict with the same names. The logs have `replay/share_<name>`, and
    `replay/decision` where the policy decided something. If it plans learning rates, they multiply
    `learning_rate`, in place of `lr_scheduler_type`; a step that accumulates batches takes their
    mean.

    sampler: the `ReplayBatchSampler`, which knows its `policy`, `samples` and `epoch`.

    **Main arguments**: those of `Trainer`, by name, and

    - `train_dataset`: a dict of data sets by name, one per task, in order of arrival; or one
      `datasets.Dataset` with a column of tasks, counted from 0, which are their names, too.
    - `policy`: a policy of as many tasks.
    - `task_column`: the name of that column.

    Examples:
        >>> from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
        >>> from replan.replay.transformers import ReplayTrainer
        >>> config = GPT2Config(
        ...     vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2,
        ...     bos_token_id=0, eos_token_id=0,
        ... )
        >>> old, new = ([{"input_ids": [i, t], "labels": [i, t]} for i in range(60)] for t in (1, 2))
        >>> trainer = ReplayTrainer(
        ...     model=GPT2LMHeadModel(config), train_dataset={"old": old, "new": new},
        ...     policy=replan.replay.FixedReplay(tasks=2, share=0.25),
        ...     args=TrainingArguments(
        ...         max_steps=10, per_device_train_batch_size=12, use_cpu=True, disable_tqdm=True,
        ...         report_to="none", save_strategy="no", log_level="error",
        ...     ),
        ... )
        >>> _ = trainer.train()  # doctest: +ELLIPSIS
        {'train_runtime': ...
        >>> trainer.sampler.samples.tolist()
        [30, 90]
    """

    def __init__(
        self,
        *args: Any,
        train_dataset: Any,
        policy: Policy,
        task_column: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._policy = check.instance("policy", policy, Policy, "a policy of replan.replay")
        if isinstance(train_dataset, Mapping):
            self._names = [str(name) for name in train_dataset]
            if len(self._names) != policy.tasks:
                expected = f"{policy.tasks} data sets, one per task of the policy"
                raise ArgumentError("train_dataset", expected, f"{len(self._names)}")
            sizes = [len(part) for part in train_dataset.values()]
            self._labels = np.repeat(np.arange(policy.tasks), sizes)
            train_dataset = _join(list(train_dataset.values()))
        else:
            self._names = [str(task) for task in range(policy.tasks)]
            self._labels = _column(train_dataset, task_column, policy.tasks)
        self._whole = train_dataset
        super().__init__(*args, train_dataset=train_dataset, **kwargs)
        if len(self.train_dataset) != len(self._labels):
            expected = "one whose samples the trainer neither packs nor drops, so that their tasks "
            got = f"{len(self._labels)} samples, and {len(self.train_dataset)} of them prepared"
            raise ArgumentError("train_dataset", expected + "stay known", got)
        self._refuse_what_would_be_ignored()
        self.sampler, self._given = self._new_sampler(), policy.state_dict()
        self._batches, self._logged = _Batches(self.sampler), 0
        self.add_callback(_Progress(self))

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepare each task by itself, as trl's trainers call it, so that no row mixes tasks."""
        prepare = super()._prepare_dataset
        if dataset is not self._whole:
            return prepare(dataset, *args, **kwargs)
        tasks = np.unique(self._labels)
        rows = [dataset.select(np.flatnonzero(self._labels == task)) for task in tasks]
        parts = [prepare(part, *args, **kwargs) for part in rows]
        self._labels = np.repeat(tasks, [len(part) for part in parts])
        return _join(parts)

    def _refuse_what_would_be_ignored(self) -> None:
        args, expected = self.args, ""
        samples = self._train_batch_size * args.gradient_accumulation_steps * args.world_size
        if args.auto_find_batch_size:
            expected = "without `auto_find_batch_size`: batches that do not fit would be lost"
        elif args.train_sampling_strategy != "random":
            expected = "without `train_sampling_strategy`: the policy chooses the samples"
        elif self.get_total_train_batch_size(args) != samples:
            expected = "for processes with a batch each, without parallel models or sequences"
        if expected:
            raise ArgumentError("args", expected, type(args).__name__)

    def _new_sampler(self) -> ReplayBatchSampler:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return ReplayBatchSampler.from_labels(
            self._labels, self._policy, self._train_batch_size, seed=seed
        )

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as `Trainer` does; without a checkpoint, the policy begins as it was given."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        if isinstance(resume_from_checkpoint, str | os.PathLike):
            file = Path(resume_from_checkpoint, _FILE)
            if not file.exists():
                expected = f"a checkpoint of a {type(self).__name__}, with `{_FILE}`"
                raise ArgumentError("resume_from_checkpoint", expected, str(file.parent))
            self.sampler.load_state_dict(json.loads(file.read_text(encoding="utf-8")))
        elif self.sampler.steps:
            self._policy.load_state_dict(self._given)
            self.sampler = self._new_sampler()
        self._logged = len(self._policy.decisions)
        self.args.ignore_data_skip = False  # skipping loads nothing here, and counts steps right
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of the sampler's batches, which Accelerate must not divide once more."""
        loader = super().get_train_dataloader()
        self._batches = _Batches(self.sampler)
        settings = {name: getattr(loader, name) for name in _LOADER}
        return DataLoader(loader.dataset, batch_sampler=self._batches, **settings)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Return how many samples an epoch has, for the logs."""
        if isinstance(dataloader.batch_sampler, _Batches):
            return len(dataloader) * self._train_batch_size * self.args.world_size
        return super().num_examples(dataloader)

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """Return a scheduler that follows the policy, if it plans learning rates."""
        if self.lr_scheduler is None and self._policy.lr(1) is not None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self._planned_rate)
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

    def _planned_rate(self, step: int) -> float:
        """Return the factor of the learning rate in the next step of the optimizer."""
        first = self.sampler.steps
        count = min(self.args.gradient_accumulation_steps, self._batches.left or len(self.sampler))
        return float(np.mean([self.sampler.lr(first + i) for i in range(count)]))

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate as `Trainer` does, and tell the policy the losses of all tasks at once."""
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        if self.is_in_train and metric_key_prefix == "eval" and self._policy.needs_losses:
            keys = {task: f"eval_{name}_loss" for task, name in enumerate(self._names)}
            self._policy.observe({t: metrics[key] for t, key in keys.items() if key in metrics})
        return metrics

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Log as `Trainer` does, with the policy's shares, and what it decided since."""
        if "loss" in logs:
            shares = self._policy.shares(1)[0].tolist()
            logs |= {f"replay/share_{n}": x for n, x in zip(self._names, shares, strict=True)}
            decided = self._policy.decisions[self._logged :]
            self._logged += len(decided)
            if decided:
                logs["replay/decision"] = "; ".join(f"{d.what}: {d.reason}" for d in decided)
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save the sampler's state first: a checkpoint with a `trainer_state.json` is complete."""
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _FILE).write_text(json.dumps(self.sampler.state_dict()), encoding="utf-8")
        super()._save_checkpoint(model, trial)


class _Batches:
    """The batches of one of the trainer's epochs; those that it will skip are empty."""

    def __init__(self, sampler: ReplayBatchSampler) -> None:
        self.sampler = sampler
        self.skip = 0  # batches of the epoch that were done when the checkpoint was saved
        self._end = sampler.steps + len(sampler)

    def __len__(self) -> int:
        return len(self.sampler)

    @property
    def left(self) -> int:
        return self._end - self.sampler.steps

    def __iter__(self) -> Iterator[list[int]]:
        sampler, skip, self.skip = self.sampler, self.skip, 0
        self._end = sampler.steps + len(sampler) - skip
        # The trainer counts epochs by steps: where one was cut short, or the accumulation has
        # changed since the checkpoint, it wants other batches than the sampler's epoch has left.
        other = self._end != sampler._begun + len(sampler)
        sampler.set_epoch(sampler.epoch + other)
        yield from ([] for _ in range(skip))
        yield from sampler


class _Progress(TrainerCallback):
    """Reports batches to the sampler once the optimizer has used them, as checkpoints count."""

    def __init__(self, trainer: ReplayTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._accumulated = 0
        batches = self.trainer._batches
        steps = math.ceil(len(batches) / args.gradient_accumulation_steps)
        batches.skip = state.global_step % steps * args.gradient_accumulation_steps

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._accumulated += 1

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for _ in range(self._accumulated + 1):
            self.trainer.sampler.step()
        self._accumulated = 0


def _join(parts: list[Any]) -> Any:
    """Return data sets one after the other, as one of the same kind where that is possible."""
    if all(hasattr(part, "column_names") for part in parts):
        from datasets import concatenate_datasets

        return concatenate_datasets(parts)
    return ConcatDataset(parts)


def _column(dataset: Any, name: str | None, tasks: int) -> Any:
    """Return the task (n,) of each sample of a data set with a column of tasks."""
    if name is None or name not in getattr(dataset, "column_names", ()):
        expected = (
            "a dict with a data set per task, or a `datasets.Dataset` that has `task_column`. "
            "Packing drops columns: pack each task by itself, and give a dict"
        )
        raise ArgumentError("train_dataset", expected, check.show(dataset))
    return check.task_list("train_dataset", dataset[name][:], tasks)
