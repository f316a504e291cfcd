"""Day folders of another zone than UTC: a night ends at midnight there."""

import json
import re

import pytest
from begun import invoke
from click.testing import CliRunner
from lakes import At, date_of, good_events, write_events, write_lake, write_site

from ammrank_dask.workflows.cli import ammrank
from ammrank_dask.workflows.session.config import load_config

N_DAYS = 2


def write_shifted(path, hours):
    """Write a lake whose days begin so many hours after midnight UTC."""
    lake = write_lake(path, n_days=N_DAYS)
    for day in range(N_DAYS):
        events = [{**row, "timestamp": At(row["timestamp"] + hours)} for row in good_events(repeat=12)]
        write_events(lake, day, events)
    return lake


def test_ingest__local_evenings_are_after_the_night_without_their_zone(cluster_file, tmp_path):
    site = write_site(tmp_path / "local", write_shifted(tmp_path / "lake", 8))
    said = invoke(cluster_file, "ingest", site.path, "--date", date_of(N_DAYS - 1), exit_code=65)
    assert "timestamp_after_night" in said


def test_ingest__another_zone_asks_for_a_rebuild(cluster_file, tmp_path):
    lake = write_shifted(tmp_path / "lake", -9)
    site = write_site(tmp_path / "site", lake, lake={"day_zone": "Asia/Tokyo"})
    invoke(cluster_file, "ingest", site.path, "--date", date_of(N_DAYS - 1))
    write_site(site.path, lake)
    said = invoke(cluster_file, "ingest", site.path, "--date", date_of(N_DAYS - 1), exit_code=65)
    assert re.search(r"lake\.day_zone was 'Asia/Tokyo' and is now 'UTC'.*--rebuild", said)


def test_nightly__a_zone_that_does_not_exist(world):
    zone = {"lake": {"day_zone": "Asia/Tokio"}}
    world.refused(r"lake\.day_zone: 'Asia/Tokio' is not a time zone, for example UTC or", **zone)


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
