"""Features: sparse rows of users, read from a store partition by partition, in the columns one asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import scipy.sparse as sp

from ammrank_dask.kernels.features import choose_columns, count_below, count_marked, normalize_rows
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.atomic import digest_of, swap_folder, temporary_beside, write_text
from ammrank_dask.storage.store.ids import ID_ARRAYS, UserIds, empty_ids, ids_from_arrays, ids_from_values
from ammrank_dask.storage.store.manifests import FeaturesManifest
from ammrank_dask.storage.store.parts import CheckedReader, OpenPart, checksum_file, write_part
from ammrank_dask.storage.store.registry import FEATURES
from ammrank_dask.storage.store.runs import Run, finish_run, open_run, remove_run, start_run
from ammrank_dask.storage.vocabulary import (
    AD_VIEW_GROUP,
    AGE,
    AGE_BUCKETS,
    GENDER,
    GENDERS,
    INTENSITY,
    RECENCY,
    USERS_A_PARTITION,
)
from ammrank_dask.user_hash import partition_of

COLUMNS_FILE = "columns.json"
DEMOGRAPHIC_GROUPS = (AGE, GENDER)
VALUES_AT_ONCE = 1 << 21
"""Values that are in memory at a time when the rows of a partition are read in pieces."""
ROWS_AT_ONCE = 1 << 14
"""Rows that are, at most."""
OWN_GROUP = "own"
"""Group of columns that did not come from a log."""


@dataclass(frozen=True)
class FeatureColumns:
    """The columns of a store: their names, and as (group, number of columns) runs the group of each."""

    names: tuple[str, ...]
    groups: tuple[tuple[str, int], ...]

    @cached_property
    def group_of(self) -> np.ndarray:
        """Index into `groups` of every column."""
        return np.repeat(np.arange(len(self.groups)), [size for _, size in self.groups])

    def to_json(self) -> dict[str, Any]:
        """Return the columns as they are stored."""
        return {"columns": list(self.names), "groups": [list(group) for group in self.groups]}

    @property
    def digest(self) -> str:
        """Hash of the names, by which a model knows its features."""
        return digest_of(self.to_json())

    def chosen(self, variant: str | None) -> np.ndarray:
        """Return the columns of a variant: `no-G` is all but group G; `adv`, a group that is there, or None is all."""
        present = [name for name, _ in self.groups]
        if variant is None or variant in (AD_VIEW_GROUP, *present):
            return np.arange(len(self.names))
        left_out = variant.removeprefix("no-")
        if left_out == variant:
            raise BadInput(f"the store has no columns of group {variant!r}; it has {', '.join(present)}")
        if left_out not in present:
            return np.arange(len(self.names))
        dropped = [number for number, name in enumerate(present) if name == left_out]
        return np.flatnonzero(~np.isin(self.group_of, dropped))


def interest_columns(
    groups: Sequence[str], categories: Sequence[str], *, recency: bool, demographics: bool
) -> FeatureColumns:
    """Return the columns of features made from a log: group by group intensity and recency, then age and gender."""
    kinds = (INTENSITY, RECENCY) if recency else (INTENSITY,)
    names = [f"{group}:{kind}:{category}" for group in groups for kind in kinds for category in categories]
    sizes = [(group, len(kinds) * len(categories)) for group in groups]
    if demographics:
        names += [f"{AGE}:{bucket}" for bucket in AGE_BUCKETS] + [f"{GENDER}:{gender}" for gender in GENDERS]
        sizes += [(AGE, len(AGE_BUCKETS)), (GENDER, len(GENDERS))]
    return FeatureColumns(tuple(names), tuple(sizes))


@dataclass(frozen=True)
class FeaturePartition:
    """The users of one partition, ascending by id, with their rows in the chosen columns.

    `rankings` is (n_rows, m), codes best first, -1 after the last; None when the store has no labels.
    `n_event_features` counts the values of a row that come from events: 0 is a cold user.
    """

    X: sp.csr_matrix
    user_ids: UserIds
    age_bucket: np.ndarray
    gender: np.ndarray
    n_event_features: np.ndarray
    rankings: np.ndarray | None


class OpenFeaturePartition:
    """A partition that is open: all of its users, and their rows as they are asked for."""

    def __init__(
        self, part: OpenPart, columns: FeatureColumns, variant: str | None, *, normalize: bool, has_rankings: bool
    ) -> None:
        self._part, self._normalize = part, normalize
        self._chosen, self._n_stored = columns.chosen(variant), len(columns.names)
        event_groups = np.array([group not in DEMOGRAPHIC_GROUPS for group, _ in columns.groups])
        self._from_events = event_groups[columns.group_of[self._chosen]]
        self.user_ids = ids_from_arrays({name: part.rows(name) for name in ID_ARRAYS if name in part})
        self.age_bucket, self.gender = part.rows("age_bucket"), part.rows("gender")
        self.indptr = part.rows("X/indptr")
        """Where the values of each row begin, of all columns."""
        self.rankings = None
        if has_rankings:
            self.rankings = pad_rankings(part.rows("ranking/indptr"), part.rows("ranking/category"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._part.__exit__(*error)

    @property
    def n_rows(self) -> int:
        """Number of users."""
        return len(self.indptr) - 1

    @property
    def n_columns(self) -> int:
        """Number of columns of the variant."""
        return len(self._chosen)

    def read(self, start: int, stop: int) -> tuple[sp.csr_matrix, np.ndarray]:
        """Return the rows from `start` to `stop`, and how many values of each are of events; ask for them in order."""
        begin, end = int(self.indptr[start]), int(self.indptr[stop])
        indptr = self.indptr[start : stop + 1] - begin
        indices, data = (self._part.rows(name, begin, end) for name in ("X/indices", "X/data"))
        if len(self._chosen) < self._n_stored:
            indptr, indices, data = choose(indptr, indices, data, self._chosen, self._n_stored)
        n_event_features = _count_values(indptr, indices, self._from_events)
        if self._normalize:
            normalize_rows(indptr, data)
        X = sp.csr_matrix((data, indices.view(_signed(indices)), indptr), shape=(stop - start, self.n_columns))
        X.has_sorted_indices = True
        return X, n_event_features

    def pieces(self) -> Iterator[tuple[slice, sp.csr_matrix, np.ndarray]]:
        """Yield all rows, some at a time, with their position and what `read` says of them.

        What is in memory does not depend on how many rows there are: they have about `VALUES_AT_ONCE` values.
        """
        for rows in cut_rows(self.indptr):
            yield rows, *self.read(rows.start, rows.stop)


class Features:
    """A features run on disk. Nothing is read before a partition is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.run: Run = open_run(Path(path), FEATURES.kind)
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
        with self.open_partition(index, variant=variant, normalize=normalize) as rows:
            X, n_event_features = rows.read(0, rows.n_rows)
            return FeaturePartition(X, rows.user_ids, rows.age_bucket, rows.gender, n_event_features, rows.rankings)

    def open_partition(
        self, index: int, *, variant: str | None = None, normalize: bool | None = None
    ) -> OpenFeaturePartition:
        """Open one partition, to read its rows some at a time; parameters are those of `partition`."""
        if not 0 <= index < self.n_partitions:
            raise BadInput(f"partition must be between 0 and {self.n_partitions - 1}, got {index}")
        return OpenFeaturePartition(
            self.run.part(index).open(FEATURES), self.feature_columns, variant,
            normalize=self.normalize if normalize is None else normalize, has_rankings=self.has_rankings,
        )  # fmt: skip

    def to_pandas(self, users: Iterable[Any] | None = None) -> pd.DataFrame:
        """Return the stored values (not normalised) of some users, or of all, one row a user, one column a feature."""
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


