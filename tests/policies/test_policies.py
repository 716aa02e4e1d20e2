import inspect
import json
from typing import final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replan.policies
from replan import Protocol
from replan.policies import Alternate, Fixed, FixedReplay, FocusThenReplay, Follow, Policy


def met(*tasks, **settings):
    """The paper's rule."""
    return FocusThenReplay(*tasks, until="met", **settings)


def play(policy, script, every=10):
    """Tell a policy (new, old) losses every so many steps; return the step of its switch."""
    for new, old in script:
        policy.next_tasks(every)
        policy.observe({1: new, 0: old})
    return policy.switch_step


FALLING = [(1.0, 0.1), (0.5, 0.2), (0.3, 0.3), (0.2, 0.4), (0.1, 0.5)]


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({}, 30),  # 0.3 meets 0.3
        ({"margin": 1.6}, 20),  # 0.5 ≤ 2.6 × 0.2
        ({"margin": -0.3}, 40),  # 0.2 ≤ 0.7 × 0.4
        ({"patience": 2}, 40),
        ({"patience": 4}, -1),
        ({"min_focus": 35}, 40),
        ({"max_focus": 25}, 25),
        ({"max_focus": 0}, 0),
        ({"weights": [3.0, 1.0]}, 20),  # 0.5 ≤ 3 × 0.2
        ({"smoothing": 0.5}, 50),  # 0.3625 > 0.3125, then 0.23125 ≤ 0.40625
    ],
)
def test_it_switches_exactly_when_it_should(settings, step):
    policy = met(1, [0], **settings)
    assert play(policy, FALLING) == step
    assert policy.focusing == (step < 0)


@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({}, 20),  # 0.5 is half of 1.0
        ({"margin": -0.5}, 40),  # 0.2 is below a quarter
        ({"margin": 1.0}, 10),  # the first one is low enough
        ({"patience": 2}, 30),
        ({"patience": 5}, -1),
        ({"min_focus": 35}, 40),
        ({"max_focus": 15}, 15),
        ({"smoothing": 0.5}, 40),  # 0.75, 0.525, 0.3625
    ],
)
def test_it_switches_exactly_when_the_loss_has_halved(settings, step):
    policy = FocusThenReplay(1, [0], **settings)
    assert play(policy, FALLING) == step
    if step == 20:
        assert policy.decisions[0].reason == "the new task's loss halved"


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_whether_a_loss_has_halved_depends_on_no_other_task_and_no_scale(scale):
    """By the paper's rule a new task ten times as hard would never be left."""
    harder = FocusThenReplay(1, [0])
    assert play(harder, [(10 * scale * new, scale * old) for new, old in FALLING]) == 20
    alone = FocusThenReplay(1, [0])
    for new, _ in FALLING:
        alone.next_tasks(10)
        alone.observe({1: scale * new})
    assert alone.switch_step == 20
    assert play(met(1, [0]), [(10 * scale * new, scale * old) for new, old in FALLING]) == -1


def test_each_new_task_has_a_first_loss_of_its_own():
    policy = FocusThenReplay(0, [], tasks=3)
    policy.observe({0: 8.0})
    policy.begin(1)
    for loss, focusing in ((1.0, True), (0.6, True), (0.5, False)):
        policy.observe({0: 5.0, 1: loss})
        assert policy.focusing == focusing
    policy.begin(2)
    policy.observe({2: 0.4})
    assert policy.focusing
    policy.observe({2: 0.2})
    assert not policy.focusing


