"""What is wrong with a lake is set aside and counted, or said in one sentence: through the real commands."""

import datetime as dt
import fcntl
import json
import logging
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lakes import (
    FIRST_DAY,
    TAXONOMY,
    At,
    date_of,
    event,
    event_folder,
    event_table,
    good_events,
    microseconds,
    write_events,
    write_lake,
    write_site,
    write_table,
    write_taxonomy,
    write_users,
)

from ammrank_dask.features.store import open_features
from ammrank_dask.ingest import events, intake
from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.storage.store.ids import ids_from_arrays
from ammrank_dask.storage.store.parts import part_path, read_part
from ammrank_dask.storage.store.registry import STATE, USERS
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.cli import ammrank

N_GOOD = 216
"""Rows of a day of `write_lake`: one bad row more is less than the 1 % that is forgiven."""
HATS, SHOES = 1, 2
"""Cells of page views of the categories of `lakes.TAXONOMY`."""


@pytest.fixture
def run(cluster_file):
    """Run a command on a site, check its exit code, and return what it wrote."""

    def invoke(command, site, *options, date=FIRST_DAY, exit_code=0):
        arguments = [command, str(site.path), *options]
        if command != "verify":
            arguments += ["--cluster", str(cluster_file), "--quiet", *(["--date", str(date)] if date else [])]
        result = CliRunner().invoke(ammrank, arguments)
        assert isinstance(result.exception, SystemExit | None), result.exc_info
        assert result.exit_code == exit_code, result.output
        if exit_code == 65:
            assert result.stderr.startswith("ammrank: ") or command == "verify"
            assert command == "verify" or result.stderr.count("\n") == 1
            assert "Traceback" not in result.output
        return result.output

    return invoke


@pytest.fixture
def lake(tmp_path):
    return write_lake(tmp_path / "lake", n_days=1)


@pytest.fixture
def place(tmp_path, lake):
    return write_site(tmp_path / "site", lake)


def manifest_of(site, day=0):
    (path,) = (site.path / "days" / f"date={date_of(day)}").glob("*/manifest.json")
    return json.loads(path.read_text())


def facts_of(site, day=0):
    return manifest_of(site, day)["facts"]


def counts_of(site, day=0):
    return facts_of(site, day)["counts"]


def users_facts(site):
    (path,) = (site.path / "users").glob("*/manifest.json")
    return json.loads(path.read_text())["facts"]


def quarantined(site, name=f"date={FIRST_DAY}"):
    return pq.read_table(site.path / "quarantine" / f"{name}.parquet").to_pylist()


def published_features(site):
    return open_features(site.path / site.current().runs["features"]).to_pandas()


def published_state(site, role="head"):
    """Return {(user, cell): (intensity, last)} of the published state."""
    run_path = site.path / site.current().runs[role]
    cells = {}
    for partition in range(2):
        state = InterestState.from_arrays(read_part(run_path, partition, STATE))
        for position, user in enumerate(state.user_ids.to_arrow().to_pylist()):
            for i in range(state.indptr[position], state.indptr[position + 1]):
                cells[user, int(state.cell[i])] = (float(state.intensity[i]), int(state.last[i]))
    return cells


def published_people(site):
    """Return {user: (age, gender)} of the users run."""
    found = {}
    for partition in range(2):
        part = read_part(site.path / site.current().runs["users"], partition, USERS)
        found |= dict(zip(part["user_id"].tolist(), zip(part["age"].tolist(), part["gender"].tolist())))  # noqa: B905
    return found


def is_published(site):
    return (site.path / "CURRENT").exists()


# Rows of the log


AFTER_NIGHT, TOO_OLD = "timestamp_after_night", "timestamp_too_old"
BAD_ROWS = {
    "null user id": (event(None), "no_user_id", None),
    "unknown group": (event(1, "hover"), "unknown_group", "hover"),
    "empty group": (event(1, ""), "unknown_group", ""),
    "null group": (event(1, None), "no_group", None),
    "unknown category": (event(1, "pv", "Sofas"), "unknown_category", "Sofas"),
    "empty category": (event(1, "pv", ""), "unknown_category", ""),
    "null timestamp": (event(1, timestamp=None), "no_timestamp", None),
    "after the night": (event(1, timestamp=microseconds(1) + 1), AFTER_NIGHT, "2026-01-06 00:00:00.000001Z"),
    "next year": (event(1, timestamp=At(24 * 365)), "timestamp_after_night", "2027-01-05 00:00:00.000000Z"),
    "older than late_days": (event(1, timestamp=microseconds(-7) - 1), TOO_OLD, "2025-12-28 23:59:59.999999Z"),
    "before 1970": (event(1, timestamp=-1), "timestamp_before_1970", "1969-12-31 23:59:59.999999Z"),
    "absurdly late": (event(1, timestamp=2**62), "timestamp_after_night", None),
    "absurdly early": (event(1, timestamp=-(2**62)), "timestamp_before_1970", None),
}  # fmt: skip


def test_ingest__bad_rows_are_quarantined_and_counted(run, lake, tmp_path):
    write_events(lake, 0, [*good_events(repeat=12), *(row for row, _, _ in BAD_ROWS.values())])
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 0.1})
    run("ingest", place)
    found = {row["row"]: row for row in quarantined(place)}
    assert len(found) == len(BAD_ROWS)
    for number, (case, (_, reason, value)) in enumerate(BAD_ROWS.items(), N_GOOD):
        row = found[number]
        assert (row["reason"], row["file"]) == (reason, "part-0.parquet"), case
        assert row["user_id"] == (None if reason == "no_user_id" else "1"), case
        assert value is None or row["value"] == value, case
    reasons = [reason for _, reason, _ in BAD_ROWS.values()]
    assert counts_of(place) == {"kept": N_GOOD, **{reason: reasons.count(reason) for reason in reasons}}


def test_ingest__first_reason_of_a_row_counts(run, lake, tmp_path):
    rows = [event(None, "hover", "Sofas", -1), event(None, "pv", "Sofas", -1), event(1, "pv", "Sofas", -1)]
    write_events(lake, 0, rows)
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 1})
    run("ingest", place)
    assert {row["row"]: row["reason"] for row in quarantined(place)} == {
        0: "unknown_group",
        1: "no_user_id",
        2: "timestamp_before_1970",
    }


