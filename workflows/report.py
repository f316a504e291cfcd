"""`ammrank report`: tell who is over-exposed and who is starved."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from ammrank_dask.exposure import Thresholds
from ammrank_dask.monitor.performance import PERFORMANCE_PAGE
from ammrank_dask.policies import PolicyCounts
from ammrank_dask.tasks import Progress, silent
from storage.errors import BadInput, DamagedStore
from storage.files import digest_of, read_json
from storage.registry import DAY
from storage.reports import EXPOSURE, PAGE, SUMMARY, write_report
from storage.runs import Run, is_finished, open_run
from storage.site import Site
from storage.vocabulary import CLICK_GROUP
from workflows.config import Config
from workflows.ingest import Ingested, ingest
from workflows.options import AmmrankCommand, computing_options, date_option, show, site_argument
from workflows.score import QUALIFICATIONS_KIND, find_previous
from workflows.session import open_session

REPORT_FORMAT = 2
"""Version of summary.json: a report of another version is measured again."""
REALISED_NIGHTS = (1, 7, 30)


def write_night_report(
    client: Any,
    site: Site,
    config: Config,
    known: Ingested,
    qualifications: Run,
    *,
    rebuild: bool = False,
    progress: Progress = silent,
) -> Path:
    """Write the report of a night and return its folder.

    A report that was written from these qualifications is not measured again, unless `rebuild`: the nights before it
    may be gone or others since, and a rerun must give the same bytes.
    """
    summary = None if rebuild else find_summary(site, config, qualifications)
    if summary is None:
        summary = measure_night(client, site, config, known, qualifications, progress=progress)
    return draw_report(site, qualifications, summary)


def find_summary(site: Site, config: Config, qualifications: Run) -> dict[str, Any] | None:
    """Return the summary that was written from these qualifications with these settings, None if there is none."""
    path = site.report_folder(_date_of(qualifications)) / SUMMARY
    if not path.is_file():
        return None
    try:
        summary = read_json(path)
    except DamagedStore:
        return None
    is_same = isinstance(summary, dict) and summary.get("source") == _source(config, qualifications)
    return summary if is_same else None


def measure_night(
    client: Any, site: Site, config: Config, known: Ingested, qualifications: Run, *, progress: Progress = silent
) -> dict[str, Any]:
    """Return the content of `summary.json` of a night."""
    from ammrank_dask.drift import measure_drift
    from ammrank_dask.groups import rank_by_group
    from ammrank_dask.held import held_parts
    from ammrank_dask.report import summarise

    facts, settings = qualifications.manifest["facts"], qualifications.manifest["config"]
    categories, k = settings["categories"], settings["k"]
    parts = held_parts(qualifications)
    policies = {name: PolicyCounts.from_json(found) for name, found in facts["policies"].items()}
    previous = find_previous(site, known.date)
    before = None if previous is None else previous.run
    drift = None
    if before is not None and len(held_parts(before)) == len(parts):
        drift = measure_drift(client, held_parts(before), parts, categories, progress=progress)
        drift["model_changed"] = before.manifest["inputs"]["model"] != qualifications.manifest["inputs"]["model"]
    groups = []
    if known.users is not None:
        groups = rank_by_group(client, parts, known.users, categories, k, progress=progress)
    summary = summarise(
        policies,
        settings["policy"],
        np.array(facts["clicks"], np.int64),
        categories,
        date=str(known.date),
        cold_users=facts["cold_users"],
        k=k,
        n_of={name: found["n"] for name, found in facts["policies"].items() if "n" in found},
        thresholds=Thresholds(**config.report.thresholds.model_dump()),
        before=None
        if before is None
        else (str(_date_of(before)), _counts_like(before, categories, policies[settings["policy"]].exposure.shape[1])),
        drift=drift,
        realised=list(_measure_past(client, site, config, known, len(parts), progress)),
        groups=groups,
    )
    summary["events_of_label_window"] = facts["events_of_label_window"]
    summary["source"] = _source(config, qualifications)
    return summary


def draw_report(site: Site, qualifications: Run, summary: Mapping[str, Any]) -> Path:
    """Write the files of a report from its summary and return their folder."""
    from ammrank_dask.report import exposure_of

    date = _date_of(qualifications)
    folder = site.report_folder(date)
    manifest = qualifications.manifest
    scored = f"../../{site.relative(qualifications.path)}"
    links = {
        SUMMARY: SUMMARY,
        EXPOSURE: EXPOSURE,
        "qualifications by user": f"{scored}/by_user/",
        "their manifest": f"{scored}/manifest.json",
    }
    if site.run_folder(date).is_dir():  # a whole night: it leaves these when it ends
        run = f"../../{site.relative(site.run_folder(date))}"
        links |= {"run.json": f"{run}/run.json", "log": f"{run}/log.jsonl", "work of the cluster": PERFORMANCE_PAGE}
    facts = {
        "qualifications": qualifications.digest,
        **{name: str(found) for name, found in manifest["inputs"].items() if found is not None},
        **manifest["versions"],
    }
    about = {"links": links, "facts": facts}
    write_report(folder, summary, exposure_of(summary), about)
    return folder


def _measure_past(
    client: Any, site: Site, config: Config, known: Ingested, n_partitions: int, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yield what became of the qualifications of past nights; without measures where there were none."""
    from ammrank_dask.held import held_parts
    from ammrank_dask.realised import PastNight, measure_realised

    categories = known.taxonomy.categories
    first_cell = config.event_groups.index(CLICK_GROUP) * len(categories)
    for nights in REALISED_NIGHTS:
        date = known.date - dt.timedelta(nights)
        folder = site.qualifications_folder(date)
        days = _days_since(site, known, date) if is_finished(folder) else None
        measures = None
        if days is not None:
            past = open_run(folder, QUALIFICATIONS_KIND)
            parts = held_parts(past)
            if len(parts) == n_partitions:
                night = PastNight(
                    parts,
                    [[day.part(number) for day in days] for number in range(n_partitions)],
                    _popular(past, categories),
                    past.manifest["config"]["k"],
                )
                cells = (first_cell, first_cell + len(categories))
                measures = measure_realised(client, night, categories, cells, progress=progress)
        yield {"nights": nights, "date": str(date), "measures": measures}


