"""Tell Dask what a task spends its time on: its Fine Performance Metrics then split a stage by these words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

from distributed.metrics import context_meter

Item = TypeVar("Item")
Part = Literal["read", "decode", "kernel", "write", "merge"]


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
