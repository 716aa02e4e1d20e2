"""Needs PyTorch and Accelerate: `make test-torch`."""

import io
import json
import math
import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from documented import assert_alike
from pages import run_page
from replan import Protocol
from replan.replay import FixedReplay, FocusThenReplay, FollowProtocol
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


def even(tasks):
    """Equal shares of all tasks."""
    return FocusThenReplay(tasks, max_focus=0)


def until_met(tasks=2):
    return FocusThenReplay(tasks, until="met", max_focus=math.inf)


def one_task(**settings):
    """Ten batches' worth of one task, in epochs of four."""
    return ReplayBatchSampler([40], even(1), 10, **settings)


def train(samplers, batches, losses=lambda step: None):
    """Train on batches of samplers of all ranks; return their indices."""
    seen = []
    while len(seen) < batches:
        for batch in zip(*samplers, strict=True):  # of an epoch, or of what is left of one
            seen.append(batch)
            for sampler in samplers:
                sampler.step(losses(sampler.steps + 1))
            if len(seen) == batches:
                break
    return seen


def in_passes(indices, size):
    """Return whether every sample comes once in each full pass, and at most once in the last."""
    parts = [indices[i : i + size] for i in range(0, len(indices), size)]
    return all(len(set(part)) == len(part) for part in parts)


def loaded_ahead(samplers, ahead):
    """Yield the batches of all ranks as worker processes load them: some ahead of their turn."""
    loaded = []
    for batch in zip(*samplers, strict=True):
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


@pytest.mark.filterwarnings("ignore:task . has no samples")
@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    batch_size=st.integers(1, 7),
    ranks=st.integers(1, 3),
    ahead=st.integers(0, 4),
    seed=st.integers(0, 5),
    accumulate=st.sampled_from([1, 1, 1, 2, 3]),
    fates=st.lists(st.sampled_from(FATES), max_size=40),
)
def test_no_sample_is_lost_or_drawn_twice(sizes, batch_size, ranks, ahead, seed, accumulate, fates):
    """In the documented loop over epochs, whatever happens to a batch, and at every moment.

    accumulate: `step` is called only after every so many batches.
    """

    def make(state=None):
        samplers = [
            ReplayBatchSampler(
                sizes, even(len(sizes)), batch_size, seed=seed, num_replicas=ranks, rank=r
            )
            for r in range(ranks)
        ]
        for sampler in samplers if state else ():
            sampler.load_state_dict(json.loads(json.dumps(state)))
        return samplers

    expected = train(make(), len(fates) + 5)
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


def test_epochs_differ_and_the_seed_decides():
    epochs = train([ReplayBatchSampler([20, 20], even(2), 8, seed=1)], 10)
    first, second = ([i for (batch,) in part for i in batch] for part in (epochs[:5], epochs[5:]))
    assert sorted(first) == sorted(second) == list(range(40)) != first != second
    assert train([ReplayBatchSampler([20, 20], even(2), 8, seed=1)], 10) == epochs
    assert train([ReplayBatchSampler([20, 20], even(2), 8, seed=2)], 10) != epochs


def test_batches_from_before_there_was_a_group_are_refused(monkeypatch):
    sampler = one_task()
    next(iter(sampler))
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    assert refused("sampler", lambda: next(iter(sampler)))


def test_labels_in_any_order():
    labels = torch.tensor([1, 0, 1, 0, 0, 1, 1])
    sampler = ReplayBatchSampler.from_labels(labels, FixedReplay(2, 0.25), 4, batches=8)
    drawn = [i for batch in sampler for i in batch]
    assert Counter(labels[drawn].tolist()) == {0: 8, 1: 24}
    assert Counter(drawn[1:4]) <= Counter([0, 2, 5, 6])  # a batch is ordered by task
    for task in (0, 1):
        own = [i for i in drawn if labels[i] == task]
        assert in_passes(own, int((labels == task).sum()))


