"""`ammrank report`: tell who is over-exposed and who is starved."""

from __future__ import annotations

import datetime as dt
import webbrowser
from pathlib import Path

import click

from ammrank_dask.storage.errors import BadInput, shell_word
from ammrank_dask.storage.site.reports import PAGE
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.qualifications import KIND
from ammrank_dask.storage.store.runs import is_finished, open_run
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.options import AmmrankCommand, computing_options, date_option, show, site_argument
from ammrank_dask.workflows.session.session import open_session
from ammrank_dask.workflows.stages.ingest import ingest
from ammrank_dask.workflows.stages.nights import try_site_pages, write_site_pages
from ammrank_dask.workflows.stages.report import draw_report, find_summary, measure_night


@click.command("report", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--rebuild", is_flag=True, help="Measure again, also what is up to date.")
@click.option("--index", is_flag=True, help="Write only the pages of the site, SITE/index.html, without a cluster.")
@click.option("--open", "is_opened", is_flag=True, help="Open the page in a browser.")
@computing_options
def command(
    site: Path, date: dt.date, rebuild: bool, index: bool, is_opened: bool, cluster: str | None, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Write the exposure report of a scored night."""
    if index:
        load_config(Site(site).config_path)
        page = write_site_pages(Site(site))
        show({"page": str(page)}, as_json)
        if is_opened:
            _open_page(page)
        return
    folder = Site(site).qualifications_folder(date)
    if not is_finished(folder):
        raise BadInput(f"{date} was not scored; run `ammrank score {shell_word(site)} --date {date}` first")
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        qualifications = open_run(folder, KIND)
        summary = None if rebuild else find_summary(job.site, job.config, qualifications)
        if summary is None:
            night = job.night(date)
            summary = measure_night(night, ingest(night, with_lag=False), qualifications)
        written = draw_report(job.site, job.config, qualifications, summary, is_published=job.site.is_published(date))
        try_site_pages(job.site)
    warnings = [check["what"] for check in summary["checks"] if check["status"] == "warn"]
    printed = {"warnings": "; ".join(warnings) or "none", "report": str(written / PAGE)}
    show({"date": str(date), **printed}, as_json)
    if is_opened:
        _open_page(written / PAGE)


def _open_page(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        click.echo(f"no browser was found; open {page} yourself", err=True)


if __name__ == "__main__":
    command()
