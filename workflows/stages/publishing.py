"""Publish a night, or put it on hold: if a check of `publish.hold` warns, it waits until a person releases it.

Copies that `publish.to` asks for are kept like the nights of the site.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ammrank_dask.report.checks import WARN, name_warnings
from ammrank_dask.storage.errors import BadInput, DamagedStore, HeldBack, shell_word
from ammrank_dask.storage.objects.atomic import digest_of, sweep_temporary
from ammrank_dask.storage.objects.folders import is_folder, list_paths, remove
from ammrank_dask.storage.site.day_fingerprints import read_day_rows
from ammrank_dask.storage.site.forgotten import remove_tombstones
from ammrank_dask.storage.site.run_log import HELD, read_attempt, utc_now, write_attempt
from ammrank_dask.storage.site.site import LISTS, LISTS_IN_WORK, Site
from ammrank_dask.storage.site.taxonomies import kept_taxonomies, remove_taxonomies
from ammrank_dask.storage.site.verdicts import FOLDER as VERDICTS
from ammrank_dask.storage.site.verdicts import rejected_models
from ammrank_dask.storage.store.manifests import ModelManifest, RunManifest
from ammrank_dask.storage.store.runs import is_finished, open_run
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import copies_target
from ammrank_dask.workflows.stages.models import runs_in_use

LABELS = {"held_by": "on hold for", "let_through": "released despite"}
"""Facts with another name on the terminal than in JSON."""


INPUT_FOLDERS = ("state", "users")

WINDOWS = "windows"


def publish_night(site: Site, config: Config, date: dt.date, roles: Mapping[str, Path]) -> bool:
    """Make the runs of a night the current ones, copy them, and remove what nobody needs.

    Returns whether they are the newest. A night whose copy failed is published; running it again completes the copy.
    """
    is_current = site.publish(date, roles)
    copy_published(site, config, date)
    nights = old_nights(site, config, date)
    in_use = [*runs_in_use(site, "models", "model", nights), *runs_in_use(site, "chances", "chances", nights)]
    keep = [*roles.values(), *in_use, *models_to_keep(site, config, date)]
    prune(site, config, date, keep, (*INPUT_FOLDERS, "features", "models", "chances"), nights)
    prune_reports(site, config, date)
    return is_current


def hold_back(site: Site, config: Config, date: dt.date, outcome: Mapping[str, Any]) -> None:
    """Raise HeldBack when a check of `publish.hold` warns; a night that is published already is not put on hold.

    Parameters
    ----------
    outcome
        What the night came to, with its `checks`.
    """
    warned = checks_that_hold(config, outcome.get("checks", ()))
    if not warned or site.is_published(date):
        return
    current = site.current()
    before = "nothing is published yet" if current is None else f"the night of {current.date} stays active"
    raise HeldBack(
        f"the night of {date} is on hold for {_describe(warned)}; {before}: look at {outcome['report']}, correct the"
        f" day and run it again, or publish it with `{_command(site, date)}`",
        {**outcome, "published": False, "held_by": [check["name"] for check in warned]},
    )


def checks_that_hold(config: Config, checks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the checks of `publish.hold` that warn."""
    return [check for check in checks if check["name"] in config.publish.hold and check["status"] == WARN]


def publish_held(site: Site, config: Config, date: dt.date, *, anyway: bool) -> dict[str, Any]:
    """Publish a night that is on hold, and return what it came to.

    Raises HeldBack without `anyway`, and BadInput when the night is not on hold or its runs are gone.
    """
    nightly = f"`ammrank nightly {shell_word(site.path)} --date {date}`"
    attempt = read_attempt(site.run_folder(date))
    if site.is_published(date):
        return {"date": str(date), "published": True, "unchanged": True}
    if attempt is None or attempt.get("status") != HELD:
        raise BadInput(f"the night of {date} is not on hold; run {nightly}")
    if not anyway:
        raise HeldBack(attempt["error"]["message"], attempt["facts"])
    roles = {role: site.path / name for role, name in attempt["runs"].items()}
    gone = [path for path in roles.values() if not is_folder(path)]
    current = site.current()
    is_newest = current is None or date > current.date
    if gone and (is_newest or roles["qualifications"] in gone):
        raise BadInput(f"{gone[0]} of the night of {date} is no longer there; run {nightly} again")
    is_current = publish_night(site, config, date, roles)
    outcome = {**attempt["facts"], "published": is_current, "let_through": attempt["facts"]["held_by"]}
    done = {"status": "done", "exit_code": 0, "facts": outcome, "published_anyway": utc_now()}
    write_attempt(site.run_folder(date), {key: value for key, value in attempt.items() if key != "error"} | done)
    return outcome


