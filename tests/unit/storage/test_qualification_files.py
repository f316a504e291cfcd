"""Files of qualifications as pyarrow, pandas and DuckDB read them."""

import duckdb
import google_crc32c
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ammrank_dask.storage.store import qualification_files
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualification_files import write_table
from ammrank_dask.storage.store.qualifications import (
    CHANGES,
    POLICY_SETS,
    Changes,
    QualificationRows,
    by_user_table,
    delta_table,
)

CATEGORIES = ["Rétail/Shoes", "", "Autos", "x" * 300, "News"]


def make_rows(rng, counts, *, strings=False):
    """Rows with every column there is."""
    numbers = np.sort(rng.choice(10**6, len(counts), replace=False)) - 5 * 10**5
    ids = sorted(f"ü{number}" for number in numbers) if strings else numbers
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    n = int(indptr[-1])
    score, chance, propensity, inclusion = rng.standard_normal((4, n)).astype(np.float32)
    return QualificationRows(
        ids_from_values(pa.array(ids, pa.string() if strings else pa.int64())), indptr,
        rng.integers(0, len(CATEGORIES), n).astype(np.int32), score, chance, propensity, inclusion,
        rng.integers(0, len(POLICY_SETS), n).astype(np.uint8), rng.random(len(counts)) < 0.5,
    )  # fmt: skip


def expected_frame(rows):
    counts = np.diff(rows.indptr)
    ids = rows.user_ids.to_arrow().to_pylist()
    return pd.DataFrame(
        {
            "user_id": [user for user, n in zip(ids, counts, strict=True) for _ in range(n)],
            "rank": [rank for n in counts for rank in range(1, n + 1)],
            "category": [CATEGORIES[code] for code in rows.category],
            "score": rows.score.tolist(),
            "chance": rows.chance.tolist(),
            "propensity": rows.propensity.tolist(),
            "inclusion": rows.inclusion.tolist(),
            "held_by": [POLICY_SETS[bits] for bits in rows.held_by],
            "cold": [bool(cold) for cold, n in zip(rows.is_cold, counts, strict=True) for _ in range(n)],
        }
    )


def assert_reads(path, expected):
    """All readers must see the rows."""
    table = pq.read_table(path, partitioning=None, page_checksum_verification=True)
    assert table.to_pylist() == expected
    assert duckdb.sql(f"select * from '{path}'").fetchall() == [tuple(row.values()) for row in expected]
    pd.testing.assert_frame_equal(pd.read_parquet(path), table.to_pandas())
    return table


@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 1], [3] * 50, [1] * 9, "some"])
def test_by_user_table__reads_back(tmp_path, counts, strings):
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 12, 2_000).tolist() if counts == "some" else counts
    rows = make_rows(rng, counts, strings=strings)
    write_table(tmp_path / "part.parquet", by_user_table(rows, CATEGORIES))
    table = assert_reads(tmp_path / "part.parquet", expected_frame(rows).to_dict("records"))
    texts = pa.dictionary(pa.int32(), pa.string())
    assert [(field.name, field.type) for field in table.schema] == [
        ("user_id", pa.large_string() if strings else pa.int64()), ("rank", pa.int16()), ("category", texts),
        ("score", pa.float32()), ("chance", pa.float32()), ("propensity", pa.float32()), ("inclusion", pa.float32()),
        ("held_by", pa.dictionary(pa.int8(), pa.string())), ("cold", pa.bool_()),
    ]  # fmt: skip
    assert not any(field.nullable for field in table.schema)


def test_by_user_table__has_only_the_columns_that_are_there():
    rows = QualificationRows(ids_from_values([4, 7]), np.array([0, 1, 1]), np.array([2]), np.array([0.5], np.float32))
    assert by_user_table(rows, CATEGORIES).to_pylist() == [{"user_id": 4, "rank": 1, "category": "Autos", "score": 0.5}]


