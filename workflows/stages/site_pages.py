"""Write the pages of a site: `index.html`, `categories.html`, and what they carry on, `history.json`."""

from __future__ import annotations

import logging
from pathlib import Path

from ammrank_dask.report.site_page import render_categories_page, render_site_page
from ammrank_dask.storage.objects.atomic import write_text
from ammrank_dask.storage.objects.folders import is_file
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.stages.nights import keep_history, read_nights

logger = logging.getLogger(__name__)

INDEX, CATEGORIES = "index.html", "categories.html"


def write_site_pages(site: Site) -> Path:
    """Write the pages of a site and return the path of the first."""
    nights = read_nights(site)
    keep_history(site, nights)
    write_text(site.path / CATEGORIES, render_categories_page(nights), durable=False)
    write_text(site.path / INDEX, render_site_page(nights), durable=False)
    return site.path / INDEX


def try_site_pages(site: Site) -> None:
    """Write the pages of a site, if it is one; whatever goes wrong is logged and never changes what a night came to."""
    if not is_file(site.config_path):
        return
    try:
        write_site_pages(site)
    except Exception as error:  # the night is over; a page is no reason to call it failed
        logger.warning("%s was not written: %s", site.path / INDEX, type(error).__name__)
