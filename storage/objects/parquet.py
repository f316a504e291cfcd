"""Encode and decode parquet files in memory: whoever has a checksum of the bytes compares it before they come here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ammrank_dask.storage.objects.atomic import write_file


def encode_parquet(table: pa.Table, **options: Any) -> pa.Buffer:
    """Return the bytes of a parquet file, with a checksum of every page."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True, **options)
    return sink.getvalue()


def decode_parquet(data: bytes, **options: Any) -> pa.Table:
    """Return the table of a parquet file, or what `options` choose of it, and compare the checksum of every page."""
    return pq.read_table(pa.BufferReader(data), page_checksum_verification=True, **options)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a parquet file, whole or not at all."""
    write_file(path, encode_parquet(table))
