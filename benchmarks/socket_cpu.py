"""Count what a process spends on its connections: CPU seconds, bytes and handshakes, told apart by what they are for.

The command of a night runs through this module, and its workers load it before anything else (`preload` of Dask).
Only the first context of a worker is made before that, and is missing: four milliseconds.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import runpy
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed.comm.tcp as tcp
import tornado.iostream as iostream
from distributed import Security

FOLDER = "AMMRANK_SOCKET_CPU"
"""The environment variable with the folder for what is counted."""
MOVING, HANDSHAKES, CONTEXTS, CERTIFICATES, IMPORTS = "moving bytes", "handshakes", "contexts", "certificates", "import"

_seconds: collections.Counter[str] = collections.Counter()
_counts: collections.Counter[str] = collections.Counter()
_outer = threading.local()


@contextlib.contextmanager
def _timed(part: str) -> Iterator[None]:
    """Add the CPU seconds of the block to a part, less what is timed inside of it for others."""
    started, above, _outer.inside = time.thread_time(), getattr(_outer, "inside", 0.0), 0.0
    try:
        yield
    finally:
        used = time.thread_time() - started
        _seconds[part] += used - _outer.inside
        _outer.inside = above + used


def _time(owner: Any, name: str, part: str) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with _timed(part):
            return function(*args, **kwargs)

    setattr(owner, name, timed)


def _count(owner: Any, name: str, what: str, *, is_sum: bool = False) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        _counts[what] += (result or 0) if is_sum else 1
        return result

    setattr(owner, name, counted)


def start_counting() -> None:
    """Time and count from now on what Tornado and `ssl` do for the connections of this process."""
    _count(tcp.TCP, "__init__", "connections")
    _count(tcp.TCP, "write", "messages")
    for stream in (iostream.IOStream, iostream.SSLIOStream):
        _count(stream, "write_to_fd", "bytes", is_sum=True)
    # Who waits for a read or writes is served at once if possible, or else when the loop sees an event.
    for name in ("read_bytes", "read_into", "write", "_handle_events"):
        _time(iostream.BaseIOStream, name, MOVING)
    _time(iostream.SSLIOStream, "_do_ssl_handshake", HANDSHAKES)
    _time(ssl.SSLContext, "wrap_socket", HANDSHAKES)
    _time(Security, "_get_tls_context", CONTEXTS)


def write_counts() -> None:
    """Write what was counted so far for the benchmark to find."""
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
    path.write_text(json.dumps({"seconds": _seconds, "counts": _counts}), encoding="utf-8")


def dask_teardown(worker: Any) -> None:
    """Write what the worker has spent."""
    write_counts()


def read_counts(folder: Path) -> tuple[collections.Counter[str], collections.Counter[str]]:
    """Return the CPU seconds by part, and the counts, of all processes that wrote them to a folder."""
    seconds: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for path in folder.iterdir():
        found = json.loads(path.read_text(encoding="utf-8"))
        seconds.update(found["seconds"])
        counts.update(found["counts"])
    return seconds, counts


def _run_command() -> None:
    """Run the module and the arguments of the command line, and write what its process spent on connections."""
    with _timed(IMPORTS):
        import cryptography.hazmat.primitives.asymmetric.ec
        import cryptography.x509  # noqa: F401

    from ammrank_dask.workflows.cluster import open as opening

    _time(opening, "temporary_security", CERTIFICATES)
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        write_counts()


if FOLDER in os.environ:
    start_counting()
if __name__ == "__main__":
    _run_command()