def test_ingest__rows_at_the_edges_of_time_are_kept(run, tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1)
    times = [microseconds(1), microseconds(-7), microseconds(0), microseconds(1) - 1]
    write_events(lake, 0, [event(user, timestamp=time) for user, time in enumerate(times)])
    place = write_site(tmp_path / "site", lake)
    run("ingest", place)
    assert counts_of(place) == {"kept": 4}
    assert facts_of(place)["late"] == 1
    state = published_state(place)
    assert state[0, SHOES] == (1.0, microseconds(1))
    assert state[1, SHOES][0] == pytest.approx(0.97**8, rel=1e-12)
    assert state[2, SHOES][0] == pytest.approx(0.97, rel=1e-12)


def test_ingest__late_days_is_a_setting(run, lake, tmp_path):
    write_events(lake, 0, [event(1, timestamp=At(-25)), event(2), event(2, timestamp=At(-23.9))])
    place = write_site(tmp_path / "site", lake, late_days=1, quarantine={"max_share": 0.5})
    run("ingest", place)
    assert counts_of(place) == {"kept": 2, "timestamp_too_old": 1}


@pytest.mark.parametrize("blank", [None, "", "  "])
def test_ingest__blank_string_user_id_is_nobody(run, tmp_path, blank):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=("a", "b", "c"), user_id=pa.string())
    write_events(lake, 0, [*good_events(("a", "b", "c"), 12), event(blank)], user_id=pa.string())
    place = write_site(tmp_path / "site", lake)
    run("ingest", place)
    assert counts_of(place) == {"kept": N_GOOD, "no_user_id": 1}
    assert quarantined(place)[0]["row"] == N_GOOD


@pytest.mark.parametrize(
    ("ids", "type_", "nobody"),
    [((1, 2, 0), pa.int64(), [0, "unknown"]), (("a", "b", "unknown"), pa.string(), [0, "unknown"])],
)
def test_ingest__unknown_user_ids_are_nobody_in_events_and_users(run, tmp_path, ids, type_, nobody):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=ids, user_id=type_)
    place = write_site(tmp_path / "site", lake, unknown_user_ids=nobody, quarantine={"max_share": 0.5})
    run("features", place)
    assert counts_of(place) == {"kept": 144, "no_user_id": 72}
    assert users_facts(place)["counts"] == {"no_user_id": 1}
    assert len(published_features(place)) == 3
    assert ids[2] not in published_features(place).index


def test_ingest__ignored_groups_null_and_high_categories_are_counted_only(run, lake, tmp_path):
    rows = [event(1, "hover"), event(1, "hover"), event(2, "pv", None), event(1, "pv", "Retail"), event(3)]
    write_events(lake, 0, rows)
    groups = {"pv": "pv", "adc": "adc", "ignore": ["hover"]}
    place = write_site(tmp_path / "site", lake, groups=groups, features={"groups": ["pv"]})
    output = run("ingest", place)
    assert counts_of(place) == {"ignored_group": 2, "kept": 1, "null_category": 1, "unranked_category": 1}
    assert not (place.path / "quarantine").exists()
    assert "ignored_group 2, null_category 1, unranked_category 1" in output


def test_ingest__column_of_nulls_only_is_no_category(run, lake, place):
    write_events(lake, 0, [event(1, "pv", None)], category=pa.null())
    run("ingest", place)
    assert counts_of(place) == {"null_category": 1}


@pytest.mark.parametrize("level", [1, 2, 3])
def test_ingest__events_count_for_the_ancestor_at_the_level(run, lake, tmp_path, level):
    write_events(lake, 0, [event(1, "pv", "Boots"), event(2, "pv", "Hats"), event(3, "pv", "Retail")])
    place = write_site(tmp_path / "site", lake, taxonomy={"level": level})
    run("ingest", place)
    unranked = {1: 0, 2: 1, 3: 2}[level]
    assert counts_of(place) == {"kept": 3 - unranked} | ({"unranked_category": unranked} if unranked else {})


# Times


NAIVE = pa.timestamp("us")


def test_ingest__naive_times_need_a_zone(run, lake, place):
    path = write_events(lake, 0, [event(1)], timestamp=NAIVE)
    output = run("ingest", place, exit_code=65)
    assert f"{path}: the times in 'timestamp' have no zone; set `timezone` in ammrank.yaml (for example UTC)" in output
    assert not is_published(place)


def test_ingest__naive_times_with_a_zone(run, lake, tmp_path):
    write_events(lake, 0, [event(1, timestamp=At(13))], timestamp=NAIVE)
    for zone, hour in (("UTC", 13), ("Europe/Berlin", 12), ("America/New_York", 18)):
        place = write_site(tmp_path / zone.replace("/", "-"), lake, timezone=zone)
        run("ingest", place)
        assert published_state(place)[1, SHOES][1] == microseconds(0, hour)


@pytest.mark.parametrize(
    ("date", "utc_of_local"),
    [
        # From 02:00 to 03:00 the clock shows nothing: the first moment after it is taken.
        ("2026-03-29", {"01:59": "00:59", "02:30": "01:00", "03:00": "01:00"}),
        # From 02:00 to 03:00 the clock shows everything twice: the first time is taken.
        ("2026-10-25", {"01:59": "23:59", "02:30": "00:30", "03:00": "02:00"}),
    ],
)
def test_ingest__naive_times_around_a_clock_change(run, tmp_path, date, utc_of_local):
    lake = tmp_path / "lake"
    write_users(lake)
    write_taxonomy(lake)
    day = (dt.date.fromisoformat(date) - FIRST_DAY).days
    times = [dt.datetime.fromisoformat(f"{date} {local}") for local in utc_of_local]
    write_events(lake, day, [event(user, timestamp=time) for user, time in enumerate(times)], timestamp=NAIVE)
    place = write_site(tmp_path / "site", lake, timezone="Europe/Berlin")
    run("ingest", place, date=date)
    state = published_state(place)
    for user, text in enumerate(utc_of_local.values()):
        hour, minute = map(int, text.split(":"))
        hours_ago = 24 if hour == 23 else 0
        assert state[user, SHOES][1] == microseconds(day, hour - hours_ago + minute / 60)


def test_ingest__absurd_naive_times_are_quarantined(run, lake, tmp_path):
    rows = [*good_events(repeat=12), event(1, timestamp=2**62)]
    write_events(lake, 0, rows, timestamp=NAIVE)
    place = write_site(tmp_path / "site", lake, timezone="Europe/Berlin")
    run("ingest", place)
    assert counts_of(place) == {"kept": N_GOOD, "timestamp_after_night": 1}


