"""States of policies: read whole, then loaded; what is refused changes nothing."""

import copy
import json
import pickle

import numpy as np
import pytest

from replan import Protocol
from replan.policies import Alternate, Fixed, FixedReplay, FocusThenReplay, Follow
from tampered import refused, try_all

PLAN = Protocol([[1.0, 0.0], [0.5, 0.5]], 2.0, lr=[1.0, 0.5])
OTHER_PLAN = Protocol([[1.0, 0.0], [0.5, 0.5]], 2.0, lr=[1.0, 0.25])

# Each policy with its arguments, and for each argument another value.
POLICIES = {
    "fixed": (Fixed, {"shares": [0.3, 0.7], "order": "random", "seed": 3},
              {"shares": [0.5, 0.5], "order": "spread", "seed": 4}),
    "fixed-replay": (FixedReplay, {"tasks": 2, "share": 0.3}, {"tasks": 3, "share": 0.5}),
    "alternate": (Alternate, {"tasks": 2}, {"tasks": 3, "stay": 2, "order": "random", "seed": 1}),
    "follow": (Follow, {"protocol": PLAN, "steps": 40}, {"protocol": OTHER_PLAN, "steps": 41}),
    "focus": (FocusThenReplay, {"new_task": 1, "old_tasks": [0], "shares": "loss", "seed": 2,
                                "until": "met"},
              {"new_task": 0, "old_tasks": [], "shares": 0.5, "weights": [1.0, 2.0],
               "margin": 0.1, "patience": 2, "smoothing": 0.5, "tasks": 3, "until": "halved",
               "order": "random", "seed": 0}),
    "rates": (FocusThenReplay, {"new_task": 1, "old_tasks": [0], "focus_lr": 2.0, "decay": 1.0,
                                "max_focus": 3},
              {"focus_lr": 1.5, "replay_lr": 0.5, "decay": 3.0}),
    "replay": (FocusThenReplay, {"new_task": 0, "old_tasks": [], "tasks": 3, "max_focus": 9},
               {"shares": [0.5, 0.25, 0.25]}),
}  # fmt: skip

# Words for people, and numbers of which any will do. `step` is bounded by nothing but the others.
FREE = {"what", "reason", "late", "losses", "lag", "state", "uinteger", "has_uint32", "step",
        "begun", "met", "switch_step", "new_task", "old_tasks", "decisions"}  # fmt: skip


def make(name):
    policy, arguments, _ = POLICIES[name]
    return policy(**arguments)


def walked(name):
    """A policy that has been somewhere."""
    policy = make(name)
    policy.next_tasks(7)
    policy.observe({0: 0.5, 1: np.float32(0.25)}, late=2)
    policy.begin(1)
    policy.observe({0: np.nan})
    policy.next_tasks(np.int64(12))
    return policy


def test_the_states_are_of_all_kinds():
    focus, replay = walked("focus"), walked("replay")
    assert [d.what for d in focus.decisions] == ["replay", "focus", "ignored"]
    assert [d.what for d in replay.decisions] == ["focus", "ignored", "replay"]
    assert focus.focusing > replay.focusing
    assert focus.losses


@pytest.mark.parametrize("name", POLICIES)
def test_whatever_is_wrong_in_a_state_is_refused_and_changes_nothing(name):
    ways = try_all(lambda: make(name), walked(name), FREE)
    assert ways > 300


@pytest.mark.parametrize("name", POLICIES)
def test_a_state_survives_files_and_goes_on(name):
    policy = walked(name)
    state = policy.state_dict()
    for saved in (json.loads(json.dumps(state)), pickle.loads(pickle.dumps(state))):
        again = make(name)
        again.load_state_dict(saved)
        assert again.state_dict() == state
        assert again.decisions == policy.decisions
        assert again.next_tasks(9).tolist() == copy.deepcopy(policy).next_tasks(9).tolist()
        assert policy.state_dict() == state  # and nothing is shared


