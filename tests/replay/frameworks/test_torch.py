"""Needs PyTorch: `make test-torch`."""

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import warnings
from ast import literal_eval
from collections import Counter
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from replan import Protocol
from replan.integrations.torch import LossProbe, PlannedLR, ReplayBatchSampler, WithTask
from replan.policies import Alternate, Fixed, FocusThenReplay, Follow
from scripted import (
    BATCH,
    RULES,
    check_example,
    losses_after,
    policy_by_hand,
    rows_of_example,
    run_documented,
)


def train(samplers, batches, *, ahead=0, losses=lambda step: None):
    """Train on batches of samplers of all ranks that are loaded `ahead`; return their indices."""
    seen = []
    while len(seen) < batches:
        loaded, iterators = [], [iter(sampler) for sampler in samplers]
        # Every iterator is of an epoch, or of what is left of one.
        while True:
            while len(loaded) <= ahead:
                batch = [next(iterator, None) for iterator in iterators]
                if batch[0] is None:
                    break
                loaded.append(batch)
            if not loaded or len(seen) == batches:
                break
            seen.append(loaded.pop(0))
            for sampler in samplers:
                sampler.step(losses(sampler.steps + 1))
    return seen


def in_passes(indices, size):
    """Return whether every sample comes once in each full pass, and at most once in the last."""
    parts = [indices[i : i + size] for i in range(0, len(indices), size)]
    return all(
        len(set(part)) == len(part) == (size if part is not parts[-1] else len(part))
        for part in parts
    )


def loaded_ahead(samplers, ahead):
    """Yield the batches of all ranks as worker processes load them: some ahead of their turn."""
    loaded, batches = [], zip(*samplers, strict=True)
    for batch in batches:
        loaded.append(batch)
        if len(loaded) > ahead:
            yield loaded.pop(0)
    yield from loaded


