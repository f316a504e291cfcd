"""Keep what a site has in one object, `ROOT`, that is replaced whole, and its last contents beside it."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from ammrank_dask.storage.errors import (
    REBUILD_COMMAND,
    DamagedStore,
    EarlierFormat,
    SiteBusy,
    StoreFailed,
    shell_word,
)
from ammrank_dask.storage.objects.atomic import json_text
from ammrank_dask.storage.objects.objects import Conflict, Objects, Tag, conflict
from ammrank_dask.storage.objects.posix import PosixObjects
from ammrank_dask.storage.store.parts import checksum_of
from ammrank_dask.storage.store.registry import FORMAT, REBUILD, check_format

ROOT = "ROOT"
ROOTS = "roots/"
"""Every content of `ROOT` under its number."""
KEPT_ROOTS = 50
BEFORE_ROOT = "CURRENT"
"""What an earlier version kept in place of `ROOT`."""
_EPOCHS: dict[str, int] = {}
"""By store, the epoch of the lease that this process took last."""
_GENERATION = re.compile(r"-g(\d+)$")


def without_generation(key: str) -> str:
    """Return the key of a run as its content names it.

    Examples
    --------
    >>> without_generation("state/date=2026-03-05-0123456789abcdef-g2")
    'state/date=2026-03-05-0123456789abcdef'
    """
    return _GENERATION.sub("", key)


def _generation(key: str) -> int:
    match = _GENERATION.search(key)
    return 1 if match is None else int(match[1])


@dataclass(frozen=True)
class Root:
    """What a site has: all of it changes with one write.

    Parameters
    ----------
    date, runs
        The newest published date, None before the first, and by role the keys of its runs.
    nights
        All published nights whose lists are kept.
    kept
        The keys of all runs that are whole.
    building
        The keys of runs in work. One that is whole counts like those kept, unless it is to replace one of them.
    exchanges
        Renames that follow: by the new key of a folder the one before, and what tells whether it was renamed.
    trash
        Keys that nothing names any more: the number of the content of `ROOT` that put it here, and the night until the
        next of which readers may have it open, empty for none. It stays here when it is removed, and nobody uses it
        again meanwhile: a process that was stopped before it removed the key may still do so.
    unfinished
        What a command that spans several writes has begun, by its name.
    number
        How many contents the site had before and with this one.
    epoch
        How often the lease of a bucket was taken until this was written; 0 on a folder.
    writes
        Ids of the last writes, that of this content first: a writer whose answer was lost finds its own here, also
        when others have written since.
    """

    date: dt.date | None = None
    runs: Mapping[str, str] = field(default_factory=dict)
    nights: tuple[dt.date, ...] = ()
    kept: tuple[str, ...] = ()
    building: tuple[str, ...] = ()
    exchanges: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    trash: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    unfinished: Mapping[str, Any] = field(default_factory=dict)
    number: int = field(default=0, compare=False)
    epoch: int = field(default=0, compare=False)
    writes: tuple[str, ...] = field(default=(), compare=False)

    def encode(self) -> bytes:
        """Return the JSON of the object, with a checksum of its content."""
        content = {
            "format": FORMAT,
            "number": self.number,
            "date": None if self.date is None else str(self.date),
            "runs": dict(self.runs),
            "nights": [str(night) for night in self.nights],
            "kept": sorted(self.kept),
            "building": list(self.building),
            "exchanges": {key: list(entry) for key, entry in self.exchanges.items()},
            "trash": {key: list(entry) for key, entry in self.trash.items()},
            "unfinished": dict(self.unfinished),
            "epoch": self.epoch,
            "writes": list(self.writes),
        }
        return json_text({**content, "checksum": checksum_of(content)}).encode()

    @classmethod
    def decode(cls, path: Path | str, data: bytes) -> Self:
        """Return what the JSON says; raises DamagedStore where it is not what was written."""
        try:
            content = json.loads(data)
            version, checksum = content["format"], content.pop("checksum", None)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamagedStore(f"{path} is not the JSON that was written") from None
        check_format(path, version)
        if checksum != checksum_of(content):
            raise DamagedStore(f"{path} is not the JSON that was written (checksum differs)")
        missing = [field.name for field in fields(cls) if field.name not in content]
        if missing:
            raise EarlierFormat(f"{path} has no {missing[0]}: a development version before 0.3.0 wrote it; {REBUILD}")
        return cls(
            None if content["date"] is None else dt.date.fromisoformat(content["date"]),
            content["runs"],
            tuple(dt.date.fromisoformat(night) for night in content["nights"]),
            tuple(content["kept"]),
            tuple(content["building"]),
            {key: (before, identity) for key, (before, identity) in content["exchanges"].items()},
            {key: (number, until) for key, (number, until) in content["trash"].items()},
            content["unfinished"],
            content["number"],
            content["epoch"],
            tuple(content["writes"]),
        )

    def place(self, key: str) -> str:
        """Return where the run that a key names is, or will be written: its generation that is kept, or in work."""
        for keys in (self.kept, self.building):
            found = [each for each in keys if without_generation(each) == key]
            if found:
                return max(found, key=_generation)
        return self.next_place(key)

    def next_place(self, key: str) -> str:
        """Return the key of the generation after all that were used."""
        used = [each for each in (*self.kept, *self.building, *self.trash) if without_generation(each) == key]
        return key if not used else f"{key}-g{1 + max(map(_generation, used))}"

    def renews(self, key: str) -> bool:
        """Return whether a run in work is to replace one that is kept."""
        return any(without_generation(key) == without_generation(each) for each in self.kept)

    def keep(self, keys: Iterable[str]) -> Self:
        """Return the content in which runs that were in work are kept."""
        kept = set(keys)
        return replace(self, kept=(*self.kept, *sorted(kept - set(self.kept))), building=_without(self.building, kept))

    def begin(self, keys: Iterable[str]) -> Self:
        """Return the content in which runs are in work."""
        known = {*self.kept, *self.building}
        return replace(self, building=(*self.building, *(key for key in dict.fromkeys(keys) if key not in known)))

    def discard(self, keys: Iterable[str], until: str = "") -> Self:
        """Return the content that no longer names some runs."""
        gone = set(keys)
        return replace(
            self,
            kept=_without(self.kept, gone),
            building=_without(self.building, gone),
            trash={**self.trash, **{key: (self.number + 1, until) for key in sorted(gone)}},
        )

    def name(self, key: str, name: str, identity: int, until: str = "") -> Self:
        """Return the content in which a run in work has the name that readers know; what had it before is trash."""
        return replace(self.keep([name]).discard([key], until), exchanges={**self.exchanges, name: (key, identity)})

    def rename(self, name: str, key: str, identity: int) -> Self:
        """Return the content in which what had the name that readers know has another one, and is trash."""
        left = replace(self, kept=_without(self.kept, {name}), exchanges={**self.exchanges, key: (name, identity)})
        return left.discard([key])


def _without(keys: tuple[str, ...], gone: set[str]) -> tuple[str, ...]:
    return tuple(key for key in keys if key not in gone)


@functools.lru_cache(maxsize=8)
def _decode(where: str, data: bytes) -> Root:
    return Root.decode(where, data)


def read_root(objects: Objects) -> tuple[Root | None, Tag | None]:
    """Return what a site has, None before the first time, and the tag of the object.

    Raises DamagedStore, with the content to put back, where the object is damaged or lost.
    """
    where = f"{objects}/{ROOT}"
    try:
        data, tag = objects.get(ROOT)
    except FileNotFoundError:
        if _kept(objects):
            raise DamagedStore(f"{where} is missing; {_remedy(objects)}") from None
        _refuse_earlier_site(objects)
        return None, None
    try:
        return _decode(where, data), tag
    except EarlierFormat:
        raise
    except DamagedStore as error:
        raise DamagedStore(f"{error}; {_remedy(objects)}") from None


def _refuse_earlier_site(objects: Objects) -> None:
    try:
        data = objects.get(BEFORE_ROOT)[0]
    except FileNotFoundError:
        return
    where = f"{objects}/{BEFORE_ROOT}"
    try:
        version = json.loads(data).get("format", 1)
    except (ValueError, AttributeError):
        raise DamagedStore(f"{where} is not the JSON that was written; {REBUILD}") from None
    check_format(where, version if isinstance(version, int) else 2)


def move_root(objects: Objects, root: Root, tag: Tag | None) -> None:
    """Replace the content that has the tag, None for none there, by another one: the site moves, or nothing changes.

    Raises Conflict where somebody else has replaced it. A writer that was stopped may learn of its own write when
    others have built on it.
    """
    epoch = _EPOCHS.get(str(objects), root.epoch)
    if epoch < root.epoch:
        raise conflict(f"{objects}/{ROOT}", tag)
    kept = _kept(objects)
    number, write = 1 + max(kept, default=0), uuid.uuid4().hex[:16]
    root = replace(root, epoch=epoch, number=number, writes=(write, *root.writes)[:KEPT_ROOTS])
    data = root.encode()
    objects.put_if(_key(number), data, None)
    try:
        objects.put_if(ROOT, data, tag)
    except Conflict:
        now = read_root(objects)[0]
        if now is None or write not in now.writes:
            objects.delete([_key(number)])  # nobody is to take it for the newest content
            raise
    with contextlib.suppress(SiteBusy, StoreFailed):  # the site has moved, whatever becomes of earlier contents
        objects.delete([_key(number) for number in kept[: -KEPT_ROOTS + 1]])


def stamp_root(objects: Objects, epoch: int) -> None:
    """Write the epoch of a lease into ROOT: whoever read it under an earlier one can no longer replace it."""
    _EPOCHS[str(objects)] = epoch
    with contextlib.suppress(DamagedStore):  # whoever needs ROOT says what is wrong with it
        for is_last in (False, False, True):
            try:
                root, tag = read_root(objects)
                return move_root(objects, root or Root(), tag)
            except Conflict:  # the earlier holder was at it
                if is_last:
                    raise


def put_root_back(objects: Objects) -> bool:
    """Give a damaged or lost object its newest whole content; return whether there is one."""
    newest = _newest(objects)
    if newest is None:
        objects.delete([ROOT, BEFORE_ROOT, *map(_key, _kept(objects))])
        return False
    try:
        tag: Tag | None = objects.get(ROOT)[1]
    except FileNotFoundError:
        tag = None
    move_root(objects, Root.decode(newest, objects.get(newest)[0]), tag)
    return True


def _remedy(objects: Objects) -> str:
    newest = _newest(objects)
    if newest is None:
        return REBUILD
    if isinstance(objects, PosixObjects):
        copy = f"`cp {shell_word(objects.path(newest))} {shell_word(objects.path(ROOT))}`"
    else:
        copy = f"a copy of {objects}/{newest} to {objects}/{ROOT}"
    return f"its newest whole content is put back by {copy}, or by {REBUILD_COMMAND}"


def _newest(objects: Objects) -> str | None:
    """Return the key of the newest content that is whole."""
    for number in reversed(_kept(objects)):
        with contextlib.suppress(DamagedStore):
            Root.decode(f"{objects}/{_key(number)}", objects.get(_key(number))[0])
            return _key(number)
    return None


def _kept(objects: Objects) -> list[int]:
    names = (found.key.removeprefix(ROOTS).removesuffix(".json") for found in objects.list(ROOTS))
    return sorted(int(name) for name in names if name.isdecimal())


def _key(number: int) -> str:
    return f"{ROOTS}{number:06d}.json"
