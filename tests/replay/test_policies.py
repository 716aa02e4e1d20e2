import copy
import inspect
import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replan.replay
from replan import Protocol
from replan.errors import ArgumentError
from replan.replay import FixedReplay, FocusThenReplay, FollowProtocol, Policy
from replan.replay._policy import Decision

PLAN = Protocol.from_segments([(1.0, 1), (3.0, [0.5, 0.5])], 2, lr=[2.0, 1.0])
OTHER_PLAN = Protocol.from_segments([(1.0, 1), (3.0, [0.5, 0.5])], 2, lr=[2.0, 0.5])

# Losses of the new and of the old task.
FALLING = [(1.0, 0.1), (0.5, 0.2), (0.3, 0.3), (0.2, 0.4), (0.1, 0.5)]


def met(tasks=2, **settings):
    """The paper's rule."""
    return FocusThenReplay(tasks, until="met", **settings)


def play(policy, script, every=10):
    """Tell a policy (new, old) losses after every so many steps; return the step of its switch."""
    for new, old in script:
        policy.next_tasks(every)
        policy.observe({1: new, 0: old})
    return policy.switch_step


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(any), min_size=1),
    cuts=st.lists(st.integers(1, 30), min_size=1),
)
def test_tasks_follow_shares_as_the_compiled_rounding_does(rows, cuts):
    shares = np.repeat(np.array(rows) / np.sum(rows, axis=1, keepdims=True), 7, axis=0)
    protocol = Protocol(shares, duration=1.0)
    policy, tasks = FollowProtocol(protocol, len(shares)), []
    for cut in cuts:  # in any portions
        tasks += policy.next_tasks(min(cut, len(shares) - len(tasks))).tolist()
    expected = np.argmax(protocol.round().shares, axis=1)
    assert tasks == expected[: len(tasks)].tolist()


@pytest.mark.parametrize(
    ("rule", "step"),
    [
        ({"until": "met"}, 30),  # 0.3 meets 0.3
        ({"until": "met", "max_focus": 25}, 25),
        ({"until": "met", "max_focus": 0}, 0),
        ({"until": "met", "smoothing": 0.5}, 50),  # 0.3625 > 0.3125, then 0.23125 ≤ 0.40625
        ({}, 20),  # 0.5 is half of 1.0
        ({"max_focus": 15}, 15),
        ({"smoothing": 0.5}, 40),  # 0.75, 0.525, 0.3625
        ({"until": 0.4}, 40),  # of an epoch of 100 steps
        ({"until": 0.4, "max_focus": 7}, 7),
    ],
)
def test_it_switches_exactly_when_it_should(rule, step):
    policy = FocusThenReplay(2, **rule)
    policy.epoch_steps = 100
    assert play(policy, FALLING) == step
    assert [d.step for d in policy.decisions] == [step]


def test_losses_are_smoothed():
    policy = met(smoothing=0.75)
    for loss in (2.0, 0.0, 1.0):
        policy.observe({1: loss})
    assert policy.losses == {1: 0.75 * 1.5 + 0.25}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_whether_a_loss_has_halved_depends_on_no_other_task_and_no_scale(scale):
    """By the paper's rule a new task ten times as hard would never be left."""
    harder = [(10 * scale * new, scale * old) for new, old in FALLING]
    assert play(FocusThenReplay(2), harder) == 20
    alone = FocusThenReplay(2)
    for new, _ in FALLING:
        alone.next_tasks(10)
        alone.observe({1: scale * new})
    assert alone.switch_step == 20
    assert play(met(), harder) == -1


def test_each_new_task_has_a_first_loss_of_its_own():
    policy = FocusThenReplay(3)
    policy.begin(0)
    policy.observe({0: 8.0})
    policy.begin(1)
    for loss, focusing in ((1.0, True), (0.6, True), (0.5, False)):
        policy.observe({0: 5.0, 1: loss})
        assert (policy.switch_step < 0) == focusing
    policy.begin(2)
    policy.observe({2: 0.4})
    policy.observe({0: 0.1})  # says nothing of the new task
    assert policy.switch_step < 0
    policy.observe({2: 0.2})
    assert policy.switch_step == 0


