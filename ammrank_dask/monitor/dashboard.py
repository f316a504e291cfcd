"""Hook pages, routes and metrics into the dashboard of a scheduler.

All that is used of `distributed` without a promise that it stays is in this module, and
`tests/unit/monitor/test_monitor.py` checks every bit of it with the installed version: `Scheduler.http_application`,
`BokehApplication`, `template_variables` and the templates of the dashboard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import prometheus_client
from bokeh.document import Document
from bokeh.server.tornado import BokehTornado
from jinja2.filters import do_title
from prometheus_client.registry import Collector
from tornado.ioloop import IOLoop
from tornado.web import RequestHandler

NAMES = {"ammrank": "AMM-rank"}
"""What the navigation bar calls our pages; Dask would write them with one capital letter."""

_collectors: list[Collector] = []


def find_dashboard(scheduler: Any) -> BokehTornado | None:
    """Return the Bokeh application of the scheduler's dashboard, None when it was started without one."""
    applications = getattr(getattr(scheduler, "http_application", None), "applications", [])
    return next((found for found in applications if isinstance(found, BokehTornado)), None)


def add_page(scheduler: Any, path: str, build: Callable[[Document], None], template: str) -> BokehTornado | None:
    """Serve a Bokeh page beside Dask's own and put it first into their navigation bar.

    Parameters
    ----------
    scheduler
        The scheduler whose dashboard gets the page.
    path
        Path of the page without slashes.
    build
        Fills the document of a new visitor.
    template
        A jinja template that extends Dask's `base.html`.

    Returns
    -------
    BokehTornado or None
        What serves the page, to be stopped by the caller; None when there is no dashboard.
    """
    from distributed.dashboard.components.scheduler import env
    from distributed.dashboard.core import BokehApplication
    from distributed.dashboard.scheduler import template_variables

    dashboard = find_dashboard(scheduler)
    if dashboard is None:
        return None
    variables = template_variables(scheduler)
    env.filters["title"] = _title
    page_template = env.from_string(template)

    def open_page(scheduler: Any, extra: dict[str, Any], document: Document) -> None:
        build(document)
        document.template = page_template
        document.template_variables.update(extra)

    application = BokehApplication(
        {f"/{path}": open_page}, scheduler, prefix=dashboard.prefix, template_variables=variables
    )
    scheduler.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()
    if path not in variables["pages"]:
        variables["pages"].insert(0, path)
    return application


def add_route(scheduler: Any, path: str, read: Callable[[], str]) -> None:
    """Serve what `read` returns as JSON under a path without a leading slash."""
    application = getattr(scheduler, "http_application", None)
    if application is None:
        return
    dashboard = find_dashboard(scheduler)
    prefix = "" if dashboard is None else dashboard.prefix
    application.add_handlers(".*", [(f"{prefix}/{path}".replace(".", r"\."), _JsonHandler, {"read": read})])


def add_metrics(collector: Collector) -> None:
    """Add metrics to `/metrics`; of several schedulers in one process the newest is shown."""
    for old in list(_collectors):
        remove_metrics(old)
    prometheus_client.REGISTRY.register(collector)
    _collectors.append(collector)


def remove_metrics(collector: Collector) -> None:
    """Take metrics away again."""
    if collector in _collectors:
        _collectors.remove(collector)
        prometheus_client.REGISTRY.unregister(collector)


class _JsonHandler(RequestHandler):
    def initialize(self, read: Callable[[], str]) -> None:
        self.read = read

    def get(self) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.write(self.read())


def _title(name: str) -> str:
    return NAMES.get(name) or do_title(name)
