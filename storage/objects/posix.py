"""Keep objects as files below a folder that all workers see, and lock files of it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ammrank_dask.storage.objects.atomic import sync_folder, write_atomic
from ammrank_dask.storage.objects.folders import make_folder, share_file, walk
from ammrank_dask.storage.objects.objects import Object, Objects, Tag, check_key, conflict
from ammrank_dask.storage.objects.retry import retried

PUT_LOCK = ".put-lock"
"""File in the folder of a store that whoever compares and replaces an object holds."""


def open_objects(root: str | Path) -> Objects:
    """Return the objects below a folder or a URL.

    Examples
    --------
    >>> str(open_objects("s3://ads/qualifications/?region=eu-west-1"))
    's3://ads/qualifications'
    """
    if isinstance(root, str) and "://" in root:
        from ammrank_dask.storage.objects.store import StoreObjects  # a site on a folder needs none

        return StoreObjects.of(root)
    return PosixObjects(Path(root))


@dataclass(frozen=True)
class PosixObjects:
    """Objects as files below a folder of a file system that all workers see."""

    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def path(self, key: str) -> Path:
        """Return the file of a key, for readers that map files or read them with a library of their own."""
        return self.folder.joinpath(*check_key(key).split("/"))

    @retried
    def get(self, key: str) -> tuple[bytes, Tag]:
        """Return an object and its tag; raises FileNotFoundError when there is none."""
        data = self.path(key).read_bytes()
        return data, _tag_of(data)

    @retried
    def get_ranges(self, key: str, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Return stretches of an object; one that ends behind its end is cut there."""
        with open(self.path(key), "rb", buffering=0) as file:
            return [os.pread(file.fileno(), size, start) for start, size in zip(starts, sizes, strict=True)]

    def put(self, key: str, pieces: Iterable[bytes]) -> Tag:
        """Write an object from pieces, in place of one that was there; it is durable when this returns."""
        digest, kept = hashlib.sha256(), list(pieces)

        def write(temporary: Path) -> None:
            with open(temporary, "xb") as file:
                for piece in kept:
                    file.write(piece)

        write_atomic(self.path(key), write)
        for piece in kept:
            digest.update(piece)
        return digest.hexdigest()

    def put_if(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        """Write an object if the one that is there has a tag, None for none there; raises Conflict otherwise."""
        with self._only_writer():
            try:
                now: Tag | None = self.get(key)[1]
            except FileNotFoundError:
                now = None
            if now != tag:
                raise conflict(f"{self.path(key)}", now)
            return self.put(key, [data])

    def copy(self, source: str, target: str) -> None:
        """Give an object another key; objects do not change, so a target that is there stays."""
        path = self.path(target)
        share_file(self.path(source), path)
        sync_folder(path.parent)

    def list(self, prefix: str = "") -> Iterator[Object]:
        """Yield all objects whose keys begin with a prefix, in order of their keys: for sweep and verify only."""
        yield from sorted(self._find(prefix), key=lambda one: one.key)

    @retried
    def _find(self, prefix: str) -> Sequence[Object]:
        above = prefix.rpartition("/")[0]
        top = self.path(above) if above else self.folder
        found = []
        for root, _, names in walk(top):
            for name in names:
                path = Path(root, name)
                key = path.relative_to(self.folder).as_posix()
                if key.startswith(prefix) and key != PUT_LOCK:
                    with contextlib.suppress(FileNotFoundError):  # removed while we walk
                        found.append(Object(key, path.lstat().st_size))
        return found

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, as far as they are there, and the folders that they leave empty."""
        folders = set()
        for key in keys:
            path = self.path(key)
            retried(path.unlink)(missing_ok=True)
            folders.add(path.parent)
        for folder in sorted(folders, reverse=True):
            self._remove_empty(folder)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.folder:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:  # not empty
                return
            folder = folder.parent

    @contextlib.contextmanager
    def _only_writer(self) -> Iterator[None]:
        """Wait until no other process compares and replaces; the lock goes with the process, whatever ends it."""
        make_folder(self.folder)
        descriptor = retried(os.open)(self.folder / PUT_LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _tag_of(data: bytes) -> Tag:
    return hashlib.sha256(data).hexdigest()


@retried
def open_lock(path: Path, *, for_group: bool) -> int:
    """Open the file of a lock, make it for its owner, or also its group, and return its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if for_group and os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, 0o660)
    return descriptor


@retried
def take_lock(descriptor: int, seconds: float) -> bool:
    """Wait some time for a lock, which goes with the process that has it; return whether it was taken."""
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > end:
                return False
        time.sleep(0.05)


def is_locked(path: Path) -> bool:
    """Return whether somebody has a lock, as far as the caller may look."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
