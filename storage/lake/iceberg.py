"""Read the metadata of an Iceberg table: which of its files are alive in its newest snapshot."""

from __future__ import annotations

import datetime as dt
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ammrank_dask.storage.errors import BadInput, cut
from ammrank_dask.storage.lake.delta import Snapshot, require_files, require_regular_log
from ammrank_dask.storage.lake.paths import LakePath, RemotePath, is_lake_folder, store_failure

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.types import IcebergType

METADATA = "metadata"
_SUFFIX = ".metadata.json"
_VERSION_HINT = "version-hint.text"
_NUMBER = re.compile(r"v?(\d+)")


def is_metadata(path: LakePath) -> bool:
    """Return whether a path is the file of metadata of one version of an Iceberg table."""
    return path.name.endswith(_SUFFIX)


def is_iceberg(path: LakePath) -> bool:
    """Return whether a path is the root of an Iceberg table, or the file of metadata of one of its versions."""
    if is_metadata(path):
        return True
    folder = path / METADATA
    return is_lake_folder(folder) and any(is_metadata(child) for child in folder.iterdir())


def read_iceberg(path: LakePath) -> Snapshot:
    """Return the newest snapshot of a table, or that of the file of metadata that is named.

    Tables whose rows are not those of their parquet files are refused: with delete files, and with columns that were
    renamed, or dropped and made again.
    """
    try:
        from pyiceberg.table import StaticTable
    except ImportError:
        raise BadInput(
            f"{path} is a table of Iceberg; install the reader with `pip install 'ammrank-dask[iceberg]'`"
        ) from None
    require_regular_log(path.parent if is_metadata(path) else path / METADATA)
    metadata = path if is_metadata(path) else _newest_metadata(path)
    folder = metadata.parent.parent
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _read_version(StaticTable.from_metadata(*_location(metadata)), folder)
    except BadInput:
        raise
    except Exception as error:  # damaged metadata raise what pyiceberg happens to meet, SystemError too
        failure = store_failure(folder, OSError(str(error)))
        if failure is not None:
            raise failure from None
        raise BadInput(
            f"the metadata of the Iceberg table at {folder} cannot be read ({cut(str(error))}); repair it"
        ) from None


def _read_version(table: Table, folder: LakePath) -> Snapshot:
    snapshot = table.current_snapshot()
    if snapshot is not None and _has_deletes(snapshot.manifests(table.io)):
        raise _other_rows(folder, "has delete files")
    tasks = [] if snapshot is None else list(table.scan().plan_files())
    _refuse_other_rows(table, tasks, folder)
    files = [(_path_of(task.file, folder), _partition_of(table, task.file)) for task in tasks]
    require_files(f"the metadata of the Iceberg table at {folder}", folder, [file for file, _ in files])
    version = 0 if snapshot is None else snapshot.snapshot_id
    names = tuple(field.name for field in table.spec().fields)
    return Snapshot("Iceberg", folder, version, tuple(sorted(files, key=lambda file: file[0])), names)


def day_columns(snapshot: Snapshot) -> list[str]:
    """Return the columns that a table is partitioned by whose values are dates."""
    dated = re.compile(r"\d{4}-?\d{2}-?\d{2}")
    return [
        name
        for name in snapshot.partitioned_by
        if snapshot.files and all(dated.fullmatch(partition.get(name, "")) for _, partition in snapshot.files)
    ]


def _newest_metadata(folder: LakePath) -> LakePath:
    """Return the file of metadata that the version hint names, or else the one with the highest number."""
    files = {path.name: path for path in (folder / METADATA).iterdir()}
    if _VERSION_HINT in files:
        hint = files[_VERSION_HINT].read_text(encoding="utf-8").strip()
        for name in (hint, f"{hint}{_SUFFIX}", f"v{hint}{_SUFFIX}"):
            if name.endswith(_SUFFIX) and name in files:
                return files[name]
        raise BadInput(f"{files[_VERSION_HINT]} names {hint}, which is not there; restore the file, or repair the hint")
    numbered: dict[int, list[str]] = {}
    for name in files:
        match = _NUMBER.match(name)
        if name.endswith(_SUFFIX) and match is not None:
            numbered.setdefault(int(match[1]), []).append(name)
    newest = sorted(numbered[max(numbered)]) if numbered else []
    if len(newest) != 1:
        raise BadInput(
            f"{folder / METADATA} does not say which version of the Iceberg table is the current one"
            f" ({' and '.join(newest) or 'no file has a number'}); name its *{_SUFFIX} itself in lake.events"
        )
    return files[newest[0]]


