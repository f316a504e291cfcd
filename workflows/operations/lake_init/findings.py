"""Describe a surveyed lake to a person, and write the config of a site for it."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ammrank_dask.lake_survey import Estimate, EventSurvey, UsersSurvey
from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import missing_days
from ammrank_dask.storage.lake.taxonomy import SIMILAR, Taxonomy, find_similar, name_pairs
from ammrank_dask.storage.objects.account import is_of_group
from ammrank_dask.storage.objects.atomic import write_private
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import CATEGORY, IGNORE_GROUP, PARENT
from ammrank_dask.workflows.operations.lake_init.guess import Guessed
from ammrank_dask.workflows.operations.lake_init.places import Places
from ammrank_dask.workflows.session.config import Config, write_config
from ammrank_dask.workflows.session.settings import CATEGORIES_NAME

DEFAULTS = Config()
VALUES_SHOWN = 10


@dataclass
class Remarks:
    """What a person should read: what was guessed, and what only they can set."""

    guessed: list[str] = field(default_factory=list)
    to_set: list[str] = field(default_factory=list)


def sum_by(survey: EventSurvey, position: int) -> Counter[str | None]:
    counts: Counter[str | None] = Counter()
    for pair, count in survey.events.items():
        counts[pair[position]] += count
    return counts


def event_facts(survey: EventSurvey, meant: Guessed, taxonomy: Taxonomy | None, remarks: Remarks) -> dict[str, Any]:
    by_group = sum_by(survey, 0)
    events = sum(by_group.values())
    strange = _unknown_categories(survey, meant, taxonomy)
    bad = sum(by_group[value] for value in (None, *meant.unmapped)) + sum(strange.values())
    remark_share(bad, events, "events have a group or category that is not mapped", remarks)
    similar = find_similar(taxonomy.present_codes, strange) if taxonomy else []
    if similar:
        remarks.to_set.append(
            f"categories: {name_pairs(similar)} {SIMILAR}; if they are the same, name one of the two under `categories`"
            " as the former name of the other"
        )
    return {
        "events": events,
        "groups": {
            group: {"events": sum(by_group[value] for value in values), "values": values}
            for group, values in meant.names.items()
        },
        "groups_not_mapped": _top({value: by_group[value] for value in meant.unmapped}),
        "categories_not_mapped": _top(strange),
        "without_group": by_group[None],
        "without_category": sum_by(survey, 1)[None],
    }


def remark_share(bad: int, total: int, what: str, remarks: Remarks) -> None:
    limit = DEFAULTS.quarantine.max_share
    if bad > limit * total:
        remarks.to_set.append(
            f"{bad / total:.1%} of the {what}; more than {limit:.0%} of bad rows stop a run (quarantine.max_share)"
        )


def _unknown_categories(survey: EventSurvey, meant: Guessed, taxonomy: Taxonomy | None) -> dict[str, int]:
    """Count the categories of used events that are not in the taxonomy."""
    code_of = taxonomy.code_of if taxonomy else {}
    used = {value for group, values in meant.names.items() if group != IGNORE_GROUP for value in values}
    counts: Counter[str] = Counter()
    for (group, category), count in survey.events.items():
        if group in used and category is not None and category not in code_of:
            counts[category] += count
    return counts


def _top(counts: Mapping[str, int]) -> dict[str, Any]:
    """Return how many values there are, how often they occur, and the most frequent ones."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {"values": len(counts), "count": sum(counts.values()), "top": ordered[:VALUES_SHOWN]}


def day_facts(survey: EventSurvey, closed: Collection[int], remarks: Remarks) -> dict[str, Any]:
    """Return the days of the log; gaps that are not on a weekday that is `closed` are remarked."""
    days = survey.events_by_day
    missing = missing_days(days, min(days), max(days))
    gaps = [str(day) for day in missing]
    lost = [str(day) for day in missing if day.weekday() not in closed]
    if lost:
        remedy = "add them, or they are bridged, too" if closed else "add them, or set bridge to go on without"
        remarks.to_set.append(f"lake.missing_days: there are no events for {name_some(lost)}; {remedy}")
    return {
        "first": str(min(days)),
        "last": str(max(days)),
        "count": len(days),
        "gaps": gaps,
        "needed_to_train": DEFAULTS.label.days + DEFAULTS.features.min_days,
    }


def estimate_users(users: UsersSurvey | None, survey: EventSurvey) -> Estimate:
    return Estimate(users.rows, 1) if users is not None else survey.users or Estimate(0, 1)


def people_facts(users: UsersSurvey | None, survey: EventSurvey, genders: Guessed) -> dict[str, Any]:
    counted = estimate_users(users, survey)
    counts = users.genders if users is not None else {}
    spelled = {
        name: {"users": sum(counts.get(value, 0) for value in values), "values": values}
        for name, values in (genders.names.items() if counts else ())
    }
    return {
        "users": counted.users,
        "users_estimated": counted.sampling > 1,
        "genders": spelled,
        "genders_not_mapped": _top({value: counts[value] for value in genders.unmapped}),
    }