def begin(samplers, epoch):
    """Call `set_epoch`; return after how many batches it said that `step` was not called."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for sampler in samplers:
            sampler.set_epoch(epoch)
    counts = {int(re.search(r"not called after (\d+) batches", str(w.message))[1]) for w in told}
    assert len(counts) <= 1
    return counts.pop() if counts else 0


# What becomes of a batch: trained on and reported; so, and then the job resumes from a checkpoint,
# or the epoch is cut short; the job resumes before anything is reported; never reported.
FATES = ["step"] * 8 + ["step, resume", "step, cut", "resume", "skip"]


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    batch_size=st.integers(1, 7),
    ranks=st.integers(1, 3),
    mixed=st.booleans(),
    order=st.sampled_from(["spread", "random"]),
    ahead=st.integers(0, 4),
    seed=st.integers(0, 5),
    accumulate=st.sampled_from([1, 1, 1, 2, 3]),
    fates=st.lists(st.sampled_from(FATES), max_size=40),
)
def test_no_sample_is_lost_or_drawn_twice(
    sizes, batch_size, ranks, mixed, order, ahead, seed, accumulate, fates
):
    """In the documented loop over epochs, whatever happens to a batch, and at every moment.

    accumulate: `step` is called only after every so many batches.
    """

    def make(state=None):
        samplers = [
            ReplayBatchSampler(
                sizes, Fixed(np.full(len(sizes), 1 / len(sizes)), order=order, seed=seed),
                batch_size, mixed=mixed, seed=seed, num_replicas=ranks, rank=r,
            )
            for r in range(ranks)
        ]  # fmt: skip
        for sampler in samplers if state else ():
            sampler.load_state_dict(json.loads(json.dumps(state)))
        return samplers

    expected = [tuple(batch) for batch in train(make(), len(fates) + 5)]
    samplers, epoch, number, fates = make(), 0, 0, list(fates)
    length = left = len(samplers[0])
    unreported = 0
    while fates:
        assert begin(samplers, epoch) == unreported
        first, fate, given = samplers[0].steps, "", 0
        for given, batch in enumerate(loaded_ahead(samplers, ahead), start=1):
            assert batch == expected[first + given - 1]  # the next one, or one not reported
            fate, number = fates.pop(0) if fates else "cut", number + 1
            if "step" in fate and number % accumulate == 0:
                for sampler in samplers:
                    sampler.step()
            if fate not in ("step", "skip"):
                break
        done, loaded = samplers[0].steps - first, min(left, given + ahead)
        assert done <= given <= left
        if "resume" in fate:
            samplers = make(samplers[0].state_dict())
            unreported, left = 0, left - done or length
            epoch = samplers[0].epoch
        else:  # workers that loaded the whole epoch ahead look as if it had been trained on
            unreported, left = loaded - done if loaded == left else 0, length
            epoch += 1

    total = samplers[0].steps
    together = [np.array(batch).T.ravel().tolist() for batch in expected]  # strides undone
    task_of = np.repeat(np.arange(len(sizes)), sizes)
    for task, size in enumerate(sizes):
        drawn = [i for batch in together for i in batch if task_of[i] == task]
        assert in_passes(drawn, size) if size else not drawn
    counts = np.bincount([task_of[i] for b in together[:total] for i in b], minlength=len(sizes))
    assert samplers[0].samples.tolist() == counts.tolist()
    assert all(len(part) == batch_size for batch in expected for part in batch)
    if not mixed:
        assert all(len({int(task_of[i]) for i in batch}) == 1 for batch in together)


def test_an_epoch_of_equal_shares_has_every_sample_once():
    sampler = ReplayBatchSampler([20, 20], Fixed([0.5, 0.5]), 8)
    assert len(sampler) == 5
    epoch = [i for batch in sampler for i in batch]
    assert sorted(epoch) == list(range(40))
    assert epoch != sorted(epoch)


def test_epochs_differ_and_the_seed_decides():
    def epoch(seed, count=2):
        sampler = ReplayBatchSampler([30], Fixed([1.0]), 10, seed=seed)
        return [train([sampler], 3) for _ in range(count)]

    assert epoch(1) == epoch(1)
    assert epoch(1) != epoch(2)
    first, second = epoch(1)
    assert first != second


def test_batches_from_before_there_was_a_group_are_refused():
    sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
    next(iter(sampler))
    sampler._given = (2, 0)
    with pytest.raises(ValueError, match="it has 10 samples for 2 ranks of 10"):
        next(iter(sampler))


def test_labels_in_any_order():
    labels = torch.tensor([1, 0, 1, 0, 0, 1, 1])
    sampler = ReplayBatchSampler.from_labels(labels, Alternate(2), 3, mixed=False, batches=4)
    for batch, task in zip(sampler, [0, 1, 0, 1], strict=True):
        assert {int(labels[i]) for i in batch} == {task}


def test_a_task_without_samples_leaves_its_share_to_the_others():
    sampler = ReplayBatchSampler([10, 0, 10], Fixed([0.25, 0.5, 0.25]), 10, batches=20)
    drawn = Counter(i // 10 for batch in sampler for i in batch)
    assert drawn == {0: 100, 1: 100}


@pytest.mark.filterwarnings("ignore:.step. was not called")
def test_the_iterator_gives_what_is_left_and_set_epoch_begins():
    sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
    for _, _batch in zip(range(3), sampler, strict=False):
        sampler.step()
    assert (sampler.epoch, len(list(sampler))) == (0, 1)
    sampler.set_epoch(0)
    assert len(list(sampler)) == 1
    sampler.set_epoch(1)
    assert len(list(sampler)) == 4
    for _ in range(4):
        sampler.step()
    assert sampler.epoch == 2


def test_a_look_at_a_batch_takes_nothing():
    sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
    look = next(iter(sampler))
    assert next(iter(sampler)) == look


def test_without_step_batches_come_again_with_a_warning():
    sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
    first = list(sampler)
    with pytest.warns(UserWarning, match="`step` was not called after 4 batches of this epoch"):
        assert list(sampler) == first
    assert len(sampler._pending) == 4  # what is kept does not grow with epochs
    for _ in first:
        sampler.step()
    assert list(sampler) != first


def test_batches_without_a_step_come_again():
    sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
    given = []
    for number, batch in enumerate(sampler):
        given.append(batch)
        if number % 2:
            sampler.step()
    with pytest.warns(UserWarning, match="`step` was not called after 2 batches"):
        assert list(sampler) == given[2:]


def test_a_policy_that_is_told_nothing_is_noticed():
    sampler = ReplayBatchSampler([40, 40], FocusThenReplay(1, [0]), 10, batches=2)
    with pytest.warns(UserWarning, match="was told no loss of task 1 so far, and replays because"):
        train([sampler], 2)
    with pytest.warns(UserWarning, match="was told no loss of task 1 so far"):
        train([sampler], 2, losses=lambda step: {0: 0.5})  # that of the old task alone
    train([sampler], 2, losses=losses_after)
    endless = ReplayBatchSampler([40, 40], until_met(), 10, batches=2)
    with pytest.warns(UserWarning, match="no loss of task 0, 1 so far, and stays with the new"):
        train([endless], 2)
    bounded = ReplayBatchSampler([40, 40], FocusThenReplay(1, [0], max_focus=30), 10, batches=2)
    train([bounded], 4)  # no warning: it ends by itself


def test_going_on_with_an_epoch_that_was_over_is_told():
    sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
    train([sampler], 4)
    resumed = ReplayBatchSampler([40], Fixed([1.0]), 10)
    resumed.load_state_dict(sampler.state_dict())
    with pytest.warns(UserWarning, match=r"epoch 0 was over .* `range\(sampler.epoch, epochs\)`"):
        resumed.set_epoch(0)
    resumed.load_state_dict(sampler.state_dict())
    resumed.set_epoch(1)
    for again in (sampler, resumed):
        again.set_epoch(0)  # another round of training, no warning


def test_a_state_from_an_epochs_end_has_nothing_left_of_it():
    """As where a task of one epoch is over: it is not trained on again."""
    sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
    train([sampler], 4)
    resumed = ReplayBatchSampler([40], Fixed([1.0]), 10)
    resumed.load_state_dict(sampler.state_dict())
    with pytest.warns(UserWarning, match=r"epoch 0 was over .* `set_epoch\(1\)` begins the next"):
        assert list(resumed) == []
    following = list(sampler)  # the same process goes on as it always did
    assert len(following) == 4
    resumed.load_state_dict(sampler.state_dict())  # of an epoch that has begun
    assert list(resumed) == following
    resumed.load_state_dict(train_and_save(4))
    resumed.set_epoch(1)
    assert list(resumed) == following
    for steps in range(4):
        resumed.load_state_dict(train_and_save(steps))
        assert len(list(resumed)) == 4 - steps


def train_and_save(batches):
    sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
    train([sampler], batches)
    return sampler.state_dict()


def test_set_epoch_tells_of_batches_that_nobody_reported():
    """In the documented loop: a call per step of the optimizer, and a batch that is skipped."""
    for reported, lost in ((lambda n: n % 2 == 1, 2), (lambda n: n != 1, 1)):
        sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
        sampler.set_epoch(0)
        for number, _ in enumerate(sampler):
            if reported(number):
                sampler.step()
        with pytest.warns(UserWarning, match=f"`step` was not called after {lost} batches"):
            sampler.set_epoch(1)
        assert len(list(sampler)) == 4


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_shorter_than_what_workers_load_ahead(persistent):
    """A look at a batch takes nothing, a state from before the first step loses nothing."""

    def make():
        sampler = ReplayBatchSampler([40], Fixed([1.0]), 10)
        data = TensorDataset(torch.arange(40))
        workers = {"num_workers": 2, "persistent_workers": persistent}
        return sampler, DataLoader(data, batch_sampler=sampler, **workers)

    sampler, loader = make()
    next(iter(loader))
    expected = list(ReplayBatchSampler([40], Fixed([1.0]), 10))
    resumed, again = make()
    resumed.load_state_dict(sampler.state_dict())
    seen = []
    for (batch,) in again:
        seen.append(batch.tolist())
        resumed.step()
    assert seen == expected
    assert (resumed.epoch, resumed.steps) == (1, 4)
    assert sorted(i for batch in seen for i in batch) == list(range(40))


def scripted(step):
    """Return losses of two tasks that meet after 12 batches, every other one."""
    return losses_after(step) if step % 2 else None


def until_met(**settings):
    return FocusThenReplay(1, [0], until="met", max_focus=math.inf, **settings)


@pytest.mark.parametrize(("rule", "switch"), RULES)
def test_the_same_losses_give_the_same_decisions(rule, switch):
    policy, twin = (FocusThenReplay(1, [0], order="random", seed=1, **rule) for _ in range(2))
    sampler = ReplayBatchSampler([50, 50], policy, BATCH, batches=20)
    seen = train([sampler], 20, losses=lambda step: scripted(step) if policy.needs_losses else None)
    counts = policy_by_hand(20, twin)
    assert [[sum(i < 50 for i in b), sum(i >= 50 for i in b)] for (b,) in seen] == counts
    assert policy.switch_step == switch * BATCH
    assert policy.decisions == twin.decisions
    assert policy.state_dict() == twin.state_dict()


def test_losses_decide():
    policy = until_met()
    sampler = ReplayBatchSampler([50, 50], policy, 4, batches=20)
    seen = train([sampler], 20, losses=scripted)
    new = [sum(i >= 50 for i in batch) for (batch,) in seen]
    assert new == [4] * 13 + [2] * 7
    assert policy.switch_step == 52
    assert [entry.late for entry in policy.decisions] == [0]
    assert sampler.samples.tolist() == [14, 66]


@pytest.mark.parametrize(("workers", "factor"), [(1, 2), (2, 3)])
def test_worker_processes_make_decisions_late_and_the_log_says_so(workers, factor):
    late, told = workers * factor, []
    policy = until_met(log=lambda values, step: told.append(values["late"]))
    sampler = ReplayBatchSampler([50, 50], policy, 4, batches=40)
    loader = DataLoader(
        TensorDataset(torch.arange(100)),
        batch_sampler=sampler,
        num_workers=workers,
        prefetch_factor=factor,
    )
    new = []
    for (batch,) in loader:
        new.append(int((batch >= 50).sum()))
        sampler.step(scripted(sampler.steps + 1))
    assert new == [4] * (13 + late) + [2] * (27 - late)
    assert policy.decisions[0].late == late * 4
    assert max(told) == late * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_in_mid_epoch_goes_on_to_the_sample(workers):
    data = TensorDataset(torch.arange(100))

    def loop(sampler, batches):
        loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
        seen = []
        for (batch,) in loader:
            seen.append(batch.tolist())
            sampler.step(scripted(sampler.steps + 1))
            if len(seen) == batches:
                break
        return seen

    def make():
        return ReplayBatchSampler([50, 50], until_met(), 4)

    whole, part, resumed = make(), make(), make()
    expected = loop(whole, None)
    seen = loop(part, 11)  # before the losses meet, or while batches from before are loaded
    resumed.load_state_dict(json.loads(json.dumps(part.state_dict())))
    resumed.set_epoch(0)  # as a loop over epochs does
    assert seen + loop(resumed, None) == expected
    assert resumed.state_dict() == whole.state_dict()


def test_ranks_may_change_if_the_batches_over_all_stay():
    sampler = ReplayBatchSampler([50, 50], Fixed([0.5, 0.5]), 4, num_replicas=2, rank=0)
    train([sampler], 3)
    one = ReplayBatchSampler([50, 50], Fixed([0.5, 0.5]), 8)
    one.load_state_dict(sampler.state_dict())
    whole, part = next(iter(one)), next(iter(sampler))
    assert whole[::2] == part
    other = ReplayBatchSampler([50, 50], Fixed([0.5, 0.5]), 4)
    with pytest.raises(ValueError, match="made with global_batch_size = 4, got one made with"):
        other.load_state_dict(sampler.state_dict())


def _rank(rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks
    )
    policy = until_met(order="random", seed=3)
    sampler = ReplayBatchSampler([50, 60], policy, 4)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    # Each rank alone would decide otherwise, and rank 1 does not know the old task.
    held_out = {t: TensorDataset(torch.full((8, 1), float(t + rank))) for t in range(2 - rank)}
    probe = LossProbe(held_out, lambda model, batch: model(batch[0]).square().mean(), every=5)
    seen = []
    for number, batch in enumerate(sampler):
        seen.append(batch)
        losses = scripted(sampler.steps + 1)
        if losses and rank == 0:
            losses = {0: losses[0], 1: losses[1] - 1.0}
        elif losses:
            losses = {1: losses[1] + 1.0}
        sampler.step(losses)
        measured = probe.step(model)
        assert measured.keys() == (set(held_out) if number % 5 == 0 else set())
    (folder / f"{rank}.json").write_text(
        json.dumps({"seen": seen, "state": sampler.state_dict(), "switch": policy.switch_step})
    )
    dist.destroy_process_group()


def test_two_processes_take_the_same_decisions(tmp_path):
    started = mp.spawn(_rank, (2, tmp_path), nprocs=2, join=False)
    try:
        while not started.join():
            pass
    finally:
        for process in started.processes:
            process.kill()
    ranks = first, second = [json.loads((tmp_path / f"{r}.json").read_text()) for r in range(2)]
    assert first["state"] == second["state"]
    assert first["switch"] == 13 * 8  # where the means meet
    together = [np.array(pair).T.ravel() for pair in zip(*(r["seen"] for r in ranks), strict=True)]
    drawn = np.concatenate(together)
    for low, size in [(0, 50), (50, 60)]:
        assert in_passes([int(i) for i in drawn if low <= i < low + size], size)
    alone = ReplayBatchSampler(
        [50, 60], until_met(order="random", seed=3), 8, batches=len(first["seen"])
    )
    assert [b.tolist() for b in together] == [b for (b,) in train([alone], 14, losses=scripted)]


ACCELERATE = """
import json, sys
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from replan.integrations.torch import ReplayBatchSampler
from replan.policies import FocusThenReplay

