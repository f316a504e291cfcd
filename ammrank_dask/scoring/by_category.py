"""Write qualifications by category: few files, each of a contiguous range of partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client

from ammrank_dask.features.csr import unsigned_type
from ammrank_dask.kernels.selection import group_rows, order_ties, sort_by_score, take_rows
from ammrank_dask.runtime.tasks import Progress, run_tasks, silent
from ammrank_dask.runtime.thread_tasks import write_behind
from ammrank_dask.storage.objects.atomic import begin_syncs
from ammrank_dask.storage.store.category_files import (
    POSITION,
    CategoryFile,
    PartitionRows,
    is_batch_written,
    write_batch_list,
)
from ammrank_dask.storage.store.ids import IntegerIds, UserIds, concat
from ammrank_dask.storage.store.qualification_files import category_starts, write_table
from ammrank_dask.storage.store.qualifications import QualificationRows
from ammrank_dask.storage.vocabulary import CHANCE, PROPENSITY, RANK, SCORE, USER_ID

ROWS_OF_FILE = 1_000_000
"""A file is closed as soon as it has as many rows."""
ROWS_OF_TASK = 2_000_000


def write_by_category(
    client: Client, run: Path, categories: Sequence[str], n_partitions: int, *, progress: Progress = silent
) -> None:
    """Collect the rows of all partitions by category; files that are whole are kept."""
    starts = np.array([category_starts(run, partition) for partition in range(n_partitions)], np.int64)
    files = plan_files(np.diff(starts, axis=1), categories)
    batches = list(_batches(files))
    missing = [number for number in range(len(batches)) if not is_batch_written(run, number)]
    run_tasks(
        client,
        "by-category",
        write_batch,
        [(run, number, batches[number]) for number in missing],
        progress=progress,
        units=[sum(file.n_rows for file in batches[number]) for number in missing],
        unit="qualifications",
        on_result=lambda index, _: begin_syncs(run / file.name for file in batches[missing[index]]),
    )


def rows_by_category(rows: QualificationRows, n_categories: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return where each category begins, and the ids with the columns of the rows by category, those of each by user.

    Positions of users and ranks take less room where they are few.
    """
    nothing = np.empty(0, np.float32)
    given = {SCORE: rows.score, CHANCE: rows.chance, PROPENSITY: rows.propensity}
    values = tuple(nothing if column is None else column for column in given.values())
    n = len(rows.category)
    start = np.empty(n_categories + 1, np.int64)
    user = np.empty(n, unsigned_type(len(rows.user_ids)))
    rank = np.empty(n, np.uint8 if n_categories < 1 << 8 else np.uint16)
    grouped = tuple(np.empty_like(column) for column in values)
    group_rows(rows.indptr, rows.category, values, start, user, rank, grouped)
    columns = {name: grouped[i] for i, name in enumerate(given) if given[name] is not None}
    return start, {**rows.user_ids.to_arrays(), POSITION: user, SCORE: columns.pop(SCORE), RANK: rank, **columns}


def plan_files(n_rows: np.ndarray, categories: Sequence[str], rows_of_file: int | None = None) -> list[CategoryFile]:
    """Return the files of all categories that somebody holds.

    Examples
    --------
    >>> rows = np.array([[5, 0], [5, 0], [1, 0]])  # of 3 partitions and 2 categories
    >>> [(file.category, file.first, file.last) for file in plan_files(rows, ["Hats", "Shoes"], 8)]
    [('Hats', 0, 1), ('Hats', 2, 2)]

    Parameters
    ----------
    n_rows
        (partitions, L) rows of each category.
    """
    limit = ROWS_OF_FILE if rows_of_file is None else rows_of_file
    last = len(n_rows) - 1
    files = []
    for code, category in enumerate(categories):
        first, total = 0, 0
        for partition, count in enumerate(n_rows[:, code].tolist()):
            total += count
            if total and (total >= limit or partition == last):
                files.append(CategoryFile(category, code, first, partition, total))
                first, total = partition + 1, 0
    return files


def write_batch(run: Path, number: int, files: Sequence[CategoryFile]) -> None:
    """Write some files, and then the list of them; a partition is read once for all of them."""
    ids: list[list[UserIds]] = [[] for _ in files]
    parts: list[list[dict[str, np.ndarray]]] = [[] for _ in files]
    for partition in sorted({p for file in files for p in range(file.first, file.last + 1)}):
        # Files are by category, so those of a partition are one stretch of its rows, but for categories without any.
        own = [at for at, file in enumerate(files) if file.first <= partition <= file.last]
        rows, first = PartitionRows(run, partition), files[own[0]].code
        users, columns, starts = rows.of_categories(first, files[own[-1]].code)
        holders = _take_ids(rows.user_ids(), users)
        for at in own:
            start, stop = starts[files[at].code - first], starts[files[at].code - first + 1]
            ids[at].append(holders.stretch(start, stop))
            parts[at].append({name: values[start:stop] for name, values in columns.items()})
    made = (
        (file.name, _category_table(own_ids, own_parts))
        for file, own_ids, own_parts in zip(files, ids, parts, strict=True)
    )
    written = write_behind(lambda named: (named[0], write_table(run / named[0], named[1])), made)
    write_batch_list(run, number, dict(written))


def _category_table(ids: list[UserIds], parts: list[dict[str, np.ndarray]]) -> pa.Table:
    """Return the rows of a file, best first, from those of its partitions, which are taken out of the lists."""
    user_ids = concat(ids)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ids.clear()
    parts.clear()
    order = best_first(user_ids, columns[SCORE])
    taken = {name: _take(values, order) for name, values in columns.items()}
    taken[RANK] = taken[RANK].astype(np.int16)
    return pa.table({USER_ID: _take_ids(user_ids, order).to_arrow(), **taken})


def best_first(user_ids: UserIds, score: np.ndarray) -> np.ndarray:
    """Return the order of rows by score from the highest, then by user id; those of each partition are by user."""
    in_order = np.empty(len(score), np.uint64)
    sort_by_score(np.ascontiguousarray(score, np.float32).view(np.uint32), in_order)
    rank = user_ids.values if isinstance(user_ids, IntegerIds) else _ranks_of_tied(user_ids.to_arrow(), in_order)
    order_ties(rank, in_order)
    return in_order.astype(np.uint32)


def _take_ids(user_ids: UserIds, positions: np.ndarray) -> UserIds:
    if isinstance(user_ids, IntegerIds):
        return IntegerIds(_take(user_ids.values, positions))
    return user_ids.take(positions)


def _take(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
    taken = np.empty(len(positions), values.dtype)
    take_rows(values, positions, taken)
    return taken


def _ranks_of_tied(ids: pa.Array, in_order: np.ndarray) -> np.ndarray:
    """Return the place of each id among those of rows whose score another row has too; 0 for all other rows."""
    upper = in_order >> np.uint64(32)
    is_same = np.zeros(len(upper) + 1, bool)
    is_same[1:-1] = upper[1:] == upper[:-1]
    tied = in_order[is_same[:-1] | is_same[1:]].astype(np.uint32)
    rank = np.zeros(len(upper), np.int64)
    rank[tied[pc.sort_indices(ids.take(pa.array(tied))).to_numpy()]] = np.arange(len(tied))
    return rank


def _batches(files: Sequence[CategoryFile]) -> Iterator[list[CategoryFile]]:
    """Yield the files in batches of about `ROWS_OF_TASK` rows."""
    batch: list[CategoryFile] = []
    for file in files:
        batch.append(file)
        if sum(found.n_rows for found in batch) >= ROWS_OF_TASK:
            yield batch
            batch = []
    if batch:
        yield batch
