"""Find the verdicts of the gate that a night was scored by."""

from __future__ import annotations

import datetime as dt
from typing import Any

from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, read_verdict, verdict_dates
from ammrank_dask.storage.store.manifests import ModelManifest
from ammrank_dask.storage.store.runs import Run
from ammrank_dask.workflows.stages.models import find_run


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
