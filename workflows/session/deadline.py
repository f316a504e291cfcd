"""End a command a few seconds after Ctrl-C or SIGTERM, whatever holds it up."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

SECONDS_TO_END = 4.0
"""How long after the first signal a process ends at the latest: who has sent it waits, and may kill it soon."""
SECONDS_TO_LEAVE = 2.5
"""The part of it after which no worker is waited for any more: the rest is for files and messages about the end."""
STOPPED = {
    signal.SIGINT: "interrupted; run the same command again to go on",
    signal.SIGTERM: "stopped by SIGTERM; run the same command again to go on",
}
EXIT_CODES = {number: 128 + number for number in STOPPED}
_STDERR = 2
_TRACKER = "multiprocessing.resource_tracker"

_SECONDS_TO_NOTICE = 0.01

_is_signalled = threading.Event()
_ends: list[float] = []
"""When no worker is waited for any more."""


def seconds_left(most: float) -> float:
    """Return how long workers may be waited for: `most`, or as long as a signal has left."""
    if not _is_signalled.wait(_SECONDS_TO_NOTICE):  # the thread that is told of signals may come second
        return most
    return max(0.1, min(most, _ends[0] - time.monotonic()))


def is_signalled() -> bool:
    """Return whether a signal ends the command."""
    return _is_signalled.is_set()


@contextlib.contextmanager
def ended_in_time() -> Iterator[None]:
    """Let the process of a command end in time after a signal, with all processes that it has started.

    Python handles a signal between two steps of the main thread, which may be in a call that takes long. The number of
    the signal is in the pipe at once. What Python does at its end would wait for workers once more, and is left out.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    is_told = threading.Event()
    threading.Thread(target=_end_after_signal, args=(reading, is_told), name="deadline", daemon=True).start()
    try:
        yield
    except SystemExit as error:
        is_told.set()
        if isinstance(error.code, int) and error.code in EXIT_CODES.values():
            with contextlib.suppress(OSError, ValueError):  # its reader is gone
                sys.stdout.flush()
            _end(error.code)
        raise


def _end_after_signal(reading: int, is_told: threading.Event) -> None:
    number = 0
    while number not in STOPPED:
        number = os.read(reading, 1)[0]
    _ends.append(time.monotonic() + SECONDS_TO_LEAVE)
    _is_signalled.set()
    time.sleep(SECONDS_TO_END)
    if not is_told.is_set():  # by another thread: the terminal may take nothing
        sentence = f"ammrank: {STOPPED[signal.Signals(number)]}\n".encode()
        saying = threading.Thread(target=os.write, args=(_STDERR, sentence), daemon=True)
        saying.start()
        saying.join(0.2)
    _end(EXIT_CODES[signal.Signals(number)])


def _end(code: int) -> None:
    """End the process, and kill those it has started but the one that tidies up after them."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if not any(_TRACKER in word for word in child.cmdline()):
                child.kill()
    os._exit(code)
