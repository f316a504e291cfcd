"""Open the qualifications of all users, as they were written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from ammrank_dask.monitor.texts import card_html
from ammrank_dask.scoring.policies import PolicyCounts, UserTopK
from ammrank_dask.storage.objects.folders import local_path
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.ids import concat, ids_from_values
from ammrank_dask.storage.store.manifests import QualificationsManifest
from ammrank_dask.storage.store.part_rows import row_positions
from ammrank_dask.storage.store.qualifications import (
    BY_USER,
    KIND,
    QualificationPart,
    QualificationRows,
    read_frame,
    table_path,
)
from ammrank_dask.storage.store.runs import Run, open_run
from ammrank_dask.user_hash import partition_of, source_partitions


@dataclass(frozen=True, repr=False)
class Qualifications:
    """The qualifications of all users, as they were written."""

    run: Run

    @property
    def manifest(self) -> QualificationsManifest:
        """Settings, inputs and counts."""
        return QualificationsManifest.of(self.run)

    @property
    def path(self) -> Path:
        """The folder of the night."""
        return self.run.path

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return self.manifest.n_partitions

    @property
    def categories(self) -> list[str]:
        """Names of all categories that were ranked."""
        return self.manifest.categories

    @property
    def k(self) -> int:
        """Categories a user is meant to get."""
        return self.manifest.k

    @property
    def policy(self) -> str:
        """The policy that assigned them."""
        return self.manifest.policy

    @property
    def n_ranks(self) -> int:
        """The lowest rank a category can have."""
        return self.k if self.policy == UserTopK.name else len(self.categories)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Users, cold users and the counts of each policy."""
        return self.manifest.counts

    @property
    def counts(self) -> PolicyCounts:
        """Counts of the assigned slots."""
        return PolicyCounts.from_json(self.manifest.policies[self.policy])

    @property
    def parts(self) -> list[Path]:
        """The files by user, in the order of the partitions."""
        return [table_path(self.path / BY_USER, i) for i in range(self.n_partitions)]

    def __repr__(self) -> str:
        return f"Qualifications({str(self.path)!r}: policy {self.policy}, k {self.k}, {self.n_partitions:,} partitions)"

    def _repr_html_(self) -> str:
        exposure = dict(zip(self.categories, self.counts.exposure.sum(axis=1).tolist(), strict=True))
        table = {
            "policy": self.policy, "k": self.k, "categories": len(self.categories), "partitions": self.n_partitions,
            "qualifications": sum(exposure.values()), "path": str(self.path),
        }  # fmt: skip
        return card_html("Qualifications", table, {"users by category": exposure})

    def to_pandas(self, users: Iterable[Any] | None = None) -> pd.DataFrame:
        """Return user_id, rank, category and score, by user and rank; of the given users, or of all."""
        return read_frame(self.parts, self.categories, None if users is None else ids_from_values(list(users)))

    def to_dask(self) -> Any:
        """Return the same columns as a Dask DataFrame, one block a partition, read when it is computed."""
        import dask.dataframe as dd

        meta = read_qualifications(self.parts[0], self.categories).iloc[:0]
        return dd.from_map(read_qualifications, self.parts, categories=self.categories, meta=meta)


def read_qualifications(path: Path, categories: list[str]) -> pd.DataFrame:
    """Return the rows of one file by user."""
    return read_frame([path], categories)


def open_qualifications(path: str | Path, date: Any = None) -> Qualifications:
    """Open qualifications that were written whole; with a date those of a site's night."""
    folder = local_path(path)
    return Qualifications(open_run(folder if date is None else Site(folder).run_of_date("qualifications", date), KIND))


def check_qualifications(quals: Any, name: str = "quals") -> None:
    """Refuse a path or a table where qualifications are wanted."""
    if not isinstance(quals, Qualifications):
        raise TypeError(
            f"{name} must be Qualifications, got {type(quals).__name__}; pass what score returns, or"
            " open_qualifications(path)"
        )


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
            value=join([part.value for part in parts]),
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
