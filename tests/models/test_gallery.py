"""Curriculum, dropout and denoising: published numbers, other forms, SGD, gradients and files."""

import subprocess
import sys
import tomllib

import numpy as np
import pytest

from replan import ArgumentError, Overlaps, Problem, TeacherStudent
from replan.models import Curriculum, Denoising, Dropout, Schedule
from replan.models.gallery import denoising
from replan.models.integrator import integrate
from replan.problem.template import problem_template

START = {
    "curriculum": [1.2, 0.8, 0.5],
    "dropout": ([[0.5, 0.1], [0.1, 0.4]], [[0.2, 0.1], [-0.1, 0.3]]),
    "denoising": [0.3, 0.4, 0.2],
}
MAKE = {
    "curriculum": lambda: Curriculum([0.0, 2.0, 0.7], teacher=2.0),
    "dropout": lambda: Dropout(
        [[1.0, 0.2], [0.2, 0.9]], hidden=2, teacher_heads=[1.0, 0.4], heads=[1.0, 0.7], noise=0.3
    ),
    "denoising": lambda: Denoising(mean=1.2, variance=0.3, test_noise=0.4),
}


def schedule_of(model, rng):
    knobs = rng.uniform(0.2, 0.8, size=(4, model.layout.size))
    shares = rng.dirichlet(np.ones(model.tasks), size=4)
    return Schedule(shares, knobs, rng.uniform(0.1, 0.4, 4), np.array([1, 2, 3, 1]))


