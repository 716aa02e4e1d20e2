"""Needs PyTorch and Lightning: `make test-torch`."""

import json
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from replan import Protocol
from replan.replay import FocusThenReplay, FollowProtocol
from replan.replay.lightning import ReplayCallback
from replan.replay.torch import ReplayBatchSampler
from scripted import (
    BATCH,
    RULES,
    check_example,
    losses_after,
    policy_by_hand,
    refused,
    run_to_the_end,
    tasks_of,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own


UNTIL_MET = RULES[1][0]


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


def until_met(**settings):
    return FocusThenReplay(2, **UNTIL_MET | settings)


def make(sizes=(50, 50), batches=20, **settings):
    """A sampler, and a callback that tells its policy the losses of the script."""
    sampler = ReplayBatchSampler(sizes, until_met(**settings), BATCH, batches=batches)
    return sampler, ReplayCallback(sampler, lambda _: losses_after(sampler.steps + 1), every=2)


def trainer(folder, *callbacks, **settings):
    return pl.Trainer(
        default_root_dir=folder, accelerator="cpu", callbacks=list(callbacks),
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
        **{"logger": False, "enable_checkpointing": False, "max_epochs": 1, "devices": 1}
        | settings,
    )  # fmt: skip


def loader(sampler, workers=0):
    return DataLoader(TensorDataset(torch.arange(100)), batch_sampler=sampler, num_workers=workers)


@pytest.mark.parametrize(("rule", "switch"), RULES)
def test_the_same_losses_give_the_same_decisions(tmp_path, rule, switch):
    rule = {"max_focus": None} | rule
    sampler, callback = make(**rule)
    module = Recorder()
    trainer(tmp_path, callback).fit(module, loader(sampler))
    policy = until_met(**rule)
    counts = policy_by_hand(20, policy)
    assert tasks_of(module.seen) == counts
    assert sampler.policy.decisions == policy.decisions
    assert sampler.policy.state_dict() == policy.state_dict()
    assert policy.switch_step == switch * BATCH


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("every", [7, 20])
def test_a_checkpoint_goes_on_to_the_sample(tmp_path, workers, every):
    """In mid-epoch and at an epoch's end."""
    sampler, callback = make()
    whole = Recorder()
    trainer(tmp_path, callback, max_epochs=2).fit(whole, loader(sampler, workers))
    assert len(whole.seen) == 40

    sampler, callback = make()
    part = Recorder()
    keep = ModelCheckpoint(tmp_path, filename="part", every_n_train_steps=every, save_top_k=-1)
    cut = {"max_epochs": 2, "max_steps": every + 2, "enable_checkpointing": True}
    trainer(tmp_path, callback, keep, **cut).fit(part, loader(sampler, workers))

    sampler, callback = make()
    resumed = Recorder()
    trainer(tmp_path, callback, max_epochs=2).fit(
        resumed, loader(sampler, workers), ckpt_path=tmp_path / "part.ckpt"
    )
    assert part.seen[:every] + resumed.seen == whole.seen


class Validated(Recorder):
    """Counts how often it was validated."""

    validations = 0

    def validation_step(self, batch, batch_idx):
        self.validations += 1


def test_epochs_cut_short_are_followed_by_whole_ones(tmp_path):
    sampler, callback = make()
    module, check = Validated(), DataLoader(TensorDataset(torch.arange(1)))
    settings = {"max_epochs": 3, "num_sanity_val_steps": 0}
    trainer(tmp_path, callback, limit_train_batches=7, **settings).fit(
        module, loader(sampler), check
    )
    assert (len(module.seen), module.validations) == (21, 3)
    trainer(tmp_path, callback, max_steps=9, **settings).fit(Recorder(), loader(sampler))
    again = Validated()
    trainer(tmp_path, callback, **settings | {"max_epochs": 2}).fit(again, loader(sampler), check)
    assert (len(again.seen), again.validations) == (40, 2)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_planned_learning_rates(tmp_path, accumulate):
    plan = Protocol([[1.0, 0.0], [0.0, 1.0]], 2.0, lr=[[1.0, 9.0], [9.0, 0.5]])
    sampler = ReplayBatchSampler([50, 50], FollowProtocol(plan, 24), 4, batches=6)
    module = Recorder(lambda optimizer: LambdaLR(optimizer, sampler.lr))
    trainer(tmp_path, ReplayCallback(sampler), accumulate_grad_batches=accumulate).fit(
        module, loader(sampler)
    )
    assert [b[0] >= 50 for b in module.seen] == [False] * 3 + [True] * 3
    late = accumulate - 1  # the scheduler steps before the callback tells the sampler
    assert module.rates == pytest.approx([0.1] * (3 + late) + [0.05] * (3 - late))


def test_losses_and_shares_reach_the_logger(tmp_path):
    sampler, callback = make()
    logger = CSVLogger(tmp_path)
    trainer(tmp_path, callback, logger=logger).fit(Recorder(), loader(sampler))
    header, first, *_, last = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    first, last = (dict(zip(header.split(","), x.split(","), strict=True)) for x in (first, last))
    assert {key: float(x) for key, x in first.items()} == {
        "step": 1, "replay/loss_0": 0.25, "replay/loss_1": 0.9375,
        "replay/share_0": 0.0, "replay/share_1": 1.0,
    }  # fmt: skip
    assert (last["step"], last["replay/share_0"]) == ("13", "0.5")


DDP = """
import json, sys
sys.path[:0] = {path!r}
from test_lightning import Recorder, loader, make, trainer

if __name__ == "__main__":
    sampler, callback = make(batches=None)  # before there is a group of processes
    module = Recorder()
    run = trainer({folder!r}, callback, strategy="ddp", devices=2)
    run.fit(module, loader(sampler))
    content = {{"seen": module.seen, "state": sampler.state_dict()}}
    open({folder!r} + f"/{{run.global_rank}}.json", "w").write(json.dumps(content))
"""


def test_two_devices_share_the_batches(tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(DDP.format(path=[str(Path(__file__).parent)], folder=str(tmp_path)))
    run_to_the_end(script)
    first, second = (json.loads((tmp_path / f"{r}.json").read_text()) for r in range(2))
    assert first["state"] == second["state"]
    assert sum(first["state"]["drawn"]) == 50  # one pass over the new task
    counts = policy_by_hand(5, until_met(), BATCH * 2)
    together = [a + b for a, b in zip(first["seen"], second["seen"], strict=True)]
    assert tasks_of(together) == counts
    new = [i for batch in together for i in batch if i >= 50]
    assert len(set(new[:50])) == 50


def test_a_callback_that_was_forgotten_is_noticed(tmp_path):
    sampler, _ = make()
    with pytest.warns(UserWarning, match="`step` was not called after 20 batches"):
        trainer(tmp_path, max_epochs=2).fit(Recorder(), loader(sampler))


def test_data_that_the_sizes_do_not_fit_are_refused(tmp_path):
    sampler, callback = make(sizes=(50, 40))
    run = trainer(tmp_path, callback)
    assert refused("sizes", lambda: run.fit(Recorder(), loader(sampler)))


def test_bad_input_is_refused():
    sampler, _ = make()
    assert refused("sampler", lambda: ReplayCallback(3))
    assert refused("losses", lambda: ReplayCallback(sampler, 3))
    assert refused("every", lambda: ReplayCallback(sampler, every=0))


def test_the_example_runs():
    check_example("practice_lightning")
