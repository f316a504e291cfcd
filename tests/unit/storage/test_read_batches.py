"""The rows of files of a lake: those of the row groups that are asked for, and one sentence for what is bad."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake import files
from ammrank_dask.storage.lake.files import FileSlice, read_batches, scan_file


def write_events(path: Path, n_rows: int, **options: Any) -> pa.Table:
    """Write a file of rows, in several row groups."""
    rng = np.random.default_rng(1)
    table = pa.table(
        {
            "user_id": rng.integers(0, 2**62, n_rows),
            "category": pa.array(rng.integers(0, 50, n_rows).astype(str)).dictionary_encode(),
            "text": rng.integers(0, 2**40, n_rows).astype(str),
            "flag": rng.random(n_rows) < 0.5,
        }
    )
    pq.write_table(table, path, row_group_size=n_rows // 3 + 1, **options)
    return table


@pytest.mark.parametrize("n_rows", [1_000, 400_000])
@pytest.mark.parametrize("options", [{}, {"compression": "none", "use_dictionary": False}], ids=["packed", "plain"])
def test_read_batches__has_the_rows_of_the_row_groups(tmp_path: Path, n_rows: int, options: dict[str, Any]) -> None:
    path = tmp_path / "events.parquet"
    table = write_events(path, n_rows, **options)
    facts = scan_file(str(path), path.name, table.column_names)
    assert facts.rows == (n_rows // 3 + 1, n_rows // 3 + 1, n_rows - 2 * (n_rows // 3 + 1))
    assert facts.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    batches = list(read_batches(FileSlice(facts, (0, 2)), table.column_names, ["category"]))
    first = n_rows // 3 + 1
    expected = pa.concat_tables([table[:first], table[2 * first :]])
    found = pa.concat_tables([batch for _, batch in batches])
    assert found.cast(table.schema).combine_chunks().to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file")])
def test_read_batches__a_file_that_cannot_be_opened_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    path = tmp_path / "events.parquet"
    table = write_events(path, 5_000)
    facts = scan_file(str(path), path.name, table.column_names)

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(files.pq, "ParquetFile", refuse)
    with pytest.raises(BadInput, match=r"events\.parquet is not a readable parquet file \(.*\); replace or remove it"):
        list(read_batches(FileSlice(facts, (0,)), table.column_names, []))


def test_read_batches__a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "events.parquet"
    table = write_events(path, 5_000)
    facts = scan_file(str(path), path.name, table.column_names)
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[4:20_000] = bytes(19_996)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(BadInput, match=r"events\.parquet cannot be decoded \(.*\); replace or remove it"):
        list(read_batches(FileSlice(facts, (0,)), table.column_names, []))
