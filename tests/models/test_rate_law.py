"""The law of rates: its closed form against its equations, its gradients, its files."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import replan
from replan import ArgumentError
from replan.models import RateLaw, Schedule
from replan.models.rate_law import MODES, weights

LAWS = [[2.4, 1.0, 0.45, 0.12, 60.0, 0.5, 0.6], [2.3, 1.1, 0.4, 0.2, 8.0, -0.1, 0.8]]


@pytest.fixture
def law():
    return RateLaw(LAWS, peak=1e-3, unit=400.0)


def schedule(rates, length):
    count = len(rates)
    return Schedule.single_steps(
        np.ones((count, 1)), np.asarray(rates)[:, None], np.full(count, length)
    )


def test_the_closed_form_solves_the_equations(law):
    start, rates, length = law.warmed_up(300), [1e-3, 7e-4, 1e-4, 0.0], 700.0
    pace, spread = law.laws[:, 4, None], weights(law.laws)
    state = start
    for rate in rates:
        eta = rate / law.peak

        def slope(_, x, eta=eta):
            modes = x[1:].reshape(2, -1)
            force = spread * eta ** law.laws[:, 6, None]
            return np.append(eta, (pace * MODES * eta**1.25 * (force - modes)).ravel()) / law.unit

        state = solve_ivp(slope, (0, length), state, rtol=1e-10, atol=1e-13).y[:, -1]
    found = law.roll_out(start, schedule(rates, length))[-1]
    np.testing.assert_allclose(found, state, rtol=1e-6, atol=1e-9)
    floor, signal, exponent, noise = law.laws.T[:4]
    rest = signal * state[0] ** -exponent
    each = floor + rest + noise * (1 + 2 * rest) * state[1:].reshape(2, -1).sum(axis=1)
    np.testing.assert_allclose(law.losses(found), [each.mean()], rtol=1e-6)


def test_gradients_match_differences(law):
    start, rates, size = law.warmed_up(300), np.array([1e-3, 8e-4, 3e-4, 5e-5]), 1e-8

    def loss(rates, start=start):
        return law.losses(law.roll_out(start, schedule(rates, 500.0))[-1])[0]

    states = law.roll_out(start, schedule(rates, 500.0))
    weights = np.zeros((5, 1))
    weights[-1] = 1.0
    found = law.roll_out_vjp(states, law.losses_vjp(states, weights), schedule(rates, 500.0))
    numeric = [(loss(rates + x) - loss(rates - x)) / (2 * size) for x in size * np.eye(4)]
    np.testing.assert_allclose(found.by_knobs[:, 0], numeric, rtol=1e-5)
    moved = [
        (loss(rates, start + x) - loss(rates, start - x)) / 2e-6 for x in 1e-6 * np.eye(len(start))
    ]
    np.testing.assert_allclose(found.adjoints[0], moved, rtol=1e-5, atol=1e-10)


def test_a_curve_is_that_of_its_roll_out(law):
    steps = np.linspace(0, 4000, 81)
    rates = np.full(81, 1e-3)
    state = law.after(steps, rates)
    assert law.curve(steps, rates)[-1] == pytest.approx(law.losses(state)[0], rel=1e-12)
    longer = law.roll_out(state, schedule([1e-3] * 3, 500.0))
    steps, rates = np.append(steps, 5500.0), np.append(rates, 1e-3)
    assert law.curve(steps, rates)[-1] == pytest.approx(law.losses(longer[-1])[0], rel=1e-6)


def test_a_law_is_a_model_like_any_other(law, tmp_path):
    problem = replan.Problem(
        law, law.warmed_up(300), 9000.0, lr=1e-3, steps=60,
        control=replan.Control(tasks=False, lr=(0.0, 1e-3)),
    )  # fmt: skip
    plan = replan.solve(problem)
    constant = replan.evaluate(problem, replan.strategies.interleaved(problem)).loss
    assert plan.loss < constant - 0.05
    assert np.all(np.diff(plan.protocol.lr) <= 1e-9)  # free, it falls all the same
    assert plan.certificate.residual_over_loss < 1e-3
    problem.save(tmp_path / "law.toml")
    again = replan.Problem.load(tmp_path / "law.toml")
    assert replan.evaluate(again, plan.protocol).loss == pytest.approx(plan.loss, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"laws": [[1.0, 2.0]]}, "laws"),
        ({"laws": [[2.4, -1.0, 0.45, 0.12, 60.0, 0.5, 0.6]]}, "laws"),
        ({"peak": 0.0}, "peak"),
        ({"unit": -1.0}, "unit"),
    ],
)
def test_bad_laws_are_refused(change, name):
    with pytest.raises(ArgumentError) as refused:
        RateLaw(**({"laws": LAWS, "peak": 1e-3, "unit": 400.0} | change))
    assert refused.value.name == name