@pytest.mark.parametrize(
    ("name", "argument"), [(name, key) for name in POLICIES for key in POLICIES[name][2]]
)
def test_a_state_of_other_arguments_is_refused_by_name(name, argument):
    policy, arguments, others = POLICIES[name]
    changes = {argument: others[argument]}
    if argument == "new_task":  # tasks other than the new one
        changes["old_tasks"] = [1]
    there = policy(**arguments | changes)
    there.next_tasks(5)
    refused(make(name), there.state_dict(), f"made with {argument} = .*, got one made with ")


@pytest.mark.parametrize("one", POLICIES)
@pytest.mark.parametrize("other", POLICIES)
def test_a_state_of_another_class_is_refused(one, other):
    here, there = make(one), walked(other)
    if type(here) is not type(there):
        wanted, got = type(here).__name__, type(there).__name__
        refused(here, there.state_dict(), f"expects the state_dict of a {wanted}, got that of a")
        refused(here, there.state_dict() | {"class": wanted}, "expects a dict with|made with")
        assert got in refused(here, there.state_dict())


def test_values_that_do_not_fit_each_other():
    """Each would be right by itself."""
    policy = make("replay")
    state = walked("replay").state_dict()
    assert (state["step"], state["begun"], state["switch_step"]) == (19, 7, 16)
    for changes, message in (
        (
            {"focusing": True},
            "`state.switch_step` expects an integer of at least -1 and at most -1",
        ),
        ({"begun": 20}, "`state.begun` expects an integer of at least 0 and at most 19, got 20"),
        ({"switch_step": 6}, "`state.switch_step` expects an integer of at least 7 and at most 19"),
        ({"step": 8}, "`state.decisions.2..step` expects an integer of at least 0 and at most 8"),
        ({"old_tasks": [1]}, "`state.old_tasks` expects tasks other than the new one, got 1"),
        ({"old_tasks": [0, 0]}, "`state.old_tasks` expects what `state_dict` may return"),
        ({"losses": {"00": 0.5}}, "`state.losses` expects a task index from 0 to 2, got '00'"),
        ({"focusing": "no"}, "`state.focusing` expects true or false, got 'no'"),
        ({"step": -5}, "`state.step` expects an integer of at least 0, got -5"),
        ({"step": 1.5}, "`state.step` expects an integer of at least 0, got 1.5"),
        ({"lag": [0.0]}, "`state.lag` expects 3 numbers, one per task, got"),
        ({"lag": [0.0, 0.0, 1e300]}, "`state.lag` expects a finite number of at least -3 and at"),
        ({"rng": make("focus").state_dict()["rng"]}, "`state.rng.state.inc` expects an integer"),
        ({"rng": state["rng"] | {"bit_generator": "MT19937"}}, "expects 'PCG64', got 'MT19937'"),
    ):
        refused(policy, state | changes, message)


def test_keys_are_named():
    policy, state = make("focus"), walked("focus").state_dict()
    assert "got unknown ones: stepp" in refused(policy, state | {"stepp": 1})
    del state["lag"]
    assert "got one without lag" in refused(policy, state)
    old = {key: value for key, value in state.items() if key not in ("class", "arguments")}
    assert "does not say its class" in refused(policy, old)


def test_late_is_checked_because_it_enters_the_state():
    policy = make("focus")
    with pytest.raises(ValueError, match=r"`late` expects an integer of at least 0, got 1\.5"):
        policy.observe({0: 0.1, 1: 0.1}, late=1.5)
    assert not policy.losses


def test_what_a_policy_of_ones_own_reads_is_checked_and_loaded_at_once():
    class Half(Fixed):
        """Reads as carelessly as a class can."""

        def _state(self):
            return {"on": getattr(self, "on", True)}

        def _read(self, state):
            return {"on": bool(state["on"])}

    policy = Half([1.0])
    state = policy.state_dict()
    refused(policy, state | {"on": "no", "step": 5}, "`state.on` expects what `state_dict` may")
    policy.load_state_dict(state | {"on": False})
    assert policy.on is False
