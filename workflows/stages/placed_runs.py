"""Know a run again that was written in another number of partitions and was placed in those of now since."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ammrank_dask.storage.store.runs import is_finished, open_run


def choose_digest(
    digest_with: Callable[[int], str], path_of: Callable[[str], Path], n_partitions: int, n_before: Sequence[int]
) -> str:
    """Return the digest of a run in `n_partitions`, or of the one in `n_before` that is in so many by now.

    A run keeps its digest, and with it its name, when `ammrank repartition` places its users anew: what was made from
    it is from the same input.
    """
    digest = digest_with(n_partitions)
    if is_finished(path_of(digest)):
        return digest
    earlier = [one for one in map(digest_with, n_before) if is_finished(path_of(one))]
    return next((one for one in earlier if open_run(path_of(one)).n_parts == n_partitions), digest)
