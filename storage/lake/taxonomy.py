"""Read the taxonomy and map every category to the ranked category above it."""

from __future__ import annotations

import csv
import io
import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ammrank_dask.storage.errors import BadInput
from ammrank_dask.storage.lake.files import LONGEST_VALUE, long_value
from ammrank_dask.storage.lake.paths import LakePath
from ammrank_dask.storage.objects.atomic import digest_of
from ammrank_dask.storage.objects.folders import require_regular
from ammrank_dask.storage.objects.retry import is_passing, retried
from ammrank_dask.storage.vocabulary import CATEGORY, PARENT

UNRANKED = -2
"""Code of a category above the ranked level: counted, not used, not quarantined."""


Renames = Mapping[str, str | None]
"""By former name the name a category has now; None for one that is no longer counted."""


PAIRS_NAMED = 3
SIMILAR = "differ only in upper and lower case, in blanks around them or in their Unicode form"


@dataclass(frozen=True)
class Taxonomy:
    """The L ranked categories in name order (code = index), and the code of every node.

    Former names are nodes, too. `parents`, by code, are what the ranked categories stand below; empty when unknown.
    """

    categories: tuple[str, ...]
    code_of: Mapping[str, int]
    parents: tuple[str, ...] = ()
    former_names: frozenset[str] = frozenset()

    @cached_property
    def digest(self) -> str:
        """Hash of the mapping: two taxonomies with the same digest count every event alike."""
        return digest_of([self.categories, sorted(self.code_of.items())])

    @property
    def present_codes(self) -> dict[str, int]:
        """The code of every node under the name that it has now."""
        return {name: code for name, code in self.code_of.items() if name not in self.former_names}

    def ranked_above(self, node: str) -> str | None:
        """Return the category that a node counts for; None for a node above the ranked level."""
        code = self.code_of[node]
        return None if code == UNRANKED else self.categories[code]

    def name_now(self, category: str) -> str:
        """Return the name of a ranked category that may have been renamed since; its own when it was not.

        A category of another level, whose events count for its ancestor now, was not renamed: it is another one.
        """
        code = self.code_of[category] if category in self.former_names else UNRANKED
        return category if code == UNRANKED else self.categories[code]

    def names_in(self, categories: Sequence[str]) -> list[str]:
        """Return the ranked categories, by code, under the names that an earlier list has for them.

        Examples
        --------
        >>> flat_taxonomy(["a", "b"], {"old": "b"}).names_in(["a", "old"])
        ['a', 'old']
        """
        names = dict(zip(self.categories, self.categories, strict=True))
        for name in categories:
            now = self.name_now(name)
            if now not in categories:
                names[now] = name
        return list(names.values())

    def codes_of(self, categories: Sequence[str]) -> tuple[int, ...] | None:
        """Return the codes that ranked categories of an earlier taxonomy have now, -1 for those not counted any more.

        None when all have the codes that they had.
        """
        if tuple(categories) == self.categories:
            return None
        return tuple(max(-1, self.code_of.get(category, UNRANKED)) for category in categories)

    def siblings_of(self, category: str) -> list[str]:
        """Return the other ranked categories below the same parent; all others when it is alone, or parents unknown."""
        others = [name for name in self.categories if name != category]
        parent_of = dict(zip(self.categories, self.parents, strict=False))
        beside = [name for name in others if parent_of.get(name) == parent_of.get(category)]
        return beside or others


@dataclass(frozen=True)
class TaxonomyChange:
    """What differs between two taxonomies.

    Parameters
    ----------
    added, gone
        Nodes that only the later one has, and that only the earlier one had.
    renamed
        Ranked categories with another name now, former name first; None for those that are not counted any more.
    moved
        Nodes that count for another category: what was counted before would have to be counted again.
    lost
        Ranked categories that are gone without a word where they went.
    """

    added: tuple[str, ...]
    gone: tuple[str, ...]
    renamed: tuple[tuple[str, str | None], ...]
    moved: tuple[tuple[str, str | None, str | None], ...]
    lost: tuple[str, ...]


