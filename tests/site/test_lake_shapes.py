"""The same rows in lakes of other shapes: a night has the bytes that a plain lake gives it."""

import datetime as dt
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from begun import CONFIG, LAST, World, assert_same_runs, reverse, tables_of
from deltalake import DeltaTable, write_deltalake
from lakes import TAXONOMY, date_of, event_folder, lake_config, write_site, write_taxonomy
from pyiceberg.catalog.sql import SqlCatalog

from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.config import load_config

pytestmark = pytest.mark.night

NIGHT = LAST - 1
"""The first night of the world that is begun; its site is that of the clean lake."""
GROUP_FOLDERS = {
    "pv": "pageviews",
    "sq": "search_query",
    "slc": "search_clicks",
    "olc": "sponsored_clicks",
    "adv": "impressions",
    "adc": "ad_clicks",
}


@pytest.fixture
def other(begun_world, tmp_path):
    """A copy of the lake, to be given another shape, and no site yet."""
    shutil.copytree(begun_world.lake, tmp_path / "lake")
    return World(tmp_path, begun_world.cluster_file)


def days_of(world):
    """Return the rows of every day by date."""
    folders = {date_of(day): event_folder(world.lake, day) for day in range(LAST + 1)}
    return {date: pq.read_table(folder, partitioning=None) for date, folder in folders.items()}


def write_days(world, change):
    """Write every day again after `change` of its rows."""
    for date, rows in days_of(world).items():
        pq.write_table(change(rows), world.lake / "events" / f"date={date}" / "part-0.parquet")


def run_night(world, **config):
    """Make the site of a world with a config of its own, and run the night by the real command."""
    write_site(world.site.path, world.lake, **CONFIG, **config)
    world.nightly(day=NIGHT)


def assert_same_night(world, clean):
    """Compare state, features, and all tables of the night, byte for byte."""
    assert_same_runs(world.site, clean.site)
    assert tables_of(world.site, date_of(NIGHT)) == tables_of(clean.site, date_of(NIGHT))


@pytest.mark.parametrize(("zone", "hours"), [("America/Los_Angeles", 8), ("Asia/Kolkata", -5.5)])
def test_nightly__days_of_another_zone(other, begun_world, zone, hours):
    shift = pa.scalar(dt.timedelta(hours=hours), pa.duration("us"))
    write_days(other, lambda rows: rows.set_column(3, "timestamp", pc.add(rows["timestamp"], shift)))
    run_night(other, lake={"day_zone": zone})
    assert_same_night(other, begun_world)


def move_days(world, name_of):
    """Give the folders of days other names."""
    for day in range(LAST + 1):
        target = world.lake / "events" / name_of(date_of(day))
        target.parent.mkdir(parents=True, exist_ok=True)
        event_folder(world.lake, day).rename(target)


def split_groups(world, name_of):
    """Write the events of every group into a folder of its own, without a column for it."""
    days = days_of(world)
    shutil.rmtree(world.lake / "events")
    for date, rows in days.items():
        for group, name in GROUP_FOLDERS.items():
            folder = world.lake / "events" / name_of(date, name)
            folder.mkdir(parents=True)
            pq.write_table(rows.filter(pc.field("group") == group).drop(["group"]), folder / "part-0.parquet")


SHAPES = {
    "YYYY/MM/DD": (move_days, lambda date: f"{date:%Y/%m/%d}"),
    "year=YYYY/month=MM/day=DD": (move_days, lambda date: f"year={date.year}/month={date.month}/day={date.day}"),
    "YYYY-MM-DD": (move_days, str),
    "GROUP/YYYY/MM/DD": (split_groups, lambda date, group: f"{group}/{date:%Y/%m/%d}"),
    "GROUP/dt=YYYYMMDD": (split_groups, lambda date, group: f"{group}/dt={date:%Y%m%d}"),
    "date=YYYY-MM-DD/type=GROUP": (split_groups, lambda date, group: f"date={date}/type={group}"),
}


@pytest.mark.parametrize("layout", ["YYYY/MM/DD", "GROUP/dt=YYYYMMDD"])
def test_nightly__folders_that_init_recognises(other, begun_world, layout):
    begin_in_layout(other, layout)
    other.nightly(day=NIGHT)
    assert_same_night(other, begun_world)


@pytest.mark.parametrize("layout", [layout for layout in SHAPES if layout not in ("YYYY/MM/DD", "GROUP/dt=YYYYMMDD")])
def test_ingest__folders_that_init_recognises(other, begun_world, layout):
    begin_in_layout(other, layout)
    other.run("ingest", "--date", date_of(NIGHT))
    assert_same_runs(other.site, begun_world.site, "head")