def test_the_focus_phase_is_bounded_by_default():
    """By half of an epoch where the loop says how long one is, else by a number."""
    policy = FocusThenReplay(1, [0])
    policy.next_tasks(9_990)
    assert policy.next_counts(20).tolist() == [5, 15]
    assert policy.decisions[0].reason == "the longest focus phase, 10000 steps"
    policy = FocusThenReplay(1, [0])
    policy.epoch_steps = 30
    assert policy.next_counts(30).tolist() == [8, 22]
    assert policy.switch_step == 15
    later = FocusThenReplay(1, [0], min_focus=20)
    later.epoch_steps = 30
    later.next_tasks(30)
    assert later.switch_step == 20
    endless = FocusThenReplay(1, [0], max_focus=np.inf)
    endless.epoch_steps = 30
    assert endless.next_counts(100_000).tolist() == [0, 100_000]


@pytest.mark.parametrize("longest", [0, 5, 29])
def test_a_smaller_bound_may_be_set_or_resumed_with(longest):
    """The phase ends at once: it has lasted longer already."""
    before = FocusThenReplay(1, [0], max_focus=100)
    assert before.next_counts(30).tolist() == [0, 30]
    resumed = FocusThenReplay(1, [0], max_focus=longest)
    resumed.load_state_dict(before.state_dict())
    before.max_focus = longest
    for policy in (before, resumed):
        assert policy.shares(8).tolist() == [[0.5, 0.5]] * 8
        assert policy.next_counts(40).tolist() == [20, 20]
        assert policy.switch_step == 30
        again = FocusThenReplay(1, [0])
        again.load_state_dict(policy.state_dict())


def test_losses_that_are_not_finite_are_noted_once():
    policy = FocusThenReplay(1, [0], tasks=3)
    for _ in range(50):
        for bad in (np.nan, np.inf, -np.inf):
            policy.observe({1: bad})
            policy.observe({0: bad, 1: 1.0})
            policy.observe({0: 0.1, 1: bad})
    assert [d.reason for d in policy.decisions] == [
        "the loss of task 1 is not finite", "the loss of task 0 is not finite",
    ]  # fmt: skip
    policy.observe({1: 0.5})
    policy.begin(2)
    policy.observe({1: np.nan})  # of the next arrival
    assert policy.decisions[-1].reason == "the loss of task 1 is not finite"


def test_a_task_that_nothing_was_replayed_with_is_told_when_the_next_arrives():
    policy = FocusThenReplay(1, [0], tasks=3)
    policy.next_tasks(40)
    with pytest.warns(UserWarning, match="task 1 was trained on alone, for 40 steps, until task 2"):
        policy.begin(2)
    for asked in ({"max_focus": np.inf}, {"min_focus": 99, "max_focus": 99}):
        policy = FocusThenReplay(1, [0], tasks=3, **asked)
        policy.next_tasks(40)
        policy.begin(2)  # no warning: that is what was asked for


def test_the_new_task_alone_and_then_all_of_them():
    policy = met(1, [0])
    assert policy.next_tasks(5).tolist() == [1] * 5
    policy.observe({0: 1.0, 1: 0.5})
    assert policy.next_tasks(6).tolist() in ([0, 1] * 3, [1, 0] * 3)
    assert policy.next_counts(8).tolist() == [4, 4]
    [decision] = policy.decisions
    assert (decision.step, decision.what, decision.reason) == (5, "replay", "the losses met")
    assert decision.losses == {0: 1.0, 1: 0.5}


def test_the_longest_focus_phase_ends_within_a_batch():
    policy = FocusThenReplay(1, [0], max_focus=5)
    tasks = policy.next_tasks(11).tolist()
    assert tasks[:5] == [1] * 5
    assert sorted(tasks[5:]) == [0, 0, 0, 1, 1, 1]
    assert policy.decisions[0].reason == "the longest focus phase, 5 steps"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_it_never_switches_on_a_loss_that_is_not_finite(bad):
    policy = met(1, [0])
    policy.observe({1: 1.0, 0: 0.5})
    policy.observe({1: 0.1, 0: bad})
    policy.observe({1: bad, 0: 0.5})
    assert policy.focusing
    policy.observe({1: bad, 0: 0.5})
    assert [decision.what for decision in policy.decisions] == ["ignored", "ignored"]
    assert policy.losses == {1: 0.1, 0: 0.5}
    policy.observe({1: 0.1, 0: 0.5})
    assert not policy.focusing


