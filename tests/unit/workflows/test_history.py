"""What the dashboard is told of earlier nights."""

import datetime as dt

from ammrank_dask.storage.site.run_log import write_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.night import usual_seconds


def write_night(site, date, **seconds):
    stages = [{"name": name, "seconds": seconds} for name, seconds in seconds.items()]
    write_attempt(site.run_folder(date), {"date": str(date), "status": "done", "stages": stages})


def test_usual_seconds__are_of_the_last_night_that_had_the_stage(tmp_path):
    site = Site(tmp_path)
    assert usual_seconds(site, dt.date(2026, 3, 5)) == {}
    write_night(site, dt.date(2026, 3, 5), ingest=3.0, train=9.0)
    write_night(site, dt.date(2026, 3, 6), ingest=4.0)
    write_night(site, dt.date(2026, 3, 7), ingest=5.0)
    (site.path / "runs" / "date=2026-03-01").mkdir()  # a night without a record
    assert usual_seconds(site, dt.date(2026, 3, 7)) == {"ingest": 4.0, "train": 9.0}
    assert usual_seconds(site, dt.date(2026, 3, 7), n_nights=1) == {"ingest": 4.0}
