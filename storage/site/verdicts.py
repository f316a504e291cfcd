"""Keep what the gate decided: one verdict a date, which says which of two models scores from that night on."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import VerdictManifest
from ammrank_dask.storage.store.runs import finish_run, is_finished, open_run

FOLDER, VERDICT_KIND = "gates", "verdict"


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
    runs = verdict_runs(site, date)
    if not runs:
        return None
    manifest = VerdictManifest.of(open_run(runs[-1], VERDICT_KIND))
    return Verdict(manifest.challenger, manifest.champion, manifest.accepted, manifest.counts)


def write_verdict(site: Site, date: dt.date, verdict: Verdict, config: Mapping[str, Any]) -> None:
    """Write the verdict of a date in place of an older one."""
    before = verdict_runs(site, date)
    digest = digest_of([verdict.champion, verdict.challenger, dict(config), dict(verdict.facts)])
    path = site.run(FOLDER, date, digest)
    if not is_finished(path):
        site.begin([path])
        finish_run(
            path,
            VERDICT_KIND,
            digest,
            [],
            config={"date": str(date), **config},
            inputs={"champion": verdict.champion, "challenger": verdict.challenger},
            counts=verdict.facts,
        )
    site.discard(run for run in before if run != path)


def verdict_runs(site: Site, date: dt.date) -> list[Path]:
    """Return the verdict of a date; there are two for a moment, while one takes the place of the other."""
    return [run for run in site.finished_runs(FOLDER) if run.name.startswith(f"date={date}-")]


def verdict_dates(site: Site) -> list[dt.date]:
    """Return the dates at which the gate compared two models."""
    return sorted({dt.date.fromisoformat(path.name[5:15]) for path in site.finished_runs(FOLDER)})


def rejected_models(site: Site) -> set[str]:
    """Return the digests of the models that the gate turned down."""
    verdicts = [open_run(path, VERDICT_KIND).manifest for path in site.finished_runs(FOLDER)]
    return {verdict["inputs"]["challenger"] for verdict in verdicts if not verdict["facts"]["accepted"]}
