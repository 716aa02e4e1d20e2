"""Tasks from pairs of classes and from folders of arrays or images."""

import numpy as np
import pytest
from PIL import Image

from replan.networks import _datasets
from replan.networks._task_data import fashion_pairs, task_folder


def rows(samples):
    return {tuple(x) for x in samples.x.tolist()}


def test_pairs_of_classes(images, monkeypatch):
    monkeypatch.setattr(_datasets, "fashion_mnist", lambda root=None: images)
    data = fashion_pairs(("70", "52"))
    assert data.tasks == ["70", "52"]
    assert data.classes == ["7", "0", "5", "2"]
    assert [data.classes_of(task).tolist() for task in (0, 1)] == [[0, 1], [2, 3]]
    assert sum(len(samples.y) for samples in data.train) == len(images.train_labels)
    assert sum(len(s.y) for s in data.validation + data.test) == len(images.test_labels)
    boots = images.train_images[images.train_labels == 7] / np.float32(255)
    assert np.array_equal(data.train[0].x[data.train[0].y == 0], boots.reshape(len(boots), -1))
    for validation, test in zip(data.validation, data.test, strict=True):
        assert rows(validation).isdisjoint(rows(test))


@pytest.fixture
def folder(tmp_path):
    """Two tasks: an .npz file with three classes, and a folder of grey images with two of them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (40, 4, 5), dtype=np.uint8)
    np.savez(tmp_path / "1-first.npz", x=x, y=np.repeat(["ant", "bee", "cat"], [25, 10, 5]))
    for name, count in (("bee", 7), ("dog", 11)):
        (tmp_path / "2-second" / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (4, 5), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "2-second" / name / f"{i}.png")
    (tmp_path / ".hidden").touch()
    return tmp_path


def test_a_folder_of_arrays_and_images(folder):
    data = task_folder(folder)
    assert data.tasks == ["1-first", "2-second"]
    assert data.classes == ["ant", "bee", "cat", "dog"]
    assert data.classes_of(1).tolist() == [1, 3]  # a class of both tasks is one class
    parts = (data.train, data.validation, data.test)
    for task, counts in enumerate(([25, 10, 5, 0], [0, 7, 0, 11])):
        found = [np.bincount(part[task].y, minlength=4).tolist() for part in parts]
        fifths = [n // 5 for n in counts]
        rest = [n - 2 * fifth for n, fifth in zip(counts, fifths, strict=True)]
        assert found == [rest, fifths, fifths]  # every class has its part of each
        assert len(set.union(*(rows(part[task]) for part in parts))) == sum(counts)
    with np.load(folder / "1-first.npz") as arrays:
        pixels = {tuple(x) for x in (arrays["x"].reshape(40, 20) / np.float32(255)).tolist()}
    assert pixels == set.union(*(rows(part[0]) for part in parts))
    bee = folder / "2-second" / "bee"
    kept = {
        tuple((np.asarray(Image.open(p)).ravel() / np.float32(255)).tolist()) for p in bee.iterdir()
    }
    assert kept <= set.union(*(rows(part[1]) for part in parts))


def test_the_digest_is_of_the_content(folder, tmp_path):
    digest = task_folder(folder).digest
    assert task_folder(folder).digest == digest
    with Image.open(folder / "2-second" / "dog" / "3.png") as image:
        image.transpose(Image.Transpose.ROTATE_180).save(folder / "2-second" / "dog" / "3.png")
    changed = task_folder(folder).digest
    assert changed != digest
    (folder / "2-second").rename(folder / "3-second")
    assert task_folder(folder).digest not in (digest, changed)


def test_numbers_other_than_bytes_stay_as_they_are(tmp_path):
    x = np.arange(20).reshape(10, 2) * 1000.0
    np.savez(tmp_path / "task.npz", x=x, y=np.repeat([3, 11], 5))
    data = task_folder(tmp_path)
    assert data.classes == ["11", "3"]
    assert rows(data.train[0]) | rows(data.validation[0]) | rows(data.test[0]) == set(
        map(tuple, x.tolist())
    )


def test_images_in_colour(tmp_path):
    for i in range(5):
        for name in ("a", "b"):
            (tmp_path / "task" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGBA", (3, 2), (i, 10, 20, 30)).save(tmp_path / "task" / name / f"{i}.PNG")
    assert task_folder(tmp_path).train[0].x.shape == (6, 2 * 3 * 3)


def save(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


X, Y = np.ones((10, 3)), np.repeat([0, 1], 5)


def picture(path, mode="L", size=(3, 3)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: None, r"an \.npz file or a sub-folder for each task, got '.*', which has none"),
        (lambda f: (f / "a.csv").touch(), r"got the file '.*a\.csv' in it"),
        (lambda f: (f / "a.npz").write_text("no"), r"arrays `x` and `y`, got '.*a\.npz'"),
        (lambda f: save(f / "a.npz", x=X), r"arrays `x` and `y`, got '.*a\.npz'.*y"),
        (lambda f: save(f / "a.npz", x=np.array([None]), y=Y), r"arrays `x` and `y`, got"),
        (lambda f: save(f / "a.npz", x=X[:9], y=Y), r"got float64 \(9, 3\) and int64 \(10,\) in"),
        (lambda f: save(f / "a.npz", x=X[:, 0], y=Y), r"got float64 \(10,\) and int64"),
        (lambda f: save(f / "a.npz", x=X, y=Y + 0.5), "integers or words .* got float64"),
        (lambda f: save(f / "a.npz", x=X * np.nan, y=Y), "finite numbers `x`, got others"),
        (lambda f: save(f / "a.npz", x=X, y=np.arange(10)), "at least 5 .* got 1 of 0 in a"),
        (
            lambda f: (save(f / "a.npz", x=X, y=Y), save(f / "b.npz", x=X[:, :2], y=Y)),
            r"one shape and kind in all tasks, got float32 \(3,\) in a and float32 \(2,\) in b",
        ),
        (
            lambda f: (save(f / "a.npz", x=X, y=Y), picture(f / "a" / "cat" / "1.png")),
            "tasks of different names, got a twice",
        ),
        (lambda f: (f / "a").mkdir(), "images in sub-folders for each class, got '.*a'"),
        (lambda f: picture(f / "a" / "1.png"), r"each class, got the file '.*1\.png'"),
        (lambda f: save(f / "a" / "cat" / "1.npz", x=X), r"images \(\.png, .* got '.*1\.npz'"),
        (
            lambda f: (picture(f / "a" / "cat" / "1.png"), (f / "a" / "cat" / "2.png").touch()),
            r"images, got '.*2\.png'",
        ),
        (
            lambda f: (
                picture(f / "a" / "cat" / "1.png"),
                picture(f / "a" / "cat" / "2.png", size=(4, 3)),
            ),
            r"images of one size, .* got \(3, 3\) and, in '.*2\.png', \(3, 4\)",
        ),
        (
            lambda f: (
                picture(f / "a" / "cat" / "1.png"),
                picture(f / "a" / "dog" / "1.png", mode="RGB"),
            ),
            r"all grey or all in colour, got \(3, 3\) and, in '.*', \(3, 3, 3\)",
        ),
    ],
)  # fmt: skip
def test_bad_folders_are_refused(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(ValueError, match=f"`data` expects .*{message}"):
        task_folder(tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"got '.*nowhere', which is no folder"):
        task_folder(tmp_path / "nowhere")
