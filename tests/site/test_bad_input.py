"""What is wrong with a lake or a site is set aside and counted, or said in one sentence: through the real commands.

Each kind of file and each exit code is here; every case of it is tested at the function that reads it.
"""

import datetime as dt
import fcntl
import json
import logging
import os
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from damage import cut, flip_entry, part_path
from lakes import (
    FIRST_DAY,
    TAXONOMY,
    At,
    date_of,
    event,
    event_folder,
    event_table,
    good_events,
    lose_link,
    microseconds,
    replace_by,
    write_events,
    write_lake,
    write_site,
    write_table,
    write_taxonomy,
    write_users,
)

from ammrank_dask.features.store import open_features
from ammrank_dask.ingest import events
from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.ids import ids_from_arrays
from ammrank_dask.storage.store.registry import STATE, USERS
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.stages.rerun_check import digest_inputs

N_GOOD = 216
"""Rows of a day of `write_lake`: one bad row more is less than the 1 % that is forgiven."""
HATS, SHOES = 1, 2
"""Cells of page views of the categories of `lakes.TAXONOMY`."""


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def ingested_once(run, tmp_path_factory):
    """A lake of one day and a site that has ingested it; nobody changes them."""
    folder = tmp_path_factory.mktemp("ingested")
    run("ingest", write_site(folder / "site", write_lake(folder / "lake", n_days=1)))
    return folder


@pytest.fixture
def ingested(ingested_once, tmp_path):
    """A site that has ingested a day, and may be damaged; its lake may not."""
    shutil.copytree(ingested_once / "site", tmp_path / "ingested")
    return Site(tmp_path / "ingested")


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
        state = InterestState.from_arrays(open_run(run_path).part(partition).read(STATE))
        for position, user in enumerate(state.user_ids.to_arrow().to_pylist()):
            for i in range(state.indptr[position], state.indptr[position + 1]):
                cells[user, int(state.cell[i])] = (float(state.intensity[i]), int(state.last[i]))
    return cells


def published_people(site):
    """Return {user: (age, gender)} of the users run."""
    found = {}
    for partition in range(2):
        part = open_run(site.path / site.current().runs["users"]).part(partition).read(USERS)
        found |= dict(zip(part["user_id"].tolist(), zip(part["age"].tolist(), part["gender"].tolist())))  # noqa: B905
    return found


def is_published(site):
    return site.current() is not None


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


def test_ingest__ignored_groups_null_and_high_categories_are_counted_only(run, lake, tmp_path):
    rows = [event(1, "hover"), event(1, "hover"), event(2, "pv", None), event(1, "pv", "Retail"), event(3)]
    write_events(lake, 0, rows)
    groups = {"pv": "pv", "adc": "adc", "ignore": ["hover"]}
    place = write_site(tmp_path / "site", lake, groups=groups, features={"groups": ["pv"]})
    output = run("ingest", place)
    assert counts_of(place) == {"ignored_group": 2, "kept": 1, "null_category": 1, "unranked_category": 1}
    assert not (place.path / "quarantine").exists()
    assert "ignored_group 2, null_category 1, unranked_category 1" in output


# Columns and types


def test_ingest__missing_columns_are_named(run, lake, place):
    path = write_events(lake, 0, [event(1)], group=None, timestamp=None)
    output = run("ingest", place, exit_code=65)
    assert f"{path} has no column 'group', 'timestamp'; it has 'user_id', 'category'." in output
    assert "Map the names under `columns` in ammrank.yaml" in output


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
def test_ingest__file_that_is_not_parquet_is_named(run, lake, place, which):
    path = event_folder(lake, 0) / "part-0.parquet" if which == "events" else lake / "users.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    output = run("ingest", place, exit_code=65)
    assert f"{path} is not a readable parquet file (" in output
    assert "; replace or remove it" in output
    assert not is_published(place)


@pytest.mark.timeout(120, method="thread")
@pytest.mark.parametrize("kind", ["fifo", "/dev/zero"])
@pytest.mark.parametrize("which", ["events", "users", "taxonomy"])
@pytest.mark.parametrize("command", ["ingest", "nightly"])
def test_ammrank__what_is_no_regular_file_is_named_and_not_waited_for(run, lake, place, command, which, kind):
    path = {"events": event_folder(lake, 0) / "part-0.parquet", "taxonomy": lake / "taxonomy.csv"}.get(
        which, lake / "users.parquet"
    )
    found = replace_by(path, kind)
    assert f"{path} must be a regular file, found a {found}; replace or remove it" in run(command, place, exit_code=65)
    assert not is_published(place)


