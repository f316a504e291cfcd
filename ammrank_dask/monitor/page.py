"""The AMM-rank page: what night, which stage, how far, how fast, whether it converges, who is starved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from bokeh.core.properties import without_property_validation
from bokeh.document import Document
from bokeh.models import InlineStyleSheet
from bokeh.models.widgets import Div

from ammrank_dask.monitor.charts import make_panels
from ammrank_dask.monitor.texts import label_of, number_text, seconds_text, table

REFRESH_MILLISECONDS = 2_000
MAX_NIGHTS_SHOWN, MAX_TROUBLES = 10, 8
NEARLY_FULL = 0.8
"""Share of its memory above which a worker is shown in red."""

STYLE = """
:host > div { width: 100%; }
:host { font-family: Helvetica, Arial, sans-serif; color: #333c47; font-size: 13px; }
h2 { font-size: 13px; margin: 2px 0 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: normal; color: #707a87; border-bottom: 1px solid #e3e6ea; padding: 3px 6px; }
td { padding: 3px 6px; border-bottom: 1px solid #f1f3f5; white-space: nowrap; }
.none { color: #707a87; }
.facts { display: flex; gap: 34px; align-items: baseline; flex-wrap: wrap; }
.facts b { display: block; font-size: 23px; font-weight: 600; }
.facts span { color: #707a87; }
.bar { height: 9px; border-radius: 5px; background: #e3e6ea; margin-top: 9px; overflow: hidden; }
.bar i { display: block; height: 100%; background: #e8912d; }
.bad b { color: #c8372d; }
.done b.state { color: #3f76b0; }
.banner { margin: 0 0 8px; padding: 5px 10px; border-radius: 4px; background: #e8f0f8; color: #2c5a8a; }
.banner.wrong { background: #fbeae8; color: #a82a21; }
.notes td { white-space: normal; overflow-wrap: anywhere; }
.notes td:first-child { white-space: nowrap; color: #707a87; }
"""


def build_page(document: Document, read: Callable[[], dict[str, Any]]) -> Callable[[], None]:
    """Fill the document of one visitor, keep it up to date, and return what brings it up to date at once.

    Parameters
    ----------
    document
        An empty document.
    read
        Returns the snapshot of the night.
    """
    style = InlineStyleSheet(css=STYLE)
    texts = {
        name: Div(name=name, sizing_mode="stretch_both", stylesheets=[style], disable_math=True)
        for name in ("head", "notes", "troubles", "history")
    }
    panels = make_panels()
    write = {
        "head": head_html,
        "notes": notes_html,
        "troubles": troubles_html,
        "history": history_html,
    }

    @without_property_validation
    def update() -> None:
        facts = read()
        for panel in panels:
            panel.update(facts)
        for name, div in texts.items():
            text = write[name](facts)
            if div.text != text:
                div.text = text

    update()
    for root in [*texts.values(), *(panel.figure for panel in panels)]:
        document.add_root(root)
    document.title = "AMM-rank"
    document.add_periodic_callback(update, REFRESH_MILLISECONDS)
    refresh: Callable[[], None] = update
    return refresh


def head_html(snapshot: dict[str, Any]) -> str:
    """Return the line that is read first."""
    night = snapshot["night"]
    stage = next((found for found in snapshot["stages"] if found["name"] == night["stage"]), None)
    words = {"none": "no night yet", "begin": "running", "end": "published", "failed": "failed"}
    state = words.get(night["state"], "")
    if night["state"] == "none" and stage is not None:
        state = "running"
    if night["error"]:
        state = "on hold" if night["error"] == "HeldBack" else f"failed: {label_of(night['error'])}"
    cells = [_cell("night", label_of(night["date"] or "–")), _cell("state", state, "state")]
    if stage is not None:
        cells.append(_cell("stage", label_of(stage["name"])))
        if stage["rate"] is not None:
            cells.append(_cell(f"{label_of(stage['unit'])} a second", number_text(stage["rate"])))
    cells.append(_cell("so far", seconds_text(night["seconds"])))
    if night["left"] is not None:
        cells.append(_cell("left, as in earlier nights", seconds_text(night["left"])))
    elif stage is not None and stage["left"] is not None:
        cells.append(_cell("left in this stage", seconds_text(stage["left"])))
    exposure = snapshot["exposure"]
    if exposure is not None:
        n_starved = exposure["starved_categories"]
        cells.append(_cell("starved categories", f"{n_starved:,}", bad=n_starved > 0))
    checks = snapshot["checks"]
    if checks:
        n_warned = len(_warned(snapshot))
        cells.append(_cell("checks that warn", f"{n_warned} of {len(checks)}", bad=n_warned > 0))
    prices = snapshot.get("prices")
    if prices is not None:
        cells.append(_cell("duality gap", "–" if prices["gap"] is None else f"{prices['gap']:.3%}"))
        cells += [
            _cell(f"{what}: {label_of(prices[what]['category'])}", f"{prices[what]['price']:+.4f}")
            for what in ("dearest", "cheapest")
            if prices[what] is not None
        ]
    cells += _memory_cell(snapshot["memory"])
    cells.append(_cell("failed tasks", f"{snapshot['tasks_failed']:,}", bad=snapshot["tasks_failed"] > 0))
    if snapshot["workers_lost"]:
        cells.append(_cell("lost workers", f"{snapshot['workers_lost']:,}", bad=True))
    kind = {"failed": " bad", "end": " done"}.get(night["state"], "")
    bar = f'<div class="bar"><i style="width: {_share(snapshot):.1%}"></i></div>'
    return f'{_banner(night)}<div class="facts{kind}">{"".join(cells)}</div>{bar}'


def _banner(night: dict[str, Any]) -> str:
    """Return a line that says that the night is over, and how it ended."""
    if night["state"] == "end":
        took = seconds_text(night["seconds"])
        return f'<p class="banner">The night of {escape(label_of(night["date"]))} is over: it took {took}.</p>'
    if night["state"] == "failed":
        how = f"failed ({label_of(night['error'], 60)})" if night["error"] else "failed"
        how = "is on hold for a check" if night["error"] == "HeldBack" else how
        text = f"The night of {label_of(night['date'])} {how}; the lists of the night before stay active."
        return f'<p class="banner wrong">{escape(text)}</p>'
    return ""


def _memory_cell(memory: Sequence[dict[str, Any]]) -> list[str]:
    """Return the memory of the worker that has the least room left, none before a worker told its own."""
    rows = [row for row in memory if row["used"] is not None]
    if not rows:
        return []
    fullest = max(rows, key=lambda row: (row["used"] / row["limit"] if row["limit"] else 0.0, row["used"]))
    of_limit = f" of {_bytes_text(fullest['limit'])}" if fullest["limit"] else ""
    who = "memory of 1 worker" if len(rows) == 1 else f"memory, fullest of {len(rows):,} workers"
    is_full = bool(fullest["limit"]) and fullest["used"] > NEARLY_FULL * fullest["limit"]
    return [_cell(who, f"{_bytes_text(fullest['used'])}{of_limit}", bad=is_full)]


def notes_html(snapshot: dict[str, Any]) -> str:
    """Return what people should read about the night: input, training, gate, and where the report is.

    The path of the report is text to copy: a browser follows no link from a page of a server to a file.
    """
    rows = [
        f"<tr><td>{escape(label_of(note['name'], 40))}</td><td>{escape(label_of(note['text'], 400))}</td></tr>"
        for note in snapshot["notes"]
    ]
    empty = '<p class="none">Waits for what ingest, training, gate and report find.</p>'
    found = f"<table><tbody>{''.join(rows)}</tbody></table>" if rows else empty
    return f'<div class="notes"><h2>What the night found</h2>{found}</div>'


def _share(snapshot: dict[str, Any]) -> float:
    """Return how much of the night is done: by time where earlier nights tell it, else by stages and tasks."""
    night = snapshot["night"]
    if night["state"] == "end":
        return 1.0
    if night["left"] is not None and night["seconds"] is not None:
        return float(night["seconds"] / max(1e-9, night["seconds"] + night["left"]))
    stages = snapshot["stages"]
    done = sum(stage["state"] in ("end", "skipped") for stage in stages)
    running = [stage["step"] for stage in stages if stage["state"] == "running" and stage["step"]]
    return (done + sum(step["done"] / max(1, step["total"]) for step in running)) / max(1, len(stages))


def troubles_html(snapshot: dict[str, Any]) -> str:
    """Return checks that warn, failing and slow partitions."""
    rows = [
        ("check", "–", "–", label_of(check["name"], 28), f"{check['value']:.3g}, limit {check['limit']:.3g}")
        for check in _warned(snapshot)[:MAX_TROUBLES]
    ]
    rows += [
        (label_of(row["stage"], 28), row["part"], label_of(row["worker"]), label_of(row["error"], 28), "")
        for row in snapshot["failures"][: max(0, MAX_TROUBLES - len(rows))]
    ]
    rows += [
        (
            label_of(row["stage"], 28),
            row["part"],
            label_of(row["worker"]),
            "slow, in hand" if row["state"] == "running" else "slowest",
            f"{seconds_text(row['seconds'])}, mean {seconds_text(row['mean_seconds'])}",
        )
        for row in snapshot["slow"][: max(0, MAX_TROUBLES - len(rows))]
    ]
    found = table(
        ("step", "partition", "worker", "what", "time"), rows, empty="No warning, no slow and no failed partition."
    )
    return f"<h2>Warnings, failing and slow partitions</h2>{found}"


def _warned(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return [check for check in snapshot["checks"] if check["status"] != "ok"]


def history_html(snapshot: dict[str, Any]) -> str:
    """Return the last nights, the newest first."""
    rows = [
        (
            label_of(night.get("date")),
            seconds_text(night.get("seconds")),
            number_text(night.get("users")),
            _decimal(night.get("validation_error")),
            number_text(night.get("starved_categories")),
            _percent(night.get("coverage")),
            _decimal(night.get("gini")),
        )
        for night in snapshot["history"][::-1][:MAX_NIGHTS_SHOWN]
    ]
    head = ("night", "took", "users", "ε_dis, validation users", "starved categories", "coverage", "Gini")
    return f"<h2>Last nights</h2>{table(head, rows, empty='This is the first night the scheduler knows of.')}"


def _cell(name: str, value: object, kind: str = "", *, bad: bool = False) -> str:
    outer = ' class="bad"' if bad else ""
    inner = f' class="{kind}"' if kind else ""
    return f"<div{outer}><b{inner}>{escape(str(value))}</b><span>{escape(name)}</span></div>"


def _bytes_text(n_bytes: float) -> str:
    gigabytes = n_bytes / 2**30
    return f"{gigabytes:.2g} GiB" if gigabytes >= 1 else f"{n_bytes / 2**20:.0f} MiB"


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