def test_the_focus_phase_is_bounded_by_default():
    """By half of an epoch where the loop says how long one is, else by a number."""
    policy = FocusThenReplay(2)
    policy.next_tasks(9_990)
    with pytest.warns(UserWarning, match=r"told no loss of tasks \[1\]"):
        assert policy.next_counts(20).tolist() == [5, 15]
    assert policy.decisions[0].reason == "the longest focus phase, 10000 steps"
    policy = met()
    policy.epoch_steps = 30
    with pytest.warns(UserWarning, match=r"told no loss of tasks \[0, 1\]"):
        assert policy.next_counts(30).tolist() == [8, 22]
    assert policy.switch_step == 15
    told = FocusThenReplay(2)
    told.epoch_steps = 30
    told.observe({1: 1.0})
    assert told.next_counts(30).tolist() == [8, 22]  # no warning: it listened in vain
    endless = FocusThenReplay(2, max_focus=math.inf)
    endless.epoch_steps = 30
    assert endless.next_counts(20_000).tolist() == [0, 20_000]


@pytest.mark.parametrize("longest", [0, 5, 29])
def test_a_smaller_bound_may_be_set_or_resumed_with(longest):
    """The phase ends at once: it has lasted longer already."""
    before = FocusThenReplay(2, max_focus=100)
    assert before.next_counts(30).tolist() == [0, 30]
    resumed = FocusThenReplay(2, max_focus=longest)
    resumed.load_state_dict(before.state_dict())
    before.max_focus = longest
    for policy in (before, resumed):
        assert policy.shares(8).tolist() == [[0.5, 0.5]] * 8
        assert policy.next_counts(40).tolist() == [20, 20]
        assert policy.switch_step == 30


def test_a_loss_below_zero_has_not_halved():
    """-1 is at most half of -1; the paper's rule compares no ratios."""
    policy, paper = FocusThenReplay(2), met()
    before = policy.state_dict()
    assert refused("losses", policy.observe, {0: 0.5, 1: -1.0})
    assert policy.state_dict() == before
    paper.observe({0: -1.5, 1: -1.0})
    assert paper.switch_step == -1


def test_a_task_that_was_not_begun_may_not_join():
    policy = FixedReplay(3, share=0.5)
    policy.begin(0)
    policy.next_tasks(4, among=[0, 2])  # all of task 2 was there from the start
    before = policy.state_dict()
    assert refused("policy", policy.next_tasks, 4, among=[0, 1, 2])
    assert policy.state_dict() == before
    policy.begin(1)
    assert policy.next_tasks(4, among=[0, 1, 2]).tolist() == [0, 1, 0, 1]


def test_the_new_task_alone_and_then_all_of_them():
    policy = met()
    assert policy.next_tasks(5).tolist() == [1] * 5
    policy.observe({0: 1.0, 1: 0.5})
    assert policy.next_tasks(6).tolist() == [0, 1] * 3
    assert policy.next_counts(8).tolist() == [4, 4]
    assert policy.decisions == [Decision(5, "replay", "the losses met", {0: 1.0, 1: 0.5})]


def test_the_longest_focus_phase_ends_within_a_batch():
    policy = FocusThenReplay(2, max_focus=5)
    assert policy.shares(7)[:, 1].tolist() == [1.0] * 5 + [0.5] * 2
    tasks = policy.next_tasks(11).tolist()
    assert tasks[:5] == [1] * 5
    assert sorted(tasks[5:]) == [0, 0, 0, 1, 1, 1]
    assert policy.decisions[0].reason == "the longest focus phase, 5 steps"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_losses_that_are_not_finite_decide_nothing_and_are_noted_once(bad):
    policy = met(3, max_focus=math.inf)
    policy.begin(1)
    policy.observe({1: 1.0, 0: 0.5})
    for _ in range(3):
        policy.observe({1: 0.1, 0: bad})
        policy.observe({1: bad, 0: 0.5})
    assert policy.switch_step < 0
    assert policy.losses == {0: 0.5, 1: 0.1}
    assert [d.reason for d in policy.decisions[1:]] == [
        "the loss of task 0 is not finite", "the loss of task 1 is not finite",
    ]  # fmt: skip
    policy.observe({1: 0.1, 0: 0.5})
    assert policy.switch_step == 0
    policy.next_tasks(1)
    policy.begin(2)
    policy.observe({1: bad})  # noted again after an arrival
    assert policy.decisions[-1].what == "ignored"


