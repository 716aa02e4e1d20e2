"""Laws on the page, under node, against the library: see law.test.mjs."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import replan
from replan.models import RateLaw, Schedule, ShareLaw
from replan.pilots.rate_rivals import without_bounds
from replan.problem.file import to_toml

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")

PILOTS = Path(__file__).parents[2] / "examples" / "pilots.csv"
SHARES = ShareLaw(
    [[
        [1.0, 1.2, 0.3, 0.1, 2.0, 1.0, 0.02, 0.05, 1.0, 0.0, 0.2],
        [0.7, 1.0, 0.3, 0.4, 5.0, 0.01, 1.0, 1.5, 0.05, 0.0, 1.5],
    ]],
    ["web", "code"], ["web", "code"], 1000.0, [0.0, 26.0],
)  # fmt: skip


def fit_of_shares():
    """Return a law of two losses, fitted to pilots with other shares in each half."""
    steps, parts = np.linspace(0, 1000, 11), []
    for i, pair in enumerate(np.random.default_rng(5).uniform(size=(8, 2))):
        code = np.where(steps < 500, *pair)
        shares = np.column_stack([1 - code, code])[:-1]
        pieces = Schedule.single_steps(shares, np.ones((10, 0)), np.full(10, 100.0))
        ends = SHARES.losses(SHARES.roll_out(SHARES.fresh(), pieces)[-1])
        losses = {
            f"loss_{x}": np.where(steps == 1000, end, np.nan)
            for x, end in zip(SHARES.domains, ends, strict=True)
        }
        rows = {"run": f"r{i}", "step": steps, "lr": 1e-3, "share_web": 1 - code}
        parts.append(pd.DataFrame(rows | {"share_code": code} | losses))
    return replan.fit(pd.concat(parts))


def like(law, rng):
    """Return a law of the same pilots, with several random numbers and mixtures of domains."""
    if law.kind == "rate-law":
        laws = law.laws[:5] * rng.uniform(0.5, 2.0, law.laws[:5].shape)
        return RateLaw(laws, 2 * law.peak, 3 * law.unit, law.covered)
    laws = rng.uniform(0.0, 2.0, (3, 2, 5 + 9))
    laws[:, :, 2] /= 4.0
    laws[:, :, 0] -= 1.0  # floors may be below 0
    mixtures = rng.dirichlet(np.ones(3), 4)
    return ShareLaw(
        laws, ["a", "b", "c"], ["x", "y"], 700.0, [0.0, 3.0, 20.0], mixtures,
        law.covered,
    )  # fmt: skip


def case(problem, rng, steps=41):
    """Return a law's file, a schedule, and what the library makes of both."""
    law, of_rates = problem.model, problem.model.kind == "rate-law"
    shares = rng.dirichlet(np.ones(law.tasks), steps)
    shares[::4] = np.eye(law.tasks)[rng.integers(law.tasks, size=len(shares[::4]))]
    rates = rng.uniform(0.0, 2.0, steps) * (law.peak if of_rates else 1.0)
    rates[[3, -1]] = 0.0
    lengths = rng.uniform(0.5, 1.5, steps) * problem.duration / steps
    knobs = rates[:, None] if of_rates else np.ones((steps, 0))
    schedule = Schedule.single_steps(shares, knobs, lengths)
    weights = rng.uniform(size=len(law.loss_names))
    states = law.roll_out(problem.state, schedule)
    losses, cotangents = law.losses(states), np.zeros_like(states)
    cotangents[-1] = law.losses_vjp(states[-1], weights)
    gradients = law.roll_out_vjp(states, cotangents, schedule)
    best, even = law.covered["best"], np.full(steps, problem.duration / steps)
    if of_rates:
        protocol = {"lr": rates.tolist()}
        best = np.interp((np.arange(250) + 0.5) / 250, best["times"], best["rates"])
    else:
        protocol = {}
    protocol |= {"duration": problem.duration, "shares": shares.tolist()}
    run = replan.evaluate(problem, replan.Protocol.from_dict(protocol))
    return {
        "toml": to_toml(problem.to_dict()),
        "json": json.dumps(problem.to_dict() | {"fit": {"warnings": ["A WARNING"]}}),
        "names": [list(law.task_names), list(law.loss_names)],
        "start": problem.state.tolist(),
        "best": best.tolist() if of_rates else None,
        "shares": shares.ravel().tolist(),
        "rates": rates.tolist(),
        "lengths": lengths.tolist(),
        "weights": weights.tolist(),
        "states": states.ravel().tolist(),
        "losses": losses.ravel().tolist(),
        "byShares": [] if of_rates else gradients.by_shares.ravel().tolist(),
        "byRates": gradients.by_knobs.ravel().tolist(),
        "even": even.tolist(),
        "evaluated": run.losses[-1].tolist(),
        **(of_law_of_rates(problem) if of_rates else {}),
    }


def of_law_of_rates(problem):
    """Return the bounds of plans."""
    law = problem.model
    return {
        "range": list(without_bounds(problem, [])[0].free_range("lr")),
        "changes": law.covered["changes"],
        "peak": law.peak,
    }


@pytest.fixture(scope="module")
def cases():
    rng = np.random.default_rng(0)
    problems = [replan.fit(PILOTS).problem(), fit_of_shares().problem()]
    for problem in problems[:]:
        law = like(problem.model, rng)
        state = rng.uniform(0.0, 1.0, 1 + 30 if law.kind == "rate-law" else 3 * 2 * (16 + 3))
        weights = rng.uniform(size=len(law.loss_names))
        settings = {"start": state, "objective": replan.Objective(weights=weights)}
        problems.append(problem.changed(model=law, **settings))
    return [case(problem, rng) for problem in problems]


def under_node(name, expected, folder):
    """Run the tests under node whose names match, with numbers from the library."""
    path = folder / "expected.json"
    path.write_text(json.dumps(expected))
    script = Path(__file__).with_name("law.test.mjs")
    run = subprocess.run(
        ["node", "--test-name-pattern", f"^{name}", "--test", script],
        env=os.environ | {"EXPECTED": str(path), "PILOTS": str(PILOTS)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert "# pass 0" not in run.stdout, run.stdout


def test_losses_and_gradients_equal_the_librarys(cases, tmp_path):
    under_node("losses and gradients", cases, tmp_path)


def test_a_law_is_read_from_toml_and_json(cases, tmp_path):
    under_node("a law is read", cases, tmp_path)


def test_plans_have_the_librarys_bounds_and_pilots_its_curves(cases, tmp_path):
    under_node("a law of rates", cases, tmp_path)


def test_a_drawn_schedule_is_evaluated_as_by_the_library(cases, tmp_path):
    under_node("a drawn schedule", cases, tmp_path)


def test_files_that_are_something_else_are_refused_in_a_sentence(cases, tmp_path):
    under_node("other files", cases, tmp_path)


def test_pilots_are_drawn_as_they_were_logged(tmp_path):
    fit = replan.fit(PILOTS)
    begin, runs = fit.covered["starts_at"], []
    for name, log in pd.read_csv(PILOTS).groupby("run", sort=False):
        end = log.step.iloc[-1]
        middles = begin + (np.arange(250) + 0.5) / 250 * (end - begin)
        rates, loss = np.interp(middles, log.step, log.lr).tolist(), log.loss.dropna().iloc[-1]
        runs.append({"run": name, "end": float(end), "rates": rates, "loss": loss})
    under_node("pilots", [{"json": json.dumps(fit.to_dict()), "runs": runs}], tmp_path)
