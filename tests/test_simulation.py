"""simulate: two engines agree in law, the theory is their limit, and promises of the interface."""

import json
import math
import signal

import numpy as np
import pytest

import replan
from replan import ArgumentError, Problem, Protocol, TeacherStudent, simulate, strategies
from replan.core import library
from replan.core.threads import stopped
from replan.protocol import Samples
from swept import wait

# A true match fails less than once in 10⁴: a two-sided bound for the largest of `count` normals.
FALSE_ALARM = 1e-4


def bound(count):
    from scipy.stats import norm

    return norm.isf(FALSE_ALARM / 2 / count)


def make(K=2, T=2, duration=4.0, lr=1.5, **model):
    students = TeacherStudent.similar(0.3, tasks=T, hidden=K, **model)
    start = students.pretrain(duration=20.0, start=students.fresh(1, weight_variance=0.3))
    return Problem(students, start, duration=duration, lr=lr, steps=20)


def unpacked(simulation):
    """All overlaps, with runs and times in front."""
    return simulation.problem.model.unpack(simulation.states)


def moments(simulation):
    """All overlaps and losses at the end, their means and second moments, with standard errors."""
    at = unpacked(simulation)
    K = at.Q.shape[-1]
    parts = (at.Q[:, -1][:, *np.tril_indices(K)], at.M[:, -1], at.V[:, -1], simulation.final_losses)
    values = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    centred = values - values.mean(axis=0)
    products = (centred[:, :, None] * centred[:, None, :]).reshape(len(values), -1)
    both = np.concatenate([values, products], axis=1)
    return both.mean(axis=0), both.std(axis=0) / math.sqrt(len(values))


def distance(a, b):
    """The largest difference of means and covariances, in standard errors, and how many."""
    (mean_a, error_a), (mean_b, error_b) = moments(a), moments(b)
    errors = np.hypot(error_a, error_b)
    used = errors > 1e-15  # what never moves has no spread
    np.testing.assert_allclose(mean_a[~used], mean_b[~used], atol=1e-12)
    return np.max(np.abs(mean_a - mean_b)[used] / errors[used]), int(used.sum())


def ends(problem, engine, dimension, runs, seed=0, **settings):
    protocol = strategies.interleaved(problem)
    return simulate(
        problem, protocol, dimension=dimension, runs=runs, seed=seed, engine=engine,
        times=[problem.duration], **settings,
    )  # fmt: skip


@pytest.mark.parametrize(("dimension", "duration"), [(50, 4.0), (200, 2.0), (1000, 0.25)])
@pytest.mark.parametrize("K", [2, 3])
def test_engines_agree_in_law(dimension, duration, K):
    problem = make(K=K, duration=duration)
    full = ends(problem, "full", dimension, 1000)
    chain = ends(problem, "reduced", dimension, 4000, seed=1)
    found, count = distance(full, chain)
    assert found < bound(count)


def test_engines_agree_with_noise_heads_and_rates_of_their_own():
    model = TeacherStudent(
        [[1.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 1.0]], hidden=2,
        teacher_heads=[[1.0, 0.5, 0.0], [0.0, 0.0, 1.0]], noise=0.2, train_heads=[True, False],
        head_lr=0.5,
    )  # fmt: skip
    start = model.fresh(2, dimension=40, weight_variance=10.0)
    problem = Problem(model, start, duration=3.0, steps=6)
    shares = np.tile([[0.7, 0.3]], (6, 1))
    lr = np.column_stack([np.linspace(1.5, 0.5, 6), np.linspace(0.2, 1.0, 6)])
    protocol = Protocol(shares, 3.0, lr=lr)
    runs = [
        simulate(problem, protocol, dimension=40, runs=n, seed=n, engine=e, order="random",
                 times=[3.0])
        for e, n in (("full", 2000), ("reduced", 8000))
    ]  # fmt: skip
    found, count = distance(*runs)
    assert found < bound(count)
    assert np.array_equal(unpacked(runs[1]).V[:, -1, 1], np.tile(start.V[1], (8000, 1)))