def test_ingest__integer_times_need_a_unit(run, lake, place):
    path = write_events(lake, 0, [event(1)], timestamp=pa.int64())
    output = run("ingest", place, exit_code=65)
    assert f"{path}: the times in 'timestamp' are integers; set `timestamp_unit` in ammrank.yaml (s, ms, us, ns)" in (
        output
    )


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.mark.parametrize("zone", ["Asia/Tokyo", None])
def test_ingest__times_in_any_unit(run, lake, tmp_path, zone):
    for user, (unit, in_a_second) in enumerate(UNITS.items(), 1):
        noon = microseconds(0, 12) // 10**6 * in_a_second
        absurd = (2**63 - 1) // 1000 if unit == "s" else 2**63 - 1  # parquet stores seconds as milliseconds
        rows = [event(user, timestamp=time) for time in (noon, absurd, 0, None)]
        write_events(lake, 0, rows, file=f"{unit}.parquet", timestamp=pa.timestamp(unit, zone))
    (event_folder(lake, 0) / "part-0.parquet").unlink()
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 1}, timezone="UTC")
    run("ingest", place)
    assert counts_of(place) == {"kept": 4, "no_timestamp": 4, "timestamp_after_night": 4, "timestamp_too_old": 4}
    expected = (pytest.approx(0.97**0.5, rel=1e-12), microseconds(0, 12))
    assert published_state(place) == {(user, SHOES): expected for user in range(1, 5)}


@pytest.mark.parametrize(("unit", "in_a_second"), UNITS.items())
def test_ingest__integer_times_in_any_unit(run, lake, tmp_path, unit, in_a_second):
    noon = microseconds(0, 12) // 10**6 * in_a_second
    for user, (type_, absurd) in enumerate([(pa.int64(), 2**63 - 1), (pa.uint64(), 2**64 - 1)], 1):
        rows = [event(user, timestamp=time) for time in (noon, absurd, 0, None)]
        write_events(lake, 0, rows, file=f"part-{user}.parquet", timestamp=type_)
    (event_folder(lake, 0) / "part-0.parquet").unlink()
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 1}, timestamp_unit=unit)
    run("ingest", place)
    assert counts_of(place) == {"kept": 2, "no_timestamp": 2, "timestamp_after_night": 2, "timestamp_too_old": 2}
    expected = (pytest.approx(0.97**0.5, rel=1e-12), microseconds(0, 12))
    assert published_state(place) == {(1, SHOES): expected, (2, SHOES): expected}


# Columns and types


def test_ingest__missing_columns_are_named(run, lake, place):
    path = write_events(lake, 0, [event(1)], group=None, timestamp=None)
    output = run("ingest", place, exit_code=65)
    assert f"{path} has no column 'group', 'timestamp'; it has 'user_id', 'category'." in output
    assert "Map the names under `columns` in ammrank.yaml" in output


def test_ingest__column_that_is_there_twice_is_refused(run, lake, place):
    path = event_folder(lake, 0) / "part-0.parquet"
    table = pq.read_table(path, partitioning=None)
    write_table(path, table.append_column("group", table["group"]))
    assert f"{path} has more than one column 'group'; keep one" in run("ingest", place, exit_code=65)


def test_ingest__other_column_names_are_mapped(run, lake, tmp_path):
    table = pq.read_table(event_folder(lake, 0) / "part-0.parquet", partitioning=None)
    write_table(event_folder(lake, 0) / "part-0.parquet", table.rename_columns(["uid", "kind", "topic", "ts"]))
    users = pq.read_table(lake / "users.parquet").rename_columns(["uid", "years", "sex"])
    write_table(lake / "users.parquet", users)
    names = {"user_id": "uid", "group": "kind", "category": "topic", "timestamp": "ts", "age": "years", "gender": "sex"}
    place = write_site(tmp_path / "site", lake, columns=names)
    run("ingest", place)
    assert counts_of(place) == {"kept": N_GOOD}


WRONG_TYPES = {
    "float user ids": ({"user_id": pa.float64()}, "user ids in 'user_id' must be int64 or string, found double"),
    "int group": ({"group": pa.int64()}, "'group' must be a string column, found int64"),
    "binary category": ({"category": pa.binary()}, "'category' must be a string column, found binary"),
    "string times": ({"timestamp": pa.string()}, "'timestamp' must be a timestamp or an integer, found string"),
    "date": ({"timestamp": pa.date32()}, "'timestamp' must be a timestamp or an integer, found date32[day]"),
}


@pytest.mark.parametrize(("types", "sentence"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_ingest__wrong_types_are_named(run, lake, place, types, sentence):
    values = {pa.int64(): 1, pa.string(): "2026-01-05", pa.float64(): 1.0, pa.binary(): b"x", pa.date32(): 20458}
    row = event(1) | {name: values[type_] for name, type_ in types.items()}
    path = write_events(lake, 0, [row], **types)
    assert f"{path}: {sentence}; convert the column" in run("ingest", place, exit_code=65)


def test_ingest__ids_beyond_int64_are_refused_without_showing_any(run, lake, place):
    path = write_events(lake, 0, [event(2**64 - 17)], user_id=pa.uint64())
    output = run("ingest", place, exit_code=65)
    assert f"{path}: user ids in 'user_id' must fit into 64-bit signed integers" in output
    assert str(2**64 - 17) not in output


@pytest.mark.parametrize("column", ["user_id", "group", "category"])
def test_ingest__text_that_is_not_utf8_is_refused(run, tmp_path, column):
    ids = ("a", "b", "c")
    lake = write_lake(tmp_path / "lake", n_days=1, ids=ids, user_id=pa.string())
    table = pq.read_table(event_folder(lake, 0) / "part-0.parquet", partitioning=None)
    latin = pa.array(["caf\xe9".encode("latin-1")] * len(table))
    latin = pa.Array.from_buffers(pa.string(), len(latin), latin.buffers())
    path = event_folder(lake, 0) / "part-0.parquet"
    write_table(path, table.set_column(table.schema.get_field_index(column), column, latin))
    place = write_site(tmp_path / "site", lake)
    output = run("ingest", place, exit_code=65)
    assert f"{path}: {column!r} has text that is not UTF-8; write the column in UTF-8" in output


def test_ingest__ids_of_two_types_in_a_day_are_refused(run, lake, place):
    write_events(lake, 0, [event("1")], file="part-1.parquet", user_id=pa.string())
    output = run("ingest", place, exit_code=65)
    assert f"the files of {FIRST_DAY} have user ids of types int64 and string; convert one of them" in output


def test_ingest__string_ids_in_events_and_integers_in_users_are_refused(run, tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=("1", "2", "3"), user_id=pa.string())
    write_users(lake)
    place = write_site(tmp_path / "site", lake)
    output = run("ingest", place, exit_code=65)
    assert "user ids are string in the events and int64 in the users table; convert one of the two" in output
    assert not is_published(place)


# Files


def smash(path, offset, length=32):
    data = bytearray(path.read_bytes())
    data[offset : offset + length] = b"\xff" * length
    path.write_bytes(data)


@pytest.mark.parametrize("which", ["events", "users"])
@pytest.mark.parametrize("content", ["truncated", "empty", "text"])
def test_ingest__file_that_is_not_parquet_is_named(run, lake, place, which, content):
    path = event_folder(lake, 0) / "part-0.parquet" if which == "events" else lake / "users.parquet"
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"user_id,group\n1,pv\n"}[content])
    output = run("ingest", place, exit_code=65)
    assert f"{path} is not a readable parquet file (" in output
    assert "; replace or remove it" in output
    assert not is_published(place)


