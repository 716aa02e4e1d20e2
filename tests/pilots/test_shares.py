"""The law of shares: a known one is found again, beside plain regressions, and never oversold."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import replan
from replan import ArgumentError
from replan.models import Schedule, ShareLaw
from replan.pilots import next_shares, shares
from replan.pilots.plain import features, gaussian_process, quadratic

PUBLISHED = Path(__file__).parents[3] / "shared" / "pilots" / "two_phase_72.csv"
published = pytest.mark.skipif(not PUBLISHED.exists(), reason="published runs are not here")
CODE = "eval/paloma/dolma_100_programing_languages/bpb"

KNOWN = ShareLaw(
    [[
        [1.0, 1.2, 0.3, 0.1, 2.0, 1.0, 0.02, 0.05, 1.0, 0.0, 0.2],
        [0.7, 1.0, 0.3, 0.4, 5.0, 0.01, 1.0, 1.5, 0.05, 0.0, 1.5],
    ]],
    ["web", "code"], ["web", "code"], 1000.0, [0.0, 26.0],
)  # fmt: skip
STEPS = np.linspace(0, 1000, 11)


def table(pairs, *, noise=0.002, seed=0, lr=1e-3):
    """Return trainings with a share of code in each half, by the known law."""
    rng, parts = np.random.default_rng(seed), []
    for i, pair in enumerate(pairs):
        code = np.where(STEPS < 500, *pair)
        shares = np.column_stack([1 - code, code])[:-1]
        steps = Schedule.single_steps(shares, np.ones((10, 0)), np.full(10, 100.0))
        ends = KNOWN.losses(KNOWN.roll_out(KNOWN.fresh(), steps)[-1])
        ends = ends * np.exp(noise * rng.normal(size=2))
        parts.append(pd.DataFrame({
            "run": f"r{i}", "step": STEPS, "lr": lr, "share_web": 1 - code, "share_code": code,
            "tokens": 1e6 * STEPS, "unique_tokens_code": 1e9 / 26,
            "loss_web": np.where(STEPS == 1000, ends[0], np.nan),
            "loss_code": np.where(STEPS == 1000, ends[1], np.nan),
        }))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


PAIRS = np.random.default_rng(5).beta(0.7, 1.0, size=(40, 2))


@pytest.fixture(scope="module")
def fit():
    return replan.fit(table(PAIRS[:28]))


def test_a_known_law_predicts_other_shares_with_honest_intervals(fit):
    others = table(PAIRS[28:], noise=0.0, seed=1)
    predicted = fit.predict(others.drop(columns=["loss_web", "loss_code"]))
    errors, within = [], []
    for name, rows in others.groupby("run", sort=False):
        for loss in ("web", "code"):
            x, true = predicted[f"{name}: {loss}"], rows[f"loss_{loss}"].iloc[-1]
            assert len(x.steps) == len(rows)
            errors.append(abs(x.loss[-1] / true - 1))
            within.append(x.low[-1] <= true <= x.high[-1])
    assert np.mean(errors) < 0.005
    assert np.mean(within) >= 0.8
    for one in fit.fits:
        assert one.agreement[1] == 5 and 0.8 <= one.covered <= 0.99


def test_the_order_of_columns_does_not_matter(fit):
    others = table(PAIRS[28:30])
    swapped = others[[x for x in others if x != "share_web"] + ["share_web"]]
    one, two = fit.predict(others)["r0: code"], fit.predict(swapped)["r0: code"]
    np.testing.assert_allclose(one.loss, two.loss, rtol=1e-12)


def test_plain_regressions_stand_beside_the_law(fit):
    text = str(fit)
    assert "EXPERIMENTAL" in text and "HOW MUCH DATA web HAS IS UNKNOWN" in text
    for name in ("Gaussian process", "quadratic"):
        assert f"left out: {name}" in text
        assert all(np.isfinite(one.errors[name]).all() for one in fit.fits)
    assert set(fit.to_dict()["fit"]["losses"]["code"]["left_out"]) == {
        "law", "Gaussian process", "quadratic"
    }  # fmt: skip


def test_the_report_says_when_a_plain_one_is_as_good():
    """A loss that no mechanism makes: a smooth function of the shares, which a process fits."""
    rows = table(PAIRS[:24])
    half = rows.groupby("run").share_code.transform("mean")
    rows = rows.drop(columns=["loss_web", "loss_code"])
    rows["loss"] = np.where(rows.step == 1000, 2 + 0.3 * np.sin(9 * half), np.nan)
    notes = "".join(replan.fit(rows).unknown)
    assert "Gaussian process fit of end losses predicts BETTER than this law" in notes
    assert "errors are smaller by 0." in notes and "-" not in notes.partition("by ")[2][:20]


def test_plans_keep_to_the_pilots_and_say_that_timing_is_worth_less_than_the_noise(fit):
    advice = replan.advise(fit.problem())
    names = [x.name.split()[0] for x in advice.candidates]
    assert names == ["constant:", "pilot", "plan"]
    assert advice.chosen.loss <= advice.best_pilot.loss + 1e-9
    code = PAIRS[:28].ravel()
    for x in advice.candidates:
        assert code.min() - 1e-6 <= x.schedule[:, 1].min() <= x.schedule[:, 1].max()
        assert x.schedule[:, 1].max() <= code.max() + 1e-6
    assert len(advice.candidates[-1].schedule) == 2  # pilots have two stages
    free = replan.advise(fit.problem(), lift=["changes", "shares"])
    assert len(free.candidates[-1].schedule) == 50
    assert "CHANGE MORE OFTEN" in str(free) and "OUTSIDE OF THE PILOTS'" in str(free)
    frame = advice.to_frame()
    assert list(frame) == ["step", "share_web", "share_code"]
    np.testing.assert_allclose(frame.share_web + frame.share_code, 1)


def test_stages_follow_the_pilots_learning_rate():
    rows = table(PAIRS[:8])
    rows["lr"] *= np.clip(1.001 - rows.step / 1000, 0, 1)
    law = replan.fit(rows, loss="code").law
    steps = law.table(1000, np.eye(2))["step"]
    assert steps[1] == pytest.approx(293, abs=6)  # half of the progress of a linear decay


def test_the_best_shares_of_a_known_law_are_found_again(fit):
    advice = replan.advise(fit.problem())
    true = replan.Problem(KNOWN, KNOWN.fresh(), 1000.0, steps=2)
    best = replan.solve(true).certificate.relaxed_value
    found = replan.evaluate(true, replan.Protocol(advice.chosen.schedule, 1000.0)).loss
    assert found - best < 0.01 * best


def test_the_next_pilot_narrows_what_it_says(fit):
    few = replan.fit(table(PAIRS[:6]))
    pilot = few.next_pilot()
    assert pilot.question == "shares" and pilot.after < pilot.before
    frame = pilot.to_frame()
    assert {"run", "step", "lr", "share_web", "share_code"} <= set(frame)
    assert f"{pilot.run.name}: code" in few.predict(frame)


def test_laws_are_files(fit, tmp_path):
    for name in ("law.toml", "law.json"):
        fit.save(tmp_path / name)
        again = replan.Problem.load(tmp_path / name)
        assert again.model.kind == "share-law"
        assert replan.advise(again).chosen.name == replan.advise(fit.problem()).chosen.name


def test_few_pilots_and_other_domains_are_refused(fit):
    with pytest.raises(ArgumentError, match="4 or more"):
        replan.fit(table(PAIRS[:3]))
    with pytest.raises(ArgumentError, match="shares of web, code"):
        fit.predict(table(PAIRS[:2]).rename(columns={"share_code": "share_books"}))
    with pytest.raises(ArgumentError) as refused:
        replan.fit(table(PAIRS[:8]), running=table(PAIRS[:1]).assign(run="long"))
    assert refused.value.name == "running"


def curves(pairs, *, rows=21, steps=1000, noise=0.002, seed=0):
    """Return trainings as `table` does, with the loss of code at all rows."""
    rng, parts = np.random.default_rng(seed), []
    at = np.linspace(0, steps, rows)
    for i, pair in enumerate(pairs):
        code = np.where(at < steps / 2, *pair)
        shares = np.column_stack([1 - code, code])[:-1]
        pieces = np.ones((rows - 1, 0)), np.full(rows - 1, steps / (rows - 1))
        path = KNOWN.roll_out(KNOWN.fresh(), Schedule.single_steps(shares, *pieces))
        loss = KNOWN.losses(path)[:, 1] * np.exp(noise * rng.normal(size=rows))
        parts.append(pd.DataFrame({
            "run": f"r{i}", "step": at, "lr": 1e-3, "share_web": 1 - code, "share_code": code,
            "tokens": 1e6 * at, "unique_tokens_code": 1e9 / 26, "loss": loss,
        }))  # fmt: skip
    return pd.concat(parts, ignore_index=True)


FORGOTTEN = [(0.02, 0.98), (0.1, 0.9), (0.3, 0.7), (0.5, 0.5), (0.6, 0.4), (0.98, 0.02)]


@pytest.fixture(scope="module")
def long_curves():
    return replan.fit(curves(FORGOTTEN, rows=201))


def test_curves_that_rise_by_forgetting_are_fitted_with_the_noise(long_curves):
    assert [run.name for run in long_curves.pilots.runs] == [f"r{i}" for i in range(6)]
    (one,) = long_curves.fits
    assert one.noisy and {"noise", "power"} <= set(long_curves.parameters["loss"])
    others = curves([(0.2, 0.8), (0.7, 0.2)], noise=0.0)
    late = (others.query("run == 'r0'").step >= 100).to_numpy()
    for name, rows in others.groupby("run"):
        predicted = long_curves.predict(rows)[name]
        assert np.abs(predicted.loss / rows.loss - 1)[late].mean() < 0.01


def test_long_logs_are_thinned_for_fits_and_not_for_predictions(long_curves):
    assert long_curves.fits[0].data.losses.shape[1] < 80
    assert len(long_curves.predict(curves(FORGOTTEN, rows=201))["r3"].loss) == 201
    smooth = np.column_stack([np.linspace(0.2, 0.8, 1001), np.linspace(0.8, 0.2, 1001)])
    assert len(shares.changes(smooth)) < 100


def test_pilots_of_two_lengths():
    rows = pd.concat([
        curves(PAIRS[:7], seed=1),
        curves(PAIRS[7:14], seed=2, steps=3000).assign(run=lambda x: "long " + x.run),
    ])  # fmt: skip
    rows.loc[rows.groupby("run").step.transform("max") != rows.step, "loss"] = np.nan
    fit = replan.fit(rows)
    (one,) = fit.fits
    x = features(one.data.runs.shares, one.data.rates.lengths, one.data.runs.progress)
    assert x.shape[1] == 3 and np.unique(x[:, 2].round(6)).tolist() == [0.0, 1.098612]
    assert {name: np.abs(e).mean() < 0.05 for name, e in one.errors.items()}["Gaussian process"]


def test_far_runs_are_predicted_with_a_warning(fit):
    far = table(PAIRS[:1]).assign(step=lambda x: 20 * x.step, tokens=lambda x: 20 * x.tokens)
    with pytest.warns(match="r0 ENDS 20.0 TIMES AFTER THE PILOTS"):
        fit.predict(far)
    pairs = PAIRS[:12] * 0.5
    with pytest.warns(match="r0 HAS SHARES OUTSIDE OF THE PILOTS'"):
        replan.fit(table(pairs), loss="code").predict(table([(0.9, 0.9)]))


def test_a_switch_half_way_is_in_the_next_pilots_schedule():
    rows = table([(x, x) for x in (0.1, 0.3, 0.5, 0.7)] + [(0.2, 0.8)])
    rows = rows[(rows.run == "r4") | rows.step.isin([0, 1000])]
    fit = replan.fit(rows, loss="code")
    for run in next_shares._schedules(fit):
        assert 500 in run.steps
        assert run.name.count("%") == 2 * len(np.unique(run.shares, axis=0))


def test_one_open_schedule_is_no_answer():
    """Six pilots leave much open, however far the best schedule seems to be from the others."""
    pilot = replan.fit(table(PAIRS[:6]), loss="code").next_pilot()
    assert not pilot.answered and pilot.before < 3.0


def test_few_noisy_pilots_give_a_law():
    for seed in range(3):
        pairs = np.random.default_rng(100 + seed).beta(0.7, 1, size=(8, 2))
        assert (
            replan.fit(table(pairs, seed=seed, noise=0.01), loss="code").law.laws[..., 2].min() >= 0
        )


def test_a_plan_in_json_is_of_domains_and_its_value_is_of_its_shares(fit):
    advice = replan.advise(fit.problem())
    content = advice.to_dict()
    assert content["domains"] == ["web", "code"]
    np.testing.assert_allclose(content["shares"], advice.candidates[-1].schedule)
    assert content["value"] == pytest.approx(advice.candidates[-1].loss, abs=1e-6)


def test_a_bound_of_another_law_is_refused(fit):
    with pytest.raises(ArgumentError, match="one of horizon, shares, changes"):
        replan.advise(fit.problem(), lift=["rates"])


def test_nothing_is_learnt_where_nothing_transfers():
    law = ShareLaw([[[0.7, 1.0, 0.3, *[0.0] * 8]]], ["web", "code"], ["code"], 1.0, [0, 0])
    problem = replan.Problem(law, law.fresh(), 1000.0, steps=2)
    protocol = replan.Protocol(np.array([[0.0, 1.0], [1.0, 0.0]]), 1000.0)
    assert replan.evaluate(problem, protocol).loss == pytest.approx(1.7)


# Plain regressions


def test_a_process_and_a_quadratic_find_what_they_can():
    rng = np.random.default_rng(0)
    x, others = rng.uniform(size=(40, 2)), rng.uniform(0.1, 0.9, size=(20, 2))
    roots = np.sqrt(x), np.sqrt(others)
    y, true = (1 + r[:, 0] - r[:, 0] * r[:, 1] for r in roots)
    np.testing.assert_allclose(quadratic(x, y, others), true, atol=1e-9)
    wavy, expected = np.sin(4 * x[:, 0]) + x[:, 1], np.sin(4 * others[:, 0]) + others[:, 1]
    np.testing.assert_allclose(gaussian_process(x, wavy, others), expected, atol=0.01)
    noisy = wavy + 0.1 * rng.normal(size=40)
    assert np.abs(gaussian_process(x, noisy, x) - wavy).mean() < 0.08  # it does not interpolate


# Published runs


@published
def test_published_two_phase_runs():
    """Five random splits, 48 runs for the fit: the code loss of the others is 1 % off at most."""
    ends = pd.read_csv(PUBLISHED)
    rate = 0.1 + 0.45 * (1 + np.cos(np.pi * STEPS / 1000))
    parts = []
    for i, row in ends.iterrows():
        code = np.where(STEPS < 500, row.phase0_starcoder, row.phase1_starcoder)
        parts.append(pd.DataFrame({
            "run": f"r{i}", "step": STEPS, "lr": rate, "share_web": 1 - code, "share_code": code,
            "tokens": 1e6 * STEPS, "unique_tokens_code": 1e9 / 26,
            "loss": np.where(STEPS == 1000, row[CODE], np.nan),
        }))  # fmt: skip
    runs, within = pd.concat(parts), []
    for seed in range(5):
        kept = [f"r{i}" for i in np.random.default_rng(seed).permutation(72)[:48]]
        fit = replan.fit(runs[runs.run.isin(kept)])
        others = runs[~runs.run.isin(kept)]
        predicted, errors = fit.predict(others.drop(columns="loss")), []
        for name, rows in others.groupby("run"):
            x, true = predicted[name], rows.loss.iloc[-1]
            errors.append(abs(x.loss[-1] / true - 1))
            within.append(x.low[-1] <= true <= x.high[-1])
        assert np.mean(errors) <= 0.01
    assert 0.80 <= np.mean(within) <= 0.97
