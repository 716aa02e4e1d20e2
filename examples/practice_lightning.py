"""Focus, then replay in Lightning, beside replay at a fixed share.

It shows how to use policies, not which is better: the learning rate is tuned for neither.

python examples/practice_lightning.py
"""

import logging

import lightning.pytorch as pl
import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from replan.replay import FixedReplay, FocusThenReplay, Policy
from replan.replay.lightning import ReplayCallback
from replan.replay.torch import ReplayBatchSampler
from two_tasks import Network, data, loss, losses, row, show

BATCH, BATCHES = 20, 200


class Module(pl.LightningModule):
    """An ordinary module: nothing in it knows about replay."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def forward(self, x: torch.Tensor, task: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, 2) of each sample's own task."""
        return self.network(x, task)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return loss(self, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(
    module: Module, tasks: list[TensorDataset], held_out: list[TensorDataset], policy: Policy
) -> ReplayBatchSampler:
    """Train on batches whose tasks the policy chooses."""
    sampler = ReplayBatchSampler([len(t) for t in tasks], policy, BATCH, batches=BATCHES)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[ReplayCallback(sampler, lambda model: losses(model, held_out), every=10)],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(ConcatDataset(tasks), batch_sampler=sampler))
    return sampler


def compare(seed: int) -> list[dict]:
    """Learn the old task, then continue in both ways with the same number of samples."""
    pl.seed_everything(seed, verbose=False)
    tasks, held_out, test = data(seed)
    learnt = Module()
    alone = FixedReplay(tasks=2, share=0.0)
    alone.begin(0)
    train(learnt, tasks, held_out, alone)
    before = losses(learnt, test)[0]
    rows = []
    for way, policy in {
        "fixed replay": FixedReplay(tasks=2, share=0.5),
        "focus, then replay": FocusThenReplay(tasks=2),
    }.items():
        module = Module()
        module.load_state_dict(learnt.state_dict())
        samples = train(module, tasks, held_out, policy).samples
        switch = getattr(policy, "switch_step", 0)
        rows.append(row(way, switch, samples, before, losses(module, test)))
    return rows


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    show([row for seed in range(3) for row in compare(seed)])
