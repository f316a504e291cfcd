"""Open what every computing command on a site needs: its config, the lock, the cluster and the progress display."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distributed import Client

from ammrank_dask.storage.site.site import Site
from ammrank_dask.tasks import Progress
from ammrank_dask.workflows.cluster.open import open_cluster
from ammrank_dask.workflows.session.config import Config, load_config
from ammrank_dask.workflows.session.progress import progress_for


@dataclass(frozen=True)
class Session:
    """A site that is held against other runs, and the cluster to work on it."""

    site: Site
    config: Config
    client: Client
    progress: Progress


@contextlib.contextmanager
def open_session(path: Path, *, cluster: str | None, as_json: bool, quiet: bool) -> Iterator[Session]:
    """Read the config first, so that a mistake in it costs no cluster; then lock the site and open the cluster."""
    site = Site(path)
    config = load_config(site.config_path)
    with (
        site.exclusive(),
        open_cluster(cluster, path, quiet) as client,
        progress_for(quiet, as_json) as progress,
    ):
        yield Session(site, config, client, progress)
