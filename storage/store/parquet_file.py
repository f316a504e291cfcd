"""Write parquet files from columns that are encoded already: what is around the values, and no value is looked at.

A row group has one page a column, and one for its dictionary; nothing is compressed. The encodings are those of the
first version of the format, which every reader knows: plain values, or the numbers of entries of a dictionary, in runs
or bit by bit. A general writer has to find out what is known here, value by value: which ones repeat, that none is
missing, and that two files have the same column.

The format is that of https://parquet.apache.org/docs/file-format, its footer in the compact protocol of Thrift.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ammrank_dask.storage.store.large_files import Bytes, n_bytes

_MAGIC = b"PAR1"
_CREATED_BY = "ammrank-dask version 1"
"""As `NAME version NUMBER`, which readers take apart to know a writer's mistakes."""
_BOOL, _BYTE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 3, 5, 6, 8, 9, 12
"""Types of Thrift; a true boolean is its own type."""
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_TYPES = {
    pa.bool_(): 0, pa.int16(): 1, pa.int32(): 1, pa.int64(): 2, pa.float32(): 4, pa.float64(): 5, pa.string(): 6,
    pa.large_string(): 6,
}  # fmt: skip
_CONVERTED_TEXT, _CONVERTED_INT16 = 0, 16
_SMALL = [bytes([number]) for number in range(1 << 7)]


@dataclass(frozen=True)
class EncodedColumn:
    """One column of a row group.

    `values` are, in pieces, those that are not missing: plain, or with a `dictionary` of `n_entries` plain values their
    numbers, led by the width of a number. `levels` say of a nullable column which values there are. `lowest` and
    `highest` are plain values, for readers that look for some.
    """

    field: pa.Field
    values: Sequence[Bytes]
    dictionary: Bytes | None = None
    n_entries: int = 0
    levels: bytes = b""
    lowest: bytes | None = None
    highest: bytes | None = None


@dataclass(frozen=True)
class RowGroup:
    """Rows of a file; all groups of a file have the same fields."""

    n_rows: int
    columns: Sequence[EncodedColumn]


def encode_file(groups: Sequence[RowGroup]) -> list[Bytes]:
    """Return the bytes of a file, in pieces that follow each other; it has one group at least."""
    pieces: list[Bytes] = [_MAGIC]
    at, written = len(_MAGIC), []
    for group in groups:
        start, chunks = at, []
        for column in group.columns:
            dictionary, values = _pages(column, group.n_rows)
            sizes = sum(map(n_bytes, dictionary)), sum(map(n_bytes, values))
            chunks.append(_chunk(column, group.n_rows, at, sizes))
            pieces += [*dictionary, *values]
            at += sum(sizes)
        columns = _list(_STRUCT, chunks)
        written.append(_struct((1, _LIST, columns), (2, _I64, at - start), (3, _I64, group.n_rows)))
    footer = _footer(pa.schema([column.field for column in groups[0].columns]), groups, written)
    return [*pieces, footer, len(footer).to_bytes(4, "little"), _MAGIC]


def all_present(n_rows: int) -> bytes:
    """Return the levels of a nullable column that misses nothing."""
    return _sized(run_header(n_rows) + b"\1")


def present_where(bits: bytes) -> bytes:
    """Return the levels of a nullable column; of every row there is one bit, from the lowest, in whole bytes."""
    return _sized(packed_header(len(bits)) + bits)


def run_header(n_values: int) -> bytes:
    """Return what stands before a number that so many values have."""
    return _varint(n_values << 1)


def packed_header(n_eights: int) -> bytes:
    """Return what stands before so many times eight numbers that are packed bit by bit."""
    return _varint(n_eights << 1 | 1)


def _sized(levels: bytes) -> bytes:
    return len(levels).to_bytes(4, "little") + levels


def _pages(column: EncodedColumn, n_rows: int) -> tuple[list[Bytes], list[Bytes]]:
    """Return the page of a column's dictionary, if it has one, and that of its values: a header and what follows it."""
    dictionary: list[Bytes] = []
    encoding = _PLAIN
    if column.dictionary is not None:
        encoding = _RLE_DICTIONARY
        about = _struct((1, _I32, column.n_entries), (2, _I32, _PLAIN))
        header = _page_header(_DICTIONARY_PAGE, [column.dictionary], (7, _STRUCT, about))
        dictionary = [header, column.dictionary]
    about = _struct((1, _I32, n_rows), (2, _I32, encoding), (3, _I32, _RLE), (4, _I32, _RLE))
    content = [column.levels, *column.values] if column.levels else column.values
    return dictionary, [_page_header(_DATA_PAGE, content, (5, _STRUCT, about)), *content]


