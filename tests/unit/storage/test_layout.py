"""Layouts of folders: what they say of day and group, and how `init` recognises them."""

import shutil

import pyarrow as pa
import pytest
from click.testing import CliRunner
from lakes import TAXONOMY, date_of, event_folder, good_events, write_events, write_lake, write_site, write_taxonomy

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.layout import Layout
from ammrank_dask.storage.lake.listing import list_days
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.lake_init.places import find_places
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import ingest

GROUP_FOLDERS = {
    "pv": "pageviews",
    "sq": "search_query",
    "slc": "search_clicks",
    "olc": "sponsored_clicks",
    "adv": "impressions",
    "adc": "ad_clicks",
}


@pytest.mark.parametrize("text", ["date=YYYY-MM", "YYYY/MM/DD/YYYY", "GROUP/GROUP/YYYY/MM/DD", ""])
def test_layout__without_a_whole_day_is_refused(text):
    with pytest.raises(BadInput, match=r"must have YYYY, MM and DD once and GROUP at most once, .* got"):
        Layout.parse(text)


def test_layout__folders_that_are_no_date_are_named():
    with pytest.raises(BadInput, match=r"2026/02/30/a\.parquet is in folders YYYY/MM/DD that are not a date"):
        Layout.parse("YYYY/MM/DD").match("2026/02/30/a.parquet")


def test_list_days__a_layout_that_no_file_has(tmp_path):
    lake = write_lake(tmp_path / "lake", n_days=1)
    with pytest.raises(BadInput, match=r"has no parquet files in folders YYYY/MM/DD; set lake.events or lake\.layout"):
        list_days(lake / "events", "date", "YYYY/MM/DD")


def move_days(lake, n_days, name_of):
    for day in range(n_days):
        target = lake / "events" / name_of(date_of(day))
        target.parent.mkdir(parents=True, exist_ok=True)
        event_folder(lake, day).rename(target)


def write_by_group(lake, n_days, name_of):
    """Write the events of a good lake into one folder a group, without a column for it."""
    shutil.rmtree(lake / "events")
    for day in range(n_days):
        for group, name in GROUP_FOLDERS.items():
            events = [row for row in good_events(repeat=12) if row["group"] == group]
            file = write_events(lake, day, events, group=None)
            target = lake / "events" / name_of(date_of(day), name) / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            file.rename(target)
        event_folder(lake, day).rmdir() if not any(event_folder(lake, day).iterdir()) else None


SHAPES = {
    "YYYY/MM/DD": (move_days, lambda date: f"{date:%Y/%m/%d}"),
    "year=YYYY/month=MM/day=DD": (move_days, lambda date: f"year={date.year}/month={date.month}/day={date.day}"),
    "YYYY-MM-DD": (move_days, str),
    "GROUP/YYYY/MM/DD": (write_by_group, lambda date, group: f"{group}/{date:%Y/%m/%d}"),
    "GROUP/dt=YYYYMMDD": (write_by_group, lambda date, group: f"{group}/dt={date:%Y%m%d}"),
    "date=YYYY-MM-DD/type=GROUP": (write_by_group, lambda date, group: f"date={date}/type={group}"),
}


@pytest.mark.parametrize("layout", SHAPES)
def test_ingest__the_same_rows_in_another_layout_give_the_same_state(client, cluster_file, tmp_path, layout):
    plain = write_lake(tmp_path / "plain", n_days=2)
    expected = ingest(night(client, write_site(tmp_path / "expected", plain), 1))
    lake = write_lake(tmp_path / "lake", n_days=2)
    change, name_of = SHAPES[layout]
    change(lake, 2, name_of)
    arguments = ["--lake", str(lake), "--cluster", str(cluster_file), "--quiet"]
    result = CliRunner().invoke(ammrank, ["init", str(tmp_path / "site"), *arguments])
    assert result.exit_code == 0, result.output
    config = load_config(tmp_path / "site" / "ammrank.yaml")
    assert config.lake.layout == layout
    assert f"lake.layout: {layout}" in result.stdout
    groups = config.groups if "GROUP" in layout else {group: [group] for group in GROUP_FOLDERS}
    assert groups == {group: [GROUP_FOLDERS[group] if "GROUP" in layout else group] for group in GROUP_FOLDERS}
    config = config.model_copy(update={"label": expected_config(tmp_path).label, "partitions": 2})
    found = ingest(Night(client, Site(tmp_path / "site"), config, date_of(1)))
    assert open_run(found.head.path).checksums == open_run(expected.head.path).checksums


def night(client, site, day):
    return Night(client, site, load_config(site.config_path), date_of(day))


def expected_config(folder):
    return load_config(folder / "expected" / "ammrank.yaml")


def test_find_places__folders_of_days_without_clicks_are_not_groups(tmp_path):
    for name in ("orders", "visits"):
        (tmp_path / name / "date=2026-01-05").mkdir(parents=True)
    with pytest.raises(BadInput, match="has several folders of days"):
        find_places(tmp_path)


def test_ingest__integer_categories_are_the_text_of_their_digits(client, tmp_path):
    numbers = {name: str(10 + number) for number, (name, _) in enumerate(TAXONOMY)}
    text, integers = write_lake(tmp_path / "text", n_days=1), write_lake(tmp_path / "integers", n_days=1)
    checksums = []
    for lake, kind, convert in ((text, pa.string(), str), (integers, pa.int32(), int)):
        events = [{**row, "category": convert(numbers[row["category"]])} for row in good_events(repeat=12)]
        write_events(lake, 0, events, category=kind)
        write_taxonomy(lake, [(numbers[name], numbers.get(parent, "")) for name, parent in TAXONOMY])
        found = ingest(night(client, write_site(tmp_path / f"site-{kind}", lake), 0))
        checksums.append(open_run(found.head.path).checksums)
    assert checksums[0] == checksums[1]
