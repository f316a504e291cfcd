"""Keep the files of a part in one file: a zip without compression, which plain zarr opens (`zarr.storage.ZipStore`).

The directory at the end of a zip says where every file is. Here it also has the CRC-32C of each, and the comment of the
zip has the counts of the part and the checksum of the directory. So a reader opens one file, reads its end, and then
reads what it needs by offset; the checksum of the end stands for the whole part.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import google_crc32c
import numpy as np

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.store.atomic import write_atomic
from ammrank_dask.storage.store.large_files import Bytes, open_large, write_pieces

MAX_BYTES = (1 << 32) - 1
"""Where a zip without further extensions ends."""

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_CHECKSUM = struct.Struct("<HHI")
_END = struct.Struct("<4s4H2IH")
_VERSION = 20
_UNIX = 3 << 8
_FILE_MODE = 0o100644 << 16
_DATE = (1 << 5) | 1  # 1980-01-01, the first day of a zip: the time of writing is in no file
_CHECKSUM_ID = 0x3243
_TAIL_BYTES = 8192
"""What is read of the end at first: the directory of most parts is smaller."""


class Entry(NamedTuple):
    """One file in a container: where its bytes begin, how many there are, their CRC-32C and CRC-32."""

    start: int
    size: int
    checksum: int
    crc32: int


def write_container(path: Path, files: Mapping[str, bytes], counts: Mapping[str, int]) -> tuple[int, str]:
    """Write files into one container under a temporary name and rename it; return its size and its checksum.

    The end of the run syncs it.

    Parameters
    ----------
    counts
        What is to be told of the part without reading it.
    """
    total = sum(
        len(data) + 2 * len(name) + _LOCAL.size + _CENTRAL.size + _CHECKSUM.size for name, data in files.items()
    )
    if total > MAX_BYTES - _TAIL_BYTES or len(files) >= 1 << 16:
        raise BadInput(f"{path} would have {total:,} bytes; a part must have less than 4 GiB: use more partitions")
    chunks: list[bytes] = []
    directory: list[bytes] = []
    at = 0
    for name, data in files.items():
        encoded = name.encode()
        crc32 = zlib.crc32(data)
        header = _local_header(encoded, crc32, len(data))
        chunks += [header, data]
        directory.append(_directory_entry(encoded, crc32, google_crc32c.value(data), len(data), at))
        at += len(header) + len(data)
    listed = b"".join(directory)
    about = {**counts, "entries": len(files), "directory": _checksum_of(listed)}
    comment = json.dumps(about, sort_keys=True).encode()
    end = _END.pack(b"PK\5\6", 0, 0, len(files), len(files), len(listed), at, len(comment))
    pieces = [*chunks, listed, end, comment]
    write_atomic(path, lambda temporary: write_pieces(temporary, pieces), durable=False)
    return at + len(listed) + len(end) + len(comment), _checksum_of(listed + end + comment)


class Container:
    """An open container: its counts, its entries, and their bytes after they are checked.

    Raises DamagedStore, with what to do about it (`remedy`), when it is not what was written. Say when little
    of it is wanted, not the `whole`.
    """

    def __init__(self, path: Path, expected: str | None, remedy: str, *, whole: bool = True) -> None:
        self.path = path
        self.remedy = remedy
        try:
            self._file = open_large(path, whole=whole)
        except FileNotFoundError:
            raise DamagedStore(f"{path} is missing; {remedy}") from None
        try:
            self.size = self._file.size
            self.entries, self.about, self.checksum = self._read_end()
        except BaseException:
            self._file.close()
            raise
        if expected is not None and self.checksum != expected:
            self._file.close()
            raise DamagedStore(f"{path} is not the part in the manifest (checksum differs); {remedy}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __call__(self, name: str) -> bytes:
        """Return the bytes of an entry."""
        return bytes(self.lend(name))

    def lend(self, name: str) -> Bytes:
        """Return the bytes of an entry until something else is read."""
        entry = self.entries.get(name)
        if entry is None:
            raise DamagedStore(f"{self.path / name} is missing; {self.remedy}")
        data = self._file.lend(entry.start, entry.size)
        self._check_entry(name, len(data), google_crc32c.value(data))
        return data

    def expect(self, name: str) -> None:
        """Begin to read an entry, if there is one of that name, that will be asked for soon."""
        entry = self.entries.get(name)
        if entry is not None:
            self._file.expect(entry.start, entry.size)

    def has_size(self, name: str, size: int) -> bool:
        """Tell whether there is an entry of that size."""
        entry = self.entries.get(name)
        return entry is not None and entry.size == size

    def read_behind(self, name: str, n_bytes: int, target: np.ndarray) -> bytes:
        """Return the first bytes of an entry, after all that follows them is read to where it is wanted."""
        entry = self.entries[name]
        head = np.empty(n_bytes, np.uint8)
        n_read = self._file.read_into([head, target.reshape(-1).view(np.uint8)], entry.start)
        self._check_entry(name, n_read, google_crc32c.extend(google_crc32c.value(head), target))
        return head.tobytes()

    def _check_entry(self, name: str, n_read: int, checksum: int) -> None:
        entry = self.entries[name]
        if n_read != entry.size or checksum != entry.checksum:
            raise DamagedStore(f"{self.path / name} is not what was written (checksum differs); {self.remedy}")

    def check(self) -> int:
        """Check every byte, those between the entries too; return how many there are."""
        at = 0
        for name, entry in self.entries.items():
            header = _local_header(name.encode(), entry.crc32, entry.size)
            if entry.start != at + len(header) or self._file.read(at, len(header)) != header:
                raise DamagedStore(f"{self.path / name} is not what was written (its header differs); {self.remedy}")
            self.lend(name)
            at = entry.start + entry.size
        return self.size

    def _read_end(self) -> tuple[dict[str, Entry], dict[str, Any], str]:
        """Return the entries by name, what the comment says, and the checksum of both."""
        tail = self._read_tail(_TAIL_BYTES)
        at = tail.rfind(b"PK\5\6")
        if at < 0 or len(tail) < at + _END.size:
            raise self._cut()
        _, _, _, _, n_entries, size, start, length = _END.unpack_from(tail, at)
        if start + size + len(tail) - at != self.size or len(tail) - at != _END.size + length:
            raise self._cut()
        if start < self.size - len(tail):
            tail = self._read_tail(self.size - start)
            at = size
        end = tail[at - size :]
        try:
            about = json.loads(end[size + _END.size :])
            entries = self._parse_directory(end[:size])
            n_written, checksum = about["entries"], about["directory"]
        except DamagedStore:
            raise
        except (ValueError, KeyError, TypeError, struct.error):
            raise self._damaged("its directory cannot be read") from None
        if n_entries != n_written:
            raise self._damaged(f"it has {n_entries} entries, {n_written} were written")
        if _checksum_of(end[:size]) != checksum:
            raise self._damaged("the checksum of its directory differs")
        return entries, about, _checksum_of(end)

    def _read_tail(self, n_bytes: int) -> bytes:
        n_bytes = min(n_bytes, self.size)
        return self._file.read(self.size - n_bytes, n_bytes)

    def _parse_directory(self, directory: bytes) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        at = 0
        while at < len(directory):
            fields = _CENTRAL.unpack_from(directory, at)
            crc32, size, name_size, extra_size, header = fields[7], fields[9], fields[10], fields[11], fields[16]
            at += _CENTRAL.size
            name = directory[at : at + name_size].decode()
            at += name_size
            if name in entries:
                raise self._damaged(f"it has the entry {name} twice")
            kind, _, checksum = _CHECKSUM.unpack_from(directory, at)
            if kind != _CHECKSUM_ID:
                raise self._damaged(f"its entry {name} has no checksum")
            entries[name] = Entry(header + _LOCAL.size + name_size, size, checksum, crc32)
            at += extra_size + fields[12]
        return entries

    def _cut(self) -> DamagedStore:
        return self._damaged("it is cut short")

    def _damaged(self, why: str) -> DamagedStore:
        return DamagedStore(f"{self.path} is not what was written ({why}); {self.remedy}")


def _checksum_of(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"


def _local_header(name: bytes, crc32: int, size: int) -> bytes:
    return _LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, 0, _DATE, crc32, size, size, len(name), 0) + name


def _directory_entry(name: bytes, crc32: int, checksum: int, size: int, start: int) -> bytes:
    head = _CENTRAL.pack(
        b"PK\1\2", _UNIX | _VERSION, _VERSION, 0, 0, 0, _DATE, crc32, size, size, len(name), _CHECKSUM.size,
        0, 0, 0, _FILE_MODE, start,
    )  # fmt: skip
    return head + name + _CHECKSUM.pack(_CHECKSUM_ID, 4, checksum)
