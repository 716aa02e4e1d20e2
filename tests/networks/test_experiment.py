import json

import numpy as np
import pytest

from replan import IntegrationError, Protocol
from replan.networks import Training, experiment, mixed_tasks, parity_tasks
from replan.networks._network import mean_loss, train

SHORT = Training(first=200, interval=20, sample=30, smoothing=0.0)


def plain_loss(weights, head, x, target):
    """The loss of the network as written down, in float64; x is not divided by √D yet."""
    fields = weights @ x / np.sqrt(x.size)
    return 0.5 * np.sum((head @ np.maximum(fields, 0) - target) ** 2)


def small_world(outputs=2):
    rng = np.random.default_rng(3)
    K, D, n = 4, 30, 6
    return {
        "weights": rng.standard_normal((K, D)).astype(np.float32),
        "heads": rng.standard_normal((2, outputs, K)).astype(np.float32),
        "pixels": rng.integers(0, 256, (n, D), dtype=np.uint8),
        "targets": rng.standard_normal((n, outputs)).astype(np.float32),
        "streams": rng.integers(0, n, (2, 2, 50)),
        "position": np.zeros(2, np.int64),
        "mix": np.array([1.0, 0.3], np.float32),
    }


def sample(world, task, number, scale, shift):
    i, j = world["streams"][task, :, number]
    g = float(world["mix"][task])
    pixels, targets = world["pixels"].astype(float), world["targets"].astype(float)
    x = scale * (g * pixels[i] + (1 - g) * pixels[j]) + shift
    return x, g * targets[i] + (1 - g) * targets[j]


@pytest.mark.parametrize("task", [0, 1])
def test_one_step_is_along_the_gradient(task):
    """Against finite differences of the loss in float64."""
    world = small_world()
    before = {name: world[name].astype(float) for name in ("weights", "heads")}
    scale, shift, lr = 1 / 80, -1.2, 0.05
    x, target = sample(world, task, 0, scale, shift)

    def loss(weights, heads):
        return plain_loss(weights, heads[task], x, target)

    rate = np.full(1, lr, np.float32)
    train(*world.values(), np.array([task]), rate, scale, shift)
    for name, value in before.items():
        gradient = np.empty_like(value)
        for index in np.ndindex(value.shape):
            ends = []
            for sign in (1, -1):
                moved = {key: x.copy() for key, x in before.items()}
                moved[name][index] += sign * 1e-6
                ends.append(loss(**moved))
            gradient[index] = (ends[0] - ends[1]) / 2e-6
        assert np.abs(gradient).max() > 0.01
        np.testing.assert_allclose((value - world[name]) / lr, gradient, atol=2e-5)


def test_a_run_of_steps_against_torch():
    torch = pytest.importorskip("torch")
    world = small_world()
    weights, heads = (
        torch.tensor(world[name], requires_grad=True) for name in ("weights", "heads")
    )
    tasks, lr = np.array([0, 1, 1, 0, 1] * 8), 0.02
    counts = [0, 0]
    for task in tasks:
        x, target = sample(world, task, counts[task], 1 / 80, -1.2)
        counts[task] += 1
        fields = weights @ torch.tensor(x, dtype=torch.float32) / np.sqrt(x.size)
        error = heads[task] @ torch.relu(fields) - torch.tensor(target, dtype=torch.float32)
        (0.5 * (error**2).sum()).backward()
        with torch.no_grad():
            for part in (weights, heads):
                part -= lr * part.grad
                part.grad = None
    train(*world.values(), tasks, np.full(tasks.size, lr, np.float32), 1 / 80, -1.2)
    np.testing.assert_allclose(world["weights"], weights.detach().numpy(), atol=2e-5)
    np.testing.assert_allclose(world["heads"], heads.detach().numpy(), atol=2e-5)


def test_a_run_of_steps_against_the_formulas():
    """The same in float64, with the gradient written down once more."""
    world = small_world()
    weights, heads = world["weights"].astype(float), world["heads"].astype(float)
    tasks, lr, counts = np.array([0, 1, 1, 0, 1] * 8), 0.02, [0, 0]
    for task in tasks:
        x, target = sample(world, task, counts[task], 1 / 80, -1.2)
        counts[task] += 1
        x = x / np.sqrt(x.size)
        fields = weights @ x
        error = heads[task] @ np.maximum(fields, 0) - target
        push = (heads[task].T @ error) * (fields > 0)
        heads[task] -= lr * np.outer(error, np.maximum(fields, 0))
        weights -= lr * np.outer(push, x)
    train(*world.values(), tasks, np.full(tasks.size, lr, np.float32), 1 / 80, -1.2)
    np.testing.assert_allclose(world["weights"], weights, atol=2e-5)
    np.testing.assert_allclose(world["heads"], heads, atol=2e-5)


