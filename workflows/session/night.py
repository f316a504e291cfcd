"""One night of a site, as all its stages see it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from distributed import Client

from ammrank_dask.runtime.tasks import Progress, silent
from ammrank_dask.storage.site.site import Site
from ammrank_dask.workflows.session.config import Config


@dataclass(frozen=True)
class Night:
    """What every stage needs: the cluster, the site and its config, the date, and whom to tell how far it is."""

    client: Client
    site: Site
    config: Config
    date: dt.date
    progress: Progress = silent
