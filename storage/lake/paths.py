"""Name, list and open files of a lake, on this machine or in an object store, with the calls of `pathlib`.

A path of this machine is a plain `Path`. A `RemotePath` has those calls of it that readers of a lake need; it goes
through `pyarrow.fs`, and where that does not know the scheme of a URL through the package of fsspec that does.
Credentials come from the environment, as these libraries look for them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from ammrank_dask.storage.errors import AmmrankError, BadInput, StoreFailed, cut
from ammrank_dask.storage.objects.atomic import temporary_beside
from ammrank_dask.storage.objects.folders import (
    is_file,
    make_folder,
    refuse_lost_link,
    regular_status,
    remove,
    rename,
    require_regular,
)
from ammrank_dask.storage.objects.retry import retried

REQUESTS_AT_ONCE = 16
READ_BYTES = 1 << 23
"""Bytes of a remote file that are held at a time where it is read from end to end."""

GCS_SECONDS = 60
"""How long a request of Google's store is tried again, unless the URL says otherwise."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_REFUSED = re.compile(
    r"ACCESS_DENIED|AccessDenied|PermissionDenied|Forbidden|INVALID_ACCESS_KEY|InvalidAccessKey|SIGNATURE|"
    r"Expired|EXPIRED|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|Credential|credential|HTTP status 40[013]|InvalidToken"
)
_OF_A_STORE = re.compile(r"AWS Error|curlCode|HTTP status|google::cloud|GOOGLE_CLOUD|Azure|errno 11[01]|Timeout")
_STAMPS = ("ETag", "etag", "LastModified", "last_modified", "updated", "mtime", "created", "md5Hash")
"""What packages of fsspec call the version or the time of a file."""

Item = TypeVar("Item")
Result = TypeVar("Result")


FOLDER = "fetched"
BYTES_KEPT = 2 << 30
"""Bytes of the copies of a command; files beyond are read from the store a second time, their columns only."""


class FileStatus(NamedTuple):
    """Size and time of a remote file, under the names that `os.stat` has for them."""

    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder in an object store.

    Attributes
    ----------
    store
        Scheme and bucket, for example `s3://logs`.
    key
        The path in it, without a slash at either end.
    options
        The query of the URL, for example `endpoint_override=…`; it goes with every path below.
    listed, is_listed_folder
        What a listing said of a file or folder: asking for it then takes no request.
    """

    store: str
    key: str
    options: str = ""
    listed: FileStatus | None = field(default=None, compare=False, repr=False)
    is_listed_folder: bool = field(default=False, compare=False, repr=False)

    @classmethod
    def parse(cls, url: str) -> RemotePath:
        """Return the path that a URL names.

        Examples
        --------
        >>> path = RemotePath.parse("s3://logs/shop/events?region=eu-west-1")
        >>> str(path / "date=2026-03-05"), path.name, str(path.parent)
        ('s3://logs/shop/events/date=2026-03-05?region=eu-west-1', 'events', 's3://logs/shop?region=eu-west-1')
        """
        address, _, options = url.partition("?")
        parts = urlsplit(address)
        if "@" in parts.netloc and parts.scheme.startswith("s3"):
            raise BadInput(f"a URL of {parts.scheme}:// must not hold credentials; give them in the environment")
        scheme, _, rest = address.partition("://")
        bucket, _, key = rest.partition("/")
        return cls(f"{scheme.lower()}://{bucket}", "/".join(part for part in key.split("/") if part), options)

    def __str__(self) -> str:
        text = f"{self.store}/{self.key}" if self.key else self.store
        return f"{text}?{self.options}" if self.options else text

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.store, f"{self.key}/{name}" if self.key else str(name), self.options)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(self.key).name

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> RemotePath:
        """The folder that the path is in; of a bucket the bucket itself."""
        return RemotePath(self.store, self.key.rpartition("/")[0], self.options)

    def relative_to(self, other: RemotePath) -> PurePosixPath:
        """Return the path below another one."""
        return PurePosixPath(self.key).relative_to(other.key)

    def is_dir(self) -> bool:
        """Return whether files are below the path."""
        return self.is_listed_folder or (self.listed is None and self._type() == fs.FileType.Directory)

    def is_file(self) -> bool:
        """Return whether it is a file."""
        return self.listed is not None or self._type() == fs.FileType.File

    def exists(self) -> bool:
        """Return whether it is a file or a folder."""
        return self.listed is not None or self.is_listed_folder or self._type() != fs.FileType.NotFound

    def stat(self) -> FileStatus:
        """Return size and time as a listing said, or else as they are now; FileNotFoundError for what is gone."""
        return self.listed or self.ask()

    def ask(self) -> FileStatus:
        """Return size and time as they are now."""
        with say_failures(self):
            found = open_store(self.store, self.options)
            info = found.filesystem.get_file_info(found.path(self.key))
        if info.type != fs.FileType.File:
            raise FileNotFoundError(2, "there is no such file", str(self))
        return found.status(info)

    def iterdir(self) -> list[RemotePath]:
        """Return the files and folders directly in a folder, by name."""
        return self._list(recursive=False, files_only=False)

    def walk(self) -> list[RemotePath]:
        """Return all files below a folder, by name."""
        return self._list(recursive=True, files_only=True)

    def open(self) -> pa.NativeFile:
        """Open a file to read from any position of it."""
        with say_failures(self):
            found = open_store(self.store, self.options)
            return found.filesystem.open_input_file(found.path(self.key))

    def read_bytes(self) -> bytes:
        """Return all bytes of a file."""
        with self.open() as file, say_failures(self):
            return bytes(file.read())

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return a file as text."""
        return self.read_bytes().decode(encoding)

    def _type(self) -> fs.FileType:
        with say_failures(self):
            found = open_store(self.store, self.options)
            return found.filesystem.get_file_info(found.path(self.key)).type

    def _list(self, *, recursive: bool, files_only: bool) -> list[RemotePath]:
        with say_failures(self):
            found = open_store(self.store, self.options)
            chosen = fs.FileSelector(found.path(self.key), recursive=recursive, allow_not_found=True)
            infos = found.filesystem.get_file_info(chosen)
            return sorted(
                RemotePath(
                    self.store,
                    found.key(info.path),
                    self.options,
                    found.status(info) if info.is_file else None,
                    not info.is_file,
                )
                for info in infos
                if info.is_file or not files_only
            )