@pytest.mark.parametrize("column", [0, 2, 3])
def test_ingest__corrupted_page_is_named(run, lake, place, column):
    path = event_folder(lake, 0) / "part-0.parquet"
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(column)
    smash(path, chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size)
    output = run("ingest", place, exit_code=65)
    assert f"{path} cannot be decoded (" in output
    assert "; replace or remove it" in output


def test_ingest__file_that_changes_while_it_is_read_is_refused(run, lake, place, monkeypatch):
    path = event_folder(lake, 0) / "part-0.parquet"
    decode = events.decode_events

    def decode_and_touch(*arguments, **options):
        os.utime(path, ns=(1, 1))
        return decode(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(events, "decode_events", decode_and_touch)
        output = run("ingest", place, exit_code=65)
    assert f"{path} changed while it was read; run the command again when it is complete" in output
    assert not is_published(place)
    run("ingest", place)


def test_ingest__file_that_vanishes_while_it_is_read_is_refused(run, lake, place, monkeypatch):
    path = event_folder(lake, 0) / "part-0.parquet"
    read = intake.read_batches

    def remove_and_read(*arguments):
        path.unlink()
        return read(*arguments)

    monkeypatch.setattr(intake, "read_batches", remove_and_read)
    assert f"{path} changed while it was read" in run("ingest", place, exit_code=65)


def test_ingest__hidden_and_unfinished_files_are_not_read(run, lake, place):
    folder = event_folder(lake, 0)
    for name in ("_temporary/0/part-1.parquet", ".part-2.parquet", "_metadata.parquet", "_SUCCESS", ".tmp/a.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"half")
    write_events(lake, 0, [event(9)], file="hour=7/part-0.parquet")
    run("ingest", place)
    assert counts_of(place) == {"kept": N_GOOD + 1}
    assert [name for name, _, _ in manifest_of(place)["inputs"]] == ["hour=7/part-0.parquet", "part-0.parquet"]


# Days


@pytest.mark.parametrize("ids", [(1, 2, 3), ("a", "b", "c")], ids=["int64", "string"])
def test_ingest__day_of_no_rows_is_legal(run, tmp_path, ids):
    type_ = pa.int64() if ids[0] == 1 else pa.string()
    lake = write_lake(tmp_path / "lake", n_days=3, ids=ids, user_id=type_)
    write_events(lake, 1, [], user_id=type_)
    place = write_site(tmp_path / "site", lake)
    run("features", place, date=date_of(2))
    assert facts_of(place, 1)["events"] == 0
    assert len(published_features(place)) == 4


def test_ingest__missing_day_is_refused_or_bridged(run, tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1)
    write_events(lake, 0, [event(1, "pv", "Hats", At(0)), event(2, "pv", "Hats", At(12))])
    write_events(lake, 3, [event(1, "pv", "Hats", At(12))])
    event_folder(lake, 1).mkdir()  # a folder without files is a missing day too
    place = write_site(tmp_path / "site", lake)
    output = run("ingest", place, date=date_of(3), exit_code=65)
    assert "the lake has no events for 2026-01-06, 2026-01-07; add them, or set lake.missing_days: bridge" in output
    assert not is_published(place)

    write_site(place.path, lake, lake={"missing_days": "bridge"})
    assert "2026-01-06, 2026-01-07" in run("ingest", place, date=date_of(3))
    state = published_state(place)
    assert state[1, HATS] == (pytest.approx(0.97**4 + 0.97**0.5, rel=1e-12), microseconds(3, 12))
    assert state[2, HATS] == (pytest.approx(0.97**3.5, rel=1e-12), microseconds(0, 12))


def test_ingest__missing_last_day_is_refused(run, lake, place):
    assert "the lake has no events for 2026-01-06; add them" in run("ingest", place, date=date_of(1), exit_code=65)


def test_ingest__date_before_the_lake_is_refused(run, place):
    output = run("ingest", place, date=date_of(-1), exit_code=65)
    assert "the lake has no events up to 2026-01-04" in output


def test_ingest__missing_lake_is_named(run, tmp_path):
    place = write_site(tmp_path / "site", tmp_path / "nowhere")
    write_taxonomy(tmp_path / "nowhere")
    output = run("ingest", place, exit_code=65)
    assert f"there is no folder of events at {tmp_path / 'nowhere' / 'events'}; set lake.events" in output


def test_ingest__lake_without_day_folders_is_named(run, lake, tmp_path):
    place = write_site(tmp_path / "site", lake, lake={"date_key": "ds"})
    output = run("ingest", place, exit_code=65)
    assert "has no folder named ds=YYYY-MM-DD; set lake.events or lake.date_key" in output


@pytest.mark.parametrize("name", ["date=yesterday", "date=20260105", "date=2026-13-01"])
def test_ingest__day_folder_that_is_no_date_is_named(run, lake, place, name):
    (lake / "events" / name).mkdir()
    output = run("ingest", place, exit_code=65)
    assert f"{name} is not a date; day folders are named date=YYYY-MM-DD" in output


@pytest.mark.parametrize(
    ("command", "options"),
    [("ingest", ["--date"]), ("nightly", ["--date"]), ("nightly", ["--from", f"{FIRST_DAY}", "--to"])],
    ids=["ingest", "nightly", "nights"],
)
def test_ammrank__a_night_that_is_to_come_is_refused(run, lake, tmp_path, command, options):
    place = write_site(tmp_path / "site", lake, lake={"missing_days": "bridge"})
    today = dt.datetime.now(dt.UTC).date()
    future = today + dt.timedelta(60)
    output = run(command, place, *options, str(future), date=None, exit_code=65)
    assert f"{future} is after today, {today} UTC, and after {FIRST_DAY}, the newest day of the lake; give a" in output
    assert sorted(path.name for path in place.path.iterdir()) == ["ammrank.yaml"]


def test_ammrank__a_day_of_the_lake_is_no_night_to_come(run, lake, place):
    future = dt.datetime.now(dt.UTC).date() + dt.timedelta(60)
    shutil.copytree(event_folder(lake, 0), lake / "events" / f"date={future}")
    assert f"the lake has no events for {FIRST_DAY + dt.timedelta(1)}" in run(
        "ingest", place, date=future, exit_code=65
    )


# Users


def test_ingest__users_are_kept_whatever_is_unknown_of_them(run, lake, tmp_path):
    people = [
        (1, -3, "female"), (2, 400, "male"), (3, None, "Weiblich"), (4, 0, "n/a"), (5, 120, None), (6, 121, "m"),
    ]  # fmt: skip
    write_users(lake, people)
    genders = {"female": ["female"], "male": ["male", "m"], "ignore": ["n/a"]}
    place = write_site(tmp_path / "site", lake, genders=genders, quarantine={"max_share": 0.9})
    run("features", place)
    assert published_people(place) == {1: (-1, 0), 2: (-1, 1), 3: (-1, -1), 4: (0, -1), 5: (120, -1), 6: (-1, 1)}
    facts = users_facts(place)
    assert facts["counts"] == {"age_out_of_range": 3, "unknown_gender": 1}
    assert facts["unknown_values"] == {"-3": 1, "121": 1, "400": 1, "Weiblich": 1}
    found = {(row["reason"], row["file"], row["row"], row["value"]) for row in quarantined(place, "users")}
    assert found == {
        ("age_out_of_range", "users.parquet", 0, "-3"),
        ("age_out_of_range", "users.parquet", 1, "400"),
        ("age_out_of_range", "users.parquet", 5, "121"),
        ("unknown_gender", "users.parquet", 2, "Weiblich"),
    }
    assert sorted(published_features(place).index) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("type_", "ages"),
    [
        (pa.float64(), [float("nan"), 33.9, float("inf"), None]),
        (pa.int64(), [None, 33, 2**62, None]),
        (pa.uint8(), [None, 33, 255, None]),
        (pa.null(), [None] * 4),
    ],
)
def test_ingest__ages_of_any_number_type(run, lake, tmp_path, type_, ages):
    write_users(lake, [(user, age, None) for user, age in enumerate(ages, 1)], age=type_)
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 0.5})
    run("ingest", place)
    known = -1 if type_ == pa.null() else 33
    assert [age for age, _ in published_people(place).values()].count(-1) == (4 if known < 0 else 3)
    assert published_people(place)[2] == (known, -1)
    assert users_facts(place)["counts"] == ({} if known < 0 else {"age_out_of_range": 1})


