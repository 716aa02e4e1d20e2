"""Needs PyTorch, transformers and trl: `make test-transformers`."""

import gc
import json
import math
import os
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import pytest
import torch
from datasets import Dataset, disable_progress_bars
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils.logging import disable_progress_bar
from trl import SFTConfig, SFTTrainer

from replan import Protocol
from replan.errors import ArgumentError
from replan.replay import FixedReplay, FocusThenReplay, FollowProtocol, Policy
from replan.replay.torch import ReplayBatchSampler
from replan.replay.transformers import ReplayTrainer
from scripted import BATCH, RULES, losses_after, policy_by_hand, refused, run_to_the_end, tasks_of

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the frameworks
disable_progress_bars()
disable_progress_bar()
gc.freeze()  # the trainer collects garbage at each start

BASE = 32  # a sample is the number with these two digits
END = 2 * BASE  # a token of its own


def rows(first, count):
    """Samples that can be told apart by their first two tokens, as lists of dicts."""
    tokens = [[n // BASE, BASE + n % BASE, 5, 6] for n in range(first, first + count)]
    return [{"input_ids": row, "labels": row} for row in tokens]


def numbers(batch):
    return (BASE * batch[:, 0] + batch[:, 1] - BASE).tolist()


def model():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=END + 1, n_positions=16, n_embd=8, n_layer=1, n_head=2,
        bos_token_id=END, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def tokenizer():
    words = Tokenizer(WordLevel({str(n): n for n in range(END + 1)}, unk_token="0"))
    special = str(END)
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=special, pad_token=special)


class Recorder:
    """Remembers the samples of each batch, and is told losses by a script if there is one."""

    script = None

    def __init__(self, *args, **kwargs):
        self.seen = []
        super().__init__(*args, **kwargs)

    def training_step(self, model, inputs, *args, **kwargs):
        self.seen.append(numbers(inputs["input_ids"]))
        return super().training_step(model, inputs, *args, **kwargs)

    def evaluate(self, *args, **kwargs):
        return self.script(len(self.seen)) if self.script else super().evaluate(*args, **kwargs)


class Recorded(Recorder, Trainer):
    pass


class RecordedSFT(Recorder, SFTTrainer):
    pass


class Replayed(ReplayTrainer, Recorded):
    pass


class ReplayedSFT(ReplayTrainer, RecordedSFT):
    pass


def make(folder, kind=Replayed, policy=None, sizes=(20, 30), dataset=None, callbacks=(), **more):
    """Return a trainer of two tasks, with a dict of lists, or of data sets for trl."""
    old, new = rows(0, sizes[0]), rows(sizes[0], sizes[1])
    data = {"old": old, "new": new}
    own = {name: more.pop(name) for name in ("eval_dataset", "task_column") if name in more}
    make_args = TrainingArguments
    if issubclass(kind, SFTTrainer):
        make_args, data = SFTConfig, {name: Dataset.from_list(part) for name, part in data.items()}
        own["processing_class"] = tokenizer()
        more = {"bf16": False, "max_length": 12} | more
    args = make_args(
        output_dir=str(folder), use_cpu=True, disable_tqdm=True, report_to="none",
        log_level="error", seed=3,
        **{"save_strategy": "no", "logging_strategy": "no", "learning_rate": 0.01,
           "per_device_train_batch_size": 4} | more,
    )  # fmt: skip
    trainer = kind(
        model=model(), args=args, train_dataset=data if dataset is None else dataset,
        policy=policy or FixedReplay(2, 0.4), callbacks=list(callbacks), **own,
    )  # fmt: skip
    return trainer


def weights(trainer):
    return torch.cat([p.detach().ravel() for p in trainer.model.parameters()])


class Stop(TrainerCallback):
    """Saves after a number of steps, or before the optimizer's next one, and ends the training."""

    def __init__(self, step, before=False):
        self.step, self.before = step, before

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step and not self.before:
            control.should_save = control.should_training_stop = True

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.step and self.before:  # as on SIGTERM
            self.trainer._save_checkpoint(self.trainer.model, None)
            control.should_training_stop = True


def alone(sizes, policy, batch=4, batches=None, seed=3):
    """Yield the batches of a sampler without a trainer, over epochs."""
    labels = np.repeat([0, 1], sizes)
    sampler = ReplayBatchSampler.from_labels(labels, policy, batch, seed=seed)
    while True:
        for indices in sampler:
            yield indices
            sampler.step()


def first(count, batches):
    return [batch for batch, _ in zip(batches, range(count), strict=False)]


def test_three_lines_are_enough(tmp_path):
    trainer = make(tmp_path, num_train_epochs=2, gradient_accumulation_steps=3)
    trainer.train()
    length = len(trainer.sampler)
    assert len(trainer.seen) == 2 * length
    assert trainer.num_examples(trainer.get_train_dataloader()) == 4 * length
    assert trainer.state.global_step == 2 * math.ceil(length / 3)  # the last of them is smaller
    assert trainer.seen == first(2 * length, alone((20, 30), FixedReplay(2, 0.4)))
    assert trainer.sampler.samples.tolist() == np.sum(tasks_of_sizes(trainer.seen, 20), 0).tolist()


def tasks_of_sizes(batches, old):
    return [[sum(i < old for i in batch), sum(i >= old for i in batch)] for batch in batches]


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from([Replayed, ReplayedSFT]),
    sizes=st.tuples(st.integers(1, 12), st.integers(4, 20)),
    accumulation=st.integers(1, 4),
    workers=st.sampled_from([0, 0, 0, 0, 1, 2]),
    epochs=st.integers(1, 3),
    stops=st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=2),
    ignore=st.booleans(),
)
@example(Replayed, (12, 19), 3, 2, 2, [(2, False), (4, True)], False)
@example(ReplayedSFT, (12, 19), 3, 1, 2, [(1, True), (4, False)], True)
@example(Replayed, (12, 19), 3, 0, 2, [(3, False)], False)  # at the end of an epoch
def test_no_sample_is_lost_or_trained_twice(
    kind, sizes, accumulation, workers, epochs, stops, ignore
):
    """Whatever is accumulated, however many workers load ahead, whenever the job is resumed.

    stops: the steps at which checkpoints are saved, after the optimizer's step or before the next.
    """
    shape = {
        "kind": kind, "sizes": sizes, "num_train_epochs": epochs,
        "gradient_accumulation_steps": accumulation,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        whole = make(folder, **shape)
        whole.train()
        length, steps = len(whole.sampler), whole.state.global_step
        assert len(whole.seen) == epochs * length
        assert steps == epochs * math.ceil(length / accumulation)  # a smaller one ends an epoch
        assert whole.seen == first(len(whole.seen), alone(sizes, FixedReplay(2, 0.4)))
        shape |= {"dataloader_num_workers": workers, "ignore_data_skip": ignore}
        seen, resume = [], None
        for step, before in sorted({(step % steps, before) for step, before in stops}):
            if step or before:  # not the first step yet
                stop = Stop(step, before)
                stop.trainer = job = make(folder, **shape)
                job.add_callback(stop)
                job.train(resume_from_checkpoint=resume)
                assert whole.seen[len(seen) :][: len(job.seen)] == job.seen
                seen, resume = whole.seen[: batches_done(folder)], True
        last = make(folder, **shape)
        last.train(resume_from_checkpoint=resume)
        assert seen + last.seen == whole.seen
        assert last.state.global_step == steps
        assert last.sampler.state_dict() == whole.sampler.state_dict()
        if not any(before for _, before in stops):  # it has another random state
            assert torch.equal(weights(last), weights(whole))


def batches_done(folder):
    """Return how many batches were done when the last checkpoint was saved."""
    content = json.loads(Path(get_last_checkpoint(folder), "replay.json").read_text())
    return content["sampler"]["steps"]


PROCESSES = """
import json, sys
sys.path[:0] = {path!r}
from test_transformers import Replayed, ReplayedSFT, Stop, make, weights

if __name__ == "__main__":
    content = {{}}
    for kind in (Replayed, ReplayedSFT):
        folder = {folder!r} + "/" + kind.__name__
        jobs = []
        for callbacks, resume in (([], None), ([Stop(5)], None), ([], True)):
            jobs.append(make(folder, kind, sizes=(20, 34), gradient_accumulation_steps=2,
                             num_train_epochs=2, callbacks=callbacks))
            jobs[-1].train(resume_from_checkpoint=resume)
        content[kind.__name__] = {{
            "seen": [job.seen for job in jobs], "state": jobs[2].sampler.state_dict(),
            "same": bool((weights(jobs[0]) == weights(jobs[2])).all()),
            "length": len(jobs[0].sampler),
        }}
    rank = jobs[0].args.process_index
    open({folder!r} + f"/{{rank}}.json", "w").write(json.dumps(content))
"""


def test_two_processes_share_the_batches_and_resume(tmp_path):
    script = tmp_path / "script.py"
    here = Path(__file__).parent
    script.write_text(
        PROCESSES.format(path=[str(here), str(here.parents[1])], folder=str(tmp_path))
    )
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run_to_the_end(*launch, script)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for kind in ("Replayed", "ReplayedSFT"):
        one, two = (rank[kind] for rank in ranks)
        assert one["state"] == two["state"]
        assert one["same"] and two["same"]
        whole, part, resumed = (
            [np.array(batch).T.ravel().tolist() for batch in zip(*seen, strict=True)]
            for seen in zip(one["seen"], two["seen"], strict=True)
        )
        expected = alone((20, 34), FixedReplay(2, 0.4), batch=8)
        assert whole == first(2 * one["length"], expected)
        done = len(whole) - len(resumed)
        assert part[:done] + resumed == whole
        assert len(part) == done


@pytest.mark.parametrize(("rule", "switch"), RULES)
def test_the_same_losses_give_the_same_decisions(tmp_path, rule, switch):
    class Told(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_evaluate = state.global_step % 2

    policy, twin = (FocusThenReplay(2, **rule) for _ in range(2))
    trainer = make(
        tmp_path, policy=policy, sizes=(50, 100), per_device_train_batch_size=BATCH,
        num_train_epochs=1, callbacks=[Told()], logging_strategy="steps", logging_steps=1,
    )  # fmt: skip
    trainer.script = lambda batches: {
        f"eval_{name}_loss": loss
        for name, loss in zip(("old", "new"), losses_after(batches).values(), strict=True)
    }
    trainer.train()
    assert tasks_of(trainer.seen) == policy_by_hand(len(trainer.sampler), twin)
    assert policy.decisions == twin.decisions
    assert policy.state_dict() == twin.state_dict()
    assert 0 < policy.switch_step < len(trainer.sampler) * BATCH
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert (logs[0]["replay/share_old"], logs[0]["replay/share_new"]) == (0, 1)
    assert (logs[-1]["replay/share_old"], logs[-1]["replay/share_new"]) == (0.5, 0.5)
    [decision] = [entry["replay/decision"] for entry in logs if "replay/decision" in entry]
    assert decision == f"replay: {policy.decisions[-1].reason}"


class Listener(Policy):
    """Remembers what it was told."""

    needs_losses = True

    def __init__(self):
        super().__init__(2)
        self.told = []

    def shares(self, count):
        return np.full((count, 2), 0.5)

    def on_losses(self, losses):
        self.told.append(losses)


def test_an_evaluation_of_the_tasks_by_name_tells_the_policy_at_once(tmp_path):
    policy, held_out = Listener(), {"new": rows(20, 5), "old": rows(0, 5)}
    trainer = make(tmp_path, policy=policy, eval_dataset=held_out, max_steps=1, eval_on_start=True)
    trainer.train()
    new, old, *_ = trainer.state.log_history
    assert policy.told == [{0: old["eval_old_loss"], 1: new["eval_new_loss"]}]
    trainer.evaluate(held_out)
    assert len(policy.told) == 1  # after the training nobody decides


PLAN = Protocol([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], 3.0, lr=[[1.0, 9.0], [9.0, 0.5], [0.4, 0.2]])


def rates(trainer):
    return [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_the_rates_of_a_plan_are_followed(tmp_path, accumulation):
    """Also over the smaller step at an epoch's end, and from a checkpoint."""
    make_policy = lambda: FollowProtocol(PLAN, 80)  # noqa: E731
    shape = {
        "num_train_epochs": 2, "gradient_accumulation_steps": accumulation,
        "logging_strategy": "steps", "logging_steps": 1,
    }  # fmt: skip
    whole = make(tmp_path, policy=make_policy(), **shape)
    whole.train()
    labels, length = np.repeat([0, 1], (20, 30)), len(whole.sampler)
    sampler = ReplayBatchSampler.from_labels(labels, make_policy(), 4, seed=3)
    planned = [sampler.lr(number) for number in range(2 * length)]
    epochs = planned[:length], planned[length:]
    expected = [
        0.01 * np.mean(epoch[i : i + accumulation])
        for epoch in epochs
        for i in range(0, length, accumulation)
    ]
    assert rates(whole) == pytest.approx(expected)
    assert len(set(rates(whole))) > 3
    make(tmp_path, policy=make_policy(), callbacks=[Stop(3)], **shape).train()
    resumed = make(tmp_path, policy=make_policy(), **shape)
    resumed.train(resume_from_checkpoint=True)
    assert rates(resumed) == pytest.approx(expected)
    assert torch.equal(weights(resumed), weights(whole))


def test_the_rates_of_a_table_are_followed(tmp_path):
    """As `replan.advise` recommends them."""
    table = {"step": [0, 4, 10], "lambda_lr": [1.0, 1.0, 0.1]}
    trainer = make(tmp_path, max_steps=10, logging_strategy="steps", logging_steps=1)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.2)
    curve = LambdaLR(optimizer, lambda step: np.interp(step, table["step"], table["lambda_lr"]))
    trainer.optimizer, trainer.lr_scheduler = optimizer, curve
    trainer.train()
    assert rates(trainer) == pytest.approx(0.2 * np.interp(range(10), *table.values()))


@pytest.mark.parametrize("kind", [Replayed, ReplayedSFT])
def test_a_column_of_tasks(tmp_path, kind):
    task = np.random.default_rng(0).permutation(np.repeat([0, 1], [20, 30]))
    data = Dataset.from_list(rows(0, 50)).add_column("task", task)
    trainer = make(tmp_path, kind, dataset=data, task_column="task", num_train_epochs=2)
    trainer.train()
    drawn = [0, 0]
    for batch in trainer.seen:
        kinds = [sum(task[i] == t for i in batch) for t in range(2)] if kind is Replayed else None
        for i in batch:
            drawn[task[i]] += 1
        assert kinds is None or kinds[0] in (1, 2)
    assert drawn == trainer.sampler.samples.tolist()


@pytest.mark.parametrize("column", [None, "task"])
def test_packed_rows_have_samples_of_one_task(tmp_path, column):
    """Each task is packed by itself, so that the policy's shares are those of rows."""
    data = {
        name: Dataset.from_list(part)
        for name, part in (("old", rows(0, 12)), ("new", rows(32, 21)))
    }
    if column:
        both = rows(0, 12) + rows(32, 21)
        data = Dataset.from_list(both).add_column("task", [0] * 12 + [1] * 21).shuffle(seed=1)
    trainer = make(
        tmp_path, ReplayedSFT, dataset=data, task_column=column, packing=True,
        packing_strategy="wrapped", num_train_epochs=3, gradient_accumulation_steps=2,
    )  # fmt: skip
    packed = trainer.train_dataset["input_ids"][:]
    assert [len(row) for row in packed] == [12] * 11
    tasks = [set(row[::4]) for row in packed]
    assert tasks == [{0}] * 4 + [{1}] * 7
    trainer.train()
    shares = np.sum([[sum(i < 32 for i in b), sum(i >= 32 for i in b)] for b in trainer.seen], 0)
    assert shares.tolist() == trainer.sampler.samples.tolist()
    assert shares[0] == pytest.approx(0.4 * shares.sum(), abs=1)


def test_rows_whose_tasks_packing_lost_are_refused(tmp_path):
    class Packs(Trainer):
        def __init__(self, *args, train_dataset, **kwargs):
            super().__init__(*args, train_dataset=train_dataset.select(range(9)), **kwargs)

    class ReplayedPacks(ReplayTrainer, Packs):
        pass

    data = {"old": Dataset.from_list(rows(0, 20)), "new": Dataset.from_list(rows(20, 30))}
    with pytest.raises(ArgumentError, match="neither packs nor drops"):
        make(tmp_path, ReplayedPacks, dataset=data)
    with pytest.raises(ArgumentError, match="packing drops columns: pack each task by itself"):
        make(tmp_path, ReplayedSFT, dataset=data["old"], task_column="task")


def test_an_epoch_cut_short_and_another_accumulation_lose_no_sample(tmp_path):
    """The trainer then counts epochs otherwise than the sampler, and gets what it asks for."""

    class Cut(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = state.global_step == 3

    whole = make(tmp_path, callbacks=[Cut()], num_train_epochs=2)
    whole.train()
    length = len(whole.sampler)
    assert len(whole.seen) == 3 + length
    job = make(tmp_path, callbacks=[Cut(), Stop(9)], num_train_epochs=2)
    job.train()
    resumed = make(tmp_path, num_train_epochs=2, gradient_accumulation_steps=2)
    resumed.train(resume_from_checkpoint=True)
    epochs, steps = divmod(9, -(-length // 2))
    assert len(resumed.seen) == (2 - epochs) * length - 2 * steps
    together = job.seen + resumed.seen
    assert together == first(len(together), alone((20, 30), FixedReplay(2, 0.4)))


def test_to_train_again_is_to_begin_again(tmp_path):
    policy = FocusThenReplay(2, max_focus=10)
    trainer = make(tmp_path, policy=policy, max_steps=5)
    trainer.train()
    once = trainer.seen.copy()
    trainer.train()
    assert trainer.seen == 2 * once


def test_data_sets_in_another_order_are_not_resumed(tmp_path):
    data = {"old": rows(0, 30), "new": rows(30, 60)}
    make(tmp_path, dataset=data, callbacks=[Stop(2)]).train()
    other = make(tmp_path, dataset=dict(reversed(data.items())))
    assert refused("train_dataset", lambda: other.train(resume_from_checkpoint=True))


def test_bad_input_is_refused(tmp_path):
    assert refused("policy", lambda: make(tmp_path, policy="replay"))
    assert refused("train_dataset", lambda: make(tmp_path, policy=FixedReplay(3, 0.4)))
    assert refused("train_dataset", lambda: make(tmp_path, dataset=rows(0, 5)))
    wrong = Dataset.from_list(rows(0, 2)).add_column("task", [1, 2])
    assert refused("task_column", lambda: make(tmp_path, dataset=wrong, task_column="task"))
    assert refused("args", lambda: make(tmp_path, auto_find_batch_size=True))
    assert refused("args", lambda: make(tmp_path, train_sampling_strategy="group_by_length"))
    (tmp_path / "checkpoint-3").mkdir()
    resume = {"resume_from_checkpoint": True}
    assert refused("resume_from_checkpoint", lambda: make(tmp_path).train(**resume))


def test_a_checkpoint_with_other_data_is_refused(tmp_path):
    make(tmp_path, callbacks=[Stop(2)]).train()
    other = make(tmp_path, sizes=(21, 29))
    assert refused("state.arguments.sizes", lambda: other.train(resume_from_checkpoint=True))


def test_the_section_on_the_trainer_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "training-loops.md"
    section = page.read_text(encoding="utf-8").partition("## Hugging Face Trainer")[2]
    code = section.partition("```py\n")[2].partition("```")[0]
    names = {
        "model": model(), "old": rows(0, 40), "new": rows(40, 200),
        "FixedReplay": FixedReplay, "TrainingArguments": TrainingArguments,
    }  # fmt: skip
    exec(compile(code, page.name, "exec"), names)
    old, new = names["trainer"].sampler.samples.tolist()
    assert old == pytest.approx((old + new) / 4, abs=1)
    assert capsys.readouterr().out.endswith(f"[{old:3} {new:3}]\n")
    assert (tmp_path / "run" / "checkpoint-20" / "replay.json").exists()