@pytest.mark.parametrize("name", ["taxonomy.csv", "users.parquet"])
def test_ingest__link_to_a_device_is_named_as_the_config_has_it(run, lake, tmp_path, name):
    place = write_site(tmp_path / "site", lake, lake={name.partition(".")[0]: f"../lake/{name}"})
    replace_by(lake / name, "/dev/zero")
    output = run("ingest", place, exit_code=65)
    assert f"{place.path / '../lake' / name} must be a regular file, found a device; replace or remove it" in output


@pytest.mark.parametrize("name", ["taxonomy.csv", "users.parquet", "events", f"events/date={FIRST_DAY}/part-0.parquet",
                                  f"events/date={date_of(-1)}"])  # fmt: skip
@pytest.mark.parametrize("command", ["ingest", "nightly"])
def test_ammrank__link_that_leads_nowhere_is_named(run, lake, place, command, name):
    said = lose_link(lake / name)
    assert f"ammrank: {said}\n" in run(command, place, exit_code=65)
    assert not is_published(place)


@pytest.mark.parametrize("target", ["gone", "taxonomy.csv"], ids=["gone", "itself"])
def test_ingest__link_that_leads_nowhere_is_named_as_the_config_has_it(run, lake, tmp_path, target):
    place = write_site(tmp_path / "site", lake, lake={"taxonomy": "../lake/taxonomy.csv"})
    (lake / "taxonomy.csv").unlink()
    (lake / "taxonomy.csv").symlink_to(target)
    output = run("ingest", place, exit_code=65)
    assert f"{place.path / '../lake/taxonomy.csv'} is a link to {target}, which leads nowhere; restore" in output


def test_digest_inputs__pipe_in_the_lake_is_named(lake, place):
    path = event_folder(lake, 0) / "part-1.parquet"
    replace_by(path, "fifo")
    with pytest.raises(BadInput, match=f"{path} must be a regular file, found a named pipe"):
        digest_inputs(place, load_config(place.config_path), FIRST_DAY)


BOMBS = {"events": ("category", "user_id"), "users": ("user_id", "gender")}


@pytest.mark.parametrize(("which", "name"), [(which, name) for which, names in BOMBS.items() for name in names])
def test_ingest__string_of_a_small_file_that_is_too_long_is_named(run, tmp_path, which, name):
    lake = write_lake(tmp_path / "lake", n_days=1, ids=("a", "b", "c"), user_id=pa.string())
    path = event_folder(lake, 0) / "part-0.parquet" if which == "events" else lake / "users.parquet"
    table = pq.read_table(path, partitioning=None)
    position = table.column_names.index(name)
    long = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), pa.array(["secret" * 10_000]))
    write_table(path, table.set_column(position, name, long))
    place = write_site(tmp_path / "site", lake)
    output = run("ingest", place, exit_code=65)
    sentence = f"{path}: a value of '{name}' may have at most 1,024 bytes, found one of 60,000; shorten or remove it"
    assert output == f"ammrank: {sentence}\n"
    assert not is_published(place)


def test_ingest__corrupted_page_is_named(run, lake, place):
    path = event_folder(lake, 0) / "part-0.parquet"
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(2)
    smash(path, chunk.dictionary_page_offset or chunk.data_page_offset, chunk.total_compressed_size)
    output = run("ingest", place, exit_code=65)
    assert f"{path} cannot be decoded (" in output
    assert "; replace or remove it" in output


@pytest.mark.parametrize("which", ["events", "users"])
def test_ingest__value_that_does_not_fit_the_checksum_of_its_page_is_named(run, lake, place, which):
    path = event_folder(lake, 0) / "part-0.parquet" if which == "events" else lake / "users.parquet"
    write_table(path, pq.read_table(path), compression="none", use_dictionary=False, write_page_checksum=True)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1  # of the last user id: another one, as good
    path.write_bytes(data)
    output = run("ingest", place, exit_code=65)
    assert f"{path} cannot be decoded (could not verify page integrity, CRC checksum verification failed" in output
    assert "; replace or remove it" in output
    assert not is_published(place)


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


# Days


@pytest.mark.parametrize(("empty_day", "type_"), [(0, pa.null()), (1, pa.int64())], ids=["first", "second"])
def test_features__day_of_no_rows_is_legal_whatever_the_type_of_its_ids(run, tmp_path, empty_day, type_):
    lake = write_lake(tmp_path / "lake", n_days=3, ids=("a", "b", "c"), user_id=pa.string())
    write_events(lake, empty_day, [], user_id=type_)
    place = write_site(tmp_path / "site", lake)
    run("features", place)
    run("features", place, date=date_of(2))
    assert facts_of(place, empty_day)["events"] == 0
    assert len(published_features(place)) == 4


