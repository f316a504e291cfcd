"""What the dashboard is told of earlier nights."""

import datetime as dt

from ammrank_dask.storage.objects.atomic import write_json
from ammrank_dask.storage.site.reports import SUMMARY
from ammrank_dask.storage.site.run_log import write_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import finish_run, start_run
from ammrank_dask.workflows.session.night import last_nights

MEASURES = {"starved_categories": 2, "coverage": 0.9, "gini": 0.4, "slots": 10}


def write_night(site, date, seconds):
    attempt = {"date": str(date), "status": "done", "seconds": seconds}
    write_attempt(site.run_folder(date), {**attempt, "stages": [{"name": "ingest", "seconds": seconds}]})


def test_last_nights__joins_run_report_and_model(tmp_path):
    site = Site(tmp_path)
    first, second, third = (dt.date(2026, 3, day) for day in (5, 6, 7))
    for date, seconds in ((first, 3.0), (second, 4.0), (third, 5.0)):
        write_night(site, date, seconds)
    folder = site.report_folder(second)
    folder.mkdir(parents=True)
    summary = {"n_users": 7, "policy": "user_top_k", "policies": {"user_top_k": MEASURES}}
    write_json(folder / SUMMARY, summary)
    model = site.run("models", first, "abc")
    site.begin([model])
    start_run(model, 0)
    facts = {"training": {"validation_error": 0.25}}
    finish_run(model, "model", "abc", 0, config={"date": str(first)}, inputs={}, counts=facts)
    common = {"status": "done"}
    assert last_nights(site, third) == [
        {"date": "2026-03-05", **common, "seconds": 3.0, "stages": {"ingest": 3.0}, "validation_error": 0.25},
        {"date": "2026-03-06", **common, "seconds": 4.0, "stages": {"ingest": 4.0}, "users": 7,
         "starved_categories": 2, "coverage": 0.9, "gini": 0.4},
    ]  # fmt: skip
    assert [night["date"] for night in last_nights(site, third, n_nights=1)] == ["2026-03-06"]


def test_last_nights__a_damaged_report_and_no_record_are_left_out(tmp_path):
    site = Site(tmp_path)
    date = dt.date(2026, 3, 5)
    assert last_nights(site, date) == []
    write_night(site, date, 3.0)
    folder = site.report_folder(date)
    folder.mkdir(parents=True)
    (folder / SUMMARY).write_text("{")
    (night,) = last_nights(site, dt.date(2026, 3, 6))
    assert "users" not in night


def test_last_nights__a_damaged_model_is_left_out(tmp_path):
    site = Site(tmp_path)
    date = dt.date(2026, 3, 5)
    write_night(site, date, 3.0)
    for number, content in enumerate(("{", "{}", None)):
        model = site.run("models", date, f"abc{number}")
        site.begin([model])
        start_run(model, 0)
        facts = {"training": {"validation_error": 0.25}}
        finish_run(model, "model", "abc", 0, config={"date": str(date)}, inputs={}, counts=facts)
        if content is not None:
            (model / "manifest.json").write_text(content)
    (night,) = last_nights(site, dt.date(2026, 3, 6))
    assert night["validation_error"] == 0.25