if __name__ == "__main__":
    folder = sys.argv[1]
    accelerator = Accelerator(cpu=True)
    sampler = ReplayBatchSampler([50, 60], FocusThenReplay(1, [0], max_focus=24), 4)
    loader = DataLoader(TensorDataset(torch.arange(110.0)), batch_sampler=sampler)
    refused = ""
    try:
        loader = accelerator.prepare(loader)
    except ValueError as error:
        refused = str(error)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6))
    seen = []
    for (batch,) in loader:
        batch = batch.to(accelerator.device)
        seen.append(batch.int().tolist())
        optimizer.zero_grad()
        accelerator.backward(model(batch[:, None]).square().mean())
        optimizer.step()
        sampler.step({0: 0.5, 1: 1.0})
    weight = accelerator.unwrap_model(model).weight.item()
    content = {"refused": refused, "seen": seen, "weight": weight, "state": sampler.state_dict()}
    with open(f"{folder}/{accelerator.process_index}.json", "w") as file:
        json.dump(content, file)
    accelerator.end_training()
"""


def run_accelerate(tmp_path, processes):
    """Run the script in so many processes of Accelerate; return what each of them wrote."""
    script = tmp_path / "script.py"
    script.write_text(ACCELERATE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += [f"--nproc-per-node={processes}", str(script), str(tmp_path)]
    run = subprocess.Popen(launch, start_new_session=True)
    try:
        assert run.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)  # its processes, too
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(processes)]


def test_accelerate_with_two_processes(tmp_path):
    """It does not divide batches once more: the loader is refused, and left alone it is right."""
    ranks = first, second = run_accelerate(tmp_path, 2)
    for rank in ranks:
        assert "`accelerator.prepare` would divide these once more" in rank["refused"]
    assert first["state"] == second["state"]
    assert first["weight"] == second["weight"]
    together = [np.array(pair).T.ravel() for pair in zip(*(r["seen"] for r in ranks), strict=True)]
    alone = ReplayBatchSampler([50, 60], FocusThenReplay(1, [0], max_focus=24), 8)
    assert [b.tolist() for b in together] == [b for (b,) in train([alone], 14)]


def test_accelerate_with_one_process_may_prepare_the_loader(tmp_path):
    (only,) = run_accelerate(tmp_path, 1)
    assert only["refused"] == ""
    alone = ReplayBatchSampler([50, 60], FocusThenReplay(1, [0], max_focus=24), 4)
    # Accelerate loads a batch ahead.
    assert [[b] for b in only["seen"]] == train([alone], 28, ahead=1)


class Noisy(torch.nn.Module):
    """Draws from every random source, has a batch norm, and a part that stays in eval mode."""

    def __init__(self):
        super().__init__()
        self.norm, self.frozen = torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5)
        self.frozen.eval()

    def forward(self, x):
        torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
        return self.frozen(self.norm(x))


def test_the_probe_leaves_training_as_it_was():
    model = Noisy()
    data = [TensorDataset(torch.full((6, 2), float(t))) for t in range(2)]
    probe = LossProbe(data, lambda model, batch: model(batch[0]).mean(), every=3)
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    told = [probe.step(model) for _ in range(6)]
    assert [bool(losses) for losses in told] == [True, False, False] * 2
    assert told[3] == pytest.approx({0: 0.0, 1: 1.0}, abs=1e-4)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert str(np.random.get_state()) == before[2]  # noqa: NPY002
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert (model.training, model.norm.training, model.frozen.training) == (True, True, False)


def test_the_probe_computes_no_gradient_and_recovers_from_errors():
    model = torch.nn.Linear(1, 1)
    seen = []

    def loss(model, batch):
        out = model(batch[0]).mean()
        seen.append((model.training, out.requires_grad))
        raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        LossProbe([TensorDataset(torch.ones(2, 1))], loss).measure(model)
    assert seen == [(False, False)]
    assert model.training
    assert torch.is_grad_enabled()


def test_the_probe_goes_round_its_samples():
    data = TensorDataset(torch.arange(10.0))
    seen = []
    probe = LossProbe(
        [data],
        lambda model, batch: seen.append(batch[0].tolist()) or batch[0].mean(),
        every=1,
        batch_size=4,
    )
    for _ in range(6):
        probe.step(torch.nn.Identity())
    assert {len(batch) for batch in seen} == {3, 4}  # equal parts
    assert Counter(x for batch in seen for x in batch) == dict.fromkeys(range(10), 2)
    resumed = LossProbe(probe.data, probe.loss, every=1, batch_size=4)
    resumed.load_state_dict(probe.state_dict())
    assert probe.step(torch.nn.Identity()) == resumed.step(torch.nn.Identity())


class Counted(TensorDataset):
    """Counts how often its samples are loaded."""

    loads = 0

    def __getitem__(self, index):
        self.loads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize(("total", "once"), [(6, True), (8 * 4, True), (8 * 4 + 1, False)])
def test_held_out_samples_are_loaded_once_unless_they_are_many(total, once):
    data = Counted(torch.arange(float(total)))
    probe = LossProbe([data], lambda model, batch: batch[0].mean(), every=1, batch_size=4)
    first = [probe.step(torch.nn.Identity()) for _ in range(12)]
    again = LossProbe([data], probe.loss, every=1, batch_size=4)
    assert [again.step(torch.nn.Identity()) for _ in range(12)] == first
    assert (data.loads == 2 * total) == once


def test_the_probe_measures_only_while_its_policy_needs_losses():
    measured = []
    data = [TensorDataset(torch.ones(2))] * 2
    policy = FocusThenReplay(0, [], tasks=2)

    def loss(model, batch):
        measured.append(policy.step)
        return batch[0].mean()

    probe = LossProbe(data, loss, policy, every=2)

    def steps(count):
        for _ in range(count):
            policy.next_tasks(1)
            policy.observe(probe.step(torch.nn.Identity()))

    steps(5)
    assert not measured  # there is nothing to replay
    policy.begin(1)
    steps(4)
    assert measured == [7, 7, 9, 9]
    policy.observe({1: 0.1})
    steps(10)
    assert len(measured) == 4  # it has switched
    always = LossProbe(data, loss, every=2)
    assert [bool(always.step(torch.nn.Identity())) for _ in range(4)] == [True, False] * 2


def test_samples_carry_their_task():
    x, y = torch.arange(8.0), torch.arange(8)
    parts = [TensorDataset(x[:5], y[:5]), TensorDataset(x[5:], y[5:])]
    data = ConcatDataset([WithTask(part, task) for task, part in enumerate(parts)])
    sampler = ReplayBatchSampler([5, 3], Fixed([0.5, 0.5]), 4)
    for one, two, task in DataLoader(data, batch_sampler=sampler, num_workers=1):
        assert torch.equal(one.long(), two)
        assert torch.equal(task, (two >= 5).long())
        sampler.step()
    assert WithTask([{"x": 1}], 3)[0] == {"x": 1, "task": 3}
    assert WithTask([7], 3)[0] == (7, 3)
    assert WithTask([[7, 8]], 3)[0] == (7, 8, 3)
    assert len(WithTask([7], 3)) == 1


def plan():
    """Task 0, then 1, then both, with a learning rate of each task."""
    shares = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    return Protocol(shares, 3.0, lr=[[1.0, 9.0], [9.0, 0.5], [0.4, 0.2]])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", ["sampler", "scheduler"])
def test_learning_rates_of_a_plan(workers, first):
    """The rate is that of the batch trained on, whoever steps first, with workers or without."""
    sampler = ReplayBatchSampler([50, 50], Follow(plan(), 24), 4, batches=6)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.1}])
    scheduler = PlannedLR(optimizer, sampler)
    loader = DataLoader(
        TensorDataset(torch.arange(100)), batch_sampler=sampler, num_workers=workers
    )
    seen = []
    for (batch,) in loader:
        seen.append((int((batch >= 50).sum()), optimizer.param_groups[0]["lr"]))
        optimizer.step()
        for part in (sampler, scheduler) if first == "sampler" else (scheduler, sampler):
            part.step()
    assert [new for new, _ in seen] == [0, 0, 4, 4, 2, 2]
    assert [lr for _, lr in seen] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.03, 0.03])


def test_a_scheduler_may_come_late_and_step_first():
    sampler = ReplayBatchSampler([50, 50], Follow(plan(), 24), 4, batches=6)
    batches = iter(sampler)
    for _ in range(3):
        next(batches)
        sampler.step()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = PlannedLR(optimizer, sampler)
    rates = []
    for _ in batches:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        sampler.step()
    assert rates == pytest.approx([0.05, 0.03, 0.03])


def test_planned_rates_where_gradients_are_accumulated():
    sampler = ReplayBatchSampler([50, 50], Follow(plan(), 24), 4, batches=6)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = PlannedLR(optimizer, sampler)
    rates = []
    for number, _ in enumerate(sampler):
        sampler.step()
        if number % 2:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    assert rates == pytest.approx([0.1, 0.05, 0.03])


def test_planned_rates_of_whole_batches_and_resumption():
    def make():
        sampler = ReplayBatchSampler([50, 50], Follow(plan(), 12), 4, mixed=False, batches=12)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        return sampler, optimizer, PlannedLR(optimizer, sampler)

    def loop(sampler, optimizer, scheduler, stop=None):
        seen = []
        for batch in sampler:
            seen.append((batch[0] >= 50, optimizer.param_groups[0]["lr"]))
            optimizer.step()
            sampler.step()
            scheduler.step()
            if len(seen) == stop:
                break
        return seen

    expected = loop(*make())
    rates = {(new, round(lr, 6)) for new, lr in expected[8:]}
    assert rates == {(False, 0.04), (True, 0.02)}
    part, resumed = make(), make()
    seen = loop(*part, 7)
    for before, after in zip(part, resumed, strict=True):
        after.load_state_dict(before.state_dict())
    assert seen + loop(*resumed) == expected


def test_whole_batches_alternate():
    sampler = ReplayBatchSampler([50, 50], Alternate(2), 4, mixed=False, batches=6)
    assert all(a != b for a, b in pairwise(batch[0] >= 50 for batch in sampler))


SAMPLER = ReplayBatchSampler([5, 5], Fixed([0.5, 0.5]), 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ReplayBatchSampler([5], Fixed([0.5, 0.5]), 2),
            "`sizes` expects one size for each",
        ),
        (lambda: ReplayBatchSampler(5, Fixed([1.0]), 2), "`sizes` expects a list of sizes, got 5"),
        (lambda: ReplayBatchSampler([0], Fixed([1.0]), 2), "`sizes` expects at least one sample"),
        (
            lambda: ReplayBatchSampler([-1], Fixed([1.0]), 2),
            "`sizes` expects an integer of at least",
        ),
        (lambda: ReplayBatchSampler([5], "replay", 2), "`policy` expects a policy of replan"),
        (lambda: ReplayBatchSampler([5], Fixed([1.0]), 0), "`batch_size` expects an integer"),
        (
            lambda: ReplayBatchSampler([5], Fixed([1.0]), 2, num_replicas=2, rank=2),
            "`rank` expects an integer of at least 0 and at most 1, got 2",
        ),
        (lambda: SAMPLER.from_labels([0, 2], SAMPLER.policy, 2), "`labels` expects a task index"),
        (
            lambda: SAMPLER.from_labels([0.5], SAMPLER.policy, 2),
            "`labels` expects a task index from 0 to",
        ),
        (lambda: SAMPLER.load_state_dict({}), "`state` expects the state_dict of a Replay"),
        (lambda: SAMPLER.step(), "`step` expects one call per batch, got one more than the 0"),
        (lambda: SAMPLER.rate(0), "`policy` expects one that plans learning rates"),
        (lambda: PlannedLR(None, SAMPLER), "`sampler` expects a ReplayBatchSampler whose policy"),
        (lambda: LossProbe([[]], len), "`data` expects at least one task and samples"),
        (lambda: LossProbe({}, len), "`data` expects at least one task and samples"),
        (lambda: LossProbe([None], len), "samples of each, got sizes {0: None}"),
        (
            lambda: LossProbe(TensorDataset(torch.ones(3)), len),
            "`data` expects a list of data sets",
        ),
        (
            lambda: LossProbe([[0]], torch.nn.MSELoss()),
            "`loss` expects a function of a model and a",
        ),
        (
            lambda: LossProbe([[0]], lambda *_: torch.ones(2)).measure(torch.nn.Identity()),
            r"`loss` expects a function that returns a scalar, got shape \(2,\)",
        ),
        (
            lambda: LossProbe([[0]], len).load_state_dict({"a": 1}),
            "`state` expects the state_dict of a LossProbe, got one that",
        ),
        (
            lambda: ReplayBatchSampler([5], Fixed([1.0]), 2, rank=0),
            "`rank` expects `num_replicas` beside it, got 0",
        ),
        (lambda: LossProbe([[0]], len, 3), "`policy` expects a policy of replan.policies or None"),
        (lambda: WithTask(3, 0), "`data` expects a map-style data set, got 3"),
        (lambda: WithTask([0], -1), "`task` expects an integer of at least 0, got -1"),
        (lambda: LossProbe([[0]], 3), "`loss` expects a function of a model and a batch, got 3"),
        (lambda: LossProbe({0: 5}, len), r"samples of each, got sizes {0: None}"),
        (lambda: LossProbe({"a": [0]}, len), "`data` expects an integer of at least 0, got 'a'"),
        (
            lambda: ReplayBatchSampler.from_labels([0], None, 2),
            "`policy` expects a policy of replan.policies, got None",
        ),
        (
            lambda: ReplayBatchSampler([5], Fixed([1.0]), 2, mixed="no"),
            "`mixed` expects true or false, got 'no'",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("losses", [[0.1], "x", np.ones(2), {0: "1"}, {0: 1j}, {0: torch.ones(2)}])
def test_losses_that_are_none_are_refused_before_anything_is_counted(losses):
    sampler = ReplayBatchSampler([3, 4], FocusThenReplay(1, [0]), 2)
    next(iter(sampler))
    with pytest.raises(ValueError, match="`losses` expects"):
        sampler.step(losses)
    assert sampler.steps == 0


@pytest.mark.parametrize("number", [None, "1", 1.5, 2**63])
def test_the_number_of_a_batch_is_an_integer(number):
    sampler = ReplayBatchSampler([3, 4], Follow(Protocol([[0.5, 0.5]], 1.0), 5), 2)
    with pytest.raises(ValueError, match="`number` expects an integer"):
        sampler.rate(number)


def test_a_training_loop():
    """Two tasks that pull one weight apart: focus ends where the losses meet."""
    policy = until_met()
    data = [TensorDataset(torch.ones(64, 1), torch.full((64, 1), y)) for y in (-1.0, 1.0)]
    sampler = ReplayBatchSampler([64, 64], policy, 4, batches=60)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, -1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    probe = LossProbe(data, loss, every=1)
    for batch in DataLoader(ConcatDataset(data), batch_sampler=sampler):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
        sampler.step(probe.step(model))
    assert policy.decisions[0].reason == "the losses met"
    assert 0 < policy.switch_step < 4 * 20
    assert abs(model.weight.item()) < 0.15


def test_the_example_runs():
    check_example(rows_of_example("practice_torch"))


@pytest.mark.parametrize("seed", range(5))
def test_the_documentation_runs(seed, capsys):
    """It is seeded, and whatever the seed, the policy replays because the losses say so."""
    made = run_documented("PyTorch", seed)
    printed = capsys.readouterr().out
    assert 'reason="the new task\'s loss halved"' in printed
    if seed == 0:  # the numbers in its comments
        before, decisions, after, samples = printed.splitlines()[:4]
        assert "step=224" in decisions
        assert samples == "[1088 1312]"
        switch = re.search(r"losses=({.*?})", decisions)[1]
        for line, losses in ((before, [0.11, 0.80]), (switch, [0.17, 0.16]), (after, [0.09, 0.07])):
            assert list(literal_eval(line).values()) == pytest.approx(losses, abs=0.006)
    assert made["checkpoint"]["task"] == 2
    assert made["checkpoint"]["sampler"]["steps"] == 25


def test_a_checkpoint_at_a_tasks_end_goes_on_with_the_next_task():
    """As documented for tasks that arrive one after another."""
    made = run_documented("PyTorch")
    first, *_ = made["arrive"]()
    again, *later = made["arrive"](first)
    assert again == first  # nothing of it was trained on again
    assert [c["task"] for c in later] == [1, 2]
    assert [sum(c["sampler"]["drawn"]) for c in later] == [25 * 32] * 2
