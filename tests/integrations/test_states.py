"""Needs Lightning: `make test-torch`. States are read whole, then loaded."""

import io
import json

import pytest
import torch
from torch.utils.data import TensorDataset

from replan import Protocol
from replan.integrations.lightning import ReplayCallback
from replan.integrations.torch import LossProbe, PlannedLR, ReplayBatchSampler
from replan.policies import Fixed, FocusThenReplay, Follow
from tampered import refused, try_all

PLAN = Protocol([[1.0, 0.0], [0.5, 0.5]], 2.0, lr=[1.0, 0.5])
DATA = [TensorDataset(torch.ones(4)), TensorDataset(torch.ones(5))]


def sampler(policy=None, **changes):
    settings = {"sizes": [5, 9], "batch_size": 2, "batches": 4, "seed": 1} | changes
    policy = policy or FocusThenReplay(1, [0], smoothing=settings.pop("smoothing", 0.0))
    return ReplayBatchSampler(policy=policy, **settings)


def probe(**changes):
    return LossProbe(DATA, lambda model, batch: torch.ones(()), **{"every": 2} | changes)


def scheduler(groups=1):
    parts = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
    return PlannedLR(torch.optim.SGD(parts, lr=0.1), planned())


def planned():
    return sampler(Follow(PLAN, 40))


def walk(thing):
    """Bring a sampler, with batches pending, or a probe, or both, somewhere."""
    part = getattr(thing, "sampler", thing)
    for _ in range(6) if isinstance(part, ReplayBatchSampler) else ():
        next(iter(part))
        part.step({0: 0.5, 1: 0.75} if part.steps == 2 else None)
    if isinstance(part, ReplayBatchSampler):
        part._batch(part.steps + 1)  # as workers load ahead
    for known in (thing, getattr(thing, "probe", None)):
        if isinstance(known, LossProbe):
            known.steps = 5
    return thing


MAKERS = {
    "sampler": sampler,
    "planned": planned,
    "whole": lambda: sampler(mixed=False),
    "probe": probe,
    "scheduler": scheduler,
    "callback": lambda: ReplayCallback(sampler(), probe()),
    "without": lambda: ReplayCallback(planned()),
}

# Numbers of which any will do, and those of policies: see tests/policies/test_policy_states.py.
FREE = {"epoch", "indices", "rate", "policy", "steps", "first", "last_epoch", "step_count",
        "base_lrs", "last_lr"}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_whatever_is_wrong_in_a_state_is_refused_and_changes_nothing(name):
    assert try_all(MAKERS[name], walk(MAKERS[name]()), FREE) > 70


@pytest.mark.parametrize("name", MAKERS)
def test_a_state_survives_files(name):
    state = walk(MAKERS[name]()).state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for saved in (json.loads(json.dumps(state)), torch.load(file, weights_only=True)):
        again = MAKERS[name]()
        again.load_state_dict(saved)
        assert again.state_dict() == state


@pytest.mark.parametrize("one", MAKERS)
@pytest.mark.parametrize("other", MAKERS)
def test_a_state_of_another_object_is_refused(one, other):
    if one != other:
        refused(MAKERS[one](), walk(MAKERS[other]()).state_dict())


@pytest.mark.parametrize(
    ("here", "there", "argument"),
    [
        (sampler(), sampler(sizes=[5, 8]), "sizes"),
        (sampler(), sampler(batch_size=3), "global_batch_size"),
        (sampler(), sampler(batches=5), "batches"),
        (sampler(), sampler(mixed=False), "mixed"),
        (sampler(), sampler(seed=2), "seed"),
        (sampler(), sampler(smoothing=0.5), "smoothing"),
        (sampler(), sampler(num_replicas=2, rank=1), "global_batch_size"),
        (probe(), probe(every=3), "every"),
        (probe(), probe(batch_size=3), "batch_size"),
        (scheduler(), scheduler(groups=2), "groups"),
        (ReplayCallback(sampler()), ReplayCallback(sampler(), probe()), "probe"),
        (ReplayCallback(sampler(), probe()), ReplayCallback(sampler(), probe(every=3)), "every"),
        (
            ReplayBatchSampler.from_labels([0, 1, 1], Fixed([0.5, 0.5]), 2),
            ReplayBatchSampler.from_labels([1, 0, 1], Fixed([0.5, 0.5]), 2),
            "labels",
        ),
    ],
)
def test_a_state_of_other_arguments_is_refused_by_name(here, there, argument):
    refused(here, there.state_dict(), f"made with {argument} = .*, got one made with {argument} = ")


def test_a_policy_is_not_loaded_without_its_sampler_nor_a_sampler_without_its_probe():
    callback = MAKERS["callback"]()
    before = callback.state_dict()
    state = walk(MAKERS["callback"]()).state_dict()
    assert state["sampler"]["policy"]["step"] > 0
    for key, message in (
        ("probe", "`state.probe.steps` expects an integer of at least 0, got -1"),
        ("sampler", "`state.sampler.steps` expects an integer of at least 0, got -1"),
    ):
        refused(callback, state | {key: state[key] | {"steps": -1}}, message)
        assert callback.state_dict() == before


def test_seeds_of_probes_may_be_a_ranks_own():
    there, here = walk(probe(seed=0)), probe(seed=1)
    here.load_state_dict(there.state_dict())
    assert here.steps == there.steps


def test_numbers_that_do_not_fit_each_other():
    state = walk(sampler()).state_dict()
    batch = state["pending"][0]
    for changes, message in (
        ({"steps": 5}, r"`state.drawn` expects 14 samples in 5 batches and 2 pending ones, got"),
        ({"drawn": [16, 0]}, "`state.drawn` expects 16 samples in 6 batches"),
        ({"begun": 1}, "`state.begun` expects an integer of at least 3 and at most 6, got 1"),
        (
            {"pending": [batch | {"indices": [0, 14]}] * 2},
            "indices` expects an integer",
        ),
        ({"pending": [batch | {"counts": [1, 2]}] * 2}, "counts` expects 2 samples in all, got"),
        ({"pending": [batch | {"rate": 0.5}] * 2}, r"pending\[0\].rate` expects None, got 0.5"),
    ):
        refused(sampler(), state | changes, message)
