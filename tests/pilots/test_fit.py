"""Fits: a known law is found again, its intervals cover what they say, published curves too."""

import contextlib
from pathlib import Path

import made
import numpy as np
import pandas as pd
import pytest

import replan
from replan import ArgumentError

PUBLISHED = Path(__file__).parents[3] / "shared" / "pilots"
published = pytest.mark.skipif(not PUBLISHED.exists(), reason="published curves are not here")
SPLIT = ["cosine_24000", "constant_24000", "wsdcon_9"]


@pytest.fixture(scope="module")
def fit():
    return replan.fit(made.table())


def covered(fit, others):
    """Return the fraction of rows within their intervals, and the mean error of a run."""
    predictions, within, errors = fit.predict(others.drop(columns="loss")), [], []
    for name, rows in others.groupby("run", sort=False):
        known = ((rows.step >= fit.pilots.early) & rows.loss.notna()).to_numpy()
        loss, x = rows.loss.to_numpy()[known], predictions[name]
        within.extend((x.low[known] <= loss) & (loss <= x.high[known]))
        errors.append(np.abs(x.loss[known] - loss).mean())
    return np.mean(within), np.mean(errors)


# A known law


def test_a_known_law_is_found_again(fit):
    assert fit.agreement == (5, 5)
    known = made.LAW.laws[0].copy()
    longer = fit.fitted.unit / made.LAW.unit  # the fit counts time in other units
    known[1] *= longer ** -known[2]
    known[4] *= longer
    for (name, (value, sd, _)), true in zip(fit.parameters.items(), known, strict=True):
        assert abs(value - true) < 3 * sd, name
    others = made.table(("10", "50", "90"), noise=0.0)
    assert covered(fit, others)[1] < 0.001


def test_intervals_cover_what_they_say():
    """Nine of ten rows of other runs, over fits to other noise."""
    fractions = [
        covered(
            replan.fit(made.table(seed=seed, rows=80)), made.table(("10", "60"), seed=seed + 50)
        )[0]
        for seed in range(8)
    ]
    assert 0.85 <= np.mean(fractions) <= 0.96


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_intervals_of_another_peak_say_that_it_is_a_guess(fit, times):
    """They cover a law that is right, and one under which progress is not in proportion to η."""
    one = made.table(["20"], peak=made.PEAK)
    other = made.table(["20"], peak=times * made.PEAK, noise=0.0).assign(run="other")
    with pytest.warns(match="above the pilots'") if times > 1 else contextlib.nullcontext():
        coverage, _ = covered(fit, other)
        wide, narrow = fit.predict(other)["other"], fit.predict(one)["20"]
    assert coverage >= 0.8
    assert np.log(wide.high / wide.low)[-1] > 3 * np.log(narrow.high / narrow.low)[-1]
    both = replan.fit(pd.concat([made.table(), made.table(["50"], peak=1.5e-3).assign(run="b")]))
    assert (
        np.log(wide.high / wide.low)[-1]
        > 2 * np.log(both.predict(one)["20"].high / both.predict(one)["20"].low)[-1]
    )


def test_intervals_cover_where_noise_has_another_shape():
    """Noise that grows more slowly with the loss left to learn than the law takes for granted."""
    bare = replan.models.RateLaw(made.LAW.laws * [1, 1, 1, 0, 1, 1, 1], made.PEAK, made.LAW.unit)
    parts = []
    for seed, family in enumerate(("constant", "10", "20", "cosine", "90")):
        steps, lr = made.rates(family)
        signal = bare.curve(steps, lr)
        noise = (made.LAW.curve(steps, lr) - signal) / np.sqrt(1 + 2 * (signal - 2.4))
        white = 2e-4 * np.random.default_rng(seed).normal(size=len(steps))
        loss = (signal + noise) * np.exp(white)
        parts.append(pd.DataFrame({"run": family, "step": steps, "lr": lr, "loss": loss}))
    table = pd.concat(parts)
    pilots = table.run.isin(["constant", "10", "20"])
    assert covered(replan.fit(table[pilots]), table[~pilots])[0] >= 0.8


def test_intervals_cover_where_only_the_ends_of_a_few_pilots_are_measured():
    within = []
    for seed in range(4):
        ends = made.table(("constant", "cosine", "20", "50", "80"), rows=40, seed=seed)
        ends.loc[ends.groupby("run").step.transform("max") != ends.step, "loss"] = np.nan
        fit = replan.fit(ends)
        for family in ("10", "30", "65"):
            true = made.table([family], rows=40, noise=0.0)
            x = fit.predict(true)[family]
            within.append(x.low[-1] <= true.loss.iloc[-1] <= x.high[-1])
    assert np.mean(within) >= 0.8


def test_far_runs_are_predicted_with_a_warning(fit):
    with pytest.warns(match="20 ENDS 10.0 TIMES AFTER THE PILOTS"):
        fit.predict(made.table(["20"], steps=100_000))