def test_write_table__of_more_rows_than_a_group_is_still_one_table(tmp_path, monkeypatch):
    monkeypatch.setattr(qualification_files, "_ROWS_OF_GROUP", 50)
    rng = np.random.default_rng(4)
    rows = make_rows(rng, rng.integers(0, 12, 200))
    path = tmp_path / "part.parquet"
    write_table(path, by_user_table(rows, CATEGORIES))
    assert_reads(path, expected_frame(rows).to_dict("records"))
    assert pq.ParquetFile(path).num_row_groups == -(-len(rows.category) // 50)
    one = rows.user_ids.take(np.flatnonzero(np.diff(rows.indptr))[[40]]).to_arrow()
    kept = pq.read_table(path, filters=pc.field("user_id").isin(one)).to_pylist()
    assert kept == [row for row in expected_frame(rows).to_dict("records") if row["user_id"] == one[0].as_py()]


def test_write_table__same_rows_same_bytes_and_the_listed_checksum(tmp_path):
    rows = make_rows(np.random.default_rng(8), [3] * 500, strings=True)
    table = by_user_table(rows, CATEGORIES)
    in_chunks = pa.concat_tables([table[:700], table[700:]]).unify_dictionaries()
    listed = [write_table(tmp_path / name, each) for name, each in [("a", table), ("b", in_chunks.combine_chunks())]]
    data = (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").read_bytes() == data
    assert listed == [[len(data), google_crc32c.value(data)]] * 2


def test_write_table__pages_have_checksums_and_columns_no_statistics(tmp_path):
    rows = make_rows(np.random.default_rng(9), [3] * 500)
    path = tmp_path / "part.parquet"
    write_table(path, by_user_table(rows, CATEGORIES))
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert not any(column.is_stats_set for column in columns.values())
    assert {name for name, column in columns.items() if column.has_dictionary_page} == {"category", "held_by"}
    data = bytearray(path.read_bytes())
    data[columns["score"].data_page_offset + columns["score"].total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(path, page_checksum_verification=True)


def test_delta_table__all_are_added(tmp_path):
    rows = make_rows(np.random.default_rng(5), [3, 0, 10, 1])
    changes = Changes(rows.user_ids, rows.indptr, rows.category, np.zeros(14, np.int8), np.arange(14), CATEGORIES)
    write_table(tmp_path / "part.parquet", delta_table(rows, changes))
    frame = expected_frame(rows).assign(change="added")[["user_id", "category", "change", "rank", "score", "chance"]]
    table = assert_reads(tmp_path / "part.parquet", frame.to_dict("records"))
    assert [field.nullable for field in table.schema] == [False, True, False, True, True, True]


def test_delta_table__what_is_gone_has_no_rank_and_who_is_forgotten_no_category(tmp_path):
    rows = make_rows(np.random.default_rng(6), [3, 1, 2])
    ids = rows.user_ids.to_arrow().to_pylist()
    row, codes = [1, 2, -1, 3, -1, -1, 5], [2, 0, 5, 1, 4, -1, 3]
    change = ["added", "added", "removed", "changed", "removed", "forgotten", "changed"]
    users = ids_from_values([*ids, 10**7, 10**7 + 1])  # the last has no rows
    indptr, names = np.array([0, 3, 3, 4, 7, 7]), [*CATEGORIES, "gone"]
    changes = Changes(
        users, indptr, np.array(codes, np.int32), np.array([CHANGES.index(name) for name in change], np.int8),
        np.array(row), names,
    )  # fmt: skip
    write_table(tmp_path / "part.parquet", delta_table(rows, changes))
    ranks = [rank for n in (3, 1, 2) for rank in range(1, n + 1)]
    owner = np.repeat(users.to_arrow().to_pylist(), np.diff(indptr)).tolist()
    expected = [
        {
            "user_id": owner[i],
            "category": None if codes[i] < 0 else names[codes[i]],
            "change": change[i],
            "rank": None if row[i] < 0 else ranks[row[i]],
            "score": None if row[i] < 0 else float(rows.score[row[i]]),
            "chance": None if row[i] < 0 else float(rows.chance[row[i]]),
        }
        for i in range(7)
    ]
    assert_reads(tmp_path / "part.parquet", expected)


def test_delta_table__of_a_partition_that_holds_nothing_any_more(tmp_path):
    rows = make_rows(np.random.default_rng(6), [])
    gone = np.array([-1, -1])
    users = ids_from_values([1, 2])
    changes = Changes(users, np.array([0, 1, 2]), np.array([2, 0]), np.ones(2, np.int8), gone, CATEGORIES)
    write_table(tmp_path / "part.parquet", delta_table(rows, changes))
    nothing = {"change": "removed", "rank": None, "score": None, "chance": None}
    expected = [{"user_id": 1, "category": "Autos", **nothing}, {"user_id": 2, "category": CATEGORIES[0], **nothing}]
    assert_reads(tmp_path / "part.parquet", expected)
