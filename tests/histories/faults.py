"""Disturb the n-th write below a folder: let the process crash or be killed there, fail it, delay it, or fill the disk.

A write is what Python tells an audit hook: a file that is opened for writing, a rename, a link, a folder made, anything
removed. That holds for whatever the storage layer makes of it, in every thread, and no code of the product is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

CRASH, TEAR, KILL, FAIL, FULL, DELAY = "crash", "tear", "kill", "fail", "full", "delay"
ENDING = (CRASH, TEAR, KILL)
"""Faults after which nothing of the process is left; the others leave it running."""


class Fault(NamedTuple):
    """What happens at which write, counted from 1."""

    kind: str
    at: int


class Crash(BaseException):
    """The process has ended here: nothing that runs after it may write."""


class Writes:
    """Counts the writes below a folder, and disturbs them."""

    def __init__(self, folder: Path, fault: Fault | None) -> None:
        self.number, self.is_dead = 0, False
        self._below, self._fault, self._is_full = f"{folder}{os.sep}", fault, False
        self._lock = threading.Lock()

    def hear(self, event: str, details: tuple[Any, ...]) -> None:
        """Count a write if it is one below the folder, and raise what is to end or fail it."""
        path = _path_of(event, details)
        if not path.startswith(self._below) or not _WRITES[event](details):
            return
        with self._lock:
            if self.is_dead:
                raise Crash
            self.number += 1
            is_now = self._fault is not None and self.number == self._fault.at
        if is_now:
            self._disturb(event, path)
        if self._is_full and event in _NEED_SPACE and not os.path.lexists(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _disturb(self, event: str, path: str) -> None:
        assert self._fault is not None
        kind = self._fault.kind
        if kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == DELAY:
            time.sleep(0.3)
        elif kind == FULL:
            self._is_full = True
        elif kind == FAIL:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        else:
            self.is_dead = True
            if kind == TEAR and event in ("open", "os.rename"):
                _tear(path)
            raise Crash


_now: Writes | None = None
_muted = threading.local()
_is_hooked = False


@contextlib.contextmanager
def watched(folder: Path, fault: Fault | None = None) -> Iterator[Writes]:
    """Count and disturb the writes of this process below a folder as long as the block lasts."""
    global _now, _is_hooked
    if not _is_hooked:  # a hook cannot be taken away
        sys.addaudithook(_hear)
        _is_hooked = True
    _now = Writes(folder, fault)
    try:
        yield _now
    finally:
        _now = None


def _hear(event: str, details: tuple[Any, ...]) -> None:
    writes = _now
    if writes is not None and event in _WRITES and not getattr(_muted, "is_on", False):
        writes.hear(event, details)


def _tear(path: str) -> None:
    """Leave half of a file that was to be written or renamed."""
    _muted.is_on = True
    try:
        if not os.path.lexists(path):
            Path(path).write_bytes(b"half of")
        elif os.path.isfile(path) and os.path.basename(path).startswith(".tmp-"):
            os.truncate(path, os.path.getsize(path) // 2)
    finally:
        _muted.is_on = False


def _path_of(event: str, details: tuple[Any, ...]) -> str:
    path = details[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    name = os.fsdecode(path)
    if event in ("os.remove", "os.rmdir") and not os.path.isabs(name) and details[1] >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{details[1]}"), name)  # shutil.rmtree works with open folders
    return name


_NEED_SPACE = ("open", "os.link", "os.symlink", "os.mkdir")
_WRITES: dict[str, Callable[[tuple[Any, ...]], bool]] = {
    "open": lambda details: bool((details[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)),
    **dict.fromkeys(
        ("os.rename", "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"), lambda details: True
    ),
}
