"""`ammrank check`: try what a site needs before its first night."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ammrank_dask.storage.errors import AmmrankError, BadInput
from ammrank_dask.storage.objects.probe import Probe, probe_bucket, probe_folder
from ammrank_dask.storage.objects.store import StoreObjects
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.options import AmmrankCommand, LocalPath, computing_options


class FolderOrBucket(LocalPath):
    """A folder, or a prefix of a bucket."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path, or a URL as it is."""
        return value if "://" in str(value) else super().convert(value, param, ctx)


@click.command("check", cls=AmmrankCommand)
@click.argument("site", type=FolderOrBucket(file_okay=False, path_type=Path))
@computing_options
def command(site: Path | str, cluster: str | None, as_json: bool, quiet: bool) -> None:
    """Test what a site needs: file system, cluster, versions, memory, clocks, and where copies go."""
    probes = list(probe_bucket(StoreObjects.of(site))) if isinstance(site, str) else _probe_site(site, cluster)
    if as_json:
        listed = [{"name": one.name, "ok": one.is_ok, "needed": one.is_needed, "detail": one.detail} for one in probes]
        click.echo(json.dumps({"site": str(site), "checks": listed}, sort_keys=True))
    else:
        for probe in probes:
            click.echo(_line(probe))
    missing = [probe.name for probe in probes if not probe.is_ok and probe.is_needed]
    if missing:
        raise AmmrankError(f"the site at {site} cannot run nights yet: {', '.join(missing)}")


def _probe_site(site: Path, cluster: str | None) -> list[Probe]:
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
    return probes


def _line(probe: Probe) -> str:
    answer = "yes" if probe.is_ok else "no"
    return f"{answer:<3}  {probe.name}{': ' if probe.detail else ''}{probe.detail}"


if __name__ == "__main__":
    command()
