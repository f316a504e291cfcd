"""Keep every taxonomy that a site has counted with: cells of days and states are codes, and these say of what."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.lake.taxonomy import Taxonomy
from ammrank_dask.storage.objects.atomic import read_json, write_json
from ammrank_dask.storage.objects.folders import list_paths, remove

FOLDER = "taxonomies"


def keep_taxonomy(site: Path, taxonomy: Taxonomy) -> None:
    """Write a taxonomy under its digest, unless it is there."""
    if load_taxonomy(site, taxonomy.digest) is None:
        write_json(_path(site, taxonomy.digest), {"categories": taxonomy.categories, "code_of": dict(taxonomy.code_of)})


def load_taxonomy(site: Path, digest: str) -> Taxonomy | None:
    """Return the taxonomy with a digest; None when the site has not kept it, or not as it was."""
    try:
        content = read_json(_path(site, digest))
        taxonomy = Taxonomy(tuple(content["categories"]), dict(content["code_of"]))
    except (FileNotFoundError, DamagedStore, LookupError, TypeError, ValueError):
        return None
    return taxonomy if taxonomy.digest == digest else None


def kept_taxonomies(site: Path) -> set[str]:
    """Return the digests of all taxonomies that are kept."""
    return {path.stem for path in list_paths(site / FOLDER, "*.json")}


def remove_taxonomies(site: Path, digests: Iterable[str]) -> None:
    """Remove taxonomies that nothing names any more."""
    for digest in sorted(digests):
        remove(_path(site, digest))


def _path(site: Path, digest: str) -> Path:
    return site / FOLDER / f"{digest}.json"