def test_a_task_without_samples_leaves_its_share_to_the_others():
    sampler = ReplayBatchSampler([10, 0, 10], FixedReplay(3, 0.6), 10, batches=20)
    drawn = Counter(i // 10 for batch in sampler for i in batch)
    assert drawn == {0: 86, 1: 114}  # 0.3 and 0.4 of 0.7


@pytest.mark.filterwarnings("ignore:.step. was not called")
def test_the_iterator_gives_what_is_left_and_set_epoch_begins():
    sampler = one_task()
    for _, _batch in zip(range(3), sampler, strict=False):
        sampler.step()
    assert len(list(one_task(batches=1))) == 1
    assert (sampler.epoch, len(list(sampler))) == (0, 1)
    sampler.set_epoch(0)
    assert len(list(sampler)) == 1
    sampler.set_epoch(1)
    assert len(list(sampler)) == 4
    for _ in range(4):
        sampler.step()
    assert sampler.epoch == 2


def test_without_step_batches_come_again_with_a_warning():
    sampler = one_task()
    look = next(iter(sampler))  # takes nothing
    first = list(sampler)
    assert first[0] == look
    with pytest.warns(UserWarning, match="`step` was not called after 4 batches of this epoch"):
        assert list(sampler) == first
    assert len(sampler._pending) == 4  # what is kept does not grow with epochs
    for _ in first:
        sampler.step()
    assert list(sampler) != first


@pytest.mark.parametrize(("reported", "lost"), [(lambda n: n % 2 == 1, 2), (lambda n: n != 1, 1)])
def test_set_epoch_tells_of_batches_that_nobody_reported(reported, lost):
    """In the documented loop: a call per step of the optimizer, and a batch that is skipped."""
    sampler = one_task()
    sampler.set_epoch(0)
    for number, _ in enumerate(sampler):
        if reported(number):
            sampler.step()
    with pytest.warns(UserWarning, match=f"`step` was not called after {lost} batches"):
        sampler.set_epoch(1)
    assert len(list(sampler)) == 4


def resumed_from(sampler):
    resumed = one_task()
    resumed.load_state_dict(sampler.state_dict())
    return resumed


def test_a_state_from_an_epochs_end_has_nothing_left_of_it():
    """As where a task of one epoch is over: it is not trained on again."""
    sampler = one_task()
    for steps in range(4):
        assert len(list(resumed_from(sampler))) == 4 - steps
        next(iter(sampler))
        sampler.step()
    ended = resumed_from(sampler)
    with pytest.warns(UserWarning, match=r"epoch 0 was over .* `set_epoch\(1\)` begins the next"):
        assert list(ended) == []
    again = resumed_from(sampler)
    with pytest.warns(UserWarning, match=r"epoch 0 was over .* `range\(sampler.epoch, epochs\)`"):
        again.set_epoch(0)
    assert again.epoch == 1  # not trained on again
    right = resumed_from(sampler)
    right.set_epoch(1)
    following = list(sampler)  # the same process goes on as it always did
    assert len(following) == 4
    assert list(right) == following
    assert list(resumed_from(sampler)) == following  # of an epoch that has begun
    for _ in following:
        sampler.step()
    sampler.set_epoch(0)  # another round of training in the same process, no warning


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_shorter_than_what_workers_load_ahead(persistent):
    """A look at a batch takes nothing, a state from before the first step loses nothing."""

    def loader(sampler):
        data, workers = TensorDataset(torch.arange(40)), {"persistent_workers": persistent}
        return DataLoader(data, batch_sampler=sampler, num_workers=2, **workers)

    sampler = one_task()
    next(iter(loader(sampler)))
    resumed, seen = resumed_from(sampler), []
    for (batch,) in loader(resumed):
        seen.append(batch.tolist())
        resumed.step()
    assert seen == list(one_task())
    assert (resumed.epoch, resumed.steps) == (1, 4)


@pytest.mark.parametrize(("rule", "switch"), RULES)
def test_the_same_losses_give_the_same_decisions(rule, switch):
    policy, twin = (FocusThenReplay(2, **rule) for _ in range(2))
    sampler = ReplayBatchSampler([50, 50], policy, BATCH, batches=20)
    seen = []
    for batch in sampler:
        seen.append(batch)
        sampler.step(losses_after(len(seen)) if sampler.losses_due(every=2) else None)
    assert tasks_of(seen) == policy_by_hand(20, twin)
    assert policy.switch_step == switch * BATCH
    assert policy.decisions == twin.decisions
    assert policy.state_dict() == twin.state_dict()


def every_other(step):
    return losses_after(step) if step % 2 else None


@pytest.mark.parametrize(("workers", "factor"), [(1, 2), (2, 3)])
def test_worker_processes_make_decisions_late(workers, factor):
    sampler = ReplayBatchSampler([50, 50], until_met(), 4, batches=40)
    loader = DataLoader(
        TensorDataset(torch.arange(100)),
        batch_sampler=sampler,
        num_workers=workers,
        prefetch_factor=factor,
    )
    new = []
    for (batch,) in loader:
        new.append(int((batch >= 50).sum()))
        sampler.step(every_other(sampler.steps + 1))
    late = workers * factor
    assert new == [4] * (13 + late) + [2] * (27 - late)
    assert sampler.samples.tolist() == [160 - sum(new), sum(new)]


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_in_mid_epoch_goes_on_to_the_sample(workers):
    data = TensorDataset(torch.arange(100))

    def loop(sampler, batches):
        loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
        seen = []
        for (batch,) in loader:
            seen.append(batch.tolist())
            sampler.step(every_other(sampler.steps + 1))
            if len(seen) == batches:
                break
        return seen

    whole, part, resumed = (ReplayBatchSampler([50, 50], until_met(), 4) for _ in range(3))
    expected = loop(whole, None)
    seen = loop(part, 11)  # before the losses meet, or while batches from before are loaded
    resumed.load_state_dict(json.loads(json.dumps(part.state_dict())))
    resumed.set_epoch(0)  # as a loop over epochs does
    assert seen + loop(resumed, None) == expected
    assert resumed.state_dict() == whole.state_dict()


def test_ranks_may_change_if_the_batches_over_all_stay():
    two = ReplayBatchSampler([50, 50], even(2), 4, num_replicas=2, rank=0)
    train([two], 3)
    one = ReplayBatchSampler([50, 50], even(2), 8)
    one.load_state_dict(two.state_dict())
    assert next(iter(one))[::2] == next(iter(two))


def _rank(rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=ranks
    )
    sampler = ReplayBatchSampler([50, 60], until_met(), 4, batches=14)
    seen = []
    for batch in sampler:
        seen.append(batch)
        losses = every_other(sampler.steps + 1)
        # Each rank alone would decide otherwise, and rank 1 does not know the old task.
        if losses and rank == 0:
            losses = {0: losses[0], 1: losses[1] - 1.0}
        elif losses:
            losses = {1: losses[1] + 1.0}
        sampler.step(losses)
    content = {"seen": seen, "state": sampler.state_dict(), "switch": sampler.policy.switch_step}
    (folder / f"{rank}.json").write_text(json.dumps(content))
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
    alone = ReplayBatchSampler([50, 60], until_met(), 8, batches=len(first["seen"]))
    assert together(ranks) == [b for (b,) in train([alone], 14, losses=every_other)]


def together(ranks):
    """Return the batches over all ranks: their strides undone."""
    parts = zip(*(rank["seen"] for rank in ranks), strict=True)
    return [np.array(batch).T.ravel().tolist() for batch in parts]


ACCELERATE = """
import json, sys
import torch
from accelerate import Accelerator
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset
from replan.errors import ArgumentError
from replan.replay import FocusThenReplay
from replan.replay.torch import ReplayBatchSampler

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    sampler = ReplayBatchSampler([50, 60], FocusThenReplay(2, max_focus=24), 4)
    loader = DataLoader(TensorDataset(torch.arange(110)), batch_sampler=sampler)
    content = {"refused": "", "seen": []}
    try:
        loader = accelerator.prepare(loader)
    except ArgumentError as error:
        content["refused"] = error.name
    for (batch,) in loader:
        content["seen"].append(batch.to(accelerator.device).tolist())
        sampler.step({0: 0.5, 1: 1.0})
    content["state"] = sampler.state_dict()
    with open(f"{sys.argv[1]}/{accelerator.process_index}.json", "w") as file:
        json.dump(content, file)
    accelerator.end_training()
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_accelerate(tmp_path, processes):
    """Several processes would divide batches once more: the loader is refused, and left alone."""
    script = tmp_path / "script.py"
    script.write_text(ACCELERATE)
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    run_to_the_end(*launch, script, tmp_path)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(processes)]
    assert {rank["refused"] for rank in ranks} == {"loader" if processes > 1 else ""}
    assert all(rank["state"] == ranks[0]["state"] for rank in ranks)
    alone = ReplayBatchSampler([50, 60], FocusThenReplay(2, max_focus=24), 4 * processes)
    assert together(ranks) == [b for (b,) in train([alone], len(ranks[0]["seen"]))]


@pytest.fixture
def accelerator(tmp_path):
    """In this process alone; its state is global."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    yield Accelerator(cpu=True)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.mark.filterwarnings("ignore:epoch 0 was over when")  # where the sampler is not told
@pytest.mark.parametrize(("prepared", "told"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("stop", [3, 8, 13, 20])
def test_accelerate_resumes_to_the_sample(tmp_path, accelerator, stop, prepared, told):
    """In epochs of 8, 10 and 10 batches, although its loaders count them from 0.

    told: by `set_epoch`.
    """
    data = TensorDataset(torch.arange(110))

    def loop(accelerator, folder=None, stop=None):
        sampler = ReplayBatchSampler([50, 60], FocusThenReplay(2, max_focus=24), 12)
        loader = DataLoader(data, batch_sampler=sampler)
        loader = accelerator.prepare(loader) if prepared else loader
        accelerator.register_for_checkpointing(sampler)
        if folder:
            accelerator.load_state(folder)
        seen = []
        for epoch in range(sampler.epoch, 3):
            if told:
                sampler.set_epoch(epoch)
            for (batch,) in loader:
                seen.append(batch.tolist())
                sampler.step({0: 0.5, 1: 1.0})
                if len(seen) == stop:
                    return seen
        return seen

    from accelerate import Accelerator

    whole = loop(accelerator)
    seen = loop(first := Accelerator(cpu=True), stop=stop)
    first.save_state(tmp_path / "state")
    assert seen + loop(Accelerator(cpu=True), folder=tmp_path / "state") == whole


def planned(batches=6):
    """Task 0, then 1, then both, with a learning rate of each task, in so many batches."""
    shares = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    plan = Protocol(shares, 3.0, lr=[[1.0, 9.0], [9.0, 0.5], [0.4, 0.2]])
    sampler = ReplayBatchSampler([50, 50], FollowProtocol(plan, 4 * batches), 4, batches=batches)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    return sampler, optimizer, LambdaLR(optimizer, sampler.lr)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", ["sampler", "scheduler"])
def test_learning_rates_of_a_plan(workers, first):
    """The rate is that of the batch trained on, whoever steps first, with workers or without."""
    sampler, optimizer, scheduler = planned()
    data = TensorDataset(torch.arange(100))
    seen = []
    for (batch,) in DataLoader(data, batch_sampler=sampler, num_workers=workers):
        seen.append((int((batch >= 50).sum()), optimizer.param_groups[0]["lr"]))
        optimizer.step()
        for part in (sampler, scheduler) if first == "sampler" else (scheduler, sampler):
            part.step()
    assert [new for new, _ in seen] == [0, 0, 4, 4, 2, 2]
    assert [lr for _, lr in seen] == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.03, 0.03])


def test_planned_rates_where_gradients_are_accumulated():
    sampler, optimizer, scheduler = planned()
    rates = []
    for number, _ in enumerate(sampler):
        sampler.step()
        if number % 2:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    assert rates == pytest.approx([0.1, 0.05, 0.03])


def test_planned_rates_go_on_from_a_checkpoint():
    def loop(sampler, optimizer, scheduler, stop=None):
        seen = []
        for _ in sampler:
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            sampler.step()
            scheduler.step()
            if len(seen) == stop:
                break
        return seen

    expected = loop(*planned(12))
    part, resumed, file = planned(12), planned(12), io.BytesIO()
    seen = loop(*part, 7)
    torch.save([thing.state_dict() for thing in part], file)
    file.seek(0)
    for thing, state in zip(resumed, torch.load(file, weights_only=True), strict=True):
        thing.load_state_dict(state)
    assert seen + loop(*resumed) == expected


def make(smoothing=0.0, **changes):
    settings = {"sizes": [5, 9], "batch_size": 2, "batches": 4, "seed": 1} | changes
    return ReplayBatchSampler(policy=FocusThenReplay(2, smoothing=smoothing), **settings)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"sizes": [5, 8]}, "sizes"),
        ({"batch_size": 3}, "global_batch_size"),
        ({"num_replicas": 2, "rank": 1}, "global_batch_size"),
        ({"batches": 5}, "batches"),
        ({"seed": 2}, "seed"),
        ({"smoothing": 0.5}, "smoothing"),
    ],
)
def test_a_state_of_other_arguments_is_refused_and_changes_nothing(changes, argument):
    sampler, other = make(), make(**changes)
    train([sampler], 3, losses=every_other)
    before = other.state_dict()
    refusal = f"state.arguments.{argument}"
    assert refused(refusal, lambda: other.load_state_dict(sampler.state_dict()))
    assert other.state_dict() == before


