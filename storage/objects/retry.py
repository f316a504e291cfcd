"""Retry operations on files when a shared file system fails in passing."""

from __future__ import annotations

import errno
import functools
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PASSING = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EAGAIN,
        errno.EINTR,
        errno.EBUSY,
        errno.ENOMEM,
        errno.ECONNRESET,
        errno.EREMOTEIO,
    }
)
"""What network file systems say when a server was away for a moment, or when a file was renamed under a reader.

Bad input and mistakes in the program stay what they are, and so do a full disk and files one may not touch."""
PAUSES = (0.02, 0.2, 1.0)
"""Seconds before the second, third and fourth attempt, which is the last."""
PAUSES_OF_TASKS = (0.1, 1.0)
"""Seconds before a task is run again, whose single operations on files were tried again before."""


def is_passing(error: BaseException | None) -> bool:
    """Return whether an error may be gone a moment later: a file system was away, or memory was short."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in PASSING)


def retried(function: Callable[P, T]) -> Callable[P, T]:
    """Let a function be called again, a few times, when it ends with an error that may pass.

    It must be one that can run twice: it reads, or writes under a fresh temporary name and renames. Of functions that
    call each other the innermost tries; what it gave up is not tried again.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for pause in PAUSES:
            try:
                return function(*args, **kwargs)
            except OSError as error:
                if not is_passing(error) or _is_given_up(error):
                    raise
            time.sleep(pause)
        try:
            return function(*args, **kwargs)
        except OSError as error:
            _give_up(error)
            raise

    return call


def tried_again(function: Callable[P, T]) -> Callable[P, T]:
    """Let a task be run as a whole twice more when it ends with an error that may pass, however that was tried before.

    It must be one that can run twice, as for `retried`.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for pause in PAUSES_OF_TASKS:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if not is_passing(error):
                    raise
                # Here, because whoever serves a model waits for its import, and runs no task again.
                import logging

                logging.getLogger(__name__).warning("a task failed with %s and is run again", type(error).__name__)
            time.sleep(pause)
        return function(*args, **kwargs)

    return call


def _give_up(error: Any) -> None:
    error.is_given_up = True


def _is_given_up(error: OSError) -> bool:
    return getattr(error, "is_given_up", False)
