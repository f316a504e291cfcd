"""Refuse strings that are no ids or names: a small parquet file may hold gigabytes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.ids import is_string

LONGEST_VALUE = 1 << 10
"""Bytes of the longest id or name. A UUID has 36, an e-mail address at most 254, an encrypted id a few hundred; and a
batch of values of this length still fits into one string array."""
LARGE_CHUNK = 64 << 20
"""Bytes of a column of a row group from which on the header of its dictionary is looked at before it is decoded."""
_BESIDE_VALUE = 64
"""Bytes that a value takes in a column beside its own, generously: length, levels, its share of page headers."""
_HEADER_BYTES = 64
_VARINT = rb"([\x80-\xff]*[\x00-\x7f])"
_DICTIONARY_HEADER = re.compile(
    rb"\x15\x04\x15" + _VARINT + rb"\x15" + _VARINT + rb"(?:\x4c|\x15" + _VARINT + rb"\x3c)\x15" + _VARINT, re.DOTALL
)
"""PageHeader of a dictionary in Thrift's compact protocol: type, bytes, compressed bytes, CRC if any, values."""

ReadAt = Callable[[int, int], bytes]
"""Returns so many bytes of a file (second) from an offset on (first)."""


def long_value(where: str, name: str, length: str) -> BadInput:
    """Return the error about a column with a value that is too long; the value itself is not shown."""
    return BadInput(
        f"{where}: a value of {name!r} may have at most {LONGEST_VALUE:,} bytes, found {length}; shorten or remove it"
    )


def refuse_long_chunks(
    metadata: pq.FileMetaData, row_groups: Sequence[int], columns: Collection[str], where: str, read_at: ReadAt
) -> None:
    """Refuse, before they are decoded, large columns of row groups with values that are too long on average.

    Of a dictionary, too: one value of it may be that of all rows.
    """
    # Of a small row group nothing more is looked at: pyarrow ends the process on some damaged facts about columns.
    large = (group for group in map(metadata.row_group, row_groups) if group.total_byte_size > LARGE_CHUNK)
    for group in large:
        for chunk in map(group.column, range(group.num_columns)):
            name, n_bytes = chunk.path_in_schema, chunk.total_uncompressed_size
            if name not in columns or chunk.physical_type != "BYTE_ARRAY" or n_bytes <= LARGE_CHUNK:
                continue
            _refuse_mean(n_bytes, chunk.num_values, name, where)
            # Not every writer names the offset of the dictionary: it is the first page.
            first_page = chunk.dictionary_page_offset or chunk.data_page_offset
            header = _DICTIONARY_HEADER.match(read_at(first_page, _HEADER_BYTES))
            if header is not None:
                _refuse_mean(_number(header[1]), _number(header[4]), name, where)


def refuse_long_values(dictionary: pa.Array, name: str, where: str) -> None:
    """Refuse a column one of whose values is too long, by the dictionary of a batch."""
    if is_string(dictionary.type) or pa.types.is_binary(dictionary.type) or pa.types.is_large_binary(dictionary.type):
        longest = pc.max(pc.binary_length(dictionary)).as_py() or 0
        if longest > LONGEST_VALUE:
            raise long_value(where, name, f"one of {longest:,}")


def _refuse_mean(n_bytes: int, n_values: int, name: str, where: str) -> None:
    mean = n_bytes // max(1, n_values) - _BESIDE_VALUE
    if mean > LONGEST_VALUE:
        raise long_value(where, name, f"{mean:,} on average")


def _number(varint: bytes) -> int:
    return sum((byte & 127) << 7 * place for place, byte in enumerate(varint)) >> 1
