"""`ammrank export`: the lists of a night for other systems."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import click

from ammrank_dask.storage.errors import BadInput, shell_word
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.exports import FORMS, export_lists, save_export
from ammrank_dask.storage.store.qualifications import KIND, qualification_parts
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.options import DATE, AmmrankCommand, LocalPath, show, site_argument


class _Form(click.Choice[str]):
    """A format; of one that earlier versions wrote it is said how to get it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in ("avro", "redis"):
            self.fail(f"{value} is not written by this command; docs/consumers.md has a recipe that does", param, ctx)
        return super().convert(value, param, ctx)


@click.command("export", cls=AmmrankCommand)
@site_argument
@click.option("--date", type=DATE, help="The night.  [default: the published one]")
@click.option("--format", "form", type=_Form(FORMS), default=FORMS[0], show_default=True, help="In CSV lists are JSON.")
@click.option("--raw", is_flag=True, help="CSV: do not put a ' before string ids that begin with =, +, - or @.")
@click.option("--out", type=LocalPath(dir_okay=False, path_type=Path), help="The file.  [default: -, standard output]")
@click.option("--json", "as_json", is_flag=True, help="With --out: print one JSON object instead of text.")
def command(site: Path, date: dt.date | None, form: str, raw: bool, out: Path | None, as_json: bool) -> None:
    """Write the lists of a published night for other systems, one line per user.

    Users are by partition and id: a night always gives the same bytes. One partition is in memory at a time.
    """
    if out == Path("-"):
        out = None
    if as_json and out is None:
        raise click.UsageError("--json needs --out: without it the lists themselves are printed")
    place = Site(site)
    night = _choose_night(place, date)
    parts = qualification_parts(open_run(place.qualifications_folder(night), KIND))
    chunks = export_lists(parts, form, escape_formulas=not raw)
    if out is None:
        for chunk, _ in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        return
    if not out.absolute().parent.is_dir():
        raise BadInput(f"--out must be in a folder that exists, {out.absolute().parent} does not")
    show({"date": str(night), "users": save_export(out.resolve(), chunks), "file": str(out)}, as_json)


def _choose_night(site: Site, date: dt.date | None) -> dt.date:
    """Return the night to write: the newest, or the one that is asked for, if it was published."""
    nights = [night for night in site.published_nights() if site.qualifications_folder(night).is_dir()]
    if not nights:
        again = f"ammrank nightly {shell_word(site.path)}"
        raise BadInput(f"no lists are published at {site.path}; run `{again}` until a night has trained a model")
    if date is None:
        return nights[-1]
    if date not in nights:
        raise BadInput(f"the night of {date} is not published at {site.path}; kept are {nights[0]} to {nights[-1]}")
    return date


if __name__ == "__main__":
    command()
