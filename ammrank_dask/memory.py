"""Estimate the memory that the largest partition of a site takes, before any of it is read.

The figures were read off a worker with one thread while nights of 100,000 and 600,000 users in one partition ran.
"""

from __future__ import annotations

from dataclasses import dataclass

PROCESS_BYTES = 320 << 20
"""A worker with all packages loaded and kernels compiled, and no data."""
BYTES_PER_CELL = 64
BYTES_PER_USER = 40
BYTES_PER_EVENT = 110
BYTES_PER_SLOT = 60
"""A category that a user qualifies for, by user and by category, while both tables are written."""
CELLS_PER_EVENT = 0.75
"""Distinct cells an event of a short history makes; over months it falls to a third."""


@dataclass(frozen=True)
class PartitionSize:
    """The size of the largest partition: users, cells of their state, and events of a day."""

    users: int
    cells: int
    events: int


def estimate_memory(size: PartitionSize, *, k: int, threads: int = 1) -> int:
    """Return the bytes of a worker process that works on as many partitions as it has threads.

    The stages come one after the other: the hungriest one counts.
    """
    fold = BYTES_PER_CELL * size.cells + BYTES_PER_USER * size.users
    collect = BYTES_PER_EVENT * size.events
    score = BYTES_PER_SLOT * k * size.users
    return PROCESS_BYTES + threads * max(fold, collect, score)
