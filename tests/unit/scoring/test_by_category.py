"""Files by category from the rows of many partitions: their order, their ranges, and what is in memory."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ammrank_dask.scoring.by_category import plan_files, rows_by_category, write_batch
from ammrank_dask.storage.store.category_files import PartitionRows, is_batch_written
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualification_files import category_starts, make_folders, write_partition_files
from ammrank_dask.storage.store.qualifications import QualificationRows, by_user_table

CATEGORIES = ["Hats", "Shoes", "Cars"]
N_PARTITIONS, N_USERS = 4, 60


def write_partitions(run, *, strings):
    """Write rows of all partitions with equal scores among them; return them all as one frame."""
    rng = np.random.default_rng(0)
    make_folders(run, CATEGORIES)
    numbers = rng.permutation(N_PARTITIONS * N_USERS).reshape(N_PARTITIONS, N_USERS)
    frames = []
    for partition in range(N_PARTITIONS):
        ids = sorted(f"u{number:x}" for number in numbers[partition]) if strings else np.sort(numbers[partition])
        counts = rng.integers(0, 3, N_USERS)
        category = np.concatenate([rng.permutation(2)[:n] for n in counts]).astype(np.int32)  # nobody holds Cars
        score = rng.integers(0, 6, len(category)).astype(np.float32)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        users = ids_from_values(pa.array(ids, pa.string() if strings else pa.int64()))
        rows = QualificationRows(users, indptr, category, score)
        start, columns = rows_by_category(rows, len(CATEGORIES))
        table = by_user_table(rows, CATEGORIES)
        write_partition_files(run, partition, by_user=table, delta=table, by_category=columns, start=start, counts={})
        rank = np.concatenate([np.arange(1, n + 1) for n in counts])
        held = {"partition": partition, "user_id": np.repeat(ids, counts), "category": category, "score": score}
        frames.append(pd.DataFrame({**held, "rank": rank}))
    return pd.concat(frames)


@pytest.mark.parametrize("strings", [False, True])
def test_write_batch__files_of_other_ranges_have_their_rows_best_first(tmp_path, strings):
    held = write_partitions(tmp_path, strings=strings)
    starts = np.array([category_starts(tmp_path, partition) for partition in range(N_PARTITIONS)])
    files = plan_files(np.diff(starts, axis=1), CATEGORIES, rows_of_file=70)
    assert len({(file.first, file.last) for file in files}) > 1
    assert {file.category for file in files} == {"Hats", "Shoes"}
    write_batch(tmp_path, 7, files)
    assert is_batch_written(tmp_path, 7)
    for file in files:
        own = held[(held.category == file.code) & held.partition.between(file.first, file.last)]
        expected = own.sort_values(["score", "user_id"], ascending=[False, True])
        found = pd.read_parquet(tmp_path / file.name, partitioning=None)
        assert len(found) == file.n_rows
        assert found["rank"].dtype == np.int16
        for name in ("user_id", "score", "rank"):
            assert found[name].tolist() == expected[name].tolist()


def test_partition_rows__map_nothing(tmp_path):
    write_partitions(tmp_path, strings=False)
    rows = PartitionRows(tmp_path, 0)
    ids, (users, columns, _) = rows.user_ids(), rows.of_categories(1, 1)
    assert len(ids) == N_USERS
    assert len(users) == len(columns["score"]) > 0
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(("first", "last"), [(0, 2), (1, 1), (1, 2), (2, 2)])
def test_partition_rows__of_categories_are_one_stretch_cut_by_category(tmp_path, first, last):
    held = write_partitions(tmp_path, strings=False)
    rows = PartitionRows(tmp_path, 3)
    ids = rows.user_ids().to_arrow().to_numpy()
    users, columns, starts = rows.of_categories(first, last)
    assert (len(starts), starts[0], starts[-1]) == (last - first + 2, 0, len(users))
    for code in range(first, last + 1):
        own = slice(*starts[code - first : code - first + 2])
        expected = held[(held.partition == 3) & (held.category == code)]
        assert ids[users[own]].tolist() == expected.user_id.tolist()
        for name in ("score", "rank"):
            assert columns[name][own].tolist() == expected[name].tolist()
