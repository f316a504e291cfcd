"""Find the client that a call of the library runs on; it is never created, closed or changed."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ParamSpec, TypeVar

from distributed import Client, get_client

from ammrank_dask.storage.errors import BadInput

P = ParamSpec("P")
T = TypeVar("T")

PACKAGE = "ammrank-dask"
PATIENCE = 5
"""Seconds in which workers say their version."""

_same_version: weakref.WeakSet[Client] = weakref.WeakSet()
"""Clients whose workers were asked for their version."""


def current_client(client: Any = None) -> Client:
    """Return the given client, or the current one; refuse one that cannot run anything.

    Calls of an asynchronous client return coroutines: nobody would await them, and nothing would end. The client of a
    notebook is none of those, although an event loop runs there.
    """
    if client is None:
        try:
            client = get_client()
        except ValueError:
            raise BadInput("there is no Dask client; make one with client = distributed.Client()") from None
    if not isinstance(client, Client):
        raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}; pass client=Client(…)")
    if client.asynchronous:
        raise TypeError(
            "client must be synchronous, got an asynchronous one; make it without asynchronous=True, or make the call"
            " in another thread with asyncio.to_thread"
        )
    if client.status not in ("running", "connecting"):
        raise BadInput(f"client must be connected, got one that is {client.status}; make a new one")
    _check_version(client)
    return client


def _check_version(client: Client) -> None:
    """Refuse workers with another version of this package, once a client: they would fail in words of their own."""
    if client in _same_version:
        return

    def version_there() -> str | None:
        # Sent whole: a worker without the package could not import it.
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("ammrank-dask")
        except PackageNotFoundError:
            return None

    try:
        own = version(PACKAGE)
    except PackageNotFoundError:  # a checkout that is not installed
        return
    try:
        versions = client.run(version_there, on_error="ignore", callback_timeout=PATIENCE)
    except TimeoutError:  # a worker that is stuck is for the tasks to notice
        versions = {}
    for address, found in sorted(versions.items()):
        if found != own:
            has = f"{PACKAGE} {found} instead of {own}" if found else f"no {PACKAGE}"
            raise BadInput(f"the worker at {address} has {has}; install {PACKAGE}=={own} where workers start")
    _same_version.add(client)


def client_by_name(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse a client in first place, and show the call with `client=`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if args and isinstance(args[0], Client):
            parameters = inspect.signature(function).parameters.values()
            data = [
                one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty
            ]
            raise TypeError(
                f"client must be given by name: {function.__name__}({', '.join(data)}, client=client), or without it"
                " for the current client"
            )
        return function(*args, **kwargs)

    return call
