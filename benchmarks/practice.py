"""What a policy costs in a training loop, beside PyTorch's own sampler and a training step.

Needs the environment of `make test-torch`. A network of one hidden layer of 200 units on 784
inputs, batches of 64, one core.
"""

import torch
from torch.utils.data import BatchSampler, RandomSampler

from common import best_times, save
from replan.replay import FixedReplay, FocusThenReplay, Policy
from replan.replay.torch import ReplayBatchSampler

SAMPLES, BATCH = 60_000, 64
BATCHES = -(-SAMPLES // BATCH)


def theirs() -> None:
    for _ in BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False):
        pass


def ours(policy: Policy) -> None:
    sampler = ReplayBatchSampler([SAMPLES // 2] * 2, policy, BATCH)
    for _ in sampler:
        sampler.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.rand(BATCH, 784), torch.randint(10, (BATCH,))

    def steps() -> None:
        for _ in range(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    peer, fixed, focus, step = best_times(
        theirs,
        lambda: ours(FixedReplay(2, share=0.5)),
        lambda: ours(FocusThenReplay(2, max_focus=0)),
        steps,
        repeats=15,
    )
    row = {
        "PyTorch's sampler µs": 1e6 * peer / BATCHES,
        "FixedReplay µs": 1e6 * fixed / BATCHES,
        "FocusThenReplay µs": 1e6 * focus / BATCHES,
        "training step µs": 1e4 * step,
    }
    save("practice", {"a batch of 64, one core": [row]})
