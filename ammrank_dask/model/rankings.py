"""Bring rankings and ranks into the one form that training reads."""

from typing import Any

import numpy as np

from ammrank_dask.model.rows import LARGER, Blocks
from ammrank_dask.storage.in_memory import check_in_memory

NO_CATEGORY = "rankings must hold at least one category, found only -1; give labelled rows"


def as_codes(rankings: Any, name: str = "rankings") -> np.ndarray:
    """Return rankings or ranks as an array; refuse those that are not in memory."""
    check_in_memory(name, rankings, LARGER)
    return np.asarray(rankings)


def check_rankings(rankings: np.ndarray, *, n_rows: int, n_categories: int) -> None:
    """Refuse rankings that are not (n, m) distinct codes per row, padded with -1 at the end."""
    if rankings.ndim != 2 or rankings.shape[0] != n_rows or not np.issubdtype(rankings.dtype, np.integer):
        raise ValueError(
            f"rankings must be whole numbers of shape ({n_rows}, m), got {rankings.dtype} of {rankings.shape}"
        )
    if rankings.size == 0:
        return
    low, high = int(rankings.min()), int(rankings.max())
    if low < -1 or high >= n_categories:
        wrong = low if low < -1 else high
        raise ValueError(f"rankings must hold codes from 0 to {n_categories - 1}, or -1, got {wrong}")
    if ((rankings[:, :-1] < 0) & (rankings[:, 1:] >= 0)).any():
        raise ValueError("rankings must be padded with -1 only at the end, found a category after -1")
    by_code = np.sort(rankings, axis=1)
    twice = (by_code[:, 1:] == by_code[:, :-1]) & (by_code[:, 1:] >= 0)
    if twice.any():
        row = int(np.flatnonzero(twice.any(axis=1))[0])
        raise ValueError(f"rankings must name a category once per row, found one twice in row {row}")


def rankings_from_ranks(ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rankings of ranks, and where a category ties with the one before it.

    Parameters
    ----------
    ranks
        (n, L) whole numbers, 1 best, 0 unranked, equal is a tie. Only their order counts.

    Returns
    -------
    (rankings, tied)
        (n, m) category codes, best first, padded with -1 at the end, tied ones by code; and (n, m) booleans,
        (n, 0) when no row has a tie.

    Examples
    --------
    >>> rankings_from_ranks(np.array([[2, 1, 2, 0]]))
    (array([[1, 0, 2]], dtype=int32), array([[False, False,  True]]))
    """
    if ranks.ndim != 2 or not np.issubdtype(ranks.dtype, np.integer):
        raise ValueError(f"ranks must be whole numbers of shape (n, n_categories), got {ranks.dtype} of {ranks.shape}")
    if ranks.size and ranks.min() < 0:
        raise ValueError(f"ranks must be 1 or more, or 0 for unranked, got {ranks.min()}")
    present = ranks > 0
    length = int(present.sum(axis=1).max(initial=0))
    unranked_last = np.where(present, ranks, np.iinfo(ranks.dtype).max)
    rankings = np.argsort(unranked_last, axis=1, kind="stable")[:, :length].astype(np.int32)
    ordered = np.take_along_axis(ranks, rankings, axis=1)
    tied = np.zeros(rankings.shape, bool)
    tied[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] > 0)
    rankings[ordered == 0] = -1
    return rankings, tied if tied.any() else tied[:, :0]


def count_categories(blocks: Blocks) -> int:
    """Return one more than the highest code in the rankings of the blocks."""
    highest = max((int(np.max(as_codes(blocks[i][1]), initial=-1)) for i in range(len(blocks))), default=-1)
    if highest < 0:
        raise ValueError(NO_CATEGORY)
    return highest + 1
