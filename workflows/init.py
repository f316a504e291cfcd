"""`ammrank init`: look at a lake, guess how it is meant, and write the config of a site."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.atomic import write_atomic
from ammrank_dask.storage.vocabulary import CATEGORY, GROUPS, IGNORE_GROUP, PARENT
from ammrank_dask.workflows.lake_init.guess import (
    EVENT_ROLES,
    USER_ROLES,
)
from ammrank_dask.workflows.lake_init.inspect import Places, find_places, inspect_lake, name_some
from ammrank_dask.workflows.session.config import Config, write_config
from ammrank_dask.workflows.session.options import AmmrankCommand, computing_options, site_argument
from ammrank_dask.workflows.session.progress import progress_for
from ammrank_dask.workflows.session.settings import CATEGORIES_NAME


class Assignment(click.ParamType):
    """NAME=VALUE with a name out of a list."""

    name = "NAME=VALUE"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return the name and the value."""
        if isinstance(value, tuple):
            return value
        name, found, given = value.partition("=")
        if not found or name not in self.names or not given:
            self.fail(f"{value!r} is not NAME=VALUE with a name of {', '.join(self.names)}", param, ctx)
        return name, given


@click.command("init", cls=AmmrankCommand)
@site_argument
@click.option(
    "--lake",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder with events/date=YYYY-MM-DD/*.parquet, users.parquet and taxonomy.csv.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    type=Assignment((*EVENT_ROLES, *USER_ROLES)),
    help="Name a column that cannot be guessed, for example timestamp=event_ts; repeatable.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=Assignment((*GROUPS, IGNORE_GROUP)),
    help="Say what a value of the group column means, for example adc=tap; repeatable.",
)
@click.option("--force", is_flag=True, help="Replace the config that the site has.")
@computing_options
def command(
    site: Path,
    lake: Path,
    columns: tuple[tuple[str, str], ...],
    groups: tuple[tuple[str, str], ...],
    force: bool,
    cluster: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Look at a lake and write the config of a site.

    What can be guessed is filled in and said; what cannot is named.
    """
    from ammrank_dask.workflows.cluster.open import open_cluster

    place = Site(site)
    places = find_places(lake.resolve())
    _refuse_existing(place, places, force)
    with open_cluster(cluster, site, quiet) as client, progress_for(quiet, as_json) as progress:
        found = inspect_lake(client, places, site.resolve(), columns=dict(columns), groups=groups, progress=progress)
    if found.config is None:
        _show(found.facts, as_json)
        raise _no_clicks(found.facts)
    _write_site(place, found.config, found.categories)
    last = found.facts["days"]["last"]
    written = {
        "config": str(place.config_path),
        "next": f"ammrank nightly {shlex.quote(str(site))} --date {last}",
    }
    _show({**found.facts, **written}, as_json)


def _refuse_existing(site: Site, places: Places, force: bool) -> None:
    written = [site.config_path, *([] if places.taxonomy else [site.path / CATEGORIES_NAME])]
    for path in written:
        if path.exists() and not force:
            raise BadInput(f"{path} exists; --force replaces it")


def _no_clicks(facts: Mapping[str, Any]) -> BadInput:
    if not facts["categories"]["ranked"]:
        return BadInput("no event has a category; name the column with --column category=NAME")
    values = name_some([repr(value) for value, _ in facts["groups_not_mapped"]["top"]]) or "none left"
    return BadInput(
        f"no value of {facts['columns']['group']!r} is known to mean ad clicks (adc), of which rankings are made;"
        f" pass --group adc=VALUE, one of {values}"
    )


def _write_site(site: Site, config: Config, categories: Sequence[str] | None) -> None:
    site.path.parent.mkdir(parents=True, exist_ok=True)
    site.path.mkdir(mode=0o700, exist_ok=True)
    with site.exclusive():
        if categories is not None:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(
                [(CATEGORY, PARENT), *((category, "") for category in categories)]
            )
            _write_private(site.path / CATEGORIES_NAME, text.getvalue())
        _write_private(site.config_path, write_config(config))


def _write_private(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)

    write_atomic(path, write)


def _show(facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, sort_keys=True))
        return
    for line in describe(facts):
        click.echo(line)


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


if __name__ == "__main__":
    command()
