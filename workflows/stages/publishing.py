"""Publish a night, or put it on hold: if a check of `publish.hold` warns, it waits until a person releases it.

Copies that `publish.to` asks for are kept like the nights of the site.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ammrank_dask.report.checks import WARN, name_warnings
from ammrank_dask.storage.errors import BadInput, HeldBack, shell_word
from ammrank_dask.storage.objects.folders import is_folder, list_paths
from ammrank_dask.storage.site.copies import NightFiles, copied_nights, copy_night, point_to
from ammrank_dask.storage.site.run_log import HELD, read_attempt, utc_now, write_attempt
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import is_finished
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.settings import copies_target
from ammrank_dask.workflows.stages.published import runs_in_use
from ammrank_dask.workflows.stages.retention import INPUT_FOLDERS, models_to_keep, old_nights, prune, prune_reports

LABELS = {"held_by": "on hold for", "let_through": "released despite"}
"""Facts with another name on the terminal than in JSON."""


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
