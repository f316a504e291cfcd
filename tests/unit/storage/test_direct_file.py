"""Files of a lake that are read past the page cache: the same bytes, rows and sentences."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake import direct_file, files
from ammrank_dask.storage.lake.direct_file import open_direct
from ammrank_dask.storage.lake.files import FileSlice, expect_slice, read_batches, scan_file
from ammrank_dask.storage.lake.paths import digest_lake_file
from ammrank_dask.storage.store import large_files
from ammrank_dask.storage.store.large_files import LargeFile, Pace

BLOCK = 4096
WHOLE = 9 * (1 << 20) + 17  # more than is read in one go


@pytest.fixture(autouse=True)
def _every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "LEAST_BYTES", BLOCK)
    monkeypatch.setattr(large_files, "LEAST_RATE", 0.0)  # however slow the disk is while other tests run
    monkeypatch.setattr(large_files, "_pace", Pace())
    # What was just written is in the page cache, and cannot be driven out of it for sure.
    monkeypatch.setattr(LargeFile, "_is_cached", lambda _: False)


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """Return a folder whose files can be read past the page cache."""
    probe = tmp_path / "probe"
    probe.write_bytes(bytes(BLOCK))
    opened = open_direct(probe)
    if opened is None:
        pytest.skip("the folder for temporary files is in memory")
    opened.close()
    return tmp_path


@pytest.mark.parametrize("size", [BLOCK, 7 * BLOCK + 1, WHOLE])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(data=st.data())
def test_direct_file__reads_as_files_do(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch, size: int, data: st.DataObject
) -> None:
    monkeypatch.setattr(direct_file, "REQUEST_BYTES", 3 * BLOCK)
    path = on_disk / f"file-{size}"
    if not path.exists():
        path.write_bytes(np.random.default_rng(size).bytes(size))
    opened = open_direct(path)
    assert opened is not None
    positions = st.integers(0, size + 10)
    steps = data.draw(st.lists(st.tuples(positions, st.one_of(st.just(-1), st.integers(0, 5 * BLOCK))), max_size=4))
    with opened, open(path, "rb") as expected:
        for start, n in steps:
            assert opened.seek(start) == expected.seek(start)
            assert bytes(opened.read(n)) == expected.read(n)
            assert opened.tell() == expected.tell()
        assert opened.seek(-1, os.SEEK_END) == size - 1
        assert opened.seek(1, os.SEEK_CUR) == size
        assert bytes(opened.read()) == b""
    assert opened.closed


@pytest.mark.parametrize("size", [17, BLOCK + 1, WHOLE])
def test_digest_lake_file__is_that_of_the_bytes(on_disk: Path, size: int) -> None:
    path = on_disk / "file"
    content = np.random.default_rng(0).bytes(size)
    path.write_bytes(content)
    assert digest_lake_file(path) == hashlib.sha256(content).hexdigest()


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
def test_read_batches__rows_stay_when_the_memory_of_the_file_is_used_again(
    on_disk: Path, n_rows: int, options: dict[str, Any]
) -> None:
    path = on_disk / "events.parquet"
    table = write_events(path, n_rows, **options)
    facts = scan_file(str(path), path.name, table.column_names)
    assert facts.rows == (n_rows // 3 + 1, n_rows // 3 + 1, n_rows - 2 * (n_rows // 3 + 1))
    assert facts.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    piece = FileSlice(facts, (0, 2))
    expect_slice(piece)
    batches = list(read_batches(piece, table.column_names, ["category"]))
    for memory in large_files._buffers:
        memory[:] = b"\xff" * len(memory)
    first = n_rows // 3 + 1
    expected = pa.concat_tables([table[:first], table[2 * first :]])
    found = pa.concat_tables([batch for _, batch in batches])
    assert found.cast(table.schema).combine_chunks().to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file")])
def test_read_batches__a_file_that_cannot_be_opened_is_one_sentence(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    path = on_disk / "events.parquet"
    table = write_events(path, 5_000)
    facts = scan_file(str(path), path.name, table.column_names)

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(direct_file, "open_large", refuse)
    monkeypatch.setattr(files.pq, "ParquetFile", refuse)
    with pytest.raises(BadInput, match=r"events\.parquet is not a readable parquet file \(.*\); replace or remove it"):
        list(read_batches(FileSlice(facts, (0,)), table.column_names, []))


def test_read_batches__a_damaged_file_is_one_sentence(on_disk: Path) -> None:
    path = on_disk / "events.parquet"
    table = write_events(path, 5_000)
    facts = scan_file(str(path), path.name, table.column_names)
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[4:20_000] = bytes(19_996)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(BadInput, match=r"events\.parquet cannot be decoded \(.*\); replace or remove it"):
        list(read_batches(FileSlice(facts, (0,)), table.column_names, []))
