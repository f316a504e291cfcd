"""Files of qualifications as pyarrow and DuckDB read them: those are the independent path."""

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ammrank_dask.scoring import qualification_columns
from ammrank_dask.scoring.qualification_columns import encode_by_user, encode_category, encode_delta
from ammrank_dask.storage.store.ids import ids_from_values
from ammrank_dask.storage.store.qualification_files import write_groups
from ammrank_dask.storage.store.qualifications import CHANGES, POLICY_SETS, Changes, QualificationRows

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
    """Both readers must see the rows, and pyarrow no more than `expected` says is missing."""
    table = pq.read_table(path, partitioning=None)
    assert table.to_pylist() == expected
    assert duckdb.sql(f"select * from '{path}'").fetchall() == [tuple(row.values()) for row in expected]
    return table


@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 1], [3] * 50, [1] * 9, "some"])
def test_encode_by_user__reads_back(tmp_path, counts, strings):
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 12, 2_000).tolist() if counts == "some" else counts
    rows = make_rows(rng, counts, strings=strings)
    write_groups(tmp_path / "part.parquet", encode_by_user(rows, CATEGORIES))
    table = assert_reads(tmp_path / "part.parquet", expected_frame(rows).to_dict("records"))
    texts = pa.dictionary(pa.int32(), pa.string())
    assert [(field.name, field.type) for field in table.schema] == [
        ("user_id", pa.large_string() if strings else pa.int64()), ("rank", pa.int16()), ("category", texts),
        ("score", pa.float32()), ("chance", pa.float32()), ("propensity", pa.float32()), ("inclusion", pa.float32()),
        ("held_by", pa.dictionary(pa.int8(), pa.string())), ("cold", pa.bool_()),
    ]  # fmt: skip
    assert not any(field.nullable for field in table.schema)


@pytest.mark.parametrize("strings", [False, True])
def test_encode_by_user__groups_end_with_a_user_and_know_their_ids(tmp_path, monkeypatch, strings):
    monkeypatch.setattr(qualification_columns, "ROWS_OF_GROUP", 50)
    rng = np.random.default_rng(4)
    rows = make_rows(rng, rng.integers(0, 12, 200), strings=strings)
    path = tmp_path / "part.parquet"
    write_groups(path, encode_by_user(rows, CATEGORIES))
    assert_reads(path, expected_frame(rows).to_dict("records"))
    file = pq.ParquetFile(path)
    assert file.num_row_groups > 5
    seen = []
    for number in range(file.num_row_groups):
        group, found = file.read_row_group(number), file.metadata.row_group(number).column(0).statistics
        assert group.num_rows <= 50
        ids = group["user_id"].to_pylist()
        assert (found.min, found.max) == (ids[0], ids[-1])
        seen.append(set(ids))
    assert sum(map(len, seen)) == len(set().union(*seen))
    one = rows.user_ids.take(np.flatnonzero(np.diff(rows.indptr))[[40]]).to_arrow()
    kept = pq.read_table(path, filters=pc.field("user_id").isin(one)).to_pylist()
    assert kept == [row for row in expected_frame(rows).to_dict("records") if row["user_id"] == one[0].as_py()]


def test_encode_delta__all_are_added(tmp_path):
    rows = make_rows(np.random.default_rng(5), [3, 0, 10, 1])
    by_user = encode_by_user(rows, CATEGORIES)
    changes = Changes(rows.user_ids, rows.indptr, rows.category, np.zeros(14, np.int8), None, CATEGORIES)
    write_groups(tmp_path / "part.parquet", encode_delta(rows, changes, by_user))
    frame = expected_frame(rows).assign(change="added")[["user_id", "category", "change", "rank", "score", "chance"]]
    table = assert_reads(tmp_path / "part.parquet", frame.to_dict("records"))
    assert [field.nullable for field in table.schema] == [False, True, False, True, True, True]


@pytest.mark.parametrize("rows_of_group", [4, 1 << 20])
def test_encode_delta__what_is_gone_has_no_rank_and_who_is_forgotten_no_category(tmp_path, monkeypatch, rows_of_group):
    monkeypatch.setattr(qualification_columns, "ROWS_OF_GROUP", rows_of_group)
    rows = make_rows(np.random.default_rng(6), [3, 1, 2])
    ids = rows.user_ids.to_arrow().to_pylist()
    row, codes = [1, 2, -1, 3, -1, -1, 5], [2, 0, 5, 1, 4, -1, 3]
    change = ["added", "added", "removed", "changed", "removed", "forgotten", "changed"]
    users = ids_from_values([*ids, 10**7, 10**7 + 1])  # the last has no rows
    indptr = np.array([0, 3, 4, 5, 7, 7]) if rows_of_group == 4 else np.array([0, 3, 3, 4, 7, 7])
    names = [*CATEGORIES, "gone"]
    changes = Changes(
        users, indptr, np.array(codes, np.int32), np.array([CHANGES.index(name) for name in change], np.int8),
        np.array(row), names,
    )  # fmt: skip
    write_groups(tmp_path / "part.parquet", encode_delta(rows, changes, []))
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
    assert pq.ParquetFile(tmp_path / "part.parquet").num_row_groups == (2 if rows_of_group == 4 else 1)


@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize("n", [1, 7, 300])
def test_encode_category__keeps_the_order(tmp_path, monkeypatch, n, strings):
    monkeypatch.setattr(qualification_columns, "ROWS_OF_GROUP", 128)
    rng = np.random.default_rng(7)
    numbers = rng.permutation(n)
    ids = [f"user {number}" for number in numbers] if strings else numbers
    columns = {"score": rng.random(n, np.float32), "rank": rng.integers(1, 300, n).astype(np.int16)}
    write_groups(tmp_path / "part.parquet", encode_category(ids_from_values(ids), columns))
    listed = {"user_id": list(ids), **{name: values.tolist() for name, values in columns.items()}}
    assert_reads(tmp_path / "part.parquet", pa.table(listed).to_pylist())
