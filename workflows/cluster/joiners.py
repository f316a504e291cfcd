"""Name workers that join in the middle of a command and cannot be used, and let them leave: nobody waits for them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from distributed import Client
from tornado.ioloop import PeriodicCallback

from ammrank_dask.monitor.events import publish

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 0.5
_ALL = "all"
"""The topic under which a scheduler tells of workers that join and leave."""


class Joiners:
    """The workers that have joined: `starting` until they have looked at themselves, `refused` with the reason.

    A worker that cannot load its check, because the package is missing there, ends before it is up. With a nanny, which
    waits for it, it stays on the scheduler's list as closing, and whoever asks all workers would wait for it.
    """

    def __init__(self, client: Client, topic: str, version: str) -> None:
        self.client, self.topic, self.version = client, topic, version
        self.starting: set[str] = set()
        self.refused: dict[str, str] = {}

    @contextlib.contextmanager
    def looked_at(self) -> Iterator[None]:
        """Look at those who join from now until the end of the block."""
        loop: Any = self.client.loop
        looks = PeriodicCallback(self._look, 1000 * SECONDS_BETWEEN_LOOKS)
        self.client.subscribe_topic(_ALL, self._take_change)
        self.client.subscribe_topic(self.topic, self._take_check)
        loop.add_callback(looks.start)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # the cluster may be gone
                loop.add_callback(looks.stop)
                self.client.unsubscribe_topic(_ALL)
                self.client.unsubscribe_topic(self.topic)

    def _take_change(self, event: tuple[float, Any]) -> None:
        """Take in that a worker has joined or left."""
        change = event[1]
        if change["action"] == "add-worker":
            self.starting.add(change["worker"])
        elif change["action"] == "remove-worker" and change["worker"] in self.starting:
            self.starting.remove(change["worker"])
            if not change["expected"]:
                self._refuse_unstarted(change["worker"])

    def _take_check(self, event: tuple[float, Any]) -> None:
        """Take in what a worker that looked at itself has to say."""
        check = event[1]
        self.starting.discard(check["worker"])
        if check["refusal"] is not None:
            self.refused[check["worker"]] = check["refusal"]

    async def _look(self) -> None:
        """Let those leave that cannot be used."""
        scheduler: Any = self.client.scheduler
        with contextlib.suppress(OSError):  # the scheduler is gone, or too busy: the next look is soon
            if self.starting:
                workers = (await scheduler.identity(n_workers=-1))["workers"]
                for address in list(self.starting):
                    if workers.get(address, {}).get("status") == "closing":
                        self.starting.discard(address)
                        self._refuse_unstarted(address)
            while self.refused:
                address, refusal = self.refused.popitem()
                sentence = f"{refusal}; the command goes on without this worker"
                logger.warning("%s", sentence)
                publish(self.client, "note", name="workers", text=sentence)
                await scheduler.retire_workers(workers=[address], close_workers=True)

    def _refuse_unstarted(self, address: str) -> None:
        self.refused[address] = (
            f"the worker at {address} did not start; install ammrank-dask {self.version} there and look at its log"
        )