def test_a_state_of_other_labels_is_refused():
    one, other = (ReplayBatchSampler.from_labels(x, even(2), 2) for x in ([0, 1, 1], [1, 0, 1]))
    assert refused("state.arguments.labels", lambda: one.load_state_dict(other.state_dict()))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("sizes", lambda: ReplayBatchSampler([5], even(2), 2)),
        ("sizes", lambda: ReplayBatchSampler(5, even(1), 2)),
        ("sizes", lambda: ReplayBatchSampler([0], even(1), 2)),
        ("sizes", lambda: ReplayBatchSampler([-1], even(1), 2)),
        ("policy", lambda: ReplayBatchSampler([5], "replay", 2)),
        ("policy", lambda: ReplayBatchSampler.from_labels([0], None, 2)),
        ("batch_size", lambda: make(batch_size=0)),
        ("batches", lambda: make(batches=0)),
        ("rank", lambda: make(num_replicas=2, rank=2)),
        ("rank", lambda: make(rank=0)),
        ("labels", lambda: ReplayBatchSampler.from_labels([0, 2], even(2), 2)),
        ("labels", lambda: ReplayBatchSampler.from_labels([0.5], even(2), 2)),
        ("state", lambda: make().load_state_dict({})),
        ("step", lambda: make().step()),
        ("policy", lambda: LambdaLR(torch.optim.SGD([torch.zeros(1)]), make().lr)),
    ],
)
def test_bad_input_is_refused(name, call):
    assert refused(name, call)


