"""The files of a lake: which are read, and what is said about those that cannot be."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakes import date_of, event, event_folder, lose_link, replace_by, write_events, write_lake, write_table
from taken_in import take_day

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import (
    LARGE_CHUNK,
    LONGEST_VALUE,
    FileSlice,
    count_file_rows,
    load_scanned,
    open_parquet,
    read_batches,
    save_scanned,
    scan_file,
)
from ammrank_dask.storage.lake.listing import list_days, list_files
from ammrank_dask.storage.lake.paths import current_status, digest_lake_file, read_table, size_of
from ammrank_dask.storage.lake.rank_tables import read_rank_table
from ammrank_dask.storage.lake.taxonomy import read_taxonomy

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


@pytest.mark.parametrize("name", ["", f"date={date_of(0)}", f"date={date_of(9)}", "_delta_log", "metadata"])
def test_list_days__link_that_leads_nowhere_is_refused(lake, name):
    said = lose_link(lake / "events" / name)
    with pytest.raises(BadInput) as error:
        list_days(lake / "events", "date")
    assert str(error.value) == said


@pytest.mark.parametrize("name", ["more", "part-1", "deep/er"])
def test_list_files__link_that_leads_nowhere_is_refused(path, name):
    (path.parent / "deep").mkdir()
    said = lose_link(path.parent / name)
    with pytest.raises(BadInput) as error:
        list_files(path.parent)
    assert str(error.value) == said


@pytest.mark.parametrize("name", [".hidden", "_temporary"])
def test_list_files__links_that_are_no_data_lead_where_they_want(path, name):
    lose_link(path.parent / name)
    assert list_files(path.parent) == [path]


def test_list_files__link_to_a_file_is_read(path):
    (path.parent / "part-1.parquet").symlink_to(path)
    assert len(list_files(path.parent)) == 2
    assert scan(path.parent / "part-1.parquet").digest == scan(path).digest


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


@pytest.mark.parametrize("name", ["category", "timestamp"])
def test_scan_file__column_of_lists_is_refused(path, name):
    table = pq.read_table(path, partitioning=None)
    lists = pa.array([[1]] * len(table))
    write_table(path, table.set_column(table.column_names.index(name), name, lists))
    sentence = rf"{path}: '{name}' must have one value per row, found list<element: int64>; convert it"
    with pytest.raises(BadInput, match=sentence):
        scan_file(str(path), path.name, COLUMNS)


@pytest.mark.parametrize("content", ["truncated", "empty", "text"])
def test_scan_file__what_is_not_parquet_is_named(path, content):
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"user_id,group\n1,pv\n"}[content])
    with pytest.raises(BadInput, match=rf"{path} is not a readable parquet file \(.+\); replace or remove it"):
        scan_file(str(path), path.name, COLUMNS)


def scan(path):
    return scan_file(str(path), path.name, COLUMNS)


def read_levels(path):
    return read_taxonomy(path, 1)


READERS = [
    scan,
    open_parquet,
    count_file_rows,
    size_of,
    current_status,
    digest_lake_file,
    read_table,
    read_levels,
    read_rank_table,
]


@pytest.mark.timeout(20, method="thread")
@pytest.mark.parametrize("kind", ["fifo", "socket", "/dev/zero"])
@pytest.mark.parametrize("read", READERS)
def test_readers__what_is_no_regular_file_is_refused_and_not_waited_for(path, read, kind):
    found = replace_by(path, kind)
    with pytest.raises(BadInput) as error:
        read(path)
    assert str(error.value) == f"{path} must be a regular file, found a {found}; replace or remove it"


@pytest.mark.parametrize("read", READERS)
def test_readers__link_that_leads_nowhere_is_refused(path, read):
    said = lose_link(path)
    with pytest.raises(BadInput) as error:
        read(path)
    assert str(error.value) == said
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(BadInput, match=f"{path} is a link to {path.name}, which leads nowhere"):
        read(path)


@pytest.mark.timeout(20, method="thread")
def test_read_batches__file_that_becomes_a_pipe_after_it_was_scanned_is_refused(path):
    file = scan(path)
    replace_by(path, "fifo")
    with pytest.raises(BadInput, match="must be a regular file, found a named pipe"):
        read_all(path, file)


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


def write_strings(path, name, values, n_rows, **options):
    """Write a file of so many rows whose string column `name` has the values in turn."""
    codes = pa.array(np.arange(n_rows) % len(values), pa.int32())
    columns = {column: pa.array(np.zeros(n_rows, np.int64)) for column in COLUMNS}
    columns[name] = pa.DictionaryArray.from_arrays(codes, pa.array(values))
    return write_table(path, pa.table(columns), compression="zstd", **options)


@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("name", COLUMNS)
def test_read_batches__value_that_is_too_long_is_refused(path, name, use_dictionary):
    longest = "ä" * (LONGEST_VALUE // 2)
    write_strings(path, name, ["a", longest], 2000, use_dictionary=use_dictionary)
    ((_, table),) = read_all(path)
    assert table.column(name).to_pylist() == ["a", longest] * 1000
    write_strings(path, name, ["a", f"{longest}b"], 2000, use_dictionary=use_dictionary)
    with pytest.raises(BadInput) as error:
        read_all(path)
    assert str(error.value) == (
        f"{path}: a value of {name!r} may have at most 1,024 bytes, found one of 1,025; shorten or remove it"
    )


@pytest.mark.parametrize("checksum", [True, False])
def test_read_batches__value_of_a_small_file_that_would_take_all_memory_is_refused_before_it_is_decoded(path, checksum):
    # As often as it is there it would be 4 TB; as a share of the rows it is short.
    options = {"write_page_checksum": checksum, "write_statistics": False}
    write_strings(path, "category", ["x" * (LARGE_CHUNK + 1)], 66_000, **options)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(
        BadInput, match=rf"{path}: a value of 'category' .* bytes, found 67,108,\d+ on average; shorten"
    ):
        read_all(path)


def test_read_batches__long_values_that_are_not_a_dictionary_are_refused_before_they_are_decoded(path):
    write_strings(path, "category", ["x" * (1 << 20)], 100, use_dictionary=False)
    with pytest.raises(BadInput, match=rf"{path}: a value of 'category' .* bytes, found 1,048,\d+ on average; shorten"):
        read_all(path)


def test_read_batches__large_column_of_good_values_is_read(path):
    values = [f"{number:0{LONGEST_VALUE}d}" for number in range(700)]
    for use_dictionary in (True, False):
        write_strings(path, "category", values, 70_000, use_dictionary=use_dictionary)
        ((_, table),) = read_all(path)
        assert table.column("category")[-1].as_py() == values[-1]
    assert pq.ParquetFile(path).metadata.row_group(0).column(2).total_uncompressed_size > LARGE_CHUNK


@pytest.mark.parametrize("content", ["{", "[]", '{"files": [{}], "columns": []}'])
def test_load_scanned__damaged_list_is_only_a_cache(path, tmp_path, content):
    file = scan_file(str(path), path.name, COLUMNS)
    save_scanned(tmp_path / "scanned.json", COLUMNS, [file])
    assert load_scanned(tmp_path / "scanned.json", COLUMNS) == {str(path): file}
    assert load_scanned(tmp_path / "scanned.json", ("cookie",)) == {}
    (tmp_path / "scanned.json").write_text(content)
    assert load_scanned(tmp_path / "scanned.json", COLUMNS) == {}
