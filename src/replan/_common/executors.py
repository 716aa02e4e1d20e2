"""The executors of users: any of `concurrent.futures`, or the client of a Dask cluster."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
    ThreadPoolExecutor,
)
from typing import Any
from uuid import uuid4

from replan import check
from replan._common.processes import outcome, received
from replan.files import VERSION


class Borrowed:
    """The workers of a user's executor: they are used, and never shut down.

    Whatever happens to them is a ChildProcessError in one line, as with workers of our own.
    """

    def __init__(self, executor: Any) -> None:
        # A Dask client is known by what it offers, so that other executors do not need Dask.
        made = executor.get_executor() if hasattr(executor, "get_executor") else executor
        expects = "a concurrent.futures.Executor or a dask.distributed.Client"
        self._executor: Any = check.instance("executor", made, Executor, expects)
        self._client = getattr(made, "_client", None)
        if getattr(self._client, "asynchronous", False):
            raise ValueError("`executor` expects a client that waits, got an asynchronous one")
        self.threads = isinstance(made, ThreadPoolExecutor)

    def pack(self, function: Callable[..., Any]) -> bytes:
        """Return a function as it is sent to the workers."""
        try:  # sends functions of scripts and notebooks, too; Dask, executorlib and loky bring it
            from cloudpickle import dumps
        except ImportError:
            from pickle import dumps
        try:
            return dumps(function)
        except Exception as error:
            raise ValueError(
                "`function` expects a function that can be sent to the workers of the executor, "
                f"got {check.show(function)} ({error}): define it at the top level of a module"
            ) from None

    def submit(self, function: Callable[..., Any], /, *args: Any, name: str = "") -> Future[Any]:
        """Have a worker compute function(*args); `name` is what Dask's dashboard calls it."""
        try:
            if self.threads:
                return self._executor.submit(function, *args)
            call = pickle.dumps(_Call(pickle.dumps((function, args))))
            if self._client is None:
                return self._executor.submit(pickle.loads, call)
            return self._submit_to_dask(call, f"{name}-{uuid4().hex}")
        except Exception as error:  # it was shut down, or is broken
            raise ChildProcessError(self._why(error)) from error

    def _submit_to_dask(self, call: bytes, key: str) -> Future[Any]:
        """Have Dask make a call.

        The futures of its own executor never end if the scheduler is lost while a result is on its
        way, and write a page to the log for each one that is cancelled.
        """
        client, ours = self._client, Future[Any]()
        assert client is not None
        if client.status != "running":  # it would wait for a new connection first
            raise ConnectionError
        options = self._executor._kwargs | {"key": key, "pure": False}
        theirs = client.submit(pickle.loads, call, **options)

        def cancel(_: Future[Any]) -> None:
            if ours.cancelled() and not theirs.cancelled():
                theirs.cancel()

        async def pass_on() -> None:
            try:
                result = await client.gather(theirs, asynchronous=True)
            except BaseException as error:
                with contextlib.suppress(InvalidStateError):  # it was cancelled
                    ours.set_exception(error)
            else:
                with contextlib.suppress(InvalidStateError):
                    ours.set_result(result)

        ours.add_done_callback(cancel)
        client.loop.add_callback(pass_on)
        return ours

    def result(self, future: Future[Any]) -> Any:
        """Return the result of a call that is done, or raise its error."""
        try:
            found = future.result()
        except (Exception, CancelledError) as error:
            if self.threads and not isinstance(error, CancelledError | BrokenExecutor):
                raise
            raise ChildProcessError(self._why(error)) from error
        return found if self.threads else received(found)

    def close(self) -> None:
        """Leave the executor as it is."""

    kill = close

    def _why(self, error: BaseException) -> str:
        """Say why a call came to nothing."""
        lost = isinstance(error, OSError) or getattr(self._client, "status", None) != "running"
        if self._client is not None and lost:
            return "the connection to the Dask scheduler was lost: is the cluster still running?"
        what = " ".join(f"{type(error).__name__}: {error}".split())
        if isinstance(error, ImportError | AttributeError):
            return (
                f"a worker of the executor cannot load replan {VERSION} ({what}): install the same "
                "version where the workers run"
            )
        if isinstance(error, CancelledError):
            return "the executor cancelled a case: was it shut down, or its connection lost?"
        return f"the executor failed: {what}"


class _Call:
    """A pickled (function, args) that is called where it is unpickled.

    What workers get is `pickle.loads`, which all of them have: that replan is not there is an error
    of theirs like any other, and not one of the library that runs them.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return outcome, (self.data,)
