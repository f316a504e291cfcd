"""Read the taxonomy and map every category to the ranked category above it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.store.atomic import digest_of
from ammrank_dask.storage.vocabulary import CATEGORY, PARENT

UNRANKED = -2
"""Code of a category above the ranked level: counted, not used, not quarantined."""


@dataclass(frozen=True)
class Taxonomy:
    """The L ranked categories in name order (code = index), and the code of every node."""

    categories: tuple[str, ...]
    code_of: Mapping[str, int]

    @property
    def digest(self) -> str:
        """Hash of the mapping: two taxonomies with the same digest count every event alike."""
        return digest_of([self.categories, sorted(self.code_of.items())])


def read_taxonomy(path: Path, level: int) -> Taxonomy:
    """Read `category,parent` rows and rank the nodes at `level` (a root is level 1)."""
    return build_taxonomy(_read_pairs(path), level, where=str(path))


def _read_pairs(path: Path) -> list[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except FileNotFoundError:
        raise BadInput(f"there is no taxonomy at {path}; set lake.taxonomy (null for flat categories)") from None
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not a readable CSV file: {error}; write it as UTF-8 text") from None
    header = rows[0][1] if rows else []
    missing = [name for name in (CATEGORY, PARENT) if name not in header]
    if missing:
        raise BadInput(f"{path} must have the columns category,parent; {', '.join(missing)} missing")
    category, parent = header.index(CATEGORY), header.index(PARENT)
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise BadInput(
                f"{path}: line {line} has {len(row)} fields, expected {len(header)}; quote names that contain commas"
            )
    return [(row[category], row[parent]) for _, row in rows[1:]]


def build_taxonomy(pairs: Sequence[tuple[str, str]], level: int, where: str = "the taxonomy") -> Taxonomy:
    """Return the taxonomy of (category, parent) pairs; the parent of a root is empty.

    Examples
    --------
    >>> pairs = [("Retail", ""), ("Retail/Shoes", "Retail"), ("Retail/Shoes/Boots", "Retail/Shoes")]
    >>> taxonomy = build_taxonomy(pairs, level=2)
    >>> taxonomy.categories, taxonomy.code_of["Retail/Shoes/Boots"], taxonomy.code_of["Retail"]
    (('Retail/Shoes',), 0, -2)
    """
    parent_of: dict[str, str] = {}
    for category, parent in pairs:
        if not category:
            raise BadInput(f"{where} has a row without a category; remove it")
        if parent_of.setdefault(category, parent) != parent:
            raise BadInput(f"{where}: {category!r} has two parents, {parent_of[category]!r} and {parent!r}; keep one")
    paths: dict[str, list[str]] = {}
    for category in parent_of:
        path = [category]
        while parent := parent_of[path[-1]]:
            if parent not in parent_of:
                raise BadInput(f"{where}: the parent {parent!r} of {path[-1]!r} has no row of its own; add one")
            if parent in path:
                raise BadInput(f"{where}: {parent!r} is its own ancestor (a cycle); correct its parents")
            path.append(parent)
        paths[category] = path[::-1]
    categories = tuple(sorted(category for category, path in paths.items() if len(path) == level))
    if not categories:
        depth = max((len(path) for path in paths.values()), default=0)
        raise BadInput(f"{where} has no category at level {level} (its depth is {depth}); set taxonomy.level")
    codes = {category: code for code, category in enumerate(categories)}
    code_of = {category: codes[path[level - 1]] if len(path) >= level else UNRANKED for category, path in paths.items()}
    return Taxonomy(categories, code_of)


def flat_taxonomy(categories: Sequence[str]) -> Taxonomy:
    """Return a taxonomy in which every category is ranked as it is."""
    return build_taxonomy([(category, "") for category in categories], level=1, where="the list of categories")