def name_some(values: Sequence[str]) -> str:
    """Return a few of many values as text."""
    return ", ".join(values[:5]) + (f" and {len(values) - 5:,} more" if len(values) > 5 else "")


def describe_findings(findings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that tell a person what was found; the last one is the next command."""
    rows = [*_say_lake(findings), *_say_events(findings), *_say_users(findings)]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        yield f"{name.ljust(width)}  {text}".rstrip()
    for title, key in (("guessed", "guessed"), ("to set", "to_set")):
        yield f"{title}:" if findings[key] else f"{title}: nothing"
        yield from (f"  {remark}" for remark in findings[key])
    if "next" in findings:
        yield f"next: {findings['next']}"


def _say_lake(findings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    lake, days = findings["lake"], findings["days"]
    if "config" in findings:
        yield "config", findings["config"]
    yield "lake", f"{lake['events']} ({lake['layout'] or lake['date_key'] + '=YYYY-MM-DD'})"
    gaps = name_some(days["gaps"]) or "no gaps"
    yield "days", f"{days['count']:,} from {days['first']} to {days['last']}, {'without ' * bool(days['gaps'])}{gaps}"
    if days["count"] < days["needed_to_train"]:
        yield "", f"training starts with {days['needed_to_train']} days"


def _say_events(findings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    counted = {
        **{group: found["events"] for group, found in findings["groups"].items()},
        "without a group": findings["without_group"],
        "without a category": findings["without_category"],
    }
    width = len(f"{findings['events']:,}")
    yield "events", f"{findings['events']:,}"
    for name, count in counted.items():
        values = findings["groups"][name]["values"] if name in findings["groups"] else []
        if count or values:
            yield f"  {name}", f"{count:>{width},}  {', '.join(values) if values != [name] else ''}"
    yield from _say_unmapped(
        "groups", findings, "they would be quarantined: map them under `groups` or list them under groups.ignore"
    )
    categories = findings["categories"]
    yield (
        "categories",
        f"{categories['ranked']:,} ranked (level {categories['level']}), {categories['found']:,} found in the events",
    )
    remedy = "add them to the taxonomy, or their new names under `categories`"
    yield from _say_unmapped("categories", findings, f"they would be quarantined: {remedy}")


def _say_users(findings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "users", ("about " if findings["users_estimated"] else "") + f"{findings['users']:,}"
    for name, found in findings["genders"].items():
        values = ", ".join(repr(value) if not value.strip() else value for value in found["values"])
        yield f"  {name}", f"{found['users']:,}" + (f"  {values}" if found["values"] != [name] else "")
    yield from _say_unmapped(
        "genders", findings, "they would be quarantined: map them under `genders` or list them under genders.ignore"
    )
    enough, label = findings["users_with_enough_clicks"], findings["label"]
    if enough is not None:
        about = "about " if findings["users_with_enough_clicks_estimated"] else ""
        yield (
            "enough clicks",
            f"{about}{enough:,} users clicked {label['min_categories']} or more categories in the last"
            f" {label['days']} days",
        )
    if findings["partitions"] is not None:
        yield "partitions", f"{findings['partitions']:,}"


def _say_unmapped(kind: str, findings: Mapping[str, Any], hint: str) -> Iterator[tuple[str, str]]:
    found = findings[f"{kind}_not_mapped"]
    if not found["values"]:
        return
    counted = "users" if kind == "genders" else "events"
    yield "  not mapped", f"{found['count']:,} {counted} ({found['values']:,} different {kind}); {hint}"
    width = len(f"{found['top'][0][1]:,}")
    for value, count in found["top"]:
        yield "", f"{count:>{width},}  {value!r}"
    if found["values"] > len(found["top"]):
        yield "", f"and {found['values'] - len(found['top']):,} more"


def refuse_existing(site: Site, places: Places, force: bool) -> None:
    written = [site.config_path, *([] if places.taxonomy else [site.path / CATEGORIES_NAME])]
    for path in written:
        if path.exists() and not force:
            raise BadInput(f"{path} exists; --force replaces it")


def no_clicks(findings: Mapping[str, Any]) -> BadInput:
    if not findings["categories"]["ranked"]:
        return BadInput("no event has a category; name the column with --column category=NAME")
    values = name_some([repr(value) for value, _ in findings["groups_not_mapped"]["top"]]) or "none left"
    return BadInput(
        f"no value of {findings['columns']['group']!r} is known to mean ad clicks (adc), of which rankings are made;"
        f" pass --group adc=VALUE, one of {values}"
    )


def write_site(site: Site, config: Config, categories: Sequence[str] | None) -> None:
    site.path.parent.mkdir(parents=True, exist_ok=True)
    site.path.mkdir(mode=0o700, exist_ok=True)
    with site.exclusive():
        if categories is not None:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(
                [(CATEGORY, PARENT), *((category, "") for category in categories)]
            )
            write_private(site.path / CATEGORIES_NAME, text.getvalue(), for_group=is_of_group(site.path))
        write_private(site.config_path, write_config(config), for_group=is_of_group(site.path))
