"""Needs Avalanche: `make test-avalanche`."""

import warnings
from collections import Counter

import pytest
import torch
from torch.utils.data import TensorDataset

import torchvision_operators  # noqa: F401, before Avalanche

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Avalanche's own
    from avalanche.benchmarks import nc_benchmark
    from avalanche.benchmarks.scenarios.supervised import class_incremental_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import MTSimpleMLP, SimpleMLP
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
    from avalanche.training.storage_policy import ClassBalancedBuffer, ReservoirSamplingBuffer
    from avalanche.training.supervised import Naive

    from replan.replay.avalanche import PolicyReplayPlugin

from replan.replay import FixedReplay, FocusThenReplay
from scripted import BATCH, RULES, check_example, losses_after, policy_by_hand, refused

pytestmark = pytest.mark.filterwarnings("ignore")  # Avalanche's own


def dataset(count, classes=6):
    """Samples that can be told apart: the first of their four inputs is their number."""
    x = torch.rand(count, 4, generator=torch.Generator().manual_seed(1))
    x[:, 0] = torch.arange(count)
    data = TensorDataset(x, torch.arange(count) % classes)
    data.targets = data.tensors[1].tolist()
    return as_classification_dataset(data)


def stream(count=120, experiences=3):
    """An experience of two classes after the other, with a head and labels from 0 in each."""
    classes = 2 * experiences
    return nc_benchmark(
        dataset(count, classes), dataset(count, classes), n_experiences=experiences,
        task_labels=True, fixed_class_order=list(range(classes)),
        class_ids_from_zero_in_each_exp=True,
    ).train_stream  # fmt: skip


class Recorder(SupervisedPlugin):
    """Remembers the task labels and samples of all batches, by experience."""

    def __init__(self):
        super().__init__()
        self.tasks, self.samples = [], []

    def before_training_exp(self, strategy, **kwargs):
        self.tasks.append([])
        self.samples.append([])

    def after_training_iteration(self, strategy, **kwargs):
        self.samples[-1].append(strategy.mb_x[:, 0].int().tolist())
        if len(strategy.mbatch) > 2:
            self.tasks[-1].append(strategy.mb_task_id.tolist())


def strategy(*plugins, model=None, **settings):
    model = model or MTSimpleMLP(input_size=4, hidden_size=8)
    return Naive(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        plugins=list(plugins), evaluator=EvaluationPlugin(),
        **{"train_mb_size": 4, "train_epochs": 2} | settings,
    )  # fmt: skip


@pytest.mark.parametrize(("rule", "switch"), RULES)
def test_the_same_losses_give_the_same_decisions(rule, switch):
    policy, twin = (FocusThenReplay(2, **rule) for _ in range(2))
    told, recorder = [], Recorder()

    def losses(strategy):
        told.append(strategy.clock.train_exp_iterations + 1)
        return losses_after(told[-1])

    plugin = PolicyReplayPlugin(policy, 20, 3, BATCH - 3, losses=losses, every=2)
    run = strategy(plugin, recorder, train_epochs=1)
    first, second = stream(120, experiences=2)
    run.train(first)
    assert told == []  # there is nothing to replay
    twin.load_state_dict(policy.state_dict())
    run.train(second)
    twin.begin(1)
    counts = policy_by_hand(20, twin)
    assert [[batch.count(0), batch.count(1)] for batch in recorder.tasks[1]] == counts
    assert policy.decisions == twin.decisions
    assert policy.state_dict() == twin.state_dict()
    assert policy.switch_step - policy.decisions[-2].step == switch * BATCH
    assert told == list(range(1, switch + 1, 2))


