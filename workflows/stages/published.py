"""Know what was published: the qualifications of past nights, and the models that scored them."""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path

from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications
from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import QualificationsManifest
from ammrank_dask.storage.store.qualifications import KIND
from ammrank_dask.storage.store.runs import Run, is_finished, open_run
from ammrank_dask.workflows.stages.models import find_run

logger = logging.getLogger(__name__)


def find_previous(site: Site, date: dt.date) -> Qualifications | None:
    """Return the qualifications of the last night before a date that was published, None when there are none."""
    nights = [site.qualifications_folder(night) for night in site.published_nights() if night < date]
    kept = [path for path in nights if is_finished(path)]
    return open_qualifications(kept[-1]) if kept else None


def runs_in_use(site: Site, folder: str, role: str) -> list[Path]:
    """Return the runs of a folder that kept qualifications were written from; all runs if a manifest is damaged.

    Parameters
    ----------
    folder, role
        `models` and `model`, or `chances` for both: where they are, and their name among the inputs.
    """
    runs = site.finished_runs(folder)
    try:
        used = {QualificationsManifest.of(open_run(path, KIND)).inputs.get(role) for path in site.scored_nights()}
        return [path for path in runs if open_run(path).digest in used]
    except DamagedStore as error:
        logger.warning("all %s are kept: %s", folder, error)
        return runs


def find_champion(site: Site, date: dt.date) -> Run | None:
    """Return the model that scored the last published night before a date, None before the first one.

    A model that `ammrank train` made by hand is none: it scores only when `ammrank score` is told to, or when a night
    trains the same and it passes the promotion check.
    """
    before = find_previous(site, date)
    return None if before is None else _model_of(site, before.path)


def find_published_model(site: Site, date: dt.date) -> Run | None:
    """Return the model that scored the night of a date, if that is published: a rerun of it decides nothing anew."""
    folder = site.qualifications_folder(date)
    return _model_of(site, folder) if site.is_published(date) and is_finished(folder) else None


def _model_of(site: Site, qualifications: Path) -> Run | None:
    return find_run(site, QualificationsManifest.of(open_run(qualifications)).model)