def test_ingest__first_row_of_a_duplicate_user_counts(run, lake, tmp_path):
    write_users(lake, [(1, 20, "male"), (2, 30, None), (1, 50, "female"), (1, 60, None)])
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 0.5})
    run("ingest", place)
    assert published_people(place) == {1: (20, 1), 2: (30, -1)}
    assert users_facts(place)["counts"] == {"duplicate_user": 2}
    assert [(row["reason"], row["row"]) for row in quarantined(place, "users")] == [
        ("duplicate_user", 2),
        ("duplicate_user", 3),
    ]


def test_ingest__row_without_a_user_id_in_users_is_left_out(run, lake, tmp_path):
    write_users(lake, [(1, 20, "male"), (None, 30, "female")])
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 0.5})
    run("ingest", place)
    assert published_people(place) == {1: (20, 1)}
    assert users_facts(place)["counts"] == {"no_user_id": 1}


def test_ingest__too_many_bad_users_stop_the_run(run, lake, tmp_path):
    write_users(lake, [(1, 20, "Frau"), (2, 400, "Herr"), (3, 30, "Frau")])
    place = write_site(tmp_path / "site", lake)
    output = run("ingest", place, exit_code=65)
    assert "3 unknown_gender, 1 age_out_of_range; values 'Frau', " in output
    assert f"see {place.path / 'quarantine' / 'users.parquet'}, then map the values under `genders`" in output
    assert not is_published(place)
    write_site(place.path, lake, genders={"female": "Frau", "male": "Herr"}, quarantine={"max_share": 0.4})
    run("ingest", place)
    assert published_people(place) == {1: (20, 0), 2: (-1, 1), 3: (30, 0)}


def test_features__users_of_events_alone_and_of_the_table_alone_are_there(run, lake, place):
    write_users(lake, [(1, 34, "female"), (77, 20, "male")])
    run("features", place)
    features = published_features(place)
    assert sorted(features.index) == [1, 2, 3, 77]
    cold = features.loc[77]
    assert cold[cold != 0].to_dict() == {"age:18-20": 1.0, "gender:male": 1.0}
    known = features.loc[2]
    assert known[[name for name in features.columns if name.startswith(("age:", "gender:"))]].sum() == 0
    assert (known != 0).sum() > 0


def test_ingest__missing_columns_of_users_are_named(run, lake, place):
    path = write_users(lake, gender=None)
    output = run("ingest", place, exit_code=65)
    assert f"{path} has no column 'gender'; it has 'user_id', 'age'. Map the names under `columns`" in output
    write_site(place.path, lake, columns={"gender": None})
    run("ingest", place)


@pytest.mark.parametrize(
    ("users", "types", "sentence"),
    [
        ([(1.0, 1, "male")], {"user_id": pa.float64()}, "user ids in 'user_id' must be int64 or string, found double"),
        ([(1, "34", "male")], {"age": pa.string()}, "'age' must be a number of years, found string"),
        ([(1, 34, 1)], {"gender": pa.int8()}, "'gender' must be a string, found int8"),
    ],
)
def test_ingest__wrong_types_of_users_are_named(run, lake, place, users, types, sentence):
    path = write_users(lake, users, **types)
    assert f"{path}: {sentence}; convert" in run("ingest", place, exit_code=65)


def test_ingest__missing_users_table_is_named(run, lake, place):
    (lake / "users.parquet").unlink()
    output = run("ingest", place, exit_code=65)
    assert f"there is no users table at {lake / 'users.parquet'}; set lake.users (null for no demographics)" in output
    (lake / "users.parquet").mkdir()
    assert f"{lake / 'users.parquet'} has no parquet files; set lake.users" in run("ingest", place, exit_code=65)
    write_site(place.path, lake, lake={"users": None})
    run("features", place)
    assert not [name for name in published_features(place).columns if name.startswith(("age:", "gender:"))]


