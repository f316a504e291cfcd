"""Features: sparse rows of users, read from a store partition by partition, in the columns one asks for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from ammrank_dask.features.columns import FeatureColumns
from ammrank_dask.features.partition import FeaturePartition, OpenFeaturePartition
from ammrank_dask.monitor.texts import card_html
from ammrank_dask.runtime.collections import read_blocks
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import write_text
from ammrank_dask.storage.objects.folders import local_path
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.groups import METADATA, encode_group
from ammrank_dask.storage.store.ids import empty_ids, ids_from_values
from ammrank_dask.storage.store.manifests import FeaturesManifest
from ammrank_dask.storage.store.parts import CheckedReader, PartFacts, checksum_file
from ammrank_dask.storage.store.registry import FEATURES
from ammrank_dask.storage.store.runs import Run, finish_run, open_run
from ammrank_dask.user_hash import partition_of

COLUMNS_FILE = "columns.json"


class Features:
    """A features run on disk. Nothing is read before a partition is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.run: Run = open_run(local_path(path), FEATURES.kind)
        self.path = self.run.path
        self.manifest = FeaturesManifest.of(self.run)
        self.categories = self.manifest.categories
        self.has_rankings = self.manifest.has_rankings
        self.id_kind = self.manifest.id_kind
        self.normalize = self.manifest.normalize

    @cached_property
    def feature_columns(self) -> FeatureColumns:
        """The columns with their groups."""
        stored = json.loads(CheckedReader(self.path, self.run.files)(COLUMNS_FILE))
        groups = tuple((group, size) for group, size in stored["groups"])
        return FeatureColumns(tuple(stored["columns"]), groups)

    def __repr__(self) -> str:
        columns = f"{len(self.feature_columns.names):,} columns, {self.n_categories:,} categories"
        return f"Features({str(self.path)!r}: {self.n_users:,} users, {columns}, {self.n_partitions:,} partitions)"

    def _repr_html_(self) -> str:
        table = {
            "users": self.n_users, "columns": len(self.feature_columns.names), "categories": self.n_categories,
            "partitions": self.n_partitions, "rankings": "yes" if self.has_rankings else "no", "path": str(self.path),
        }  # fmt: skip
        sizes: Counter[str] = Counter()
        for group, size in self.feature_columns.groups:
            sizes[group] += size
        return card_html("Features", table, {"columns by group": sizes})

    @property
    def columns(self) -> list[str]:
        """Names of all stored columns."""
        return list(self.feature_columns.names)

    @property
    def n_partitions(self) -> int:
        """Number of partitions."""
        return self.run.n_parts

    @property
    def n_users(self) -> int:
        """Rows over all partitions."""
        return self.run.n_rows

    @property
    def n_categories(self) -> int:
        """Number of ranked categories."""
        return len(self.categories)

    def n_columns(self, variant: str | None = None) -> int:
        """Return the number of columns of a variant."""
        return len(self.feature_columns.chosen(variant))

    def columns_of(self, variant: str | None = None) -> list[str]:
        """Return the names of the columns of a variant."""
        return [self.feature_columns.names[column] for column in self.feature_columns.chosen(variant)]

    def partition(self, index: int, *, variant: str | None = None, normalize: bool | None = None) -> FeaturePartition:
        """Read one partition, choose the columns of the variant, then normalise rows as the store's config says.

        Parameters
        ----------
        variant
            `adv` for all columns, `no-adv` for all but those of ad views; None is all.
        normalize
            Divide rows by their Euclidean norm; None as configured when the features were built.
        """
        rows = self.open_partition(index, variant=variant, normalize=normalize)
        X, n_event_features = rows.read(0, rows.n_rows)
        return FeaturePartition(X, rows.user_ids, rows.age_bucket, rows.gender, n_event_features, rows.rankings)

    def open_partition(
        self, index: int, *, variant: str | None = None, normalize: bool | None = None
    ) -> OpenFeaturePartition:
        """Open one partition, to read its rows some at a time; parameters are those of `partition`."""
        if not 0 <= index < self.n_partitions:
            raise BadInput(f"partition must be between 0 and {self.n_partitions - 1}, got {index}")
        return OpenFeaturePartition(
            self.run.part(index).open(), self.feature_columns, variant,
            normalize=self.normalize if normalize is None else normalize, has_rankings=self.has_rankings,
        )  # fmt: skip

    def to_pandas(self, users: Iterable[Any] | None = None) -> pd.DataFrame:
        """Return the stored values (not normalised) of some users, or of all: a row per user, a column per feature."""
        wanted = None if users is None else ids_from_values(list(users))
        parts: Iterable[int] = range(self.n_partitions)
        if wanted is not None:
            parts = np.unique(partition_of(wanted, self.n_partitions)).tolist()
        frames = []
        for index in parts:
            part = self.partition(index, normalize=False)
            rows = np.arange(len(part.user_ids))
            if wanted is not None:
                found = part.user_ids.positions_of(wanted)
                rows = np.sort(found[found >= 0])
            frame = pd.DataFrame.sparse.from_spmatrix(part.X[rows], columns=self.columns)  # type: ignore[attr-defined]
            frame.index = pd.Index(part.user_ids.take(rows).to_pandas(), name="user_id")
            frames.append(frame)
        if not frames:
            return pd.DataFrame(columns=self.columns, index=pd.Index(empty_ids(self.id_kind).to_pandas()))
        return pd.concat(frames)

    def to_dask(self, *, variant: str | None = None, normalize: bool | None = False) -> tuple[Any, Any, list[str]]:
        """Return X, user_ids and columns as `interest_features` does for Dask tables: one block a partition, lazy.

        Parameters are those of `partition`; by default values are as stored.
        """
        import dask.dataframe as dd

        path, columns = str(self.path), self.columns_of(variant)
        empty = sp.csr_matrix((0, 0), dtype=np.float32)
        counts = [part.rows for part in self.run.parts]
        X = read_blocks(_read_rows, counts, len(columns), empty, path, variant, normalize)
        meta = empty_ids(self.id_kind).to_pandas()
        return X, dd.from_map(_read_ids, range(self.n_partitions), path=path, meta=meta), columns


