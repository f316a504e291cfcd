"""Write and read large files past the memory in which the system keeps files, where the disk is fast enough.

A night writes once and reads once or twice what is larger than memory. Through the page cache every byte is copied by
a core, into pages that the system has to find first; past it, the disk takes and brings the bytes by itself. What is
small, or in the page cache already, is read from there. A disk that is slower than a core copies is not worth it: each
process finds that out from its first writes and reads, and then goes through the page cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from ammrank_dask.storage.store.retried import retried

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Bytes = Any
"""Bytes, or an array whose values lie one behind the other."""

LEAST_BYTES = 1 << 20
"""Smaller files are written and read through the page cache: requests to a disk take more CPU than their copy."""
LEAST_RATE = 300e6
"""Bytes a second, for each process, of a disk that is worth it: what it brings could have been in memory still."""
TRIAL_SECONDS = 2.0
"""After so long a time in requests it is looked at how many bytes they had."""

_BLOCK = 4096
"""What requests to the disk begin and end with, and where their memory begins."""
_REQUEST_BYTES = 4 << 20
_WHOLE_BYTES = 8 << 20
"""Files up to this size are read whole, in one request."""
_READERS = 2
_MOST_EXPECTED = 2
"""Files that are expected at most: those that nobody opened are forgotten."""
_DIRECT = getattr(os, "O_DIRECT", 0)
_UNABLE = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)
"""What file systems say that have nothing but the page cache."""


class Pace:
    """How fast the disk was, and whether that was fast enough; one that was not is not asked again.

    Requests of several threads at a time count together, from the begin of the first to the end of the last.
    """

    def __init__(self) -> None:
        self.is_fast = bool(_DIRECT)
        self._lock = threading.Lock()
        self._n_at_once, self._begin = 0, 0.0
        self._n_bytes, self._seconds = 0, 0.0

    @contextlib.contextmanager
    def timed(self, n_bytes: int) -> Iterator[None]:
        """Take in how long a request takes."""
        with self._lock:
            if not self._n_at_once:
                self._begin = time.perf_counter()
            self._n_at_once += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_at_once -= 1
                self._n_bytes += n_bytes
                if not self._n_at_once:
                    self._count(time.perf_counter() - self._begin)

    def _count(self, seconds: float) -> None:
        self._seconds += seconds
        if self._seconds >= TRIAL_SECONDS:
            self.is_fast = self.is_fast and self._n_bytes >= LEAST_RATE * self._seconds
            self._n_bytes, self._seconds = 0, 0.0


_pace = Pace()
_expected: dict[Path, Future[LargeFile]] = {}
_expecting = threading.Lock()
_buffers: list[mmap.mmap] = []
"""Memory for requests that nobody uses now; to take new memory for every file would cost more than the copies."""


def _begin_anew() -> None:
    """Leave to the parent of a forked process what is its own: memory is shared with it, threads are not there."""
    global _pace, _expecting
    _pace, _expecting = Pace(), threading.Lock()
    _expected.clear()
    _buffers.clear()
    _readers.cache_clear()


os.register_at_fork(after_in_child=_begin_anew)


def n_bytes(piece: Bytes) -> int:
    """Return how many bytes a piece of a file has."""
    return len(piece) if isinstance(piece, bytes) else int(piece.nbytes)


def write_pieces(path: Path, pieces: Sequence[Bytes], *, cached: bool = False) -> None:
    """Write a new file: pieces that follow each other; through the page cache if it is soon read and removed."""
    total = sum(map(n_bytes, pieces))
    if not cached and total >= LEAST_BYTES and _pace.is_fast and _write_direct(path, pieces, total):
        return
    with open(path, "xb") as file:
        file.writelines(pieces)


def _write_direct(path: Path, pieces: Sequence[Bytes], total: int) -> bool:
    """Write a new file past the page cache; tell whether its file system can do that."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | _DIRECT, 0o666)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        path.unlink(missing_ok=True)  # Linux makes the file before it finds out
        return False
    try:
        with _lent_buffer(_REQUEST_BYTES) as buffer:
            for n in _fill(buffer, pieces):
                _write_all(descriptor, buffer[: -(-n // _BLOCK) * _BLOCK])
        os.ftruncate(descriptor, total)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        os.unlink(path)
        return False
    finally:
        os.close(descriptor)
    return True


def _fill(buffer: np.ndarray, pieces: Sequence[Bytes]) -> Iterator[int]:
    """Copy pieces to the buffer one behind the other; yield the number of bytes in it when it is full, and at last."""
    n = 0
    for piece in pieces:
        values = np.frombuffer(piece, np.uint8)
        at = 0
        while at < len(values):
            taken = min(len(buffer) - n, len(values) - at)
            buffer[n : n + taken] = values[at : at + taken]
            n, at = n + taken, at + taken
            if n == len(buffer):
                yield n
                n = 0
    if n:
        yield n


def _write_all(descriptor: int, block: np.ndarray) -> None:
    with _pace.timed(len(block)):
        while len(block):
            block = block[os.write(descriptor, block.data) :]


class _Window(NamedTuple):
    """Blocks of a file in memory, from `start`."""

    start: int
    values: np.ndarray
    memory: mmap.mmap | None = None

    def has(self, start: int, size: int) -> bool:
        """Tell whether all of these bytes are here."""
        return self.start <= start <= start + size <= self.start + len(self.values)

    def release(self) -> None:
        """Let others use the memory."""
        if self.memory is not None:
            _buffers.append(self.memory)


_NOTHING = _Window(0, np.empty(0, np.uint8))


class LargeFile:
    """A file that is open for reading by offset, by one thread. What it lends is there until the next call.

    One of which little is wanted (not `whole`) is read through the page cache, others past it where `is_direct`.
    """

    def __init__(self, path: Path, *, whole: bool = True) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._status = os.fstat(self._descriptor)
            self.size = self._status.st_size
            is_worth_it = whole and self.size >= LEAST_BYTES and _pace.is_fast
            self.is_direct = is_worth_it and not self._is_cached() and self._set_direct(True)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._in_one_go = self.size <= _WHOLE_BYTES
        self._window = _NOTHING
        self._ahead: dict[int, Future[_Window]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        for reading in self._ahead.values():
            with contextlib.suppress(OSError):
                reading.result().release()
        self._ahead.clear()
        os.close(self._descriptor)
        self._window.release()
        self._window = _NOTHING

    def is_still(self, path: Path) -> bool:
        """Tell whether this is the file that has that name now, and was not written to since it was opened."""
        try:
            now = os.stat(path)
        except OSError:
            return False
        is_same = os.path.samestat(self._status, now)
        return is_same and (self.size, self._status.st_mtime_ns) == (now.st_size, now.st_mtime_ns)

    def read(self, start: int, size: int) -> bytes:
        """Return bytes; fewer than `size` where the file ends."""
        return self._lend(start, size).tobytes() if self.is_direct else os.pread(self._descriptor, size, start)

    def lend(self, start: int, size: int) -> Bytes:
        """Return bytes until the next call."""
        return self._lend(start, size) if self.is_direct else os.pread(self._descriptor, size, start)

    def read_into(self, targets: Sequence[np.ndarray], start: int) -> int:
        """Read bytes to where they are wanted; return how many there were."""
        if not self.is_direct:
            return os.preadv(self._descriptor, [target.data for target in targets], start)
        lent = self._lend(start, sum(map(len, targets)))
        n_read = 0
        for target in targets:
            found = lent[n_read : n_read + len(target)]
            target[: len(found)] = found
            n_read += len(found)
        return n_read

    def expect(self, start: int, size: int) -> None:
        """Let a thread read what will be asked for next, in a call from `start`, while this one does something else."""
        if self.is_direct and not self._in_one_go and start not in self._ahead:
            with contextlib.suppress(RuntimeError):  # no thread can be started: it is read when it is asked for
                self._ahead[start] = _readers().submit(self._read_blocks, start, size)

    def fetch(self) -> None:
        """Read all of a file that is read in one go."""
        if self.is_direct and self._in_one_go:
            self._lend(0, self.size)

    def _lend(self, start: int, size: int) -> np.ndarray:
        size = max(0, min(size, self.size - start))
        if not self._window.has(start, size):
            ahead = self._ahead.pop(start, None)
            if ahead is None and self._in_one_go:
                found = self._read_blocks(0, self.size)
            else:
                found = self._read_blocks(start, size) if ahead is None else ahead.result()
            self._window.release()
            self._window = found
        begin = start - self._window.start
        return self._window.values[begin : begin + size]

    def _read_blocks(self, start: int, size: int) -> _Window:
        """Read the blocks in which the bytes are."""
        first = start // _BLOCK * _BLOCK
        length = -(-(start + size - first) // _BLOCK) * _BLOCK
        memory = _take_buffer(length)
        values = np.frombuffer(memory, np.uint8, length)
        n_read, end = 0, min(first + length, self.size)
        with _pace.timed(length):
            while first + n_read < end:
                found = self._read_some(values[n_read:], first + n_read)
                if not found:  # it was cut since it was opened
                    break
                n_read += found
        return _Window(first, values[:n_read], memory)

    def _read_some(self, target: np.ndarray, start: int) -> int:
        try:
            return os.preadv(self._descriptor, [target.data], start)
        except OSError as error:
            if error.errno not in _UNABLE or not self._set_direct(False):
                raise
        return os.preadv(self._descriptor, [target.data], start)  # a file system that wants larger blocks

    def _is_cached(self) -> bool:
        """Tell whether the file is in the page cache, by its first page, or whether that cannot be told.

        Only to ask for it would bring it there (`RWF_NOWAIT` starts to read ahead).
        """
        try:
            page = mmap.mmap(self._descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ)
        except OSError:  # some file systems map no files
            return True
        with page:
            address, there = ctypes.c_void_p(np.frombuffer(page, np.uint8).ctypes.data), ctypes.c_ubyte()
            failed = _libc().mincore(address, ctypes.c_size_t(1), ctypes.byref(there))
        return bool(failed or there.value & 1)

    def _set_direct(self, direct: bool) -> bool:
        """Read past the page cache, or through it, from now on; tell whether the file system can do that."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _DIRECT if direct else flags & ~_DIRECT)
        except OSError:
            return False
        return True


@retried
def expect_file(path: Path) -> None:
    """Let a thread read a file that will be opened next, while this one does something else."""
    try:
        size = path.stat().st_size
    except OSError:  # who opens it will say so
        return
    if not _pace.is_fast or not LEAST_BYTES <= size <= _WHOLE_BYTES:
        return
    with _expecting:
        if path not in _expected:
            for unopened in list(_expected)[: max(0, len(_expected) + 1 - _MOST_EXPECTED)]:
                _drop(unopened)
            with contextlib.suppress(RuntimeError):
                _expected[path] = _readers().submit(_open_and_fetch, path)


def _open_and_fetch(path: Path) -> LargeFile:
    file = LargeFile(path)
    try:
        file.fetch()
    except BaseException:
        file.close()
        raise
    return file


def open_large(path: Path, *, whole: bool = True) -> LargeFile:
    """Open a file, which may be expected."""
    reading = _expected.pop(path, None) if whole else None
    if reading is None:
        return LargeFile(path, whole=whole)
    try:
        file = reading.result()
    except OSError:  # it may be gone a moment later
        return LargeFile(path)
    if not file.is_still(path):  # it was expected by a task that failed, and has been written anew since
        file.close()
        return LargeFile(path)
    return file


def _drop(path: Path) -> None:
    """Forget a file that was expected and not opened."""
    reading = _expected.pop(path, None)
    if reading is not None:
        with contextlib.suppress(OSError):
            reading.result().close()


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _readers() -> ThreadPoolExecutor:
    # Here, because whoever serves a model waits for its import, and reads nothing ahead.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_READERS, thread_name_prefix="read-ahead")


@contextlib.contextmanager
def _lent_buffer(length: int) -> Iterator[np.ndarray]:
    memory = _take_buffer(length)
    try:
        yield np.frombuffer(memory, np.uint8, length)
    finally:
        _buffers.append(memory)


def _take_buffer(length: int) -> mmap.mmap:
    """Return memory that begins with a page, of that length at least."""
    while _buffers:
        try:
            memory = _buffers.pop()
        except IndexError:  # another thread was faster
            break
        if len(memory) >= length:
            return memory
    return mmap.mmap(-1, max(length, _WHOLE_BYTES))
