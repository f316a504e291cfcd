"""Write a night's report: figures for machines, a table, and a page for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from storage.files import write_json, write_text

SUMMARY, EXPOSURE, PAGE = "summary.json", "exposure.csv", "report.html"
_TEMPLATE = "report.html.j2"


def write_report(folder: str | Path, summary: Mapping[str, Any], exposure: pd.DataFrame) -> None:
    """Write `summary.json`, `exposure.csv` and `report.html` into `folder`, each whole or not at all.

    Parameters
    ----------
    folder
        The report folder of a night; made when it is not there.
    summary
        The content of `summary.json`; the page is drawn from it.
    exposure
        One row per category.
    """
    folder = Path(folder)
    page = render_page(summary)
    write_text(folder / EXPOSURE, exposure.to_csv(index=False, lineterminator="\n"))
    write_text(folder / PAGE, page)
    write_json(folder / SUMMARY, dict(summary))


def render_page(summary: Mapping[str, Any]) -> str:
    """Return the page: everything inline, every name from the data escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(_TEMPLATE).render(summary=summary)
