"""Rules tuned by theory: they run in it as in a training loop."""

import numpy as np
import pytest

import replan
from problems import after_task_one
from replan import Control, Dynamics, Ensemble, Problem, evaluate, strategies, tune
from replan.policies import FocusThenReplay
from replan.tuning import _follow


def posed(similarity=0.3, **settings):
    settings = {"duration": 25.0, "steps": 100} | settings
    return Problem(*after_task_one(similarity), **settings)


def test_a_rule_in_theory_ends_its_focus_phase_where_the_strategy_does():
    problem = posed(steps=250)
    policy = FocusThenReplay(1, [0], until="met", max_focus=float("inf"))
    protocol = _follow(problem, policy, 1, 4).protocol
    exact = strategies.focus_then_replay(problem)
    focus = [np.sum(p.lengths[p.shares[:, 1] == 1]) for p in (protocol, exact)]
    assert focus[1] > 1
    assert 0 <= focus[0] - focus[1] <= problem.duration / problem.steps + 1e-9
    assert protocol.shares[-1].tolist() == [0.5, 0.5]


def test_patience_smoothing_and_rare_looks_delay_the_decision():
    def end(every=1, **settings):
        policy = FocusThenReplay(1, [0], until="met", max_focus=float("inf"), **settings)
        return _follow(posed(), policy, every, 4).policy.switch_step

    first = end()
    assert end(patience=3) == first + 2
    assert end(smoothing=0.8) > first
    assert first <= end(every=10) <= first + 9
    assert end(every=10) % 10 == 0
    assert end(margin=0.5) < first < end(margin=-0.5)


def test_the_losses_that_a_rule_is_told_are_the_theorys():
    problem = posed()
    told = []

    policy = FocusThenReplay(
        1, [0], until="met", margin=-0.5, log=lambda values, step: told.append((step, values))
    )
    policy.epoch_steps = 100
    followed = _follow(problem, policy, 10, 16)
    run = evaluate(problem, followed.protocol)
    for step, values in told:
        losses = run.losses_at([step * problem.duration / problem.steps])[0]
        assert [values["loss_0"], values["loss_1"]] == pytest.approx(losses, rel=1e-6)
    assert len(told) > 2


def test_arrivals_begin_a_focus_phase_each():
    model, start = after_task_one(0.3, 3)
    problem = Problem(model, start, duration=30.0, steps=60, arrivals=[0.0, 10.0, 20.0])
    policy = FocusThenReplay(0, [], tasks=3, until="halved")
    policy.epoch_steps = 60
    followed = _follow(problem, policy, 2, 4)
    assert [d.step for d in policy.decisions if d.what == "focus"] == [20, 40]
    assert np.all(followed.protocol.shares[:20, 0] == 1)
    assert np.all(followed.protocol.shares[:40, 2] == 0)


def test_rates_of_both_phases_are_factors_of_the_problems():
    problem = posed(lr=0.5, control=Control(lr=(0.0, 2.0)))
    policy = FocusThenReplay(
        1, [0], until="met", max_focus=float("inf"), focus_lr=1.5, replay_lr=0.8, decay=2.0
    )
    policy.epoch_steps = 100
    followed = _follow(problem, policy, 5, 8)
    rates, switch = followed.protocol.knobs["lr"], policy.switch_step
    assert rates[:switch] == pytest.approx(0.75)
    since = np.arange(100 - switch) / 100
    assert rates[switch:] == pytest.approx(0.4 * np.exp(-2 * since))


@pytest.fixture(scope="module")
def tuned():
    members = [posed(similarity, steps=40) for similarity in (0.1, 0.6)]
    return tune(Ensemble(members, unseen=[posed(0.3, steps=40)]), every=2)


def test_tuning_is_not_worse_than_the_rule_as_it_is(tuned):
    assert tuned.value < tuned.default_value
    assert tuned.value == pytest.approx(tuned.values.mean())
    runs = [
        evaluate(member, one.protocol).loss
        for member, one in zip(tuned.problem.members, tuned.followed(), strict=True)
    ]
    assert runs == pytest.approx(tuned.values.tolist(), rel=1e-5)
    assert tuned.unseen_values.shape == (1,)
    assert tuned.tried > 64


def test_what_is_printed_makes_the_policy(tuned):
    made = eval(tuned.code)  # what a user does with it
    assert made.arguments == tuned.policy.arguments
    assert tuned.code in str(tuned)
    content = tuned.to_dict()
    assert content["value"] == tuned.value
    assert len(content["members"]) == 2
    assert content["settings"]["until"] in ("met", "halved")


def test_settings_can_be_kept(tmp_path):
    found = tune(posed(steps=20), every=2, until="halved", shares=0.5, patience=2)
    assert (found.settings["until"], found.settings["shares"]) == ("halved", 0.5)
    assert "patience=2" in found.code
    found.save(tmp_path / "tuned.json")
    with pytest.raises(ValueError, match="`patience` expects an integer"):
        tune(posed(steps=20), patience=0)
    with pytest.raises(ValueError, match=r"`settings` expects one of .*did you mean `patience`"):
        tune(posed(steps=20), paitence=2)
    with pytest.raises(ValueError, match="`rule` expects one of focus-then-replay, fixed-replay"):
        tune(posed(steps=20), "focus")
    with pytest.raises(ValueError, match="`every` expects an integer of at least 1"):
        tune(posed(steps=20), every=0)
    with pytest.raises(ValueError, match="`problem` expects a Problem"):
        tune(3)


def test_fixed_replay_finds_the_best_constant_share():
    problem = posed(steps=20)
    found = tune(problem, "fixed-replay")
    shares = np.linspace(0, 1, 51)
    best = min(
        evaluate(problem, strategies.interleaved(problem, shares=[x, 1 - x])).loss for x in shares
    )
    assert found.value <= best * 1.001
    assert isinstance(eval(found.code), replan.policies.FixedReplay)


def test_rates_are_tuned_where_they_may_be_controlled():
    problem = posed(steps=20, control=Control(lr=(0.0, 4.0)))
    found = tune(problem, every=2, until="met")
    assert {"focus_lr", "replay_lr", "decay"} <= set(found.settings)
    assert found.value < tune(posed(steps=20), every=2, until="met").value
    assert "focus_lr" not in tune(posed(steps=20), every=2, shares=0.5, until="met").settings


def test_models_without_a_loss_for_each_task_are_refused():
    class Distance(Dynamics):
        """One loss of two tasks."""

        kind, tasks, loss_names = "distance", 2, ("distance",)

        def losses(self, states):
            return states[..., :1]

        def roll_out(self, start, pieces):
            return np.tile(start, (len(pieces.lengths) + 1, 1))

    with pytest.raises(ValueError, match="a loss for each task, which rules are told"):
        tune(Problem(Distance(), [1.0], duration=1.0, steps=2))
