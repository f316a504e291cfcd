"""Write qualifications by category: few files, each of a contiguous range of partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from distributed import Client

from ammrank_dask.kernels.selection import sort_by_category
from ammrank_dask.storage.store.category_files import (
    CategoryFile,
    PartitionRows,
    is_batch_written,
    write_batch_list,
    write_category_file,
)
from ammrank_dask.storage.store.qualifications import category_starts
from ammrank_dask.storage.vocabulary import SCORE, USER_ID
from ammrank_dask.tasks import Progress, run_tasks, silent

ROWS_OF_FILE = 1_000_000
"""A file is closed as soon as it has as many rows."""
ROWS_OF_TASK = 2_000_000


def write_by_category(
    client: Client, run: Path, categories: Sequence[str], n_partitions: int, *, progress: Progress = silent
) -> None:
    """Bring the rows of all partitions, which are written, together by category; what is whole is not done again."""
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
    )


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
    """Write some files, and then the list of them."""
    written = {}
    parts: dict[int, PartitionRows] = {}
    for file in files:
        for partition in range(file.first, file.last + 1):
            if partition not in parts:
                parts[partition] = PartitionRows(run, partition)
        slices = [parts[partition].of_category(file.code) for partition in range(file.first, file.last + 1)]
        table = pa.concat_tables(slices).combine_chunks()
        rows = table if file.first == file.last else table.take(pa.array(best_first(table)))
        written[file.name] = write_category_file(run, file, rows)
    write_batch_list(run, number, written)


def best_first(table: pa.Table) -> np.ndarray:
    """Return the order of rows by score from the highest, then by user id; those of each partition are in it."""
    score = np.ascontiguousarray(table[SCORE].to_numpy(), np.float32)
    order = np.empty(len(score), np.int32)
    start = np.empty(2, np.int64)
    sort_by_category(np.zeros(len(score), np.int32), score.view(np.uint32), start, order)
    sorted_score = score[order]
    is_same = np.zeros(len(order) + 1, bool)
    is_same[1:-1] = sorted_score[1:] == sorted_score[:-1]
    tied = np.flatnonzero(is_same[:-1] | is_same[1:])
    if len(tied):
        rows = order[tied]
        ids = table[USER_ID].take(pa.array(rows)).combine_chunks()
        rank = np.empty(len(rows), np.int64)
        rank[pc.sort_indices(ids).to_numpy()] = np.arange(len(rows))
        of_score = np.cumsum(~is_same[:-1])[tied]
        order[tied] = rows[np.lexsort((rank, of_score))]
    return order


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
