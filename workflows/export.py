"""`ammrank export`: the lists of a night as text for other systems."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import click

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.qualifications import KIND, qualification_parts
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.storage.store.user_lines import CSV, JSON_LINES, save_lines, write_user_lines
from ammrank_dask.workflows.session.options import DATE, AmmrankCommand, show, site_argument


@click.command("export", cls=AmmrankCommand)
@site_argument
@click.option("--date", type=DATE, help="The night.  [default: the published one]")
@click.option(
    "--format", "form", type=click.Choice([JSON_LINES, CSV]), default=JSON_LINES, show_default=True,
    help="JSON lines, or CSV with a JSON array in a cell.",
)  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The file.  [default: standard output]")
@click.option("--json", "as_json", is_flag=True, help="With --out: print one JSON object instead of text.")
def command(site: Path, date: dt.date | None, form: str, out: Path | None, as_json: bool) -> None:
    """Write the lists of a published night as text for other systems, one line a user.

    Lines are by partition and user id: a night always gives the same text. One partition is in memory at a time.
    """
    if as_json and out is None:
        raise click.UsageError("--json needs --out: without it the lines themselves are printed")
    place = Site(site)
    night = _choose_night(place, date)
    lines = write_user_lines(qualification_parts(open_run(place.qualifications_folder(night), KIND)), form)
    if out is None:
        for chunk in lines:
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        return
    if not out.absolute().parent.is_dir():
        raise BadInput(f"--out must be in a folder that exists, {out.absolute().parent} does not")
    n_lines = save_lines(out, lines)
    show({"date": str(night), "users": n_lines - (form == CSV), "file": str(out)}, as_json)


def _choose_night(site: Site, date: dt.date | None) -> dt.date:
    """Return the night to write: the newest, or the one that is asked for, if it was published."""
    nights = [night for night in site.published_nights() if site.qualifications_folder(night).is_dir()]
    if not nights:
        raise BadInput(f"nothing is published at {site.path}; run `ammrank nightly {site.path}` first")
    if date is None:
        return nights[-1]
    if date not in nights:
        raise BadInput(f"the night of {date} is not published at {site.path}; kept are {nights[0]} to {nights[-1]}")
    return date


if __name__ == "__main__":
    command()
