"""Read the qualifications of a night that had another number of partitions, by the partitions of now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ammrank_dask.storage.store.ids import concat
from ammrank_dask.storage.store.part_rows import row_positions
from ammrank_dask.storage.store.qualifications import QualificationPart, QualificationRows
from ammrank_dask.user_hash import partition_of, source_partitions


@dataclass(frozen=True)
class MovedPart:
    """The users of one partition of now, in the files of a night with other partitions."""

    sources: tuple[QualificationPart, ...]
    partition: int
    n_partitions: int

    def read(self, categories: Sequence[str]) -> QualificationRows:
        """Read the files, checked, and keep the users of the partition, ascending; codes as `QualificationPart` has."""
        parts = [part.read(categories) for part in self.sources]
        ids = concat([part.user_ids for part in parts])
        rank = np.empty(len(ids), np.int64)
        rank[ids.sort_unique().positions_of(ids)] = np.arange(len(ids))
        order = rank[partition_of(ids, self.n_partitions)[rank] == self.partition]
        counts = np.concatenate([np.diff(part.indptr) for part in parts])
        chosen = row_positions(np.concatenate([[0], np.cumsum(counts)]), order)

        def join(arrays: list[np.ndarray | None]) -> np.ndarray | None:
            present = [array for array in arrays if array is not None]
            return np.concatenate(present)[chosen] if len(present) == len(arrays) else None

        category, score = join([part.category for part in parts]), join([part.score for part in parts])
        assert category is not None
        assert score is not None
        return QualificationRows(
            ids.take(order),
            np.concatenate([[0], np.cumsum(counts[order])]),
            category,
            score,
            join([part.chance for part in parts]),
            join([part.propensity for part in parts]),
            join([part.inclusion for part in parts]),
            join([part.held_by for part in parts]),
        )


NightPart: TypeAlias = QualificationPart | MovedPart
"""What of a night is read for one partition."""


def parts_in(parts: Sequence[QualificationPart], n_partitions: int) -> list[NightPart]:
    """Return the files of a night by the partitions of now."""
    if len(parts) == n_partitions:
        return list(parts)
    sources = [source_partitions(partition, len(parts), n_partitions) for partition in range(n_partitions)]
    return [
        MovedPart(tuple(parts[number] for number in of_partition), partition, n_partitions)
        for partition, of_partition in enumerate(sources)
    ]
