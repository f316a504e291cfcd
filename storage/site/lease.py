"""Let one run at a time write to a site: by a lock of the file system on a folder, by a lease in a bucket.

The lease is the object `LOCK`, which its holder writes again and again. Who finds it unchanged for as long as it lasts
takes it. Only the clock of the one who waits counts, and only its steady one.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from ammrank_dask.storage.errors import AmmrankError, BadInput, SiteBusy
from ammrank_dask.storage.objects.account import account_name, is_of_group
from ammrank_dask.storage.objects.atomic import json_text
from ammrank_dask.storage.objects.folders import read_file
from ammrank_dask.storage.objects.objects import Conflict, Objects, Tag
from ammrank_dask.storage.objects.posix import PosixObjects, is_locked, open_lock, take_lock
from ammrank_dask.storage.site.root import stamp_root

LOCK = "LOCK"
"""The object of a lease."""
LOCK_FILE = ".lock"
"""The file of a lock on a folder."""
SECONDS = 45.0
"""How long a lease lasts that nobody renews: the holder does three times as often."""
SECONDS_VARIABLE = "AMMRANK_LEASE_SECONDS"
"""The variable that sets other seconds for the leases that a process takes; who waits reads them in `LOCK`."""
LOOK_SECONDS = 2.0
"""How long a run waits for a lock on a folder before it takes its holder for another run."""


@dataclass(frozen=True)
class Holder:
    """Who holds a site.

    Attributes
    ----------
    owner
        Account, host and process.
    since, renewed
        When it took the site, and when it was last heard of, by its own clock; only people read them.
    epoch
        How often the lease was taken.
    """

    owner: str
    since: str
    renewed: str
    epoch: int = 0
    seconds: float = SECONDS
    free: bool = False
    write: str = ""

    @classmethod
    def new(cls, epoch: int = 0) -> Holder:
        """Return this process as the holder from now on."""
        owner = f"{account_name(os.geteuid())}@{socket.gethostname()}, process {os.getpid()}"
        seconds = float(os.environ.get(SECONDS_VARIABLE, SECONDS))
        return cls(owner, _now(), _now(), epoch, seconds, write=uuid.uuid4().hex)

    def renew(self, *, free: bool = False) -> Holder:
        """Return what to write next: no two writes are alike, so that each has a tag of its own."""
        return replace(self, renewed=_now(), free=free, write=uuid.uuid4().hex)

    def encode(self) -> bytes:
        """Return the JSON of the object."""
        return json_text(asdict(self)).encode()

    def __str__(self) -> str:
        return f"{self.owner}, since {self.since[:16].replace('T', ' ')} UTC"


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def hold(objects: Objects) -> Iterator[None]:
    """Keep other runs out of a site, also those of this process; raises SiteBusy where another run holds it.

    In a bucket, every write of this process raises SiteBusy as soon as another run may have taken the site.
    """
    with _hold_folder(objects) if isinstance(objects, PosixObjects) else _hold_bucket(objects):
        yield


def find_holder(objects: Objects) -> Holder | None:
    """Return who holds a site, as far as the caller may look; None where nobody does.

    A run that was killed holds a bucket until its lease is over.
    """
    if isinstance(objects, PosixObjects):
        path = objects.path(LOCK_FILE)
        if not is_locked(path):
            return None
        with contextlib.suppress(BadInput):
            return _decode(str(path), read_file(path))
        return Holder("a run that has just begun", _now(), _now())
    holder, _ = _read(objects)
    if holder is None or holder.free:
        return None
    age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(holder.renewed)
    return holder if abs(age.total_seconds()) <= holder.seconds else None


def _decode(where: str, data: bytes) -> Holder:
    try:
        return Holder(**json.loads(data))
    except (ValueError, TypeError):
        raise BadInput(f"{where} is not what was written; remove it once no run is going on") from None


def _read(objects: Objects) -> tuple[Holder | None, Tag | None]:
    try:
        data, tag = objects.get(LOCK)
    except FileNotFoundError:
        return None, None
    return _decode(f"{objects}/{LOCK}", data), tag


@contextlib.contextmanager
def _hold_folder(objects: PosixObjects) -> Iterator[None]:
    """Lock the file of a folder; the lock goes with the process, whatever ends it."""
    descriptor = open_lock(objects.path(LOCK_FILE), for_group=is_of_group(objects.folder))
    try:
        if not take_lock(descriptor, LOOK_SECONDS):
            raise SiteBusy(f"another run holds {objects}; wait for it or stop it")
        data = Holder.new().encode()
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _hold_bucket(objects: Objects) -> Iterator[None]:
    from ammrank_dask.storage.objects.store import GUARDS  # a site on a folder needs none

    lease = Lease(objects, *_take(objects))
    GUARDS[str(objects)] = lease.check
    try:
        lease.start()
        stamp_root(objects, lease.holder.epoch)
        yield
    finally:
        del GUARDS[str(objects)]
        lease.release()


def _take(objects: Objects) -> tuple[Holder, Tag, float]:
    """Write `LOCK` when nobody holds it, or when whoever did has not written it for the whole time of its lease."""
    seen: Tag | None = None
    seen_at = 0.0
    while True:
        asked_at = time.monotonic()
        before, tag = _read(objects)
        if before is None or before.free or (tag == seen and asked_at - seen_at >= before.seconds):
            # Milliseconds since 1970 are more than the epoch of any lease whose object is gone.
            holder = Holder.new(time.time_ns() // 10**6 if before is None else before.epoch + 1)
            tag = objects.put_if(LOCK, holder.encode(), tag)
            if before is None:
                _refuse_unconditional(objects, holder)
            return holder, tag, asked_at
        if seen is not None and tag != seen:
            raise SiteBusy(f"another run holds {objects} ({before}); wait for it or stop it")
        if seen is None:
            seen, seen_at = tag, time.monotonic()
        time.sleep(before.seconds / 30)


def _refuse_unconditional(objects: Objects, holder: Holder) -> None:
    """Refuse a store that takes no notice of conditions, before anything is written to a new site."""
    with contextlib.suppress(Conflict):
        objects.put_if(LOCK, holder.renew(free=True).encode(), None)
        raise BadInput(
            f"{objects}: the store replaces objects in spite of a condition, and two runs would mix; use another"
        )


class Lease(threading.Thread):
    """Renew a lease three times while it lasts.

    Parameters
    ----------
    objects
        The site.
    holder, tag
        What was written, and its tag.
    renewed_at
        When that was begun, by the steady clock: the lease lasts from then on, and for all others a little longer.
    """

    def __init__(self, objects: Objects, holder: Holder, tag: Tag, renewed_at: float) -> None:
        super().__init__(name="lease", daemon=True)
        self.objects, self.holder = objects, holder
        self._tag, self._renewed_at, self._is_lost = tag, renewed_at, False
        self._news, self._is_over = threading.Condition(), threading.Event()

    def run(self) -> None:
        """Renew, until the block ends or another run has taken the lease."""
        pause = self.holder.seconds / 3
        while not self._is_over.wait(pause):
            pause = self._renew() / 3

    def _renew(self, *, free: bool = False) -> float:
        """Write `LOCK`, and return for how long that is good."""
        began, holder = time.monotonic(), self.holder.renew(free=free)
        try:
            tag = self.objects.put_if(LOCK, holder.encode(), self._tag)
        except Conflict:
            self._is_over.set()
            with self._news:
                self._is_lost = True
                self._news.notify_all()
        except AmmrankError:  # the store is away, or refuses: the next try is soon
            return self.holder.seconds / 10
        else:
            with self._news:
                self._tag, self._renewed_at = tag, began
                self._news.notify_all()
        return self.holder.seconds

    def check(self) -> None:
        """Raise SiteBusy if another run may have the site by now; who was stopped waits for the next renewal."""
        if threading.current_thread() is self:
            return
        with self._news:
            self._news.wait_for(lambda: self._is_lost or self._is_good(), self.holder.seconds)
        if self._is_lost or not self._is_good():
            raise SiteBusy(
                f"this run could not renew its lease of {self.objects}, and another one may have the site; what is"
                " published is whole, run it again"
            )

    def _is_good(self) -> bool:
        return time.monotonic() - self._renewed_at < self.holder.seconds * 2 / 3

    def release(self) -> None:
        """Give the site free, unless another run has it."""
        self._is_over.set()
        if self.is_alive():
            self.join(self.holder.seconds)
        if not self._is_lost and not self.is_alive():
            self._renew(free=True)
