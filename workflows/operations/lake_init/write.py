"""Write the config of a new site, and refuse to when there is one or the lake has no clicks."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.atomic import write_private
from ammrank_dask.storage.site.account import is_of_group
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import CATEGORY, PARENT
from ammrank_dask.workflows.operations.lake_init.findings import name_some
from ammrank_dask.workflows.operations.lake_init.places import Places
from ammrank_dask.workflows.session.config import Config, write_config
from ammrank_dask.workflows.session.settings import CATEGORIES_NAME


def refuse_existing(site: Site, places: Places, force: bool) -> None:
    written = [site.config_path, *([] if places.taxonomy else [site.path / CATEGORIES_NAME])]
    for path in written:
        if path.exists() and not force:
            raise BadInput(f"{path} exists; --force replaces it")


def no_clicks(findings: Mapping[str, Any]) -> BadInput:
    if not findings["categories"]["ranked"]:
        return BadInput("no event has a category; name the column with --column category=NAME")
    values = name_some([repr(value) for value, _ in findings["groups_not_mapped"]["top"]]) or "none left"
    return BadInput(
        f"no value of {findings['columns']['group']!r} is known to mean ad clicks (adc), of which rankings are made;"
        f" pass --group adc=VALUE, one of {values}"
    )


def write_site(site: Site, config: Config, categories: Sequence[str] | None) -> None:
    site.path.parent.mkdir(parents=True, exist_ok=True)
    site.path.mkdir(mode=0o700, exist_ok=True)
    with site.exclusive():
        if categories is not None:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(
                [(CATEGORY, PARENT), *((category, "") for category in categories)]
            )
            write_private(site.path / CATEGORIES_NAME, text.getvalue(), for_group=is_of_group(site.path))
        write_private(site.config_path, write_config(config), for_group=is_of_group(site.path))
