"""Test what a site needs of a file system, or of an object store."""

from __future__ import annotations

import fcntl
import os
import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ammrank_dask.storage.errors import AmmrankError, NoPermission
from ammrank_dask.storage.objects.atomic import TEMPORARY, exchange_names, sync_folder, temporary_beside
from ammrank_dask.storage.objects.objects import Conflict
from ammrank_dask.storage.objects.store import StoreObjects

MOST_SKEW = 300.0
"""Seconds by which a clock may differ."""
_SITE, _OWN = "ammrank.yaml", "backtests/.work/"
"""The config, which every site has, and where a site has another one of its own."""
_WRITERS, _REQUESTS, _BYTES = 8, 5, 1 << 24


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


def _clock_of_files(folder: Path) -> Probe:
    before = time.time()
    (folder / "clock").touch()
    return _clock("clock of the file system", (folder / "clock").stat().st_mtime - before)


def _clock(name: str, skew: float) -> Probe:
    detail = f"{round(skew):+d} s against this machine"
    is_ok = abs(skew) <= MOST_SKEW
    return Probe(name, is_ok, detail if is_ok else f"{detail}; set both by NTP")


def probe_bucket(site: StoreObjects) -> Iterator[Probe]:
    """Test permissions, conditional writes, clock and speed below a prefix of its own in the site, which is removed.

    Every permission is tried, so that all that are missing are named at once. No bucket and no credentials are errors.
    """
    folder = f"{TEMPORARY}check-{uuid.uuid4().hex[:12]}"
    one, other, large = (f"{folder}/{name}" for name in ("one", "other", "large"))
    permissions = [
        _allowed("list", lambda: list(site.list(f"{folder}/"))),
        _allowed("write", lambda: site.put(one, [b"1"])),
        _allowed("read", lambda: _read_if_there(site, one)),
    ]
    yield from permissions
    if all(probe.is_ok for probe in permissions):
        yield _conditional_writes(site, other)
        before = time.time()
        site.put(one, [b"1"])
        about = site.look(one)
        yield _clock("clock of the store", about["last_modified"].timestamp() - before)
        yield _speed(site, one, large)
        yield _versions(site, about)
        yield _other_sites(site)
        yield Probe(
            "unfinished uploads", True,
            "the store does not list them here; let a rule of the bucket abort those older than a day", is_needed=False,
        )  # fmt: skip
    yield _allowed("delete", lambda: site.delete([one, other, large]))


def _allowed(name: str, call: Callable[[], object]) -> Probe:
    try:
        call()
    except NoPermission as error:
        return Probe(f"permission to {name}", False, str(error))
    return Probe(f"permission to {name}", True, "")


def _read_if_there(site: StoreObjects, key: str) -> None:
    try:
        site.get(key)
    except FileNotFoundError:  # writing is not allowed, reading is
        return


def _conditional_writes(site: StoreObjects, key: str) -> Probe:
    """Let several writers replace one object at once: one of them must win each time."""

    def wins(writer: int) -> bool:
        try:
            site.put_if(key, uuid.uuid4().bytes, tag)  # equal bytes would have equal tags
        except Conflict:
            return False
        return True

    name, tag = "conditional writes", None
    try:
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in range(3):
                n_won = sum(pool.map(wins, range(_WRITERS)))
                if n_won != 1:
                    detail = f"{n_won} of {_WRITERS} writers at once replaced an object: two runs would mix"
                    return Probe(name, False, f"{detail}; use another store")
                tag = site.get(key)[1]
    except AmmrankError as error:
        return Probe(name, False, str(error))
    return Probe(name, True, f"of {_WRITERS} writers at once one wins")


def _speed(site: StoreObjects, small: str, large: str) -> Probe:
    def seconds(call: Callable[[], object]) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    latency = statistics.median(seconds(lambda: site.get(small)) for _ in range(_REQUESTS))
    write = seconds(lambda: site.put(large, [bytes(_BYTES)]))
    read = seconds(lambda: site.get(large))
    speeds = (f"{_BYTES / 1e6 / max(taken, 1e-9):,.0f} MB/s" for taken in (write, read))
    return Probe(
        "speed", True, f"{1e3 * latency:.0f} ms a request, writes {' and reads '.join(speeds)}", is_needed=False
    )


def _versions(site: StoreObjects, about: dict[str, object]) -> Probe:
    name = "no old versions"
    if site.url.startswith("gs:"):  # where every object has one
        return Probe(name, True, "the store does not say; switch versions and soft delete off", is_needed=False)
    if about["version"] is None:
        return Probe(name, True, "what is removed is gone", is_needed=False)
    detail = "the bucket keeps versions: users whom `ammrank forget` removes stay in them until a rule expires them"
    return Probe(name, False, detail, is_needed=False)


def _other_sites(site: StoreObjects) -> Probe:
    """Find sites in the prefix of this one, and one that this one is in."""
    scheme, _, path = site.url.partition("://")
    parts = path.split("/")
    above = [f"{scheme}://{'/'.join(parts[:n])}" for n in range(1, len(parts))]
    found = [f"{url}/{_SITE}" for url in above if _is_there(StoreObjects(url, site.options), _SITE)]
    found += [f"{site}/{one.key}" for one in site.list() if one.key.endswith(f"/{_SITE}") and _OWN not in one.key]
    detail = f"{found[0]} is of another one; give each a prefix of its own" if found else "no other in it or around it"
    return Probe("one site in the prefix", not found, detail)


def _is_there(objects: StoreObjects, key: str) -> bool:
    try:
        objects.look(key)
    except (FileNotFoundError, AmmrankError):  # what is above need not be ours to read
        return False
    return True
