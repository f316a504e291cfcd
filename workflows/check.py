"""`ammrank check`: try what a site needs before its first night."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.objects.probe import Probe, probe_folder
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.options import AmmrankCommand, computing_options, site_argument


@click.command("check", cls=AmmrankCommand)
@site_argument
@computing_options
def command(site: Path, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Test what a site needs: file system, cluster, versions, memory, clocks, and where copies go."""
    from ammrank_dask.workflows.cluster.open import open_cluster
    from ammrank_dask.workflows.operations.check import probe_cluster, probe_copies, probe_lake, probe_memory

    place = Site(site)
    if not place.path.is_dir():
        raise BadInput(f"there is no site at {site}; make one with `ammrank init`")
    config = load_config(place.config_path)
    lake = probe_lake(place, config)
    probes = [*probe_folder(place.path), lake, *probe_copies(place, config)]
    with open_cluster(cluster, None, quiet=True, beside=place.path) as client:
        probes += probe_cluster(client, place.path)
        if lake.is_ok:
            probes.append(probe_memory(client, place, config))
    if as_json:
        listed = [{"name": one.name, "ok": one.is_ok, "needed": one.is_needed, "detail": one.detail} for one in probes]
        click.echo(json.dumps({"site": str(site), "checks": listed}, sort_keys=True))
    else:
        for probe in probes:
            click.echo(_line(probe))
    missing = [probe.name for probe in probes if not probe.is_ok and probe.is_needed]
    if missing:
        raise AmmrankError(f"the site at {site} cannot run nights yet: {', '.join(missing)}")


def _line(probe: Probe) -> str:
    answer = "yes" if probe.is_ok else "no"
    return f"{answer:<3}  {probe.name}{': ' if probe.detail else ''}{probe.detail}"


if __name__ == "__main__":
    command()
