"""The mapping of flights to a lake, by hand on a few made-up flights."""

import csv

import pandas as pd
import pyarrow.parquet as pq
import pytest

from benchmarks import flights
from benchmarks.flights import list_flights, list_parents


@pytest.fixture
def tables():
    """Plane N1 flies twice to BOS on a day and once on the next; one flight was cancelled, one has no plane."""
    rows = [
        ("N1", "JFK", "BOS", 517.0, 1, "2013-01-01T10:00:00Z", 15),
        ("N1", "LGA", "BOS", 900.0, 2, "2013-01-01T14:00:00Z", 0),
        ("N1", "EWR", "BOS", 517.0, 3, "2013-01-02T10:00:00Z", 15),
        ("N2", "EWR", "SJU", 30.0, 4, "2013-01-02T05:00:00Z", 30),
        ("N2", "EWR", "BOS", None, 5, "2013-01-02T06:00:00Z", 30),
        (None, "EWR", "ORD", 30.0, 6, "2013-01-02T05:00:00Z", 30),
    ]
    names = ["tailnum", "origin", "dest", "dep_time", "flight", "time_hour", "minute"]
    airports = pd.DataFrame({"faa": ["BOS", "ORD"], "tzone": ["America/New_York", "America/Chicago"]})
    return {"flights": pd.DataFrame(rows, columns=names), "airports": airports}


def test_list_flights__clicks_once_a_plane_day_and_destination(tables):
    found = list_flights(tables["flights"])
    times = found["timestamp"].dt.strftime("%d %H:%M")
    assert sorted(zip(found["user_id"], found["group"], found["node"], times, strict=True)) == [
        ("N1", "adc", "BOS", "01 10:15"), ("N1", "adc", "BOS", "02 10:15"),
        ("N1", "olc", "BOS", "01 14:00"),
        ("N1", "pv", "BOS", "01 10:15"), ("N1", "pv", "BOS", "01 14:00"), ("N1", "pv", "BOS", "02 10:15"),
        ("N1", "slc", "BOS", "01 10:15"), ("N1", "sq", "BOS", "02 10:15"),
        ("N2", "adc", "SJU", "02 05:30"), ("N2", "pv", "SJU", "02 05:30"), ("N2", "sq", "SJU", "02 05:30"),
    ]  # fmt: skip


def test_list_parents__has_a_place_for_airports_without_a_zone(tables):
    assert list_parents(tables, pd.Series(["SJU", "BOS", "BOS"])) == {
        "America/New_York": "", "BOS": "America/New_York", "SJU": "elsewhere", "elsewhere": "",
    }  # fmt: skip


def test_build_lake__has_days_and_taxonomy_and_no_users(tables, tmp_path, monkeypatch):
    monkeypatch.setattr(flights, "load_tables", lambda: tables)
    lake = flights.build_lake(tmp_path / "lake")
    assert sorted(path.name for path in (lake / "events").iterdir()) == ["date=2013-01-01", "date=2013-01-02"]
    second = pq.read_table(lake / "events" / "date=2013-01-02" / "part-00000.parquet").to_pylist()
    assert [(row["user_id"], row["group"], row["category"]) for row in second] == [
        ("N2", "adc", "SJU"), ("N2", "pv", "SJU"), ("N2", "sq", "SJU"),
        ("N1", "adc", "BOS"), ("N1", "pv", "BOS"), ("N1", "sq", "BOS"),
    ]  # fmt: skip
    with open(lake / "taxonomy.csv", newline="") as file:
        assert [row["category"] for row in csv.DictReader(file) if not row["parent"]] == [
            "America/New_York",
            "elsewhere",
        ]
    assert not (lake / "users.parquet").exists()
    monkeypatch.setattr(flights, "load_tables", lambda: pytest.fail("the lake is there already"))
    assert flights.build_lake(lake) == lake
