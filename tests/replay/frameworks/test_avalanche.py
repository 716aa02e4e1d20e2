"""Needs Avalanche: `make test-avalanche`."""

import subprocess
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import torchvision_operators  # before Avalanche

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Avalanche's own
    from avalanche.benchmarks import nc_benchmark
    from avalanche.benchmarks.scenarios.supervised import class_incremental_benchmark
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import MTSimpleMLP, SimpleMLP
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
    from avalanche.training.storage_policy import (
        ClassBalancedBuffer,
        ExperienceBalancedBuffer,
        ReservoirSamplingBuffer,
    )
    from avalanche.training.supervised import Naive

    from replan.integrations.avalanche import PolicyReplayPlugin

from replan.integrations.torch import LossProbe
from replan.policies import Alternate, Fixed, FocusThenReplay
from scripted import (
    BATCH,
    RULES,
    check_example,
    losses_after,
    policy_by_hand,
    rows_of_example,
    run_documented,
)

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
def test_the_same_losses_give_the_same_decisions(monkeypatch, rule, switch):
    monkeypatch.setattr(LossProbe, "measure", lambda probe, model: losses_after(probe.steps))
    policy, twin = (
        FocusThenReplay(0, [], tasks=2, order="random", seed=1, **rule) for _ in range(2)
    )
    plugin, recorder = PolicyReplayPlugin(policy, 20, 3, BATCH - 3, every=2), Recorder()
    run = strategy(plugin, recorder, train_epochs=1)
    first, second = stream(120, experiences=2)
    run.train(first)
    twin.load_state_dict(policy.state_dict())
    run.train(second)
    twin.begin(1)
    counts = policy_by_hand(20, twin)
    assert [[batch.count(0), batch.count(1)] for batch in recorder.tasks[1]] == counts
    assert policy.decisions == twin.decisions
    assert policy.state_dict() == twin.state_dict()
    assert policy.switch_step - policy.decisions[-2].step == switch * BATCH


