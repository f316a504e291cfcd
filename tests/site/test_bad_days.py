"""Bad days: what a night does with each is defined; docs/operations.md has the table."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from begun import CONFIG, IDS, LAST, invoke
from lakes import TAXONOMY, At, date_of, event, event_folder, good_events, write_events, write_site, write_taxonomy

pytestmark = pytest.mark.night


@pytest.fixture
def world(world):
    """A world whose nights up to the day before the bad one are published."""
    shutil.rmtree(event_folder(world.lake, LAST))
    return world


def counts_of(world):
    facts = [
        json.loads(path.read_text())
        for path in (world.site.path / "days").glob(f"date={date_of(LAST)}/*/manifest.json")
    ]
    return facts[0]["facts"]["counts"]


def is_published(world):
    return world.site.current().date == date_of(LAST)


def users_of(world):
    folder = world.site.qualifications_folder(date_of(LAST)) / "by_user"
    return set(pq.read_table(folder).column("user_id").to_pylist())


def test_nightly__an_empty_day(world):
    write_events(world.lake, LAST, [])
    world.nightly()
    assert is_published(world)
    assert users_of(world) >= set(IDS)


def test_nightly__a_missing_day_is_refused_or_bridged_and_told(world):
    world.refused(f"no events for {date_of(LAST)}; add them, or set lake.missing_days: bridge")
    facts = world.nightly(lake={"missing_days": "bridge"})
    assert facts["bridged days"] == str(date_of(LAST))
    assert is_published(world)


@pytest.mark.parametrize("day", [LAST, LAST - 1], ids=["in its day", "as the next day"])
def test_nightly__a_duplicated_file_is_refused_or_counted_twice(world, day):
    write_events(world.lake, LAST, good_events(IDS))
    copied = event_folder(world.lake, day) / "part-0.parquet"
    shutil.copy2(copied, event_folder(world.lake, LAST) / "part-1.parquet")
    world.refused(r"has the same content as .*; remove one of them, or set lake.duplicates: keep")
    world.nightly(lake={"duplicates": "keep"})
    assert counts_of(world)["kept"] == len(good_events(IDS)) + pq.read_metadata(copied).num_rows


def write_parts(lake, **parts):
    """Write the last day as some files, of given rows."""
    for name, rows in parts.items():
        write_events(lake, LAST, rows, file=f"{name}.parquet")


@pytest.mark.parametrize("compacted", ["all", "two of them", "one of them"])
def test_nightly__rows_that_are_in_two_files_are_refused_or_counted_twice(world, compacted):
    rows = good_events(IDS)
    again = {"all": rows, "two of them": rows[60:], "one of them": rows[:60]}[compacted][::-1]
    others = {"all": "the 3 files from .*/a.parquet to .*/c.parquet", "two of them": "the 2 files from .*/b.parquet to"}
    write_parts(world.lake, a=rows[:60], b=rows[60:100], c=rows[100:], d=again)
    first, second = ("a", "d") if compacted == "one of them" else ("d", "")
    world.refused(
        rf"/{first}.parquet of {date_of(LAST)} has the same rows as {others.get(compacted, f'.*/{second}.parquet')}"
        r".*; remove the one or the other, or set lake.duplicates: keep to count both"
    )
    assert not is_published(world)
    world.nightly(lake={"duplicates": "keep"})
    assert counts_of(world)["kept"] == len(rows) + len(again)


def test_nightly__a_compaction_goes_on_when_one_of_the_two_is_removed(world):
    rows = good_events(IDS)
    write_parts(world.lake, a=rows[:60], b=rows[60:], c=rows)
    world.refused("/c.parquet of .* has the same rows as the 2 files from")
    (event_folder(world.lake, LAST) / "c.parquet").unlink()
    world.nightly()
    assert counts_of(world)["kept"] == len(rows)


def test_nightly__ten_times_the_usual_size(world):
    write_events(world.lake, LAST, good_events(IDS, repeat=10))
    world.nightly()
    assert counts_of(world)["kept"] == 10 * len(good_events(IDS))


def garbage():
    good = good_events(IDS)
    return [{**row, "group": "pv\x00?"} if number % 20 == 0 else row for number, row in enumerate(good)]


def test_nightly__five_percent_garbage(world):
    write_events(world.lake, LAST, garbage())
    world.refused(r"9 of 180 events of .* cannot be used \(9 unknown_group.*more than .* 1\.00%")
    world.nightly(quarantine={"max_share": 0.06})
    assert counts_of(world) == {"kept": 171, "unknown_group": 9}
    assert pq.read_table(world.site.path / "quarantine" / f"date={date_of(LAST)}.parquet").num_rows == 9


def test_nightly__a_category_that_the_taxonomy_does_not_have(world):
    write_events(world.lake, LAST, [*good_events(IDS), event(IDS[0], category="Drones")])
    world.nightly()
    assert counts_of(world)["unknown_category"] == 1


def test_nightly__a_category_that_is_gone_needs_a_word_or_a_rebuild(world):
    events = [row for row in good_events(IDS) if row["category"] != "Hats"]
    for day in range(LAST + 1):
        write_events(world.lake, day, events)
    write_taxonomy(world.lake, [pair for pair in TAXONOMY if pair[0] != "Hats"])
    world.refused(r"'Hats' was a category, .*rebuild with `ammrank ingest .* --rebuild`")
    facts = world.nightly("--rebuild")
    assert "training" not in facts  # the model of the night before ranks what is left
    assert is_published(world)


def test_nightly__thirty_percent_new_users(world):
    new = list(range(901, 901 + len(IDS) * 3 // 10))
    write_events(world.lake, LAST, good_events([*IDS, *new]))
    world.nightly()
    assert users_of(world) >= {*IDS, *new}


def test_nightly__clocks_one_day_ahead(world):
    ahead = [{**row, "timestamp": At(row["timestamp"] + 24)} for row in good_events(IDS)]
    write_events(world.lake, LAST, ahead)
    world.refused(r"180 of 180 events of .* cannot be used .180 timestamp_after_night")


HOSTILE = ("../../x", "=cmd()", "<img onerror=alert(1)>")


def test_nightly__hostile_names_do_no_harm(cluster_file, tmp_path):
    ids = [f"{name}-{number}" for number in range(8) for name in HOSTILE]
    lake = tmp_path / "lake"
    pairs = [("top", ""), *((name, "top") for name in HOSTILE)]
    for day in range(LAST):
        rows = good_events(ids)
        rows = [{**row, "category": HOSTILE[number % 3]} for number, row in enumerate(rows)]
        write_events(lake, day, rows, user_id=pa.string())
    write_taxonomy(lake, pairs)
    site = write_site(tmp_path / "site", lake, lake={"users": None}, **CONFIG)
    before = sorted(path for path in tmp_path.rglob("*") if "site" not in path.parts)
    invoke(cluster_file, "nightly", site.path, "--date", date_of(LAST - 1))
    assert sorted(path for path in tmp_path.rglob("*") if "site" not in path.parts) == before
    folders = {path.name for path in (site.qualifications_folder(date_of(LAST - 1)) / "by_category").iterdir()}
    assert folders <= {"category=..%2F..%2Fx", "category=%3Dcmd%28%29", "category=%3Cimg%20onerror%3Dalert%281%29%3E"}
    report = site.report_folder(date_of(LAST - 1))
    assert "<img onerror" not in (report / "report.html").read_text()
    for line in (report / "exposure.csv").read_text().splitlines()[1:]:
        assert not line.startswith(("=", '"='))
    ours = [path for path in Path(site.path).rglob("*") if path.suffix in (".html", ".json", ".jsonl", ".csv")]
    assert ours
    for path in ours:
        assert not any(user in path.read_text(encoding="utf-8") for user in ids), path
    invoke(cluster_file, "verify", site.path)
