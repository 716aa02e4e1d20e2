"""serve(): the explorer's server, until Ctrl-C."""

from __future__ import annotations

import logging
import socket
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from typing import Any

from replan._common import check
from replan.explorer._state import State

PORT = 5006  # where it listens unless told otherwise, if that is free
_STYLE = Path(__file__).parent / "style.css"
# Who tells of a page that was closed while something was on its way to it.
_LOGGERS = (
    "asyncio", "tornado.application", "bokeh.server.views.ws", "bokeh.server.protocol_handler",
    "panel.io.document",
)  # fmt: skip
_CLOSED = "connection was closed"
_LOCAL = ("127.0.0.1", "localhost")


def serve(
    state: State | None = None,
    *,
    port: int | None = None,
    address: str = "localhost",
    origins: Sequence[str] = (),
    browser: bool = False,
    ready: Callable[[str], object] | None = None,
) -> None:
    """Serve the explorer until Ctrl-C.

    **Main arguments**

    - `state`: what a page shows first; by default the example of the paper's model.
    - `port`: by default 5006, or any other where that is taken; 0 for any.
    - `address`: the address to listen on, by default that of this machine alone.

    **Other arguments**

    - `origins`: further hosts, as HOST:PORT, under which browsers may reach it.
    - `browser`: whether to open a browser.
    - `ready`: a function that is called with the address of the page.

    Examples:
        >>> from replan.explorer import serve
        >>> serve(port=70_000)
        Traceback (most recent call last):
        ValueError: `port` expects an integer of at least 0 and at most 65535, got 70000
    """
    if port is not None:
        check.integer("port", port, at_most=65_535)
    check.word("address", address)
    try:
        import panel as pn
        from panel.io.server import get_server
    except ImportError:
        raise ImportError("the explorer needs Panel: pip install 'replan[explore]'") from None
    from replan.explorer._jobs import Workers
    from replan.explorer._page import make_page

    first = State.of_kind() if state is None else state
    pn.config.raw_css = [_STYLE.read_text(encoding="utf-8")]
    workers = Workers()
    port = _free(address, port)
    hosts = {address, *(_LOCAL if address in (*_LOCAL, "0.0.0.0") else ())}
    server: Any = get_server(
        {"/": lambda: make_page(first, workers)},
        port=port,
        address=address,
        websocket_origin=[*(f"{host}:{port}" for host in sorted(hosts)), *origins],
        title="replan explorer",
    )
    for logger in _LOGGERS:
        logging.getLogger(logger).addFilter(_worth_telling)
    url = f"http://{address}:{port}/"
    try:
        server.start()
        if ready is not None:
            ready(url)
        if browser:
            webbrowser.open(url)
        with suppress(KeyboardInterrupt):
            server.io_loop.start()
    finally:
        workers.close()
        server.unlisten()


def _worth_telling(record: logging.LogRecord) -> bool:
    """Whether a record says more than that somebody has closed a page, maybe before it was made."""
    from tornado.websocket import WebSocketClosedError

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, WebSocketClosedError) or _CLOSED in record.getMessage():
        return False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)] if error else []
    unmade = bool(frames) and frames[-1].f_globals["__name__"] == "bokeh.server.connection"
    return not (unmade and isinstance(error, AssertionError))  # it has no session yet


def _free(address: str, port: int | None) -> int:
    """Return a port on which nobody listens: the one asked for, or else any."""
    for wanted in (PORT, 0) if port is None else (port,):
        try:
            with socket.create_server((address, wanted)) as found:
                return int(found.getsockname()[1])
        except OSError as error:
            if wanted == port or wanted == 0:
                raise OSError(
                    f"`address` and `port` expect a place to listen, got {address}:{wanted} "
                    f"({error.strerror})"
                ) from None
    raise AssertionError("some port is free, or none was tried")
