"""Lightning: a callback that steps the sampler, with its state in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        "replan.replay.lightning needs Lightning: pip install 'replan[lightning]'"
    ) from error

from torch.utils.data import DataLoader

from replan import check
from replan.replay.torch import ReplayBatchSampler

__all__ = ["ReplayCallback"]


class ReplayCallback(Callback):
    """Steps a sampler after each batch, and keeps its state and its policy's in the checkpoint.

    Losses told to the policy and its shares then go to the trainer's loggers, as `replay/...`.

    - `sampler`: the one in the training data loader. Give the trainer
      `use_distributed_sampler=False`: the sampler knows its rank.
    - `losses`: `losses(module)` returns held-out losses by task, None for policies that need none.
    - `every`: batches between calls of `losses`; none is made while the policy needs no losses.

    Examples:
        >>> import lightning.pytorch as pl
        >>> import torch
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> from torch.utils.data import DataLoader
        >>> from replan.replay.lightning import ReplayCallback
        >>> from replan.replay.torch import ReplayBatchSampler
        >>> data = torch.randn(40, 32)  # 20 samples of each of two tasks
        >>> policy = replan.replay.FixedReplay(tasks=2, share=0.25)
        >>> sampler = ReplayBatchSampler([20, 20], policy, batch_size=8)
        >>> trainer = pl.Trainer(
        ...     max_epochs=1, callbacks=[ReplayCallback(sampler)], use_distributed_sampler=False,
        ...     logger=False, enable_checkpointing=False, enable_progress_bar=False,
        ...     enable_model_summary=False, accelerator="cpu",
        ... )
        >>> trainer.fit(BoringModel(), DataLoader(data, batch_sampler=sampler))
        >>> sampler.samples.tolist()
        [8, 24]
    """

    def __init__(
        self,
        sampler: ReplayBatchSampler,
        losses: Callable[[LightningModule], Mapping[int, float]] | None = None,
        *,
        every: int = 50,
    ) -> None:
        self.sampler = check.instance(
            "sampler", sampler, ReplayBatchSampler, "a ReplayBatchSampler"
        )
        self.losses = None if losses is None else check.function("losses", losses)
        self.every = check.integer("every", every, at_least=1)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue where a checkpoint says: the trainer itself knows whether an epoch is over."""
        self.sampler.set_epoch(self.sampler.epoch)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse data that the sampler's sizes do not fit."""
        if isinstance(trainer.train_dataloader, DataLoader):  # not several of them
            self.sampler.check_dataset(trainer.train_dataloader.dataset)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the batch, with losses if they are due."""
        if self.losses is None or not self.sampler.losses_due(self.every):
            self.sampler.step()
            return
        losses, policy = self.losses(pl_module), self.sampler.policy
        self.sampler.step(losses)
        shares = enumerate(policy.shares(1)[0].tolist())
        values = {f"replay/loss_{task}": loss for task, loss in losses.items()}
        values |= {f"replay/share_{task}": share for task, share in shares}
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the next epoch even if the trainer cut this one short."""
        self.sampler.set_epoch(trainer.current_epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler, for the checkpoint."""
        return self.sampler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the next sample."""
        self.sampler.load_state_dict(state_dict)
