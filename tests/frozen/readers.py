"""Read what a site has published as plain tables: the only file here that knows how anything is stored."""

import csv
import json
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ammrank_dask.features.store import open_features
from ammrank_dask.ingest.interest_state import InterestState
from ammrank_dask.storage.site.reports import EXPOSURE, read_summary
from ammrank_dask.storage.site.site import Site
from ammrank_dask.storage.site.taxonomies import load_taxonomy
from ammrank_dask.storage.store.manifests import StateManifest
from ammrank_dask.storage.store.models import read_model
from ammrank_dask.storage.store.qualifications import BY_CATEGORY, BY_USER, DELTA
from ammrank_dask.storage.store.registry import CHANCES, STATE
from ammrank_dask.storage.store.runs import open_run
from ammrank_dask.storage.vocabulary import AGE_BUCKETS, CATEGORY, GENDERS, GROUPS


class Table(NamedTuple):
    """Names of columns, and rows of plain Python values in any order."""

    columns: list[str]
    rows: Iterable[tuple[Any, ...]]


def published_date(site: Path) -> str | None:
    """Return the date of the published night; None before the first."""
    current = Site(site).current()
    return None if current is None else str(current.date)


def read_published(site: Path) -> dict[str, Table]:
    """Return the published night as tables; a table of what the night has not is left out.

    Groups, categories and columns are named, and no row tells its partition.
    """
    current = Site(site).current()
    assert current is not None, f"{site} has nothing published"
    runs = {role: site / name for role, name in current.runs.items()}
    tables = {"state": _state(site, runs["head"])}
    if "lag" in runs:
        tables["lag"] = _state(site, runs["lag"])
    tables |= _features(runs["features"])
    if "model" in runs:
        arrays, attributes = read_model(runs["model"])
        tables["model"] = _arrays(arrays)
        tables["model_attributes"] = _leaves(attributes)
    if "chances" in runs:
        tables["chances"] = _arrays(open_run(runs["chances"]).part(0).read(CHANCES))
    if "qualifications" in runs:
        tables |= {name: _parquet([("", runs["qualifications"] / name)]) for name in (BY_USER, DELTA)}
        tables[BY_CATEGORY] = _by_category(runs["qualifications"] / BY_CATEGORY)
    if "report" in runs:
        tables["summary"] = _leaves(read_summary(runs["report"]))
        header, *lines = csv.reader((runs["report"] / EXPOSURE).read_text(encoding="utf-8").splitlines())
        tables["exposure"] = Table(header, [tuple(line) for line in lines])
    return tables


def _state(site: Path, path: Path) -> Table:
    run = open_run(path, STATE.kind)
    taxonomy = load_taxonomy(site, StateManifest.of(run).taxonomy or "")
    assert taxonomy is not None, f"{path} was counted with a taxonomy that its site has not"
    rows: list[tuple[Any, ...]] = []
    for partition in range(run.n_parts):
        state = InterestState.from_part(run.part(partition), STATE)
        group, category = np.divmod(state.cell.astype(np.int64), len(taxonomy.categories))
        users = _repeat(state.user_ids.to_arrow().to_pylist(), state.indptr)
        names = [(GROUPS[g], taxonomy.categories[c]) for g, c in zip(group.tolist(), category.tolist(), strict=True)]
        cells = zip(users, names, state.intensity.tolist(), state.last.tolist(), strict=True)
        rows += [(user, *name, intensity, last) for user, name, intensity, last in cells]
    return Table(["user_id", "group", "category", "intensity", "last"], rows)


def _features(path: Path) -> dict[str, Table]:
    features = open_features(path)
    values: list[tuple[Any, ...]] = []
    people: list[tuple[Any, ...]] = []
    for partition in range(features.n_partitions):
        part = features.partition(partition, normalize=False)
        users = part.user_ids.to_arrow().to_pylist()
        columns = [features.columns[column] for column in part.X.indices.tolist()]
        values += zip(_repeat(users, part.X.indptr), columns, part.X.data.tolist(), strict=True)
        ages = [AGE_BUCKETS[age] if age >= 0 else None for age in part.age_bucket.tolist()]
        genders = [GENDERS[gender] if gender >= 0 else None for gender in part.gender.tolist()]
        people += zip(users, ages, genders, strict=True)
    return {
        "features": Table(["user_id", "column", "value"], values),
        "features_users": Table(["user_id", "age", "gender"], people),
    }


def _by_category(folder: Path) -> Table:
    # Folders are named as storage/README.md says; no category of a simulated lake is too long for one.
    named = [(path, path.name.removeprefix(f"{CATEGORY}=")) for path in sorted(folder.iterdir())]
    return _parquet([(urllib.parse.unquote(name), path) for path, name in named], CATEGORY)


def _parquet(folders: Iterable[tuple[str, Path]], *first: str) -> Table:
    """Return the files of folders as one table; with `first`, the name that comes with a folder is that column."""
    columns: list[str] = []
    rows: list[tuple[Any, ...]] = []
    for name, folder in folders:
        for path in sorted(folder.glob("*.parquet")):
            table: pa.Table = pq.read_table(path, partitioning=None)
            columns = [*first, *table.column_names]
            rows += zip(*([name] * len(table) for _ in first), *(c.to_pylist() for c in table.columns), strict=True)
    return Table(columns, rows)


def _arrays(arrays: dict[str, np.ndarray]) -> Table:
    """Return arrays as rows of their name, their shape, the row of the array and its values."""
    rows = [
        (name, str(array.shape), number, " ".join(_exact(value) for value in np.atleast_1d(row).tolist()))
        for name, array in arrays.items()
        for number, row in enumerate(array)
    ]
    return Table(["array", "shape", "row", "values"], rows)


def _leaves(content: Any) -> Table:
    """Return a JSON document as rows of path and value."""
    return Table(["path", "value"], list(_walk(content, "")))


def _walk(content: Any, path: str) -> Iterator[tuple[Any, ...]]:
    is_object = isinstance(content, dict)
    if content and (is_object or isinstance(content, list)):
        for name, value in content.items() if is_object else enumerate(content):
            yield from _walk(value, f"{path}/{name}")
    else:
        yield path, json.dumps(content) if content in ({}, []) else content


def _repeat(values: list[Any], indptr: np.ndarray) -> list[Any]:
    counts = np.diff(indptr).tolist()
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _exact(value: float | int) -> str:
    return value.hex() if isinstance(value, float) else str(value)
