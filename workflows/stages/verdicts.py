"""Find the verdict of the gate that a night was scored by."""

from __future__ import annotations

import datetime as dt

from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.verdicts import Verdict, read_verdict


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