@pytest.mark.parametrize("losses", [[0.1], "x", np.ones(2), {0: "1"}, {0: 1j}, {0: torch.ones(2)}])
def test_losses_that_are_none_are_refused_before_anything_is_counted(losses):
    sampler = make()
    next(iter(sampler))
    assert refused("losses", lambda: sampler.step(losses))
    assert sampler.steps == 0


# Traps: what trained on the wrong samples without a word.


def stream(sizes, *arrivals):
    """A sampler of the tasks that are there, and a policy that was told of some arrivals."""
    policy = FixedReplay(len(sizes), share=0.5)
    for task in arrivals:
        policy.begin(task)
    return ReplayBatchSampler(sizes, policy, 10)


def test_an_arrival_that_the_policy_was_not_told_of_is_refused():
    policy = FixedReplay(2, share=0.5)
    policy.begin(0)
    train([ReplayBatchSampler([40, 0], policy, 10)], 4)
    second = ReplayBatchSampler([40, 40], policy, 10)  # all of task 0 is kept
    assert refused("policy", lambda: next(iter(second)))
    policy.begin(1)
    train([second], 8)
    assert second.samples.tolist() == [40, 40]


def test_an_arrival_is_missed_in_another_process_too():
    policy, resumed = FixedReplay(2, share=0.5), FixedReplay(2, share=0.5)
    policy.begin(0)
    train([ReplayBatchSampler([40, 0], policy, 10)], 4)
    resumed.load_state_dict(policy.state_dict())
    assert refused("policy", lambda: next(iter(ReplayBatchSampler([40, 40], resumed, 10))))


