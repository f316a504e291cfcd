"""Find categories that look like two spellings of one."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

PAIRS_NAMED = 3
SIMILAR = "differ only in upper and lower case, in blanks around them or in their Unicode form"


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
