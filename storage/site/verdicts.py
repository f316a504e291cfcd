"""Keep what the gate decided: one verdict a date, which says which of two models scores from that night on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ammrank_dask.storage.objects.atomic import digest_of, swap_folder, temporary_beside
from ammrank_dask.storage.objects.folders import is_folder, make_folder
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import VerdictManifest
from ammrank_dask.storage.store.runs import finish_run, is_finished, open_run, remove_run

VERDICT_KIND = "verdict"


@dataclass(frozen=True)
class Verdict:
    """Whether the model trained at a date may score, and the figures that decided.

    `champion` is None where there was no model before it to compare with.
    """

    challenger: str
    champion: str | None
    accepted: bool
    facts: Mapping[str, Any]

    @property
    def chosen(self) -> str | None:
        """The digest of the model that scores; verdicts of version 0.1.0 always have a champion, and do not name it."""
        digest: str | None = self.facts.get("chosen", self.challenger if self.accepted else self.champion)
        return digest


def read_verdict(site: Site, date: dt.date) -> Verdict | None:
    """Return what the gate decided at a date, None when nothing was compared."""
    path = site.verdict_folder(date)
    if not is_finished(path):
        return None
    manifest = VerdictManifest.of(open_run(path, VERDICT_KIND))
    return Verdict(manifest.challenger, manifest.champion, manifest.accepted, manifest.counts)


def write_verdict(site: Site, date: dt.date, verdict: Verdict, config: Mapping[str, Any]) -> None:
    """Write the verdict of a date in place of an older one."""
    final = site.verdict_folder(date)
    building = temporary_beside(final)
    make_folder(building)
    finish_run(
        building,
        VERDICT_KIND,
        digest_of([verdict.champion, verdict.challenger, dict(config)]),
        0,
        config={"date": str(date), **config},
        inputs={"champion": verdict.champion, "challenger": verdict.challenger},
        counts=verdict.facts,
    )
    swap_folder(building, final)
    if is_folder(building):
        remove_run(building)


def verdict_dates(site: Site) -> list[dt.date]:
    """Return the dates at which the gate compared two models."""
    return [dt.date.fromisoformat(path.name.removeprefix("date=")) for path in site.finished_runs("gates")]


def rejected_models(site: Site) -> set[str]:
    """Return the digests of the models that the gate turned down."""
    verdicts = [open_run(path, VERDICT_KIND).manifest for path in site.finished_runs("gates")]
    return {verdict["inputs"]["challenger"] for verdict in verdicts if not verdict["facts"]["accepted"]}
