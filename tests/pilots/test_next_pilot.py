"""The next pilot: it has what the pilots lack, and narrows the answer as much as was expected."""

import made
import numpy as np
import pandas as pd
import pytest

import replan
from replan.models.rate_law import curves, pieces
from replan.pilots import rates

DECAYS = [f"{x}" for x in range(5, 101, 5)]


@pytest.fixture(scope="module")
def table():
    return made.table(("constant", "20"), rows=80)


@pytest.fixture(scope="module")
def fit(table):
    return replan.fit(table)


def trained(table, schedule):
    """Return pilots with one more, made by the known law."""
    noise = np.random.default_rng(7).normal(scale=0.001, size=len(schedule))
    loss = made.LAW.curve(schedule.step, schedule.lr) * np.exp(noise)
    return replan.fit(pd.concat([table, schedule.assign(run="next", loss=loss)]))


def half_width(fit, chosen=None):
    """Return half the widest interval among decays that cannot be told from the best, and these.

    By laws drawn from the fit, where `next_pilot` takes losses as linear in the parameters.
    """
    draws = np.random.default_rng(0).multivariate_normal(
        fit.fitted.parameters, fit.fitted.covariance, 400
    )
    steps, lr = (np.stack(x) for x in zip(*map(made.rates, DECAYS), strict=True))
    runs = pieces(steps, lr, fit.pilots.peak, fit.fitted.unit, np.ones_like(lr))
    ends = curves(rates.laws(draws), runs)[:, :, -1]
    best = ends.mean(axis=0).argmin()
    worse = ends - ends[:, [best]]
    widths = 1.645 * np.hypot(worse.std(axis=0), fit.covered["error"] * ends.mean(axis=0))
    if chosen is None:
        chosen = worse.mean(axis=0) <= widths
    return widths[chosen].max(), chosen


def test_pilots_without_a_drop_need_one():
    longer = made.table(["constant"], steps=15_000, rows=80, seed=1).assign(run="longer")
    fit = replan.fit(pd.concat([made.table(["constant"], rows=80), longer]))
    pilot = fit.next_pilot()
    late = pilot.run.steps >= made.WARMUP
    assert np.diff(pilot.run.rates[late]).min() < 0
    assert pilot.question == "decay" and not pilot.answered
    assert pilot.after < 0.2 * pilot.before
    assert f"next pilot: {pilot.run.name}; it would narrow" in str(fit)


def test_it_narrows_the_answer_as_expected_and_another_constant_does_not(fit, table):
    pilot = fit.next_pilot()
    now, chosen = half_width(fit)
    assert pilot.before == pytest.approx(now, rel=0.2)
    schedule = pilot.to_frame()
    then, _ = half_width(trained(table, schedule), chosen)
    assert pilot.after == pytest.approx(then, rel=0.2)
    constant = schedule.assign(lr=made.PEAK * np.minimum(1, schedule.step / made.WARMUP))
    other, _ = half_width(trained(table, constant), chosen)
    assert other > 1.5 * then


def test_what_one_peak_leaves_open_is_another_peak():
    fit = replan.fit(made.table(rows=80))
    pilot = fit.next_pilot()
    assert (pilot.question, pilot.before, pilot.answered) == ("peak", None, False)
    assert pilot.run.rates.max() / made.PEAK in (0.5, 2.0)
    assert np.diff(pilot.run.rates).min() < 0
    assert "it would show whether another peak is better" in str(fit)


def test_pilots_that_leave_little_open_need_no_other():
    low = made.table(["50"], peak=3e-4, rows=80).assign(run="low")
    fit = replan.fit(pd.concat([made.table(rows=80), low]))
    pilot = fit.next_pilot()
    assert pilot.answered and "next pilot" not in str(fit)
    assert pilot.after > 0.9 * pilot.before


def test_a_longer_training_asks_more(fit):
    assert fit.next_pilot(30_000).before > 1.1 * fit.next_pilot().before


@pytest.mark.parametrize("options", [{}, {"warmup": made.WARMUP}])
def test_the_schedule_reads_as_a_pilot(table, options):
    if options:
        table = table[table.step > made.WARMUP]
    fit = replan.fit(table.assign(batch=8), **options)
    pilot = fit.next_pilot()
    schedule = pilot.to_frame()
    assert list(schedule) == ["run", "step", "lr", "batch"]
    own = replan.Pilots.from_table(schedule, earlier=fit.pilots, **options).runs[0]
    np.testing.assert_allclose(own.rates, pilot.run.rates, rtol=1e-9)
    np.testing.assert_allclose(own.steps, pilot.run.steps)
    assert fit.predict(schedule)[pilot.run.name].loss[-1] < table.loss.max()
