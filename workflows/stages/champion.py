"""Know the model in use: the one that scored the last published night."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import verdict_dates
from ammrank_dask.storage.store.runs import Run, is_finished, open_run
from ammrank_dask.workflows.ingest import Ingested
from ammrank_dask.workflows.score import find_previous
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.stages.models import MODEL_KIND, fits, model_date


def find_champion(site: Site, date: dt.date) -> Run | None:
    """Return the model that scored the last published night before a date, None before the first one.

    A model that `ammrank train` made by hand is none: it scores only when `ammrank score` is told to, or when a night
    trains the same and the gate lets it through.
    """
    before = find_previous(site, date)
    return None if before is None else _model_of(site, before.path)


def find_published_model(site: Site, date: dt.date) -> Run | None:
    """Return the model that scored the night of a date, if that is published: a rerun of it decides nothing anew."""
    folder = site.qualifications_folder(date)
    return _model_of(site, folder) if site.is_published(date) and is_finished(folder) else None


def _model_of(site: Site, qualifications: Path) -> Run | None:
    digest = open_run(qualifications).manifest["inputs"]["model"]
    models = [open_run(path, MODEL_KIND) for path in site.finished_runs("models")]
    return next((model for model in models if model.digest == digest), None)


def is_due(site: Site, champion: Run | None, config: Config, known: Ingested) -> bool:
    """Tell whether there is no model in use, it is of other features, or the last training is long enough ago.

    A training whose model the gate turned down counts. Only what was known before this night decides, so that a rerun
    decides alike.
    """
    if champion is None:
        return True
    if not fits(champion, config, known.taxonomy):
        return True
    judged = [date for date in verdict_dates(site) if date < known.date]
    last = max([dt.date.fromisoformat(model_date(champion)), *judged])
    return (known.date - last).days >= config.train.every_nights
