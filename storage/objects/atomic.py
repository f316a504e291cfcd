"""Write files so that a reader sees the old one or the new one, never half of one."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ammrank_dask.storage.errors import BadInput, DamagedStore
from ammrank_dask.storage.objects.folders import (
    create_file,
    is_file,
    is_folder,
    list_paths,
    make_folder,
    remove,
    rename,
    walk,
)
from ammrank_dask.storage.objects.retry import is_passing, retried

if TYPE_CHECKING:
    from typing_extensions import Buffer

TEMPORARY = ".tmp-"
"""Prefix of names that no reader looks at; what a crash leaves under them is swept by the next run."""

OTHERS = 0o007
"""The permissions of everybody who is neither the owner nor in the group of a file."""
GROUP = 0o070
"""The permissions of the group of a file."""

_SYNCS_AT_ONCE = 16
_DIGEST_OF_NOTHING = hashlib.sha256().hexdigest()


@contextlib.contextmanager
def private_files(*, for_group: bool = False) -> Iterator[None]:
    """Let this process make files that others than the owner and the group cannot read.

    What the group may do is as the umask before says, or all that the owner may.
    """
    before = make_private(for_group=for_group)
    try:
        yield
    finally:
        os.umask(before)


def make_private(*, for_group: bool) -> int:
    """Change the umask of this process as `private_files` says; return the one before."""
    before = os.umask(0o077)
    os.umask((before & ~GROUP if for_group else before) | OTHERS)
    return before


def write_private(path: Path, text: str | bytes, *, for_group: bool = False, group_may: int = 0o060) -> None:
    """Write a file atomically that only its owner, or also its group, can read and write, whatever the umask."""

    def write(temporary: Path) -> None:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            if for_group:
                os.fchmod(descriptor, 0o600 | group_may)
            file.write(text.encode() if isinstance(text, str) else text)

    write_atomic(path, write)


def temporary_beside(path: Path) -> Path:
    """Return a fresh name in the folder of `path` that no reader looks at."""
    return path.with_name(f"{TEMPORARY}{path.name}-{uuid.uuid4().hex[:12]}")


@retried
def write_atomic(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> None:
    """Let `write` fill a temporary file and give it its name with one rename.

    A file that is not `durable` may be lost in a power cut until something else syncs it (`sync_tree`).
    """
    _write_atomic(path, write, durable=durable)


def _write_atomic(path: Path, write: Callable[[Path], object], *, durable: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(path)
    try:
        write(temporary)
        if durable:
            sync_file(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_file(path: Path, data: Buffer, *, durable: bool = True) -> None:
    """Write the bytes of a file atomically."""
    write_atomic(path, lambda temporary: temporary.write_bytes(data), durable=durable)


def write_pieces(path: Path, pieces: Iterable[Buffer]) -> None:
    """Write a file piece by piece, and atomically; it is not tried again, for the pieces may come only once."""
    _write_atomic(path, lambda temporary: _write_each(temporary, pieces), durable=True)


def _write_each(path: Path, pieces: Iterable[Buffer]) -> None:
    with open(path, "xb") as file:
        for piece in pieces:
            file.write(piece)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file atomically."""
    write_file(path, text.encode(), durable=durable)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write JSON atomically, as `json_text` has it."""
    write_text(path, json_text(value), durable=durable)


def json_text(value: Any) -> str:
    """Return JSON with sorted keys and one final newline: equal values are equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


@retried
def read_json(path: Path) -> Any:
    """Read JSON that this package wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise DamagedStore(f"{path} is not the JSON that was written: {error}") from None


def begin_folder(final: Path) -> Path:
    """Return an empty folder under a temporary name, to be filled and given the name `final`."""
    temporary = temporary_beside(final)
    make_folder(temporary)
    return temporary


@retried
def write_folder(folder: Path, files: Mapping[str, Buffer], *, durable: bool = True) -> None:
    """Write files by name as a folder that is there with all of them or not at all.

    One that is not `durable` has the same content whoever writes it, so that of two that are written at once any stays;
    another one takes the place of what is there. The last file makes it whole.
    """
    temporary = begin_folder(folder)
    try:
        for name, data in files.items():
            make_folder((temporary / name).parent)
            with create_file(temporary / name) as file:
                file.write(data)
        (swap_folder if durable else rename_folder)(temporary, folder)
    finally:
        remove(temporary)


@retried
def rename_folder(temporary: Path, final: Path) -> None:
    """Give a finished folder its name; if a twin of this task was faster, keep the twin's (same bytes)."""
    try:
        os.rename(temporary, final)
    except OSError:
        if not final.is_dir():
            raise
        shutil.rmtree(temporary, ignore_errors=True)


