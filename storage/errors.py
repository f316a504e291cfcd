"""Name what can go wrong with data, so that every command can answer with one sentence and an exit code."""

import difflib
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

REBUILD_COMMAND = "`ammrank nightly SITE --date DATE --rebuild`"
"""The command that makes a damaged run again; who knows the site and the date puts them in with `name_night`."""


class AmmrankError(Exception):
    """Base of all errors whose message is written for the user."""


class BadInput(AmmrankError, ValueError):
    """The lake, the config or an argument is not as it must be; `missing` is a stored file that is not there."""

    def __init__(self, message: str, *, missing: Path | None = None) -> None:
        super().__init__(message)
        self.missing = missing


class TooFewUsers(BadInput):
    """There are too few users who clicked to learn from."""


class DamagedStore(BadInput):
    """A stored array or manifest is not what was written."""


class EarlierFormat(DamagedStore):
    """What is stored was written by an earlier version, in a format that is no longer read."""


class HeldBack(AmmrankError):
    """A check keeps a night from being published; `outcome` is what the night came to."""

    def __init__(self, message: str, outcome: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.outcome = outcome


class StoreFailed(AmmrankError):
    """An object store does not answer, or answers with an error of its own."""


class NoPermission(BadInput):
    """An object store knows the caller, who may not do this."""


class SiteBusy(AmmrankError):
    """Another run holds the site."""


def cut(text: str, most: int = 300) -> str:
    """Return a text for a message, on one line and without its end where it is long.

    Examples
    --------
    >>> cut("a line\\nand one more"), cut("a" * 10, most=4)
    ('a line and one more', 'aaaa…')
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def suggest(
    name: str,
    choices: Collection[str],
    otherwise: str = "known ones are",
    *,
    show: Callable[[str], str] = str,
    limit: int | None = None,
) -> str:
    """Return which of the choices was meant, else all of them or the first `limit`, each as `show` writes it.

    Examples
    --------
    >>> suggest("nigthly", ["ingest", "nightly"])
    'did you mean nightly?'
    >>> suggest("x", ["ingest", "nightly", "report"], "commands are", show=repr, limit=2)
    "commands are 'ingest', 'nightly', …"
    """
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean {show(close[0])}?"
    listed = [show(choice) for choice in choices]
    rest = ", …" if limit is not None and limit < len(listed) else ""
    return f"{otherwise} {', '.join(listed[:limit])}{rest}"


def shell_word(path: object) -> str:
    """Return a path as a shell takes it, for commands to type.

    Examples
    --------
    >>> f"ammrank nightly {shell_word('my shop #2')}"
    "ammrank nightly 'my shop #2'"
    """
    return shlex.quote(str(path))


def name_night(message: str, site: object, date: object) -> str:
    """Return a message whose command to type names the site and the date.

    Examples
    --------
    >>> name_night(f"part 3 is missing; make it again with {REBUILD_COMMAND}", "shop", "2026-03-01")
    'part 3 is missing; make it again with `ammrank nightly shop --date 2026-03-01 --rebuild`'
    """
    return message.replace(
        REBUILD_COMMAND, REBUILD_COMMAND.replace("SITE", shell_word(site)).replace("DATE", str(date))
    )
