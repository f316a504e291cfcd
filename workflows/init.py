"""`ammrank init`: look at a lake, guess how it is meant, and write the config of a site."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ammrank_dask.storage.errors import shell_word
from ammrank_dask.storage.lake.paths import LakePath
from ammrank_dask.storage.objects.folders import refuse_lost_link
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.vocabulary import GROUPS, IGNORE_GROUP
from ammrank_dask.workflows.operations.lake_init import findings
from ammrank_dask.workflows.operations.lake_init.guess import EVENT_ROLES, USER_ROLES
from ammrank_dask.workflows.operations.lake_init.inspect import inspect_lake
from ammrank_dask.workflows.operations.lake_init.places import find_places
from ammrank_dask.workflows.session.options import (
    AmmrankCommand,
    Assignment,
    computing_options,
    lake_option,
    site_argument,
)


@click.command("init", cls=AmmrankCommand)
@site_argument
@lake_option
@click.option(
    "--column", "columns", multiple=True, type=Assignment((*EVENT_ROLES, *USER_ROLES)),
    help="Name a column that cannot be guessed, for example timestamp=event_ts; repeatable.",
)  # fmt: skip
@click.option(
    "--group", "groups", multiple=True, type=Assignment((*GROUPS, IGNORE_GROUP)),
    help="Map a value of the group column, for example adc=tap; repeatable.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the config that the site has.")
@computing_options
def command(
    site: Path,
    lake: LakePath,
    columns: tuple[tuple[str, str], ...],
    groups: tuple[tuple[str, str], ...],
    force: bool,
    cluster: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Inspect a lake and write the config of a site.

    It fills in and reports what it can guess, and names what it cannot.
    """
    from ammrank_dask.workflows.session.session import open_lazily

    place = Site(site)
    refuse_lost_link(lake)
    places = find_places(lake.resolve() if isinstance(lake, Path) else lake, groups)
    findings.refuse_existing(place, places, force)
    with open_lazily(cluster, site, as_json=as_json, quiet=quiet) as start:
        client, progress = start()
        found = inspect_lake(client, places, site.resolve(), columns=dict(columns), groups=groups, progress=progress)
    if found.config is None:
        _print_facts(found.facts, as_json)
        raise findings.no_clicks(found.facts)
    findings.write_site(place, found.config, found.categories)
    command_to_type = f"ammrank nightly {shell_word(site)} --date {found.next_date}"
    _print_facts({**found.facts, "config": str(place.config_path), "next": command_to_type}, as_json)


def _print_facts(content: Mapping[str, Any], as_json: bool) -> None:
    click.echo(json.dumps(content, sort_keys=True) if as_json else "\n".join(findings.describe_findings(content)))


if __name__ == "__main__":
    command()