def compare_taxonomies(before: Taxonomy, now: Taxonomy) -> TaxonomyChange:
    """Return what changed from one taxonomy to another.

    Examples
    --------
    >>> change = compare_taxonomies(flat_taxonomy(["a", "b"]), flat_taxonomy(["a", "b", "c"]))
    >>> change.added, change.moved, change.lost
    (('c',), (), ())
    """
    lost = tuple(name for name in before.categories if name not in now.code_of)
    target = {
        name: now.ranked_above(name) if name in now.former_names else name
        for name in before.categories
        if name not in lost
    }
    moved = []
    for node in before.code_of:
        above = before.ranked_above(node)
        if node in now.code_of and above not in lost:
            expected = None if above is None else target[above]
            if now.ranked_above(node) != expected:
                moved.append((node, above, now.ranked_above(node)))
    return TaxonomyChange(
        tuple(sorted(set(now.code_of) - set(before.code_of))),
        tuple(sorted(set(before.code_of) - set(now.code_of))),
        tuple((name, new) for name, new in target.items() if new != name),
        tuple(moved),
        lost,
    )


def read_taxonomy(path: LakePath, level: int, renames: Renames | None = None) -> Taxonomy:
    """Read `category,parent` rows and rank the nodes at `level` (a root is level 1)."""
    return build_taxonomy(_read_pairs(path), level, where=str(path), renames=renames, level_name="taxonomy.level")


@retried
def _read_pairs(path: LakePath) -> list[tuple[str, str]]:
    try:
        require_regular(path)
        with io.TextIOWrapper(io.BytesIO(path.read_bytes()), encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if row]
    except FileNotFoundError:
        raise BadInput(f"there is no taxonomy at {path}; set lake.taxonomy (null for flat categories)") from None
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        if is_passing(error):
            raise
        if "field larger than field limit" in str(error):
            raise long_value(str(path), CATEGORY, f"a field of more than {csv.field_size_limit():,}") from None
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
        for name, value in ((CATEGORY, row[category]), (PARENT, row[parent])):
            if len(value.encode()) > LONGEST_VALUE:
                raise long_value(str(path), name, f"one of {len(value.encode()):,} in line {line}")
    return [(row[category], row[parent]) for _, row in rows[1:]]


def build_taxonomy(
    pairs: Sequence[tuple[str, str]],
    level: int,
    where: str = "the taxonomy",
    renames: Renames | None = None,
    *,
    level_name: str = "level",
) -> Taxonomy:
    """Return the taxonomy of (category, parent) pairs; the parent of a root is empty.

    `level_name` is what the caller sets the level by.

    A node that was renamed counts as what it is called now, with all nodes below it; one that became None counts for
    nothing, nor do those below it. The pairs may have the former names, the new ones, or both.

    Examples
    --------
    >>> pairs = [("Retail", ""), ("Retail/Shoes", "Retail"), ("Retail/Shoes/Boots", "Retail/Shoes")]
    >>> taxonomy = build_taxonomy(pairs, level=2)
    >>> taxonomy.categories, taxonomy.code_of["Retail/Shoes/Boots"], taxonomy.code_of["Retail"]
    (('Retail/Shoes',), 0, -2)
    """
    final = final_names(renames or {})
    parent_of: dict[str, str] = {}
    for category, parent in _rename_pairs(pairs, final):
        if not category:
            raise BadInput(f"{where} has a row without a category; remove it")
        if parent_of.setdefault(category, parent) != parent:
            raise BadInput(f"{where}: {category!r} has two parents, {parent_of[category]!r} and {parent!r}; keep one")
    nodes = _place_nodes(parent_of, level, {name for name, now in final.items() if now is None}, where)
    categories = tuple(
        sorted(category for category, node in nodes.items() if node.depth == level and not node.is_dropped)
    )
    if not categories:
        depth = max((node.depth for node in nodes.values()), default=0)
        raise BadInput(f"{where} has no category at level {level} (its depth is {depth}); set {level_name}")
    codes = {category: code for code, category in enumerate(categories)}
    code_of = {
        category: UNRANKED if node.ranked is None or node.is_dropped else codes[node.ranked]
        for category, node in nodes.items()
    }
    for former, name in final.items():
        if name is not None and name not in code_of:
            raise BadInput(f"categories: {former!r} became {name!r}, which {where} does not have; add it or correct it")
        code_of[former] = UNRANKED if name is None else code_of[name]
    parents = tuple(parent_of[category] for category in categories)
    return Taxonomy(categories, code_of, parents, frozenset(final))