def test_the_theory_is_the_limit():
    """Deviations fall as N^(−½), from 10² to 10⁶ dimensions."""
    problem = make(duration=2.0)
    sizes = np.array([100, 1000, 10_000, 100_000, 1_000_000])
    spreads = []
    for N, runs in zip(sizes, [32, 32, 32, 32, 8], strict=True):  # the last cost as their sizes
        run = ends(problem, "reduced", int(N), runs)
        spreads.append(np.sqrt(np.mean(run.deviation**2)))
    slope = np.polyfit(np.log(sizes), np.log(spreads), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.06)


# Batches and momentum


def batched(batch, momentum, **settings):
    """The problem of `make` for batches and momentum, at a rate that acts as 1.5."""
    plain = make(**settings)
    model = TeacherStudent.similar(0.3, tasks=2, hidden=2, batch=batch, momentum=momentum)
    return plain.changed(model=model, lr=1.5 / model.pace)


def plain_batches(model, weights, heads, teachers, inputs, noise, tasks, knobs):
    """SGD by the mean gradient of each whole batch, with momentum, written down plainly."""
    N, b = weights.shape[1], model.batch
    step, head_step = np.zeros_like(weights), np.zeros_like(heads)
    for first in range(0, len(tasks) - b + 1, b):
        step, head_step = model.momentum * step, model.momentum * head_step
        for x, z, t, (lr, feature, head) in zip(
            *(part[first : first + b] for part in (inputs, noise, tasks, knobs)), strict=True
        ):
            fields = weights @ x / math.sqrt(N)
            g = np.array([math.erf(z / math.sqrt(2)) for z in fields])
            label = math.erf(teachers[t] @ x / math.sqrt(2 * N)) + z
            error = heads[t] @ g - label
            slopes = math.sqrt(2 / math.pi) * np.exp(-(fields**2) / 2)
            step += lr * feature / b * error * np.outer(heads[t] * slopes, x) / math.sqrt(N)
            head_step[t] += lr * head * model.train_heads[t] / b * error * g / N
        weights, heads = weights - step, heads - head_step
    return weights, heads