# The taxonomy


def test_ingest__bad_taxonomy_stops_the_run(run, lake, place):
    path = write_taxonomy(lake, [*TAXONOMY, ("Hats", "Travel")])
    output = run("ingest", place, exit_code=65)
    assert f"{path}: 'Hats' has two parents, 'Retail' and 'Travel'; keep one" in output
    assert not is_published(place)


def test_ingest__flat_categories_need_their_list(run, lake, tmp_path):
    place = write_site(tmp_path / "site", lake, lake={"taxonomy": None})
    listed = place.path / "categories.csv"
    assert f"there is no list of categories at {listed}" in run("ingest", place, exit_code=65)
    listed.write_text("category,parent\nBoots,\nFlights,\nHats,\n")
    run("features", place)
    assert "pv:intensity:Boots" in published_features(place).columns


STRANGE = (
    "Möbel & Küche/Ünïcode 家具",
    "a/b",
    "..",
    "../../etc",
    "date=2026-01-01",
    "<script>alert(1)</script>",
    'say "hi", "',
)


def test_features__strange_names_survive_and_do_no_harm(run, tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1)
    write_taxonomy(lake, [("/", ""), *((name, "/") for name in STRANGE)])
    write_events(lake, 0, [event(1, "pv", name) for name in STRANGE])
    place = write_site(tmp_path / "site", lake)
    before = sorted(path.name for path in tmp_path.iterdir())
    run("features", place)
    features = published_features(place)
    assert {name for name in features.columns if name.startswith("pv:intensity:")} == {
        f"pv:intensity:{name}" for name in STRANGE
    }
    assert (features.loc[1, [f"pv:intensity:{name}" for name in STRANGE]] > 0).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert counts_of(place) == {"kept": len(STRANGE)}
    run("verify", place)


def test_ingest__strange_user_ids_and_groups_survive(run, tmp_path):
    ids = ("../../x", "a/b=c", "ünï 家", "<script>", "=cmd()")
    lake = write_lake(tmp_path / "lake", n_days=1, ids=ids, user_id=pa.string())
    write_events(lake, 0, [event(user, "<b>/..") for user in ids], user_id=pa.string())
    place = write_site(tmp_path / "site", lake, groups={"pv": "<b>/..", "adc": "adc"}, features={"groups": ["pv"]})
    run("features", place)
    assert set(ids) < set(published_features(place).index)


# Quarantine


def test_ingest__too_many_bad_rows_stop_the_run_and_publish_nothing(run, lake, tmp_path):
    bad = [event(1, "hover"), event(2, "hover"), event(3, "pv", "Sofas")]
    write_events(lake, 1, [*good_events(repeat=12), *bad])
    place = write_site(tmp_path / "site", lake)
    run("ingest", place)
    before = (place.path / "CURRENT").read_bytes()

    output = run("ingest", place, date=date_of(1), exit_code=65)
    where = place.path / "quarantine" / "date=2026-01-06.parquet"
    assert "3 of 219 events of 2026-01-06 cannot be used (2 unknown_group, 1 unknown_category" in output
    assert "; values 'Sofas', 'hover'), more than quarantine.max_share 1.00%" in output
    assert f"see {where}, then map the values in ammrank.yaml or correct the log" in output
    assert len(pq.read_table(where)) == 3
    assert (place.path / "CURRENT").read_bytes() == before
    assert [path.name for path in place.finished_runs("state")] == [(place.path / place.current().runs["head"]).name]

    write_site(place.path, lake, quarantine={"max_share": 0.02})
    run("ingest", place, date=date_of(1))
    assert place.current().date == date_of(1)
    assert counts_of(place, 1) == {"kept": N_GOOD, "unknown_category": 1, "unknown_group": 2}
    assert facts_of(place, 1)["unknown_values"] == {"unknown_category": {"Sofas": 1}, "unknown_group": {"hover": 2}}


def test_ingest__exactly_the_share_is_forgiven(run, lake, tmp_path):
    write_events(lake, 0, [*[event(1)] * 3, event(None)])
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 0.25})
    run("ingest", place)
    write_site(place.path, lake, quarantine={"max_share": 0.24})
    other = write_site(tmp_path / "other", lake, quarantine={"max_share": 0.24})
    assert "1 of 4 events" in run("ingest", other, exit_code=65)


@pytest.mark.parametrize("groups", [{"pv": ["pv", "hover"]}, {"ignore": ["hover"]}], ids=["mapped", "ignored"])
def test_ingest__mapping_the_unknown_values_lets_the_run_go_on(run, lake, place, groups):
    write_events(lake, 0, [*good_events(), *[event(1, "hover")] * 5])
    run("ingest", place, exit_code=65)
    everything = {name: [name] for name in ("pv", "sq", "slc", "olc", "adv", "adc")} | groups
    write_site(place.path, lake, groups=everything)
    run("ingest", place)
    assert counts_of(place) == ({"kept": 23} if "pv" in groups else {"ignored_group": 5, "kept": 18})
    assert not (place.path / "quarantine" / f"date={FIRST_DAY}.parquet").exists()


