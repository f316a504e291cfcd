"""Use what Dask itself measures: words by which it splits the time of tasks, and its performance report of a night."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TypeVar

from distributed import Client, performance_report
from distributed.metrics import context_meter

from ammrank_dask.storage.objects.atomic import write_atomic
from ammrank_dask.storage.objects.folders import is_folder

logger = logging.getLogger(__name__)

PERFORMANCE_PAGE = "dask-performance.html"
SECONDS_TO_REPORT = 30.0
"""How long the report may take: Dask asks every worker for its profile, also one that never answers."""

Item = TypeVar("Item")
Part = Literal["read", "decode", "kernel", "write", "merge"]


@contextlib.contextmanager
def record_performance(client: Client, folder: Path) -> Iterator[None]:
    """Write the performance report of the block into a folder, if the folder exists at the end.

    The page is whole in itself and loads nothing from the network. It holds times and hosts, so it is no part of what
    is the same in every run; that it cannot be written, or not in time, is no reason for a night to fail.
    """
    started = _start_report(client)
    yield
    if started is None or not is_folder(folder):
        return

    def write(temporary: Path) -> None:
        started.filename = str(temporary)
        with client.as_current():
            client.sync(started.__aexit__, None, None, None, code="", callback_timeout=SECONDS_TO_REPORT)

    try:
        write_atomic(folder / PERFORMANCE_PAGE, write)
    except TimeoutError:
        logger.warning("could not write the performance report: workers did not answer in %g s", SECONDS_TO_REPORT)
    except Exception as error:  # the drawing code of Dask, over which we have no say
        logger.warning("could not write the performance report: %s", error)


def _start_report(client: Client) -> performance_report | None:
    report = performance_report(mode="inline")
    try:
        with client.as_current():
            client.sync(report.__aenter__, callback_timeout=SECONDS_TO_REPORT)
    except Exception as error:
        logger.warning("there will be no performance report: %s", error)
        return None
    return report


def measure(part: Part) -> AbstractContextManager[Any]:
    """Count the seconds of a `with` block of a task under a word; outside a task nothing happens."""
    return context_meter.meter(part)


def measure_each(part: Part, items: Iterable[Item]) -> Iterator[Item]:
    """Yield items and count the seconds that it takes to get each of them."""
    iterator = iter(items)
    while True:
        with measure(part):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
