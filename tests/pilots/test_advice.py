"""Advice: plans within what the pilots cover, beside rivals, and no gain where there is none."""

from dataclasses import replace

import made
import numpy as np
import pandas as pd
import pytest

import replan
from replan import ArgumentError
from replan.pilots.stages import stages


@pytest.fixture(scope="module")
def fit():
    return replan.fit(made.table(("constant", "cosine", "20"), rows=80))


def test_the_simplest_schedule_that_is_not_worse(fit):
    advice = replan.advise(fit.problem())
    names = [x.name for x in advice.candidates]
    assert names[0].startswith("constant") and names[-2:] == ["pilot 20", "plan"]
    best = min(x.loss for x in advice.candidates)
    gain, half = advice.difference(advice.candidates[-1], advice.chosen)
    assert advice.chosen.loss - best <= half and gain <= half
    assert advice.chosen.loss <= advice.best_pilot.loss
    assert "linear decay over the last" in advice.chosen.name
    assert "below the noise" in str(advice)


def test_its_losses_are_those_of_the_law(fit):
    problem = fit.problem()
    advice = replan.advise(problem)
    plan = advice.candidates[-1]
    protocol = replan.Protocol(np.ones((problem.steps, 1)), problem.duration, lr=plan.schedule)
    assert replan.evaluate(problem, protocol).loss == pytest.approx(plan.loss, abs=1e-9)


def test_plans_keep_within_what_the_pilots_cover(fit):
    low, high = fit.covered["rates"]
    for candidate in replan.advise(fit.problem(30_000)).candidates:
        assert candidate.schedule.min() >= low - 1e-12 and candidate.schedule.max() <= high + 1e-12
        assert np.all(np.diff(candidate.schedule) <= 1e-12)  # no pilot rises


def test_a_fall_is_at_most_twice_as_fast_as_in_a_pilot():
    slow = replan.fit(made.table(("constant", "cosine"), rows=80))
    step = slow.problem().duration / 250
    fall = 2 * slow.covered["changes"][1] * step
    shown = replan.advise(slow.problem())
    assert all(np.diff(x.schedule).min() >= -fall * (1 + 1e-9) for x in shown.candidates)
    free = replan.advise(slow.problem(), lift=["changes"])
    assert np.diff(free.candidates[-1].schedule).min() < -fall
    assert "FALL FASTER THAN IN ANY PILOT" in str(free)


def test_a_far_horizon_is_refused_by_name_and_can_be_lifted(fit):
    with pytest.raises(ArgumentError, match="lift this bound by `horizon`") as refused:
        replan.advise(fit.problem(100_000))
    assert refused.value.name == "duration"
    assert "THE HORIZON IS 10.0 TIMES" in str(replan.advise(fit.problem(99_800), lift=["horizon"]))


def test_a_duration_in_another_unit_is_warned_of(fit):
    assert "IN THE SAME UNIT" in str(replan.advise(fit.problem(20.0))).upper()


def test_larger_rates_are_lifted_by_name(fit):
    lifted = replan.advise(fit.problem(), lift=["rates"])
    assert lifted.candidates[-1].schedule.max() > fit.covered["rates"][1]
    assert "RATES ABOVE THE PILOTS'" in str(lifted)
    with pytest.raises(ArgumentError, match="one of"):
        replan.advise(fit.problem(), lift=["rate"])


def test_peaks_are_compared_where_pilots_decay_from_several():
    low = made.table(["50"], peak=3e-4).assign(run="low")
    fit = replan.fit(pd.concat([made.table(), low]))
    names = [x.name for x in replan.advise(fit.problem()).candidates]
    assert len(names) > 6


