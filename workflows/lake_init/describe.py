"""Say in lines what was found in a lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ammrank_dask.workflows.lake_init.inspect import name_some


def describe(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that tell a person what was found; the last one is the next command."""
    rows = [*_say_lake(facts), *_say_events(facts), *_say_users(facts)]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        yield f"{name.ljust(width)}  {text}".rstrip()
    for title, key in (("guessed", "guessed"), ("to set", "to_set")):
        yield f"{title}:" if facts[key] else f"{title}: nothing"
        yield from (f"  {remark}" for remark in facts[key])
    if "next" in facts:
        yield f"next: {facts['next']}"


def _say_lake(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    lake, days = facts["lake"], facts["days"]
    if "config" in facts:
        yield "config", facts["config"]
    yield "lake", f"{lake['events']} ({lake['date_key']}=YYYY-MM-DD)"
    gaps = name_some(days["gaps"]) or "no gaps"
    yield "days", f"{days['count']:,} from {days['first']} to {days['last']}, {'without ' * bool(days['gaps'])}{gaps}"
    if days["count"] < days["needed_to_train"]:
        yield "", f"training starts with {days['needed_to_train']} days"


def _say_events(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    counted = {
        **{group: found["events"] for group, found in facts["groups"].items()},
        "without a group": facts["without_group"],
        "without a category": facts["without_category"],
    }
    width = len(f"{facts['events']:,}")
    yield "events", f"{facts['events']:,}"
    for name, count in counted.items():
        values = facts["groups"][name]["values"] if name in facts["groups"] else []
        if count or values:
            yield f"  {name}", f"{count:>{width},}  {', '.join(values) if values != [name] else ''}"
    yield from _say_unmapped(
        "groups", facts, "they would be quarantined: map them under `groups` or list them under groups.ignore"
    )
    categories = facts["categories"]
    yield (
        "categories",
        f"{categories['ranked']:,} ranked (level {categories['level']}), {categories['found']:,} found in the events",
    )
    yield from _say_unmapped("categories", facts, "they would be quarantined: add them to the taxonomy")


def _say_users(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "users", ("about " if facts["users_estimated"] else "") + f"{facts['users']:,}"
    for name, found in facts["genders"].items():
        values = ", ".join(repr(value) if not value.strip() else value for value in found["values"])
        yield f"  {name}", f"{found['users']:,}" + (f"  {values}" if found["values"] != [name] else "")
    yield from _say_unmapped(
        "genders", facts, "they would be quarantined: map them under `genders` or list them under genders.ignore"
    )
    enough, label = facts["users_with_enough_clicks"], facts["label"]
    if enough is not None:
        about = "about " if facts["users_with_enough_clicks_estimated"] else ""
        yield (
            "enough clicks",
            f"{about}{enough:,} users clicked {label['min_categories']} or more categories in the last"
            f" {label['days']} days",
        )
    if facts["partitions"] is not None:
        yield "partitions", f"{facts['partitions']:,}"


def _say_unmapped(kind: str, facts: Mapping[str, Any], hint: str) -> Iterator[tuple[str, str]]:
    found = facts[f"{kind}_not_mapped"]
    if not found["values"]:
        return
    counted = "users" if kind == "genders" else "events"
    yield "  not mapped", f"{found['count']:,} {counted} ({found['values']:,} different {kind}); {hint}"
    width = len(f"{found['top'][0][1]:,}")
    for value, count in found["top"]:
        yield "", f"{count:>{width},}  {value!r}"
    if found["values"] > len(found["top"]):
        yield "", f"and {found['values'] - len(found['top']):,} more"
