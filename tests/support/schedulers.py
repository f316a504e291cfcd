"""Schedulers in a thread of this process, for commands that join one: with certificates or versions that are wrong."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from distributed import Scheduler, Security, Worker


@contextlib.contextmanager
def running_scheduler(*, security: Security | None = None, versions: dict[str, str] | None = None) -> Iterator[str]:
    """Run a scheduler with one worker, and yield its address; it answers with other `versions` than it has.

    With `security` there is no worker: who cannot join needs none.
    """
    started: list[Any] = []
    is_ready = threading.Event()

    async def serve() -> None:
        is_over = asyncio.Event()
        local = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
        async with contextlib.AsyncExitStack() as stack:
            protocol = "tcp://" if security is None else "tls://"
            scheduler = Scheduler(protocol=protocol, port=0, security=security, **local)
            _change_versions(scheduler, versions or {})
            await stack.enter_async_context(scheduler)
            if security is None:
                await stack.enter_async_context(Worker(scheduler.address, nthreads=1, **local))
            started.extend((scheduler.address, asyncio.get_running_loop(), is_over))
            is_ready.set()
            await is_over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert is_ready.wait(60), "the scheduler did not start"
    address, loop, is_over = started
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join()


def _change_versions(scheduler: Scheduler, versions: dict[str, str]) -> None:
    tell = scheduler.handlers["versions"]

    def tell_others(**arguments: Any) -> Any:
        answer = tell(**arguments)
        return {**answer, "packages": {**answer["packages"], **versions}}

    scheduler.handlers["versions"] = tell_others