def test_one_task_is_never_replayed():
    policy = FocusThenReplay(0, [], max_focus=3)
    policy.observe({0: 0.0})
    assert policy.next_tasks(7).tolist() == [0] * 7


def test_losses_at_zero_have_met():
    policy = met(1, [0], shares="loss")
    policy.observe({1: 0.0, 0: 0.0})
    assert not policy.focusing
    assert policy.shares()[0].tolist() == [0.5, 0.5]


def test_a_task_whose_loss_never_falls_is_focused_on_until_the_bound():
    script = [(1.0, 0.1)] * 50
    assert play(met(1, [0]), script) == -1
    assert play(met(1, [0], max_focus=300), script) == 300


def test_nothing_is_decided_before_every_loss_is_known():
    policy = met(2, [0, 1])
    policy.observe({2: 0.1, 0: 1.0})
    assert policy.focusing
    policy.observe({1: 0.01})
    assert not policy.focusing  # the largest old loss counts


def test_patience_counts_measurements_of_the_new_task():
    policy = met(1, [0], patience=2)
    policy.observe({0: 0.3, 1: 0.1})
    policy.observe({0: 0.3})
    assert policy.focusing
    policy.observe({1: 0.1})
    assert not policy.focusing


def test_patience_counts_the_observation_in_which_they_first_meet():
    policy = met(1, [0], patience=2)
    policy.observe({0: 0.1, 1: 0.3})
    policy.observe({0: 0.5})  # they meet because the old task is forgotten
    assert policy.focusing
    policy.observe({0: 0.5})
    assert policy.focusing
    policy.observe({1: 0.3})
    assert not policy.focusing


def test_a_state_of_another_kind_is_refused_and_changes_nothing():
    policy = FocusThenReplay(1, [0])
    other = Fixed([0.5, 0.5])
    other.next_tasks(7)
    for state in (other.state_dict(), {}, 3):
        with pytest.raises(ValueError, match="`state` expects the state_dict of a FocusThenReplay"):
            policy.load_state_dict(state)
    assert policy.step == 0


def test_numpy_keys_are_fine_in_a_state():
    policy = FocusThenReplay(1, [0])
    policy.observe({np.int64(0): np.float32(0.5), np.int64(1): 0.25})
    assert json.loads(json.dumps(policy.state_dict()))["losses"] == {"0": 0.5, "1": 0.25}


def test_tasks_arrive_one_after_another():
    policy = met(0, [], tasks=3)
    assert policy.next_tasks(4).tolist() == [0] * 4
    policy.begin(1)
    assert policy.next_tasks(2).tolist() == [1] * 2
    policy.observe({0: 0.2, 1: 0.1})
    assert sorted(policy.next_tasks(4)) == [0, 0, 1, 1]
    policy.begin(2)
    assert policy.old_tasks == [0, 1]
    assert policy.next_task() == 2
    again = met(0, [], tasks=3)
    again.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert again.state_dict() == policy.state_dict()
    policy.observe({2: 0.15})
    assert sorted(policy.next_tasks(6)) == [0, 0, 1, 1, 2, 2]
    assert [d.what for d in policy.decisions] == ["focus", "replay", "focus", "replay"]


@pytest.mark.parametrize("longest", [0, 5, 100])
def test_shares_say_what_is_played(longest):
    policy = FocusThenReplay(1, [0], max_focus=longest)
    shares = policy.shares(8)
    assert np.all(shares[:longest, 1] == 1.0)
    assert np.all(shares[longest:, 1] == 0.5)
    assert policy.next_tasks(8)[:longest].tolist() == [1] * min(longest, 8)


