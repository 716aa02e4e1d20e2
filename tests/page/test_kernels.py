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
from replan.page.build import bundle
from replan.page.compile import compile_core

pytest.importorskip("ziglang")
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")

REFERENCE = Path(__file__).parents[3] / "shared" / "reference"
NETWORKS = [  # activation, K, T, noise, steps
    *(("erf", 1, 1, 0.0, 20), ("erf", 2, 2, 0.0, 60), ("erf", 3, 4, 0.3, 20)),
    *(("erf", 6, 5, 0.0, 10), ("relu", 2, 2, 0.0, 60), ("relu", 3, 3, 0.3, 20)),
    *(("relu", 6, 5, 0.0, 4), ("linear", 2, 3, 0.3, 60), ("linear", 6, 5, 0.0, 10)),
]
TRAININGS = [  # activation, K, T, γ, noise, duration
    ("erf", 2, 2, 0.3, 0.0, 25.0),
    ("erf", 4, 3, 0.99, 0.3, 200.0),
    ("relu", 2, 2, 0.9, 0.0, 5.0),  # nearly aligned units: order 4 is lost
    ("relu", 3, 2, 0.6, 0.3, 60.0),
    ("linear", 4, 2, 0.3, 0.3, 25.0),
    ("linear", 4, 4, 0.6, 0.5, 60.0),
]
PROBLEMS = [  # activation, K, T, seed, γ, noise, duration, steps, free shares, free rates
    ("erf", 5, 5, 1, 0.3, 0.0, 40, 80, "curve", "given"),
    ("linear", 6, 5, 1, 0.3, 0.0, 20, 60, "curve", "given"),
    ("erf", 3, 3, 4, 0.3, 0.0, 25, 100, "constant", "given"),
    ("relu", 2, 2, 5, 0.6, 0.3, 50, 100, "constant", "curve"),
    ("erf", 2, 2, 5, 0.3, 0.0, 25, 100, "curve", "constant"),
    ("erf", 2, 2, 6, 0.2, 0.0, 100, 200, "given", "constant"),
]
STARTS = """
import { readFileSync } from "node:fs";
const core = await workModule.core();
const states = JSON.parse(readFileSync(process.argv[2]));
const starts = states.map((state) => trainingModule.training(core, state).start(state.seed));
console.log(JSON.stringify(starts.map((start) => Array.from(start))));
"""


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


def gradients(seed, activation, hidden, tasks, noise, steps):
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
    slopes = model.roll_out_vjp(states, cotangents, schedule, tape)
    return {
        "name": f"{activation}, K = {hidden}, T = {tasks}",
        "model": settings(model),
        "start": start.tolist(),
        "shares": shares.ravel().tolist(),
        "rates": rates.tolist(),
        "lengths": lengths.tolist(),
        "substeps": 2,
        "weights": weights.tolist(),
        "value": float(model.losses(states[-1]) @ weights),
        "byShares": slopes.by_shares.ravel().tolist(),
        "byRates": slopes.by_knobs[:, :tasks].sum(axis=1).tolist(),
    }


def integrated(activation, hidden, tasks, similarity, noise, duration):
    """Return a training with changes of shares and rates, and its course to 1e-11."""
    model = replan.TeacherStudent.similar(
        similarity, tasks, hidden=hidden, activation=activation, noise=noise
    )
    shares = np.repeat(np.random.default_rng(hidden).dirichlet(np.ones(tasks), 10), 10, axis=0)
    rates = np.repeat([1.0, 4.0, 0.3, 2.0], 25)
    problem = replan.Problem(model, model.pretrain(seed=3), duration=duration, steps=100)
    curves = replan.evaluate(problem, replan.Protocol(shares, duration, lr=rates), rtol=1e-11)
    return {
        "model": settings(model) | {"accuracy": 1e-9},
        "start": model.pack(problem.start).tolist(),
        "shares": shares.ravel().tolist(),
        "rates": rates.tolist(),
        "lengths": [duration / 100] * 100,
        "states": curves.states.ravel().tolist(),
        "losses": curves.losses.ravel().tolist(),
    }


