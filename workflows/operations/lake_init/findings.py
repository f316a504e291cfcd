"""What a person should know of a lake that was surveyed: counts, and what is guessed or left to set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ammrank_dask.lake_survey import Estimate, EventSurvey, UsersSurvey
from ammrank_dask.storage.lake.files import missing_days
from ammrank_dask.storage.lake.similar_names import SIMILAR, find_similar, name_pairs
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.vocabulary import IGNORE_GROUP
from ammrank_dask.workflows.operations.lake_init.guess import Guessed
from ammrank_dask.workflows.session.config import Config

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
