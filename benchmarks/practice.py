"""What a policy costs in a training loop, beside PyTorch's own sampler and a training step.

Needs the environment of `make test-torch`. A network of one hidden layer of 200 units on 784
inputs, batches of 64, one core.
"""

import torch
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset

from common import best_times, save
from replan.integrations.torch import LossProbe, ReplayBatchSampler
from replan.policies import Fixed, FocusThenReplay, Policy

SAMPLES, BATCH, EVERY = 60_000, 64, 50
BATCHES = -(-SAMPLES // BATCH)


def theirs() -> None:
    for _ in BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False):
        pass


def ours(policy: Policy) -> None:
    sampler = ReplayBatchSampler([SAMPLES // 2] * 2, policy, BATCH)
    for _ in sampler:
        sampler.step()


def loss(model: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.rand(512, 784), torch.randint(10, (512,))
    held_out = [TensorDataset(x, y)] * 2
    probe = LossProbe(held_out, loss, batch_size=256)
    idle = LossProbe(held_out, loss, FocusThenReplay(1, [0], max_focus=0), every=1)

    def steps() -> None:
        for _ in range(100):
            optimizer.zero_grad()
            loss(model, [x[:BATCH], y[:BATCH]]).backward()
            optimizer.step()

    def after_the_switch() -> None:
        for _ in range(100):
            idle.step(model)

    peer, fixed, focus, step, measure, nothing = best_times(
        theirs,
        lambda: ours(Fixed([0.5, 0.5])),
        lambda: ours(FocusThenReplay(1, [0], max_focus=0)),
        steps,
        lambda: probe.measure(model),
        after_the_switch,
        repeats=15,
    )
    row = {
        "PyTorch's sampler µs": 1e6 * peer / BATCHES,
        "Fixed µs": 1e6 * fixed / BATCHES,
        "FocusThenReplay µs": 1e6 * focus / BATCHES,
        f"probe of 2 × 256 every {EVERY}, µs per step": 1e6 * measure / EVERY,
        "probe after the switch, µs per step": 1e4 * nothing,
        "training step µs": 1e4 * step,
    }
    save("practice", {"a batch of 64, one core": [row]})
