"""Read day and group of a file from the folders it is in."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from ammrank_dask.storage.errors import BadInput

_PARTS = {
    "YYYY": r"(?P<year>\d{4})",
    "MM": r"(?P<month>\d{1,2})",
    "DD": r"(?P<day>\d{1,2})",
    "GROUP": r"(?P<group>[^/]+)",
}
_SPLIT = re.compile(r"(YYYY|MM|DD|GROUP)")


class FolderFacts(NamedTuple):
    """What the folders of a file say: the day, and the group if the layout has it."""

    date: dt.date
    group: str | None


@dataclass(frozen=True)
class Layout:
    """A pattern of folders, with YYYY, MM and DD each once, and GROUP at most once.

    Examples
    --------
    >>> layout = Layout.parse("GROUP/YYYY/MM/DD")
    >>> layout.match("clicks/2026/03/05/part-0.parquet")
    FolderFacts(date=datetime.date(2026, 3, 5), group='clicks')
    >>> layout.match("users/part-0.parquet") is None
    True
    """

    text: str
    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout that a text describes; what is in folders below those of the text does not matter."""
        pieces = _SPLIT.split(text.strip("/"))
        counts = [pieces.count(part) for part in _PARTS]
        if counts[:3] != [1, 1, 1] or counts[3] > 1:
            raise BadInput(
                f"a layout must have YYYY, MM and DD once and GROUP at most once, for example YYYY/MM/DD or"
                f" GROUP/date=YYYY-MM-DD, got {text!r}"
            )
        pattern = "".join(_PARTS.get(piece, re.escape(piece)) for piece in pieces)
        return cls(text, re.compile(pattern + "/.*"))

    def match(self, name: str) -> FolderFacts | None:
        """Return what the folders of a file say, None for a file in other folders."""
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        try:
            date = dt.date(int(found["year"]), int(found["month"]), int(found["day"]))
        except ValueError:
            raise BadInput(f"{name} is in folders {self.text} that are not a date; rename or remove them") from None
        return FolderFacts(date, unquote(found["group"]) if "GROUP" in self.text else None)
