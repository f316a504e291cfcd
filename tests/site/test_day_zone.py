"""Day folders of another zone than UTC: a night ends at midnight there."""

import json

import pytest
from click.testing import CliRunner
from lakes import At, date_of, good_events, write_events, write_lake, write_site

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import check_config, load_config
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import ingest

N_DAYS = 2


def write_shifted(path, hours):
    """Write a lake whose days begin so many hours after midnight UTC."""
    lake = write_lake(path, n_days=N_DAYS)
    for day in range(N_DAYS):
        events = [{**row, "timestamp": At(row["timestamp"] + hours)} for row in good_events(repeat=12)]
        write_events(lake, day, events)
    return lake


@pytest.mark.parametrize(("zone", "hours"), [("Asia/Tokyo", -9), ("America/Los_Angeles", 8), ("Asia/Kolkata", -5.5)])
def test_ingest__local_days_give_the_state_of_days_in_utc(client, tmp_path, zone, hours):
    expected = ingest_all(client, write_site(tmp_path / "utc", write_shifted(tmp_path / "utc-lake", 0)))
    site = write_site(tmp_path / "local", write_shifted(tmp_path / "lake", hours), lake={"day_zone": zone})
    assert ingest_all(client, site) == expected


def ingest_all(client, site):
    head = ingest(Night(client, site, load_config(site.config_path), date_of(N_DAYS - 1))).head
    return open_run(head.path).checksums


def test_ingest__local_evenings_are_after_the_night_without_their_zone(client, tmp_path):
    site = write_site(tmp_path / "local", write_shifted(tmp_path / "lake", 8))
    with pytest.raises(BadInput, match="timestamp_after_night"):
        ingest_all(client, site)


def test_ingest__another_zone_asks_for_a_rebuild(client, tmp_path):
    lake = write_shifted(tmp_path / "lake", -9)
    ingest_all(client, write_site(tmp_path / "site", lake, lake={"day_zone": "Asia/Tokyo"}))
    with pytest.raises(BadInput, match=r"lake\.day_zone was 'Asia/Tokyo' and is now 'UTC'.*--rebuild"):
        ingest_all(client, write_site(tmp_path / "site", lake))


def test_check_config__a_zone_that_does_not_exist():
    with pytest.raises(BadInput, match=r"lake\.day_zone: 'Asia/Tokio' is not a time zone, for example UTC or"):
        check_config({"lake": {"day_zone": "Asia/Tokio"}}, "test")


@pytest.mark.parametrize(("hours", "zone"), [(0, "UTC"), (-9, "Etc/GMT-9"), (8, "Etc/GMT+8")])
def test_init__guesses_the_zone_of_the_days(cluster_file, tmp_path, hours, zone):
    lake = write_shifted(tmp_path / "lake", hours)
    # An event in the first and the last hour of a local day: the times fill the day.
    for day in range(N_DAYS):
        edges = [{**row, "timestamp": At(hour + hours)} for row in good_events()[:2] for hour in (0.1, 23.9)]
        write_events(lake, day, edges, file="edges.parquet")
    arguments = ["--lake", str(lake), "--cluster", str(cluster_file), "--quiet", "--json"]
    result = CliRunner().invoke(ammrank, ["init", str(tmp_path / "site"), *arguments])
    assert result.exit_code == 0, result.output
    assert load_config(tmp_path / "site" / "ammrank.yaml").lake.day_zone == zone
    guessed = [remark for remark in json.loads(result.stdout)["guessed"] if remark.startswith("lake.day_zone")]
    assert len(guessed) == (zone != "UTC")
