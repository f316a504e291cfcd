"""Remember that a change of a site's partitions has begun, so that no night runs on half of it."""

from __future__ import annotations

from pathlib import Path

from ammrank_dask.storage.errors import BadInput, shell_word
from ammrank_dask.storage.objects.atomic import read_json, sync_folder, write_json
from ammrank_dask.storage.objects.folders import is_file
from ammrank_dask.storage.site.site import Site

NAME = "repartition.json"


def read_unfinished(site: Site) -> int | None:
    """Return to how many partitions a change has begun and not ended; None when there is none."""
    path = _path(site)
    return int(read_json(path)["partitions"]) if is_file(path) else None


def write_unfinished(site: Site, n_partitions: int) -> None:
    """Remember that a change begins."""
    write_json(_path(site), {"partitions": n_partitions})


def remove_unfinished(site: Site) -> None:
    """Remember that a change has ended."""
    _path(site).unlink(missing_ok=True)
    sync_folder(site.path)


def refuse_unfinished(site: Site) -> None:
    """Refuse to work on a site of whose runs some have other partitions."""
    n_partitions = read_unfinished(site)
    if n_partitions is not None:
        raise BadInput(
            f"a change to {n_partitions:,} partitions is not finished; go on with"
            f" `ammrank repartition {shell_word(site.path)} --partitions {n_partitions}`"
        )


def _path(site: Site) -> Path:
    return site.path / NAME
