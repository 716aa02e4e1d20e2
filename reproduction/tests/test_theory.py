"""Every figure of the theory once at tiny size, and numbers against independent values."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import replan
from reproduction.theory import denoising, parts, readout, similarity, stream

TINY = {
    "dynamics": {"seeds": 1, "steps": 10, "dimension": 20},
    "similarity": {"seeds": 2, "steps": 10, "similarities": [0.1, 0.9]},
    "learning-rate": {"seeds": 1, "steps": 8, "max_lr": 4.0},
    "multitask": {"seeds": 2, "steps": 10, "duration": 5.0, "similarities": [0.2, 0.9]},
    "overlaps": {"seeds": 1, "steps": 10, "similarities": [0.1, 0.9]},
    "annealing": {"seeds": 1, "steps": 6, "similarities": [0.5], "max_lr": 2.0},
    "three-tasks": {"seeds": 1, "steps": 9},
    "readout": {"similarities": [0.0, 0.5]},
    "curriculum": {"difficulties": [2.0], "steps": 4, "duration": 4.0, "lr": 2.0, "max_lr": 4.0},
    "dropout": {"noises": [0.3], "steps": 3, "duration": 3.0, "max_lr": 2.0},
    "denoising": {"test_noises": [0.5], "steps": 3, "duration": 3.0, "max_lr": 1.0},
    "levers": {"seeds": 2, "steps": 4, "similarities": [0.3, 0.8], "max_lr": 2.0},
    "activation": {"seeds": 1, "steps": 8, "similarities": [0.1, 0.9], "dimension": 50},
    "robust": {"steps": 6, "similarities": [0.3], "members": 2, "tests": 2},
    "stream": {"seeds": 2, "tasks": [3, 2], "interval": 6.0, "steps": 4},
}  # fmt: skip
REFERENCE = Path(__file__).parents[2] / "tests" / "data" / "two_tasks_k2.json"


@pytest.mark.parametrize("name", TINY)
def test_a_figure_at_tiny_size(name, made):
    for table in made(name, **TINY[name]).values():
        assert len(table)
        assert not table.isna().any(axis=None)
        assert np.isfinite(table.select_dtypes("number")).all(axis=None)
        if "loss" in table and "optimal" in set(table.get("strategy", [])):
            losses = table.groupby("strategy")["loss"].mean().drop("joint optimum", errors="ignore")
            others = losses.drop(["power law", "exponential"], errors="ignore")
            assert losses["optimal"] <= others.min() * (1 + 1e-6)


def test_strategies_of_fig_3_against_an_independent_code():
    reference = json.loads(REFERENCE.read_text())
    problem = replan.Problem.from_dict(
        {
            "model": {key: reference[key] for key in ("hidden", "teacher_overlaps")},
            "start": reference["start"],
            "training": {key: reference[key] for key in ("duration", "steps", "lr")},
        }
    )
    losses = similarity.at_fixed_rate(problem, replan.solve(problem), seed=0)
    values = {name: np.mean(x) for name, x in reference["final_losses_per_task"].items()}
    assert losses["no replay"] == pytest.approx(values["task 2 only"], rel=1e-6)
    assert losses["interleaved 1:1"] == pytest.approx(values["shares 1/2, 1/2"], rel=1e-6)
    assert losses["optimal"] == pytest.approx(reference["best_known_mean_loss"]["discrete"], 1e-3)
    assert losses["optimal, revision shuffled"] > losses["optimal"]


@pytest.mark.parametrize("gamma", [0.05, 0.4, 0.9])
def test_the_readout_decays_as_predicted_while_features_are_frozen(gamma):
    assert readout.measured(gamma) == pytest.approx(readout.predicted(gamma), rel=1e-4)
    assert readout.measured(gamma, train_features=True) > 10 * readout.predicted(gamma)


def test_the_least_loss_of_denoising_is_that_of_the_best_filter():
    noise, signal = 0.3, denoising.MEAN + denoising.VARIANCE
    a = np.linspace(0.0, 2.0, 100_001)  # an estimate a·x of s from x = √(1−Δ) s + √Δ z
    errors = (1 - a * np.sqrt(1 - noise)) ** 2 * signal + a**2 * noise
    assert denoising.floor(noise) == pytest.approx(errors.min(), rel=1e-6)


def test_a_stream_of_two_tasks_is_the_papers_problem():
    ours = stream.stream(2, 0, interval=25.0, steps=10, similarity=0.6)
    share = stream.fixed_share(ours, 0.4)
    assert parts.loss(ours, share) == parts.loss(parts.continual(0.6, 0, 10), share)
    shares = stream.fixed_share(stream.stream(4, 0, 6.0, 1, 0.6), 0.6).shares
    expected = [[0.6, 0.4, 0, 0], [0.3, 0.3, 0.4, 0], [0.2, 0.2, 0.2, 0.4]]
    assert np.allclose(shares, expected)


def test_protocols_survive_their_rows():
    protocol = replan.Protocol(
        [[0.25, 0.75], [1.0, 0.0]], lr=[[1.0, 2.0], [3.0, 4.0]], edges=[0, 1, 4]
    )
    again = parts.protocol_of(pd.DataFrame(parts.protocol_rows({"x": protocol})))
    assert again == protocol


def test_the_minimiser_refines_the_best_of_its_grid():
    assert parts.minimiser(lambda x: (x - 0.37) ** 2, 0.0, 1.0, 5) == pytest.approx(0.37, abs=2e-3)
    assert parts.minimiser(lambda x: x, 0.0, 1.0, 5) == 0.0
