"""Give a scheduler the AMM-rank page from its start: `dask scheduler --preload ammrank_dask.monitor.preload`."""

from __future__ import annotations

from typing import Any

from ammrank_dask.monitor.plugin import NightPlugin


def dask_setup(scheduler: Any) -> None:
    """Add the plugin; the scheduler starts it when its web server is up."""
    scheduler.add_plugin(NightPlugin())
