"""Read the log of a Delta Lake table: which of its files are alive in its newest snapshot."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote

import pyarrow as pa

from ammrank_dask.storage.errors import BadInput, cut
from ammrank_dask.storage.lake.paths import LakePath, RemotePath, is_lake_folder, store_failure
from ammrank_dask.storage.objects.folders import list_paths, require_regular

if TYPE_CHECKING:
    from deltalake import DeltaTable

DELTA_LOG = "_delta_log"
_HARMLESS_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""What a table may ask of readers without that its parquet files stop being its rows."""


def is_delta(folder: LakePath) -> bool:
    """Return whether a folder is the root of a Delta Lake table."""
    return is_lake_folder(folder / DELTA_LOG)


def read_snapshot(folder: LakePath) -> Snapshot:
    """Return the newest snapshot of a table; the files of a table with deleted rows or renamed columns are refused."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise BadInput(
            f"{folder} is a table of Delta Lake; install the reader with `pip install 'ammrank-dask[delta]'`"
        ) from None
    require_regular_log(folder / DELTA_LOG)
    try:
        table = _open_table(DeltaTable, folder)
        asked = set(table.protocol().reader_features or ())
        if table.protocol().min_reader_version == 2:
            asked.add("columnMapping")
        partitioned_by = tuple(table.metadata().partition_columns)
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        version = table.version()
    except BaseException as error:
        # A panic of deltalake, as some damaged checkpoints cause, is no Exception.
        if not isinstance(error, DeltaError | OSError | ValueError) and type(error).__name__ != "PanicException":
            raise
        failure = store_failure(folder, OSError(str(error)))
        if failure is not None:
            raise failure from None
        raise BadInput(
            f"the log of the Delta Lake table at {folder} cannot be read ({cut(str(error))}); repair it"
        ) from None
    refused = sorted(asked - _HARMLESS_FEATURES)
    if refused:
        raise BadInput(
            f"the Delta Lake table at {folder} uses {', '.join(refused)}, with which its rows are not those of its"
            " parquet files; rewrite it without them (deletion vectors go with `REORG TABLE … APPLY (PURGE)`)"
        )
    files = [
        (folder / unquote(action["path"]), {name: str(action[f"partition.{name}"]) for name in partitioned_by})
        for action in actions
    ]
    require_files(f"the log of the Delta Lake table at {folder}", folder, [path for path, _ in files])
    return Snapshot("Delta Lake", folder, version, tuple(sorted(files, key=lambda file: file[0])), partitioned_by)


def _open_table(opener: type[DeltaTable], folder: LakePath) -> DeltaTable:
    """Open a table; what the URL of a remote one says of its store is told to deltalake in its own names."""
    if isinstance(folder, Path):
        return opener(str(folder))
    given = dict(parse_qsl(folder.options))
    scheme = given.get("scheme", "https")
    options = {
        "AWS_ENDPOINT_URL": f"{scheme}://{given['endpoint_override']}" if "endpoint_override" in given else None,
        "AWS_ALLOW_HTTP": "true" if scheme == "http" else None,
        "AWS_REGION": given.get("region"),
    }
    return opener(
        f"{folder.store}/{quote(folder.key)}",  # our keys are as they are, its URLs are quoted
        storage_options={name: value for name, value in options.items() if value is not None},
    )


@dataclass(frozen=True)
class Snapshot:
    """The live files of one version of a table, with the values of its partition columns.

    `kind` and `folder` are for messages; `version` is what the table calls the snapshot.
    """

    kind: str
    folder: LakePath
    version: int
    files: tuple[tuple[LakePath, dict[str, str]], ...]
    partitioned_by: tuple[str, ...]


def require_regular_log(folder: LakePath) -> None:
    """Raise unless all that is in the log of a table can be read; libraries wait for pipes, or leave them out."""
    if isinstance(folder, Path):
        for path in list_paths(folder):
            require_regular(path)


def require_files(log: str, folder: LakePath, files: Sequence[LakePath]) -> None:
    """Raise unless all files that a log names are there; a folder of an object store is listed once."""
    present = set(folder.walk()) if isinstance(folder, RemotePath) else None
    for path in files:
        if not (_is_file(path) if present is None else path in present):
            raise BadInput(f"{log} names {cut(path.name)}, which is not there; restore the file, or repair the log")


def _is_file(path: LakePath) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False
