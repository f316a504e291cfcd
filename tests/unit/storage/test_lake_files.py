"""The files of a lake: which are read, and what is said about those that cannot be."""

import os

import pyarrow.parquet as pq
import pytest
from lakes import event, event_folder, write_events, write_lake, write_table
from taken_in import take_day

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import (
    FileSlice,
    load_scanned,
    read_batches,
    save_scanned,
    scan_file,
)
from ammrank_dask.storage.lake.listing import list_days, list_files

COLUMNS = ("user_id", "group", "category", "timestamp")


@pytest.fixture
def lake(tmp_path):
    return write_lake(tmp_path / "lake", n_days=1)


@pytest.fixture
def path(lake):
    return event_folder(lake, 0) / "part-0.parquet"


def read_all(path, file=None):
    """Read the one row group of a file, as it was when it was scanned."""
    file = file or scan_file(str(path), path.name, COLUMNS)
    return list(read_batches(FileSlice(file, (0,)), COLUMNS, ("group", "category")))


# Folders


def test_list_files__hidden_and_unfinished_files_are_not_read(lake, path):
    folder = path.parent
    for name in ("_temporary/0/part-1.parquet", ".part-2.parquet", "_metadata.parquet", "_SUCCESS", ".tmp/a.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"half")
    write_events(lake, 0, [event(9)], file="hour=7/part-0.parquet")
    assert list_files(folder) == [folder / "hour=7" / "part-0.parquet", path]
    assert take_day(lake).counts == {"kept": 217}


def test_list_days__missing_folder_is_named(tmp_path):
    with pytest.raises(BadInput, match=f"there is no folder of events at {tmp_path / 'nowhere'}; set lake.events"):
        list_days(tmp_path / "nowhere", "date")


def test_list_days__folder_without_days_is_named(lake):
    with pytest.raises(BadInput, match=r"has no folder named ds=YYYY-MM-DD; set lake\.events or lake\.date_key"):
        list_days(lake / "events", "ds")


@pytest.mark.parametrize("name", ["date=yesterday", "date=2026-0105", "date=2026-13-01"])
def test_list_days__folder_that_is_no_date_is_named(lake, name):
    (lake / "events" / name).mkdir()
    with pytest.raises(BadInput, match=f"{name} is not a date; day folders are named date=YYYY-MM-DD or date=YYYYMMDD"):
        list_days(lake / "events", "date")


def test_list_days__dates_without_dashes(lake):
    expected = list(list_days(lake / "events", "date"))
    for folder in sorted((lake / "events").iterdir()):
        folder.rename(folder.with_name(folder.name.replace("-", "")))
    assert list(list_days(lake / "events", "date")) == expected


def test_list_days__two_folders_of_one_day_are_named(lake):
    (lake / "events" / "date=20260105").mkdir()
    with pytest.raises(BadInput, match=r"date=2026-01-05 and .*date=20260105 are the same day; bring their files"):
        list_days(lake / "events", "date")


# Files


def test_scan_file__missing_columns_are_named(lake):
    path = write_events(lake, 0, [event(1)], group=None, timestamp=None)
    with pytest.raises(BadInput) as error:
        scan_file(str(path), path.name, COLUMNS)
    assert str(error.value) == (
        f"{path} has no column 'group', 'timestamp'; it has 'user_id', 'category'."
        " Map the names under `columns` in ammrank.yaml"
    )


def test_scan_file__column_that_is_there_twice_is_refused(path):
    table = pq.read_table(path, partitioning=None)
    write_table(path, table.append_column("group", table["group"]))
    with pytest.raises(BadInput, match=f"{path} has more than one column 'group'; keep one"):
        scan_file(str(path), path.name, COLUMNS)


@pytest.mark.parametrize("content", ["truncated", "empty", "text"])
def test_scan_file__what_is_not_parquet_is_named(path, content):
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"user_id,group\n1,pv\n"}[content])
    with pytest.raises(BadInput, match=rf"{path} is not a readable parquet file \(.+\); replace or remove it"):
        scan_file(str(path), path.name, COLUMNS)


@pytest.mark.parametrize("column", [0, 2, 3])
def test_read_batches__corrupted_page_is_named(path, column):
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
    with pytest.raises(BadInput, match=rf"{path} cannot be decoded \(.+\); replace or remove it"):
        read_all(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            os.unlink,
            r"is gone since the lake was listed \(compacted, or cleaned by its writer\); run the command again",
        ),
        (
            lambda path: os.utime(path, ns=(1, 1)),
            "changed while it was read; run the command again when it is complete",
        ),
    ],
    ids=["vanished", "touched"],
)
def test_read_batches__file_that_changed_since_it_was_scanned_is_refused(path, change, said):
    file = scan_file(str(path), path.name, COLUMNS)
    change(path)
    with pytest.raises(BadInput, match=f"{path} {said}"):
        read_all(path, file)


def test_read_batches__file_that_changes_after_its_last_batch_is_refused(path):
    batches = read_batches(FileSlice(scan_file(str(path), path.name, COLUMNS), (0,)), COLUMNS, ())
    row, table = next(batches)
    assert (row, len(table)) == (0, 216)
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadInput, match=f"{path} changed while it was read"):
        next(batches)


@pytest.mark.parametrize("content", ["{", "[]", '{"files": [{}], "columns": []}'])
def test_load_scanned__damaged_list_is_only_a_cache(path, tmp_path, content):
    file = scan_file(str(path), path.name, COLUMNS)
    save_scanned(tmp_path / "scanned.json", COLUMNS, [file])
    assert load_scanned(tmp_path / "scanned.json", COLUMNS) == {str(path): file}
    assert load_scanned(tmp_path / "scanned.json", ("cookie",)) == {}
    (tmp_path / "scanned.json").write_text(content)
    assert load_scanned(tmp_path / "scanned.json", COLUMNS) == {}
