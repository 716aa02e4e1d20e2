"""The law of shares: its closed form against its equations, its gradients, its files."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import replan
from replan import ArgumentError
from replan.models import Schedule, ShareLaw
from replan.models.share_law import MODES

WEB, CODE = (
    [[1.0, 1.2, 0.2, 0.1, 2.0, 1.0, 0.3, 0.0, 1.5, 0.0, 0.3]],
    [[0.7, 1.0, 0.3, 0.1, 2.4, 0.001, 1.0, 2.7, 0.01, 0.0, 2.3]],
)
LAWS = np.array([[*WEB, *CODE], [*WEB, *CODE]]) * np.array([1.0, 1.1])[:, None, None]
SHARES = np.array([[1.0, 0.0], [0.5, 0.5], [0.1, 0.9]])


@pytest.fixture
def law():
    return ShareLaw(LAWS, ["web", "code"], ["web", "code"], 400.0, [0.0, 26.0])


def schedule(shares, length=300.0):
    return Schedule.single_steps(shares, np.ones((len(shares), 0)), np.full(len(shares), length))


def test_the_closed_form_solves_the_equations(law):
    found = law.roll_out(law.fresh(), schedule(SHARES))[-1]
    _, _, _, memorising, fading, *rest = LAWS[1, 1]
    transfer, forgetting, overfit = np.reshape(rest, (3, 2))
    state = np.append(np.ones(len(MODES)), [0.0, 0.0])
    for share in SHARES:

        def slope(_, x, c=share):
            modes, memory = x[:-2], x[-2:]
            signal = -MODES * (transfer @ c) * modes + forgetting @ c * (1 - modes)
            seen = memorising * law.repeats * c * (1 - memory)
            return np.append(signal, seen - fading * (1 - c) * memory) / 400.0

        state = solve_ivp(slope, (0, 300.0), state, "LSODA", rtol=1e-9, atol=1e-12).y[:, -1]
    np.testing.assert_allclose(law.fresh().size / 4, len(state))
    np.testing.assert_allclose(found.reshape(4, -1)[3], state, rtol=1e-6, atol=1e-9)
    spectrum = MODES ** LAWS[1, 1, 2]
    signal = LAWS[1, 1, 1] * spectrum @ state[:-2] / spectrum.sum()
    expected = LAWS[1, 1, 0] + signal + overfit @ state[-2:] ** 3
    assert law.losses_each(found)[1, 1] == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(law.losses(found), law.losses_each(found).mean(axis=0))


def test_gradients_match_differences(law):
    weights = np.zeros((4, 2))
    weights[-1] = 0.3, 0.7
    start = law.roll_out(law.fresh(), schedule(SHARES[::-1]))[-1]

    def value(shares, start=start):
        return weights[-1] @ law.losses(law.roll_out(start, schedule(shares))[-1])

    states = law.roll_out(start, schedule(SHARES))
    found = law.roll_out_vjp(states, law.losses_vjp(states, weights), schedule(SHARES))
    shifts = 1e-6 * np.eye(6).reshape(6, 3, 2)
    numeric = [(value(SHARES + x) - value(SHARES - x)) / 2e-6 for x in shifts]
    np.testing.assert_allclose(found.by_shares.ravel(), numeric, rtol=1e-5, atol=1e-9)
    moved = 1e-6 * np.eye(len(start))
    numeric = [(value(SHARES, start + x) - value(SHARES, start - x)) / 2e-6 for x in moved]
    np.testing.assert_allclose(found.adjoints[0], numeric, rtol=1e-4, atol=1e-9)


def test_constant_shares_give_a_power_law():
    flat = [0.0, 1.0, 0.4, 0.0, 0.0, 1.0, 0.0, 0.0]
    law = ShareLaw([[flat]], ["web"], ["web"], 1.0, [0.0])
    lengths = np.geomspace(0.02, 20, 13)
    steps = Schedule.single_steps(np.ones((13, 1)), np.ones((13, 0)), np.diff(lengths, prepend=0))
    losses = law.losses(law.roll_out(law.fresh(), steps)[1:])[:, 0]
    slopes = np.diff(np.log(losses)) / np.diff(np.log(lengths))
    np.testing.assert_allclose(slopes, -0.4, atol=0.03)


def test_mixtures_are_tasks(law, tmp_path):
    mixtures = [[0.9, 0.1], [0.2, 0.8]]
    mixed = ShareLaw(LAWS, law.domains, law.loss_names, 400.0, law.repeats, mixtures)
    assert mixed.task_names == ("90 % web + 10 % code", "20 % web + 80 % code")
    ends = mixed.roll_out(mixed.fresh(), schedule(SHARES)), SHARES @ mixtures
    np.testing.assert_allclose(ends[0], law.roll_out(law.fresh(), schedule(ends[1])))
    problem = replan.Problem(mixed, mixed.fresh(), 900.0, steps=30)
    plan = replan.solve(problem)
    constant = problem.changed(control=replan.Control("constant"))
    assert plan.certificate.relaxed_value <= replan.solve(constant).certificate.relaxed_value
    assert plan.certificate.residual_over_loss < 1e-3
    problem.save(tmp_path / "law.toml")
    again = replan.Problem.load(tmp_path / "law.toml")
    assert replan.evaluate(again, plan.relaxed).loss == pytest.approx(
        replan.evaluate(problem, plan.relaxed).loss, abs=1e-12
    )


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"laws": [[[1.0, 2.0]]]}, "laws"),
        ({"laws": -LAWS}, "laws"),
        ({"unit": 0.0}, "unit"),
        ({"repeats": [1.0]}, "repeats"),
        ({"mixtures": [[0.5, 0.6]]}, "mixtures"),
    ],
)
def test_bad_laws_are_refused(change, name):
    right = {"laws": LAWS, "domains": ["web", "code"], "losses": ["web", "code"]}
    with pytest.raises(ArgumentError) as refused:
        ShareLaw(**(right | {"unit": 400.0, "repeats": [0.0, 26.0]} | change))
    assert refused.value.name == name
