"""Keep every compile option of the kernels in one place, and compile a kernel in one process at a time."""

import contextlib
import fcntl
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

# Serial (parallelism is Dask's), without the GIL, cached on disk. `contract` alone allows fused multiply-add and
# keeps the order of operations, so that the same input gives the same bits; full fastmath would not.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}

WAIT_SECONDS = 300.0
"""How long a process waits for another one that compiles the same kernel: many times what the largest takes."""


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called with arguments of some types; processes share what is compiled.

    Numba's cache on disk is not made for several writers: two processes that compile one function for different types
    at the same time give both results the same file. Here a process that compiles, or looks up, locks the function.
    What one compiled the others find, so a new cluster compiles every kernel once per machine.

    Numba also asks only whether the file of the function itself changed, and would go on with old copies of kernels of
    other files that the function calls (told in its manual as a limit of the cache). Here all sources beside it count.
    """
    try:
        compiled = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no folder to keep it in: a read-only root and no home; each process compiles for itself
        return njit(**_OPTIONS)(function)
    if isinstance(compiled, Dispatcher):  # with NUMBA_DISABLE_JIT it is the function itself
        _watch_neighbours(compiled)
        _compile_alone(compiled)
    return compiled


def _watch_neighbours(compiled: Any) -> None:
    """Let what is cached be old when any source beside that of the function changed."""
    compiled._cache._cache_file._source_stamp = _stamp_of(Path(compiled.py_func.__code__.co_filename).parent)


@functools.cache
def _stamp_of(folder: Path) -> str:
    """Return a hash of all sources in a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        total.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()


def _compile_alone(compiled: Any) -> None:
    """Let other processes wait while this one compiles the function or looks it up."""
    compile_unguarded = compiled.compile
    folder = Path(compiled.stats.cache_path)
    source = compiled.py_func.__code__
    lock_path = folder / f"{Path(source.co_filename).stem}.{source.co_name}-{source.co_firstlineno}.lock"

    def compile_alone(types: Any) -> Any:
        # First the lock of this process: whoever waits for another process has it, and so waits for nobody in this one.
        # Of the others each waits for a function that its own calls, so they never wait in a circle.
        with global_compiler_lock, _held(lock_path):
            return compile_unguarded(types)

    compiled.compile = compile_alone


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Lock a file against other processes; go on without a lock in a folder that cannot be written.

    A process that was stopped while it compiles is not waited for longer than WAIT_SECONDS.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # a file system without locks
            return