def relaxed(problem):
    """Return a row of PROBLEMS, after one task was learnt, with the value of its relaxed plan."""
    activation, hidden, tasks, seed, similarity, noise, duration, steps, *free = problem
    of_shares, of_rates = free
    model = replan.TeacherStudent.similar(
        similarity, tasks, hidden=hidden, activation=activation, noise=noise
    )
    low, high = ends = (1.0, 1.0) if of_rates == "given" else (0.0, 5.0)
    rate = replan.Range(low, high, constant=of_rates != "curve", shared=True)
    control = {"given": False, "constant": "constant", "curve": True}[of_shares]
    planned = replan.Problem(
        model,
        model.pretrain(seed=seed),
        duration=float(duration),
        steps=steps,
        control=replan.Control(control, lr=rate),
    )
    equal = np.full((steps, tasks), 1 / tasks)
    initial = replan.Protocol(equal, float(duration), lr=1.0) if of_shares == "given" else None
    effort = "high" if tasks == 4 else "normal"
    plan = replan.solve(planned, initial=initial, effort=effort)
    return {
        "name": " ".join(map(str, problem)),
        "model": settings(model),
        "start": model.pack(planned.start).tolist(),
        "duration": planned.duration,
        "steps": steps,
        "weights": [1 / tasks] * tasks,
        "freeShares": of_shares,
        "freeRates": of_rates,
        "range": ends,
        "relaxed": plan.certificate.relaxed_value,
    }


def finite_size(seed, activation, noise):
    """Return a mixed training, and the theory's losses in the course of it."""
    model = replan.TeacherStudent.similar(0.3, 2, 3, activation=activation, noise=noise)
    start = model.pack(model.pretrain(duration=20.0, seed=seed))
    lengths, marks = np.full(200, 0.05), [0, 20, 80, 200]
    shares = np.full((200, 2), 0.5)
    shares[40:60] = [0.2, 0.8]
    schedule = with_rates(shares, np.ones(200), lengths, 4)
    losses = model.losses(model.roll_out(start, schedule))
    return {
        "model": settings(model),
        "start": start.tolist(),
        "shares": shares.ravel().tolist(),
        "rates": [1.0] * 200,
        "lengths": lengths.tolist(),
        "dimension": 1000,
        "marks": marks,
        "theory": losses[marks].ravel().tolist(),
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


def test_gradients_equal_the_librarys(core, tmp_path):
    cases = [gradients(seed, *network) for seed, network in enumerate(NETWORKS)]
    under_node(core, "gradients", cases, tmp_path)
    under_node(core, "a divergence", cases, tmp_path)


def test_trainings_are_as_accurate_as_asked(core, tmp_path):
    cases = [integrated(*case) for case in TRAININGS]
    under_node(core, "trainings", cases, tmp_path)


@pytest.mark.skipif(not reference(), reason="the reference instances are not beside the repository")
def test_plain_protocols_end_at_the_reference_losses(core, tmp_path):
    under_node(core, "reference", reference(), tmp_path)


def test_the_solver_reaches_the_librarys_relaxed_values(core, tmp_path):
    under_node(core, "solutions have", [relaxed(problem) for problem in PROBLEMS], tmp_path)


def test_starts_are_the_librarys_for_two_tasks_and_overlaps_for_more(tmp_path):
    rng = np.random.default_rng(0)
    cases = [
        {"hidden": K, "tasks": T, "similarity": similarity, "seed": int(rng.integers(1, 21))}
        | {"activation": str(rng.choice(["erf", "relu", "linear"])), "noise": float(noise)}
        for K in range(2, 7)
        for T in range(2, 6)
        for similarity, noise in ((0.0, 0.0), (0.3, 0.2), (0.99, 0.0))
    ]
    script, states = tmp_path / "starts.mjs", tmp_path / "states.json"
    states.write_text(json.dumps(cases))
    script.write_text(bundle("work") + STARTS)
    run = subprocess.run(["node", script, states], capture_output=True, text=True, check=True)
    for case, start in zip(cases, json.loads(run.stdout), strict=True):
        seed = case.pop("seed")
        model = replan.TeacherStudent.similar(**case)
        overlaps = model.unpack(np.array(start))
        model.pack(overlaps)  # refuses impossible ones
        if model.tasks == 2:
            expected = model.pack(model.pretrain(seed=seed))
            assert np.allclose(start, expected, rtol=1e-7, atol=1e-9), case


def test_sgd_has_the_mean_of_the_theory(core, tmp_path):
    networks = [("erf", 0.0), ("erf", 0.3), ("relu", 0.1), ("linear", 0.1)]
    cases = [finite_size(seed, *network) for seed, network in enumerate(networks)]
    under_node(core, "SGD", cases, tmp_path)


def test_the_module_imports_nothing_and_is_small(core):
    assert core.stat().st_size < 100_000