def test_a_schedule_is_a_table_that_trainers_read(fit, tmp_path):
    advice = replan.advise(fit.problem())
    advice.save(tmp_path / "schedule.csv")
    table = pd.read_csv(tmp_path / "schedule.csv")
    assert list(table) == ["step", "lr"]
    assert table.step.iloc[[0, -1]].tolist() == [made.WARMUP, made.STEPS]
    assert (table.step == table.step.round()).all()
    content = advice.to_dict()["recommended"]
    assert table.lr.iloc[-1] == content["stages"][-1]["to_lr"]
    np.testing.assert_allclose(np.array(content["lambda_lr"]) * made.PEAK, table.lr)


def test_a_schedule_is_a_few_stages_that_the_law_cannot_tell_from_it(fit):
    advice = replan.advise(fit.problem())
    middles = made.WARMUP + 0.5 * (advice.problem.edges[1:] + advice.problem.edges[:-1])
    for candidate in advice.candidates:
        parts = replace(advice, chosen=candidate).to_dict()["recommended"]["stages"]
        most = 2 if "over the last" in candidate.name else 6
        assert len(parts) <= (1 if candidate.name.startswith(("constant", "linear")) else most)
        steps = [x for stage in parts for x in (stage["from_step"], stage["to_step"])]
        lr = [x for stage in parts for x in (stage["from_lr"], stage["to_lr"])]
        assert steps[1:-1:2] == steps[2::2] and steps[:: len(steps) - 1] == [200, 10_000]
        rates = np.interp(middles, steps, lr)
        protocol = replan.Protocol(
            np.ones((len(rates), 1)), advice.problem.duration, lr=np.maximum(rates, 1e-12)
        )
        loss = replan.evaluate(advice.problem, protocol).loss
        assert abs(loss - candidate.loss) < 1.645 * fit.covered["error"] * candidate.loss


@pytest.mark.parametrize("last", [0.05, 0.45, 0.8])
def test_warmup_stable_decay_is_two_exact_stages(last):
    times = (np.arange(250) + 0.5) / 250
    rates = 3e-4 * np.minimum(1, (1 - times) / last)
    flat, decay = stages(np.linspace(500, 10_500, 251), rates, 0.0, 3e-4)
    corner = 10_500 - 10_000 * last
    np.testing.assert_allclose(flat, (500, corner, 3e-4, 3e-4), rtol=1e-8)
    np.testing.assert_allclose(decay, (corner, 10_500, 3e-4, 0.0), rtol=1e-8, atol=1e-15)


def test_a_drop_is_a_stage_that_begins_lower():
    rates = np.where(np.arange(100) < 60, 1e-3, 2e-4)
    high, low = stages(np.linspace(0, 1000, 101), rates, 0.0, 5e-4)  # a pilot's may be higher
    assert (high.to_step, low.from_step) == (600, 600)
    assert (high.to_lr, low.from_lr) == pytest.approx((1e-3, 2e-4))


def test_a_running_training_is_planned_from_where_it_is(fit):
    steps, lr = made.rates("constant", steps=14_000)
    run = pd.DataFrame({"run": "long", "step": steps, "lr": lr, "loss": made.LAW.curve(steps, lr)})
    longer = replan.fit(made.table(rows=80), running=run)
    problem = longer.problem(6000)
    assert replan.advise(problem).to_frame().step.iloc[[0, -1]].tolist() == [14_000, 20_000]
    known = made.LAW.curve(steps, lr)[-1]
    assert problem.model.losses(problem.state)[0] == pytest.approx(known, abs=0.003)


def test_a_law_without_pilots_gives_no_advice():
    problem = replan.Problem(made.LAW, made.LAW.warmed_up(200), 1000.0, lr=1e-3)
    with pytest.raises(ArgumentError, match="a law of no pilots"):
        replan.advise(problem)


def ended(fit, advice, candidate):
    """Return half the interval of the end loss that `predict` gives a candidate's schedule."""
    table = advice.problem.model.table(advice.problem.duration, candidate.schedule)
    steps, lr, _ = fit.history
    run = {"step": np.append(steps[:-1], table["step"]), "lr": np.append(lr[:-1], table["lr"])}
    low, high = fit.predict(pd.DataFrame({"run": "x"} | run))["x"][2:]
    return 0.5 * (high[-1] - low[-1])