def test_the_mean_loss_is_the_mean_of_the_losses():
    world = small_world()
    inputs = np.random.default_rng(0).standard_normal((9, 30))
    targets = np.random.default_rng(1).standard_normal((9, 2))
    found = mean_loss(
        world["weights"], world["heads"][1],
        (inputs / np.sqrt(30)).astype(np.float32), targets.astype(np.float32),
    )  # fmt: skip
    wanted = [
        plain_loss(world["weights"], world["heads"][1], x, y)
        for x, y in zip(inputs, targets, strict=True)
    ]
    assert found == pytest.approx(np.mean(wanted), rel=1e-5)


def test_mixed_tasks_mix_images_and_labels(images):
    one = mixed_tasks(images, 0.25, test_samples=40)
    assert one.mix.tolist() == [1.0, 0.25]
    labels = images.train_labels[np.isin(images.train_labels, [0, 2, 5, 7])]
    assert set(labels[one.pools[1][0]]) == {0, 5}
    assert set(labels[one.pools[1][1]]) == {2, 7}
    assert set(np.unique(one.test[0][1])) == {-1.0, 1.0}
    assert set(np.unique(one.test[1][1])) == {-1.0, -0.5, 0.5, 1.0}
    held = {tuple(row) for row in (one.held_out[0][0] * 28 * 255).round().astype(int)}
    everything = [tuple(row) for row in one.pixels.astype(int)]
    trained = {everything[i] for pools in one.pools for pool in pools for i in pool}
    assert held <= set(everything)
    assert not held & trained  # what estimates the loss was never trained on
    assert len(held) == 20
    assert one.scale == pytest.approx(1 / 255)
    standard = mixed_tasks(images, 0.25, normalise="standard")
    inputs = standard.scale * standard.pixels + standard.shift
    assert (inputs.mean(), inputs.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1))


def test_parity_tasks_have_an_output_for_each_class(images):
    labels = np.arange(400) % 10
    ten = images._replace(train_labels=labels, test_labels=labels[:100])
    made = parity_tasks(ten, test_samples=20)
    assert made.targets.shape[1] == 5
    assert set(made.targets.sum(axis=1)) == {-3.0}
    assert set(labels[made.pools[0][0]]) == {1, 3, 5, 7, 9}
    assert set(labels[made.pools[1][0]]) == {0, 2, 4, 6, 8}
    assert set(np.argmax(made.targets[labels == 7], axis=1)) == {3}


@pytest.fixture(scope="module")
def learnt(images):
    tasks = mixed_tasks(images, 0.5, test_samples=50)
    looks = [-100, 0, 50, 100, 200, 400]
    return tasks, experiment(tasks, looks, training=SHORT, realisations=4, threads=1)


def test_it_does_not_depend_on_threads(learnt):
    tasks, one = learnt
    two = experiment(tasks, one.steps.tolist(), training=SHORT, realisations=4, threads=3)
    for name, losses in one.losses.items():
        assert np.array_equal(losses, two.losses[name])
    assert one.decisions == two.decisions
    other = experiment(tasks, [100, 400], training=SHORT, realisations=4, seed=1)
    assert not np.array_equal(other.losses["no replay"][:, -1], one.losses["no replay"][:, -1])
    some = experiment(tasks, one.steps.tolist(), training=SHORT, realisations=[2, 3])
    assert np.array_equal(some.losses["interleaved"], one.losses["interleaved"][2:])


@pytest.mark.parametrize("size", [50, 200])
def test_a_run_passes_through_the_smaller_sizes(learnt, size):
    tasks, one = learnt
    alone = experiment(tasks, [size], training=SHORT, realisations=4)
    for name, losses in alone.losses.items():
        assert np.array_equal(losses[:, 0], one.losses[name][:, one.at(size)])


def test_the_rule_is_no_replay_until_its_switch_and_then_not(learnt):
    _, one = learnt
    switched = one.switches[one.switches >= 0]
    assert len(switched)
    assert np.all(switched % SHORT.interval == 0)
    for realisation, switch in enumerate(one.switches):
        rule, alone = (one.losses[name][realisation] for name in ("pseudo-optimal", "no replay"))
        until = one.steps <= (switch if switch >= 0 else np.inf)
        assert np.array_equal(rule[until], alone[until])
        assert until.all() or not np.array_equal(rule[~until], alone[~until])
        [*_, last] = one.decisions[realisation] or [None]
        if switch >= 0:
            assert (last["step"], last["what"]) == (switch, "replay")
            assert last["losses"][1] <= last["losses"][0]


