"""Publish to the scheduler what a night is doing: one topic, a few kinds of events.

Every event is a dictionary with a `kind` and the id of the `client` that sent it, a few a second at most. Whoever
watches the topic (`ammrank_dask.monitor.plugin`, or a script with `client.subscribe_topic`) can rely on these:

========  =====================================================================================================
kind      facts
========  =====================================================================================================
night     `state` (begin, end, failed); at the beginning `date`, `stages` (names in order) and `usual`, the seconds
          that stages took in earlier nights; at the end `error`, the class of what went wrong
stage     `name`, `state` (begin, end, failed, skipped): a stage of the night
tasks     `name`, `token`, `state` (begin, end, failed); at the beginning `total`, `unit` and, where it is known,
          `units`: how many users or rows each task stands for, or `counted` when they come in `units` events
units     `token`, `counts`: pairs of a task's index and what it counted
train     `epoch` and `round` (from 1), `planes`, `users_per_second`; where known `epochs`, `rounds` (of an epoch),
          `loss`, `validation_error`, `popularity_error` (of ranking everybody by clicks), `planes_per_category`,
          `categories`
exposure  `users` scored so far, `users_total`, `categories` (names), `counts` (users who hold each), `clicks` of the
          label window by category, or none, `starved_below` where it is not the usual share
note      `name`, `text`: one sentence about the night that people should read, as the verdict of the gate; a later
          one of the same name replaces it
========  =====================================================================================================

No event holds a user id, and none comes once per task.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from distributed import Client
from distributed.spans import span

logger = logging.getLogger(__name__)

TOPIC = "ammrank"


def publish(client: Client, kind: str, **facts: Any) -> None:
    """Send one event; a scheduler that cannot be reached is left to the next task to notice.

    Parameters
    ----------
    client
        The cluster.
    kind
        One of the kinds in the table of this module.
    facts
        Plain values, lists of them, or numpy scalars and arrays.
    """
    known = {name: _as_json(value) for name, value in facts.items() if value is not None}
    event = {"kind": kind, "client": client.id, **known}
    try:
        client.log_event(TOPIC, event)
    # RuntimeError: the client has given up on the scheduler; AttributeError: it is closed and has none.
    except (OSError, RuntimeError, AttributeError) as error:
        logger.warning("could not publish a %s event: %s", kind, error)


@contextlib.contextmanager
def watch_night(
    client: Client, date: object, stages: Sequence[str], usual: Mapping[str, float] | None = None
) -> Iterator[None]:
    """Publish the beginning and the end of a night around its stages."""
    publish(client, "night", state="begin", date=str(date), stages=list(stages), usual=usual or {})
    try:
        yield
    except BaseException as error:  # Ctrl-C too: a scheduler that lives on must not show a night that is over
        publish(client, "night", state="failed", error=type(error).__name__)
        raise
    publish(client, "night", state="end")


@contextlib.contextmanager
def watch_stage(client: Client, name: str) -> Iterator[None]:
    """Publish the beginning and the end of a stage, and put its tasks into a span of their own."""
    publish(client, "stage", name=name, state="begin")
    try:
        with span("nightly", name):
            yield
    except BaseException:
        publish(client, "stage", name=name, state="failed")
        raise
    publish(client, "stage", name=name, state="end")


class LiveExposure:
    """Publish how many users hold each category while users are scored, once a second.

    Parameters
    ----------
    client
        The cluster.
    categories
        Names of the categories, by code.
    users_total
        Users who will be scored, None when that is not known.
    clicks
        Clicks by category code that the exposure is compared with, None without any.
    starved_below
        A category is starved below this share of its share of clicks; None for the usual one.
    excluded
        Categories that nobody may hold: they are not starved.
    """

    def __init__(
        self,
        client: Client,
        categories: Sequence[str],
        *,
        users_total: int | None = None,
        clicks: Sequence[int] | None = None,
        starved_below: float | None = None,
        excluded: Iterable[str] = (),
    ) -> None:
        self.client = client
        self.facts = {
            "categories": list(categories),
            "users_total": users_total,
            "clicks": clicks,
            "starved_below": starved_below,
            "excluded": sorted(excluded),
        }
        self.users = 0
        self.counts = [0] * len(categories)
        self._throttle = Throttle()

    def add(self, n_users: int, counts: Iterable[int]) -> None:
        """Count the users of one part and how many of them hold each category."""
        self.users += int(n_users)
        self.counts = [before + int(count) for before, count in zip(self.counts, counts, strict=True)]
        if self._throttle.is_open():
            self.flush()

    def flush(self) -> None:
        """Publish the counts so far, if there are any; call it after the last part."""
        if self.users:
            publish(self.client, "exposure", users=self.users, counts=self.counts, **self.facts)


class Throttle:
    """Let one call a second through."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self._last = -seconds

    def is_open(self) -> bool:
        """Return whether enough time has passed since the last time it was."""
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True


def _as_json(value: Any) -> Any:
    """Return numpy values as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    return value
