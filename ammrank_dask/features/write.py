"""Write a features store from a matrix of one's own, and end the run of any."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ammrank_dask.features.columns import OWN_GROUP, FeatureColumns, groups_of_names
from ammrank_dask.features.csr import csr_arrays, csr_attributes, unsigned_type
from ammrank_dask.features.store import COLUMNS_FILE, Features, open_features
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import check_in_memory
from ammrank_dask.storage.numbers import whole_number
from ammrank_dask.storage.objects.atomic import digest_of, swap_folder, temporary_beside, write_text
from ammrank_dask.storage.objects.folders import local_path
from ammrank_dask.storage.store.groups import METADATA, encode_group
from ammrank_dask.storage.store.ids import UserIds, ids_from_values
from ammrank_dask.storage.store.parts import checksum_file, write_part
from ammrank_dask.storage.store.registry import FEATURES
from ammrank_dask.storage.store.runs import Run, finish_run, open_run, remove_run, start_run
from ammrank_dask.storage.vocabulary import USERS_A_PARTITION
from ammrank_dask.user_hash import partition_of


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
    path = local_path(path)
    check_in_memory("X", X, ", else write it partition by partition with ammrank_dask.features.write.write_partitions")
    check_in_memory("rankings", rankings)
    try:
        matrix = sp.csr_matrix(X, dtype=np.float32)
    except (TypeError, ValueError):
        raise BadInput("X must be a matrix of numbers, found other values; fill, convert or drop them") from None
    matrix.sum_duplicates()
    ids = ids_from_values(user_ids)
    if matrix.shape != (len(ids), len(columns)):
        raise BadInput(f"X must be (users, columns) = ({len(ids)}, {len(columns)}), got {matrix.shape}")
    if not np.isfinite(matrix.data).all():
        raise BadInput("X must be finite, found NaN or infinity")
    if len(ids.sort_unique()) != len(ids):
        raise BadInput(f"user ids must be distinct, found {len(ids) - len(ids.sort_unique())} duplicates")
    _refuse_names("columns", columns)
    names, codes = _own_rankings(rankings, categories, len(ids))
    _refuse_names("categories", names)
    default = max(1, -(-len(ids) // USERS_A_PARTITION))
    count = default if n_partitions is None else whole_number("n_partitions", n_partitions, least=1)
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
    folder = local_path(path)
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
        FeatureColumns(tuple(columns), groups_of_names(columns)),
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
        "ranking/category": codes[is_ranked].astype(unsigned_type(n_categories)),
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
    """Write the columns and the manifest of a features run whose partitions are written.

    The run is a zarr group as its partitions are.
    """
    write_text(folder / COLUMNS_FILE, json.dumps(columns.to_json(), ensure_ascii=False))
    write_text(folder / METADATA, encode_group({}, {})[METADATA].tobytes().decode())
    return finish_run(
        folder,
        FEATURES.kind,
        digest,
        n_partitions,
        config=config,
        inputs=inputs,
        counts=counts,
        files={name: checksum_file(folder / name) for name in (COLUMNS_FILE, METADATA)},
    )


def _sorted_order(ids: UserIds) -> np.ndarray:
    order = np.empty(len(ids), np.int64)
    order[ids.sort_unique().positions_of(ids)] = np.arange(len(ids))
    return order


def _refuse_names(what: str, names: Sequence[str]) -> None:
    """Refuse names that are no text, or that two columns or categories have."""
    others = [name for name in names if not isinstance(name, str)]
    if others:
        raise BadInput(f"{what} must be names, got {others[0]!r}; convert them to text")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadInput(f"{what} must be distinct, found {twice[0]!r} more than once; rename one")


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
    by_code = np.sort(codes, axis=1)
    twice = ((by_code[:, 1:] == by_code[:, :-1]) & (by_code[:, 1:] >= 0)).any(axis=1)
    if twice.any():
        raise BadInput(f"rankings must name a category once per row, found one twice in row {int(twice.argmax())}")
    return names, codes