def _read_rows(number: int, path: str, variant: str | None, normalize: bool | None) -> sp.csr_matrix:
    return open_features(path).partition(number, variant=variant, normalize=normalize).X


def _read_ids(number: int, path: str) -> pd.Series:
    return open_features(path).open_partition(number).user_ids.to_pandas()


def open_features(path: str | Path, date: Any = None) -> Features:
    """Open a features store: a run of a site, or one that `write_features` made; with a date that of a site's night."""
    return Features(path if date is None else Site(local_path(path)).run_of_date("features", date))


def check_features(features: Any) -> None:
    """Refuse a path or a matrix where the features of a store are wanted."""
    if not isinstance(features, Features):
        raise TypeError(
            f"features must be Features, got {type(features).__name__}; pass open_features(path), or"
            " write_features(path, X, user_ids, columns, rankings) for a matrix"
        )


def finish_features(
    folder: Path,
    columns: FeatureColumns,
    *,
    digest: str,
    parts: Sequence[PartFacts],
    config: Mapping[str, Any],
    inputs: Any,
    counts: Mapping[str, Any] | None = None,
) -> Run:
    """Write the columns and the manifest of a features run whose partitions are written.

    The run is a zarr group as its partitions are.
    """
    write_text(folder / COLUMNS_FILE, json.dumps(columns.to_json(), ensure_ascii=False))
    write_text(folder / METADATA, encode_group({}, {})[METADATA].tobytes().decode())
    return finish_run(
        folder,
        FEATURES.kind,
        digest,
        parts,
        config=config,
        inputs=inputs,
        counts=counts,
        files={name: checksum_file(folder / name) for name in (COLUMNS_FILE, METADATA)},
    )
