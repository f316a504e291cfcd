"""Read the log of a Delta Lake table: which of its files are alive in its newest snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ammrank_dask.storage.errors import BadInput

DELTA_LOG = "_delta_log"
_HARMLESS_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""What a table may ask of readers without that its parquet files stop being its rows."""


@dataclass(frozen=True)
class Snapshot:
    """The live files of one version of a table, with the values of its partition columns."""

    version: int
    files: tuple[tuple[Path, dict[str, str]], ...]
    partitioned_by: tuple[str, ...]


def is_delta(folder: Path) -> bool:
    """Tell whether a folder is the root of a Delta Lake table."""
    return (folder / DELTA_LOG).is_dir()


def read_snapshot(folder: Path) -> Snapshot:
    """Return the newest snapshot of a table; the files of a table with deleted rows or renamed columns are refused."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise BadInput(
            f"{folder} is a table of Delta Lake; install what reads its log with `pip install 'ammrank-dask[delta]'`"
        ) from None
    try:
        table = DeltaTable(str(folder))
        asked = set(table.protocol().reader_features or ())
        if table.protocol().min_reader_version == 2:
            asked.add("columnMapping")
        partitioned_by = tuple(table.metadata().partition_columns)
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        version = table.version()
    except (DeltaError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"the log of the Delta Lake table at {folder} cannot be read ({reason}); repair it") from None
    refused = sorted(asked - _HARMLESS_FEATURES)
    if refused:
        raise BadInput(
            f"the Delta Lake table at {folder} uses {', '.join(refused)}, with which its rows are not those of its"
            " parquet files; rewrite it without them (deletion vectors go with `REORG TABLE … APPLY (PURGE)`)"
        )
    files = [
        (folder / action["path"], {name: str(action[f"partition.{name}"]) for name in partitioned_by})
        for action in actions
    ]
    for path, _ in files:
        if not path.is_file():
            raise BadInput(
                f"the log of the Delta Lake table at {folder} names {path.name}, which is not there; restore the file,"
                " or repair the log"
            )
    return Snapshot(version, tuple(sorted(files, key=lambda file: file[0])), partitioned_by)
