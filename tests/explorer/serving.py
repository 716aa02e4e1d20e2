"""A server in a process of its own, and pages that have come to rest."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

LONG = 300_000  # milliseconds: for what takes seconds, on a machine that is very busy

# The server tells of every connection that it makes to another machine.
PROGRAM = """
import sys

def watch(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        if arguments[1][0] not in ("127.0.0.1", "::1", "localhost"):
            print("LEFT THE MACHINE", arguments[1], file=sys.stderr, flush=True)

sys.addaudithook(watch)
from replan.cli import main
main()
"""


class Served:
    """A server that runs: its process, its address and the file with what it says."""

    def __init__(self, process, url, log):
        self.process, self.url, self.log = process, url, log

    def said(self):
        return self.log.read_text(encoding="utf-8")


@contextmanager
def served(folder, *arguments):
    """Start `replan explore` on a free port, and end it."""
    log = folder / "server.txt"
    with log.open("w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "explore", *arguments, "--no-browser", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    try:
        line = process.stdout.readline()
        assert "http://localhost:" in line, log.read_text(encoding="utf-8")
        yield Served(process, line.split(" at ")[1].split()[0], log)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def opened(context, url):
    """Return a page that has come to rest."""
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector(".status .done")
    return page