def test_the_plan_of_a_known_law_is_found_again(fit):
    problem = fit.problem()
    known = replan.Problem(
        made.LAW, made.LAW.warmed_up(made.WARMUP),
        problem.duration, lr=1e-3, control=problem.control,
    )  # fmt: skip
    best, found = (replan.solve(x) for x in (known, problem))
    lost = replan.evaluate(known, found.protocol).loss - best.loss
    assert 0 <= lost < 0.0005


def test_every_pilot_is_left_out_once(fit):
    assert [x.run for x in fit.left_out] == [run.name for run in fit.pilots.runs]
    assert max(x.mean for x in fit.left_out) < 0.005
    text = str(fit)
    assert "5 of 5 starts agree" in text and "left-out losses are within" in text
    assert "whether another is better is unknown" in text


def test_a_fit_is_the_same_every_time_and_losses_to_predict_are_not_read(fit):
    again = replan.fit(made.table())
    assert np.array_equal(again.fitted.parameters, fit.fitted.parameters)
    other = made.table(["50"])
    wrong = other.assign(loss=9.0)
    assert np.array_equal(fit.predict(other)["50"].loss, fit.predict(wrong)["50"].loss)


def test_several_losses_need_a_choice():
    table = made.table(rows=40)
    both = table.rename(columns={"loss": "loss_web"}).assign(loss_code=0.5 * table.loss)
    with pytest.raises(ArgumentError, match="one of web, code"):
        replan.fit(both)
    code = replan.fit(both, loss="code")
    np.testing.assert_allclose(
        code.predict(table)["20"].loss.min(), 0.5 * table.loss.min(), rtol=0.01
    )


def test_larger_batches_count_as_smaller_rates():
    """With twice the batch and twice the rate the noise is the same, the progress twice as fast."""
    table = made.table(rows=60)
    both = pd.concat([table.assign(batch=8), table.assign(run=table.run + "-2", batch=16)])
    big = both.run.str.endswith("-2")
    both.loc[big, "lr"] *= 2
    fit = replan.fit(both)
    rows = made.table(["50"], rows=60)
    one, two = (
        fit.predict(rows.assign(batch=batch, lr=rate * rows.lr))["50"].loss[-1]
        for batch, rate in ((8, 1.0), (16, 1.0))
    )
    assert two < one  # the same rate, less noise


def test_a_law_of_teacher_student_curves():
    """Trainings of our own model: a decaying rate pays, and the law says how much."""
    model = replan.TeacherStudent.similar(0.3, tasks=1, hidden=2, noise=0.5)
    start, parts = model.fresh(seed=1), []
    times = np.linspace(0, 400, 81)
    for name, shape in {
        "constant": np.ones(80),
        "half": np.minimum(1, (1 - np.arange(80) / 80) / 0.5),
        "20": np.minimum(1, (1 - np.arange(80) / 80) / 0.2),
        "linear": 1 - np.arange(80) / 80,
    }.items():
        problem = replan.Problem(model, start, 400.0, steps=80)
        protocol = replan.Protocol(np.ones((80, 1)), 400.0, lr=0.5 * shape)
        losses = 0.125 + replan.evaluate(problem, protocol).losses_at(times)[:, 0]  # of labels
        lr = 0.5 * np.append(shape, shape[-1])
        parts.append(pd.DataFrame({"run": name, "step": times, "lr": lr, "loss": losses}))
    table = pd.concat(parts)
    pilots = table[table.run.isin(["constant", "linear", "20"])]
    fit = replan.fit(pilots)
    half = parts[1]
    known = half.step >= fit.pilots.early
    error = np.abs(fit.predict(half)["half"].loss - half.loss)[known] / half.loss[known]
    assert error.mean() < 0.03


# Published curves


@published
@pytest.mark.parametrize(("size", "most"), [("25M", 0.0035), ("100M", 0.0025)])
def test_published_curves_of_language_models(size, most):
    table = pd.read_csv(PUBLISHED / f"mpl_{size}.csv")
    pilots = table.run.isin(SPLIT)
    fit = replan.fit(table[pilots], warmup=2160)
    coverage, error = covered(fit, table[~pilots])
    assert error <= most
    assert 0.80 <= coverage <= 0.97
    worst = []
    for name, rows in table[~pilots].groupby("run"):
        late = (rows.step >= fit.pilots.early).to_numpy()
        worst.append(np.abs(fit.predict(rows)[name].loss / rows.loss - 1)[late].max())
    assert np.mean(worst) <= 0.005


@published
def test_published_decays():
    table = pd.read_csv(PUBLISHED / "decays_124M.csv")
    names = [name for name in table.run.unique() if "sl_" not in name]
    stable, short = names[-1], next(x for x in names if "linear_0.2_iter15000" in x)
    cosine = next(x for x in names if x.startswith("cos-10") and "iter25000" in x)
    fit = replan.fit(table[table.run.isin([stable, short, cosine])])
    others = table[table.run.isin(set(names) - {stable, short, cosine})]
    coverage, error = covered(fit, others)
    assert error <= 0.005
    assert 0.80 <= coverage <= 0.97