@pytest.mark.parametrize(("batch", "momentum"), [(1, 0.0), (4, 0.0), (1, 0.7), (4, 0.7)])
def test_batches_are_those_of_plain_sgd(batch, momentum):
    """Tasks are mixed within a batch, pieces of work cut through batches, and one is cut off."""
    N, rng = 40, np.random.default_rng(0)
    model = TeacherStudent.similar(
        0.3, hidden=3, batch=batch, momentum=momentum, train_heads=[True, False], noise=0.2
    )
    chain = model.begin_chain("full", model.pack(model.fresh(0, weight_variance=0.5)), N)
    tasks, knobs = rng.integers(2, size=30), rng.uniform(0.5, 2.0, size=(30, 3))
    counts, draw = (3, 7, 1, 19), np.random.default_rng(1).standard_normal
    inputs, noise = map(
        np.concatenate, zip(*((draw((n, N)), 0.2 * draw(n)) for n in counts), strict=True)
    )
    weights, heads = plain_batches(
        model, chain.weights, chain.heads, chain.teachers, inputs, noise, tasks, knobs
    )
    numbers, done = np.random.default_rng(1), 0
    for count in counts:
        chain = chain.resume(numbers)
        part = slice(done, done + count)
        assert chain.advance(tasks[part], knobs[part]) == count
        done += count
    np.testing.assert_allclose(chain.weights, weights, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(chain.heads, heads, rtol=1e-11, atol=1e-13)
    assert np.ptp(chain.heads - model.fresh(0, weight_variance=0.5).V, axis=1)[0] > 1e-4


@pytest.mark.parametrize(("batch", "momentum", "dimension"), [(4, 0.5, 500), (8, 0.0, 300)])
def test_batches_and_momentum_follow_the_theory(batch, momentum, dimension):
    """Means of losses within the standard error, and what is of order 1/N."""
    problem = batched(batch, momentum, duration=2.0)
    lag = batch / (1 - momentum)
    runs = simulate(
        problem, strategies.interleaved(problem), dimension=dimension, runs=40, order="random",
        times=[1.0, 2.0],
    )  # fmt: skip
    assert runs.settings["engine"] == "full"
    errors = runs.losses.std(axis=0) / math.sqrt(40)
    gaps = np.abs(runs.losses.mean(axis=0) - runs.theory_losses)
    assert np.all(gaps < bound(4) * errors + lag / dimension * runs.theory_losses)
    assert np.all(np.abs(runs.theory_losses[0] - runs.theory_losses[1]) > 4 * errors[1])


def test_batches_and_momentum_are_forgotten_in_high_dimension():
    """The same samples one by one, at the rate that they act as: the rest falls as 1/N."""
    rest, sizes = [], np.array([100, 400, 1600])
    for N in sizes.tolist():
        runs = [
            ends(problem, "full", N, 6400 // N, order="random").losses[:, -1]
            for problem in (batched(4, 0.5, duration=2.0), make(duration=2.0))
        ]
        rest.append(np.mean(np.abs(runs[0] - runs[1])))
    assert np.polyfit(np.log(sizes), np.log(rest), 1)[0] < -0.8


def test_recording_within_a_batch_changes_nothing():
    problem = batched(7, 0.5, duration=1.0)
    protocol = strategies.interleaved(problem)
    settings = {"dimension": 50, "runs": 2}
    often = simulate(problem, protocol, times=np.arange(51) / 50, **settings)
    once = simulate(problem, protocol, times=[1.0], **settings)
    assert np.array_equal(often.states[:, -1], once.states[:, -1])
    moved = np.any(np.diff(often.states, axis=1) != 0, axis=(0, 2))
    assert np.flatnonzero(moved).tolist() == [6, 13, 20, 27, 34, 41, 48]


def test_the_chain_of_overlaps_has_no_batches():
    with pytest.raises(ValueError, match="engine"):
        ends(batched(4, 0.5), "reduced", 50, 2)


def test_alignment_stays_exact():
    """10⁷ steps with a student that learns its teacher to a loss near 1e-6 and below."""
    model = TeacherStudent([[1.0]], hidden=2)
    problem = Problem(model, model.fresh(0), duration=1000.0)
    run = simulate(problem, strategies.one_task(problem), dimension=10_000, runs=1)
    Q, M = unpacked(run).Q[0], unpacked(run).M[0]
    assert run.losses[0, -1, 0] < 2e-6
    assert run.losses.min() > -1e-14
    assert np.array_equal(Q, np.swapaxes(Q, -1, -2))
    joint = np.concatenate(
        [np.concatenate([Q, M], axis=-1),
         np.concatenate([np.swapaxes(M, -1, -2), np.ones((len(Q), 1, 1))], axis=-1)], axis=-2,
    )  # fmt: skip
    assert np.linalg.eigvalsh(joint).min() > -1e-13


def test_results_do_not_depend_on_cores_and_repeat(monkeypatch):
    problem = make()
    runs = []
    for seed, cores in ((3, 1), (3, 2), (4, 2)):
        monkeypatch.setattr("replan.simulation.free_cores", lambda cores=cores: cores)
        runs.append(ends(problem, "reduced", 300, 5, seed=seed).states)
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_orders_of_the_tasks():
    problem = make(duration=1.0)
    protocol = strategies.focus_then_replay(problem, focus=0.4, shares=[0.3, 0.7])
    spread, drawn = (
        simulate(problem, protocol, dimension=200, runs=3, order=order).states
        for order in ("spread", "random")
    )
    assert not np.array_equal(spread, drawn)


@pytest.mark.parametrize("engine", ["reduced", "full"])
def test_phases_can_be_chained(engine):
    """Two phases, with the same seed, have the law of one run through both."""
    whole = make(duration=2.0, lr=3.0)
    half = whole.changed(duration=1.0)
    settings = {"dimension": 50, "runs": 1500, "engine": engine}
    before = simulate(half, strategies.one_task(half), times=[1.0], **settings)
    after = simulate(half, strategies.no_replay(half), after=before, times=[0.0, 1.0], **settings)
    np.testing.assert_allclose(after.states[:, 0], before.states[:, -1], atol=1e-12)
    both = strategies.one_task(half).then(strategies.no_replay(half))
    unbroken = simulate(whole, both, times=[2.0], seed=7, **settings)
    found, count = distance(after, unbroken)
    assert found < bound(count)
    np.testing.assert_allclose(after.theory.final_losses, unbroken.theory.final_losses, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "model"), [({"dimension": 30}, {}), ({"runs": 3}, {}), ({}, {"K": 3})]
)
def test_other_simulations_cannot_be_continued(changes, model):
    run = ends(make(), "reduced", 20, 2)
    settings = {"engine": "reduced", "dimension": 20, "runs": 2, "after": run} | changes
    with pytest.raises(ArgumentError) as caught:
        ends(make(**model), **settings)
    assert caught.value.name == "after"


def test_few_dimensions_and_equal_teachers():
    """Teachers that span one dimension only, and a single direction left over for the input."""
    model = TeacherStudent([[1.0, 1.0], [1.0, 1.0]], hidden=3)
    start = model.fresh(2, dimension=5, weight_variance=1.0)
    problem = Problem(model, start, duration=3.0, lr=2.0, steps=3)
    found, count = distance(ends(problem, "full", 5, 2000), ends(problem, "reduced", 5, 8000, 1))
    assert found < bound(count)


def test_the_end_is_always_looked_at_and_durations_round():
    problem = make(duration=0.7)
    run = simulate(problem, strategies.interleaved(problem), dimension=101, runs=2, times=[0.1])
    assert run.times.tolist() == [pytest.approx(10 / 101), 0.7]
    assert "2 runs" in str(run)
    assert run.deviation.shape == (2, 2, 2)


def test_a_diverging_run_says_when_and_the_others_stay():
    """Task 2 has a huge learning rate: runs that draw it often diverge, others never draw it."""
    model = TeacherStudent.similar(0.3)
    problem = Problem(model, model.fresh(0), duration=5.0)
    protocol = Protocol([[0.9, 0.1]], 5.0, lr=[[0.1, 1e80]])
    settings = {"dimension": 4, "runs": 40, "order": "random"}
    run = simulate(problem, protocol, **settings)
    assert 0 < len(run.failures) < 40
    assert simulate(problem, protocol, times=[5.0], **settings).failures == run.failures
    for number in range(40):
        broken = np.isnan(run.losses[number]).any(axis=1)
        assert broken[-1] == (number in run.failures)
        assert not broken[0]
    first = next(iter(run.failures))
    sample = int(run.failures[first].split("diverged at sample ")[1].split(":")[0])
    assert np.isnan(run.losses[first]).all(axis=1).argmax() == np.argmax(run.times * 4 >= sample)
    assert np.all(np.isfinite(run.curves.mean[0]))
    content = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert content["losses"][first] == [None, None]
    assert content["curves"][first][0] == run.losses[first, 0].tolist()
    assert content["failures"][str(first)] == run.failures[first]
    calm = simulate(problem, Protocol([[0.9, 0.1]], 5.0, lr=0.1), **settings)
    assert not calm.failures


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"dimension": 3}, "dimension"),
        ({"dimension": -1}, "dimension"),
        ({"runs": 0}, "runs"),
        ({"engine": "fast"}, "engine"),
        ({"order": "sorted"}, "order"),
        ({"order": [0, 1], "dimension": 10}, "order"),
        (
            {"order": [2] * 40, "dimension": 10},
            "order",
        ),
        ({"times": [9.0]}, "times"),
        ({"seed": -1}, "seed"),
        ({"problem": 3}, "problem"),
        ({"protocol": Protocol(np.ones((1, 3)) / 3, 4.0)}, "protocol"),
        ({"after": 5}, "after"),
    ],
)
def test_bad_input_is_refused(settings, name):
    problem = make()
    with pytest.raises(ArgumentError) as caught:
        simulate(**{"problem": problem, "protocol": strategies.interleaved(problem)} | settings)
    assert caught.value.name == name