def test_ingest__many_bridged_days_are_a_count_and_a_range(run, tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1)
    for number in (0, 7, 9):
        write_events(lake, number, [event(1, "pv", "Hats", At(12))])
    place = write_site(tmp_path / "site", lake, lake={"missing_days": "bridge"})
    output = run("ingest", place, date=date_of(9))
    assert f"7 from {date_of(1)} to {date_of(8)}" in output
    assert str(date_of(2)) not in output


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
    assert state[1, HATS] == (pytest.approx(0.995**4 + 0.995**0.5, rel=1e-12), microseconds(3, 12))
    assert state[2, HATS] == (pytest.approx(0.995**3.5, rel=1e-12), microseconds(0, 12))


def test_ingest__date_before_the_lake_is_refused(run, place):
    output = run("ingest", place, date=date_of(-1), exit_code=65)
    assert "the lake has no events up to 2026-01-04; its first day is 2026-01-05" in output


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


# Quarantine


def test_ingest__too_many_bad_rows_stop_the_run_and_publish_nothing(run, lake, tmp_path):
    bad = [event(1, "hover"), event(2, "hover"), event(3, "pv", "Sofas")]
    write_events(lake, 1, [*good_events(repeat=12), *bad])
    place = write_site(tmp_path / "site", lake)
    run("ingest", place)
    before = place.current()

    output = run("ingest", place, date=date_of(1), exit_code=65)
    where = place.path / "quarantine" / "date=2026-01-06.parquet"
    assert "3 of 219 events of 2026-01-06 cannot be used (2 unknown_group, 1 unknown_category" in output
    assert "; values 'Sofas', 'hover'), more than quarantine.max_share 1.00%" in output
    assert f"see {where}, then map the values in ammrank.yaml or correct the log" in output
    assert len(pq.read_table(where)) == 3
    assert place.current() == before
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


def test_ingest__mapping_the_unknown_values_lets_the_run_go_on(run, lake, place):
    write_events(lake, 0, [*good_events(), *[event(1, "hover")] * 5])
    run("ingest", place, exit_code=65)
    groups = {name: [name] for name in ("pv", "sq", "slc", "olc", "adv", "adc")} | {"pv": ["pv", "hover"]}
    write_site(place.path, lake, groups=groups)
    run("ingest", place)
    assert counts_of(place) == {"kept": 23}
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
    texts = [path for path in place.path.rglob("*") if path.suffix in (".json", ".yaml", ".csv") or path.name == "ROOT"]
    assert len(texts) > 10
    assert [path for path in texts if "zebra" in path.read_text()] == []
    assert not [path for path in place.path.rglob("*") if "zebra" in path.name]


# The config and the lock, seen from a stage


def test_ingest__changed_setting_is_refused_until_rebuilt(run, ingested_once, ingested):
    write_site(ingested.path, ingested_once / "lake", alpha=0.5)
    output = run("ingest", ingested, exit_code=65)
    assert f"the state of {FIRST_DAY} was built when alpha was 0.995 and is now 0.5" in output
    command = f"ammrank ingest {ingested.path} --date {FIRST_DAY} --rebuild"
    assert f"rebuild with `{command}`" in output
    run("ingest", ingested, "--rebuild")
    run("ingest", ingested)


def test_ingest__changed_taxonomy_is_refused_until_rebuilt(run, lake, place):
    run("ingest", place)
    write_taxonomy(lake, [(name, "Hats" if name == "Boots" else parent) for name, parent in TAXONOMY])
    said = "built when 'Boots' counted for 'Shoes' and counts for 'Hats' now; that concerns its"
    assert said in run("ingest", place, exit_code=65)
    run("ingest", place, "--rebuild")
    run("ingest", place)


def test_ingest__a_new_category_passes_and_is_told(run, lake, place):
    run("ingest", place)
    write_taxonomy(lake, [*TAXONOMY, ("Trains", "Travel")])
    assert "Trains" in run("ingest", place)
    run("features", place)
    assert "pv:intensity:Trains" in published_features(place).columns


def test_ingest__a_changed_taxonomy_that_is_not_kept_is_refused(run, lake, place):
    run("ingest", place)
    shutil.rmtree(place.path / "taxonomies")
    write_taxonomy(lake, [*TAXONOMY, ("Trains", "Travel")])
    said = run("ingest", place, exit_code=65)
    assert "the taxonomy was another one, which the site has not kept; that concerns its" in said
    assert "; put it back for one night, then change it, or rebuild with `ammrank ingest" in said


def test_nightly__a_rename_that_is_a_cycle_is_refused(run, place):
    with open(place.config_path, "a") as config:
        config.write("categories: {Hats: Shoes, Shoes: Hats}\n")
    assert "categories: Hats -> Shoes -> Hats is a cycle" in run("nightly", place, exit_code=65)


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