def test_replay_keeps_task_1_better_than_no_replay(learnt):
    _, one = learnt
    assert one.losses["interleaved"][:, -1, 0].mean() < one.losses["no replay"][:, -1, 0].mean()


def test_protocols_of_the_theory_can_be_played(learnt):
    tasks, one = learnt
    found = experiment(
        tasks, one.steps.tolist(), training=SHORT, realisations=4,
        protocols={
            "alone": Protocol([[0.0, 1.0]], 25.0),
            "half": Protocol([[0.5, 0.5]], 25.0),
            "slower": Protocol([[0.0, 1.0]], 25.0, 0.5),
        },
    )  # fmt: skip
    assert np.array_equal(found.losses["alone"], one.losses["no replay"])
    assert np.array_equal(found.losses["half"], one.losses["interleaved"])
    assert not np.array_equal(found.losses["slower"][:, -1], found.losses["alone"][:, -1])


def test_results_are_files(learnt, tmp_path):
    _, one = learnt
    one.save(tmp_path / "one.json")
    content = json.loads((tmp_path / "one.json").read_text())
    assert np.shape(content["losses"]["interleaved"]) == (4, 6, 2)
    for key in ("similarity", "upstream", "lr", "hidden", "normalise", "seed", "smoothing"):
        assert key in content["settings"]
    some = experiment(learnt[0], [5], training=SHORT, realisations=[2, 3])
    some.save(tmp_path / "some.csv")
    assert [x.split(",")[1] for x in (tmp_path / "some.csv").read_text().splitlines()][1:3] == [
        "2",
        "3",
    ]
    one.save(tmp_path / "one.csv")
    assert len((tmp_path / "one.csv").read_text().splitlines()) == 1 + 3 * 4 * 6


def test_objects_are_printed_in_a_few_words(learnt):
    tasks, one = learnt
    assert max(map(len, str(one).splitlines())) <= 80
    assert "pseudo-optimal" in str(one)
    assert len(repr(tasks)) < 300
    assert len(repr(one)) < 80


def test_a_divergence_is_an_error_that_says_what_to_do(images):
    wild = Training(first=50, lr=1e30)
    with pytest.raises(IntegrationError, match=r"realisation 0 diverged with .* smaller `lr`"):
        experiment(mixed_tasks(images, 0.5, test_samples=20), [50], training=wild, realisations=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda im: mixed_tasks(im, 1.2), "`similarity` expects a finite number of at least 0 and"),
        (
            lambda im: mixed_tasks(im, 0.5, upstream=(0, 0)),
            "`upstream` expects two different classes",
        ),
        (
            lambda im: mixed_tasks(im, 0.5, auxiliary=(0, 2)),
            "`auxiliary` expects other classes than",
        ),
        (lambda im: mixed_tasks(im, 0.5, upstream=(1, 3)), "`images` expects images of"),
        (
            lambda im: mixed_tasks(im, 0.5, normalise="no"),
            "`normalise` expects one of unit",
        ),
        (lambda im: experiment(mixed_tasks(im, 0.5), []), "`looks` expects steps"),
        (
            lambda im: experiment(mixed_tasks(im, 0.5), [-20_000, 5]),
            "`looks` expects an integer of",
        ),
        (
            lambda im: experiment(mixed_tasks(im, 0.5), [5], realisations=0),
            "`realisations` expects",
        ),
        (lambda im: experiment(im, [5]), "`tasks` expects ImageTasks, two of them, got Images"),
        (
            lambda im: experiment(mixed_tasks(im, 0.5), 100),
            "expects a list of steps",
        ),
        (lambda im: experiment(mixed_tasks(im, 0.5), [5], realisations=[1, 1]), "none twice"),
        (lambda im: mixed_tasks(im, 0.5, upstream=(0, 12)), "two different classes from 0 to 9"),
        (lambda im: Training(hidden=0), "`hidden` expects an integer of at least 1, got 0"),
        (lambda im: Training(lr=-1.0), "`lr` expects a finite number of at least 0, got -1.0"),
    ],
)
def test_bad_input_is_refused(images, call, message):
    with pytest.raises(ValueError, match=message):
        call(images)
