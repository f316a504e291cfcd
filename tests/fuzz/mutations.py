"""Change bytes, texts and documents at random, so that most of what is left still looks like what it was."""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

YAML_WORDS = [": ", "- ", "&a ", "*a", "!!python/object/apply:os.system ", "{", "}", "[", "|\n", "\n  ", "#", "---\n"]
YAML_WORDS += [
    "yes",
    "null",
    ".nan",
    "0x7f",
    "1e999",
    "2026-13-40",
    "~",
    "<<: *a",
    "\t",
    '"',
    "'",
    "\ufeff",
    "%TAG ! a",
]
JSON_WORDS = ["{", "}", "[", "]", ",", ":", '"', "null", "true", "-1", "1e999", "9" * 40, '"\\ud800"', "\x00", "NaN"]
TEXT_WORDS = [
    "\n",
    ",",
    '"',
    '""',
    "\r",
    "\x00",
    "\ufeff",
    "user_id",
    "9" * 40,
    "-",
    "1e9",
    "\u0661",
    " ",
    "\u2028",
    "=1",
]
WORDS: dict[str, list[str]] = {"yaml": YAML_WORDS, "json": JSON_WORDS, "text": TEXT_WORDS, "parquet": []}
LEAVES: list[Any] = [None, True, -1, 0, 2**63, 10**30, 1e300, float("nan"), float("inf"), "", " ", "a" * 5000, "\x00"]
LEAVES += ["../..", "/etc/passwd", "s3://", "\ud7ff\u2028", [], {}, [[]], {"a": {}}, "2026-02-30", "P1D", "=x", "%s{0}"]
NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]

Change = Callable[[random.Random, bytearray], None]


def change_bytes(rng: random.Random, data: bytes, kind: str) -> bytes:
    """Return bytes with one to eight changes; words of the kind of file are put in, too."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 8])):
        rng.choice([_flip, _set, _number, _cut, _remove, _repeat, _swap])(rng, changed)
        if WORDS[kind] and rng.random() < 0.5:
            at = rng.randint(0, len(changed))
            changed[at:at] = rng.choice(WORDS[kind]).encode("utf-8", "surrogatepass")
    return bytes(changed)


def _flip(rng: random.Random, data: bytearray) -> None:
    if data:
        data[_place(rng, data)] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray) -> None:
    if data:
        data[_place(rng, data)] = rng.randrange(256)


def _number(rng: random.Random, data: bytearray) -> None:
    """Write a number at the edge of its type."""
    if len(data) > 8:
        at = _place(rng, data[:-8])
        data[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS))


def _cut(rng: random.Random, data: bytearray) -> None:
    if rng.random() < 0.3:
        del data[rng.randint(0, len(data)) :]


def _remove(rng: random.Random, data: bytearray) -> None:
    start = rng.randint(0, len(data))
    del data[start : start + rng.choice([1, 4, 16, 256])]


def _repeat(rng: random.Random, data: bytearray) -> None:
    start = rng.randint(0, len(data))
    data[start:start] = data[start : start + rng.choice([1, 4, 64, 1024])] * rng.choice([1, 1, 2, 50])


def _swap(rng: random.Random, data: bytearray) -> None:
    size = rng.choice([1, 8, 64])
    if len(data) > 2 * size:
        one, other = sorted(rng.sample(range(0, len(data) - size), 2))
        if one + size <= other:
            data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]


def _place(rng: random.Random, data: Sequence[int]) -> int:
    """Return a place, in the last tenth as often as anywhere: that is where files of columns say what is in them."""
    return rng.randrange(len(data)) if rng.random() < 0.5 else len(data) - 1 - rng.randrange(len(data) // 10 + 1)


def change_document(rng: random.Random, document: Any) -> Any:
    """Return what a JSON or YAML file says with one to three values changed, removed, doubled or nested deeply."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 2, 3])):
        places = list(_places(changed))
        if not places:
            return rng.choice(LEAVES)
        holder, key = rng.choice(places)
        act = rng.randrange(5)
        if act == 0:
            del holder[key]
        elif act == 1:
            holder[key] = change_type(rng, holder[key])
        elif act == 2 and isinstance(holder, list):
            holder.insert(0, copy.deepcopy(holder[key]))
        elif act == 3:
            for _ in range(rng.choice([1, 30, 100])):
                holder[key] = [holder[key]] if rng.random() < 0.5 else {"a": holder[key]}
        else:
            holder[key] = rng.choice(LEAVES)
    return changed


def change_type(rng: random.Random, value: Any) -> Any:
    """Return about the same value as another type, or the next one of its type."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return rng.choice([str(value), -value, value + 1, value * 10**12, [value], float(value)])
    if isinstance(value, str):
        return rng.choice([value.upper(), value + "x", value[: len(value) // 2], [value], value.encode().hex(), 1])
    return str(value)


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return all places of a document as (holder, key)."""
    if isinstance(document, dict):
        entries = list(document.items())
    elif isinstance(document, list):
        entries = list(enumerate(document))
    else:
        return []
    return [(document, key) for key, _ in entries] + [place for _, value in entries for place in _places(value)]
