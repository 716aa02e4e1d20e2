"""Focus, then replay in a plain PyTorch loop, beside replay at a fixed share.

It shows how to use policies, not which is better: the learning rate is tuned for neither.

python examples/practice_torch.py
"""

import copy

import torch
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from replan.replay import FixedReplay, FocusThenReplay, Policy
from replan.replay.torch import ReplayBatchSampler
from two_tasks import Network, data, loss, losses, row, show

BATCH, BATCHES = 20, 200


def train(
    model: Network, tasks: list[TensorDataset], held_out: list[TensorDataset], policy: Policy
) -> ReplayBatchSampler:
    """Train on batches whose tasks the policy chooses."""
    sampler = ReplayBatchSampler([len(t) for t in tasks], policy, BATCH, batches=BATCHES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(ConcatDataset(tasks), batch_sampler=sampler):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        sampler.step(losses(model, held_out) if sampler.losses_due(every=10) else None)
    return sampler


def compare(seed: int) -> list[dict]:
    """Learn the old task, then continue in both ways with the same number of samples."""
    torch.manual_seed(seed)
    tasks, held_out, test = data(seed)
    learnt = Network()
    alone = FixedReplay(tasks=2, share=0.0)
    alone.begin(0)
    train(learnt, tasks, held_out, alone)
    before = losses(learnt, test)[0]
    rows = []
    for way, policy in {
        "fixed replay": FixedReplay(tasks=2, share=0.5),
        "focus, then replay": FocusThenReplay(tasks=2),
    }.items():
        model = copy.deepcopy(learnt)
        samples = train(model, tasks, held_out, policy).samples
        switch = getattr(policy, "switch_step", 0)
        rows.append(row(way, switch, samples, before, losses(model, test)))
    return rows


if __name__ == "__main__":
    show([row for seed in range(3) for row in compare(seed)])