def _location(metadata: LakePath) -> tuple[str, dict[str, str]]:
    """Return where metadata are and how to reach them, in the names that pyiceberg has for what a URL says."""
    if isinstance(metadata, Path):
        return metadata.absolute().as_uri(), {}
    given = dict(parse_qsl(metadata.options))
    options = {
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "s3.endpoint": f"{given.get('scheme', 'https')}://{given['endpoint_override']}"
        if "endpoint_override" in given
        else "",
        "s3.region": given.get("region", ""),
    }
    return str(RemotePath(metadata.store, metadata.key)), {name: value for name, value in options.items() if value}


def _has_deletes(manifests: Iterable[ManifestFile]) -> bool:
    """Return whether rows of data files are deleted by other files, of positions or of values."""
    return any(
        manifest.content.name == "DELETES" and (manifest.has_added_files() or manifest.has_existing_files())
        for manifest in manifests
    )


def _refuse_other_rows(table: Table, tasks: Sequence[FileScanTask], folder: LakePath) -> None:
    """Raise if columns or files of a table are not what its parquet files say by themselves."""
    if any(task.file.file_format.name != "PARQUET" for task in tasks):
        raise _other_rows(folder, "has data files that are not parquet")
    pairs = {(field.field_id, field.name) for schema in table.schemas().values() for field in schema.fields}
    if len({number for number, _ in pairs}) < len(pairs) or len({name for _, name in pairs}) < len(pairs):
        raise _other_rows(folder, "has columns that were renamed, or dropped and made again")


def _other_rows(folder: LakePath, what: str) -> BadInput:
    return BadInput(
        f"the Iceberg table at {folder} {what}, with which its rows are not those of its parquet files; write it again"
        " as a table without them"
    )


def _path_of(file: DataFile, folder: LakePath) -> LakePath:
    """Return a data file as a path below the folder of its table."""
    text = file.file_path
    if isinstance(folder, RemotePath):
        scheme, _, rest = text.partition("://")
        remote = RemotePath.parse(f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}")
        path: LakePath = RemotePath(remote.store, remote.key, folder.options)
        is_below = remote.store == folder.store and remote.key.startswith(f"{folder.key}/")
    else:
        path = Path(unquote(urlsplit(text).path) if text.startswith("file:") else text)
        is_below = path.is_relative_to(folder.absolute())
        path = folder / path.relative_to(folder.absolute()) if is_below else path
    if not is_below:
        raise BadInput(
            f"the metadata of the Iceberg table at {folder} name {cut(text)}, which is not below it: the table was"
            " moved or copied, or keeps its files elsewhere; name the folder that its metadata name"
        )
    return path


def _partition_of(table: Table, file: DataFile) -> dict[str, str]:
    """Return the values of the partition columns of a file as text; days as YYYY-MM-DD."""
    values: dict[str, str] = {}
    for position, field in enumerate(table.specs()[file.spec_id].fields):
        kind = str(field.transform.result_type(_type_of(table, field.source_id)))
        values[field.name] = _text_of(file.partition[position], kind)
    return values


def _type_of(table: Table, column: int) -> IcebergType:
    """Return the type of a column by its id; files may be partitioned by one that was dropped since."""
    schemas = [table.schema(), *table.schemas().values()]
    return next(schema for schema in schemas if schema.find_column_name(column) is not None).find_type(column)


def _text_of(value: Any, kind: str) -> str:
    if kind == "date" and isinstance(value, int):
        return str(dt.date(1970, 1, 1) + dt.timedelta(value))
    return str(value)
