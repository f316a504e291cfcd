"""Test in a folder what a site needs of its file system."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ammrank_dask.storage.objects.atomic import exchange_names, sync_folder, temporary_beside


@dataclass(frozen=True)
class Probe:
    """What was tried, whether it works, and what that means."""

    name: str
    is_ok: bool
    detail: str
    is_needed: bool = True


def probe_folder(site: Path) -> list[Probe]:
    """Test locks, names, links and syncs in a folder of their own in the site, which is removed."""
    folder = temporary_beside(site / "check")
    folder.mkdir(parents=True)
    try:
        return [
            _try("lock", _can_lock, folder, "a second run is kept out", "flock must work: two runs would mix"),
            _try(
                "exchange of two names", _can_exchange, folder, "a rebuilt night is swapped in one rename",
                "three renames instead of one; a crash between them is mended by the next run", is_needed=False,
            ),
            _try(
                "hard link", _can_link, folder, "forget and backtest share files",
                "forget, repartition and backtest copy files", is_needed=False,
            ),
            _try("sync of a folder", _can_sync, folder, "names survive a power cut", "fsync of a folder must work"),
            _clock_of_files(folder),
        ]  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _try(
    name: str, works: Callable[[Path], bool], folder: Path, meaning: str, otherwise: str, *, is_needed: bool = True
) -> Probe:
    try:
        is_ok = works(folder)
    except OSError as error:
        return Probe(name, False, f"{error.strerror}: {otherwise}", is_needed)
    return Probe(name, is_ok, meaning if is_ok else otherwise, is_needed)


def _can_lock(folder: Path) -> bool:
    one, other = (os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600) for _ in range(2))
    try:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
    finally:
        os.close(one)
        os.close(other)


def _can_exchange(folder: Path) -> bool:
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / name).touch()
    return exchange_names(folder / "one", folder / "two") and (folder / "two" / "one").is_file()


def _can_link(folder: Path) -> bool:
    (folder / "file").touch()
    os.link(folder / "file", folder / "link")
    return (folder / "link").stat().st_nlink == 2


def _can_sync(folder: Path) -> bool:
    sync_folder(folder)
    return True


def _clock_of_files(folder: Path, most: float = 300.0) -> Probe:
    before = time.time()
    (folder / "clock").touch()
    skew = (folder / "clock").stat().st_mtime - before
    detail = f"{round(skew):+d} s against this machine"
    return Probe(
        "clock of the file system", abs(skew) <= most, detail if abs(skew) <= most else f"{detail}; set both by NTP"
    )
