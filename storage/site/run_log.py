"""Keep what happened in a night: `run.json`, the last attempt in full, and `log.jsonl`, one JSON object per line.

Neither is promised to be the same twice: here are the clocks, hosts and versions that no other file has.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ammrank_dask.storage.errors import DamagedStore
from ammrank_dask.storage.objects.atomic import read_json, write_json
from ammrank_dask.storage.objects.folders import is_file, make_folder, read_file
from ammrank_dask.storage.objects.retry import retried
from ammrank_dask.storage.store.registry import FORMAT

RUN, LOG, LAST = "run.json", "log.jsonl", "runs/last.json"
HELD = "held"
"""Status of an attempt at a night that a check put on hold."""
EARLIER_KEPT = 20
_SUMMARY = ("status", "started", "seconds", "exit_code")


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, to the millisecond."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


def write_attempt(folder: Path, attempt: Mapping[str, Any]) -> None:
    """Write an attempt as `run.json`; a short note of the attempts before it stays."""
    before = read_attempt(folder)
    earlier: list[Any] = []
    if before is not None:
        earlier = before.get("earlier", [])
        if before.get("started") != attempt["started"]:
            earlier = [*earlier, {key: before.get(key) for key in _SUMMARY}][-EARLIER_KEPT:]
    write_json(folder / RUN, {"format": FORMAT, **attempt, "earlier": earlier})


@retried
def read_attempt(folder: Path) -> dict[str, Any] | None:
    """Return the last attempt at a night, None when there was none or its file cannot be read."""
    path = folder / RUN
    if not is_file(path):
        return None
    try:
        content = read_json(path)
    except DamagedStore:
        return None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else None


def write_last_end(site: Path, end: Mapping[str, Any]) -> None:
    """Write how the last command for a night ended: `date`, `exit_code`, `finished`. One may end before its record."""
    write_json(site / LAST, {"format": FORMAT, **end}, durable=False)


@retried
def read_last_end(site: Path) -> dict[str, Any] | None:
    """Return how the last command for a night ended, None when there was none or its file cannot be read."""
    path = site / LAST
    try:
        content = read_json(path) if is_file(path) else None
    except DamagedStore:
        return None
    return content if isinstance(content, dict) and content.get("format") == FORMAT else None


class JsonLines(logging.Handler):
    """Append every record of a logger to a file as one JSON object per line."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._file = _open_to_append(path)

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; a full disk must not end the night for the sake of its log."""
        line: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            # Where it happened, not what was said: the text of an unexpected error may hold an id.
            line["traceback"] = "".join(traceback.format_tb(record.exc_info[2]))
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Stay silent: the command itself says what went wrong."""

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        super().close()


@retried
def _open_to_append(path: Path) -> TextIO:
    make_folder(path.parent)
    cut_off = is_file(path) and not read_file(path).endswith(b"\n")
    file = path.open("a", encoding="utf-8")
    if cut_off:  # a killed night may have left half a line
        file.write("\n")
    return file