@pytest.mark.parametrize(
    ("sizes", "arrivals", "task"),
    [([100, 2000], [0], 1), ([100, 2000, 0], [], 1), ([100, 100, 2000], [0, 1], 2)],
)
def test_training_on_the_memory_alone_is_told(sizes, arrivals, task):
    with pytest.warns(UserWarning, match=rf"call `policy.begin\({task}\)`"):
        next(iter(stream(sizes, *arrivals)))


@pytest.mark.parametrize(
    ("sizes", "arrivals"),
    [
        ([100, 100], [0]),
        ([100, 0], [0]),
        ([100, 0, 0], []),
        ([100], [0]),
        ([9, 100], [0, 1]),
        ([9, 100], []),
    ],
)
def test_streams_that_may_be_meant_are_not_told_anything(sizes, arrivals):
    """All data are there from the start, or those of the first task alone; the last is new."""
    next(iter(stream(sizes, *arrivals)))


@pytest.mark.parametrize(
    ("sizes", "policy", "batches", "passes"),
    [
        ([100_000, 1_000], FixedReplay(2, 0.1), 112, [0.00112, 1.008]),
        ([100, 2_000], FixedReplay(2, 0.2), 250, [5, 1]),
        ([100, 0, 2_000], FixedReplay(3, 0.2), 225, [2.5, 0, 1]),
        ([100, 90], FixedReplay(2, 1.0), 19, [1.9, 0]),
        ([100, 900], FocusThenReplay(2), 120, [3, 1]),
        ([100, 860], FocusThenReplay(2, until=0.4, shares=0.7), 105, [1.89, 1]),
        ([100, 900], until_met(), 90, [0, 1]),
        ([60, 60], FollowProtocol(Protocol([[0.0, 1.0], [0.5, 0.5]], 2.0), 80), 8, [1 / 3, 1]),
    ],
)
def test_an_epoch_is_one_pass_over_the_new_task(sizes, policy, batches, passes):
    sampler = ReplayBatchSampler(sizes, policy, 10)
    assert len(sampler) == batches
    assert sampler.passes == pytest.approx(passes, rel=0.02)
    assert f"{batches} batches of 10" in repr(sampler)
    planned = sampler.passes
    for _ in sampler:
        sampler.step({0: 1.0, 1: 2.0})
    assert sampler.samples / np.maximum(1, sizes) == pytest.approx(planned, abs=0.02)


