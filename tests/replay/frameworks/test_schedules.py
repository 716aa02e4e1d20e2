"""Needs PyTorch and datasets: exported schedules do what they say there."""

import json

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from replan import Protocol
from replan.exports import export

TWO = Protocol([[0, 0, 1], [0.3, 0.1, 0.6]], edges=[0, 1, 4], lr=[0.4, 0.1])
NAMES = ["web", "code", "books"]


def test_datasets_interleaves_with_the_shares():
    datasets = pytest.importorskip("datasets")
    parts = {name: datasets.Dataset.from_dict({"from": [name] * 4000}) for name in NAMES}
    text = export(TWO, "datasets", steps=4000, names=NAMES)[0]
    for stage, shares in zip(json.loads(text)["stages"], TWO.shares, strict=True):
        mixed = datasets.interleave_datasets(
            [parts[name] for name in stage["datasets"]],
            probabilities=stage["probabilities"],
            seed=0,
        )
        seen = mixed[:4000]["from"]
        drawn = [seen.count(name) / len(seen) for name in NAMES]
        assert drawn == pytest.approx(shares.tolist(), abs=0.03)


def test_a_scheduler_follows_the_table():
    table = json.loads(export(TWO, "lambda-lr", steps=8)[0])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=table["peak"])
    scheduler = LambdaLR(optimizer, lambda step: table["factors"][step])
    rates = []
    for _ in range(8):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.4] * 2 + [0.1] * 6)
