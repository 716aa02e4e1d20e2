"""Needs PyTorch and Lightning: `make test-torch`."""

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from replan.integrations.lightning import ReplayCallback
from replan.integrations.torch import LossProbe, PlannedLR, ReplayBatchSampler
from replan.online import FocusThenReplay, Follow
from replan.protocol import Protocol
from scripted import BATCH, check_example, losses_after, policy_by_hand, rows_of_example

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own


class Recorder(pl.LightningModule):
    """Remembers the samples it was given, and the learning rate then."""

    def __init__(self, scheduler=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.make_scheduler, self.seen, self.rates = scheduler, [], []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch[0].tolist())
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return (self.weight - 1).square().sum()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        if self.make_scheduler is None:
            return optimizer
        scheduler = {"scheduler": self.make_scheduler(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


class Scripted(LossProbe):
    """Tells the losses of the script."""

    def measure(self, model):
        return losses_after(self.steps)


def make(sizes=(50, 50), batches=20, **settings):
    policy = FocusThenReplay(1, [0], order="random", seed=1)
    sampler = ReplayBatchSampler(sizes, policy, BATCH, batches=batches, **settings)
    return sampler, Scripted([torch.arange(1)], lambda *_: None, every=2)


def trainer(folder, *callbacks, **settings):
    return pl.Trainer(
        default_root_dir=folder, accelerator="cpu", devices=1, callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        **{"logger": False, "enable_checkpointing": False, "max_epochs": 1} | settings,
    )  # fmt: skip


def loader(sampler, workers=0):
    return DataLoader(TensorDataset(torch.arange(100)), batch_sampler=sampler, num_workers=workers)


def test_the_same_losses_give_the_same_decisions(tmp_path):
    sampler, probe = make()
    module = Recorder()
    trainer(tmp_path, ReplayCallback(sampler, probe)).fit(module, loader(sampler))
    counts, policy = policy_by_hand(20)
    assert [[sum(i < 50 for i in b), sum(i >= 50 for i in b)] for b in module.seen] == counts
    assert sampler.policy.decisions == policy.decisions
    assert sampler.policy.state_dict() == policy.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_in_mid_epoch_goes_on_to_the_sample(tmp_path, workers):
    sampler, probe = make()
    whole = Recorder()
    trainer(tmp_path, ReplayCallback(sampler, probe), max_epochs=2).fit(
        whole, loader(sampler, workers)
    )
    assert len(whole.seen) == 40

    sampler, probe = make()
    part = Recorder()
    keep = ModelCheckpoint(tmp_path, filename="part", every_n_train_steps=7, save_top_k=-1)
    trainer(
        tmp_path, ReplayCallback(sampler, probe), keep, max_steps=9, enable_checkpointing=True
    ).fit(part, loader(sampler, workers))

    sampler, probe = make()
    resumed = Recorder()
    trainer(tmp_path, ReplayCallback(sampler, probe), max_epochs=2).fit(
        resumed, loader(sampler, workers), ckpt_path=tmp_path / "part.ckpt"
    )
    assert part.seen[:7] + resumed.seen == whole.seen


def test_planned_learning_rates(tmp_path):
    plan = Protocol([[1.0, 0.0], [0.0, 1.0]], 2.0, lr=[[1.0, 9.0], [9.0, 0.5]])
    sampler = ReplayBatchSampler([50, 50], Follow(plan, 24), 4, batches=6)
    module = Recorder(lambda optimizer: PlannedLR(optimizer, sampler))
    trainer(tmp_path, ReplayCallback(sampler)).fit(module, loader(sampler))
    assert [b[0] >= 50 for b in module.seen] == [False] * 3 + [True] * 3
    assert module.rates == pytest.approx([0.1] * 3 + [0.05] * 3)


def test_what_the_policy_logs_reaches_the_logger(tmp_path):
    sampler, probe = make()
    logger = CSVLogger(tmp_path)
    trainer(tmp_path, ReplayCallback(sampler, probe), logger=logger).fit(
        Recorder(), loader(sampler)
    )
    header, first, *_ = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    assert "replay/loss_0" in header
    assert "replay/late" in header
    assert "replay/share_1" in header
    assert first.split(",")[header.split(",").index("step")] == str(2 * BATCH)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="`sampler` takes a ReplayBatchSampler, got 3"):
        ReplayCallback(3)
    with pytest.raises(ValueError, match="`probe` takes a LossProbe or None, got 3"):
        ReplayCallback(make()[0], 3)


def test_the_example_runs():
    check_example(rows_of_example("practice_lightning"))
