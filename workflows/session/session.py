"""Open what a command computes with: the site, locked and whole, and the cluster, as soon as one is needed."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ammrank_dask.storage.errors import BadInput, DamagedStore, shell_word
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import Config, load_config
from ammrank_dask.workflows.session.progress import progress_for

if TYPE_CHECKING:  # Dask takes a second to import, and little work needs none of it
    from distributed import Client

    from ammrank_dask.runtime.tasks import Progress
    from ammrank_dask.workflows.session.night import Night

StartCluster = Callable[[], "tuple[Client, Progress]"]
"""Starts the cluster of a command when it is called for the first time, and returns it ever after."""

REPARTITION = "repartition"
"""What a change of partitions is called among the commands that have begun."""


@dataclass(frozen=True)
class Session:
    """A site that is locked against other runs, and the cluster to work on it."""

    site: Site
    config: Config
    start: StartCluster

    def __post_init__(self) -> None:
        """Refuse a folder for copies that cannot be one, before anything is computed."""
        if self.config.publish.to is not None:
            from ammrank_dask.workflows.session.settings import copies_target

            copies_target(self.site, self.config)

    @property
    def client(self) -> Client:
        """The cluster; it starts when it is asked for the first time."""
        return self.start()[0]

    @property
    def progress(self) -> Progress:
        """Whom to tell how far it is."""
        return self.start()[1]

    def night(self, date: dt.date) -> Night:
        """Return one night of the site, on the cluster."""
        from ammrank_dask.workflows.session.night import Night

        refuse_unfinished(self.site)
        return Night(self.client, self.site, self.config, date, self.progress)


@contextlib.contextmanager
def open_session(path: Path, *, cluster: str | None, as_json: bool, quiet: bool) -> Iterator[Session]:
    """Read the config first, so that a mistake in it costs no lock and no cluster; then lock the site.

    A command that is done gives the site free before its cluster closes, which may take a while. After an error the
    cluster closes first: its tasks may still write.
    """
    site = Site(path)
    config = load_config(site.config_path)
    with contextlib.ExitStack() as lock:
        lock.enter_context(site.exclusive())
        with open_lazily(cluster, path, as_json=as_json, quiet=quiet) as start:
            yield Session(site, config, start)
            lock.close()


@contextlib.contextmanager
def open_lazily(cluster: str | None, site: Path | None, *, as_json: bool, quiet: bool) -> Iterator[StartCluster]:
    """Yield what starts the cluster and the progress when it is first called; both end with the block."""
    with contextlib.ExitStack() as stack:
        started: list[tuple[Client, Progress]] = []

        def start() -> tuple[Client, Progress]:
            from ammrank_dask.workflows.cluster.open import open_cluster

            if not started:
                client = stack.enter_context(open_cluster(cluster, site, quiet))
                started.append((client, stack.enter_context(progress_for(quiet, as_json))))
            return started[0]

        yield start


def refuse_unfinished(site: Site) -> None:
    """Refuse to work on a site whose config may say another number of partitions than its runs have."""
    try:
        n_partitions = site.unfinished(REPARTITION)
    except DamagedStore:  # whoever needs it says so, and a rebuild mends it
        return
    if n_partitions is not None:
        raise BadInput(
            f"a change to {n_partitions:,} partitions is not finished; go on with"
            f" `ammrank repartition {shell_word(site.path)} --partitions {n_partitions}`"
        )
