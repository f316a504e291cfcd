"""Write the lists of users as records of Avro, in an object container file.

The format is small: numbers are varints, an array is a block of items with their number before it and a zero behind
it, and a file is a header with the schema, and blocks of records between sync markers.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ammrank_dask.storage.store.user_lines import list_columns, plural_of
from ammrank_dask.storage.vocabulary import USER_ID

_MAGIC = b"Obj\x01"
_LEVEL = 1
"""Of compression: names of categories come again and again, and are found at any level."""
_MOST_BYTES = 10
"""Of a varint."""


def avro_header(table: pa.Table) -> bytes:
    """Return the beginning of a file whose records have the lists of the columns of `table`."""
    entries = {b"avro.schema": json.dumps(_schema_of(table)).encode(), b"avro.codec": b"deflate"}
    pairs = b"".join(_sized(key) + _sized(value) for key, value in entries.items())
    return _MAGIC + _long(len(entries)) + pairs + _long(0) + _sync_of(table)


def avro_block(table: pa.Table, ends: np.ndarray) -> bytes:
    """Return the records of users, whose rows end at `ends`, as one block of a file."""
    firsts = pa.array(ends[:-1])
    pieces = [_encode_values(table[USER_ID].combine_chunks().take(firsts))]
    counts = encode_longs(np.diff(ends))
    for name in list_columns(table):
        column = table[name].combine_chunks()
        if pa.types.is_boolean(column.type):
            pieces.append(_encode_values(column.take(firsts)))
            continue
        lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), _encode_values(column))
        pieces += [counts, pc.binary_join(lists, pa.scalar(b"", pa.binary())), pa.scalar(b"\0", pa.binary())]
    records = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))
    packer = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
    data = packer.compress(b"".join(records.to_pylist())) + packer.flush()
    return _long(len(records)) + _sized(data) + _sync_of(table)


def encode_longs(values: np.ndarray) -> pa.Array:
    """Return integers as Avro writes them: the sign last, seven bits a byte, the lowest first.

    Examples
    --------
    >>> encode_longs(np.array([0, -1, 1, 64])).to_pylist()
    [b'\\x00', b'\\x01', b'\\x02', b'\\x80\\x01']
    """
    numbers = values.astype(np.int64)
    left = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    digits = left[:, None] >> (np.uint64(7) * np.arange(_MOST_BYTES, dtype=np.uint64))
    lengths = np.maximum(1, (digits > 0).sum(axis=1))
    data = (digits & np.uint64(0x7F)).astype(np.uint8)
    at = np.arange(_MOST_BYTES)
    data[at < lengths[:, None] - 1] |= 0x80
    return _binaries(data[at < lengths[:, None]], np.append(0, np.cumsum(lengths)))


def _encode_values(column: pa.Array) -> pa.Array:
    """Return every value of a column as Avro writes it."""
    if pa.types.is_dictionary(column.type):
        return _encode_values(column.dictionary).take(column.indices)
    if pa.types.is_integer(column.type):
        return encode_longs(column.to_numpy())
    if pa.types.is_boolean(column.type):
        return pc.if_else(column, pa.scalar(b"\1", pa.binary()), pa.scalar(b"\0", pa.binary()))
    if pa.types.is_floating(column.type):
        values = column.to_numpy().astype("<f4")
        return _binaries(values.view(np.uint8), np.arange(len(values) + 1) * values.itemsize)
    texts = column.cast(pa.string()).cast(pa.binary())
    return pc.binary_join_element_wise(
        encode_longs(pc.binary_length(texts).to_numpy()), texts, pa.scalar(b"", pa.binary())
    )


def _schema_of(table: pa.Table) -> dict[str, Any]:
    id_type = "long" if pa.types.is_integer(table[USER_ID].type) else "string"
    fields: list[dict[str, Any]] = [{"name": USER_ID, "type": id_type}]
    for name in list_columns(table):
        kind = table[name].type
        if pa.types.is_boolean(kind):
            fields.append({"name": name, "type": "boolean"})
            continue
        items = "float" if pa.types.is_floating(kind) else "string"
        fields.append({"name": plural_of(name), "type": {"type": "array", "items": items}})
    return {"type": "record", "name": "user_lists", "namespace": "ammrank", "fields": fields}


def _sync_of(table: pa.Table) -> bytes:
    """Return the sixteen bytes between blocks: by chance for others, here the same for the same schema."""
    return hashlib.sha256(json.dumps(_schema_of(table)).encode()).digest()[:16]


def _binaries(data: np.ndarray, offsets: np.ndarray) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _long(value: int) -> bytes:
    encoded: bytes = encode_longs(np.array([value]))[0].as_py()
    return encoded


def _sized(data: bytes) -> bytes:
    return _long(len(data)) + data