def describe_outcome(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a night came to as short texts."""
    names = {name: ", ".join(outcome[name]) for name in LABELS if name in outcome}
    texts = {**names, **({"checks": name_warnings(outcome["checks"])} if "checks" in outcome else {})}
    told = {name: value for name, value in outcome.items() if (name, value) != ("nights", 1)}
    return {LABELS.get(name, name.replace("_", " ")): texts.get(name, value) for name, value in told.items()}


def held_nights(site: Site) -> list[dict[str, Any]]:
    """Return the nights after the published one that are on hold, oldest first: `date` and the checks `held_by`."""
    current = site.current()
    attempts = [read_attempt(path) for path in list_paths(site.path / "runs", "date=*")]
    return [
        {"date": attempt["date"], "held_by": attempt["facts"]["held_by"]}
        for attempt in attempts
        if attempt is not None
        and attempt.get("status") == HELD
        and (current is None or attempt["date"] > str(current.date))
    ]


def _describe(checks: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{check['name']} ({check['what']}: {check['value']:.3g}, limit {check['limit']:.3g})" for check in checks
    )


def _command(site: Site, date: dt.date) -> str:
    return f"ammrank publish {site.path} --date {date} --anyway"


def copy_published(site: Site, config: Config, date: dt.date) -> str | None:
    """Copy a published night, move the pointer if it is the newest, and return what is to tell; None without a target.

    The copy before of the same night stays until another night is copied: somebody may be reading it. Copies of nights
    that the site no longer keeps are removed.
    """
    target = copies_target(site, config)
    if target is None or not is_finished(site.qualifications_folder(date)):
        return None
    from ammrank_dask.storage.site.copies import NightFiles, copied_nights, copy_night, point_to  # few sites have any

    night = NightFiles.of(site, date)
    copy_night(night, target)
    if date == max(site.published_nights()):
        point_to(night, target)
    kept = set(site.published_nights())
    for other, folders in copied_nights(target).items():
        if other != date:
            is_kept = other in kept and is_finished(site.qualifications_folder(other))
            own = NightFiles.of(site, other).folder if is_kept else None
            target.delete(key for folder, keys in folders.items() if folder != own for key in keys)
    return f"{target}/{night.folder}"


def prune(
    site: Site, config: Config, date: dt.date, keep: Iterable[Path], folders: Iterable[str], nights: Iterable[Path] = ()
) -> None:
    """Remove partials and quarantined rows older than `keep_days`, scratch, and runs and taxonomies that nothing names.

    It is called after a stage has published what it made, for its own `folders`, while the site is locked: what
    neither `keep` nor what is published names is not in use, finished or not, and so are the `nights` that
    `old_nights` returned. All of them go with one write of ROOT. A date before the published one is a back-fill and
    removes nothing.
    """
    remove(site.scratch)
    if _is_late(site, date):
        return
    oldest, root, kept = date - dt.timedelta(config.days_kept - 1), site.root(), {*keep, *published_runs(site)}
    keys = [*root.kept, *(key for key in root.building if not root.renews(key))]
    gone = [site.path / key for key in keys if key.startswith("days/") and _date_of(key.split("/")[1]) < oldest]
    for folder in folders:
        gone += [site.path / key for key in keys if key.startswith(f"{folder}/") and site.path / key not in kept]
    lists = [night for night in nights if night.parent.name == LISTS]
    site.discard([*gone, *nights], [_date_of(night.name) for night in lists], date)
    for path in list_paths(site.path / "quarantine", "date=*"):
        if _date_of(path.name) < oldest:
            remove(path)
    _prune_taxonomies(site)


def _prune_taxonomies(site: Site) -> None:
    """Remove the taxonomies that neither a kept day or state nor the list of the rows of days names.

    Nothing is removed while a manifest cannot be read, nor while days are listed of which nobody noted the taxonomy.
    """
    kept = kept_taxonomies(site.path)
    if len(kept) < 2:
        return
    named = {of_day.taxonomy for of_day in read_day_rows(site.path).values()}
    try:
        for path in (*site.finished_runs("days"), *site.finished_runs("state")):
            settings = RunManifest.of(open_run(path)).settings
            named |= {settings.get("taxonomy"), settings.get("taxonomy_before", "")}
    except (DamagedStore, BadInput):
        return
    if None not in named:
        remove_taxonomies(site.path, kept - named)


def old_nights(site: Site, config: Config, date: dt.date) -> list[Path]:
    """Return lists, verdicts and windows that are older than the last ones to keep, and lists that were not finished.

    Verdicts stay as long as a report or a model may need them. A back-fill removes nothing.
    """
    if _is_late(site, date):
        return []
    keep, published = config.retention, published_runs(site)
    n_verdicts = max(keep.reports, keep.qualifications, config.train.every_nights)
    old = [*site.scored_nights()[: -keep.qualifications], *site.finished_runs(VERDICTS)[:-n_verdicts]]
    unfinished = [site.path / key for key in site.root().building if key.startswith(LISTS_IN_WORK)]
    return [run for run in (*old, *unfinished, *old_windows(site, config, date)) if run not in published]


def prune_reports(site: Site, config: Config, date: dt.date) -> None:
    """Remove the reports and the records of nights that are older than the last ones to keep, and old tombstones."""
    if _is_late(site, date):
        return
    published = published_runs(site)
    for folder in ("reports", "runs"):
        sweep_temporary(site.path / folder)
        for night in list_paths(site.path / folder, "date=*")[: -config.retention.reports]:
            if night not in published:
                remove(night)
    remove_tombstones(site.path, set(site.published_nights()))


def models_to_keep(site: Site, config: Config, date: dt.date) -> list[Path]:
    """Return the models of late that score no night: a person may want to look at those that the gate turned down."""
    rejected = rejected_models(site)
    oldest = str(date - dt.timedelta(config.retention.qualifications - 1))
    models = [open_run(path) for path in site.finished_runs("models")]
    return [run.path for run in models if run.digest in rejected and ModelManifest.of(run).date >= oldest]


def published_runs(site: Site) -> set[Path]:
    """Return the runs that ROOT names by their role."""
    return {site.path / name for name in site.root().runs.values()}


def _is_late(site: Site, date: dt.date) -> bool:
    current = site.current()
    return current is not None and date < current.date


def _date_of(name: str) -> dt.date:
    return dt.date.fromisoformat(name.removeprefix("date=").removesuffix(".parquet")[:10])


def window_path(site: Site, config: Config, date: dt.date) -> Path:
    """Return where the rows at a date with the clicks of the window after it are kept.

    They are written once, when the window has closed: neither later corrections nor another users table change them,
    only a rebuild does.
    """
    return site.run(WINDOWS, date, window_digest(config))


def window_digest(config: Config) -> str:
    """Return the digest of the settings that the rows of windows depend on."""
    features, label = config.features, config.label
    return digest_of([config.alpha, features.model_dump(exclude={"min_days"}), label.model_dump()])


def written_windows(site: Site, config: Config) -> frozenset[dt.date]:
    """Return the dates whose rows are kept."""
    dates = {_date_of(run.name): run for run in site.finished_runs(WINDOWS)}
    return frozenset(date for date, run in dates.items() if run == window_path(site, config, date))


def old_windows(site: Site, config: Config, date: dt.date) -> list[Path]:
    """Return the windows that no later training will use, and those of other settings."""
    oldest = date - dt.timedelta((config.train.n_windows + 1) * config.label.days)
    runs = site.finished_runs(WINDOWS)
    return [run for run in runs if _date_of(run.name) <= oldest or run != window_path(site, config, _date_of(run.name))]
