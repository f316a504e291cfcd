"""Run block functions in threads of this process: for so little work that the start of a cluster would take longer.

Nothing here imports Dask, whose import is part of that start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from ammrank_dask.storage.objects.retry import tried_again

Item = TypeVar("Item")
Result = TypeVar("Result")

Progress = Callable[[str, int, int], None]
"""Called with (stage, tasks done, tasks in all) on the client after every finished task."""

LEAST_WEIGHT, MOST_WEIGHT = 0.25, 8.0
"""Weights of a batch when there are more to work on batches than there is work, and when there is much left: a batch
is what is done twice when a worker is lost."""


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""


def run_in_threads(
    stage: str, function: Callable[..., Any], arguments: Iterable[Sequence[Any]], *, progress: Progress = silent
) -> list[Any]:
    """Run `function(*args)` for every item of `arguments`, one a core at a time, and return the results in order.

    The first exception cancels what has not begun, and is raised here when nothing runs any more.
    """
    items = list(arguments)
    results: list[Any] = [None] * len(items)
    if not items:
        return results
    progress(stage, 0, len(items))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = {pool.submit(tried_again(function), *item): index for index, item in enumerate(items)}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                results[futures[future]] = future.result()
                progress(stage, done, len(items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def read_ahead(
    read: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    wait: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Iterator[Result]:
    """Yield what `read` returns of every item, in order; while one is worked on, a thread reads the next.

    What is not there yet is waited for in the context that `wait` returns.
    """

    def result_of(reading: Future[Result]) -> Result:
        with wait():
            return reading.result()

    with ThreadPoolExecutor(1) as pool:
        before = None
        for item in items:
            reading = pool.submit(read, item)
            if before is not None:
                yield result_of(before)
            before = reading
        if before is not None:
            yield result_of(before)


def write_behind(
    write: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    wait: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> list[Result]:
    """Return what `write` returns of every item, in order; while a thread writes one, the next is made."""
    return list(read_ahead(write, items, wait=wait))


def batches(items: Sequence[Item], weights: Sequence[float], *, n_at_once: int | None = None) -> list[list[Item]]:
    """Return consecutive items in batches whose weights add up to at most 1, or of one item.

    With `n_at_once`, the number of batches that are worked on at the same time, they are larger while there is much
    left, so that there are few, and smaller towards the end, so that all who work on them end together.

    Examples
    --------
    >>> batches("abcd", [0.5, 0.5, 0.2, 3])
    [['a', 'b'], ['c'], ['d']]
    >>> ["".join(batch) for batch in batches("abcdefghijklmnop", [1] * 16, n_at_once=2)]
    ['abcd', 'efg', 'hi', 'j', 'k', 'l', 'm', 'n', 'o', 'p']
    """
    found: list[list[Item]] = []
    room, left = 0.0, sum(weights)
    least = 1.0 if n_at_once is None else min(1.0, max(LEAST_WEIGHT, left / (4 * n_at_once)))
    for item, weight in zip(items, weights, strict=True):
        if weight > room or not found:
            found.append([])
            room = least if n_at_once is None else min(MOST_WEIGHT, max(least, left / (2 * n_at_once)))
        found[-1].append(item)
        room -= weight
        left -= weight
    return found