def begin_in_layout(other, layout):
    """Bring the lake into a layout, and make its site by `init`, which must recognise it."""
    change, name_of = SHAPES[layout]
    change(other, name_of)
    config = init_site(other, f"lake.layout: {layout}")
    assert config.lake.layout == layout
    names = GROUP_FOLDERS if "GROUP" in layout else {group: group for group in GROUP_FOLDERS}
    assert config.groups == {group: [name] for group, name in names.items()}


def init_site(world, guess):
    """Make the site of a world by `init`, which tells a guess, and return its config; then make that a small one."""
    assert guess in world.run("init", "--lake", world.lake)
    config = load_config(world.site.config_path)
    small = lake_config(world.lake, **CONFIG)
    world.configure(**{name: value for name, value in small.items() if name != "lake"})
    return config


def test_nightly__folders_with_another_key_and_dates_without_hyphens(other, begun_world):
    move_days(other, lambda date: f"dt={date:%Y%m%d}")
    assert init_site(other, "lake.date_key: dt").lake.date_key == "dt"
    other.nightly(day=NIGHT)
    assert_same_night(other, begun_world)


def test_nightly__integer_categories_are_the_text_of_their_digits(other, tmp_path):
    numbers = {name: str(10 + number) for number, (name, _) in enumerate(TAXONOMY)}
    write_taxonomy(other.lake, [(numbers[name], numbers.get(parent, "")) for name, parent in TAXONOMY])
    write_days(other, lambda rows: rows.set_column(2, "category", [[numbers[n] for n in rows["category"].to_pylist()]]))
    text = World(tmp_path / "text", other.cluster_file)
    shutil.copytree(other.lake, text.lake)
    write_days(other, lambda rows: rows.set_column(2, "category", rows["category"].cast(pa.int32())))
    for world in (text, other):
        run_night(world)
    assert_same_night(other, text)


def test_nightly__a_delta_table_of_which_most_files_are_dead(other, begun_world):
    table = other.lake / "delta"
    for date, rows in days_of(other).items():
        dated = rows.append_column("date", [[date] * rows.num_rows])
        for half in (dated.slice(0, 100), dated.slice(100)):
            write_deltalake(table, half, partition_by=["date"], mode="append")
    DeltaTable(table).optimize.compact()
    run_night(other, lake={"events": str(table)})
    assert_same_night(other, begun_world)
    days = [open_run(path) for path in other.site.finished_runs("days")]
    assert {run.manifest["facts"]["table_version"] for run in days} == {2 * (LAST + 1)}


class Delta:
    """A table of Delta Lake that grows, and whose files are brought together and cleaned."""

    def __init__(self, folder):
        self.events = self.path = folder / "delta"

    def append(self, rows):
        write_deltalake(self.path, rows, partition_by=["date"], mode="append")

    def compact(self, rows):
        table = DeltaTable(self.path)
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


class Iceberg:
    """The same of Iceberg, where a day is written again."""

    def __init__(self, folder):
        self.catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=(folder / "tables").as_uri())
        self.catalog.create_namespace("shop")
        self.events, self.table = folder / "tables" / "shop" / "events", None

    def append(self, rows):
        if self.table is None:
            self.table = self.catalog.create_table("shop.events", schema=rows.schema)
            with self.table.update_spec() as update:
                update.add_identity("date")
        self.table.append(rows)

    def compact(self, rows):
        self.table.overwrite(reverse(rows), overwrite_filter=f"date == '{rows['date'][0]}'")


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_nightly__a_table_that_grows_and_is_compacted_between_two_nights(kind, other, world):
    table = kind(other.path)
    days = {date: rows.append_column("date", [[date] * rows.num_rows]) for date, rows in days_of(other).items()}
    for date in list(days)[: NIGHT + 1]:
        for half in (days[date].slice(0, 100), days[date].slice(100)):
            table.append(half)
    run_night(other, lake={"events": str(table.events)})
    assert_same_night(other, world)
    for day in (0, NIGHT):
        table.compact(days[date_of(day)])
    table.append(days[date_of(LAST)])
    for one in (other, world):
        assert not {"corrected days", "changed days kept as folded"} & set(one.nightly())
    assert_same_runs(other.site, world.site)
    assert tables_of(other.site, date_of(LAST)) == tables_of(world.site, date_of(LAST))
    versions = {open_run(path).manifest["facts"]["table_version"] for path in other.site.finished_runs("days")}
    assert len(versions) > 1  # a day keeps that of the snapshot in which it was read


def test_init__a_lake_without_ad_views_runs_its_first_night(other):
    write_days(other, lambda rows: rows.filter(pc.field("group") != "adv"))
    other.run("init", "--lake", other.lake)
    config = yaml.safe_load(other.site.config_path.read_text())
    assert config["features"]["groups"] == ["pv", "sq", "slc", "olc"]
    other.configure(**CONFIG, label={"days": 3, "min_categories": 1})
    said = other.run("nightly", "--date", date_of(NIGHT))
    assert "training        30 users" in said
    assert "published       yes" in said
