"""Lightning: a callback that feeds a sampler's policy, with its state in the checkpoint.

sampler = ReplayBatchSampler([len(old), len(new)], policy, batch_size=32)
probe = LossProbe([old_held_out, new_held_out], loss, policy)
loader = DataLoader(ConcatDataset([old, new]), batch_sampler=sampler)
trainer = Trainer(callbacks=[ReplayCallback(sampler, probe)], use_distributed_sampler=False)
trainer.fit(module, loader)
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        "replan.integrations.lightning needs Lightning: pip install 'replan[lightning]'"
    ) from error

from replan import check
from replan._common.state import Entries, Stateful
from replan.integrations.torch import LossProbe, ReplayBatchSampler
from replan.policies import Log

__all__ = ["ReplayCallback"]


class ReplayCallback(Stateful, Callback):
    """Tells a sampler's policy the probed losses after each batch; keeps both in the checkpoint.

    What the policy logs goes to the trainer's loggers, as `replay/...`, unless the policy has a
    `log` of its own.

    - `sampler`: the one in the training data loader. With several devices, give the trainer
      `use_distributed_sampler=False`: the sampler knows its rank.
    - `probe`: estimates losses; None for policies that need none, such as `Follow`.

    Examples:
        >>> import lightning.pytorch as pl
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from replan.integrations.lightning import ReplayCallback
        >>> from replan.integrations.torch import ReplayBatchSampler
        >>> class Module(pl.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(3, 1)
        ...     def training_step(self, batch, batch_idx):
        ...         return self.layer(batch[0]).square().mean()
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> data = TensorDataset(torch.randn(40, 3))  # 20 samples of each of two tasks
        >>> policy = replan.policies.Fixed([0.25, 0.75])
        >>> sampler = ReplayBatchSampler([20, 20], policy, batch_size=8)
        >>> trainer = pl.Trainer(
        ...     max_epochs=1, callbacks=[ReplayCallback(sampler)], use_distributed_sampler=False,
        ...     logger=False, enable_checkpointing=False, enable_progress_bar=False,
        ...     enable_model_summary=False, accelerator="cpu",
        ... )
        >>> trainer.fit(Module(), DataLoader(data, batch_sampler=sampler))
        >>> sampler.samples.tolist()
        [10, 30]
    """

    def __init__(self, sampler: ReplayBatchSampler, probe: LossProbe | None = None) -> None:
        check.instance("sampler", sampler, ReplayBatchSampler, "a ReplayBatchSampler")
        if probe is not None:
            check.instance("probe", probe, LossProbe, "a LossProbe or None")
        self.sampler, self.probe = sampler, probe
        self._log: Log | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue where a checkpoint says: the trainer knows itself whether an epoch is over."""
        self.sampler.set_epoch(self.sampler.epoch)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Send what the policy logs to the trainer's loggers, at its own count of steps."""

        def log(values: dict[str, float], step: int) -> None:
            named = {f"replay/{name}": x for name, x in (values | {"samples": step}).items()}
            for logger in trainer.loggers:
                logger.log_metrics(named, step=trainer.global_step)

        if self.sampler.policy.log is None:
            self.sampler.policy.log, self._log = log, log

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the hook back: the loggers belong to this trainer."""
        if self.sampler.policy.log is self._log:
            self.sampler.policy.log = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the next epoch even if the trainer cut this one short."""
        self.sampler.set_epoch(trainer.current_epoch + 1)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and tell the policy the losses if they are due."""
        self.sampler.step(None if self.probe is None else self.probe.step(pl_module))

    def _made_with(self) -> dict[str, Any]:
        return {"probe": self.probe is not None}

    def _saved(self) -> dict[str, Any]:
        return {"sampler": self.sampler} | ({} if self.probe is None else {"probe": self.probe})

    def _restored(self, state: Entries) -> dict[str, Any]:
        return {}
