"""Run the command that a config names for the end of a night."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ammrank_dask.storage.errors import HeldBack
from ammrank_dask.workflows.session.config import load_config
from ammrank_dask.workflows.session.options import exit_code_of, message_of

logger = logging.getLogger(__name__)

SECONDS_ALLOWED = 60
STDERR = 2


@contextlib.contextmanager
def announce(site: Path, date: dt.date) -> Iterator[dict[str, Any]]:
    """Yield facts to fill; run `notify.on_success` or `notify.on_failure` with them when the block is left.

    A night on hold is a failure with the status `held`; its facts name the checks.

    The date is that of the facts, once they have one: of several nights the one that was last begun.
    The commands get one JSON object on stdin and AMMRANK_SITE, AMMRANK_DATE, AMMRANK_STATUS and AMMRANK_EXIT_CODE in
    their environment. What they return changes nothing about the night.
    """
    notify = load_config(site / "ammrank.yaml").notify
    facts: dict[str, Any] = {}
    try:
        yield facts
    except BaseException as error:
        told = {"status": "failure", "exit_code": exit_code_of(error), "message": message_of(error)}
        if isinstance(error, HeldBack):
            told |= {"status": "held", "facts": dict(error.outcome)}
        _call(notify.on_failure, {"site": str(site), "date": facts.get("date", str(date)), **told})
        raise
    told = {"status": "success", "exit_code": 0, "facts": facts}
    _call(notify.on_success, {"site": str(site), "date": facts.get("date", str(date)), **told})


def _call(command: str | None, notice: dict[str, Any]) -> None:
    if command is None or not command.strip():
        return
    names = {
        "AMMRANK_SITE": "site",
        "AMMRANK_DATE": "date",
        "AMMRANK_STATUS": "status",
        "AMMRANK_EXIT_CODE": "exit_code",
    }
    environment = {**os.environ, **{name: str(notice[key]) for name, key in names.items()}}
    try:
        done = subprocess.run(
            shlex.split(command),
            input=json.dumps(notice, sort_keys=True, default=str),
            text=True,
            env=environment,
            stdout=STDERR,  # the result of the command is alone on stdout
            timeout=SECONDS_ALLOWED,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        logger.warning("the command of notify.on_%s did not run: %s", notice["status"], error)
        return
    if done.returncode:
        logger.warning("the command of notify.on_%s ended with %d", notice["status"], done.returncode)