@pytest.mark.parametrize("storage", [None, ReservoirSamplingBuffer, ClassBalancedBuffer])
@pytest.mark.parametrize("workers", [0, 1])
def test_memory_and_what_is_kept_apart(storage, workers):
    policy = FocusThenReplay(0, [], tasks=3, max_focus=16)
    storage = storage and storage(24)
    plugin = PolicyReplayPlugin(policy, 30, storage_policy=storage, probe_size=6)
    recorder = Recorder()
    run = strategy(plugin, recorder)
    apart = []
    for number, experience in enumerate(stream()):
        run.train(experience, num_workers=workers)
        apart += [int(x[0]) for x, *_ in plugin.held_out[number]]
        assert [len(held) for held in plugin.held_out] == [6 // (number + 1)] * (number + 1)
        assert len(plugin.storage_policy.buffer) == 24
    trained = {i for exp in recorder.samples for batch in exp for i in batch}
    assert not trained & set(apart)
    assert not {int(x[0]) for x, *_ in plugin.storage_policy.buffer} & set(apart)
    # Samples carry the label of their own task, whatever the storage policy.
    for tasks, samples in zip(recorder.tasks, recorder.samples, strict=True):
        for labels, batch in zip(tasks, samples, strict=True):
            assert labels == [i % 6 // 2 for i in batch]
    new = [Counter(t for batch in exp for t in batch)[k] for k, exp in enumerate(recorder.tasks)]
    assert new[0] == 80
    assert plugin.samples.sum() == sum(len(b) for exp in recorder.samples for b in exp) == 400
    # The new task alone for 16 samples, then an equal share.
    assert [set(b) for b in recorder.tasks[1][:2]] == [{1}] * 2
    assert new[1] == pytest.approx(16 + (160 - 16) / 2, abs=1)
    assert new[2] == pytest.approx(16 + (160 - 16) / 3, abs=1)


def test_as_many_batches_and_samples_as_replay_plugin():
    ours, theirs = Recorder(), Recorder()
    for recorder, plugin in [
        (ours, PolicyReplayPlugin(Fixed([1 / 3] * 3), 12, batch_size=5, batch_size_mem=3)),
        (theirs, ReplayPlugin(12, batch_size=5, batch_size_mem=3)),
    ]:
        run = strategy(plugin, recorder, train_mb_size=5)
        for experience in stream():
            run.train(experience)
    sizes = [[[len(b) for b in exp] for exp in r.samples] for r in (ours, theirs)]
    assert sizes[0] == sizes[1]


def test_losses_are_those_of_the_model_on_what_is_kept_apart():
    told = []
    policy = FocusThenReplay(
        0, [], tasks=3, max_focus=np.inf, log=lambda values, step: told.append(values)
    )
    plugin = PolicyReplayPlugin(policy, 30, probe_size=6, every=19)  # the last of 20, too
    run = strategy(plugin, train_epochs=1, train_mb_size=2)
    for experience in list(stream())[:2]:
        run.train(experience)
    run.model.eval()
    for task, held_out in enumerate(plugin.held_out):
        x, y, t = (torch.stack([torch.as_tensor(s[i]) for s in held_out]) for i in range(3))
        assert t.tolist() == [task] * 3
        expected = torch.nn.functional.cross_entropy(run.model(x, t), y).item()
        assert told[-1][f"loss_{task}"] == pytest.approx(expected, rel=1e-6)


def test_held_out_samples_have_no_augmentation_and_evaluation_does_not_disturb():
    """Also with several epochs and an evaluation of all of them after each iteration."""
    experiences = nc_benchmark(
        dataset(80, 4), dataset(80, 4), n_experiences=2, task_labels=True,
        fixed_class_order=[0, 1, 2, 3], class_ids_from_zero_in_each_exp=True,
        train_transform=lambda x: x + 1000, eval_transform=lambda x: x,
    )  # fmt: skip
    plugin, recorder = PolicyReplayPlugin(Fixed([0.5, 0.5]), 12, probe_size=4), Recorder()
    run = strategy(plugin, recorder, train_epochs=3, eval_every=1, peval_mode="iteration")
    for experience in experiences.train_stream:
        run.train(experience, eval_streams=[experiences.test_stream])
    assert [len(exp) for exp in recorder.samples] == [30, 30]
    assert min(i for exp in recorder.samples for batch in exp for i in batch) >= 1000
    assert max(x[0] for held in plugin.held_out for x, *_ in held) < 1000


def test_without_a_probe_all_of_the_memory_is_replayed():
    plugin, recorder = PolicyReplayPlugin(Fixed([0.5, 0.5]), 12, probe_size=0), Recorder()
    run = strategy(plugin, recorder)
    for experience in stream(80, experiences=2):
        run.train(experience)
    assert len(plugin.storage_policy.buffer) == 12
    seen = [{i for batch in exp for i in batch} for exp in recorder.samples]
    assert len(seen[0]) == 40
    assert len(seen[1]) == 40 + 12


def test_without_task_labels():
    data = {"train": dataset(60), "test": dataset(60)}
    experiences = class_incremental_benchmark(
        data, class_order=list(range(6)), num_experiences=3
    ).streams["train"]
    recorder = Recorder()
    plugin = PolicyReplayPlugin(Alternate(3), 12)
    run = strategy(plugin, recorder, model=SimpleMLP(num_classes=6, input_size=4, hidden_size=8))
    for experience in experiences:
        run.train(experience)
    assert np.all(plugin.samples > 0)
    classes = [{i % 6 // 2 for batch in exp for i in batch} for exp in recorder.samples]
    assert classes == [{0}, {0, 1}, {0, 1, 2}]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PolicyReplayPlugin("focus"), "`policy` expects a policy of replan.policies"),
        (
            lambda: PolicyReplayPlugin(Fixed([0.5, 0.5]), 3),
            "`mem_size` expects an integer of at lea",
        ),
        (
            lambda: PolicyReplayPlugin(Fixed([0.5, 0.5]), 30, probe_size=30),
            "`probe_size` expects an integer of at least 2 and at most 29, got 30",
        ),
        (
            lambda: PolicyReplayPlugin(Fixed([1.0]), 30, batch_size=0),
            "`batch_size` expects an integer of at least 1",
        ),
        (
            lambda: PolicyReplayPlugin(
                Fixed([0.5, 0.5]), 30, storage_policy=ExperienceBalancedBuffer(30)
            ),
            "`storage_policy` expects a buffer of size 27, what `mem_size` 30 and `probe_size` 3",
        ),
        (
            lambda: PolicyReplayPlugin(Fixed([1.0]), 30, storage_policy="reservoir"),
            "`storage_policy` expects a buffer of Avalanche or None, got 'reservoir'",
        ),
        (
            lambda: PolicyReplayPlugin(FocusThenReplay(1, [0], tasks=3)),
            r"`policy` expects one for which experience 0 is new .* that has seen tasks \[0, 1\]",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_experience_too_many_or_too_small_is_refused():
    run = strategy(PolicyReplayPlugin(Fixed([0.5, 0.5]), 12))
    with pytest.raises(
        ValueError, match="`policy` expects one with as many tasks as there are exper"
    ):
        for experience in stream():
            run.train(experience)
    run = strategy(PolicyReplayPlugin(Fixed([0.5, 0.5]), 100, probe_size=40))
    with pytest.raises(
        ValueError, match="`probe_size` expects fewer samples than an experience has, got 40"
    ):
        run.train(next(iter(stream())))


def test_a_script_runs_with_the_missing_operators(tmp_path):
    (tmp_path / "beside.py").write_text("import sys, torchvision\nprint(sys.argv[1:])\n")
    (tmp_path / "mine.py").write_text("import beside\n")
    command = [sys.executable, torchvision_operators.__file__, str(tmp_path / "mine.py"), "a", "b"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "['a', 'b']\n"


def test_the_example_runs():
    check_example(rows_of_example("practice_avalanche"))


def test_the_documentation_runs():
    model = MTSimpleMLP(input_size=4, hidden_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    made = run_documented(
        "Avalanche", model=model, optimizer=optimizer, stream=stream(1200, experiences=2)
    )
    assert np.all(made["plugin"].samples > 0)
