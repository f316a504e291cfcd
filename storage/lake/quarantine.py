"""Set aside rows that cannot be used, with the reason, for a person to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ammrank_dask.storage.lake.events import (
    AFTER_NIGHT,
    BEFORE_1970,
    KEPT,
    NO_USER,
    QUARANTINED,
    TOO_LATE,
    UNKNOWN_CATEGORY,
    UNKNOWN_GROUP,
)
from ammrank_dask.storage.lake.files import EventColumns
from ammrank_dask.storage.objects.atomic import write_atomic
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.site.forgotten import load_forgotten
from ammrank_dask.storage.vocabulary import USER_ID

SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
        (USER_ID, pa.string()),
        ("value", pa.string()),
    ]
)
MAX_ROWS_A_BLOCK = 100_000
"""More bad rows than this of one block are counted, not copied: they say nothing new."""


class QuarantineRows:
    """Collects the bad rows of a block."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.n_rows = 0

    @staticmethod
    def value_columns(columns: EventColumns) -> dict[int, str]:
        """Return the column whose unknown values are worth counting, by reason."""
        return {UNKNOWN_GROUP: columns.group, UNKNOWN_CATEGORY: columns.category}

    def add(self, status: np.ndarray, table: pa.Table, columns: EventColumns, file: str, first_row: int) -> None:
        """Add the bad rows of a batch."""
        if (status == KEPT).all():
            return
        shown = {
            **self.value_columns(columns),
            **dict.fromkeys((BEFORE_1970, TOO_LATE, AFTER_NIGHT), columns.timestamp),
        }
        for code, reason in QUARANTINED.items():
            rows = np.flatnonzero(status == code)[: MAX_ROWS_A_BLOCK - self.n_rows]
            if not len(rows):
                continue
            self.n_rows += len(rows)
            bad = table.take(pa.array(rows))
            value = _as_text(bad.column(shown[code])) if code in shown else pa.nulls(len(rows), pa.string())
            user = _as_text(bad.column(columns.user_id)) if code != NO_USER else pa.nulls(len(rows), pa.string())
            self.add_rows(reason, file, rows + first_row, user, value)

    def add_rows(self, reason: str, file: str, rows: np.ndarray, user: pa.Array, value: pa.Array) -> None:
        """Add rows that have one reason in common."""
        n = len(rows)
        columns = [pa.array([reason] * n), pa.array([file] * n), pa.array(rows, pa.int64()), user, value]
        self.tables.append(pa.table(columns, schema=SCHEMA))


def write_quarantine(path: Path, rows: QuarantineRows) -> None:
    """Write the rows of a block, none if there are none."""
    if rows.tables:
        table = pa.concat_tables(rows.tables)
        write_atomic(path, lambda temporary: pq.write_table(table, temporary, write_page_checksum=True), durable=False)


@retried
def collect_quarantine(parts: Sequence[Path], path: Path, forgotten: Path | None = None) -> None:
    """Put the rows of all blocks into one file; without any there is no file.

    `forgotten` is the folder with the list of users whose rows are not kept.
    """
    on_list = load_forgotten(forgotten)
    found = [part for part in parts if part.is_file()]
    if not found:
        path.unlink(missing_ok=True)
        return

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, SCHEMA, write_page_checksum=True) as writer:
            for part in found:
                table = pq.read_table(part, schema=SCHEMA, page_checksum_verification=True)
                if on_list is not None:
                    known = on_list.texts_on(table.column(USER_ID).combine_chunks())
                    table = table.filter(pa.array(~known))
                writer.write_table(table)

    write_atomic(path, write)


def _as_text(column: pa.ChunkedArray) -> pa.Array:
    plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return pc.cast(plain, pa.string()).combine_chunks()
