"""Find what was published: the qualifications of past nights, the models that scored them, and verdicts of the gate."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ammrank_dask.scoring.qualifications import Qualifications, open_qualifications
from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, read_verdict, verdict_dates
from ammrank_dask.storage.store.manifests import ModelManifest, QualificationsManifest
from ammrank_dask.storage.store.qualifications import KIND
from ammrank_dask.storage.store.runs import Run, is_finished, open_run
from ammrank_dask.workflows.stages.models import find_run

logger = logging.getLogger(__name__)


def find_previous(site: Site, date: dt.date) -> Qualifications | None:
    """Return the qualifications of the last night before a date that was published, None when there are none."""
    nights = [site.qualifications_folder(night) for night in site.published_nights() if night < date]
    kept = [path for path in nights if is_finished(path)]
    return open_qualifications(kept[-1]) if kept else None


def runs_in_use(site: Site, folder: str, role: str, gone: Collection[Path] = ()) -> list[Path]:
    """Return the runs of a folder that kept qualifications were written from; all runs if a manifest is damaged.

    Parameters
    ----------
    gone
        Qualifications that are about to be removed.
    folder, role
        `models` and `model`, or `chances` for both: where they are, and their name among the inputs.
    """
    runs = site.finished_runs(folder)
    try:
        nights = [path for path in site.scored_nights() if path not in gone]
        used = {QualificationsManifest.of(open_run(path, KIND)).inputs.get(role) for path in nights}
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


def find_verdict(site: Site, date: dt.date, model: str) -> Verdict | None:
    """Return what the gate decided at a date, None when another model scored than it chose.

    Such a verdict is left from an earlier try with other input, in which there was something to compare.

    Parameters
    ----------
    model
        The digest of the model that scored.
    """
    verdict = read_verdict(site, date)
    return verdict if verdict is not None and verdict.chosen == model else None


def find_forward(site: Site, date: dt.date, model: Run | None) -> dict[str, Any] | None:
    """Return how sources of lists compared when the last verdict chose a model, and the `date` of that verdict.

    None when no verdict up to the date chose it, or when that compared no sources. Nights that do not train are scored
    by a model that an earlier verdict chose, or by one that was brought from it to new categories.
    """
    digests = _origins(site, model)
    for judged in sorted((day for day in verdict_dates(site) if day <= date), reverse=True):
        verdict = read_verdict(site, judged)
        if verdict is not None and verdict.chosen in digests:
            forward = verdict.facts.get("forward")
            return None if forward is None else {"date": str(judged), **forward}
    return None


def _origins(site: Site, model: Run | None) -> set[str]:
    """Return the digests of a model and of those that it was brought from."""
    digests = set()
    while model is not None:
        digests.add(model.digest)
        before = ModelManifest.of(model).inputs.get("brought_from")
        if before is None:
            break
        digests.add(str(before))
        model = find_run(site, str(before))
    return digests
