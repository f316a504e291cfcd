"""`ammrank config`: validate and show the config of a site."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import changed_keys, load_config, write_config
from ammrank_dask.workflows.session.options import AmmrankCommand, show, show_table, site_argument


@click.group("config")
def command() -> None:
    """Validate and show the config of a site, without a cluster."""


@command.command("validate", cls=AmmrankCommand)
@site_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def validate(site: Path, as_json: bool) -> None:
    """Check every key, and that lake and taxonomy can be read; exits with 65 and one sentence otherwise."""
    from ammrank_dask.workflows.session.settings import copies_target, lake_days, site_taxonomy

    place = Site(site)
    config = load_config(place.config_path)
    copies_target(place, config)
    categories, days = site_taxonomy(place, config).categories, sorted(lake_days(place, config))
    span = f"{len(days):,}, {days[0]} to {days[-1]}" if days else "none"
    counts = {"changed keys": len(changed_keys(config)), "categories": len(categories), "days of the lake": span}
    show({"config": str(place.config_path), "valid": True, **counts}, as_json)


@command.command("show", cls=AmmrankCommand)
@site_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of YAML.")
def show_config(site: Path, as_json: bool) -> None:
    """Print every key with its active value."""
    config = load_config(Site(site).config_path)
    click.echo(json.dumps(config.model_dump(mode="json"), sort_keys=True) if as_json else write_config(config).rstrip())


@command.command("diff", cls=AmmrankCommand)
@site_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def diff(site: Path, as_json: bool) -> None:
    """Print the keys that differ from their defaults."""
    changes = changed_keys(load_config(Site(site).config_path))
    if as_json:
        listed = {key: {"value": value, "default": usual} for key, (value, usual) in changes.items()}
        click.echo(json.dumps(listed, sort_keys=True, default=str))
    elif changes:
        texts = {
            key: [json.dumps(one, ensure_ascii=False, default=str) for one in both] for key, both in changes.items()
        }
        show_table(["key", "value", "default"], [[key, *both] for key, both in texts.items()], n_left=3)
    else:
        click.echo("every key has its default")


if __name__ == "__main__":
    command()