@pytest.mark.parametrize("options", [{}, {"lift": ["rates"]}])
@pytest.mark.filterwarnings("ignore:x ")
def test_intervals_are_those_of_predictions(fit, options):
    advice = replan.advise(fit.problem(30_000), **options)
    for x in (advice.chosen, advice.candidates[-1]):
        half = 1.645 * np.hypot(np.linalg.norm(x.changes), fit.covered["error"] * x.loss)
        assert half == pytest.approx(ended(fit, advice, x), rel=0.05)


def test_a_larger_peak_than_the_pilots_is_less_certain(fit):
    advice = replan.advise(fit.problem(), lift=["rates"])
    plan, best = advice.candidates[-1], advice.best_pilot
    assert plan.schedule.max() > 2 * best.schedule.max()
    within = replan.advise(fit.problem()).candidates[-1]
    assert advice.difference(plan, best)[1] > 2 * advice.difference(within, best)[1]


def test_a_running_training_is_read_by_the_names_of_its_losses(fit):
    table = made.table(rows=40).rename(columns={"loss": "loss_web"})
    table["loss_code"] = 0.5 * table.loss_web
    run = made.table(["constant"], steps=14_000, rows=40, noise=0.0).assign(run="long")
    columns = {"loss_code": 0.5 * run.loss, "loss_web": run.loss}
    log = run.drop(columns="loss").assign(**columns)
    for names in (["loss_code", "loss_web"], ["loss_web", "loss_code"], ["loss_code"]):
        longer = replan.fit(table, loss="code", running=log[["run", "step", "lr", *names]])
        problem = longer.problem(6000)
        assert problem.model.losses(problem.state)[0] == pytest.approx(1.387, abs=0.005)


def test_what_is_doubtful_of_a_running_training_is_told(fit):
    late = made.table(["50"], rows=40).query("step > 6000").assign(run="late", lr=3e-4)
    assert any(
        "late begins at step" in x for x in replan.fit(made.table(rows=40), running=late).warnings
    )


def test_plans_keep_the_batch_of_the_running_training():
    table = made.table(rows=40).assign(batch=8)
    steps, lr = made.rates("constant", steps=14_000, rows=40)
    columns = {"run": "long", "step": steps, "lr": lr, "loss": made.LAW.curve(steps, lr)}
    fit = replan.fit(table, running=pd.DataFrame(columns).assign(batch=16))
    problem = fit.problem(6000)
    now = fit.predict(pd.DataFrame(columns).assign(batch=16))["long"].loss[-1]
    best = problem.model.losses_each
    assert best(problem.state)[0] == pytest.approx(now, rel=1e-6)
    advice = replan.advise(problem)
    protocol = replan.Protocol(np.ones((problem.steps, 1)), 6000.0, lr=advice.chosen.schedule)
    end = best(replan.evaluate(problem, protocol).states[-1])[0]
    table = advice.to_frame()
    whole = {"step": np.append(steps[:-1], table.step), "lr": np.append(lr[:-1], table.lr)}
    predicted = fit.predict(pd.DataFrame({"run": "x", "batch": 16} | whole))["x"].loss[-1]
    assert end == pytest.approx(predicted, rel=1e-3)  # rates between rows


def test_each_schedule_is_compared_once_and_one_is_recommended():
    low = made.table(["50"], peak=3e-4).assign(run="low")
    advice = replan.advise(replan.fit(pd.concat([made.table(), low])).problem())
    names = [x.name for x in advice.candidates]
    assert len(set(names)) == len(names)
    assert sum(line.endswith("recommended") for line in str(advice).splitlines()) == 1


def test_a_bound_of_another_law_is_refused(fit):
    with pytest.raises(ArgumentError, match="one of horizon, rates, changes"):
        replan.advise(fit.problem(), lift=["shares"])
