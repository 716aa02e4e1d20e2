import gzip
import pickle
import sys
import tracemalloc

import numpy as np
import pytest

from replan.networks import cifar10, fashion_mnist

pytestmark = pytest.mark.usefixtures("nowhere_else")


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
    with pytest.raises(FileNotFoundError, match=r"lacks t10k-labels-idx1-ubyte\)"):
        fashion_mnist(tmp_path)


def test_a_wrong_digest_is_an_error(tmp_path, fashion):
    fashion["t10k-images-idx3-ubyte"] = fashion["t10k-images-idx3-ubyte"][:-1] + b"x"
    put(tmp_path, fashion)
    message = (
        r"t10k-images-idx3-ubyte in .* is damaged or another file: fashion-mnist expects SHA-256 "
        r".*; try `replan data fetch fashion-mnist`"
    )
    with pytest.raises(ValueError, match=message):
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


def test_a_file_that_is_a_bomb_is_refused_before_it_is_in_memory(tmp_path, fashion):
    with gzip.open(tmp_path / "t10k-labels-idx1-ubyte.gz", "wb", compresslevel=1) as bomb:
        for _ in range(128):
            bomb.write(bytes(2**20))
    del fashion["t10k-labels-idx1-ubyte"]
    put(tmp_path, fashion)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"t10k-labels.*\(it holds more than 11 bytes\)"):
            fashion_mnist(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_file_that_is_too_long_is_not_read_to_its_end(tmp_path, fashion):
    put(tmp_path, fashion)
    with (tmp_path / "t10k-labels-idx1-ubyte").open("r+b") as file:
        file.truncate(2**40)  # a hole
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte: it holds more than 11 bytes"):
        fashion_mnist(tmp_path)


def test_a_pickle_of_another_shape_is_refused(tmp_path, cifar):
    short = {file.removesuffix(".bin"): payload for file, payload in cifar.items()}
    put(tmp_path, short, lambda payload: pickled(payload[:-3073]))
    with pytest.raises(ValueError, match=r"not a batch .*an array of shape \(3, 3072\)"):
        cifar10(tmp_path)
