"""Keep objects by key: the calls that a site makes.

A key is a name with `/` between its parts, relative to the prefix of the site. An object is there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ammrank_dask.storage.errors import BadInput, SiteBusy

Tag = str
"""Tells one content of a key from another."""


class Conflict(SiteBusy):
    """Another writer was faster: the object is not the one that was to be replaced."""


@dataclass(frozen=True)
class Object:
    """An object of a listing."""

    key: str
    size: int


class Objects(Protocol):
    """A store of objects: a folder, or a prefix of a bucket."""

    def get(self, key: str) -> tuple[bytes, Tag]:
        """Return an object and its tag; raises FileNotFoundError when there is none."""

    def get_ranges(self, key: str, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Return stretches of an object; one that ends behind its end is cut there."""

    def put(self, key: str, pieces: Iterable[bytes]) -> Tag:
        """Write an object from pieces, in place of one that was there; it is durable when this returns."""

    def put_if(self, key: str, data: bytes, tag: Tag | None) -> Tag:
        """Write an object if the one that is there has a tag, None for none there; raises Conflict otherwise."""

    def copy(self, source: str, target: str) -> None:
        """Give an object another key; objects do not change, so a target that is there stays."""

    def list(self, prefix: str = "") -> Iterator[Object]:
        """Yield all objects whose keys begin with a prefix, in order of their keys: for sweep and verify only."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, as far as they are there."""


def conflict(where: str, now: Tag | None) -> Conflict:
    """Return the error to raise for an object that is not the one that was to be replaced."""
    what = "none" if now is None else "another one"
    return Conflict(f"{where} was written by another run meanwhile, found {what}; run it again")


def check_key(key: str) -> str:
    """Return a key; refuse what would name a folder, or leave the prefix of the site."""
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise BadInput(f"a key must be names with / between them, got {key!r}")
    return key
