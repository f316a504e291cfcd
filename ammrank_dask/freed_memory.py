"""Hand back what tasks have freed, where a worker is short of memory.

The C library keeps freed memory for the next task, which saves the kernel from clearing pages again and again. Dask
goes by what a process has, free or not, and pauses a worker that has nearly all of its limit.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable

import psutil
import pyarrow as pa

SHARE_KEPT = 0.8
"""The share of its limit up to which a worker keeps what was freed: it is paused at .9."""


def hand_back_freed(limit: int | None) -> bool:
    """Hand freed memory back if this process has more than its share of `limit` bytes; return whether it was tried.

    Without a limit everything is kept.
    """
    if not limit or psutil.Process().memory_info().rss <= SHARE_KEPT * limit:
        return False
    trim = _trim()
    if trim is None:
        return False
    trim(0)
    return True


def give_back_memory() -> None:
    """Return all that the process has freed to the system, so that a worker that was paused may go on."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """Return `malloc_trim`, which GNU's C library has: it hands back free pages below those in use, too."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