def test_a_new_focus_phase_owes_nothing_to_old_tasks():
    policy = met(1, [0], shares=[0.9, 0.1])
    for count in range(1, 12):
        policy.observe({0: 0.5, 1: 0.5})
        policy.next_tasks(count)
        policy.begin(policy.old_tasks[0])
        assert set(policy.next_tasks(3)) == {policy.new_task}


def test_only_tasks_seen_are_replayed():
    policy = met(0, [], tasks=3, shares=[0.2, 0.2, 0.6])
    policy.begin(1)
    policy.observe({0: 0.2, 1: 0.1})
    assert policy.next_counts(10).tolist() == [5, 5, 0]


def test_shares_by_loss_wait_for_every_loss():
    policy = FocusThenReplay(1, [0], shares="loss", max_focus=2)
    policy.observe({1: 0.4})
    assert policy.next_counts(10).tolist() == [4, 6]


def test_shares_in_the_replay_phase():
    policy = met(1, [0], shares=[0.25, 0.75], max_focus=0)
    assert policy.next_counts(8).tolist() == [2, 6]
    policy = met(1, [0], shares="loss", weights=[1.0, 2.0])
    policy.observe({0: 0.6, 1: 0.1})
    assert policy.shares()[0] == pytest.approx([0.75, 0.25])


def test_other_policies():
    assert Fixed([0.25, 0.75]).next_counts(8).tolist() == [2, 6]
    assert Alternate(3, stay=2).next_tasks(8).tolist() == [0, 0, 1, 1, 2, 2, 0, 0]
    protocol = Protocol.from_segments([(1.0, 1), (3.0, [0.5, 0.5])], 2, lr=[2.0, 1.0])
    policy = Follow(protocol, 8)
    assert policy.lr(3)[:, 0].tolist() == [2.0, 2.0, 1.0]
    tasks = policy.next_tasks(8).tolist()
    assert tasks[:2] == [1, 1]
    assert sorted(tasks[2:]) == [0, 0, 0, 1, 1, 1]
    assert policy.next_counts(4).tolist() == [2, 2]


@pytest.mark.parametrize("order", ["spread", "random"])
def test_one_by_one_is_the_same_as_at_once(order):
    one, whole = (Fixed([0.25, 0.75], order=order) for _ in range(2))
    tasks = [one.next_task() for _ in range(40)]
    assert tasks == whole.next_tasks(40).tolist()
    assert set(tasks) == {0, 1}


def test_random_order_follows_the_shares_and_the_seed():
    one, same, other = (Fixed([0.3, 0.7], order="random", seed=seed) for seed in (1, 1, 2))
    tasks = one.next_tasks(20_000)
    assert np.mean(tasks) == pytest.approx(0.7, abs=0.02)
    assert np.array_equal(tasks, same.next_tasks(20_000))
    assert not np.array_equal(tasks, other.next_tasks(20_000))


@settings(max_examples=60, deadline=None)
@given(
    order=st.sampled_from(["spread", "random"]),
    losses=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8),
    cut=st.integers(0, 7),
    sizes=st.lists(st.integers(0, 9), min_size=8, max_size=8),
)
def test_a_policy_goes_on_from_its_state_to_the_sample(order, losses, cut, sizes):
    def fresh():
        return FocusThenReplay(
            1, [0], order=order, seed=3, patience=2, smoothing=0.5, max_focus=20, shares="loss"
        )

    whole, part = fresh(), fresh()
    tasks, resumed = [], []
    for i, (loss, size) in enumerate(zip(losses, sizes, strict=False)):
        if i == cut:
            state = json.loads(json.dumps(part.state_dict()))
            part = fresh()
            part.load_state_dict(state)
        for policy, out in ((whole, tasks), (part, resumed)):
            out += policy.next_tasks(size).tolist()
            policy.observe(dict(enumerate(loss)))
    assert tasks == resumed
    assert whole.decisions == part.decisions
    assert whole.state_dict() == part.state_dict()


