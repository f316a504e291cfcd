"""Events of a day as ingest reads, decodes and aggregates them: what is kept, what is set aside, what is refused."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakes import (
    FIRST_DAY,
    At,
    event,
    event_folder,
    good_events,
    microseconds,
    write_events,
    write_lake,
    write_table,
    write_taxonomy,
)
from taken_in import take_day

from ammrank_dask.storage.errors import BadInput

N_GOOD = 216
"""Rows of a day of `write_lake`."""
SHOES = 2
"""The cell of page views of Shoes in the taxonomy of `lakes`."""
NAIVE = pa.timestamp("us")
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.fixture
def lake(tmp_path):
    return write_lake(tmp_path / "lake", n_days=1)


# Rows


def test_decode_events__first_reason_of_a_row_counts(lake):
    write_events(
        lake, 0, [event(None, "hover", "Sofas", -1), event(None, "pv", "Sofas", -1), event(1, "pv", "Sofas", -1)]
    )
    assert {row["row"]: row["reason"] for row in take_day(lake).bad_rows} == {
        0: "unknown_group",
        1: "no_user_id",
        2: "timestamp_before_1970",
    }


def test_decode_events__rows_at_the_edges_of_time_are_kept(lake):
    times = [microseconds(1), microseconds(-7), microseconds(0), microseconds(1) - 1]
    write_events(lake, 0, [event(user, timestamp=time) for user, time in enumerate(times)])
    day = take_day(lake)
    assert day.counts == {"kept": 4}
    assert day.late == 1
    assert day.state[0, SHOES] == (1.0, microseconds(1))
    assert day.state[1, SHOES][0] == pytest.approx(0.995**8, rel=1e-12)
    assert day.state[2, SHOES][0] == pytest.approx(0.995, rel=1e-12)


def test_decode_events__late_days_is_a_setting(lake):
    write_events(lake, 0, [event(1, timestamp=At(-25)), event(2), event(2, timestamp=At(-23.9))])
    assert take_day(lake, late_days=1).counts == {"kept": 2, "timestamp_too_old": 1}
    assert take_day(lake, late_days=2).counts == {"kept": 3}


@pytest.mark.parametrize("blank", [None, "", "  "])
def test_decode_events__blank_string_user_id_is_nobody(tmp_path, blank):
    ids = ("a", "b", "c")
    lake = write_lake(tmp_path / "lake", n_days=1, ids=ids, user_id=pa.string())
    write_events(lake, 0, [*good_events(ids, 12), event(blank)], user_id=pa.string())
    day = take_day(lake)
    assert day.counts == {"kept": N_GOOD, "no_user_id": 1}
    assert [row["row"] for row in day.bad_rows] == [N_GOOD]


def test_decode_events__file_whose_user_ids_are_all_null(tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=("a", "b", "c"), user_id=pa.string())
    write_events(lake, 0, [event(None), event(None)], file="part-1.parquet", user_id=pa.string())
    rows = take_day(lake).bad_rows
    assert [(row["reason"], row["file"], row["row"]) for row in rows] == [
        ("no_user_id", "part-1.parquet", 0),
        ("no_user_id", "part-1.parquet", 1),
    ]


@pytest.mark.parametrize(
    ("ids", "type_"), [((1, 2, 0), pa.int64()), (("a", "b", "unknown"), pa.string())], ids=["int64", "string"]
)
def test_decode_events__unknown_user_ids_are_nobody(tmp_path, ids, type_):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=ids, user_id=type_)
    day = take_day(lake, unknown_user_ids=[0, "unknown"])
    assert day.counts == {"kept": 144, "no_user_id": 72}
    assert {user for user, _ in day.state} == set(ids[:2])


def test_decode_events__column_of_nulls_only_is_no_category(lake):
    write_events(lake, 0, [event(1, "pv", None)], category=pa.null())
    assert take_day(lake).counts == {"null_category": 1}


@pytest.mark.parametrize(("level", "n_unranked"), [(1, 0), (2, 1), (3, 2)])
def test_decode_events__events_count_for_the_ancestor_at_the_level(lake, level, n_unranked):
    write_events(lake, 0, [event(1, "pv", "Boots"), event(2, "pv", "Hats"), event(3, "pv", "Retail")])
    unranked = {"unranked_category": n_unranked} if n_unranked else {}
    assert take_day(lake, taxonomy={"level": level}).counts == {"kept": 3 - n_unranked, **unranked}


@pytest.mark.parametrize("groups", [{"pv": ["pv", "hover"]}, {"ignore": ["hover"]}], ids=["mapped", "ignored"])
def test_decode_events__unknown_groups_are_mapped_or_ignored(lake, groups):
    write_events(lake, 0, [*good_events(), *[event(1, "hover")] * 5])
    assert take_day(lake).counts == {"kept": 18, "unknown_group": 5}
    everything = {name: [name] for name in ("pv", "sq", "slc", "olc", "adv", "adc")} | groups
    day = take_day(lake, groups=everything)
    assert day.counts == ({"kept": 23} if "pv" in groups else {"ignored_group": 5, "kept": 18})
    assert day.bad_rows == []


def test_decode_events__strange_user_ids_and_groups_survive(tmp_path):
    ids = ("../../x", "a/b=c", "ünï 家", "<script>", "=cmd()")
    lake = write_lake(tmp_path / "lake", n_days=1, ids=ids, user_id=pa.string())
    write_events(lake, 0, [event(user, "<b>/..") for user in ids], user_id=pa.string())
    day = take_day(lake, groups={"pv": "<b>/..", "adc": "adc"}, features={"groups": ["pv"]})
    assert {user for user, _ in day.state} == set(ids)


# Times


def test_to_microseconds__naive_times_need_a_zone(lake):
    path = write_events(lake, 0, [event(1)], timestamp=NAIVE)
    with pytest.raises(BadInput) as error:
        take_day(lake)
    assert str(error.value) == (
        f"{path}: the times in 'timestamp' have no zone; set `timezone` in ammrank.yaml (for example UTC)"
    )


@pytest.mark.parametrize(("zone", "hour"), [("UTC", 13), ("Europe/Berlin", 12), ("America/New_York", 18)])
def test_to_microseconds__naive_times_with_a_zone(lake, zone, hour):
    write_events(lake, 0, [event(1, timestamp=At(13))], timestamp=NAIVE)
    assert take_day(lake, timezone=zone).state[1, SHOES][1] == microseconds(0, hour)


@pytest.mark.parametrize(
    ("date", "utc_of_local"),
    [
        # From 02:00 to 03:00 the clock shows nothing: the first moment after it is taken.
        ("2026-03-29", {"01:59": "00:59", "02:30": "01:00", "03:00": "01:00"}),
        # From 02:00 to 03:00 the clock shows everything twice: the first time is taken.
        ("2026-10-25", {"01:59": "23:59", "02:30": "00:30", "03:00": "02:00"}),
    ],
)
def test_to_microseconds__naive_times_around_a_clock_change(tmp_path, date, utc_of_local):
    day = (dt.date.fromisoformat(date) - FIRST_DAY).days
    times = [dt.datetime.fromisoformat(f"{date} {local}") for local in utc_of_local]
    write_taxonomy(tmp_path)
    write_events(tmp_path, day, [event(user, timestamp=time) for user, time in enumerate(times)], timestamp=NAIVE)
    state = take_day(tmp_path, day, timezone="Europe/Berlin").state
    for user, text in enumerate(utc_of_local.values()):
        hour, minute = map(int, text.split(":"))
        hours_ago = 24 if hour == 23 else 0
        assert state[user, SHOES][1] == microseconds(day, hour - hours_ago + minute / 60)


def test_to_microseconds__absurd_naive_times_are_after_the_night(lake):
    write_events(lake, 0, [*good_events(repeat=12), event(1, timestamp=2**62)], timestamp=NAIVE)
    assert take_day(lake, timezone="Europe/Berlin").counts == {"kept": N_GOOD, "timestamp_after_night": 1}


def test_to_microseconds__integer_times_need_a_unit(lake):
    path = write_events(lake, 0, [event(1)], timestamp=pa.int64())
    with pytest.raises(BadInput) as error:
        take_day(lake)
    assert str(error.value) == (
        f"{path}: the times in 'timestamp' are integers; set `timestamp_unit` in ammrank.yaml (s, ms, us, ns)"
    )


AT_NOON = (pytest.approx(0.995**0.5, rel=1e-12), microseconds(0, 12))


@pytest.mark.parametrize("zone", ["Asia/Tokyo", None])
def test_to_microseconds__times_in_any_unit(lake, zone):
    for user, (unit, in_a_second) in enumerate(UNITS.items(), 1):
        noon = microseconds(0, 12) // 10**6 * in_a_second
        absurd = (2**63 - 1) // 1000 if unit == "s" else 2**63 - 1  # parquet stores seconds as milliseconds
        rows = [event(user, timestamp=time) for time in (noon, absurd, 0, None)]
        write_events(lake, 0, rows, file=f"{unit}.parquet", timestamp=pa.timestamp(unit, zone))
    (event_folder(lake, 0) / "part-0.parquet").unlink()
    day = take_day(lake, timezone="UTC")
    assert day.counts == {"kept": 4, "no_timestamp": 4, "timestamp_after_night": 4, "timestamp_too_old": 4}
    assert day.state == {(user, SHOES): AT_NOON for user in range(1, 5)}


@pytest.mark.parametrize(("unit", "in_a_second"), UNITS.items())
def test_to_microseconds__integer_times_in_any_unit(lake, unit, in_a_second):
    noon = microseconds(0, 12) // 10**6 * in_a_second
    for user, (type_, absurd) in enumerate([(pa.int64(), 2**63 - 1), (pa.uint64(), 2**64 - 1)], 1):
        rows = [event(user, timestamp=time) for time in (noon, absurd, 0, None)]
        write_events(lake, 0, rows, file=f"part-{user}.parquet", timestamp=type_)
    (event_folder(lake, 0) / "part-0.parquet").unlink()
    day = take_day(lake, timestamp_unit=unit)
    assert day.counts == {"kept": 2, "no_timestamp": 2, "timestamp_after_night": 2, "timestamp_too_old": 2}
    assert day.state == {(1, SHOES): AT_NOON, (2, SHOES): AT_NOON}


# Columns and types


def test_decode_events__other_column_names_are_mapped(lake):
    path = event_folder(lake, 0) / "part-0.parquet"
    table = pq.read_table(path, partitioning=None)
    write_table(path, table.rename_columns(["uid", "kind", "topic", "ts"]))
    names = {"user_id": "uid", "group": "kind", "category": "topic", "timestamp": "ts"}
    assert take_day(lake, columns=names).counts == {"kept": N_GOOD}


WRONG_TYPES = {
    "float user ids": ({"user_id": pa.float64()}, "user ids in 'user_id' must be int64 or string, found double"),
    "int group": ({"group": pa.int64()}, "'group' must be a string column, found int64"),
    "binary category": ({"category": pa.binary()}, "'category' must be a string column, found binary"),
    "string times": ({"timestamp": pa.string()}, "'timestamp' must be a timestamp or an integer, found string"),
    "date": ({"timestamp": pa.date32()}, "'timestamp' must be a timestamp or an integer, found date32[day]"),
}


@pytest.mark.parametrize(("types", "sentence"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_decode_events__wrong_types_are_named(lake, types, sentence):
    values = {pa.int64(): 1, pa.string(): "2026-01-05", pa.float64(): 1.0, pa.binary(): b"x", pa.date32(): 20458}
    row = event(1) | {name: values[type_] for name, type_ in types.items()}
    path = write_events(lake, 0, [row], **types)
    with pytest.raises(BadInput) as error:
        take_day(lake)
    assert str(error.value) == f"{path}: {sentence}; convert the column"


def test_decode_events__ids_beyond_int64_are_refused_without_showing_any(lake):
    path = write_events(lake, 0, [event(2**64 - 17)], user_id=pa.uint64())
    with pytest.raises(BadInput) as error:
        take_day(lake)
    assert str(error.value).startswith(f"{path}: user ids in 'user_id' must fit into 64-bit signed integers, found")
    assert str(2**64 - 17) not in str(error.value)


@pytest.mark.parametrize("column", ["user_id", "group", "category"])
def test_decode_events__text_that_is_not_utf8_is_refused(tmp_path, column):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=("a", "b", "c"), user_id=pa.string())
    path = event_folder(lake, 0) / "part-0.parquet"
    table = pq.read_table(path, partitioning=None)
    latin = pa.array(["caf\xe9".encode("latin-1")] * len(table))
    latin = pa.Array.from_buffers(pa.string(), len(latin), latin.buffers())
    write_table(path, table.set_column(table.schema.get_field_index(column), column, latin))
    with pytest.raises(BadInput) as error:
        take_day(lake)
    assert str(error.value) == f"{path}: {column!r} has text that is not UTF-8; write the column in UTF-8"


def test_day_plan__ids_of_two_types_in_a_day_are_refused(lake):
    write_events(lake, 0, [event("1")], file="part-1.parquet", user_id=pa.string())
    with pytest.raises(
        BadInput, match=f"the files of {FIRST_DAY} have user ids of types int64 and string; convert one of them"
    ):
        take_day(lake)


@pytest.mark.parametrize("type_", [pa.string(), pa.int64(), pa.null()], ids=str)
@pytest.mark.parametrize("ids", [("a", "b", "c"), (1, 2, 3)], ids=["beside strings", "beside integers"])
def test_day_plan__type_of_no_rows_does_not_matter(tmp_path, ids, type_):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=ids, user_id=pa.array(ids).type)
    write_events(lake, 0, [], file="part-1.parquet", user_id=type_)
    day = take_day(lake)
    assert day.counts == {"kept": N_GOOD}
    assert {user for user, _ in day.state} == set(ids)


@pytest.mark.parametrize("type_", [pa.string(), pa.int64(), pa.null()], ids=str)
def test_decode_events__day_of_no_rows_is_legal(lake, type_):
    write_events(lake, 0, [], user_id=type_)
    day = take_day(lake)
    assert (day.counts, day.bad_rows, day.state) == ({}, [], {})