def _days_since(site: Site, known: Ingested, date: dt.date) -> list[Run] | None:
    """Return the partials of the days after a date, those that are bridged left out; None when one is gone."""
    runs = []
    for day, digest in known.history:
        if day <= date or digest is None:
            continue
        path = site.day_run(day, digest)
        if not is_finished(path):
            return None
        runs.append(open_run(path, DAY.kind))
    return runs


def _popular(past: Run, categories: Sequence[str]) -> np.ndarray:
    """Return the codes of the k categories that were clicked most when a night was scored."""
    clicks = np.array(past.manifest["facts"]["clicks"], np.int64)
    names = past.manifest["config"]["categories"]
    best = np.argsort(-clicks, kind="stable")[: past.manifest["config"]["k"]]
    chosen = {names[code] for code in best}
    return np.array([code for code, name in enumerate(categories) if name in chosen], np.int64)


def _counts_like(before: Run, categories: Sequence[str], n_ranks: int) -> PolicyCounts:
    """Return the counts of a night over the categories and ranks of another one."""
    settings = before.manifest["config"]
    counts = PolicyCounts.from_json(before.manifest["facts"]["policies"][settings["policy"]])
    code_of = {name: code for code, name in enumerate(settings["categories"])}
    exposure = np.zeros((len(categories), n_ranks), np.int64)
    common = min(n_ranks, counts.exposure.shape[1])
    for code, name in enumerate(categories):
        if name in code_of:
            exposure[code, :common] = counts.exposure[code_of[name], :common]
    return PolicyCounts(exposure, counts.categories_per_user)


def _date_of(qualifications: Run) -> dt.date:
    return dt.date.fromisoformat(qualifications.manifest["config"]["date"])


def _source(config: Config, qualifications: Run) -> str:
    return digest_of([REPORT_FORMAT, qualifications.digest, config.report.model_dump()])


@click.command("report", cls=AmmrankCommand)
@site_argument
@date_option
@click.option("--rebuild", is_flag=True, help="Measure again what was measured before.")
@computing_options
def command(site: Path, date: dt.date, rebuild: bool, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Write the exposure report of a night that was scored."""
    folder = Site(site).qualifications_folder(date)
    if not is_finished(folder):
        raise BadInput(f"{date} was not scored; run `ammrank score {site} --date {date}` first")
    with open_session(site, cluster=cluster, as_json=as_json, quiet=quiet) as job:
        qualifications = open_run(folder, QUALIFICATIONS_KIND)
        summary = None if rebuild else find_summary(job.site, job.config, qualifications)
        if summary is None:
            known = ingest(job.client, job.site, job.config, date, with_lag=False, progress=job.progress)
            summary = measure_night(job.client, job.site, job.config, known, qualifications, progress=job.progress)
        written = draw_report(job.site, qualifications, summary)
    warnings = [check["what"] for check in summary["checks"] if check["status"] == "warn"]
    shown = {"warnings": "; ".join(warnings) or "none", "report": str(written / PAGE)}
    show({"date": str(date), **shown}, as_json)


if __name__ == "__main__":
    command()