def test_an_epoch_keeps_its_length_until_it_ends_and_on_resuming():
    sampler = stream([40, 80], 0)
    sampler.policy.begin(0)
    assert len(sampler) == 4
    sampler.policy.begin(1)  # before the first batch
    assert len(sampler) == 16
    for _ in zip(range(5), sampler, strict=False):
        sampler.step()
    sampler.policy.begin(0)
    again = stream([40, 80])
    again.load_state_dict(sampler.state_dict())
    for each in (sampler, again):
        assert len(each) == 16
        assert len(train([each], 11)) == 11
        assert (each.epoch, len(each)) == (1, 4)


def test_data_sets_and_their_sizes_cannot_disagree():
    old, new = (TensorDataset(torch.full((n,), n)) for n in (30, 60))
    sampler = ReplayBatchSampler.from_datasets([old, new], FixedReplay(2, 0.25), 12)
    for (batch,) in DataLoader(sampler.dataset, batch_sampler=sampler):
        assert batch.tolist() == [30] * 3 + [60] * 9
        sampler.step()
    assert refused(
        "datasets", lambda: ReplayBatchSampler.from_datasets([iter([])], FixedReplay(1, 0.0), 1)
    )


@pytest.mark.parametrize("sizes", [[30, 59], [60, 30], [30, 61]])
def test_sizes_that_do_not_fit_the_data_are_refused(sizes):
    old, new = (TensorDataset(torch.zeros(n)) for n in (30, 60))
    wrong = ReplayBatchSampler(sizes, even(2), 10)
    assert refused("sizes", lambda: wrong.check_dataset(ConcatDataset([old, new])))
    right = ReplayBatchSampler([30, 60], even(2), 10)
    right.check_dataset(ConcatDataset([old, new]))
    right.check_dataset(TensorDataset(torch.zeros(90)))
    labelled = ReplayBatchSampler.from_labels([0, 1] * 45, even(2), 10)
    labelled.check_dataset(ConcatDataset([old, new]))


