"""Leave the state of a site for Prometheus: the metrics of a scheduler die with it, and a failed night with them."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ammrank_dask.report.checks import OK
from ammrank_dask.storage.errors import AmmrankError, SiteBusy
from ammrank_dask.storage.lake.events import quarantined_share
from ammrank_dask.storage.objects.atomic import read_json, write_text
from ammrank_dask.storage.objects.folders import is_file, is_folder, stat_of
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.reports import SUMMARY
from ammrank_dask.storage.site.run_log import read_attempt, read_last_end, utc_now, write_last_end
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.manifests import DayManifest
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.workflows.session.options import exit_code_of
from ammrank_dask.workflows.stages.nights import try_site_pages

logger = logging.getLogger(__name__)

METRICS = "metrics.prom"


@contextlib.contextmanager
def keep_metrics(path: Path, first: dt.date) -> Iterator[dict[str, str]]:
    """Write `metrics.prom` when the block is left, however that is; a disk that is full does not fail the night.

    Yields
    ------
    dict
        The `date` of the night, the first one unless the block puts another there.
    """
    night = {"date": str(first)}
    try:
        yield night
    except SiteBusy:  # the run that holds the site writes its own
        raise
    except BaseException as error:
        _leave(Site(path), night["date"], exit_code_of(error))
        try_site_pages(Site(path))  # of a night that ended well they are written already
        raise
    _leave(Site(path), night["date"], 0)


def _leave(site: Site, date: str, code: int) -> None:
    try:
        if not is_folder(site.path):
            return
        write_last_end(site.path, {"date": date, "exit_code": code, "finished": utc_now()})
        write_text(site.path / METRICS, site_metrics(site), durable=False)
    except (OSError, AmmrankError) as error:
        logger.warning("%s was not written: %s", site.path / METRICS, error)


@retried
def site_metrics(site: Site) -> str:
    """Return the metrics of a site in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(_SiteCollector(site))
    return generate_latest(registry).decode()


class _SiteCollector(Collector):
    def __init__(self, site: Site) -> None:
        self.site = site

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from _last_run(self.site)
        yield from _published(self.site)


def _last_run(site: Site) -> Iterator[Metric]:
    """Yield how the last run ended, and what its night was made of."""
    end = read_last_end(site.path)
    if end is None:
        return
    yield _gauge("ammrank_last_run_exit_code", "Exit code of the last `ammrank nightly`", end["exit_code"])
    finished = dt.datetime.fromisoformat(end["finished"]).timestamp()
    yield _gauge("ammrank_last_run_finished_timestamp_seconds", "When the last run ended", finished)
    date = dt.date.fromisoformat(end["date"])
    attempt = read_attempt(site.run_folder(date)) or {}
    if attempt.get("seconds") is not None:
        yield _gauge("ammrank_last_run_seconds", "How long the last night took", attempt["seconds"])
    stages = GaugeMetricFamily("ammrank_last_run_stage_seconds", "How long its stages took", labels=["stage"])
    for stage in attempt.get("stages", []):
        stages.add_metric([stage["name"]], stage["seconds"])
    yield stages
    day = _day_of(site, date)
    if day is not None:
        yield _gauge("ammrank_last_run_events", "Events of the last night's day", day.n_events)
        share = quarantined_share(day.events_by_outcome)
        yield _gauge("ammrank_last_run_quarantined_share", "Share of them that was quarantined", share)


def _published(site: Site) -> Iterator[Metric]:
    """Yield how old the published night is, and what its report says."""
    current = site.current()
    if current is None:
        return
    end = dt.datetime.combine(current.date + dt.timedelta(1), dt.time(), dt.UTC)
    yield _gauge("ammrank_published_timestamp_seconds", "End of the published night's day, UTC", end.timestamp())
    path = site.report_folder(current.date) / SUMMARY
    if "report" not in current.runs or not is_file(path):
        return
    summary = read_json(path)
    checks = GaugeMetricFamily("ammrank_published_check", "1 if the check of the report is ok", labels=["check"])
    for check in summary["checks"]:
        checks.add_metric([check["name"]], float(check["status"] == OK))
    yield checks
    yield _gauge("ammrank_published_users", "Users of the published night", summary["n_users"])
    starved = summary["policies"][summary["policy"]]["starved_categories"]
    yield _gauge("ammrank_published_starved_categories", "Starved categories of the published night", starved)
    model, gate = summary.get("model") or {}, summary.get("gate") or {}
    judged = gate.get("challenger" if gate.get("accepted") else "champion") or {}
    for name, value in (("validation", model.get("validation_error")), ("gate", judged.get("disagreement_error"))):
        if value is not None:
            meaning = f"Disagreement error of the model in use, of the {name} users"
            yield _gauge(f"ammrank_published_{name}_error", meaning, value)


def _day_of(site: Site, date: dt.date) -> DayManifest | None:
    """Return the manifest of a day that was taken in; of several the one that was written last."""
    runs = [path for path in site.finished_runs("days") if path.parent.name == f"date={date}"]
    newest = max(runs, key=lambda path: stat_of(path).st_mtime, default=None)
    return None if newest is None else DayManifest.of(open_run(newest))


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)
