"""Hand back what tasks have freed, where a worker is short of memory.

The C library keeps freed memory for the next task, which saves the kernel from clearing pages again and again. Dask
goes by what a process has, free or not, and pauses a worker that has nearly all of its limit.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable

import pyarrow as pa

SHARE_KEPT = 0.8
"""The share of its limit up to which a worker keeps what was freed: it is paused at .9."""
BYTES_KEPT = 256 << 20
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Options of `mallopt` in GNU's C library."""


def hand_back_freed(limit: int | None) -> bool:
    """Hand freed memory back if this process has more than its share of `limit` bytes; return whether it was tried.

    Without a limit everything is kept.
    """
    import psutil  # here, because a command that only keeps what is freed need not wait for it

    if not limit or psutil.Process().memory_info().rss <= SHARE_KEPT * limit:
        return False
    trim = _trim()
    if trim is None:
        return False
    trim(0)
    return True


def keep_freed() -> None:
    """Let this process keep what is freed, as the built-in cluster does it for its workers by their environment."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return
    for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        set_option(option, BYTES_KEPT)
    set_option(_ARENA_MAX, 1)
    pa.set_memory_pool(pa.system_memory_pool())


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
