"""Pilots: what is refused, what is warned of, and the history that each run is given."""

import re

import made
import numpy as np
import pandas as pd
import pytest

import replan
from replan import ArgumentError
from replan.models.rate_law import pieces
from replan.pilots import shares
from replan.pilots.fitted import _doubts


def changed(**columns):
    """Return pilots with some columns replaced by functions of the table."""
    table = made.table(rows=40)
    return table.assign(**{name: change(table) for name, change in columns.items()})


@pytest.mark.parametrize(
    ("table", "name", "words"),
    [
        (made.table(rows=40).drop(columns="lr"), "pilots", "a column `lr`"),
        (made.table(rows=40).drop(columns="loss"), "pilots", "`loss` or `loss_<name>`"),
        (made.table(["constant"], rows=40), "pilots", "two or more runs"),
        (pd.concat([made.table(rows=40)] * 2), "step", "twice"),
        (changed(step=lambda t: t.step * np.where(t.run == "20", 4e3, 1)), "step", "same unit"),
        (changed(step=lambda t: t.step / np.where(t.run == "20", 1e3, 1)), "step", "same unit"),
        (changed(step=lambda t: t.step / np.where(t.run == "20", 1e2, 1)), "pilots", "same unit"),
        (changed(step=lambda t: -t.step), "step", "at least 0"),
        (changed(loss=lambda t: np.where(t.step > 5e3, np.inf, t.loss)), "loss", "inf"),
        (changed(loss=lambda t: 3 + t.step / 1e4), "pilots", "loss rises"),
        (changed(lr=lambda t: -t.lr), "lr", "positive"),
        (changed(lr=lambda t: "fast"), "lr", "fast"),
        (changed(loss=lambda t: -t.loss), "loss", "positive"),
        (changed(share_a=lambda t: 30.0, share_b=lambda t: 70.0), "share_…", "percent"),
        (changed(share_a=lambda t: 0.5, share_b=lambda t: 0.7), "share_…", "sum 1"),
        (changed(batch=lambda t: "big"), "batch", "big"),
        (changed(tokens=lambda t: 1e6 - t.step), "tokens", "ascending"),
        (changed(**{"continue": lambda t: "nobody"}), "continue", "nobody"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_bad_tables_are_refused_by_name(table, name, words):
    with pytest.raises(ArgumentError, match=words) as refused:
        replan.fit(table)
    assert refused.value.name == name


def test_losses_that_rise_or_are_missing_are_left_out_and_named():
    table = made.table(("constant", "cosine", "20", "50"), rows=40)
    rising = table.run == "50"
    table.loc[rising, "loss"] = 3.0 + table.step[rising] / 1e4
    fit = replan.fit(table)
    assert any("50 is left out: its loss rises" in text for text in fit.warnings)
    assert "WARNING: 50 is left out" in str(fit)
    table.loc[rising, "loss"] = np.nan
    with pytest.raises(ArgumentError, match="50 without"):
        replan.fit(table)


def test_a_loss_that_ends_before_its_training_is_warned_of():
    table = made.table(rows=40)
    table.loc[(table.run == "20") & (table.step > 5000), "loss"] = np.nan
    assert "WARNING: 20 has no loss after step" in str(replan.fit(table))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": lambda t: t.lr * np.where(t.run == "20", 1e3, 1)}, "LARGEST RATES .* OF 1000"),
        ({"step": lambda t: t.step * np.where(t.run == "20", 50, 1)}, "LAST STEPS .* OF 50"),
        ({"step": lambda t: t.step * np.where(t.run == "20", 16, 1)}, "20 is off by"),
        ({"loss": lambda t: t.loss / np.where(t.run == "20", np.log(2), 1)}, "FOLLOW ONE LAW"),
    ],
    ids=["rates", "far steps", "near steps", "bits and nats"],
)
def test_a_run_in_other_units_is_warned_of_at_the_top_of_the_report(change, words):
    table = changed(**change)
    loud = [x for x in str(replan.fit(table)).splitlines() if x.startswith("WARNING: ")]
    assert re.search(words, "\n".join(loud))


def test_the_run_in_other_units_is_the_one_that_is_named():
    table = made.table(("constant", "cosine", "20", "50"), rows=40)
    table.loc[table.run == "20", "loss"] = np.exp(table.loss)
    assert "FOLLOW ONE LAW: 20 is off by" in str(replan.fit(table))


def test_logs_without_a_warm_up_are_fitted():
    table = made.table(rows=40).query("step >= @made.WARMUP")
    fit = replan.fit(table.assign(step=table.step - made.WARMUP))
    advice = replan.advise(fit.problem())
    assert "recommended for steps 0 to 9800: " in str(advice)
    assert "is not in the schedule" not in str(advice)


def test_what_is_assumed_of_a_history_is_told():
    table = made.table(("constant", "20"), rows=40)
    branch = table[(table.run == "constant") | (table.step > 6000)]
    assert "20 is taken to continue constant" in replan.Pilots.from_table(branch).warnings[0]
    told = replan.Pilots.from_table(table, warmup=200.0).warnings
    assert told == ("`--warmup` is not used for constant, 20: the log begins with a warm-up",)
    late = table.query("step >= @made.WARMUP")
    with pytest.raises(ArgumentError, match="add 200 to them") as refused:
        replan.Pilots.from_table(late.assign(step=late.step - made.WARMUP), warmup=200.0)
    assert refused.value.name == "warmup"


def test_few_agreeing_starts_and_narrow_intervals_are_warned_of():
    fit = replan.fit(made.table(rows=40))
    folds = [x._replace(covered=0.6) for x in fit.left_out]
    one, other = _doubts(fit.fitted._replace(ends=np.array([1.0, 1.01, 1.2, 1.3, 1.4])), folds)
    assert one.startswith("ONLY 2 OF 5 STARTS AGREE") and other.startswith("ONLY 60 % OF LEFT-OUT")
    assert _doubts(fit.fitted, fit.left_out) == []


def test_pilots_without_a_drop_are_warned_of_first():
    constants = [made.table(["constant"], peak=x, rows=40, seed=1) for x in (1e-3, 5e-4)]
    table = pd.concat([x.assign(run=f"constant {i}") for i, x in enumerate(constants)])
    fit = replan.fit(table)
    assert str(fit).splitlines()[1].startswith("WARNING: NO PILOT LOWERS ITS LEARNING RATE")
    advice = replan.advise(fit.problem())
    assert "NO PILOT LOWERS ITS RATE" in str(advice)
    assert all(np.ptp(x.schedule) == 0 for x in advice.candidates)


def test_a_described_warm_up_equals_a_logged_one():
    table = made.table(rows=40)
    late = table[table.step >= made.WARMUP]
    logged, described = replan.fit(table), replan.fit(late, warmup=made.WARMUP)
    assert described.pilots.warm_until == logged.pilots.warm_until == made.WARMUP
    one, other = (x.predict(made.table(["80"]))["80"].loss for x in (logged, described))
    np.testing.assert_allclose(one[50:], other[50:], rtol=1e-3)


def test_a_run_continues_another():
    table = made.table(("constant", "20"), noise=0.0)
    branch = (table.run == "20") & (table.step > 8000)
    whole = replan.Pilots.from_table(table)
    short = table[(table.run == "constant") | branch]
    given = short.assign(**{"continue": np.where(short.run == "20", "constant", None)})
    for pilots in (replan.Pilots.from_table(given), replan.Pilots.from_table(short)):
        run, other = pilots.runs[1], whole.runs[1]
        assert run.steps[run.own][0] > 8000
        np.testing.assert_allclose(np.interp(other.steps, run.steps, run.rates), other.rates)


def test_a_run_that_begins_late_and_continues_none_is_warned_of():
    table = made.table(("cosine", "20"), rows=40)
    late = table[(table.run == "cosine") | (table.step > 5000)]
    late = late.assign(lr=np.where(late.run == "20", 10 * late.lr, late.lr))
    assert "20 begins at step" in replan.Pilots.from_table(late).warnings[0]


def test_tokens_stand_for_steps():
    table = made.table(rows=40)
    steps, tokens = table, table.rename(columns={"step": "tokens"})
    fit = replan.fit(tokens)
    np.testing.assert_allclose(replan.fit(steps).fitted.parameters, fit.fitted.parameters)
    assert "3 pilots up to token 10000," in str(fit)
    assert str(replan.advise(fit.problem())).startswith("recommended for tokens 200 to 10000: ")


def test_repeated_data_of_unknown_size_are_warned_of_where_shares_vary():
    said = {}
    for size in (0.0, 0.002, 0.2):
        shares = {"share_a": lambda t, x=size: np.where(t.run == "20", 0.5 + x, 0.5)}
        table = changed(**shares, share_b=lambda t, x=size: np.where(t.run == "20", 0.5 - x, 0.5))
        pilots = replan.Pilots.from_table(table).for_fit()
        said[size] = (
            pilots.domains,
            "HOW MUCH DATA a, b HAS IS UNKNOWN" in " ".join(pilots.warnings),
        )
    assert said == {0.0: ((), False), 0.002: ((), False), 0.2: (("a", "b"), True)}


def test_a_missing_batch_is_that_of_the_others():
    table, other = made.table(rows=40), made.table(["50"], rows=40)
    for pilots, runs in (
        (table.assign(batch=512), [other, other.assign(batch=512)]),
        (table, [other, other.assign(batch=512)]),
        (table.assign(tokens=1e6 * table.step), [other, other.assign(tokens=1e6 * other.step)]),
    ):
        fit = replan.fit(pilots)
        one, two = (fit.predict(rows)["50"].loss for rows in runs)
        np.testing.assert_allclose(one, two, rtol=1e-9)


def test_unique_tokens_are_counted_in_steps_by_the_tokens_of_a_step():
    shares = {"share_a": 0.5, "share_b": 0.5, "unique_tokens_a": 2e9}
    table = made.table(rows=40).assign(**shares)
    unique = [
        replan.Pilots.from_table(x).unique[0]
        for x in (
            table.assign(tokens=1e6 * table.step),
            table.assign(tokens=1e6 * table.step, batch=256),
            table.rename(columns={"step": "tokens"}).assign(batch=256),
        )
    ]
    assert unique == pytest.approx([2000, 2000, 2e9])
    steps = replan.Pilots.from_table(table)
    assert steps.unique[0] == 2e9 and "STEPS ARE TAKEN FOR TOKENS" in " ".join(steps.warnings)
    wrong = table.assign(unique_tokens_a=np.where(table.run == "20", 2e9, 1e9), tokens=table.step)
    with pytest.raises(ArgumentError, match="one number") as refused:
        replan.Pilots.from_table(wrong)
    assert refused.value.name == "unique_tokens_a"


def test_a_run_without_one_of_the_losses_is_refused_by_name():
    table = made.table(rows=40).rename(columns={"loss": "loss_web"})
    table["loss_code"] = np.where(table.run == "20", np.nan, 0.5 * table.loss_web)
    with pytest.raises(ArgumentError, match="20 without code"):
        replan.fit(table, loss="code")
    assert len(replan.fit(table, loss="web").pilots.runs) == 3


def test_a_loss_that_is_not_chosen_may_rise():
    table = made.table(rows=40)
    table["loss_other"] = 3 + table.step / 1e4
    assert len(replan.fit(table, loss="loss").pilots.runs) == 3


def test_shares_that_do_not_vary_may_be_missing_in_some_tables():
    table = made.table(rows=40)
    constant = table.assign(share_a=0.5, share_b=0.5)
    branch = made.table(["20"], rows=40).query("step > 8000").assign(run="b")
    fit = replan.fit(constant)
    one, two = (
        fit.predict(x.assign(**{"continue": "constant"}))["b"].loss
        for x in (branch, branch.assign(share_a=0.5, share_b=0.5))
    )
    np.testing.assert_array_equal(one, two)
    assert replan.fit(constant, running=table[table.run == "20"].assign(run="c")).running == "c"
    some = constant.assign(share_a=constant.share_a.where(constant.run != "20"))
    some["share_b"] = some.share_a
    assert replan.fit(some).pilots.domains == ()


def test_rows_before_a_run_are_not_its_own():
    table = made.table(("constant", "20"), rows=40)
    branch = table[(table.run == "20") & (table.step > 8000)].assign(run="b")
    pilots = replan.Pilots.from_table(pd.concat([table[table.step > 300], branch]))
    for run in pilots.runs:
        whole = shares.whole(run)
        assert whole.steps[0] == 0
        np.testing.assert_array_equal(whole.steps[whole.own], run.steps[run.own])


def test_a_warm_up_within_one_logged_interval_is_no_jump():
    """A coarse log of the same training makes the same progress."""
    fine, coarse = np.linspace(0, 10_000, 1001), np.linspace(0, 10_000, 11)
    done = [
        pieces(x[None], np.minimum(1.0, x / 1000)[None], 1.0, 1.0, np.ones((1, len(x)))).progress
        for x in (fine, coarse)
    ]
    assert done[1][0, 1] == pytest.approx(done[0][0, 100]) == pytest.approx(500, rel=1e-3)