def test_one_task_is_never_replayed():
    policy = FocusThenReplay(1, max_focus=3)
    policy.observe({0: 0.0})
    assert policy.next_tasks(7).tolist() == [0] * 7
    assert not policy.needs_losses
    assert FixedReplay(1, share=1.0).next_tasks(3).tolist() == [0, 0, 0]


def test_nothing_is_decided_before_every_loss_is_known():
    policy = met(3)
    policy.observe({2: 0.1, 0: 1.0})
    assert policy.switch_step < 0
    policy.observe({1: 0.01})
    assert policy.switch_step == 0  # the largest old loss counts


def test_tasks_arrive_one_after_another():
    policy = met(3)
    policy.begin(0)
    assert policy.next_tasks(4).tolist() == [0] * 4
    policy.begin(1)
    assert policy.next_tasks(2).tolist() == [1] * 2
    policy.observe({0: 0.2, 1: 0.1})
    assert policy.next_counts(4).tolist() == [2, 2, 0]  # not of the task still to come
    policy.begin(2)
    assert policy.old_tasks == [0, 1]
    assert policy.next_tasks(1).tolist() == [2]
    policy.observe({2: 0.15})
    assert policy.next_counts(6).tolist() == [2, 2, 2]
    assert [d.what for d in policy.decisions] == ["focus", "focus", "replay", "focus", "replay"]
    policy.begin(0, old_tasks=[2, 1, 1])  # comes back
    assert (policy.new_task, policy.old_tasks) == (0, [1, 2])


def test_a_new_focus_phase_owes_nothing_to_old_tasks():
    policy = met(shares=0.1)
    for count in range(1, 12):
        policy.observe({0: 0.5, 1: 0.5})
        policy.next_tasks(count)
        policy.begin(policy.old_tasks[0], old_tasks=[policy.new_task])
        assert set(policy.next_tasks(3)) == {policy.new_task}


def test_shares_in_the_replay_phase():
    assert FocusThenReplay(3, max_focus=0).next_counts(9).tolist() == [3, 3, 3]
    policy = FocusThenReplay(4, shares=0.4, max_focus=0)  # of the new task
    for task, counts in enumerate([[10, 0, 0, 0], [6, 4, 0, 0], [3, 3, 4, 0], [2, 2, 2, 4]]):
        policy.begin(task)
        assert policy.next_counts(10).tolist() == counts


def test_fixed_replay_is_focus_then_replay_without_focus():
    fixed = FixedReplay(4, share=0.6)
    other = FocusThenReplay(4, shares=0.4, max_focus=0)
    assert fixed.shares(1)[0] == pytest.approx([0.2, 0.2, 0.2, 0.4])
    for task in (None, 0, 1, 3):
        if task is not None:
            fixed.begin(task)
            other.begin(task)
        assert fixed.next_tasks(50).tolist() == other.next_tasks(50).tolist()


def test_a_protocol_is_stretched_over_the_steps():
    policy = FollowProtocol(PLAN, 8)
    assert policy.lr(3).tolist() == [[2.0, 2.0], [2.0, 2.0], [1.0, 1.0]]
    before = policy.shares(8)
    policy.begin(0)
    policy.observe({0: 1.0})
    assert policy.shares(8).tolist() == before.tolist()  # nothing changes it
    assert policy.next_tasks(8).tolist() == [1, 1, 0, 1, 0, 1, 0, 1]
    assert policy.next_counts(4).tolist() == [2, 2]  # the last piece continues
    assert policy.lr(1).tolist() == [[1.0, 1.0]]
    assert FollowProtocol(Protocol([[0.5, 0.5]], 1.0), 8).lr(1) is None  # it plans none


