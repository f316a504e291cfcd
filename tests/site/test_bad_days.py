"""Bad days: what a night does with each is defined; docs/operations.md has the table."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from lakes import (
    TAXONOMY,
    At,
    date_of,
    event,
    event_folder,
    good_events,
    write_events,
    write_lake,
    write_site,
    write_taxonomy,
)

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.nightly import nightly
from ammrank_dask.workflows.verify import command as verify

LAST = 5
IDS = list(range(101, 131))
CONFIG = {"features": {"min_days": 1}, "train": {"shards": 1, "epochs": 1}, "score": {"k": 2}}


@pytest.fixture(scope="module")
def begun(client, tmp_path_factory):
    """A world whose nights up to the day before the bad one are published."""
    world = tmp_path_factory.mktemp("world")
    lake = write_lake(world / "lake", n_days=LAST, ids=IDS, repeat=1)
    site = write_site(world / "site", lake, lake={}, **CONFIG)
    site.config_path.write_text(site.config_path.read_text().replace(str(lake), "../lake"))
    nightly(Night(client, site, load_config(site.config_path), date_of(LAST - 1)))
    return world


@pytest.fixture
def world(begun, tmp_path):
    shutil.copytree(begun, tmp_path / "world")
    return tmp_path / "world"


def run(client, world, **changes):
    """Run the bad night; `changes` replace sections of the config."""
    site = Site(world / "site")
    config = load_config(site.config_path)
    for name, section in changes.items():
        config = config.model_copy(update={name: getattr(config, name).model_copy(update=section)})
    return nightly(Night(client, site, config, date_of(LAST)))


def counts_of(world):
    facts = [
        json.loads(path.read_text()) for path in (world / "site" / "days").glob(f"date={date_of(LAST)}/*/manifest.json")
    ]
    return facts[0]["facts"]["counts"]


def is_published(world):
    return Site(world / "site").current().date == date_of(LAST)


def users_of(world):
    folder = Site(world / "site").qualifications_folder(date_of(LAST)) / "by_user"
    return set(pq.read_table(folder).column("user_id").to_pylist())


def test_nightly__an_empty_day(client, world):
    write_events(world / "lake", LAST, [])
    run(client, world)
    assert is_published(world)
    assert users_of(world) >= set(IDS)


def test_nightly__a_missing_day_is_refused_or_bridged_and_told(client, world):
    with pytest.raises(BadInput, match=f"no events for {date_of(LAST)}; add them, or set lake.missing_days: bridge"):
        run(client, world)
    assert not is_published(world)
    facts = run(client, world, lake={"missing_days": "bridge"})
    assert facts["bridged days"] == str(date_of(LAST))
    assert is_published(world)


@pytest.mark.parametrize("day", [LAST, LAST - 1], ids=["in its day", "as the next day"])
def test_nightly__a_duplicated_file_is_refused_or_counted_twice(client, world, day):
    write_events(world / "lake", LAST, good_events(IDS))
    copied = event_folder(world / "lake", day) / "part-0.parquet"
    shutil.copy2(copied, event_folder(world / "lake", LAST) / "part-1.parquet")
    with pytest.raises(BadInput, match=r"has the same content as .*; remove one of them, or set lake.duplicates: keep"):
        run(client, world)
    assert not is_published(world)
    run(client, world, lake={"duplicates": "keep"})
    assert counts_of(world)["kept"] == 2 * len(good_events(IDS))


def test_nightly__ten_times_the_usual_size(client, world):
    write_events(world / "lake", LAST, good_events(IDS, repeat=10))
    run(client, world)
    assert counts_of(world)["kept"] == 10 * len(good_events(IDS))


def garbage():
    good = good_events(IDS)
    return [{**row, "group": "pv\x00?"} if number % 20 == 0 else row for number, row in enumerate(good)]


def test_nightly__five_percent_garbage(client, world):
    write_events(world / "lake", LAST, garbage())
    with pytest.raises(BadInput, match=r"9 of 180 events of .* cannot be used \(9 unknown_group.*more than .* 1\.00%"):
        run(client, world)
    assert not is_published(world)
    run(client, world, quarantine={"max_share": 0.06})
    assert counts_of(world) == {"kept": 171, "unknown_group": 9}
    assert pq.read_table(world / "site" / "quarantine" / f"date={date_of(LAST)}.parquet").num_rows == 9


def test_nightly__a_category_that_the_taxonomy_does_not_have(client, world):
    write_events(world / "lake", LAST, [*good_events(IDS), event(IDS[0], category="Drones")])
    run(client, world)
    assert counts_of(world)["unknown_category"] == 1


def test_nightly__a_category_that_is_gone_needs_a_word_or_a_rebuild(client, world):
    events = [row for row in good_events(IDS) if row["category"] != "Hats"]
    for day in range(LAST + 1):
        write_events(world / "lake", day, events)
    write_taxonomy(world / "lake", [pair for pair in TAXONOMY if pair[0] != "Hats"])
    with pytest.raises(BadInput, match=r"'Hats' was a category, .*rebuild with `ammrank ingest .* --rebuild`"):
        run(client, world)
    assert not is_published(world)
    site = Site(world / "site")
    facts = nightly(Night(client, site, load_config(site.config_path), date_of(LAST)), rebuild=True)
    assert "training" not in facts  # the model of the night before ranks what is left
    assert is_published(world)


def test_nightly__thirty_percent_new_users(client, world):
    new = list(range(901, 901 + len(IDS) * 3 // 10))
    write_events(world / "lake", LAST, good_events([*IDS, *new]))
    run(client, world)
    assert users_of(world) >= {*IDS, *new}


def test_nightly__clocks_one_day_ahead(client, world):
    ahead = [{**row, "timestamp": At(row["timestamp"] + 24)} for row in good_events(IDS)]
    write_events(world / "lake", LAST, ahead)
    with pytest.raises(BadInput, match=r"180 of 180 events of .* cannot be used .180 timestamp_after_night"):
        run(client, world)
    assert not is_published(world)


HOSTILE = ("../../x", "=cmd()", "<img onerror=alert(1)>")


def test_nightly__hostile_names_do_no_harm(client, tmp_path):
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
    nightly(Night(client, site, load_config(site.config_path), date_of(LAST - 1)))
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
    assert CliRunner().invoke(verify, [str(site.path)]).exit_code == 0
