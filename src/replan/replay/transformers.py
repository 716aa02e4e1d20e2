"""Hugging Face: a `Trainer` whose batches a policy chooses, with its state in the checkpoints."""

from __future__ import annotations

import json
import warnings
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

_FILE = "replay.json"  # in each checkpoint, beside trainer_state.json
_LOADER = "collate_fn num_workers pin_memory timeout worker_init_fn multiprocessing_context"
_LOADER += " prefetch_factor persistent_workers"


class ReplayTrainer(Trainer):
    """A `Trainer` that replays: a policy chooses the task of every sample.

    For trl, `class ReplaySFTTrainer(ReplayTrainer, SFTTrainer): pass`. Each task is prepared by
    itself, so that a packed row belongs to one task, and shares are shares of rows.

    `train(resume_from_checkpoint=True)` resumes with the very next sample, whatever is accumulated
    or loaded ahead. It sets `ignore_data_skip=False`: nothing is loaded to be skipped. The length
    of an epoch is the sampler's; the last step of an epoch may accumulate fewer batches.

    An evaluation in training tells the policy `eval_<name>_loss` of each task, if it needs losses:
    give `eval_dataset` as a dict with the same names. Logs have `replay/share_<name>`, and
    `replay/decision` after one. Learning rates that a policy plans multiply `learning_rate` and
    replace `lr_scheduler_type`; a step of the optimizer takes the mean over its batches.

    sampler: the `ReplayBatchSampler`, which counts `samples`.

    **Arguments** are those of `Trainer`, by name, and

    - `train_dataset`: a dict of data sets by name, one per task, in order of arrival; or a
      `datasets.Dataset` whose tasks, counted from 0, are also their names.
    - `policy`: a policy with as many tasks.
    - `task_column`: the column of tasks in a `datasets.Dataset`.

    Examples:
        >>> from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
        >>> from replan.replay.transformers import ReplayTrainer
        >>> tokens = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 64}
        >>> model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, **tokens))
        >>> rows = [[[i, t] for i in range(60)] for t in (1, 2)]
        >>> old, new = ([{"input_ids": row, "labels": row} for row in part] for part in rows)
        >>> args = TrainingArguments(
        ...     max_steps=10, per_device_train_batch_size=12, use_cpu=True, disable_tqdm=True,
        ...     report_to="none", save_strategy="no", log_level="error",
        ... )
        >>> trainer = ReplayTrainer(
        ...     model=model, args=args, train_dataset={"old": old, "new": new},
        ...     policy=replan.replay.FixedReplay(tasks=2, share=0.25),
        ... )
        >>> _ = trainer.train()  # doctest: +ELLIPSIS
        {'train_runtime': ...
        >>> trainer.sampler.samples.tolist()
        [30, 90]
    """

    lr_scheduler: Any

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
            self._names, parts = list(map(str, train_dataset)), list(train_dataset.values())
            if len(parts) != policy.tasks:
                expected = f"{policy.tasks} data sets, one per task of the policy"
                raise ArgumentError("train_dataset", expected, f"{len(parts)}")
            self._labels = np.repeat(np.arange(policy.tasks), [len(part) for part in parts])
            train_dataset = _join(parts)
        else:
            columns = list(getattr(train_dataset, "column_names", ()))
            if task_column is None or not columns:
                expected = "a dict with a data set per task, or a data set with a `task_column`"
                raise ArgumentError("train_dataset", expected, check.show(train_dataset))
            if task_column not in columns:
                lost = "; packing drops columns: pack each task by itself, and give a dict"
                expected = f"one of {', '.join(columns)}{lost}"
                raise ArgumentError("task_column", expected, check.show(task_column))
            self._names = [str(task) for task in range(policy.tasks)]
            column = train_dataset[task_column][:]
            self._labels = check.task_list("task_column", column, policy.tasks)
        self._joined = train_dataset
        super().__init__(*args, train_dataset=train_dataset, **kwargs)
        if len(self.train_dataset) != len(self._labels):
            expected = "one whose samples the trainer neither packs nor drops: their tasks are lost"
            got = f"{len(self._labels)} samples, and {len(self.train_dataset)} of them prepared"
            raise ArgumentError("train_dataset", expected, got)
        _refuse_what_would_be_ignored(self, self.args)
        self._given = policy.state_dict()
        self._begin()
        self.add_callback(_Report(self))

    def _begin(self) -> None:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        given = self._labels, self._policy, self._train_batch_size
        # The trainer counts epochs of one length, whatever the policy's shares will be.
        batches = len(ReplayBatchSampler.from_labels(*given))
        self.sampler = ReplayBatchSampler.from_labels(*given, batches=batches, seed=seed)
        self._batches = _Batches(self.sampler)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepare each task by itself; trl's trainers call this while they are made."""
        prepare = super()._prepare_dataset
        if dataset is not self._joined:
            return prepare(dataset, *args, **kwargs)
        tasks = np.unique(self._labels)
        members = [dataset.select(np.flatnonzero(self._labels == task)) for task in tasks]
        parts = [prepare(part, *args, **kwargs) for part in members]
        self._labels = np.repeat(tasks, [len(part) for part in parts])
        return _join(parts)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as `Trainer` does; without a checkpoint, the policy begins as it was given."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        if resume_from_checkpoint not in (None, True, False):
            file = Path(str(resume_from_checkpoint), _FILE)
            if not file.exists():
                expected = f"a checkpoint of a `ReplayTrainer`, with {_FILE}"
                raise ArgumentError("resume_from_checkpoint", expected, str(file.parent))
            saved = json.loads(file.read_text(encoding="utf-8"))
            if saved["names"] != self._names:
                expected = f"of the tasks {', '.join(saved['names'])}, as in the checkpoint"
                raise ArgumentError("train_dataset", expected, ", ".join(self._names))
            self.sampler.load_state_dict(saved["sampler"])
        elif self.sampler.steps:
            self._policy.load_state_dict(self._given)
            self._begin()
        self._logged = len(self._policy.decisions)
        told = isinstance(self.eval_dataset, Mapping) and {*self._names} <= {*self.eval_dataset}
        if self._policy.needs_losses and not (told and self.args.do_eval):
            warnings.warn(
                "the policy needs losses that nobody will tell it: evaluate in training, with "
                f"`eval_dataset` a dict of {', '.join(self._names)}",
                stacklevel=2,
            )
        self.args.ignore_data_skip = False  # else steps would be counted from the epoch's start
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader of the sampler's batches, which Accelerate does not divide once more."""
        loader = super().get_train_dataloader()
        self._batches = _Batches(self.sampler)
        settings = {name: getattr(loader, name) for name in _LOADER.split()}
        return DataLoader(loader.dataset, batch_sampler=self._batches, **settings)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Return the samples of an epoch, of which the logs compute the speed."""
        if not isinstance(dataloader.batch_sampler, _Batches):
            return super().num_examples(dataloader)
        return len(dataloader) * self._train_batch_size * self.args.world_size

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """Return a scheduler that follows the policy, if it plans learning rates."""
        if self.lr_scheduler is None and self._policy.lr(1) is not None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self._batches.planned_rate)
            self._batches.accumulated = self.args.gradient_accumulation_steps
            self._created_lr_scheduler = True
        return super().create_scheduler(num_training_steps, optimizer)

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
        """Log as `Trainer` does, with the policy's shares, and what it has decided."""
        if "loss" in logs:
            shares = self._policy.shares(1)[0].tolist()
            logs |= {f"replay/share_{n}": x for n, x in zip(self._names, shares, strict=True)}
            for decision in self._policy.decisions[self._logged :]:
                logs["replay/decision"] = f"{decision.what}: {decision.reason}"
            self._logged = len(self._policy.decisions)
        super().log(logs, *args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save the sampler's state before that which says that a checkpoint is complete."""
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
            folder.mkdir(parents=True, exist_ok=True)
            content = {"names": self._names, "sampler": self.sampler.state_dict()}
            (folder / _FILE).write_text(json.dumps(content), encoding="utf-8")
        super()._save_checkpoint(model, trial)


class _Batches:
    """The batches of one of the trainer's epochs; those that it will skip are empty."""

    def __init__(self, sampler: ReplayBatchSampler) -> None:
        self.sampler = sampler
        self.skip = 0  # batches of the next epoch that were done before the checkpoint
        self.accumulated = 1  # batches of an optimizer's step
        self._end = sampler.steps + len(sampler)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        sampler, skip, self.skip = self.sampler, self.skip, 0
        self._end = sampler.steps + len(sampler) - skip
        # The trainer's epoch is another one if an epoch was cut short, or the accumulation changed.
        other = self._end != sampler._begun + len(sampler)
        sampler.set_epoch(sampler.epoch + other)
        yield from ([] for _ in range(skip))
        yield from sampler

    def planned_rate(self, step: int) -> float:
        """Return the factor of the learning rate in the optimizer's next step, whatever `step`."""
        first = self.sampler.steps
        count = min(self.accumulated, self._end - first or len(self.sampler))
        return float(np.mean([self.sampler.lr(first + i) for i in range(count)]))


class _Report(TrainerCallback):
    """Reports batches once the optimizer has used them, which is what checkpoints count."""

    def __init__(self, trainer: ReplayTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before = 0  # batches accumulated
        batches, size = self.trainer._batches, args.gradient_accumulation_steps
        batches.skip = state.global_step % -(-len(batches) // size) * size

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.before += 1

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for _ in range(self.before + 1):
            self.trainer.sampler.step()
        self.before = 0


def _refuse_what_would_be_ignored(trainer: Trainer, args: Any) -> None:
    samples = trainer._train_batch_size * args.gradient_accumulation_steps * args.world_size
    for refused, why in [
        (args.auto_find_batch_size, "without `auto_find_batch_size`, which would lose batches"),
        (args.train_sampling_strategy != "random", "without a sampling strategy: the policy's is"),
        (trainer.get_total_train_batch_size(args) != samples, "with a batch for every process"),
    ]:
        if refused:
            raise ArgumentError("args", why, type(args).__name__)


def _join(parts: list[Any]) -> Any:
    """Return data sets one after the other, for trl as one of theirs."""
    if all(hasattr(part, "column_names") for part in parts):
        from datasets import concatenate_datasets

        return concatenate_datasets(parts)
    return ConcatDataset(parts)
