"""Turn the tables of a night into sorted texts, one row a line and every number exact, and into hashes of them."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.frozen.readers import Table, read_published

_DIGEST = re.compile(r"[0-9a-f]{16}|[0-9a-f]{64}")
"""What names stored bytes, and so changes with them."""

Frozen = dict[str, list[Any]]
"""By table its rows and the hash of its text."""


def export_night(site: Path) -> dict[str, str]:
    """Return the published night of a site as texts by table, in the order in which a difference is to be named."""
    return {name: export_table(table) for name, table in read_published(site).items()}


def export_table(table: Table) -> str:
    """Return a table as text: names of columns, then its rows, sorted; a row with a digest is left out."""
    kept = (row for row in table.rows if not any(isinstance(value, str) and _DIGEST.fullmatch(value) for value in row))
    return "\n".join([_line(tuple(table.columns)), *sorted(map(_line, kept)), ""])


def freeze(texts: dict[str, str]) -> Frozen:
    """Return what is kept of a night: its tables with their number of rows and SHA-256."""
    return {name: [text.count("\n") - 1, hashlib.sha256(text.encode()).hexdigest()] for name, text in texts.items()}


def differences(before: Frozen, now: Frozen) -> Iterator[str]:
    """Say of every table that is another what can be told of it."""
    for name in {**before, **now}:
        if before.get(name) == now.get(name):
            continue
        if name not in now or name not in before:
            yield f"{name}: {'gone' if name in before else 'new'}"
        elif before[name][0] != now[name][0]:
            yield f"{name}: {now[name][0]} rows, recorded were {before[name][0]}"
        else:
            yield f"{name}: other values in its {now[name][0]} rows"


def first_difference(before: str, now: str) -> str:
    """Return the first row of a text that the other has not."""
    one, other = before.splitlines(), now.splitlines()
    gone, new = sorted(set(one) - set(other)), sorted(set(other) - set(one))
    rows = [f"- {row}" for row in gone[:1]] + [f"+ {row}" for row in new[:1]]
    return "\n".join([*rows, f"{len(gone)} rows gone, {len(new)} rows new"])


def _line(row: tuple[Any, ...]) -> str:
    return "\t".join(_text(value) for value in row)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return value.hex()
    return json.dumps(value, ensure_ascii=False)