def test_ingest__no_user_id_leaves_the_lake(run, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    ids = ("zebra-001", "zebra-002", "zebra-003")
    lake = write_lake(tmp_path / "lake", n_days=2, ids=ids, user_id=pa.string())
    bad = [event(ids[0], "hover"), event(ids[1], "pv", "Sofas"), event(ids[2], timestamp=-1), event(ids[0], None)]
    write_events(lake, 1, [*good_events(ids, 12), *bad], user_id=pa.string())
    write_users(lake, [*((user, 30, "?") for user in ids), (ids[0], 20, "male")], user_id=pa.string())
    place = write_site(tmp_path / "site", lake)
    outputs = [run("ingest", place, date=date_of(1), exit_code=65)]
    write_site(place.path, lake, quarantine={"max_share": 0.05})
    outputs.append(run("ingest", place, date=date_of(1), exit_code=65))
    write_site(place.path, lake, quarantine={"max_share": 1})
    outputs += [run("features", place, "--json", date=date_of(1)), run("verify", place)]
    assert "zebra" not in "".join(outputs)
    assert "zebra" not in caplog.text
    texts = [
        path for path in place.path.rglob("*") if path.suffix in (".json", ".yaml", ".csv") or path.name == "CURRENT"
    ]
    assert len(texts) > 10
    assert [path for path in texts if "zebra" in path.read_text()] == []
    assert not [path for path in place.path.rglob("*") if "zebra" in path.name]


# The config and the lock, seen from a stage


CHANGES = {
    "alpha": ({"alpha": 0.5}, "alpha was 0.97 and is now 0.5"),
    "partitions": ({"partitions": 3}, "partitions was 2 and is now 3"),
    "level": ({"taxonomy": {"level": 1}}, "the taxonomy was another one"),
    "late_days": ({"late_days": 3}, "late_days was 7 and is now 3"),
    "timezone": ({"timezone": "UTC"}, "timezone was None and is now 'UTC'"),
    "groups": ({"groups": {"adc": ["adc"]}, "features": {"groups": ["adc"]}}, "groups was "),
}


@pytest.mark.parametrize(("changes", "phrase"), CHANGES.values(), ids=CHANGES)
def test_ingest__changed_setting_is_refused_until_rebuilt(run, tmp_path, changes, phrase):
    lake = write_lake(tmp_path / "lake", n_days=1)
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 1})
    run("ingest", place)
    write_site(place.path, lake, quarantine={"max_share": 1}, **changes)
    output = run("ingest", place, exit_code=65)
    assert f"the state of {FIRST_DAY} was built when {phrase}" in output
    command = f"ammrank ingest {place.path} --date {FIRST_DAY} --rebuild"
    assert f"rebuild with `{command}`" in output
    run("ingest", place, "--rebuild")
    run("ingest", place)


def test_ingest__changed_taxonomy_is_refused_until_rebuilt(run, lake, place):
    run("ingest", place)
    write_taxonomy(lake, [*TAXONOMY, ("Trains", "Travel")])
    assert "the taxonomy was another one; rebuild with" in run("ingest", place, exit_code=65)
    run("ingest", place, "--rebuild")
    run("features", place)
    assert "pv:intensity:Trains" in published_features(place).columns


def test_ingest__locked_site_is_busy(run, place):
    with open(place.path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        output = run("ingest", place, exit_code=75)
    assert f"ammrank: another run holds {place.path}; wait for it or stop it" in output
    run("ingest", place)


def test_ingest__missing_config_says_how_to_make_one(run, place):
    place.config_path.unlink()
    output = run("ingest", place, exit_code=65)
    assert f"there is no config at {place.config_path}; make one with `ammrank init {place.path} --lake LAKE`" in output


# Damaged stores


def flip_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x40
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


DAMAGES = {
    "flipped byte in a chunk": ("intensity/c/0", flip_byte, "is not what was written (checksum differs)"),
    "cut chunk": ("cell/c/0", cut, "is not what was written (checksum differs)"),
    "missing chunk": ("last/c/0", os.unlink, "is missing"),
    "damaged metadata": ("intensity/zarr.json", flip_byte, "is not what was written (checksum differs)"),
    "missing metadata": ("indptr/zarr.json", os.unlink, "is missing"),
}


@pytest.mark.parametrize(("name", "damage", "phrase"), DAMAGES.values(), ids=DAMAGES)
def test_verify__damaged_state_is_named_there_and_by_the_stage(run, place, name, damage, phrase):
    run("ingest", place)
    path = part_path(place.path / place.current().runs["head"], 1) / name
    damage(path)
    for output in (run("verify", place, exit_code=65), run("features", place, exit_code=65)):
        assert f"{path} {phrase}; make it again with `ammrank nightly {place.path}" in output


def test_verify__damaged_day_is_named_there_and_by_the_stage(run, lake, place):
    write_events(lake, 1, good_events())
    run("ingest", place)
    shutil.rmtree(place.path / place.current().runs["head"])  # so that the day is folded again
    (place.path / "CURRENT").unlink()
    (day,) = place.finished_runs("days")
    path = part_path(day, 0) / "cell" / "c" / "0"
    flip_byte(path)
    for output in (run("verify", place, exit_code=65), run("ingest", place, date=date_of(1), exit_code=65)):
        assert (
            f"{path} is not what was written (checksum differs); make it again with `ammrank nightly {place.path}"
            in output
        )


@pytest.mark.parametrize("damage", [flip_byte, cut, os.unlink], ids=["flipped", "cut", "missing"])
def test_verify__damaged_list_of_files_is_named(run, place, damage):
    run("ingest", place)
    path = part_path(place.path / place.current().runs["head"], 0).with_suffix(".json")
    damage(path)
    for output in (run("verify", place, exit_code=65), run("features", place, exit_code=65)):
        assert f"{path} is " in output


def test_verify__exchanged_part_is_named(run, place):
    run("ingest", place)
    head = place.path / place.current().runs["head"]
    parts = [part_path(head, i) for i in range(2)]
    for suffix in (".zarr", ".json"):
        one, other = (part.with_suffix(suffix) for part in parts)
        one.rename(head / "spare")
        other.rename(one)
        (head / "spare").rename(other)
    for output in (run("verify", place, exit_code=65), run("features", place, exit_code=65)):
        assert f"{parts[0].with_suffix('.json')} is not the list in the manifest; make it again" in output


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_text('{"format": 1}')], ids=["cut", "other JSON"])
@pytest.mark.parametrize("which", ["manifest", "CURRENT"])
def test_verify__damaged_manifest_or_current_is_named(run, place, which, damage):
    run("ingest", place)
    path = (
        place.path / place.current().runs["head"] / "manifest.json" if which == "manifest" else place.path / "CURRENT"
    )
    damage(path)
    for output in (run("verify", place, exit_code=65), run("ingest", place, exit_code=65)):
        assert f"{path} is not the JSON that was written" in output


def test_verify__damaged_users_and_features_are_named(run, place):
    run("features", place)
    runs = place.current().runs
    age = part_path(place.path / runs["users"], 0) / "age" / "c" / "0"
    columns = place.path / runs["features"] / "columns.json"
    for path in (age, columns):
        flip_byte(path)
    output = run("verify", place, exit_code=65)
    for path in (age, columns):
        assert (
            f"{path} is not what was written (checksum differs); make it again with `ammrank nightly {place.path}"
            in output
        )
    assert f"2 of 4 runs and reports of {place.path} are damaged" in output
    shutil.rmtree(place.path / runs["features"])
    assert str(age) in run("features", place, exit_code=65)


def test_verify__missing_published_run_is_named(run, place):
    run("ingest", place)
    head = place.path / place.current().runs["head"]
    head.rename(place.path / "elsewhere")
    assert f"{head} is published and not whole" in run("verify", place, exit_code=65)


