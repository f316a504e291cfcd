"""Describe the input of a night, beside the usual one."""

from __future__ import annotations

import datetime as dt
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ammrank_dask.report.input_checks import NIGHTS, describe_day, usual_input
from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.lake.events import CAPPED, QUARANTINED
from ammrank_dask.storage.lake.taxonomy import Taxonomy, find_similar
from ammrank_dask.storage.objects.atomic import read_json
from ammrank_dask.storage.site.reports import SUMMARY, check_report
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import DayManifest
from ammrank_dask.storage.store.registry import DAY
from ammrank_dask.storage.store.runs import is_finished, open_run
from ammrank_dask.workflows.session.night import Night
from ammrank_dask.workflows.stages.ingest import Ingested, recode_counts

logger = logging.getLogger(__name__)


def describe_input(night: Night, ingested: Ingested, model_date: str | None) -> dict[str, Any]:
    """Return what came in since the last published night, what is usual, and how many nights old the model is.

    A day that came in for a night on hold is in the state of this one, too.
    """
    published = [date for date in night.site.published_nights() if date < night.date]
    after = max([*published[-1:], night.date - dt.timedelta(NIGHTS)]) if published else night.date - dt.timedelta(1)
    groups, categories = night.config.event_groups, ingested.taxonomy.categories
    days, unknown = [], set[str]()
    for day, digest in ingested.history:
        if digest is None or day <= after or not is_finished(night.site.day_run(day, digest)):
            continue
        run = ingested.earlier.recode(open_run(night.site.day_run(day, digest), DAY.kind))
        manifest = DayManifest.of(run)
        if manifest.events_by_group is None:  # of an earlier version, which counted less
            continue
        outcomes = manifest.events_by_outcome
        unknown |= set(manifest.unknown_categories) - set(ingested.taxonomy.code_of)
        days.append(
            describe_day(
                str(day),
                events=manifest.n_events,
                groups={group: manifest.events_by_group.get(code, 0) for code, group in enumerate(groups)},
                users=manifest.n_users,
                quarantined=sum(outcomes.get(reason, 0) for reason in QUARANTINED.values()),
                late=manifest.n_late,
                capped=outcomes.get(CAPPED, 0),
                heaviest=manifest.heaviest,
                clicks={categories[code]: count for code, count in recode_counts(run, manifest.clicks).items()},
            )
        )
    age = None if model_date is None else (night.date - dt.date.fromisoformat(model_date)).days
    before = _last_days(night.site, published, ingested.taxonomy)
    similar = find_similar(ingested.taxonomy.present_codes, unknown)
    return {
        "days": days,
        "usual": usual_input(before),
        "model_age": age,
        **({"similar_categories": [list(pair) for pair in similar]} if similar else {}),
    }


def _last_days(site: Site, published: list[dt.date], taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """Return what came in on the days of the last published nights, as their reports have it, by the names of now."""
    days = []
    for date in published[-NIGHTS:]:
        folder = site.report_folder(date)
        try:
            check_report(folder, [SUMMARY])
            intake = read_json(folder / SUMMARY).get("input")
        except DamagedStore as error:
            logger.warning("the input of %s is not compared with: %s", date, error)
            continue
        days += [
            {**day, "clicks": clicks_by_name_now(day["clicks"], taxonomy)}
            for day in (intake or {"days": []})["days"]
            if day["date"] == str(date)
        ]
    return days


def clicks_by_name_now(clicks: Mapping[str, int], taxonomy: Taxonomy) -> dict[str, int]:
    """Return clicks by the names that categories have now, without those of categories that are not ranked any more.

    Examples
    --------
    >>> from ammrank_dask.storage.lake.taxonomy import flat_taxonomy
    >>> taxonomy = flat_taxonomy(["Shoes", "Telefax"], {"Boots": "Shoes", "Sandals": "Shoes", "Telefax": None})
    >>> clicks_by_name_now({"Boots": 2, "Sandals": 3, "Telefax": 4}, taxonomy)
    {'Shoes': 5}
    """
    ranked, by_name = set(taxonomy.categories), Counter[str]()
    for name, count in clicks.items():
        if taxonomy.name_now(name) in ranked:
            by_name[taxonomy.name_now(name)] += count
    return dict(by_name)
