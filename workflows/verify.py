"""`ammrank verify`: check every stored byte of a site against its checksum."""

from __future__ import annotations

from pathlib import Path

import click

from ammrank_dask.storage.errors import REBUILD_COMMAND, BadInput, DamagedStore
from ammrank_dask.storage.objects.folders import is_file, is_folder, list_paths
from ammrank_dask.storage.site.reports import CHECKSUMS, check_report
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.store.runs import is_finished, verify_run
from ammrank_dask.workflows.session.options import AmmrankCommand, name_own_night, show, site_argument


@click.command("verify", cls=AmmrankCommand)
@site_argument
@click.option("--digest", is_flag=True, help="Print one hash over all published bytes that are the same in every run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(site: Path, digest: bool, as_json: bool) -> None:
    """Check every manifest and every checksum of a site.

    Each damaged run and report is named.
    """
    place = Site(site)
    if not is_file(place.config_path):
        raise BadInput(f"there is no site at {site}: it has no ammrank.yaml; check the path")
    runs = place.kept_runs()
    current = place.current()
    reports = {path.parent for path in list_paths(place.path / "reports", f"date=*/{CHECKSUMS}")}
    damaged = []
    if current is not None:
        for role, name in current.runs.items():
            run = place.path / name
            if role == "report":
                reports.add(run)
            elif not is_finished(run):
                damaged.append(f"{run} is published and not whole; make it again with {REBUILD_COMMAND}")
    if not place.is_held():  # else a run that is going on removes some
        damaged += [
            f"{run} is not named by ROOT; the next command that locks the site removes it" for run in place.unnamed()
        ]
    n_bytes = 0
    for run in runs:
        try:
            n_bytes += verify_run(run)
        except BadInput as error:
            if is_finished(run):  # else a run that is going on has removed it meanwhile
                damaged.append(str(error))
    for report in sorted(reports):
        try:
            n_bytes += check_report(report)
        except DamagedStore as error:
            if is_folder(report) or (current is not None and place.relative(report) in current.runs.values()):
                damaged.append(str(error))
    if damaged:
        for sentence in damaged:
            click.echo(name_own_night(sentence, {"site": site}), err=True)
        raise DamagedStore(f"{len(damaged)} of {len(runs) + len(reports)} runs and reports of {site} are damaged")
    if current is None:
        raise BadInput(f"nothing is published at {site}, so there is nothing to verify; run `ammrank nightly` first")
    facts = {
        "published": str(current.date),
        "runs": len(runs),
        "reports": len(reports),
        "bytes": n_bytes,
    }
    show({**facts, **({"digest": place.digest()} if digest else {})}, as_json)


if __name__ == "__main__":
    command()
