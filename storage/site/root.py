"""Keep what a site has published in one object, `ROOT`, that is replaced whole, and its last contents beside it."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from ammrank_dask.storage.errors import REBUILD_COMMAND, DamagedStore, EarlierFormat, shell_word
from ammrank_dask.storage.objects.atomic import json_text, read_json
from ammrank_dask.storage.objects.folders import is_file
from ammrank_dask.storage.objects.objects import PosixObjects, Tag
from ammrank_dask.storage.store.parts import checksum_of
from ammrank_dask.storage.store.registry import FORMAT, REBUILD, check_format

ROOT = "ROOT"
ROOTS = "roots/"
"""Every content of `ROOT` under its number."""
KEPT_ROOTS = 50
BEFORE_ROOT = "CURRENT"
"""What an earlier version kept in place of `ROOT`."""


@dataclass(frozen=True)
class Root:
    """What is published: the newest date, by role the path of its run below the site, and all nights with lists."""

    date: dt.date
    runs: Mapping[str, str]
    nights: tuple[dt.date, ...] = ()
    number: int = field(default=0, compare=False)

    def encode(self) -> bytes:
        """Return the JSON of the object, with a checksum of its content."""
        content = {
            "format": FORMAT,
            "number": self.number,
            "date": str(self.date),
            "runs": dict(self.runs),
            "nights": [str(night) for night in self.nights],
        }
        return json_text({**content, "checksum": checksum_of(content)}).encode()

    @classmethod
    def decode(cls, path: Path, data: bytes) -> Self:
        """Return what the JSON says; raises DamagedStore where it is not what was written."""
        try:
            content = json.loads(data)
            version, checksum = content["format"], content.pop("checksum", None)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DamagedStore(f"{path} is not the JSON that was written") from None
        check_format(path, version)
        if checksum != checksum_of(content):
            raise DamagedStore(f"{path} is not the JSON that was written (checksum differs)")
        nights = tuple(dt.date.fromisoformat(night) for night in content["nights"])
        return cls(dt.date.fromisoformat(content["date"]), content["runs"], nights, content["number"])


def read_root(objects: PosixObjects) -> tuple[Root | None, Tag | None]:
    """Return what is published, None before the first time, and the tag of the object.

    Raises DamagedStore, with the content to put back, where the object is damaged or lost.
    """
    path = objects.path(ROOT)
    try:
        data, tag = objects.get(ROOT)
    except FileNotFoundError:
        if _kept(objects):
            raise DamagedStore(f"{path} is missing; {_remedy(objects)}", missing=path) from None
        before = objects.path(BEFORE_ROOT)
        if is_file(before):
            version = read_json(before).get("format", 1)
            check_format(before, version if isinstance(version, int) else 2)
        return None, None
    try:
        return Root.decode(path, data), tag
    except EarlierFormat:
        raise
    except DamagedStore as error:
        raise DamagedStore(f"{error}; {_remedy(objects)}") from None


def move_root(objects: PosixObjects, root: Root, tag: Tag | None) -> None:
    """Replace the content that has the tag, None for none there, by another one: the site moves, or nothing changes."""
    kept = _kept(objects)
    number = 1 + max(kept, default=0)
    data = replace(root, number=number).encode()
    objects.put(_key(number), [data])
    objects.put_if(ROOT, data, tag)
    objects.delete(_key(number) for number in kept[: -KEPT_ROOTS + 1])


def put_root_back(objects: PosixObjects) -> None:
    """Give a damaged or lost object its newest whole content; without one nothing is published any more."""
    newest = _newest(objects)
    if newest is None:
        objects.delete([ROOT, BEFORE_ROOT, *map(_key, _kept(objects))])
    else:
        objects.put(ROOT, [objects.get(newest)[0]])


def _remedy(objects: PosixObjects) -> str:
    newest = _newest(objects)
    if newest is None:
        return REBUILD
    copy = f"cp {shell_word(objects.path(newest))} {shell_word(objects.path(ROOT))}"
    return f"its newest whole content is put back by `{copy}`, or by {REBUILD_COMMAND}"


def _newest(objects: PosixObjects) -> str | None:
    """Return the key of the newest content that is whole."""
    for number in reversed(_kept(objects)):
        with contextlib.suppress(DamagedStore):
            Root.decode(objects.path(_key(number)), objects.get(_key(number))[0])
            return _key(number)
    return None


def _kept(objects: PosixObjects) -> list[int]:
    names = (found.key.removeprefix(ROOTS).removesuffix(".json") for found in objects.list(ROOTS))
    return sorted(int(name) for name in names if name.isdecimal())


def _key(number: int) -> str:
    return f"{ROOTS}{number:06d}.json"