def test_shares_by_a_number_are_those_of_the_new_task():
    policy = FocusThenReplay(0, [], tasks=4, shares=0.4, max_focus=0)
    assert policy.shares()[0].tolist() == [1, 0, 0, 0]
    for task in (1, 2):
        policy.begin(task)
    assert policy.next_counts(100).tolist() == [30, 30, 40, 0]


def test_fixed_replay_is_focus_then_replay_without_focus():
    fixed = FixedReplay(4, share=0.6)
    other = FocusThenReplay(0, [], tasks=4, shares=0.4, max_focus=0)
    assert fixed.seen == [0]
    assert not fixed.needs_losses
    for task in (None, 1, 3, 0):
        if task is not None:
            fixed.begin(task)
            other.begin(task)
        assert fixed.seen == other.seen
        assert fixed.next_tasks(50).tolist() == other.next_tasks(50).tolist()
    assert [d.step for d in fixed.decisions] == [50, 100, 150]
    assert {d.what for d in fixed.decisions} == {"replay"}


def test_replay_divides_its_share_equally():
    policy = FixedReplay(3, 0.25)
    assert policy.shares()[0].tolist() == [1, 0, 0]
    for task in (1, 2):
        policy.begin(task)
    assert policy.shares()[0] == pytest.approx([0.125, 0.125, 0.75])
    assert FixedReplay(1, share=1.0).next_tasks(3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("order", ["spread", "random"])
def test_tasks_that_are_not_there_leave_their_shares(order):
    fixed = Fixed([0.1, 0.3, 0.6], order=order)
    counts = np.bincount(fixed.next_tasks(4000, among=[0, 1]), minlength=3)
    assert counts == pytest.approx([1000, 3000, 0], abs=0 if order == "spread" else 120)
    assert set(Alternate(3).next_tasks(6, among=[1])) == {1}  # its turn or not


def test_a_policy_without_phases_takes_no_note_of_new_tasks():
    policy = Fixed([0.5, 0.5])
    before = policy.state_dict()
    policy.begin(1)
    assert policy.state_dict() == before
    with pytest.raises(ValueError, match="`new_task` expects a task index from 0 to 1, got 2"):
        policy.begin(2)


def test_decisions_say_how_late_they_are():
    told = []
    policy = met(1, [0], log=lambda values, step: told.append(values["late"]))
    policy.next_tasks(10)
    policy.observe({0: 0.5, 1: 0.25}, late=6)
    assert policy.decisions[0].late == 6
    assert told == [6]


def test_it_says_that_it_waits_for_a_loss():
    policy = met(2, [0, 1])
    for _ in range(3):
        policy.observe({2: 0.1, 1: 0.5})
    assert [(d.what, d.reason) for d in policy.decisions] == [
        ("waiting", "no loss of task 0 so far")
    ]
    policy.observe({0: 0.3})
    assert not policy.focusing


def test_lengths_of_focus_phases():
    """A phase ends with a switch, with the next one, or with the end; remarks end none."""
    policy = met(0, [], tasks=4, max_focus=np.inf)
    for task, (before, after) in enumerate([(30, 0), (10, 20), (30, 0), (5, 5)]):
        policy.begin(task)
        policy.next_tasks(before)
        policy.observe({task: np.nan})
        if after:
            policy.observe(dict.fromkeys(range(task + 1), 0.5))
            policy.next_tasks(after)
    assert policy.focus_lengths == [30, 10, 30, 5]


def test_what_happens_is_told_to_a_hook():
    told = []
    policy = met(1, [0], log=lambda content, step: told.append((step, content)))
    policy.next_tasks(3)
    policy.observe({0: 0.5, 1: 0.25})
    assert told == [(3, {"share_0": 0.5, "share_1": 0.5, "loss_0": 0.5, "loss_1": 0.25, "late": 0})]


def test_learning_rates_are_ones_unless_planned():
    protocol = Protocol([[1.0, 0.0], [0.5, 0.5]], 2.0, lr=[[3.0, 9.0], [0.4, 0.2]])
    follow = Follow(protocol, 4)
    assert follow.plans_lr
    assert follow.lr(3).tolist() == [[3.0, 9.0], [3.0, 9.0], [0.4, 0.2]]
    for policy in (Fixed([0.5, 0.5]), Alternate(2), FocusThenReplay(1, [0])):
        assert not policy.plans_lr
        assert policy.lr(3).tolist() == [[1.0, 1.0]] * 3


def test_a_policy_says_whether_it_needs_losses():
    protocol = Protocol([[0.5, 0.5]], 1.0)
    for policy in (Fixed([0.5, 0.5]), Alternate(2), Follow(protocol, 4)):
        assert not policy.needs_losses
        assert (policy.waiting, policy.seen) == ("", None)
    assert met(1, [0]).needs_losses
    assert met(1, [0], max_focus=9).needs_losses
    assert met(1, [0], max_focus=0, shares="loss").needs_losses
    assert not met(1, [0], max_focus=0).needs_losses
    assert not met(1, [0], min_focus=9, max_focus=9).needs_losses
    assert not FocusThenReplay(0, [], tasks=2).needs_losses  # there is nothing to replay
    policy = met(1, [0], tasks=3)
    policy.observe({0: 0.2, 1: 0.1})
    assert not policy.needs_losses  # it has switched
    policy.begin(2)
    assert policy.needs_losses


def test_focus_then_replay_says_which_losses_it_lacks():
    policy = FocusThenReplay(0, [], tasks=2)
    assert (policy.waiting, policy.seen) == ("", [0])  # there is nothing to replay yet
    policy.begin(1)
    lacking = "the policy was told no loss of task 1 so far, and "
    assert policy.waiting == lacking + "stays with the new task"
    assert policy.seen == [0, 1]
    policy.observe({0: 0.1})
    assert policy.waiting == lacking + "stays with the new task"
    assert policy.decisions[-1].reason == "no loss of task 1 so far"
    policy.next_tasks(20_000)
    assert policy.waiting == lacking + "replays because the longest focus phase was over"
    policy.observe({1: 0.1})
    assert policy.waiting == ""
    assert FocusThenReplay(1, [0], max_focus=5).waiting == ""
    endless = met(2, [0, 1], max_focus=np.inf)
    assert "no loss of task 0, 1, 2 so far, and stays" in endless.waiting


def classes():
    found = [cls for cls in vars(replan.policies).values() if inspect.isclass(cls)]
    return [cls for cls in found if issubclass(cls, Policy)]


@pytest.mark.parametrize("policy", classes())
def test_policies_are_abstract_or_final_and_override_nothing_concrete(policy):
    assert inspect.isabstract(policy) != getattr(policy, "__final__", False)
    for base in policy.__mro__[1:-1]:
        concrete = set(vars(base)) - getattr(base, "__abstractmethods__", set())
        overridden = concrete & set(vars(policy))
        assert {name for name in overridden if not name.startswith(("__", "_abc"))} == set()


@final
class Worst(Policy):
    """Always the task with the largest loss: a policy of one's own."""

    needs_losses, waiting, seen = True, "", None

    def __init__(self, tasks, **settings):
        super().__init__(tasks, **settings)
        self.losses = {}

    def _ahead(self, count):
        worst = max(range(self.tasks), key=lambda task: self.losses.get(task, np.inf))
        return np.tile(np.eye(self.tasks)[worst], (count, 1)), None

    def _observe(self, losses, late):
        self.losses |= losses
        return self.losses

    def _advance(self, count):
        pass

    def _begin(self, new_task):
        pass

    def _state(self):
        return {"losses": list(self.losses.items())}

    def _read(self, state):
        return {"losses": dict(state["losses"])}


def test_a_policy_of_ones_own():
    policy = Worst(3)
    chosen = []
    for losses in ({0: 0.5}, {1: 0.7, 2: 0.6}, {1: 0.1}, {2: 0.2}):
        policy.observe(losses)
        chosen.append(policy.next_task())
    assert chosen == [1, 1, 2, 0]
    again = Worst(3)
    again.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert again.state_dict() == policy.state_dict()
    assert again.next_tasks(2).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: FocusThenReplay(1, [1]),
            "`old_tasks` expects tasks other than the new one, got 1",
        ),
        (lambda: FocusThenReplay(1, 0), "`old_tasks` expects a list of tasks, got 0"),
        (lambda: FocusThenReplay(3, [0], tasks=2), "`new_task` expects a task index from 0 to 1"),
        (lambda: FocusThenReplay(1, [0], smoothing=1.0), "`smoothing` expects a number from 0 to"),
        (
            lambda: FocusThenReplay(1, [0], patience=0),
            "`patience` expects an integer of at least 1",
        ),
        (
            lambda: FocusThenReplay(1, [0], min_focus=5, max_focus=4),
            "`max_focus` expects an integer",
        ),
        (
            lambda: FocusThenReplay(1, [0], max_focus=0.5),
            "`max_focus` expects an integer of at least 0",
        ),
        (lambda: FocusThenReplay(1, [0], until="mets"), "`until` expects one of halved, met"),
        (lambda: FocusThenReplay(1, [0], shares="los"), "`shares` expects one of loss"),
        (lambda: FocusThenReplay(1, [0], shares=[1.0]), "`shares` expects an array of numbers of"),
        (
            lambda: FocusThenReplay(1, [0], shares=1.5),
            "`shares` expects a finite number of at least",
        ),
        (lambda: Fixed([0.5, 0.5]).next_tasks(1, among=[2]), "`among` expects a task index from 0"),
        (lambda: FocusThenReplay(1, [0]).observe({5: 1.0}), "`losses` expects a task index from 0"),
        (lambda: FocusThenReplay(1, [0]).observe([0.3, 0.1]), "`losses` expects a dict of losses"),
        (lambda: FocusThenReplay(1, [0]).observe({0: None}), "`losses` expects a number for each"),
        (
            lambda: FocusThenReplay(1, [0]).next_tasks(-1),
            "`count` expects an integer of at least 0",
        ),
        (lambda: FixedReplay(2, share=1.1), "`share` expects a finite number of at least 0 and at"),
        (lambda: Fixed([0.5, 0.6]), "`shares` expects shares that sum to 1"),
        (lambda: Fixed([0.5, 0.5], order="sorted"), "`order` expects one of spread, random"),
        (lambda: Follow(3, 10), "`protocol` expects a Protocol, got 3"),
        (lambda: Alternate(0), "`tasks` expects an integer of at least 1, got 0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_focus_phase_by_time_needs_no_losses():
    policy = FocusThenReplay(0, [], tasks=3, until=0.6, shares=0.5)
    policy.epoch_steps = 100
    for task in range(3):
        policy.begin(task)
        assert not policy.needs_losses
        assert not policy.waiting
        policy.observe(dict.fromkeys(range(task + 1), 0.0))  # would have met, and halved
        chosen = policy.next_tasks(100)
        assert np.all(chosen[: 60 if task else 100] == task)
        if task:
            assert np.count_nonzero(chosen[60:] == task) == 20
    reasons = [d.reason for d in policy.decisions if d.what == "replay"]
    assert reasons == ["the focus phase, 60 steps"] * 2
    bounded = FocusThenReplay(1, [0], until=1.0, max_focus=2)
    assert bounded.next_tasks(4).tolist()[:2] == [1, 1]
    assert 0 in bounded.next_tasks(4)


@pytest.mark.parametrize("until", [-0.1, 1.5, float("nan"), "later", None])
def test_what_ends_a_focus_phase_is_checked(until):
    with pytest.raises(ValueError, match="`until`"):
        FocusThenReplay(1, [0], until=until)
