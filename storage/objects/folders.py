"""List, make, rename and remove files and folders of a shared file system; passing failures are retried."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.objects.retry import is_passing, retried

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""The beginning of a URL, also of one that `Path` has taken a slash from."""
_NO_FILES = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
"""Names of what is neither a file nor a folder, by type."""


def local_path(path: str | Path, name: str = "path") -> Path:
    """Return the absolute path of a folder; refuse a URL, for which `Path` would stand for a local folder called `s3:`.

    Workers get it with their tasks, and theirs may be another current folder.

    Examples
    --------
    >>> local_path("/data/features").parts
    ('/', 'data', 'features')
    """
    url = _URL.match(str(path))
    if url is not None:
        raise BadInput(
            f"{name} must be a folder of a file system that all workers see, got a URL of {url[1]}://; give a path,"
            " for only lakes are read from object stores"
        )
    return Path(path).absolute()


@retried
def regular_status(path: Path) -> os.stat_result:
    """Return what `Path.stat` does; refuse links that lead nowhere, and named pipes, sockets and devices.

    Who opens a pipe waits for a writer, perhaps for ever, and some devices never end.
    """
    try:
        status = path.stat()
    except OSError:
        refuse_lost_link(path)
        raise
    kind = _NO_FILES.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise BadInput(f"{path} must be a regular file, found a {kind}; replace or remove it")
    return status


def require_regular(path: object) -> None:
    """Refuse what `regular_status` refuses before it is opened; who opens a file says that it is not there.

    Paths of an object store pass: it has nothing but files.
    """
    if isinstance(path, Path):
        with contextlib.suppress(OSError):
            regular_status(path)


def refuse_lost_link(path: object) -> None:
    """Raise if the path is a link to what is not there: it would be taken for a file or folder that never was."""
    if isinstance(path, Path) and path.is_symlink():
        try:
            path.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise BadInput(
                    f"{path} is a link to {os.readlink(path)}, which leads nowhere; restore what is there, or remove"
                    " the link"
                ) from None


@retried
def is_file(path: Path) -> bool:
    """Return whether there is a file of that name."""
    return path.is_file()


@retried
def is_folder(path: Path) -> bool:
    """Return whether there is a folder of that name."""
    return path.is_dir()


@retried
def list_paths(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the files and folders below a folder whose names match, sorted; none when there is no such folder.

    A pattern of several levels has `/` between them. `Path.glob` of Python 3.13 leaves out what it cannot list, which
    a night would take for removed; here that is an error.
    """
    level, _, rest = pattern.partition("/")
    try:
        with os.scandir(folder) as entries:
            paths = sorted(folder / entry.name for entry in entries if fnmatchcase(entry.name, level))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [below for path in paths for below in list_paths(path, rest)] if rest else paths


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through a folder as `os.walk` does, which leaves out what it cannot list; here that is an error."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed while we walk
            raise error

    return os.walk(folder, onerror=fail)


@retried
def make_folder(path: Path) -> None:
    """Make a folder and those above it, as far as they are not there."""
    path.mkdir(parents=True, exist_ok=True)


@retried
def rename(path: Path, new: Path) -> None:
    """Give a file or folder another name, if it has not got it by an attempt that said it failed."""
    try:
        os.rename(path, new)
    except FileNotFoundError:
        if not new.exists():
            raise


@retried
def share_file(source: str | Path, target: str | Path) -> None:
    """Give a file that does not change a second name, or copy it where a file system has no links."""
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except FileNotFoundError:
        raise
    except OSError as error:
        if is_passing(error):
            raise
        shutil.copy2(source, target)


@retried
def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, as far as it is there."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except OSError as error:
        if is_passing(error):
            raise
        shutil.rmtree(path, ignore_errors=True)  # another process is at it, or it is nobody's business


@retried
def is_there(path: Path) -> bool:
    """Return whether there is a file or a folder of that name."""
    return path.exists()


@retried
def read_file(path: Path) -> bytes:
    """Return the bytes of a file."""
    return path.read_bytes()


@retried
def stat_of(path: Path) -> os.stat_result:
    """Return size, time, owner and permissions of a file or folder."""
    return path.stat()


def open_to_read(path: Path) -> io.FileIO:
    """Open a file to read from where it is asked for."""
    return open(path, "rb", buffering=0)


def create_file(path: Path) -> BinaryIO:
    """Open a file to write that is not there yet."""
    return open(path, "xb")


def open_to_write(path: Path, *, anew: bool = True) -> BinaryIO:
    """Open a file to write to it from its beginning, or where it is asked for, and then what is there stays."""
    return open(path, "wb" if anew else "r+b")


def map_values(path: Path, dtype: np.dtype, offset: int, shape: Sequence[int]) -> np.ndarray:
    """Return an array that begins at an offset of a file, read only when it is looked at."""
    return np.memmap(path, dtype, "r", offset, tuple(shape))


@retried
def identity_of(path: Path) -> int:
    """Return what tells a folder from another one with the same content, whatever name it has."""
    return path.stat().st_ino


@retried
def remove_if_empty(folder: Path) -> None:
    """Remove a folder unless something is in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def free_space(folder: Path) -> tuple[int, int]:
    """Return the bytes that are free where a folder is, and all there are."""
    usage = shutil.disk_usage(folder)
    return usage.free, usage.total
