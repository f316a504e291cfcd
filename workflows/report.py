"""`ammrank report`: tell who is over-exposed and who is starved."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click
import numpy as np

from ammrank_dask.report import exposure_table, summarise
from storage.errors import BadInput
from storage.reports import PAGE, write_report
from storage.runs import Run, is_finished, open_run
from storage.site import Site
from workflows.options import AmmrankCommand, date_option, show, site_argument
from workflows.score import QUALIFICATIONS_KIND


def write_night_report(site: Site, date: dt.date, qualifications: Run) -> Path:
    """Write the report of a night from what its qualifications keep: nothing else of the site is read."""
    facts, config = qualifications.manifest["facts"], qualifications.manifest["config"]
    counts = facts["policies"][config["policy"]]
    exposure = np.array(counts["exposure"], np.int64)
    clicks = np.array(facts["clicks"], np.int64)
    summary = summarise(
        exposure,
        clicks,
        config["categories"],
        np.array(counts["categories_per_user"], np.int64),
        date=str(date),
        cold_users=facts["cold_users"],
        k=config["k"],
        policy=config["policy"],
    )
    summary["events_of_label_window"] = facts["events_of_label_window"]
    folder = site.report_folder(date)
    write_report(folder, summary, exposure_table(exposure, config["categories"], clicks))
    return folder


@click.command("report", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(site: Path, date: dt.date, as_json: bool) -> None:
    """Write the exposure report of a night that was scored."""
    place = Site(site)
    folder = place.qualifications_folder(date)
    if not is_finished(folder):
        raise BadInput(f"{date} was not scored; run `ammrank score {site} --date {date}` first")
    with place.exclusive():
        written = write_night_report(place, date, open_run(folder, QUALIFICATIONS_KIND))
    show({"date": str(date), "report": str(written / PAGE)}, as_json)


if __name__ == "__main__":
    command()
