"""The page's kernels under node, against the library: see kernels.test.mjs."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import replan
from replan.models import Schedule
from replan.page.compile import compile_core

pytest.importorskip("ziglang")
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
NETWORKS = [  # activation, K, T, noise, steps
    *(("erf", 1, 1, 0.0, 20), ("erf", 2, 2, 0.0, 60), ("erf", 3, 4, 0.3, 20)),
    *(("erf", 6, 5, 0.0, 10), ("relu", 2, 2, 0.0, 60), ("relu", 3, 3, 0.3, 20)),
    *(("relu", 6, 5, 0.0, 4), ("linear", 2, 3, 0.3, 60), ("linear", 6, 5, 0.0, 10)),
]


def settings(model):
    return {
        "hidden": model.hidden,
        "tasks": model.tasks,
        "overlaps": model.teacher_overlaps.tolist(),
        "activation": model.activation,
        "noise": model.noise,
    }


def with_rates(shares, rates, lengths, substeps):
    tasks = shares.shape[1]
    knobs = np.hstack([np.tile(rates[:, None], tasks), np.ones((len(rates), 2 * tasks))])
    return Schedule(shares, knobs, lengths, np.full(len(rates), substeps))


def roll_out(seed, activation, hidden, tasks, noise, steps):
    rng = np.random.default_rng(seed)
    model = replan.TeacherStudent.stream(
        tasks, 0.5, teachers="random", hidden=hidden, activation=activation, noise=noise
    )
    start = model.pack(model.pretrain(duration=20.0, seed=seed))
    shares = rng.dirichlet(np.ones(tasks), steps)
    shares[::3] = np.eye(tasks)[rng.integers(tasks, size=len(shares[::3]))]
    rates, lengths = rng.uniform(0.2, 1.5, steps), rng.uniform(0.05, 0.4, steps)
    schedule = with_rates(shares, rates, lengths, 2)
    states, tape = model.roll_out_with_tape(start, schedule)
    weights = rng.dirichlet(np.ones(tasks))
    cotangents = np.zeros_like(states)
    cotangents[-1] = model.losses_vjp(states[-1], weights)
    gradients = model.roll_out_vjp(states, cotangents, schedule, tape)
    losses = model.losses(states)
    return {
        "name": f"{activation}, K = {hidden}, T = {tasks}",
        "model": settings(model),
        "start": start.tolist(),
        "shares": shares.ravel().tolist(),
        "rates": rates.tolist(),
        "lengths": lengths.tolist(),
        "substeps": 2,
        "weights": weights.tolist(),
        "states": states.ravel().tolist(),
        "losses": losses.ravel().tolist(),
        "value": float(losses[-1] @ weights),
        "byShares": gradients.by_shares.ravel().tolist(),
        "byRates": gradients.by_knobs[:, :tasks].sum(axis=1).tolist(),
    }


def random_problem(seed):
    """Return a problem, with its relaxed value, whose rate is free one time in four."""
    rng = np.random.default_rng(seed)
    activation = ("erf", "erf", "relu", "linear")[seed % 4]
    tasks = 3 if seed % 7 == 5 else 2
    model = replan.TeacherStudent.similar(
        rng.uniform(0.0, 0.9),
        tasks,
        hidden=2 if activation == "relu" else int(rng.integers(tasks, 5)),
        activation=activation,
        noise=float(rng.choice([0.0, 0.1])),
    )
    free, weights = seed % 5 == 2, rng.dirichlet(np.full(tasks, 5.0))
    ends = (0.0, 3.0) if free else (1.0, 1.0)
    problem = replan.Problem(
        model,
        model.pretrain(duration=rng.choice([50.0, 300.0]), seed=seed),
        duration=rng.uniform(8.0, 30.0),
        steps=int(rng.choice([40, 80])),
        objective=replan.Objective(weights=weights),
        control=replan.Control(lr=replan.Range(*ends, shared=True)),
    )
    return {
        "model": settings(model),
        "start": model.pack(problem.start).tolist(),
        "duration": problem.duration,
        "steps": problem.steps,
        "weights": weights.tolist(),
        "freeRates": ends if free else None,
        "relaxed": replan.solve(problem).certificate.relaxed_value,
    }


def finite_size(seed, activation, noise):
    """Return the theory's losses after interleaved training."""
    model = replan.TeacherStudent.similar(0.3, 2, 3, activation=activation, noise=noise)
    start = model.pack(model.pretrain(duration=20.0, seed=seed))
    dimension, marks = 1000, np.array([0, 1000, 4000, 10_000])
    lengths = np.full(200, marks[-1] / dimension / 200)
    schedule = with_rates(np.full((200, 2), 0.5), np.ones(200), lengths, 4)
    edges = np.append(0.0, np.cumsum(lengths)) * dimension
    losses = model.losses(model.roll_out(start, schedule))
    at = [np.argmin(np.abs(edges - mark)) for mark in marks]
    return {
        "model": settings(model),
        "start": start.tolist(),
        "dimension": dimension,
        "marks": marks.tolist(),
        "theory": losses[at].ravel().tolist(),
    }


def reference():
    files = sorted(REFERENCE.glob("*.json")) if REFERENCE.exists() else []
    return [json.loads(path.read_text()) for path in files]


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    path = tmp_path_factory.mktemp("core") / "core.wasm"
    path.write_bytes(compile_core())
    return path


def under_node(core, name, expected, folder):
    """Run the tests under node whose names match, with numbers from the library."""
    path = folder / "expected.json"
    path.write_text(json.dumps(expected))
    script = Path(__file__).with_name("kernels.test.mjs")
    run = subprocess.run(
        ["node", "--test-name-pattern", f"^{name}", "--test", script],
        env=os.environ | {"CORE": str(core), "EXPECTED": str(path)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout
    assert "# pass 0" not in run.stdout, run.stdout


def test_roll_outs_and_gradients_equal_the_librarys(core, tmp_path):
    cases = [roll_out(seed, *network) for seed, network in enumerate(NETWORKS)]
    under_node(core, "roll-outs", cases, tmp_path)


@pytest.mark.skipif(not reference(), reason="the reference instances are not beside the repository")
def test_plain_protocols_end_at_the_reference_losses(core, tmp_path):
    under_node(core, "reference", reference(), tmp_path)


def test_the_solver_reaches_the_librarys_relaxed_values(core, tmp_path):
    under_node(core, "solve", [random_problem(seed) for seed in range(20)], tmp_path)


def test_sgd_has_the_mean_of_the_theory(core, tmp_path):
    networks = [("erf", 0.0), ("erf", 0.3), ("relu", 0.1), ("linear", 0.1)]
    cases = [finite_size(seed, *network) for seed, network in enumerate(networks)]
    under_node(core, "SGD", cases, tmp_path)


def test_fresh_starts_have_the_librarys_moments(core, tmp_path):
    model = replan.TeacherStudent.similar(0.3, 3, 4)
    case = {"model": settings(model), "diagonal": 1e-3, "heads": 1e-2}
    under_node(core, "fresh", [case], tmp_path)


def test_the_module_imports_nothing_and_is_small(core):
    assert core.stat().st_size < 100_000
