"""Lakes that are tables of Iceberg: the rows of one snapshot, as only the metadata of the table tell them."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from begun import World, assert_same_runs, invoke
from lakes import date_of, write_lake, write_site
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from s3 import serve_s3

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.iceberg import read_iceberg
from ammrank_dask.storage.lake.listing import list_days, list_files, table_files
from ammrank_dask.workflows.session.config import load_config

pytestmark = pytest.mark.night


def make_table(folder, lake, *, warehouse=None, by_time=False, **properties):
    """Make a table of the events of a lake: each day in two appends, the first day then written again."""
    folder.mkdir(parents=True, exist_ok=True)
    at = warehouse or folder.as_uri()
    catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=at, **properties)
    catalog.create_namespace("shop")
    table, first = None, None
    for date, of_day in list_days(lake / "events", "date").items():
        rows = pq.read_table(of_day.files()[0], partitioning=None)
        rows = rows.append_column("date", pa.array([date] * rows.num_rows))
        if table is None:
            first = rows
            table = catalog.create_table("shop.events", schema=rows.schema)
            with table.update_spec() as update:
                update.add_field("timestamp", DayTransform(), "day") if by_time else update.add_identity("date")
        table.append(rows.slice(0, 100))
        table.append(rows.slice(100))
    table.overwrite(first, overwrite_filter=f"date == '{date_of(0)}'")
    return table


def folder_of(table):
    return Path(table.location().removeprefix("file://"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("iceberg")
    lake = write_lake(folder / "lake", n_days=2)
    return lake, make_table(folder / "warehouse", lake)


@pytest.fixture
def lake(made):
    """A lake; nobody changes it."""
    return made[0]


@pytest.fixture
def table(made):
    """The folder of a table of the events of the lake, of whose five files three are alive; nobody changes it."""
    return folder_of(made[1])


def test_list_days__of_a_table_are_the_files_of_its_newest_snapshot(made, table):
    days = list_days(table, "date")
    assert list(days) == [date_of(0), date_of(1)]
    assert [len(day.files()) for day in days.values()] == [1, 2]
    assert len(list(table.rglob("*.parquet"))) == 5
    assert {day.version for day in days.values()} == {made[1].current_snapshot().snapshot_id}
    alive = [path for day in days.values() for path in day.files()]
    assert list_files(table) == sorted(alive)
    assert [file.path for file in table_files(table)] == sorted(alive)


def test_list_days__of_an_earlier_file_of_metadata_are_those_of_then(table):
    metadata = sorted((table / "metadata").glob("*.metadata.json"))
    days = list_days(metadata[3], "date")  # created, specified, and the two appends of the first day
    assert [(day, len(of_day.files())) for day, of_day in days.items()] == [(date_of(0), 2)]
    assert all(file.path.is_file() for file in table_files(metadata[3]))


@pytest.mark.parametrize("by_time", [False, True], ids=["a column of dates", "days of the timestamp"])
def test_ingest__a_table_gives_the_state_of_its_rows(lake, table, cluster_file, tmp_path, by_time):
    if by_time:
        table = folder_of(make_table(tmp_path / "warehouse", lake, by_time=True))
    plain = write_site(tmp_path / "plain", lake)
    iceberg = write_site(
        tmp_path / "iceberg", lake, lake={"events": str(table), "date_key": "day" if by_time else "date"}
    )
    for site in (plain, iceberg):
        invoke(cluster_file, "ingest", site.path, "--date", date_of(1))
    assert_same_runs(plain, iceberg, "head")
    manifests = [json.loads(path.read_text()) for path in (iceberg.path / "days").glob("*/*/manifest.json")]
    version = read_iceberg(table).version
    assert [manifest["facts"]["table_version"] for manifest in manifests] == [version, version]


def test_init__takes_a_table(lake, cluster_file, tmp_path):
    events = folder_of(make_table(tmp_path / "warehouse", lake))
    for name in ("users.parquet", "taxonomy.csv"):
        shutil.copy(lake / name, events.parent / name)
    for number, folder in enumerate((events.parent, events)):
        site = tmp_path / f"site-{number}"
        invoke(cluster_file, "init", site, "--lake", folder)
        config = load_config(site / "ammrank.yaml")
        assert (config.lake.date_key, config.lake.layout) == ("date", None)
        assert (config.lake.users is None, config.lake.taxonomy is None) == (number == 1, number == 1)
    invoke(cluster_file, "ingest", tmp_path / "site-0", "--date", date_of(1))


def test_list_days__a_table_that_is_not_by_this_day(table):
    with pytest.raises(BadInput, match=r"Iceberg table at .* is partitioned by date, not by ds; set lake\.date_key"):
        list_days(table, "ds")


def test_list_files__a_folder_inside_a_table(table):
    with pytest.raises(BadInput, match=r"is a table of Iceberg .*; name the table itself"):
        list_files(table / "data")


def test_read_iceberg__says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(BadInput, match=r"is a table of Iceberg; install .* `pip install 'ammrank-dask\[iceberg\]'`"):
        read_iceberg(table)


def own_table(lake, tmp_path):
    """Return a table that a test may change, and a site on it."""
    table = make_table(tmp_path / "warehouse", lake)
    return table, write_site(tmp_path / "site", lake, lake={"events": str(folder_of(table))})


def refused(site, cluster_file, sentence):
    said = invoke(cluster_file, "ingest", site.path, "--date", date_of(1), exit_code=65)
    assert sentence in said
    assert said.count("\n") == 1


def test_ingest__a_table_that_is_not_whole_is_refused(lake, cluster_file, tmp_path):
    table, site = own_table(lake, tmp_path)
    gone = list_files(folder_of(table))[0]
    data = gone.read_bytes()
    gone.unlink()
    refused(site, cluster_file, f"names {gone.name}, which is not there; restore the file, or repair the log")
    gone.write_bytes(data)
    newest = max((folder_of(table) / "metadata").glob("*.metadata.json"))
    twin = newest.with_name(f"{newest.name[:6]}another.metadata.json")
    shutil.copy(newest, twin)
    refused(site, cluster_file, "does not say which version of the Iceberg table is the current one")
    (newest.parent / "version-hint.text").write_text("nothing")
    refused(site, cluster_file, "names nothing, which is not there; restore the file, or repair the hint")
    (newest.parent / "version-hint.text").write_text(twin.name)
    twin.write_text("{}")
    refused(site, cluster_file, "cannot be read")
    (newest.parent / "version-hint.text").write_text(newest.name.removesuffix(".metadata.json"))
    invoke(cluster_file, "ingest", site.path, "--date", date_of(1))
    # A copy has the paths of the table that it is a copy of.
    shutil.copytree(folder_of(table), tmp_path / "copy")
    with pytest.raises(BadInput, match="which is not below it: the table was moved or copied"):
        read_iceberg(tmp_path / "copy")


def test_ingest__a_table_with_a_renamed_column_is_refused(lake, cluster_file, tmp_path):
    table, site = own_table(lake, tmp_path)
    with table.update_schema() as update:
        update.rename_column("category", "kind")
    with table.update_schema() as update:
        update.add_column("category", table.schema().find_type("kind"))
    refused(site, cluster_file, "has columns that were renamed, or dropped and made again")


def test_list_days__of_a_table_that_was_partitioned_by_a_column_that_is_gone(lake, tmp_path):
    table, _ = own_table(lake, tmp_path)
    rows = pq.read_table(lake / "events" / f"date={date_of(1)}", partitioning=None)
    rows = rows.append_column("date", [[date_of(1)] * rows.num_rows])
    with table.update_schema() as update:
        update.add_column("shop", table.schema().find_type("category"))
    with table.update_spec() as update:
        update.add_identity("shop")
    table.append(rows.append_column("shop", [["here"] * rows.num_rows]))
    with table.update_spec() as update:
        update.remove_field("shop")
    with table.update_schema() as update:
        update.delete_column("shop")
    days = list_days(folder_of(table), "date")
    assert {date: len(day.files()) for date, day in days.items()} == {date_of(0): 1, date_of(1): 3}


class DeleteManifestWriter(ManifestWriterV2):
    """Writes manifests of delete files, which pyiceberg reads and does not write."""

    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}


def delete_first_row(table):
    """Delete the first row of a data file by its position, as engines do that merge on read."""
    metadata, io, snapshot = folder_of(table) / "metadata", PyArrowFileIO(), table.current_snapshot()
    victim = next(iter(table.scan().plan_files())).file
    deletes = metadata.parent / "data" / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [victim.file_path], "pos": pa.array([0], pa.int64())}), deletes)
    entry = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=deletes.as_uri(),
        file_format=FileFormat.PARQUET,
        partition=Record(*[victim.partition[0]]),
        record_count=1,
        file_size_in_bytes=deletes.stat().st_size,
    )
    output = io.new_output((metadata / "deletes.avro").as_uri())
    with DeleteManifestWriter(table.spec(), table.schema(), output, snapshot.snapshot_id, "null") as writer:
        writer.add_entry(
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot.snapshot_id, sequence_number=99, data_file=entry
            )
        )
    added = writer.to_manifest_file()
    listing = (metadata / "snap-deletes.avro").as_uri()
    with write_manifest_list(2, io.new_output(listing), snapshot.snapshot_id, None, 99, "null") as writer:
        writer.add_manifests([*snapshot.manifests(io), added])
    newest = max(metadata.glob("*.metadata.json"))
    content = json.loads(newest.read_text())
    for listed in content["snapshots"]:
        if listed["snapshot-id"] == snapshot.snapshot_id:
            listed["manifest-list"] = listing
    (metadata / "00099-deletes.metadata.json").write_text(json.dumps(content))


def test_ingest__a_table_with_deleted_rows_is_refused(lake, cluster_file, tmp_path):
    table, site = own_table(lake, tmp_path)
    delete_first_row(table)
    refused(site, cluster_file, "has delete files, with which its rows are not those of its parquet files")


def test_ingest__a_table_in_a_bucket(lake, cluster_file, tmp_path):
    with serve_s3() as store:
        store.make_bucket("tables")
        table = make_table(
            tmp_path / "catalog",
            lake,
            warehouse="s3://tables/warehouse",
            **{
                "s3.endpoint": f"http://127.0.0.1:{store.port}",
                "s3.region": "us-east-1",
                "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            },
        )
        plain = write_site(tmp_path / "plain", lake)
        url = store.url(table.location().removeprefix("s3://"))
        remote = World(tmp_path / "remote", cluster_file)
        write_site(remote.site.path, lake, lake={"events": url})
        invoke(cluster_file, "ingest", plain.path, "--date", date_of(1))
        remote.run("ingest", "--date", date_of(1))
        assert_same_runs(plain, remote.site, "head")
