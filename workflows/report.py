"""`ammrank report`: tell who is over-exposed and who is starved."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path

import click
import numpy as np

from ammrank_dask.report import exposure_table, summarise
from storage.errors import BadInput
from storage.registry import DAY
from storage.reports import PAGE, write_report
from storage.runs import Run, is_finished, open_run
from storage.site import Site
from workflows.config import Config, load_config
from workflows.mapping import site_taxonomy
from workflows.options import AmmrankCommand, date_option, show, site_argument
from workflows.score import QUALIFICATIONS_KIND


def write_night_report(site: Site, config: Config, date: dt.date, qualifications: Run) -> Path:
    """Write the report of a night from the counts of its qualifications and of the clicks in the label window."""
    facts = qualifications.manifest["facts"]
    categories = site_taxonomy(site, config).categories
    exposure = np.array(facts["exposure"], np.int64)
    days = _label_days(site, config, date)
    clicks = np.zeros(len(categories), np.int64)
    counts: Counter[str] = Counter()
    for day in days:
        for code, count in day.manifest["facts"]["clicks"]:
            clicks[code] += count
        counts.update(day.manifest["facts"]["counts"])
    summary = summarise(
        exposure,
        clicks,
        categories,
        np.array(facts["categories_per_user"], np.int64),
        date=str(date),
        cold_users=facts["cold_users"],
        k=qualifications.manifest["config"]["k"],
    )
    summary["events_of_label_window"] = dict(sorted(counts.items()))
    folder = site.report_folder(date)
    write_report(folder, summary, exposure_table(exposure, categories, clicks))
    return folder


def _label_days(site: Site, config: Config, date: dt.date) -> list[Run]:
    """Return the newest partial of every day of the label window that ends with `date`."""
    newest: dict[str, Run] = {}
    for path in site.finished_runs("days"):
        run = open_run(path, DAY.kind)
        newest[run.manifest["config"]["date"]] = run
    first = date - dt.timedelta(config.label.days - 1)
    return [run for day, run in sorted(newest.items()) if str(first) <= day <= str(date)]


@click.command("report", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(site: Path, date: dt.date, as_json: bool) -> None:
    """Write the exposure report of a night that was scored."""
    place = Site(site)
    config = load_config(place.config_path)
    folder = place.qualifications_folder(date)
    if not is_finished(folder):
        raise BadInput(f"{date} was not scored; run `ammrank score {site} --date {date}` first")
    with place.exclusive():
        written = write_night_report(place, config, date, open_run(folder, QUALIFICATIONS_KIND))
    show({"date": str(date), "report": str(written / PAGE)}, as_json)


if __name__ == "__main__":
    command()