def swap_folder(finished: Path, final: Path) -> None:
    """Give a finished folder its name, and what had that name the other one: in one rename, so that readers see one.

    File systems that cannot exchange two names get three renames. After a crash between these the finished folder has
    either name, and the same call goes on.
    """
    number = retried(finished.stat)().st_ino
    # What fails in passing is tried again, unless the names were exchanged in spite of it.
    exchange = retried(lambda: final.stat().st_ino == number or exchange_names(finished, final))
    if not is_folder(final):
        rename(finished, final)
        for aside in list_paths(finished.parent, f"{TEMPORARY}{finished.name}-*"):
            remove(aside)
    elif not exchange():
        aside = temporary_beside(finished)
        rename(final, aside)
        rename(finished, final)
        rename(aside, finished)
    sync_folder(final.parent)
    if finished.parent != final.parent:
        sync_folder(finished.parent)


def exchange_names(one: Path, other: Path) -> bool:
    """Give two files or folders each other's name in one step; return whether the file system can do that."""
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


@retried
def sweep_temporary(folder: Path) -> None:
    """Remove what a crash left under temporary names directly in `folder`."""
    for path in list_paths(folder, f"{TEMPORARY}*"):
        remove(path)


@retried
def sweep_tree(folder: Path) -> None:
    """Remove what a crash left under temporary names anywhere below `folder`."""
    for root, folders, names in walk(folder):
        left = [name for name in (*folders, *names) if name.startswith(TEMPORARY)]
        for name in left:
            remove(Path(root, name))
        folders[:] = [name for name in folders if name not in left]


@retried
def sync_file(path: Path) -> None:
    """Force a file's bytes to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@retried
def begin_sync(path: Path) -> None:
    """Let the disk begin to take a file's bytes, where the system can do that, and go on: a later sync waits less."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "sync_file_range"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        whole, write = ctypes.c_int64(0), 2  # SYNC_FILE_RANGE_WRITE of Linux
        libc.sync_file_range(descriptor, whole, whole, write)
    finally:
        os.close(descriptor)


def begin_syncs(paths: Iterable[Path]) -> None:
    """Let the disk begin to take files, as far as they are there: who has nothing else to do, for others who have."""
    for path in paths:
        if is_file(path):
            begin_sync(path)


def sync_folder(path: Path) -> None:
    """Force a folder's names to the disk."""
    sync_file(path)


@retried
def sync_tree(folder: Path) -> None:
    """Force every file below `folder` to the disk, several at a time: the disk takes their waits together."""
    # Here, because whoever serves a model waits for its import, and syncs nothing.
    from concurrent.futures import ThreadPoolExecutor

    paths = [Path(root, name) for root, _, names in walk(folder) for name in (*names, ".")]
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
        list(pool.map(sync_file, paths))


def digest_of(value: Any) -> str:
    """Return a short stable hash of a JSON-like value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@retried
def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        if is_passing(error):
            raise
        raise BadInput(f"cannot read {path}: {error.strerror}; check the file and its permissions") from None


def digest_tree(
    root: Path, relative: Iterable[str], marks: Collection[Path] = (), name_of: Callable[[str], str] = str
) -> str:
    """Return one SHA-256 over the names and bytes of all files below the given files and folders of `root`.

    Marks are empty files that may come a moment later than the rest: they count as if they were there. `name_of` says
    as what one of the given files and folders counts.
    """
    total = hashlib.sha256()
    for name in sorted(relative, key=name_of):
        top = root / name
        below = {top} if is_file(top) else {Path(folder, file) for folder, _, names in walk(top) for file in names}
        below |= {mark for mark in marks if top in mark.parents}
        for path in sorted(below, key=lambda p: p.relative_to(root).as_posix()):
            digest = _DIGEST_OF_NOTHING if path in marks else digest_file(path)
            own = path.relative_to(root).as_posix()
            total.update(f"{own.replace(name, name_of(name), 1)}\0{digest}\n".encode())
    return total.hexdigest()


@retried
def bytes_below(path: Path) -> int:
    """Return the number of bytes of all files below a folder."""
    return sum((Path(root) / name).stat().st_size for root, _, names in walk(path) for name in names)