def test_tasks_without_samples_leave_their_shares():
    policy = FollowProtocol(Protocol([[0.1, 0.3, 0.6]], 1.0), 1)
    counts = np.bincount(policy.next_tasks(4000, among=[0, 1]), minlength=3)
    assert counts.tolist() == [1000, 3000, 0]
    assert set(FixedReplay(3, share=0.0).next_tasks(6, among=[1])) == {1}  # it has no share


def test_a_policy_says_whether_it_needs_losses():
    for policy in (FixedReplay(2, 0.5), FollowProtocol(PLAN, 4), FocusThenReplay(2, until=0.5)):
        assert not policy.needs_losses
    assert met(max_focus=9).needs_losses
    assert not met(max_focus=0).needs_losses
    policy = met(3)
    policy.begin(0)
    assert not policy.needs_losses  # there is nothing to replay
    policy.begin(1)
    assert policy.needs_losses
    policy.observe({0: 0.2, 1: 0.1})
    assert not policy.needs_losses  # it has switched
    policy.begin(2)
    assert policy.needs_losses


def test_hooks_are_all_that_is_overridden():
    hooks = {name for name, x in vars(Policy).items() if name[0] != "_" and not final(x)}
    assert hooks == {"shares", "lr", "needs_losses", "on_losses", "on_steps", "on_begin"}
    policies = [getattr(replan.replay, name) for name in replan.replay.__all__]
    for policy in policies:
        if isinstance(policy, type) and policy not in (Policy, Decision):
            assert final(policy)
            assert {x for x in vars(policy) if x[0] != "_" and x in vars(Policy)} <= hooks
    assert inspect.isabstract(Policy)


def final(thing):
    return getattr(thing, "__final__", False)


class Ramp(Policy):
    """From task 0 to task 1 in some steps, with a rate that falls; counts what happens to it."""

    def __init__(self, steps):
        super().__init__(2, steps=steps)
        self.steps = steps
        self.state["run_interruptibly"] = []

    def shares(self, count):
        new = np.minimum((self.step + np.arange(count)) / self.steps, 1.0)
        return np.column_stack([1 - new, new])

    def lr(self, count):
        return 1.0 - self.shares(count) / 2

    def on_losses(self, losses):
        self.state["run_interruptibly"].append(losses[0])

    def on_steps(self, count):
        self.state["run_interruptibly"].append([self.step, count])

    def on_begin(self, new_task, old_tasks):
        self.state["run_interruptibly"].append([self.new_task, new_task, *old_tasks])


def test_a_policy_of_ones_own():
    policy = Ramp(8)
    assert policy.next_tasks(12).tolist() == [0, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1]
    policy.observe({0: 0.5})
    policy.begin(0)
    assert policy.state["run_interruptibly"] == [[0, 12], 0.5, [1, 0]]
    resumed = Ramp(8)
    resumed.load_state_dict(policy.state_dict())
    assert (resumed.state, resumed.step, resumed.new_task) == (policy.state, 12, 0)
    assert refused("state.arguments.steps", Ramp(9).load_state_dict, policy.state_dict())


# Each policy, and for each argument another value.
STATES = {
    "fixed": (FixedReplay, {"tasks": 2, "share": 0.3}, {"tasks": 3, "share": 0.5}),
    "follow": (FollowProtocol, {"protocol": PLAN, "steps": 40},
               {"protocol": OTHER_PLAN, "steps": 41}),
    "focus": (FocusThenReplay, {"tasks": 2, "shares": 0.3, "until": "met"},
              {"tasks": 3, "shares": 0.5, "until": "halved", "smoothing": 0.5}),
}  # fmt: skip


def walked(name):
    """A policy that has been somewhere."""
    policy, arguments, _ = STATES[name]
    policy = policy(**arguments)
    policy.next_tasks(7)
    policy.observe({np.int64(0): 0.5, 1: np.float32(0.25)})
    policy.begin(1)
    policy.observe({0: np.nan})
    policy.next_tasks(np.int64(12))
    return policy