LakePath = Path | RemotePath


def parse_path(text: str) -> LakePath:
    """Return the path that a text names: a URL, or a path of this machine."""
    if not is_url(text):
        return Path(text)
    if text.lower().startswith("file://"):
        return Path(urlsplit(text).path)
    return RemotePath.parse(text)


def is_url(text: str) -> bool:
    """Return whether a text is a URL, and not a path of this machine.

    Examples
    --------
    >>> is_url("s3://logs/events"), is_url("../lake/events"), is_url("C:/lake")
    (True, False, False)
    """
    return _URL.match(text) is not None


def list_folder(folder: LakePath) -> list[LakePath]:
    """Return the files and folders directly in a folder, by name."""
    return sorted(folder.iterdir(), key=lambda path: path.name)


@retried
def exists(path: LakePath) -> bool:
    """Return whether there is a file or folder of that name."""
    return path.exists()


@retried
def is_lake_file(path: LakePath) -> bool:
    """Return whether there is a file of that name."""
    return path.is_file()


@retried
def is_lake_folder(path: LakePath) -> bool:
    """Return whether there is a folder of that name; refuse a link that leads nowhere, which may have been one."""
    if path.is_dir():
        return True
    refuse_lost_link(path)
    return False


def status_of(path: LakePath) -> os.stat_result | FileStatus:
    """Return size and time of a file, as a listing said or as they are now; refuse what is none."""
    return regular_status(path) if isinstance(path, Path) else path.stat()


def size_of(path: LakePath) -> int:
    """Return the bytes of a file, as a listing said or as they are now."""
    return status_of(path).st_size


@retried
def current_status(path: LakePath) -> tuple[int, int]:
    """Return size and time of a file as they are now, whatever a listing said."""
    status = status_of(path) if isinstance(path, Path) else path.ask()
    return status.st_size, status.st_mtime_ns


def open_file(path: LakePath) -> Any:
    """Open a file to read its bytes from any position."""
    if not isinstance(path, Path):
        return path.open()
    require_regular(path)
    return open(path, "rb")


def etag_of(file: Any) -> str:
    """Return what an object store calls the version of the bytes of an open file; empty for a file of this machine."""
    try:
        metadata = file.metadata()
    except AttributeError:
        return ""
    found = metadata.get("ETag") or metadata.get("etag") or b""
    return found.decode() if isinstance(found, bytes) else str(found)


def digest_lake_file(path: LakePath) -> str:
    """Return the SHA-256 of a file's bytes."""
    try:
        with open_file(path) as file:
            return digest_open_file(file)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; check the file and its permissions") from None


def read_table(path: LakePath) -> pa.Table:
    """Read a small parquet file whole."""
    require_regular(path)
    with say_failures(path):
        data = pa.BufferReader(path.read_bytes())
    try:
        table = pq.read_table(data, page_checksum_verification=True)
        _ = table.column_names  # which need not be text in a damaged file
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(str(error)) from None
    return table