def test_the_papers_statement_for_its_figure_2():
    """Deviations from the theory stay below 1/√N after 1,000 units on task 1, for 2 seeds."""
    model, N = TeacherStudent.similar(0.3), 20_000
    first = Problem(model, model.fresh(1), duration=1000.0)
    learnt = simulate(first, strategies.one_task(first), dimension=N, runs=2, times=[1000.0])
    problem = Problem(model, model.pretrain(seed=1), duration=25.0)
    for protocol in (
        strategies.no_replay(problem),
        strategies.interleaved(problem),
        replan.solve(problem, replan.Relax(starts=0)).protocol,
    ):
        runs = simulate(problem, protocol, dimension=N, runs=2, seed=1, after=learnt)
        assert np.abs(runs.deviation).max() < 1 / math.sqrt(N)


def test_ctrl_c_keeps_finished_runs(monkeypatch):
    """Ctrl-C comes in the third of four runs, which waits until it has been passed on."""
    problem = make(duration=1.0)
    monkeypatch.setattr("replan.simulation.free_cores", lambda: 1)

    def stop_in_the_third_run(progress):
        if progress.done == 300:
            signal.raise_signal(signal.SIGINT)
            wait(stopped)

    runs = simulate(
        problem, strategies.interleaved(problem), dimension=100, runs=4,
        times=[0.5, 1.0], progress=stop_in_the_third_run,
    )  # fmt: skip
    assert np.isfinite(runs.losses[:3]).all()
    assert runs.failures == {3: "stopped"}
    assert np.isfinite(runs.curves.mean).all()