def test_ingest__damaged_list_of_scanned_files_is_only_a_cache(run, place):
    run("ingest", place)
    before = run("verify", place, "--digest")
    for name in ("days", "users"):
        (place.path / name / "scanned.json").write_text("{")
    run("ingest", place)
    assert run("verify", place, "--digest") == before


def test_verify__missing_site_is_named(run, tmp_path):
    place = write_site(tmp_path / "site", tmp_path / "lake")
    place.config_path.unlink()
    place.path.rmdir()
    assert f"there is no site at {place.path}" in run("verify", place, exit_code=65)
    assert not place.path.exists()


@pytest.mark.parametrize(
    ("empty_day", "type_"),
    [(0, pa.string()), (0, pa.int64()), (0, pa.null()), (1, pa.int64()), (1, pa.null())],
    ids=str,
)
def test_ingest__type_of_no_rows_does_not_matter(run, tmp_path, empty_day, type_):
    lake = write_lake(tmp_path / "lake", n_days=3, ids=("a", "b", "c"), user_id=pa.string())
    write_events(lake, empty_day, [], user_id=type_)
    place = write_site(tmp_path / "site", lake)
    run("features", place)
    run("features", place, date=date_of(2))


def test_ingest__date_before_the_lake_names_its_first_day(run, place):
    assert "its first day is 2026-01-05" in run("ingest", place, date=date_of(-1), exit_code=65)


def test_ingest__user_with_two_problems_is_one_bad_row(run, lake, tmp_path):
    write_users(lake, [(1, 400, "?"), (2, -3, "?")])
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 1})
    run("ingest", place)


def test_ingest__duplicate_users_are_quarantined_with_their_file(run, lake, tmp_path):
    write_users(lake, [(1, 20, "male"), (1, 50, "female")])
    place = write_site(tmp_path / "site", lake, quarantine={"max_share": 0.5})
    run("ingest", place)
    assert [row["file"] for row in quarantined(place, "users")] == ["users.parquet"]


def test_ingest__duplicate_users_are_counted_without_the_scratch_of_the_last_run(run, lake, place):
    write_users(lake, [(1, 20, "male"), (1, 50, "female")])
    run("ingest", place, exit_code=65)
    shutil.rmtree(place.scratch)
    run("ingest", place, exit_code=65)


def test_ingest__changed_unknown_user_ids_are_applied_to_users(run, lake, place):
    run("ingest", place)
    write_site(place.path, lake, quarantine={"max_share": 1}, unknown_user_ids=[3])
    run("ingest", place, "--rebuild")
    assert users_facts(place)["counts"] == {"no_user_id": 1}


def test_ingest__rebuild_lets_a_site_with_published_features_go_on(run, lake, place):
    run("features", place)
    write_site(place.path, lake, alpha=0.5)
    run("ingest", place, "--rebuild")
    run("features", place)


@pytest.mark.parametrize("folder", ["days", "state", "users"])
def test_ingest__rebuild_repairs_a_damaged_run(run, place, folder):
    run("ingest", place)
    (damaged,) = place.finished_runs(folder)
    flip_byte(part_path(damaged, 0) / "user_id" / "c" / "0")
    run("verify", place, exit_code=65)
    run("ingest", place, "--rebuild")
    run("verify", place)


@pytest.mark.parametrize("which", ["manifest", "CURRENT"])
def test_ingest__rebuild_repairs_a_damaged_manifest_or_current(run, place, which):
    run("ingest", place)
    head = place.path / place.current().runs["head"]
    cut(head / "manifest.json" if which == "manifest" else place.path / "CURRENT")
    run("ingest", place, "--rebuild")
    run("verify", place)


@pytest.mark.parametrize(
    ("folder", "true", "false"), [("state", '"alpha": 0.97', '"alpha": 0.95'), ("days", "216", "217")]
)
def test_verify__manifest_with_another_number_is_named(run, place, folder, true, false):
    run("ingest", place)
    (damaged,) = place.finished_runs(folder)
    path = damaged / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace(true, false))
    assert path.read_text() != text
    assert str(path) in run("verify", place, exit_code=65)


def test_verify__missing_manifest_of_a_published_run_is_named(run, place):
    run("ingest", place)
    head = place.path / place.current().runs["head"]
    (head / "manifest.json").unlink()
    assert str(head) in run("verify", place, exit_code=65)


def test_ingest__another_user_column_is_scanned_again(run, lake, tmp_path):
    rows = good_events((1, 2, 3), 12)
    table = event_table(0, rows)
    cookies = pa.array([f"c{row['user_id']}" for row in rows])
    write_table(event_folder(lake, 0) / "part-0.parquet", table.append_column("cookie", cookies))
    place = write_site(tmp_path / "site", lake, lake={"users": None})
    run("ingest", place)
    write_site(place.path, lake, lake={"users": None}, columns={"user_id": "cookie"})
    run("ingest", place, "--rebuild")
    head = open_run(place.path / place.current().runs["head"])
    found = [ids_from_arrays(head.part(p).read(STATE)).to_arrow().to_pylist() for p in range(2)]
    assert sorted(user for part in found for user in part) == ["c1", "c2", "c3"]
    write_site(place.path, lake, lake={"users": None}, columns={"category": "topic"})
    assert "has no column 'topic'" in run("ingest", place, "--rebuild", exit_code=65)


def test_ingest__file_whose_user_ids_are_all_null_is_quarantined(run, tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=("a", "b", "c"), user_id=pa.string())
    write_events(lake, 0, [event(None), event(None)], file="part-1.parquet", user_id=pa.string())
    place = write_site(tmp_path / "site", lake)
    run("ingest", place)
    assert [row["reason"] for row in quarantined(place, f"date={FIRST_DAY}")] == ["no_user_id"] * 2


def test_ingest__current_of_another_format_is_left_alone(run, place):
    run("ingest", place)
    path = place.path / "CURRENT"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    assert "CURRENT has format 2, this version reads 1" in run("ingest", place, "--rebuild", exit_code=65)
    assert path.exists()


def test_ingest__cluster_that_does_not_start_is_a_sentence(place, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("version: 1\nclass: distributed.LocalCluster\nkwargs: {processes: false, n_worker: 2}\n")
    result = CliRunner().invoke(ammrank, ["ingest", str(place.path), "--cluster", str(path), "--date", str(FIRST_DAY)])
    assert result.exit_code == 65
    assert "the cluster did not start" in result.stderr
    assert "check its kwargs" in result.stderr