@pytest.mark.parametrize("storage", [None, ReservoirSamplingBuffer, ClassBalancedBuffer])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_memory_is_replayed_with_its_own_labels(storage, workers):
    storage = storage and storage(24)
    plugin = PolicyReplayPlugin(FocusThenReplay(3, max_focus=16), 24, storage_policy=storage)
    recorder = Recorder()
    run = strategy(plugin, recorder)
    for experience in stream():
        kept = {int(x[0]) for x, *_ in plugin.storage_policy.buffer}
        run.train(experience, num_workers=workers)
        new = set(map(int, (x[0] for x, *_ in experience.dataset)))
        assert {i for batch in recorder.samples[-1] for i in batch} == new | kept
        assert len(plugin.storage_policy.buffer) == 24
    for tasks, samples in zip(recorder.tasks, recorder.samples, strict=True):
        for labels, batch in zip(tasks, samples, strict=True):
            assert labels == [i % 6 // 2 for i in batch]
    new = [Counter(t for batch in exp for t in batch)[k] for k, exp in enumerate(recorder.tasks)]
    assert plugin.samples.sum() == sum(len(b) for exp in recorder.samples for b in exp) == 400
    # The new task alone for 16 samples, then an equal share.
    assert [set(b) for b in recorder.tasks[1][:2]] == [{1}] * 2
    assert new == pytest.approx([80, 16 + (160 - 16) / 2, 16 + (160 - 16) / 3], abs=1)


def test_as_many_batches_and_samples_as_replay_plugin():
    ours, theirs = Recorder(), Recorder()
    for recorder, plugin in [
        (ours, PolicyReplayPlugin(FixedReplay(3, 0.4), 12, batch_size=5, batch_size_mem=3)),
        (theirs, ReplayPlugin(12, batch_size=5, batch_size_mem=3)),
    ]:
        run = strategy(plugin, recorder, train_mb_size=5)
        for experience in stream():
            run.train(experience)
    sizes = [[[len(b) for b in exp] for exp in r.samples] for r in (ours, theirs)]
    assert sizes[0] == sizes[1]


def test_evaluation_does_not_disturb():
    """Also with several epochs and an evaluation of all of them after each iteration."""
    benchmark = stream(80, experiences=2).benchmark
    plugin, recorder = PolicyReplayPlugin(FixedReplay(2, 0.5), 12), Recorder()
    run = strategy(plugin, recorder, train_epochs=3, eval_every=1, peval_mode="iteration")
    for experience in benchmark.train_stream:
        run.train(experience, eval_streams=[benchmark.test_stream])
    assert [len(exp) for exp in recorder.samples] == [30, 30]
    assert plugin.samples.tolist() == [120 + 120, 120]


def test_without_task_labels():
    data = {"train": dataset(60), "test": dataset(60)}
    experiences = class_incremental_benchmark(
        data, class_order=list(range(6)), num_experiences=3
    ).streams["train"]
    plugin, recorder = PolicyReplayPlugin(FixedReplay(3, 0.5), 12), Recorder()
    run = strategy(plugin, recorder, model=SimpleMLP(num_classes=6, input_size=4, hidden_size=8))
    for experience in experiences:
        run.train(experience)
    classes = [{i % 6 // 2 for batch in exp for i in batch} for exp in recorder.samples]
    assert classes == [{0}, {0, 1}, {0, 1, 2}]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("policy", {"policy": "focus"}),
        ("mem_size", {"mem_size": 1}),
        ("storage_policy", {"storage_policy": ReservoirSamplingBuffer(20)}),
        ("losses", {"losses": 3}),
        ("every", {"every": 0}),
    ],
)
def test_bad_input_is_refused(name, settings):
    settings = {"policy": FixedReplay(2, 0.5), "mem_size": 30} | settings
    assert refused(name, lambda: PolicyReplayPlugin(**settings))


def test_an_experience_too_many_is_refused():
    run = strategy(PolicyReplayPlugin(FixedReplay(2, 0.5), 12))
    first, second, third = stream()
    run.train(first)
    run.train(second)
    assert refused("policy", lambda: run.train(third))


def test_the_example_runs():
    check_example("practice_avalanche")
