"""Folders of Delta Lake and Iceberg: which of their parquet files are alive, only their own log says."""

import re

import pytest
from click.testing import CliRunner
from lakes import write_lake, write_site

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import list_days, list_files
from ammrank_dask.workflows.cli import ammrank

DELTA = ("_delta_log/00000000000000000000.json", "Delta Lake", "_delta_log")
ICEBERG = ("metadata/v1.metadata.json", "Iceberg", "metadata/*.metadata.json")
kinds = pytest.mark.parametrize(("log", "kind", "sign"), [DELTA, ICEBERG], ids=["delta", "iceberg"])


@pytest.fixture
def lake(tmp_path):
    return write_lake(tmp_path / "lake", n_days=2)


def put(path):
    path.parent.mkdir(parents=True)
    path.write_text("{}")


def sentence(folder, kind, sign):
    return (
        f"{folder} is a table of {kind} (it has {sign}), and parquet files that the table no longer uses would count"
        " too; export one snapshot of it as plain parquet files, and name that copy in lake.events or lake.users"
    )


@kinds
@pytest.mark.parametrize("place", ["events", "."], ids=["in the folder of events", "beside it"])
def test_list_days__refuses_a_table(lake, place, log, kind, sign):
    put(lake / place / log)
    with pytest.raises(BadInput, match=re.escape(sentence(lake / place, kind, sign))):
        list_days(lake / "events", "date")


@kinds
@pytest.mark.parametrize("place", [".", "..", "deep/er"])
def test_list_files__refuses_a_table(tmp_path, place, log, kind, sign):
    users = tmp_path / "outer" / "users"
    (users / "deep" / "er").mkdir(parents=True)
    put(users / place / log)
    with pytest.raises(BadInput, match=re.escape(f"is a table of {kind} (it has {sign})")):
        list_files(users)


def test_list_files__a_folder_of_that_name_alone_is_no_table(lake):
    (lake / "events" / "metadata").mkdir()
    (lake / "events" / "metadata" / "about.json").write_text("{}")
    days = list_days(lake / "events", "date")
    assert [len(list_files(folder)) for folder in days.values()] == [1, 1]


@kinds
def test_ammrank__a_table_exits_65(lake, tmp_path, log, kind, sign):
    site = write_site(tmp_path / "site", lake)
    kwargs = "{processes: false, n_workers: 1, dashboard_address: '127.0.0.1:0'}"
    (site.path / "cluster.yaml").write_text(f"version: 1\nclass: distributed.LocalCluster\nkwargs: {kwargs}\n")
    put(lake / "events" / log)
    ingest = ["ingest", str(site.path), "--date", "2026-01-06", "--quiet"]
    for arguments in (ingest, ["init", str(tmp_path / "new"), "--lake", str(lake)]):
        result = CliRunner().invoke(ammrank, arguments)
        assert result.exit_code == 65, result.output
        assert result.stderr == f"ammrank: {sentence(lake / 'events', kind, sign)}\n"
    assert not (tmp_path / "new").exists()


@kinds
def test_init__refuses_a_table_of_users(lake, tmp_path, log, kind, sign):
    put(lake / "users" / log)
    result = CliRunner().invoke(ammrank, ["init", str(tmp_path / "new"), "--lake", str(lake)])
    assert (result.exit_code, result.stderr) == (65, f"ammrank: {sentence(lake / 'users', kind, sign)}\n")


@kinds
def test_init__refuses_the_data_folder_of_a_table(lake, tmp_path, log, kind, sign):
    (lake / "events").rename(lake / "data")
    put(lake / log)
    result = CliRunner().invoke(ammrank, ["init", str(tmp_path / "new"), "--lake", str(lake)])
    assert (result.exit_code, result.stderr) == (65, f"ammrank: {sentence(lake, kind, sign)}\n")