@pytest.mark.parametrize("name", STATES)
def test_a_state_survives_files_and_goes_on(name):
    policy = walked(name)
    state = policy.state_dict()
    for saved in (json.loads(json.dumps(state)), pickle.loads(pickle.dumps(state))):
        cls, arguments, _ = STATES[name]
        again = cls(**arguments)
        again.load_state_dict(saved)
        assert again.state_dict() == state
        assert again.decisions == policy.decisions
        assert again.next_tasks(9).tolist() == copy.deepcopy(policy).next_tasks(9).tolist()
        assert policy.state_dict() == state == saved  # and nothing is shared


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name):
    cls, arguments, others = STATES[name]
    policy = cls(**arguments)
    before, state = policy.state_dict(), walked(name).state_dict()
    for argument, value in others.items():
        other = cls(**arguments | {argument: value})
        assert refused(f"state.arguments.{argument}", other.load_state_dict, state)
    for wrong in (3, {}, Ramp(8).state_dict(), state | {"extra": 1}, {**state, "class": "Ramp"}):
        assert refused("state", policy.load_state_dict, wrong)
    del state["lag"]
    assert refused("state", policy.load_state_dict, state)
    assert policy.state_dict() == before


def refused(name, call, *arguments, **settings):
    with pytest.raises(ArgumentError) as caught:
        call(*arguments, **settings)
    return caught.value.name == name


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tasks", [0, 1.5, None]),
        ("until", ["mets", -0.1, 1.5, math.nan, None]),
        ("shares", ["los", 1.5, [0.5, 0.5], True]),
        ("smoothing", [-0.1, 1.0, "no"]),
        ("max_focus", [-1, 0.5, math.nan, "long"]),
    ],
)
def test_arguments_of_focus_then_replay_are_checked(name, values):
    for value in values:
        assert refused(name, FocusThenReplay, **{"tasks": 2} | {name: value})


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("share", lambda: FixedReplay(2, share=1.1)),
        ("protocol", lambda: FollowProtocol(3, 10)),
        ("steps", lambda: FollowProtocol(PLAN, 0)),
        ("count", lambda: met().next_tasks(-1)),
        ("among", lambda: met().next_tasks(1, among=[2])),
        ("among", lambda: met().next_tasks(1, among=[])),
        ("new_task", lambda: met().begin(2)),
        ("old_tasks", lambda: met().begin(1, old_tasks=[1])),
        ("old_tasks", lambda: met().begin(1, old_tasks=0)),
        ("losses", lambda: met().observe({5: 1.0})),
        ("losses", lambda: met().observe([0.3, 0.1])),
        ("losses", lambda: met().observe({0: None})),
    ],
)
def test_bad_input_is_refused(name, call):
    assert refused(name, call)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


BLOCK = "import sys; sys.modules[{!r}] = None; "


def test_policies_need_no_framework_and_no_compiled_core(monkeypatch):
    monkeypatch.setenv("REPLAN_CORE", "missing")
    blocked = "".join(BLOCK.format(name) for name in ("torch", "lightning", "avalanche"))
    use = "from replan.replay import FixedReplay as F; assert F(2, 0.5).next_tasks(2).sum() == 1"
    done = run(blocked + use)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["torch", "lightning", "avalanche"])
def test_an_adapter_says_what_to_install(module):
    done = run(BLOCK.format(module) + f"import replan.replay.{module}")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: replan.replay.{module} needs ")
    assert f"pip install 'replan[{module}]'" in last


def test_a_torchvision_that_does_not_fit_is_explained(tmp_path):
    message = "operator torchvision::nms does not exist"
    (tmp_path / "avalanche.py").write_text(f"raise RuntimeError('{message}')")
    done = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import replan.replay.avalanche")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: replan.replay.avalanche needs Avalanche 0.6")
    assert "torchvision that fits your PyTorch" in last
    assert message in last
