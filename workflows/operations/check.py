"""Test what a site needs before its first night: workers with memory, clocks and versions, and where copies go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from distributed import Client

from ammrank_dask.storage.errors import AmmrankError
from ammrank_dask.storage.objects.probe import Probe
from ammrank_dask.storage.site.copies import try_target
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.cluster.checks import (
    MOST_SKEW,
    ask_workers,
    check_scheduler,
    cpu_type,
    differing_versions,
    package_versions,
    say_skew,
    show_view,
)
from ammrank_dask.workflows.cluster.memory_check import check_memory
from ammrank_dask.workflows.session.config import Config
from ammrank_dask.workflows.session.options import yesterday
from ammrank_dask.workflows.session.settings import copies_target, lake_days, site_taxonomy


def probe_cluster(client: Client, site: Path, *, timeout: float = 60.0) -> Iterator[Probe]:
    """Yield what all workers say about view, versions, clocks and CPUs."""
    yield _ask("versions of the scheduler", lambda: check_scheduler(client))
    with show_view(site) as view:
        answers = ask_workers(client, view, timeout=timeout)
    silent = [str(answer) for answer in answers.values() if isinstance(answer, AmmrankError)]
    yield _all("workers answer", silent, f"{len(answers):,} of them")
    workers = {address: answer for address, answer in answers.items() if not isinstance(answer, AmmrankError)}
    blind = [f"{at} does not see its files" for at, worker in workers.items() if not worker.sees_site]
    yield _all("common view of the site", blind, "every worker reads and writes it")
    differing = {at: differing_versions(worker.versions) for at, worker in workers.items()}
    other = [f"{at} has {versions}" for at, versions in differing.items() if versions]
    yield _all("versions of the workers", other, f"Python {package_versions()['python']} and all packages that matter")
    skews = {at: view.skew_of(worker) for at, worker in workers.items()}
    wrong = [say_skew(f"the worker at {at}", skew) for at, skew in skews.items() if abs(skew) > MOST_SKEW]
    yield _all("clocks of the workers", wrong, "none differs by more than five minutes")
    types = sorted({worker.machine for worker in workers.values()} | {cpu_type()})
    detail = types[0] if len(types) == 1 else f"{', '.join(types)}: bytes may differ in their last bits between them"
    yield Probe("one type of CPU", len(types) == 1, detail, is_needed=False)


def probe_lake(site: Site, config: Config) -> Probe:
    """List the days of the lake and read its taxonomy."""
    return _ask("lake", lambda: (lake_days(site, config), site_taxonomy(site, config)))


def probe_memory(client: Client, site: Site, config: Config) -> Probe:
    """Compare the largest partition with the smallest worker; the lake says how large partitions are."""
    return _ask(
        "memory of the workers",
        lambda: check_memory(client, site, config, yesterday(), len(site_taxonomy(site, config).categories)),
    )


def probe_copies(site: Site, config: Config) -> list[Probe]:
    """Write to where published nights are copied; nothing is to be asked when they are not."""

    def try_it() -> None:
        target = copies_target(site, config)
        if target is not None:
            try_target(target)

    return [] if config.publish.to is None else [_ask("copies to publish.to", try_it)]


def _ask(name: str, check: Callable[[], object]) -> Probe:
    try:
        check()
    except (AmmrankError, OSError) as error:
        return Probe(name, False, str(error))
    return Probe(name, True, "")


def _all(name: str, problems: list[str], otherwise: str) -> Probe:
    more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
    return Probe(name, not problems, f"{problems[0]}{more}" if problems else otherwise)