DAMAGES = {
    "flipped bit": (flip_entry, " is not what was written (checksum differs)"),
    "cut short": (cut, " is not what was written (checksum differs)"),
    "missing": (os.unlink, " is missing"),
}


@pytest.mark.parametrize(("damage", "phrase"), DAMAGES.values(), ids=DAMAGES)
def test_verify__damaged_state_is_named_there_and_by_the_stage(run, ingested, damage, phrase):
    path = part_path(ingested.path / ingested.current().runs["head"], 1)
    damage(path)
    for output in (run("verify", ingested, exit_code=65), run("features", ingested, exit_code=65)):
        assert f"{path}{phrase}; make it again with `ammrank nightly {ingested.path}" in output


def test_verify__damaged_day_is_named_there_and_by_the_stage(run, lake, place):
    write_events(lake, 1, good_events())
    run("ingest", place)
    head = place.current().runs["head"]  # nothing is published, and the state is gone: the day is folded again
    place.move(lambda root: replace(root.discard([head]), date=None, runs={}))
    (day,) = place.finished_runs("days")
    path = flip_entry(part_path(day, 0))
    for output in (run("verify", place, exit_code=65), run("ingest", place, date=date_of(1), exit_code=65)):
        assert (
            f"{path} is not what was written (checksum differs); make it again with `ammrank nightly {place.path}"
            in output
        )


@pytest.mark.parametrize("which", ["manifest", "ROOT"])
def test_verify__damaged_manifest_or_root_is_named(run, ingested, which):
    head = ingested.path / ingested.current().runs["head"]
    path = head / "manifest.json" if which == "manifest" else ingested.path / "ROOT"
    cut(path)
    for output in (run("verify", ingested, exit_code=65), run("ingest", ingested, exit_code=65)):
        assert f"{path} is not the JSON that was written" in output


def test_verify__damaged_users_and_features_are_named(run, place):
    run("features", place)
    runs = place.current().runs
    age = flip_entry(part_path(place.path / runs["users"], 0))
    columns = place.path / runs["features"] / "columns.json"
    flip_byte(columns)
    output = run("verify", place, exit_code=65)
    for path in (age, columns):
        assert (
            f"{path} is not what was written (checksum differs); make it again with `ammrank nightly {place.path}"
            in output
        )
    assert f"2 of 4 runs and reports of {place.path} are damaged" in output
    shutil.rmtree(place.path / runs["features"])
    assert str(age) in run("features", place, exit_code=65)


@pytest.mark.parametrize("name", [".", "manifest.json"])
def test_verify__missing_published_run_is_named(run, ingested, name):
    head = ingested.path / ingested.current().runs["head"]
    (head / name).rename(ingested.path / "elsewhere")
    assert f"{head} is published and not whole" in run("verify", ingested, exit_code=65)


def test_verify__a_folder_that_is_no_site_is_not_verified(run, tmp_path):
    place = write_site(tmp_path / "site", tmp_path / "lake")
    place.config_path.unlink()
    assert f"there is no site at {place.path}: it has no ammrank.yaml" in run("verify", place, exit_code=65)


def test_verify__a_site_without_a_published_night_is_not_verified(run, tmp_path):
    place = write_site(tmp_path / "site", tmp_path / "lake")
    assert f"nothing is published at {place.path}" in run("verify", place, exit_code=65)


def test_verify__missing_site_is_named(run, tmp_path):
    place = write_site(tmp_path / "site", tmp_path / "lake")
    place.config_path.unlink()
    place.path.rmdir()
    assert f"there is no site at {place.path}" in run("verify", place, exit_code=65)
    assert not place.path.exists()


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


def test_ingest__rebuild_repairs_a_damaged_run_and_root(run, ingested):
    before = run("verify", ingested, "--digest")
    (damaged,) = ingested.finished_runs("state")
    flip_entry(part_path(damaged, 0))
    run("verify", ingested, exit_code=65)
    cut(ingested.path / "ROOT")
    run("ingest", ingested, "--rebuild")
    assert run("verify", ingested, "--digest") == before


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


def test_ingest__cluster_that_does_not_start_is_a_sentence(place, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("version: 1\nclass: distributed.LocalCluster\nkwargs: {processes: false, n_worker: 2}\n")
    result = CliRunner().invoke(ammrank, ["ingest", str(place.path), "--cluster", str(path), "--date", str(FIRST_DAY)])
    assert result.exit_code == 65
    assert "the cluster did not start" in result.stderr
    assert "check its kwargs" in result.stderr
