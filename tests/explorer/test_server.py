"""The server: where it listens, and how it ends."""

import signal
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest

from replan.explorer import State
from serving import served


def test_ctrl_c_ends_it_in_peace(tmp_path):
    with served(tmp_path) as server:
        assert b"replan explorer" in urlopen(server.url).read()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(300) == 0
        assert server.said() == ""


def test_it_listens_on_this_machine_alone(tmp_path):
    with served(tmp_path) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        others = {
            info[4][0]
            for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
            if not info[4][0].startswith("127.")
        }
        for address in others:
            with pytest.raises(OSError):
                socket.create_connection((address, port), timeout=5)


def test_it_opens_a_problem_file(tmp_path):
    path = tmp_path / "problem.toml"
    path.write_text(State.of_kind("denoising").text, encoding="utf-8")
    with served(tmp_path, str(path)) as server:
        assert b"replan explorer" in urlopen(server.url).read()


def test_a_port_that_is_taken_is_told_in_one_line():
    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        program = "from replan.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, "explore", "--no-browser", "--port", port],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"localhost:{port}" in done.stderr
