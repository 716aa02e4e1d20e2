"""--workers and --dask: where the cases of a command are computed."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import click

from replan.errors import ArgumentError

_C = TypeVar("_C", bound=Callable[..., Any])

_ANSWER = 10  # seconds in which a scheduler answers


def executor_options(command: _C) -> _C:
    """Add `--workers` and `--dask`, between which `chosen_executor` chooses."""
    for option in (
        click.option(
            "--dask",
            metavar="ADDRESS|local:N",
            help="A Dask cluster: the address of its scheduler, such as tcp://host:8786, or "
            "local:4 for one of 4 processes on this machine.",
        ),
        click.option("--workers", type=int, help="Processes; by default one per core."),
    ):
        command = option(command)
    return command


@contextmanager
def chosen_executor(workers: int | None, dask: str | None) -> Iterator[Any]:
    """Give the `executor` of a sweep for `--dask`, None without it; close it in the end."""
    if dask is None:
        yield None
        return
    if workers is not None:
        raise ValueError("`--workers` does not go with `--dask`: expects one of them")
    with ExitStack() as stack:
        client = _client(dask, stack)
        click.echo(f"replan: dashboard at {client.dashboard_link}", err=True)
        yield client


def _client(dask: str, stack: ExitStack) -> Any:
    """Return a client of the cluster that an option names; the stack closes what was begun."""
    count = re.fullmatch(r"local:([1-9][0-9]{0,3})", dask)
    if count is None and "://" not in dask:
        raise ArgumentError(
            "--dask",
            "the address of a scheduler, such as tcp://host:8786, or local:N for"
            " N processes on this machine",
            f"{dask!r}",
        )
    from replan._common.processes import without_ctrl_c

    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise ValueError(
            "`--dask` expects Dask to be installed: pip install 'replan[dask]'"
        ) from None
    if "REPLAN_DEBUG" not in os.environ:  # what goes wrong is told in one line, by us
        logging.disable()
        stack.callback(logging.disable, logging.NOTSET)
    if count is None:
        try:
            return stack.enter_context(Client(dask, timeout=_ANSWER))
        except (OSError, ValueError) as error:
            raise ArgumentError(
                "--dask", "a scheduler that answers", f"{dask!r} ({error})"
            ) from None
    with without_ctrl_c():  # its workers need not hear of it, as they are closed here
        cluster = LocalCluster(
            n_workers=int(count[1]),
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        )
        return stack.enter_context(Client(stack.enter_context(cluster)))