def test_samples_of_tasks_that_are_away_are_not_drawn():
    model = TeacherStudent.similar(0.3)
    problem = Problem(
        model, model.fresh(), duration=4.0, steps=4, arrivals=[0, 1], departures=[3, 4]
    )
    away = strategies.interleaved(make(duration=4.0))
    with pytest.raises(ArgumentError) as caught:
        simulate(problem, away, dimension=10)
    assert caught.value.name == "protocol"
    protocol = strategies.interleaved(problem)
    assert simulate(problem, protocol, dimension=10, runs=1).failures == {}


def test_files(tmp_path):
    problem = make()
    run = simulate(problem, strategies.interleaved(problem), dimension=300, runs=4)
    run.save(tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text())
    assert np.shape(content["curves"]) == (4, 101, 2)
    assert content["losses"] == run.final_losses.tolist()
    assert (content["dimension"], content["runs"], content["seed"]) == (300, 4, 0)
    np.testing.assert_array_equal(content["ode_curves"], run.theory.losses_at(run.times))
    run.save(tmp_path / "run.csv")
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 1 + 4 * 101


def test_a_task_that_has_departed_is_not_sampled_to_catch_up():
    whole = Protocol.from_segments([(1.0, [0.05, 0.1, 0.85]), (1.0, [0.0, 0.5, 0.5])], 3)
    there = np.array([[True, True, True], [False, True, True]])
    drawn = [
        Samples(whole, 8, "spread", np.random.default_rng(0), rows).take(16)[0]
        for rows in (None, there)
    ]
    assert 0 in drawn[0][8:]
    assert 0 not in drawn[1][8:]


def test_recording_is_part_of_the_compiled_loop(monkeypatch):
    """101 recordings take as many calls as none, and what they see is the chain's own state."""
    calls = []
    compiled = library.ADVANCE_REDUCED
    monkeypatch.setattr(library, "ADVANCE_REDUCED", lambda *a: calls.append(1) or compiled(*a))
    problem = make()
    protocol = strategies.interleaved(problem)
    often = simulate(problem, protocol, dimension=500, runs=1)
    assert len(calls) == 1
    once = ends(problem, "reduced", 500, 1)
    assert len(calls) == 2
    assert np.array_equal(often.states[:, -1], once.states[:, -1])
    np.testing.assert_allclose(often.ends[0].state(), often.states[0, -1], rtol=1e-12)
    Q, V = unpacked(often).Q, unpacked(often).V
    assert np.array_equal(Q, np.swapaxes(Q, -1, -2)) and np.ptp(V, axis=1).min() > 0


def test_one_run_has_no_standard_error():
    problem = make()
    run = simulate(problem, strategies.interleaved(problem), dimension=50, runs=1)
    assert run.to_dict()["standard_error"] == [None, None]
    assert "nan" not in str(run) + str(run.curves)
