"""Tables of Delta Lake and Iceberg: which of their parquet files are alive, only their own log says."""

import json
import re
import sys

import pyarrow.parquet as pq
import pytest
from begun import assert_same_runs, invoke
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from lakes import date_of, replace_by, write_lake, write_site

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.delta import read_snapshot
from ammrank_dask.storage.lake.listing import list_days, list_files
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import load_config

ICEBERG_LOG = "metadata/v1.metadata.json"
THREADS = """version: 1
class: distributed.LocalCluster
kwargs: {processes: false, n_workers: 1, dashboard_address: '127.0.0.1:0'}
"""


@pytest.fixture
def lake(tmp_path):
    return write_lake(tmp_path / "lake", n_days=2)


@pytest.fixture
def table(lake):
    """The events of the lake as a table of Delta Lake, each day in two appends, then compacted: most files are dead."""
    events = lake / "delta"
    for day, of_day in list_days(lake / "events", "date").items():
        rows = pq.read_table(of_day.files()[0], partitioning=None)
        rows = rows.append_column("date", [[day] * rows.num_rows])
        for half in (rows.slice(0, 100), rows.slice(100)):
            write_deltalake(events, half, partition_by=["date"], mode="append")
    DeltaTable(events).optimize.compact()
    return events


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def sentence(folder):
    return (
        f"{folder} is a table of Iceberg (it has metadata/*.metadata.json), and files that the table no longer"
        " uses would count too; name the table itself in lake.events or lake.users"
    )


def test_list_days__refuses_a_folder_of_a_table_of_iceberg(lake):
    put(lake / ICEBERG_LOG)
    with pytest.raises(BadInput, match=re.escape(sentence(lake))):
        list_days(lake / "events", "date")


@pytest.mark.parametrize("place", ["..", "deep/er"])
def test_list_files__refuses_a_folder_of_a_table_of_iceberg(tmp_path, place):
    users = tmp_path / "outer" / "users"
    (users / "deep" / "er").mkdir(parents=True)
    put(users / place / ICEBERG_LOG)
    with pytest.raises(BadInput, match=re.escape("is a table of Iceberg (it has metadata/*.metadata.json)")):
        list_files(users)


def test_list_files__a_folder_of_that_name_alone_is_no_table(lake):
    (lake / "events" / "metadata").mkdir()
    (lake / "events" / "metadata" / "about.json").write_text("{}")
    assert [len(day.files()) for day in list_days(lake / "events", "date").values()] == [1, 1]


def test_list_days__a_delta_table_has_the_files_of_its_newest_snapshot(table):
    days = list_days(table, "date")
    assert list(days) == [date_of(0), date_of(1)]
    alive = {path for day in days.values() for path in day.files()}
    assert len(alive) == 2
    assert len([path for path in table.rglob("*.parquet") if "_delta_log" not in path.parts]) == 6
    assert {day.version for day in days.values()} == {4}
    assert set(list_files(table)) == alive


def test_list_days__a_delta_table_by_groups_with_any_name(lake):
    names = ["page view", "100%", "s/q", "ü"]
    rows = pq.read_table(lake / "events" / f"date={date_of(0)}", partitioning=None).slice(0, 4)
    rows = rows.set_column(1, "group", [names]).append_column("date", [[date_of(0)] * 4])
    write_deltalake(lake / "delta", rows, partition_by=["date", "group"])
    (day,) = list_days(lake / "delta", "date").values()
    files = day.name_files()
    assert sorted(file.group for file in files) == sorted(names)
    assert {file.path for file in files} == set((lake / "delta").glob("*/*/*.parquet"))


def test_list_days__a_folder_inside_a_delta_table(table):
    with pytest.raises(BadInput, match=r"is a folder of the Delta Lake table .*; name the table itself"):
        list_files(table / f"date={date_of(0)}")


def test_list_days__a_delta_table_without_a_column_of_the_day(table):
    with pytest.raises(BadInput, match=r"is partitioned by date, not by ds; set lake\.date_key to the column"):
        list_days(table, "ds")


