"""Say in lines what was found in a lake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ammrank_dask.workflows.operations.lake_init.findings import name_some


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
