"""Plan a night from the files on disk: no cluster, no lock, nothing is written."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import copies_target, lake_days, site_taxonomy
from ammrank_dask.workflows.stages.categories import EarlierTaxonomies, shorten
from ammrank_dask.workflows.stages.gate import last_training
from ammrank_dask.workflows.stages.history import fitting_states, folded_days, write_history
from ammrank_dask.workflows.stages.ingest import history_settings, kept_states
from ammrank_dask.workflows.stages.models import find_champion, find_published_model, fits, model_date
from ammrank_dask.workflows.stages.publishing import written_windows
from ammrank_dask.workflows.stages.rerun_check import find_unchanged
from ammrank_dask.workflows.stages.train import too_little_history


def plan_night(site: Site, config: Config, date: dt.date) -> dict[str, Any]:
    """Return what the night of a date would do; raise BadInput where it would be refused before it reads events.

    A day whose files changed since it was folded is found when the night runs: that takes reading them.
    """
    copies_target(site, config)
    plan: dict[str, Any] = {"site": str(site.path), "date": str(date)}
    if find_unchanged(site, config, date) is not None:
        return {**plan, "to do": "nothing: the night is published, and no input changed since"}
    taxonomy = site_taxonomy(site, config)
    kept = kept_states(site)
    earlier = EarlierTaxonomies(site, taxonomy, len(config.event_groups), config.categories)
    settings = history_settings(site, config, date, earlier, kept, written_windows(site, config))
    states = fitting_states(kept, settings)
    folded = {day: digest for day, digest in folded_days(states).items() if day <= date}
    in_lake = [day for day in sorted(lake_days(site, config)) if day <= date]
    history = write_history({day: folded.get(day) or "new" for day in in_lake}, states, settings, date)
    new = [day for day, digest in history if digest == "new"]
    bridged = [day for day, digest in history if digest is None and day not in folded]
    current = site.current()
    return {
        **plan,
        "published now": "nothing" if current is None else str(current.date),
        "days to ingest": _name_days(new),
        "days to bridge": _name_days(bridged),
        "training": _plan_training(site, config, date, taxonomy, len(history)),
        "categories": len(taxonomy.categories),
        "policy": f"{config.score.policy}, {config.score.k} categories per user",
        "holds": shorten(config.publish.hold) if config.publish.hold else "nothing: every night is published",
        "copies": config.publish.to or "none",
    }


def _name_days(days: list[dt.date]) -> str:
    if not days:
        return "none"
    return str(days[0]) if len(days) == 1 else f"{len(days):,}, from {days[0]} to {days[-1]}"


def _plan_training(site: Site, config: Config, date: dt.date, taxonomy: Taxonomy, n_days: int) -> str:
    """Return whether the night would train, and why."""
    if find_published_model(site, date) is not None:
        return "not due: the night is published, and its model scores again"
    reason = too_little_history(config, n_days)
    if reason is not None:
        return f"none: {reason}"
    champion = find_champion(site, date)
    if champion is None:
        return "due: there is no model yet"
    if not fits(champion, config, taxonomy):
        return f"due if the model of {model_date(champion)} cannot be brought to the categories and features of now"
    last, every = last_training(site, date, champion), config.train.every_nights
    if (date - last).days >= every:
        return f"due: the last was {(date - last).days} nights ago, on {last} (train.every_nights {every})"
    unclicked = ModelManifest.of(champion).new_categories
    unless = f", unless {shorten(unclicked)} got first clicks" if unclicked else ""
    return f"not due before {last + dt.timedelta(every)}: the last was on {last} (train.every_nights {every}){unless}"
