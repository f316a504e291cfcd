"""Write a features store from a matrix of one's own, and end the run of any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import scipy.sparse as sp
from distributed import Client

from ammrank_dask.features.columns import OWN_GROUP, FeatureColumns, groups_of_names
from ammrank_dask.features.csr import csr_arrays, csr_attributes, unsigned_type
from ammrank_dask.features.store import Features, finish_features, open_features
from ammrank_dask.ingest.exchange import read_slices, write_slices
from ammrank_dask.ingest.routing import number_users, slice_by_partition
from ammrank_dask.runtime.client import current_client
from ammrank_dask.runtime.collections import blocks_of, check_blocks, run_blocks, temporary_scratch
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.in_memory import check_in_memory, is_collection
from ammrank_dask.storage.numbers import whole_number
from ammrank_dask.storage.objects.atomic import digest_of, swap_folder, temporary_beside
from ammrank_dask.storage.objects.folders import is_folder, is_there, list_paths, local_path, make_folder
from ammrank_dask.storage.store.ids import IntegerIds, UserIds, ids_from_values, one_kind
from ammrank_dask.storage.store.parts import PartFacts, write_part
from ammrank_dask.storage.store.registry import FEATURES
from ammrank_dask.storage.store.runs import open_run, remove_run
from ammrank_dask.storage.vocabulary import USERS_A_PARTITION
from ammrank_dask.user_hash import partition_of


def write_features(
    path: str | Path,
    X: Any,
    user_ids: Any,
    columns: Sequence[str],
    rankings: Any = None,
    *,
    categories: Sequence[str] | None = None,
    n_partitions: int | None = None,
    normalize: bool = True,
    client: Client | None = None,
    scratch: str | Path | None = None,
) -> Features:
    """Write a features store from a matrix of one's own; no log and no site is needed.

    A Dask array is written by the cluster, one task a block.

    Parameters
    ----------
    X
        (n, d) dense or sparse, finite; or a Dask array of such blocks, each with all columns.
    user_ids
        n distinct integers or strings; with a Dask array also a Dask Series with its blocks.
    columns
        d names.
    rankings
        (n, m) category codes, best first, -1 = unranked; with a Dask array also one with its blocks.
    categories
        Names of the categories; their codes as text when None.
    n_partitions
        One for each 50,000 users when None; one for each block of a Dask array.
    client
        The cluster for Dask arrays; None for the current client.
    scratch
        A folder that all workers see: rows of Dask arrays that do not come from `interest_features` change places
        through it. None for the local directory of the workers, if they are on one host.
    """
    _refuse_names("columns", columns)
    if is_collection(X):
        return _write_collections(
            local_path(path), X, user_ids, columns, rankings, categories, n_partitions, normalize, client, scratch
        )
    path = local_path(path)
    matrix, ids = _own_rows(X, user_ids, len(columns))
    check_in_memory("rankings", rankings)
    names = _category_names(rankings, categories)
    codes = _own_rankings(rankings, names, len(ids))
    default = max(1, -(-len(ids) // USERS_A_PARTITION))
    count = default if n_partitions is None else whole_number("n_partitions", n_partitions, least=1)
    home = partition_of(ids, count)

    def rows_of(partition: int) -> OwnRows:
        rows = np.flatnonzero(home == partition)
        rows = rows[_sorted_order(ids.take(rows))]
        return OwnRows(ids.take(rows), matrix[rows], None if codes is None else codes[rows])

    return write_partitions(path, map(rows_of, range(count)), columns, names, normalize=normalize)


def _write_collections(
    path: Path,
    X: Any,
    user_ids: Any,
    columns: Sequence[str],
    rankings: Any,
    categories: Sequence[str] | None,
    n_partitions: int | None,
    normalize: bool,
    client: Client | None,
    scratch: str | Path | None,
) -> Features:
    """Write the blocks of collections, one task a block; rows that are not placed by their user change places first."""
    client = current_client(client)
    check_blocks(X)
    if X.shape[1] != len(columns):
        raise BadInput(f"X must have the {len(columns)} columns that are named, got {X.shape[1]}")
    n = X.numblocks[0] if n_partitions is None else whole_number("n_partitions", n_partitions, least=1)
    ids = blocks_of("user_ids", user_ids, X)
    if is_collection(rankings) and categories is None:
        categories = list(map(str, range(int(client.compute(rankings.max()).result()) + 1)))
    names = _category_names(rankings, categories)
    ranked = [None] * len(ids) if rankings is None else blocks_of("rankings", rankings, X)
    blocks: list[tuple[Any, ...]] = list(zip(np.ravel(X.to_delayed()), ids, ranked, strict=True))
    if len(blocks) == n and all(run_blocks(client, are_placed, [(one,) for one in ids], n)):
        return write_blocks(path, client, blocks, columns, names, normalize=normalize)
    with temporary_scratch(client, scratch) as folder:
        paths = [folder / f"rows-{number:05d}.arrow" for number in range(len(blocks))]
        kinds = run_blocks(client, write_row_slices, blocks, paths, n, len(columns), names)
        common = (paths, n, one_kind(filter(None, kinds)), len(columns), rankings is not None)
        parts = [(dask.delayed(read_row_slices, pure=False)(number, *common),) for number in range(n)]
        return write_blocks(path, client, parts, columns, names, normalize=normalize)


def write_blocks(
    path: Path,
    client: Client,
    blocks: Sequence[Sequence[Any]],
    columns: Sequence[str],
    categories: Sequence[str],
    *,
    normalize: bool,
) -> Features:
    """Write one partition of a features store for each block, by a task of its own.

    A block is an `OwnRows`, or X, ids (None to number the rows) and rankings (or None).
    """
    _refuse_other_folder(path)
    building = temporary_beside(path)
    parts = run_blocks(client, write_own_block, blocks, building, len(columns), list(categories))
    return _finish(path, building, parts, columns, categories, normalize=normalize)


def write_own_block(*block: Any) -> OwnPart:
    """Write one block as one partition: the rows, its number, and what `write_blocks` gives to all."""
    *rows, number, building, n_columns, categories = block
    own = rows[0] if len(rows) == 1 else sort_rows(rows[0], rows[1], rows[2], n_columns, categories)
    return _write_own(building, number, own, len(categories))


def sort_rows(X: Any, user_ids: Any, rankings: Any, n_columns: int, categories: Sequence[str]) -> OwnRows:
    """Return the rows of a block by user; without ids they are numbered."""
    matrix, ids = _own_rows(X, np.arange(X.shape[0]) if user_ids is None else user_ids, n_columns)
    codes = _own_rankings(rankings, categories, len(ids))
    order = _sorted_order(ids)
    return OwnRows(ids.take(order), matrix[order], None if codes is None else codes[order])


def are_placed(user_ids: Any, number: int, n_partitions: int) -> bool:
    """Return whether the users of a block are those of its partition."""
    return bool((partition_of(ids_from_values(user_ids), n_partitions) == number).all())


def write_row_slices(
    X: Any,
    user_ids: Any,
    rankings: Any,
    number: int,
    paths: Sequence[Path],
    n_partitions: int,
    n_columns: int,
    categories: Sequence[str],
) -> str | None:
    """Write the rows of one block sliced by user; return the kind of the ids."""
    matrix, ids = _own_rows(X, user_ids, n_columns)
    codes = _own_rankings(rankings, categories, len(ids))
    columns = {"length": np.diff(matrix.indptr)}
    order = np.argsort(partition_of(ids, n_partitions), kind="stable")
    matrix = matrix[order]
    user = None if isinstance(ids, IntegerIds) else np.arange(len(ids))
    sections = slice_by_partition(ids, user, np.ones(len(ids), bool), columns, n_partitions)
    starts = sections["user"][1]
    sections["data"] = matrix.data, matrix.indptr[starts]
    sections["indices"] = matrix.indices.astype(np.int32, copy=False), matrix.indptr[starts]
    if codes is not None:
        sections["rankings"] = (codes[order].ravel().astype(np.int32), starts * codes.shape[1])
    make_folder(paths[number].parent)
    write_slices(paths[number], n_partitions, [sections])
    return ids.kind if len(ids) else None


def read_row_slices(
    number: int, paths: Sequence[Path], n_partitions: int, kind: str, n_columns: int, has_rankings: bool
) -> OwnRows:
    """Return the rows of one partition from the slices of all blocks, by user."""
    slices = read_slices(paths, number, n_partitions)
    ids, user = number_users(slices, kind)
    if len(ids) != len(user):
        raise BadInput(f"user ids must be distinct, found {len(user) - len(ids)} duplicates")
    joined, order = slices.joined, np.argsort(user)
    indptr = np.concatenate([[0], np.cumsum(joined["length"])])
    matrix = sp.csr_matrix((joined["data"], joined["indices"], indptr), shape=(len(ids), n_columns))
    codes = joined["rankings"].reshape(len(ids), -1) if has_rankings and len(ids) else None
    if has_rankings and codes is None:
        codes = np.empty((0, 0), np.int32)
    return OwnRows(ids, matrix[order], None if codes is None else codes[order])


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
    parts = [_write_own(building, number, own, len(categories)) for number, own in enumerate(partitions)]
    return _finish(folder, building, parts, columns, categories, normalize=normalize)


@dataclass(frozen=True)
class OwnPart:
    """What is known of a partition that was written."""

    facts: PartFacts
    id_kind: str
    has_rankings: bool


def _write_own(building: Path, partition: int, own: OwnRows, n_categories: int) -> OwnPart:
    arrays = _own_arrays(own.user_ids, own.X)
    if own.rankings is not None:
        arrays |= _ranking_arrays(own.rankings, n_categories)
    written = write_part(building, partition, FEATURES, arrays, group_attributes=csr_attributes(*own.X.shape))
    return OwnPart(written, own.user_ids.kind, own.rankings is not None)


def _finish(
    folder: Path,
    building: Path,
    parts: Sequence[OwnPart],
    columns: Sequence[str],
    categories: Sequence[str],
    *,
    normalize: bool,
) -> Features:
    """Make a store whole whose partitions are written, and give it its name."""
    kind = one_kind([part.id_kind for part in parts if part.facts.rows] or [part.id_kind for part in parts[:1]])
    finish_features(
        building,
        FeatureColumns(tuple(columns), groups_of_names(columns)),
        digest=digest_of([OWN_GROUP, list(columns), [part.facts.checksum for part in parts]]),
        parts=[part.facts for part in parts],
        config={
            "categories": list(categories),
            "has_rankings": any(part.has_rankings for part in parts),
            "id_kind": kind,
            "normalize": normalize,
        },
        inputs=[],
    )
    # An earlier store at this place stays until the new one is whole.
    swap_folder(building, folder)
    if is_folder(building):
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
    if is_there(folder) and not (is_folder(folder) and not list_paths(folder)):
        try:
            open_run(folder, FEATURES.kind)
        except BadInput as error:
            raise BadInput(f"{folder} is not a features store and would be overwritten: {error}") from None


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


def _own_rows(X: Any, user_ids: Any, n_columns: int) -> tuple[sp.csr_matrix, UserIds]:
    """Return rows as they are stored, and their users; refuse what cannot be."""
    try:
        matrix = sp.csr_matrix(X, dtype=np.float32)
    except (TypeError, ValueError):
        raise BadInput("X must be a matrix of numbers, found other values; fill, convert or drop them") from None
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    ids = ids_from_values(user_ids)
    if matrix.shape != (len(ids), n_columns):
        raise BadInput(f"X must be (users, columns) = ({len(ids)}, {n_columns}), got {matrix.shape}")
    if not np.isfinite(matrix.data).all():
        raise BadInput("X must be finite, found NaN or infinity")
    n_distinct = len(ids.sort_unique())
    if n_distinct != len(ids):
        raise BadInput(f"user ids must be distinct, found {len(ids) - n_distinct} duplicates")
    return matrix, ids


def _category_names(rankings: Any, categories: Sequence[str] | None) -> list[str]:
    """Return the names of the categories: those that are given, or the codes that rankings in memory have."""
    if categories is None:
        codes = np.empty(0, np.int64) if rankings is None else np.asarray(rankings)
        is_integer = np.issubdtype(codes.dtype, np.integer)  # else they are refused afterwards
        return [str(code) for code in range(int(codes.max(initial=-1)) + 1 if is_integer else 0)]
    _refuse_names("categories", categories)
    return list(categories)


def _own_rankings(rankings: Any, names: Sequence[str], n_users: int) -> np.ndarray | None:
    """Return rankings as an array of codes; refuse those that cannot be."""
    if rankings is None:
        return None
    codes = np.asarray(rankings)
    if codes.ndim != 2 or len(codes) != n_users or not np.issubdtype(codes.dtype, np.integer):
        raise BadInput(f"rankings must be integers of shape ({n_users}, m), got {codes.dtype} {codes.shape}")
    if codes.min(initial=-1) < -1 or int(codes.max(initial=-1)) >= len(names):
        raise BadInput(
            f"rankings must hold codes from 0 to {len(names) - 1}, or -1, got {codes.min()} to {codes.max()}"
        )
    by_code = np.sort(codes, axis=1)
    twice = ((by_code[:, 1:] == by_code[:, :-1]) & (by_code[:, 1:] >= 0)).any(axis=1)
    if twice.any():
        raise BadInput(f"rankings must name a category once per row, found one twice in row {int(twice.argmax())}")
    return codes