def open_features(path: str | Path) -> Features:
    """Open a features store: a run of a site, or one that `write_features` made."""
    return Features(path)


def write_features(
    path: str | Path,
    X: Any,
    user_ids: Any,
    columns: Sequence[str],
    rankings: np.ndarray | None = None,
    *,
    categories: Sequence[str] | None = None,
    n_partitions: int | None = None,
    normalize: bool = True,
) -> Features:
    """Write a features store from a matrix of one's own; no log and no site is needed.

    Parameters
    ----------
    X
        (n, d) dense or sparse, finite.
    user_ids
        n distinct integers or strings.
    columns
        d names.
    rankings
        (n, m) category codes, best first, -1 = unranked.
    categories
        Names of the categories; their codes as text when None.
    n_partitions
        One for each 50,000 users when None.
    """
    matrix = sp.csr_matrix(X, dtype=np.float32)
    matrix.sum_duplicates()
    ids = ids_from_values(user_ids)
    if matrix.shape != (len(ids), len(columns)):
        raise BadInput(f"X must be (users, columns) = ({len(ids)}, {len(columns)}), got {matrix.shape}")
    if not np.isfinite(matrix.data).all():
        raise BadInput("X must be finite, found NaN or infinity")
    if len(ids.sort_unique()) != len(ids):
        raise BadInput(f"user ids must be distinct, found {len(ids) - len(ids.sort_unique())} duplicates")
    names, codes = _own_rankings(rankings, categories, len(ids))
    count = n_partitions or max(1, -(-len(ids) // USERS_A_PARTITION))
    home = partition_of(ids, count)

    def rows_of(partition: int) -> OwnRows:
        rows = np.flatnonzero(home == partition)
        rows = rows[_sorted_order(ids.take(rows))]
        return OwnRows(ids.take(rows), matrix[rows], None if codes is None else codes[rows])

    return write_partitions(path, map(rows_of, range(count)), columns, names, normalize=normalize)


@dataclass(frozen=True)
class OwnRows:
    """The rows of one partition of a store of one's own: users ascending, and what they rank if it is known."""

    user_ids: UserIds
    X: sp.csr_matrix
    rankings: np.ndarray | None


def write_partitions(
    path: str | Path,
    partitions: Iterable[OwnRows],
    columns: Sequence[str],
    categories: Sequence[str],
    *,
    normalize: bool = True,
) -> Features:
    """Write a features store partition by partition, so that only one has to be in memory.

    Users must be in the partition that `partition_of` says, and be of one type.
    """
    folder = Path(path)
    _refuse_other_folder(folder)
    building = temporary_beside(folder)
    start_run(building, 0)
    checksums, id_kinds, has_rankings = [], set(), False
    for partition, own in enumerate(partitions):
        arrays = _own_arrays(own.user_ids, own.X)
        if own.rankings is not None:
            arrays |= _ranking_arrays(own.rankings, len(categories))
            has_rankings = True
        attributes = csr_attributes(*own.X.shape)
        checksums.append(write_part(building, partition, FEATURES, arrays, group_attributes=attributes).checksum)
        id_kinds.add(own.user_ids.kind)
    finish_features(
        building,
        FeatureColumns(tuple(columns), _groups_of_names(columns)),
        digest=digest_of([OWN_GROUP, list(columns), checksums]),
        n_partitions=len(checksums),
        config={
            "categories": list(categories),
            "has_rankings": has_rankings,
            "id_kind": id_kinds.pop(),
            "normalize": normalize,
        },
        inputs=[],
    )
    # An earlier store at this place stays until the new one is whole.
    swap_folder(building, folder)
    if building.is_dir():
        remove_run(building)
    return open_features(folder)


def _own_arrays(ids: UserIds, rows: sp.csr_matrix) -> dict[str, np.ndarray]:
    """Return the arrays of a partition whose users have neither age nor gender."""
    return {
        **ids.to_arrays(),
        **csr_arrays(rows.indptr, rows.indices, rows.data, rows.shape[1]),
        "age_bucket": np.full(len(ids), -1, np.int8),
        "gender": np.full(len(ids), -1, np.int8),
    }


def _ranking_arrays(codes: np.ndarray, n_categories: int) -> dict[str, np.ndarray]:
    """Return the rankings of a partition as it stores them; all intensities are 0."""
    is_ranked = codes >= 0
    counts = is_ranked.sum(axis=1)
    return {
        "ranking/indptr": np.concatenate([[0], np.cumsum(counts)]),
        "ranking/category": codes[is_ranked].astype(_unsigned(n_categories)),
        "ranking/intensity": np.zeros(int(counts.sum())),
    }


def _refuse_other_folder(folder: Path) -> None:
    """Refuse a folder that is neither empty nor a features store."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        try:
            open_run(folder, FEATURES.kind)
        except BadInput as error:
            raise BadInput(f"{folder} is not a features store and would be overwritten: {error}") from None


def finish_features(
    folder: Path,
    columns: FeatureColumns,
    *,
    digest: str,
    n_partitions: int,
    config: Mapping[str, Any],
    inputs: Any,
    counts: Mapping[str, Any] | None = None,
) -> Run:
    """Write the columns and the manifest of a features run whose partitions are written."""
    write_text(folder / COLUMNS_FILE, json.dumps(columns.to_json(), ensure_ascii=False))
    return finish_run(
        folder,
        FEATURES.kind,
        digest,
        n_partitions,
        config=config,
        inputs=inputs,
        counts=counts,
        files={COLUMNS_FILE: checksum_file(folder / COLUMNS_FILE)},
    )


def csr_arrays(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, n_columns: int) -> dict[str, np.ndarray]:
    """Return the arrays of a CSR matrix under their stored names and types."""
    return {
        "X/data": np.ascontiguousarray(data, np.float32),
        "X/indices": indices.astype(_unsigned(n_columns), copy=False),
        "X/indptr": indptr.astype(np.int64, copy=False),
    }


def csr_attributes(n_rows: int, n_columns: int) -> dict[str, dict[str, Any]]:
    """Return the attributes by which AnnData and others know a CSR group."""
    return {"X": {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [n_rows, n_columns]}}


def cut_rows(indptr: np.ndarray) -> Iterator[slice]:
    """Yield all rows of a CSR matrix, some at a time: of about `VALUES_AT_ONCE` values, but one row at least.

    Nor are they more than `ROWS_AT_ONCE`: whatever is worked out for a row takes room too, however few values it has.

    Examples
    --------
    >>> list(cut_rows(np.array([0, 7, 7, 1 << 21, 1 << 30, (1 << 30) + 1])))
    [slice(0, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    start = 0
    while start < len(indptr) - 1:
        last = np.searchsorted(indptr, indptr[start] + VALUES_AT_ONCE, side="right") - 1
        stop = max(start + 1, min(int(last), start + ROWS_AT_ONCE))
        yield slice(start, stop)
        start = stop


def choose(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, chosen: np.ndarray, n_stored: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the CSR arrays with the chosen columns only, renumbered in their order."""
    new_column = np.full(n_stored, -1, np.int64)
    new_column[chosen] = np.arange(len(chosen))
    out_indptr, out_indices, out_data = np.empty_like(indptr), np.empty_like(indices), np.empty_like(data)
    n = choose_columns(indptr, indices, data, new_column, out_indptr, out_indices, out_data)
    return out_indptr, out_indices[:n], out_data[:n]


def _count_values(indptr: np.ndarray, indices: np.ndarray, marked: np.ndarray) -> np.ndarray:
    """Return how many values of each row, whose columns ascend, are in marked columns (int32)."""
    counts = np.empty(len(indptr) - 1, np.int32)
    n_marked = int(marked.sum())
    if marked[:n_marked].all():  # as in every store that is made from a log: age and gender come last
        count_below(indptr, indices, n_marked, counts)
    else:
        count_marked(indptr, indices, marked, counts)
    return counts


def pad_rankings(indptr: np.ndarray, category: np.ndarray) -> np.ndarray:
    """Return ragged rankings as a matrix, -1 after the last of a row (int32)."""
    counts = np.diff(indptr)
    width = int(counts.max()) if len(counts) else 0
    padded = np.full((len(counts), width), -1, np.int32)
    padded[np.arange(width) < counts[:, None]] = category
    return padded


def _unsigned(n: int) -> np.dtype:
    return np.dtype(np.uint16 if n <= 1 << 16 else np.uint32)


def _signed(indices: np.ndarray) -> np.dtype:
    # scipy takes signed indices of 32 bits without a copy; 16-bit ones it widens itself.
    return np.dtype(np.int32) if indices.dtype == np.uint32 else indices.dtype


def _sorted_order(ids: UserIds) -> np.ndarray:
    order = np.empty(len(ids), np.int64)
    order[ids.sort_unique().positions_of(ids)] = np.arange(len(ids))
    return order


def _groups_of_names(columns: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Take the group of a column from the names `interest_columns` gives; other columns are the user's own."""
    runs: list[tuple[str, int]] = []
    for name in columns:
        parts = name.split(":")
        is_event = len(parts) >= 3 and parts[1] in (INTENSITY, RECENCY)
        group = parts[0] if is_event or parts[0] in DEMOGRAPHIC_GROUPS else OWN_GROUP
        if runs and runs[-1][0] == group:
            runs[-1] = (group, runs[-1][1] + 1)
        else:
            runs.append((group, 1))
    return tuple(runs)


def _own_rankings(
    rankings: np.ndarray | None, categories: Sequence[str] | None, n_users: int
) -> tuple[Sequence[str], np.ndarray | None]:
    """Return the names of the categories, and the rankings as an array of their codes."""
    if rankings is None:
        return list(categories or []), None
    codes = np.asarray(rankings)
    if codes.ndim != 2 or len(codes) != n_users or not np.issubdtype(codes.dtype, np.integer):
        raise BadInput(f"rankings must be integers of shape ({n_users}, m), got {codes.dtype} {codes.shape}")
    n_found = int(codes.max(initial=-1)) + 1
    names = list(categories) if categories is not None else [str(code) for code in range(n_found)]
    if codes.min(initial=-1) < -1 or n_found > len(names):
        raise BadInput(
            f"rankings must hold codes from 0 to {len(names) - 1}, or -1, got {codes.min()} to {codes.max()}"
        )
    return names, codes