def test_a_loss_below_zero_is_refused_before_anything_is_counted():
    sampler = make()
    next(iter(sampler))
    assert refused("losses", lambda: sampler.step({1: -1.0}))
    assert (sampler.steps, sampler.policy.losses) == (0, {})


# What may be changed on purpose, what begins anew, and where the passes over tasks go on.
CHANGES = [
    ({}, [], [9, 21]),
    ({"batch_size": 3}, ["epoch 1"], [9, 21]),
    ({"batches": 7}, ["epoch 1"], [9, 21]),
    ({"sizes": [8, 30]}, ["epoch 1", "passes over task 0"], [0, 21]),
    ({"seed": 2}, ["epoch 1", "passes over task 0", "passes over task 1"], [0, 0]),
]


@pytest.mark.parametrize(("changes", "anew", "drawn"), CHANGES)
def test_what_changed_on_purpose_begins_anew_and_the_rest_goes_on(changes, anew, drawn):
    def make(**changes):
        settings = {"sizes": [10, 30], "batch_size": 5, "batches": 4, "seed": 1} | changes
        return ReplayBatchSampler(policy=FixedReplay(2, 0.3), **settings)

    sampler, changed, trained = make(), make(**changes), []
    while sampler.steps < 6:
        for (batch,) in loaded_ahead([sampler], 2):
            trained += [i - 10 for i in batch if i >= 10]
            sampler.step()
            if sampler.steps == 6:
                break
    assert changed.load_state_dict(sampler.state_dict(), strict=False) == anew
    assert (changed.epoch, changed.steps) == (1, 6)
    assert changed.samples.tolist() == drawn
    following = list(changed)
    assert len(following) == (changes.get("batches", 4) if changes else 2)
    if drawn[1]:
        first = changes.get("sizes", [10])[0]
        trained += [i - first for batch in following for i in batch if i >= first]
        assert in_passes(trained, 30)


@pytest.mark.parametrize("state", [{}, {"class": "ReplayBatchSampler"}, 3])
def test_a_state_that_is_none_is_refused_all_the_same(state):
    assert refused("state", lambda: make().load_state_dict(state, strict=False))


def test_a_state_of_another_number_of_tasks_is_refused_all_the_same():
    other = ReplayBatchSampler([5, 9, 9], even(3), 2)
    before = other.state_dict()
    load = lambda: other.load_state_dict(make().state_dict(), strict=False)  # noqa: E731
    assert refused("state.arguments.tasks", load)
    assert other.state_dict() == before


def test_the_example_runs():
    check_example("practice_torch")


def test_the_page_on_training_loops_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "training-loops.md"
    [(shown, printed), (_, first), (_, second)] = run_page(page, tmp_path)
    losses = [float(x) for x in re.findall(r"\d\.\d+", first.splitlines()[1])]
    assert max(losses) < 0.25  # both tasks are known
    assert "448 4032" in first
    assert second == "replay\n"
    assert_alike(printed, shown)  # the search
