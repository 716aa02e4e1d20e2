"""Rules tuned by theory: they run in it as in a training loop."""

import numpy as np
import pytest

import replan
from problems import after_task_one
from replan import Control, Model, Ensemble, Problem, evaluate, strategies, tune
from replan.policies import RULES, FocusThenReplay
from replan.tuning import _follow, _largest_rate, _substeps


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
    assert content["rule_settings"]["until"] in ("met", "halved")


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


@pytest.mark.parametrize("shares", [[0.3, 0.7], np.array([0.3, 0.7]), (0.3, 0.7)])
def test_settings_may_be_lists(shares, tmp_path):
    found = tune(posed(steps=10), every=2, until="met", shares=shares, weights=np.array([1.0, 2.0]))
    made = eval(found.code)
    assert made.arguments["shares"] == [0.3, 0.7]
    assert made.weights.tolist() == [1.0, 2.0]
    found.save(tmp_path / "tuned.json")


def test_a_time_that_ends_the_focus_phase_leaves_no_margin_to_tune():
    found = tune(posed(steps=20), every=2, until=0.4)
    assert set(found.settings) == {"until", "shares"}
    [followed] = found.followed()
    assert followed.policy.switch_step == 8
    assert np.all(followed.protocol.shares[:8, 1] == 1)
    assert "# an epoch here is the whole training; in a loop, max_focus = 0.4 × the" in found.code


@pytest.mark.parametrize(("steps", "epoch"), [(40, 8), (200, 40), (60_000, None)])
def test_a_loop_that_does_as_the_code_says_ends_with_the_rate_of_the_theory(steps, epoch):
    problem = posed(steps=40, control=Control(lr=(0.0, 2.0)))
    kept = {"margin": 0.0, "shares": 0.5, "focus_lr": 1.0, "replay_lr": 1.0, "decay": 2.0}
    found = tune(problem, every=2, until=0.25, **kept)
    assert "decay = 2 / the loop's epochs (without a sampler, its steps / 20000)" in found.code
    assert "max_focus = 0.25 × the loop's steps" in found.code
    [followed] = found.followed()
    epochs = steps / (epoch or 20_000)
    told = {"max_focus": int(0.25 * steps), "decay": 2 / epochs}
    policy = FocusThenReplay(1, [0], until=0.25, shares=0.5, **told)
    policy.epoch_steps = epoch
    policy.next_steps(steps - steps // 40)
    theory = followed.protocol.knobs["lr"][-1] / problem.lr
    assert policy.lr()[0, 0] == pytest.approx(theory, rel=1e-9)
    assert found.policy.epoch_steps is None  # which the loop's sampler says


def test_integrator_steps_are_sized_for_the_rates_of_the_settings():
    problem = posed(steps=20, control=Control(lr=(0.0, 200.0)))
    rule = RULES["focus-then-replay"]
    assert _largest_rate(problem, rule, {}) == 1.0
    assert _largest_rate(problem, rule, {"focus_lr": 3.0, "replay_lr": 0.1}) == 4.0
    assert _largest_rate(problem, rule, {"focus_lr": 190.0}) == 200.0
    assert _largest_rate(posed(), rule, {}) is None
    assert _substeps(problem, 1.0) < _substeps(problem, 200.0) / 10


def test_means_over_members_are_weighted():
    members = [posed(similarity, steps=20) for similarity in (0.1, 0.6)]
    weights = [0.1, 0.9]
    ensemble = Ensemble(members, weights, unseen=Ensemble(members, weights))
    found = tune(ensemble, "fixed-replay")
    mean = f"mean {weights @ found.values:.4g} (as it is {weights @ found.default_values:.4g})"
    assert str(found).count(mean) == 2
    assert found.value == pytest.approx(weights @ found.values)


def test_what_is_not_better_is_said_not_to_be():
    text = str(tune(posed(steps=20), "fixed-replay", share=0.5))
    assert ", no better than the rule as it is (" in text
    assert ": share 0.5); 1 setting tried" in text


def test_models_without_a_loss_for_each_task_are_refused():
    class Distance(Model):
        """One loss of two tasks."""

        kind, tasks, loss_names = "distance", 2, ("distance",)

        def losses(self, states):
            return states[..., :1]

        def roll_out(self, start, pieces):
            return np.tile(start, (len(pieces.lengths) + 1, 1))

    with pytest.raises(ValueError, match="a loss for each task, which rules are told"):
        tune(Problem(Distance(), [1.0], duration=1.0, steps=2))
