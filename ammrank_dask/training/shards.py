"""Deal blocks of rows to logical shards and merge what the shards learned: pure functions of seed and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MERGE_WIDTH = 8
"""Models that one task of the merge reads: with more shards the merge is a tree of this width."""


@dataclass(frozen=True)
class RowBlock:
    """Consecutive training rows of one partition."""

    number: int
    partition: int
    start: int
    stop: int

    @property
    def n_rows(self) -> int:
        """Rows of the block."""
        return self.stop - self.start


def cut_blocks(rows_per_partition: Sequence[int], block_rows: int) -> list[RowBlock]:
    """Cut the rows of every partition into blocks; the last block of a partition may be shorter.

    Examples
    --------
    >>> [(b.partition, b.start, b.stop) for b in cut_blocks([5, 0, 2], 3)]
    [(0, 0, 3), (0, 3, 5), (2, 0, 2)]
    """
    pieces = [
        (partition, start, min(start + block_rows, rows))
        for partition, rows in enumerate(rows_per_partition)
        for start in range(0, rows, block_rows)
    ]
    return [RowBlock(number, *piece) for number, piece in enumerate(pieces)]


def deal_blocks(n_blocks: int, n_shards: int, n_rounds: int, *, seed: int, epoch: int) -> list[list[np.ndarray]]:
    """Return by round and shard the blocks to train on, in order; every block is dealt once an epoch.

    The permutation depends on seed and epoch only. Round by round the shards take consecutive pieces of it, so that
    one shard walks the permutation from its start to its end.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n_blocks)
    return [np.array_split(part, n_shards) for part in np.array_split(order, n_rounds)]


def choose_sample(clickers: np.ndarray, rows: np.ndarray, *, wanted: int, min_rows: int, seed: int) -> np.ndarray:
    """Return blocks with at least `min_rows` rows and `wanted` clickers of every category, or all it has.

    Parameters
    ----------
    clickers
        (n_blocks, L) rows of each block that rank the category.
    rows
        (n_blocks,) rows of each block.
    """
    target = np.minimum(wanted, clickers.sum(axis=0))
    found = np.zeros(clickers.shape[1], np.int64)
    chosen = []
    n_rows = 0
    for block in np.random.default_rng([seed, 2**31]).permutation(len(rows)):
        if n_rows < min_rows or (clickers[block][found < target] > 0).any():
            chosen.append(int(block))
            found += clickers[block]
            n_rows += int(rows[block])
    return np.array(chosen, np.int64)


def advance_step(step: int, steps_of_shards: Sequence[int]) -> int:
    """Return t after a round: it advances by the mean number of steps of the shards that had rows, rounded up."""
    n_busy = sum(steps > 0 for steps in steps_of_shards)
    return step + -(-sum(steps_of_shards) // max(1, n_busy))