class _Node(NamedTuple):
    """Where a category stands: a root has depth 1, `ranked` is itself or its ancestor at the ranked level."""

    depth: int
    ranked: str | None
    is_dropped: bool


def _place_nodes(parent_of: Mapping[str, str], level: int, dropped: Set[str], where: str) -> dict[str, _Node]:
    """Return every category from what its parent is, in steps that grow with the rows and not with the depth."""
    nodes: dict[str, _Node] = {}
    for category in parent_of:
        path: dict[str, None] = {}
        node = category
        while node and node not in nodes:
            path[node] = None
            parent = parent_of[node]
            if parent and parent not in parent_of:
                raise BadInput(f"{where}: the parent {parent!r} of {node!r} has no row of its own; add one")
            if parent in path:
                raise BadInput(f"{where}: {parent!r} is its own ancestor (a cycle); correct its parents")
            node = parent
        above = nodes[node] if node else _Node(0, None, is_dropped=False)
        for name in reversed(path):
            depth = above.depth + 1
            above = _Node(depth, name if depth == level else above.ranked, above.is_dropped or name in dropped)
            nodes[name] = above
    return {category: nodes[category] for category in parent_of}


def final_names(renames: Renames) -> dict[str, str | None]:
    """Return what every former name became in the end; refuse names that come back to themselves.

    Examples
    --------
    >>> final_names({"Shoes": "Footwear", "Footwear": "Boots", "Fax machines": None})
    {'Shoes': 'Boots', 'Footwear': 'Boots', 'Fax machines': None}
    """
    final: dict[str, str | None] = {}
    for former in renames:
        path: dict[str, None] = {}
        name: str | None = former
        while name is not None and name in renames and name not in final:
            path[name] = None
            name = renames[name]
            if name in path:
                cycle = " -> ".join([*path, str(name)])
                raise BadInput(f"categories: {cycle} is a cycle; a name must become another one")
        last = name if name is None else final.get(name, name)
        final.update(dict.fromkeys(path, last))
    return {former: final[former] for former in renames}


def _rename_pairs(pairs: Sequence[tuple[str, str]], final: Mapping[str, str | None]) -> list[tuple[str, str]]:
    """Return the pairs with the names of now; the row of a former name counts only when the new one has none."""
    if not final:
        return list(pairs)
    names = {category for category, _ in pairs}
    renamed = []
    for category, parent in pairs:
        name = final.get(category, category)
        if name is None:
            name = category
        elif name != category and name in names:
            continue
        renamed.append((name, final.get(parent, parent) or parent))
    return renamed


def flat_taxonomy(categories: Sequence[str], renames: Renames | None = None) -> Taxonomy:
    """Return a taxonomy in which every category is ranked as it is."""
    pairs = [(category, "") for category in categories]
    return build_taxonomy(pairs, level=1, where="the list of categories", renames=renames)


def find_similar(code_of: Mapping[str, int], others: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return pairs of names that differ only in case, blanks around them or Unicode form, and have different codes.

    Each is paired with the next spelling by name. `others` have no code: a pair has at most one of them.

    Examples
    --------
    >>> find_similar({"Hats": 0, "Shoes": 1, "shoes ": 2, "SHOES": 1}, ["hats", "Hüte"])
    [('Hats', 'hats'), ('Shoes', 'shoes ')]
    """
    spellings: dict[str, list[str]] = {}
    for name in sorted({*code_of, *others}):
        spellings.setdefault(_plain(name), []).append(name)
    return [
        (one, other)
        for names in spellings.values()
        for one, other in itertools.pairwise(names)
        if code_of.get(one) != code_of.get(other)
    ]


def name_pairs(pairs: Sequence[Sequence[str]]) -> str:
    r"""Return a few pairs as text, quoted; those that look the same with the codes of their characters.

    Examples
    --------
    >>> name_pairs([("Hats", "hats "), ("Caf\u00e9", "Cafe\u0301")])
    "'Hats' and 'hats ', 'Caf\\xe9' and 'Cafe\\u0301'"
    """
    named = []
    for one, other in pairs[:PAIRS_NAMED]:
        is_same = unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
        quote = ascii if is_same else repr
        named.append(f"{quote(one)} and {quote(other)}")
    more = len(pairs) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")


def _plain(name: str) -> str:
    # Folding the case may decompose again.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()).strip()