def test_ingest__a_delta_table_whose_file_is_gone(lake, table, cluster_file, tmp_path):
    site = write_site(tmp_path / "site", lake, lake={"events": str(table)})
    invoke(cluster_file, "ingest", site.path, "--date", date_of(0))
    before = site.current()
    gone = list_days(table, "date")[date_of(1)].files()[0]
    data = gone.read_bytes()
    gone.unlink()
    said = invoke(cluster_file, "ingest", site.path, "--date", date_of(1), exit_code=65)
    assert f"names {gone.name}, which is not there; restore the file, or repair the log" in said
    assert said.count("\n") == 1
    assert site.current() == before
    gone.write_bytes(data)
    plain = write_site(tmp_path / "plain", lake)
    for of_site in (site, plain):
        invoke(cluster_file, "ingest", of_site.path, "--date", date_of(1))
    assert_same_runs(site, plain, "head")


def test_list_days__a_delta_table_whose_log_is_broken(table):
    for path in (table / "_delta_log").iterdir():
        path.write_text("{")
    with pytest.raises(BadInput, match=r"the log of the Delta Lake table at .* cannot be read"):
        list_days(table, "date")


def test_list_days__a_delta_table_with_deletion_vectors(table):
    first = table / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    lines = [json.dumps({"protocol": protocol} if "protocol" in action else action) for action in actions]
    first.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadInput, match="uses deletionVectors, with which its rows are not those of its parquet files"):
        list_days(table, "date")


def test_read_snapshot__says_what_to_install(table, monkeypatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(BadInput, match=r"is a table of Delta Lake; install .* `pip install 'ammrank-dask\[delta\]'`"):
        read_snapshot(table)


def test_ammrank__init_takes_a_delta_table(lake, table, tmp_path, cluster_file):
    for path in (lake / "events").rglob("*.parquet"):
        path.unlink()
    for folder in sorted((lake / "events").rglob("*"), reverse=True):
        folder.rmdir()
    (lake / "events").rmdir()
    table.rename(lake / "events")
    arguments = ["init", str(tmp_path / "new"), "--lake", str(lake), "--cluster", str(cluster_file), "--quiet"]
    result = CliRunner().invoke(ammrank, arguments)
    assert result.exit_code == 0, result.output
    assert load_config(tmp_path / "new" / "ammrank.yaml").lake.date_key == "date"


@pytest.mark.timeout(20, method="thread")
@pytest.mark.parametrize("name", ["_last_checkpoint", "00000000000000000099.json"])
def test_list_days__pipe_in_the_log_of_a_delta_table_is_named(table, name):
    replace_by(table / "_delta_log" / name, "fifo")
    with pytest.raises(BadInput, match=f"{table / '_delta_log' / name} must be a regular file, found a named pipe"):
        list_days(table, "date")


@pytest.mark.timeout(20, method="thread")
@pytest.mark.parametrize("name", ["version-hint.text", "v1.metadata.json", "snap-1.avro"])
def test_list_days__pipe_in_the_metadata_of_a_table_of_iceberg_is_named(lake, name):
    put(lake / "events" / ICEBERG_LOG)
    path = lake / "events" / "metadata" / name
    replace_by(path, "fifo")
    with pytest.raises(BadInput, match=f"{path} must be a regular file, found a named pipe"):
        list_days(lake / "events", "date")


@pytest.mark.parametrize("place", ["events", "users"])
def test_ammrank__a_table_of_iceberg_without_metadata_exits_65(lake, tmp_path, place):
    put(lake / place / ICEBERG_LOG)
    (lake / "users.parquet").unlink()
    site = write_site(tmp_path / "site", lake, lake={"users": str(lake / "users")} if place == "users" else {})
    (site.path / "cluster.yaml").write_text(THREADS)
    for arguments in (
        ["ingest", str(site.path), "--date", "2026-01-06", "--quiet"],
        ["init", str(tmp_path / "new"), "--lake", str(lake)],
    ):
        result = CliRunner().invoke(ammrank, arguments)
        assert result.exit_code == 65, result.output
        assert f"the metadata of the Iceberg table at {lake / place} cannot be read" in result.stderr
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()