# Values of version 0.1, whose kernels and reverses were written by hand: the end of a roll-out, its
# losses, and gradients by the first shares and the last knobs
RECORDED = {
    "curriculum": [
        1.27007597552, 0.760477124938, 0.764172452104, 0.340828893837, 0.395160517614,
        0.368146590684, 0.267658870472, 0.117917267775, 0.0684403076256, 0.0163281707117,
        0.170278201246, 0.0520445185082,
    ],
    "dropout": [
        0.496233087282, 0.0872598066933, 0.0872598066933, 0.386433136845, 0.296533218597,
        0.132229069357, -0.0248868396208, 0.323506413406, 0.182701147604, 0.215449606543,
        0.0893931919054, 0.0177742166297,
    ],
    "denoising": [
        0.411678796488, 0.38254322304, 0.223009402973, 0.225199847961, 0.648971642264,
        0.450472128933, 0.0472430821199, -0.180518037738,
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", MAKE)
def test_numbers_are_those_of_the_hand_written_kernels(kind):
    model, rng = MAKE[kind](), np.random.default_rng(0)
    schedule = schedule_of(model, rng)
    states = model.roll_out(model.pack(START[kind]), schedule)
    gradients = model.roll_out_vjp(states, np.ones_like(states), schedule)
    found = [states[-1], model.losses(states)[-1], gradients.by_shares[0], gradients.by_knobs[-1]]
    np.testing.assert_allclose(np.concatenate(found), RECORDED[kind], rtol=1e-9)


@pytest.mark.parametrize("kind", MAKE)
def test_gradients_match_finite_differences(kind):
    model, rng = MAKE[kind](), np.random.default_rng(1)
    x, schedule = model.pack(START[kind]), schedule_of(model, rng)
    states = model.roll_out(x, schedule)
    cotangents = rng.normal(size=states.shape)
    _, by_shares, by_knobs = model.roll_out_vjp(states, cotangents, schedule)
    for _ in range(3):
        ways = rng.normal(size=schedule.shares.shape), rng.normal(size=schedule.knobs.shape)
        up, down = (
            np.sum(cotangents * model.roll_out(x, schedule._replace(
                shares=schedule.shares + h * ways[0], knobs=schedule.knobs + h * ways[1])))
            for h in (1e-6, -1e-6)
        )  # fmt: skip
        slope = np.sum(by_shares * ways[0]) + np.sum(by_knobs * ways[1])
        assert (up - down) / 2e-6 == pytest.approx(slope, rel=1e-6, abs=1e-8)
    weights, way = rng.normal(size=(5, len(model.loss_names))), rng.normal(size=states.shape)
    up, down = (np.sum(weights * model.losses(states + h * way)) for h in (1e-6, -1e-6))
    slope = np.sum(model.losses_vjp(states, weights) * way)
    assert (up - down) / 2e-6 == pytest.approx(slope, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("kind", MAKE)
def test_sgd_follows_the_theory(kind):
    """Means of runs within four standard errors and what is left at finite N, which shrinks."""
    model, N, steps, runs = MAKE[kind](), 300, 600, 30
    x, rng = model.pack(START[kind]), np.random.default_rng(0)
    T, own = model.tasks, len(model.knobs)
    values = np.array([0.5, 0.6])[:own]  # the learning rate, and the model's own knob
    knobs = model.layout.rows({k.name: v for k, v in zip(model.knobs, values, strict=True)}, 8)
    schedule = Schedule.single_steps(np.full((8, T), 1 / T), knobs, np.full(8, steps / N / 8))
    theory = integrate(model, x, schedule).states[-1]
    ends = []
    for _ in range(runs):
        run = model.begin_chain("full", x, N).resume(rng)
        assert run.advance(rng.integers(T, size=steps), np.tile(values, (steps, 1))) == steps
        ends.append(run.state())
    error = np.std(ends, axis=0) / np.sqrt(runs)
    assert np.all(np.abs(np.mean(ends, axis=0) - theory) < 4 * error + 3 / N)
    assert np.abs(theory - x).max() > 0.05  # something happened


# Numbers from elsewhere


@pytest.mark.parametrize(("order", "known"), [((0, 1), 0.1555469343), ((1, 0), 0.1624795304)])
def test_orders_of_a_curriculum_under_euler(order, known):
    from replan.models.gallery.curriculum import rate

    model, x = Curriculum(), np.array([1.0, 1.0, 0.0])
    import jax

    with jax.enable_x64(True):
        step = jax.jit(lambda x, task, p: x + 0.05 * rate(x, task, 3.0, **p))
        for i in range(240):
            x = step(x, order[i // 120], model.parameters)
        assert model.losses(np.array(x)).mean() == pytest.approx(known, abs=5e-11)


def trained(model, start, duration, **knobs):
    values = {knob.name: knob.default for knob in model.knobs} | knobs
    rows = np.ones((10, 1)), model.layout.rows(values, 10), np.full(10, duration / 10)
    return integrate(model, model.pack(start), Schedule.single_steps(*rows)).states[-1]


NOTHING = np.zeros((2, 2)), np.zeros((2, 1))


def test_the_error_of_dropout():
    model = Dropout([[0.99990622]], hidden=2, noise=0.3, rescale=0.7)
    end = trained(model, NOTHING, 5.0, keep=0.7)
    assert model.losses(end)[0] == pytest.approx(0.0364760, abs=5e-8)


def test_dropout_that_keeps_all_is_the_teacher_student():
    model = Dropout([[1.0]], hidden=2, noise=0.2, rescale=1.0)
    student = TeacherStudent([[1.0]], hidden=2, noise=0.2, train_heads=False)
    Q, M = np.array([[0.3, 0.1], [0.1, 0.2]]), np.array([[0.1], [0.2]])
    known = student.losses(student.pretrain(0, 3.0, start=Overlaps(Q, M, np.ones((1, 2)))))
    assert model.losses(trained(model, (Q, M), 3.0)) == pytest.approx(known, rel=1e-9)


@pytest.mark.parametrize(
    ("Q", "M", "best"), [(1.0, 0.9, None), (1.0, -0.9, 0.0), (1e-6, 1e-3, 10.0)]
)
def test_the_factor_is_the_best_from_0_to_10(Q, M, best):
    def loss(rescale=None):
        return Dropout([[1.0]], hidden=1, rescale=rescale).losses(np.array([Q, M]))[0]

    at0, at1, at2 = (loss(r) for r in (0.0, 1.0, 2.0))  # a parabola
    bend, r = at0 - 2 * at1 + at2, np.linspace(0.0, 10.0, 100_001)
    parabola = at0 + (at1 - at0 - bend / 2) * r + bend / 2 * r**2
    assert loss() == pytest.approx(parabola.min(), rel=1e-8)
    if best is not None:
        assert loss() == pytest.approx(loss(best), rel=1e-12)


def test_denoising_from_the_covariance_of_its_fields():
    """E of the products of the fields of weights and clusters, given the sign of the cluster."""
    model, (m, q, b), noise = MAKE["denoising"](), START["denoising"], 0.25
    of_inputs, variance = model.parameters["mean"], model.parameters["variance"]
    mean = np.array([m, of_inputs])
    square = np.array([[q, m], [m, of_inputs]])
    clean = variance * square + np.outer(mean, mean)
    kappa = np.sqrt(1 - noise)
    mixed, noisy = kappa * clean, kappa**2 * clean + noise * square
    rest, seen = np.array([1 - b * kappa, -b * np.sqrt(noise)]), np.array([kappa, np.sqrt(noise)])
    power = np.array([variance, 1.0])  # of the clean input and of the noise
    R, X, Y = rest**2 @ power, seen**2 @ power, (rest * seen) @ power
    e = b + q
    first = mixed[0, 0] - e * noisy[0, 0]
    second = clean[0, 0] - 2 * e * mixed[0, 0] + e**2 * noisy[0, 0]
    back = mixed[1, 0] - b * noisy[0, 1] - m * noisy[0, 0] + mixed[0, 1] - e * noisy[0, 1]
    spread = noisy[0, 0] * R + 2 * first * Y + second * X
    found = denoising.rate((m, q, b), 0, 0.7, noise, **model.to_dict())
    np.testing.assert_allclose(
        found, 0.7 * np.array([back, 4 * first + 0.7 * spread, Y]), rtol=1e-6
    )


# Files and mistakes


def test_changed_parameters_are_those_of_files_too():
    model = MAKE["dropout"]().with_parameters(noise=0.0)
    assert model.to_dict()["noise"] == 0.0


@pytest.mark.parametrize("kind", MAKE)
def test_files_describe_models_and_starts(kind):
    problem = Problem.from_dict(tomllib.loads(problem_template(kind)))
    again = Problem.from_dict(problem.to_dict())
    assert again.to_dict() == problem.to_dict()
    model = MAKE[kind]()
    assert type(model).from_dict(model.to_dict()).to_dict() == model.to_dict()
    start = model.start_from_dict(model.start_to_dict(START[kind]))
    assert model.pack(start).tolist() == model.pack(START[kind]).tolist()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("difficulties", lambda: Curriculum([])),
        ("difficulties", lambda: Curriculum([-1.0])),
        ("difficulties", lambda: Curriculum([1.0, 1.0])),
        ("teacher", lambda: Curriculum(teacher=0.0)),
        ("start", lambda: Curriculum().pack([1.0, 1.0, 2.0])),
        ("heads", lambda: Dropout([[1.0]], hidden=2, heads=[1.0])),
        ("teacher_overlaps", lambda: Dropout([[1.0, 2.0]], hidden=2)),
        ("start", lambda: Dropout([[1.0]], hidden=1).pack(3)),
        ("Q", lambda: Dropout([[1.0]], hidden=1).pack(([[-1.0]], [[0.0]]))),
        ("variance", lambda: Denoising(variance=-1)),
        ("start", lambda: Denoising().pack([1.0, 0.1, 0.0])),
    ],
)
def test_mistakes(name, make):
    with pytest.raises(ArgumentError) as error:
        make()
    assert error.value.name == name


def test_without_jax_the_kinds_are_known_and_models_say_what_they_need():
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from replan.models import Curriculum, registry\n"
        "assert 'curriculum' in registry.KINDS and Curriculum.example\n"
        "try:\n    Curriculum()\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "replan[jax]" in done.stdout