def digest_open_file(file: Any) -> str:
    """Return the SHA-256 of all bytes of an open file."""
    total = hashlib.sha256()
    file.seek(0)
    while data := file.read(READ_BYTES):
        total.update(data)
    return total.hexdigest()


def map_at_once(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of a function that mostly waits for a store, called many times at once, in order."""
    listed = list(items)
    if len(listed) < 2:
        return [function(item) for item in listed]
    with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(listed))) as pool:
        return list(pool.map(function, listed))


@contextlib.contextmanager
def say_failures(path: LakePath) -> Iterator[None]:
    """Turn what goes wrong with a store into one sentence; a file that is not there stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        if isinstance(path, Path):
            raise
        raise store_failure(path, error) or error from None


def store_failure(path: LakePath, error: BaseException) -> AmmrankError | None:
    """Return the error to raise for what an object store answered, None for what is wrong with a file itself."""
    text, reason = str(error), cut(str(error))
    if isinstance(path, Path) or not (isinstance(error, OSError) and _OF_A_STORE.search(text)):
        return None
    if "NO_SUCH_BUCKET" in text:
        return BadInput(f"there is no bucket {path.store}; correct the URL {path}")
    if _REFUSED.search(text):
        return BadInput(
            f"{path} cannot be read: the store refuses the credentials of this process ({reason}); renew them, or give"
            " them the right to list and to read"
        )
    return StoreFailed(f"{path} cannot be reached ({reason}); what is published is whole, run the command again")


@dataclass(frozen=True)
class _Store:
    """An open file system, and where in it the keys of a bucket begin."""

    filesystem: fs.FileSystem
    base: str

    def path(self, key: str) -> str:
        return "/".join(part for part in (self.base, key) if part)

    def key(self, path: str) -> str:
        return path.strip("/").removeprefix(self.base.strip("/")).strip("/")

    def status(self, info: fs.FileInfo) -> FileStatus:
        """Return size and time; what fsspec knows instead of a time stands for it as a number."""
        time = info.mtime_ns
        if time is None and isinstance(self.filesystem, fs.PyFileSystem):
            known = self.filesystem.handler.fs.info(info.path)
            stamp = str([known.get(name) for name in _STAMPS])
            time = int.from_bytes(hashlib.sha256(stamp.encode()).digest()[:7])
        return FileStatus(int(info.size), int(time or 0))


def _url_of(store: str, options: str) -> str:
    """Return the URL of a bucket; Google's library would try for 15 minutes to reach a store that does not answer.

    Examples
    --------
    >>> _url_of("gs://logs", "scheme=http"), _url_of("s3://logs", "")
    ('gs://logs/?scheme=http&retry_limit_seconds=60', 's3://logs/')
    """
    if store.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in options:
        options = "&".join(part for part in (options, f"retry_limit_seconds={GCS_SECONDS}") if part)
    return f"{store}/?{options}" if options else f"{store}/"


@functools.lru_cache(maxsize=64)
def open_store(store: str, options: str) -> _Store:
    """Return the file system of a bucket; one for each is open in a process."""
    try:
        filesystem, base = fs.FileSystem.from_uri(_url_of(store, options))
        return _Store(filesystem, base.rstrip("/"))
    except pa.ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise BadInput(f"{store}: the URL is not understood ({error}); correct it") from None
    except (pa.ArrowNotImplementedError, NotImplementedError, ImportError):
        pass
    try:
        import fsspec

        filesystem, base = fsspec.core.url_to_fs(f"{store}/")
    except (ImportError, ValueError) as error:
        scheme, reason = store.partition(":")[0], " ".join(str(error).split())
        raise BadInput(
            f"{store} cannot be read: there is no support for {scheme}:// here ({reason}); install the package of"
            " fsspec that has it, or name a local folder, s3:// or gs://"
        ) from None
    return _Store(fs.PyFileSystem(fs.FSSpecHandler(filesystem)), base.strip("/"))


def keep_fetched(source: Any, folder: Path) -> tuple[str, Path]:
    """Copy an open file from its position on, a piece at a time; return the SHA-256 of its bytes and the copy."""
    make_folder(folder)
    total = hashlib.sha256()
    temporary = temporary_beside(folder / "object")
    try:
        with open(temporary, "wb") as target:
            while data := source.read(READ_BYTES):
                total.update(data)
                target.write(data)
        copy = folder / total.hexdigest()
        rename(temporary, copy)
    finally:
        remove(temporary)
    return total.hexdigest(), copy


def find_fetched(folder: Path | None, digest: str) -> Path | None:
    """Return the copy of the file with a digest, None when there is none."""
    if folder is None or not digest or not is_file(folder / digest):
        return None
    return folder / digest