def _page_header(kind: int, content: Iterable[Bytes], about: tuple[int, int, Any]) -> bytes:
    size = sum(map(n_bytes, content))
    return _struct((1, _I32, kind), (2, _I32, size), (3, _I32, size), about)


def _chunk(column: EncodedColumn, n_rows: int, start: int, sizes: tuple[int, int]) -> bytes:
    """Return the entry of a column of a row group, whose pages of dictionary and values begin at `start`."""
    has_dictionary = column.dictionary is not None
    found = None
    if column.lowest is not None and n_rows:
        found = _struct((3, _I64, 0), (5, _BINARY, column.highest), (6, _BINARY, column.lowest))
    about = _struct(
        (1, _I32, _TYPES[_value_type(column.field.type)]),
        (2, _LIST, _encodings(has_dictionary)),
        (3, _LIST, _list(_BINARY, [_text(column.field.name)])),
        (4, _I32, 0),
        (5, _I64, n_rows),
        (6, _I64, sum(sizes)),
        (7, _I64, sum(sizes)),
        (9, _I64, start + sizes[0]),
        (11, _I64, start if has_dictionary else None),
        (12, _STRUCT, found),
    )
    return _struct((2, _I64, 0), (3, _STRUCT, about))


def _footer(schema: pa.Schema, groups: Sequence[RowGroup], written: Sequence[bytes]) -> bytes:
    elements, arrow_schema, orders = _describe(schema)
    return _struct(
        (1, _I32, 2),
        (2, _LIST, elements),
        (3, _I64, sum(group.n_rows for group in groups)),
        (4, _LIST, _list(_STRUCT, written)),
        (5, _LIST, arrow_schema),
        (6, _BINARY, _CREATED_BY.encode()),
        (7, _LIST, orders),
    )


@functools.cache
def _encodings(has_dictionary: bool) -> bytes:
    encodings = [_RLE, _PLAIN, *([_RLE_DICTIONARY] if has_dictionary else [])]
    return _list(_I32, [_zigzag(encoding) for encoding in encodings])


@functools.lru_cache(maxsize=64)
def _describe(schema: pa.Schema) -> tuple[bytes, bytes, bytes]:
    """Return what a footer says of a schema: its elements, how Arrow has them, and that values order as their types."""
    root = _struct((3, _I32, 0), (4, _BINARY, b"schema"), (5, _I32, len(schema)))
    elements = _list(_STRUCT, [root, *(_element(field) for field in schema)])
    text = base64.b64encode(schema.serialize().to_pybytes())
    pair = _struct((1, _BINARY, b"ARROW:schema"), (2, _BINARY, text))
    by_type = _struct((1, _STRUCT, _struct()))
    return elements, _list(_STRUCT, [pair]), _list(_STRUCT, [by_type] * len(schema))


def _element(field: pa.Field) -> bytes:
    kind, converted, logical = _value_type(field.type), None, None
    if kind in (pa.string(), pa.large_string()):
        converted, logical = _CONVERTED_TEXT, _struct((1, _STRUCT, _struct()))
    if kind == pa.int16():
        converted, logical = _CONVERTED_INT16, _struct((10, _STRUCT, _struct((1, _BYTE, 16), (2, _BOOL, True))))
    return _struct(
        (1, _I32, _TYPES[kind]), (3, _I32, int(field.nullable)), (4, _BINARY, field.name.encode()),
        (6, _I32, converted), (10, _STRUCT, logical),
    )  # fmt: skip


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _struct(*fields: tuple[int, int, Any]) -> bytes:
    """Return a struct of fields (number, type, value), ascending by number; one that is None is left out."""
    written, last = bytearray(), 0
    for number, kind, value in fields:
        if value is None:
            continue
        written.append((number - last) << 4 | kind)
        last = number
        if kind in (_I32, _I64):
            written += _zigzag(value)
        elif kind == _BINARY:
            written += _varint(len(value)) + value
        elif kind == _BYTE:
            written.append(value)
        elif kind != _BOOL:
            written += value
    written.append(0)
    return bytes(written)


def _list(kind: int, elements: Sequence[bytes]) -> bytes:
    n = len(elements)
    head = bytes([n << 4 | kind]) if n < 15 else bytes([0xF0 | kind]) + _varint(n)
    return head + b"".join(elements)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _varint(len(encoded)) + encoded


def _zigzag(number: int) -> bytes:
    return _varint(number << 1)  # no number here is below zero


def _varint(number: int) -> bytes:
    if number < len(_SMALL):
        return _SMALL[number]
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
